/* The HTTP server with clients that do not behave: they hold things open, leave, flood, lie about
 * lengths, or come in numbers. Every test ends with a server that still serves. */
#include "server_http_case.h"

#include <sys/resource.h>
#include <sys/wait.h>

static struct http_limits quick_limits(void)
{
    struct http_limits limits;
    http_limits_default(&limits);
    limits.head_ms = 300;
    limits.body_idle_ms = 300;
    limits.body_grace_ms = 600;
    limits.idle_ms = 600;
    limits.slow_reader_ms = 300;
    limits.linger_idle_ms = 300;
    limits.linger_ms = 5000;
    return limits;
}

static int start(void **state)
{
    struct http_limits limits = quick_limits();
    return case_setup(state, &limits);
}

/* The server serves, and holds nothing but the connection that asks. */
static void assert_clean(struct http_case *the_case)
{
    struct case_figures f = {0};
    for (int i = 0; i < 2000; i++) {
        f = case_read_stats(the_case);
        if (f.connections == 1 && f.active == 1 && f.body_bytes == 0)
            return;
        sleep_ms(2);
    }
    fail_msg("%zu connections, %zu active, %zu body bytes", f.connections, f.active, f.body_bytes);
}

static int stop(void **state)
{
    assert_clean(*state);
    return case_teardown(state);
}

/* Sends `text` and expects `status` and the end, not before `least_ms` and not after `most_ms`. */
static void expect_in_time(struct http_case *the_case, const char *text, int status, int least_ms,
                           int most_ms)
{
    struct client client;
    struct reply reply = {0};
    client_open(&client, the_case);
    int64_t began = now_us();
    client_send(&client, text);
    if (status) {
        assert_int_equal(client_read_reply(&client, &reply, true), status);
        assert_string_equal(reply_field(&reply, "connection"), "close");
        assert_string_equal(reply_field(&reply, "content-type"), "application/json");
    }
    int64_t ms = (now_us() - began) / 1000;
    assert_true(client_is_closed(&client));
    if (!status)
        ms = (now_us() - began) / 1000;
    assert_in_range(ms, least_ms, most_ms * (IS_SANITIZED ? 5 : 1));
    client_close(&client);
    reply_done(&reply);
}

static void half_a_head_is_answered_when_its_time_is_over(void **state)
{
    expect_in_time(*state, "GET /hello HTTP/1.1\r\nHos", 408, 290, 600);
    expect_in_time(*state, "\r\n\r\nG", 408, 290, 600);
}

static void half_a_body_is_answered_when_its_time_is_over(void **state)
{
    expect_in_time(*state, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nhalf", 408,
                   290, 600);
    expect_in_time(*state,
                   "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nha",
                   408, 290, 600);
}

static void a_body_that_drips_is_answered_when_its_time_is_over(void **state)
{
    struct client client;
    struct reply reply = {0};
    client_open(&client, *state);
    client_send(&client, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n");
    int64_t began = now_us();
    struct pollfd wait = {.fd = client.fd, .events = POLLIN};
    for (int i = 0; i < 900 && poll(&wait, 1, 20) == 0; i++)
        client_send(&client, ".");
    int64_t ms = (now_us() - began) / 1000;
    assert_int_equal(client_read_reply(&client, &reply, true), 408);
    assert_in_range(ms, 590, IS_SANITIZED ? 5000 : 1200);
    client_close(&client);
    reply_done(&reply);
}

static void idle_connections_are_closed_without_a_word(void **state)
{
    expect_in_time(*state, "", 0, 590, 1200);
    expect_in_time(*state, "\r\n", 0, 590, 1200);
    struct client client;
    struct reply reply = {0};
    client_open(&client, *state);
    sleep_ms(300);
    client_ask(&client, "GET /hello");
    assert_int_equal(client_read_reply(&client, &reply, true), 200);
    int64_t began = now_us();
    assert_true(client_is_closed(&client));
    assert_in_range((now_us() - began) / 1000, 590, IS_SANITIZED ? 5000 : 1200);
    client_close(&client);
    reply_done(&reply);
}

static void bad_requests_get_json_and_the_end_at_once(void **state)
{
    expect_in_time(*state, "nonsense\r\n", 400, 0, 100);
    expect_in_time(*state, "GET / HTTP/1.1\n\n", 400, 0, 100);
    expect_in_time(*state, "GET / HTTP/3.0\r\n", 505, 0, 100);
    expect_in_time(*state, "GET / HTTP/1.1\r\nHost: a\r\nExpect: more\r\n\r\n", 417, 0, 100);
    /* What follows a refused request is not taken for a request. */
    expect_in_time(*state,
                   "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: "
                   "chunked\r\n\r\n0\r\n\r\nGET /hello HTTP/1.1\r\nHost: a\r\n\r\n",
                   400, 0, 100);
}

static void a_body_too_large_is_refused_though_all_of_it_is_sent(void **state)
{
    enum { BYTES = 40 << 20 };
    struct client client;
    struct reply reply = {0};
    struct str text = {0};
    client_open(&client, *state);
    str_printf(&text, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n", BYTES);
    client_send(&client, text.data);
    str_clear(&text);
    for (int i = 0; i < 1 << 20; i++)
        str_append_char(&text, 'x');
    for (int i = 0; i < BYTES >> 20; i++)
        assert_true(client_send_bytes(&client, text.data, text.len));
    assert_int_equal(client_read_reply(&client, &reply, true), 413);
    assert_non_null(strstr(reply.body.data, "larger than this server accepts"));
    assert_true(client_is_closed(&client));
    str_done(&text);
    client_close(&client);
    reply_done(&reply);
}

static void bodies_together_have_a_limit(void **state)
{
    struct http_case the_case;
    struct http_limits limits = quick_limits();
    struct client holder, other;
    struct reply reply = {0};
    struct str text = {0};
    (void)state;
    limits.max_body_total_bytes = 200000;
    case_start(&the_case, &limits);
    str_printf(&text,
               "POST /later?400000 HTTP/1.1\r\nHost: a\r\nContent-Length: 90000\r\n\r\n"
               "%090000d",
               1);
    client_open(&holder, &the_case);
    client_send(&holder, text.data);
    case_wait_handled(&the_case, 1);
    client_open(&other, &the_case);
    client_send(&other, text.data);
    assert_int_equal(client_read_reply(&other, &reply, true), 503);
    assert_string_equal(reply_field(&reply, "retry-after"), "1");
    client_close(&other);
    assert_int_equal(client_read_reply(&holder, &reply, true), 200);
    client_open(&other, &the_case);
    client_send(&other, text.data);
    assert_int_equal(client_read_reply(&other, &reply, true), 200);
    client_close(&other);
    client_close(&holder);
    assert_clean(&the_case);
    case_stop(&the_case);
    str_done(&text);
    reply_done(&reply);
}

static void reset(struct client *client)
{
    struct linger none = {1, 0};
    setsockopt(client->fd, SOL_SOCKET, SO_LINGER, &none, sizeof none);
    client_close(client);
}

/* From before the client leaves to the call of on_closed, in ms. */
static double leave(struct http_case *the_case, struct client *client, void (*how)(struct client *))
{
    int n = atomic_load(&the_case->closed);
    int64_t left = now_us();
    how(client);
    case_wait_closed(the_case, n + 1);
    return (double)(atomic_load(&the_case->closed_at_us) - left) / 1000;
}

static void half_close(struct client *client)
{
    shutdown(client->fd, SHUT_WR);
    assert_true(client_is_closed(client));
    client_close(client);
}

static void a_client_that_leaves_is_noticed_while_nothing_flows(void **state)
{
    static void (*const ways[])(struct client *) = {reset, client_close, half_close};
    double worst = 0;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        struct client client;
        for (int with_next = 0; with_next < 2; with_next++) {
            int n = atomic_load(&((struct http_case *)*state)->handled);
            client_open(&client, *state);
            client_ask(&client, "GET /later?-1");
            if (with_next)
                client_ask(&client, "GET /hello");
            case_wait_handled(*state, n + 1);
            sleep_ms(20);
            double ms = leave(*state, &client, ways[i]);
            worst = ms > worst ? ms : worst;
        }
    }
    printf("a client that leaves is noticed within %.2f ms\n", worst);
    assert_true(worst < (IS_SANITIZED ? 500 : 100));
}

static void send_junk(struct client *client, size_t bytes)
{
    char *junk = malloc(1 << 20);
    assert_non_null(junk);
    memset(junk, '\n', 1 << 20);
    for (size_t sent = 0; sent < bytes; sent += 1 << 20)
        assert_true(client_send_bytes(client, junk, 1 << 20));
    free(junk);
}

static long resident_kib(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
}

static void junk_while_an_answer_is_pending_harms_nobody(void **state)
{
    struct client client, other;
    struct reply reply = {0};
    long before = resident_kib();
    client_open(&client, *state);
    client_ask(&client, "GET /later?700000");
    send_junk(&client, 60 << 20);
    client_open(&other, *state);
    client_ask(&other, "GET /hello");
    assert_int_equal(client_read_reply(&other, &reply, true), 200);
    client_close(&other);
    assert_int_equal(client_read_reply(&client, &reply, true), 200);
    assert_string_equal(reply.body.data, "later");
    assert_string_equal(reply_field(&reply, "connection"), "close");
    assert_true(client_is_closed(&client));
    client_close(&client);
    if (!IS_SANITIZED)
        assert_true(resident_kib() - before < 8 << 10);
    reply_done(&reply);
}

static void a_client_that_leaves_behind_its_junk_is_noticed(void **state)
{
    struct client client;
    client_open(&client, *state);
    client_ask(&client, "GET /later?-1");
    send_junk(&client, 60 << 20);
    assert_true(leave(*state, &client, client_close) < (IS_SANITIZED ? 2000 : 500));
}

static void wait_cut_off(struct http_case *the_case, unsigned long long n, int most_ms)
{
    int64_t began = now_us();
    while (case_read_stats(the_case).cut_off < n && now_us() - began < CLIENT_PATIENCE_MS * 1000)
        sleep_ms(2);
    assert_int_equal(case_read_stats(the_case).cut_off, n);
    assert_in_range((now_us() - began) / 1000, 0, most_ms * (IS_SANITIZED ? 5 : 1));
}

static void a_reader_that_never_reads_is_cut_off(void **state)
{
    struct http_case *the_case = *state;
    struct client client;
    unsigned long long before = case_read_stats(the_case).cut_off;
    int closed = atomic_load(&the_case->closed);
    /* 4 MB a second: the most that may be queued would be reached after 4 s */
    client_open_with(&client, the_case, 4096);
    client_ask(&client, "GET /stream?5000,1000000,20000");
    wait_cut_off(the_case, before + 1, 2500);
    assert_int_equal(atomic_load(&the_case->closed), closed + 1);
    client_close(&client);
    /* a whole answer */
    client_open_with(&client, the_case, 4096);
    client_ask(&client, "GET /big?20000000");
    wait_cut_off(the_case, before + 2, 1500);
    assert_int_equal(atomic_load(&the_case->closed), closed + 1);
    client_close(&client);
}

static void a_stream_that_outgrows_its_queue_is_cut_off_at_once(void **state)
{
    struct http_case the_case;
    struct http_limits limits = quick_limits();
    struct client client;
    (void)state;
    limits.slow_reader_ms = 60000;
    case_start(&the_case, &limits);
    client_open_with(&client, &the_case, 4096);
    client_ask(&client, "GET /stream?1,1000000,60000");
    wait_cut_off(&the_case, 1, 2500);
    assert_int_equal(atomic_load(&the_case.closed), 1);
    client_close(&client);
    assert_clean(&the_case);
    case_stop(&the_case);
}

static void busy_connections_are_kept_and_idle_ones_make_room(void **state)
{
    struct http_case the_case;
    struct http_limits limits = quick_limits();
    struct client busy[3], idle[40], late;
    struct reply reply = {0};
    (void)state;
    limits.max_connections = 4;
    limits.idle_grace_ms = 20;
    limits.idle_ms = 60000;
    case_start(&the_case, &limits);
    for (int i = 0; i < 2; i++) {
        client_open(&busy[i], &the_case);
        client_ask(&busy[i], "GET /later?600000");
    }
    case_wait_handled(&the_case, 2);
    for (int i = 0; i < 40; i++)
        client_open(&idle[i], &the_case);
    assert_true(client_is_closed(&idle[0]));
    assert_true(case_read_stats(&the_case).idle_closed >= 39);
    /* with all busy, the next one waits its turn and is then served */
    client_open(&busy[2], &the_case);
    client_ask(&busy[2], "GET /later?600000");
    case_wait_handled(&the_case, 4);
    client_open(&late, &the_case);
    client_ask(&late, "GET /later?600000");
    case_wait_handled(&the_case, 5);
    struct client last;
    client_open(&last, &the_case);
    client_ask(&last, "GET /hello");
    assert_int_equal(client_read_reply(&last, &reply, true), 200);
    assert_int_equal(client_read_reply(&busy[0], &reply, true), 200);
    assert_string_equal(reply.body.data, "later");
    client_close(&last);
    for (int i = 0; i < 3; i++)
        client_close(&busy[i]);
    client_close(&late);
    for (int i = 0; i < 40; i++)
        client_close(&idle[i]);
    case_stop(&the_case);
    reply_done(&reply);
}

enum { FEW_DESCRIPTORS = 64 };

/* A server in a process of its own with few descriptors, so that those of the clients do not
 * count; ends when the pipe does. Returns the process. */
static pid_t start_poor_server(struct http_case *the_case, int max_connections, int *pipe_end)
{
    int to[2], from[2];
    memset(the_case, 0, sizeof *the_case);
    assert_int_equal(pipe(to), 0);
    assert_int_equal(pipe(from), 0);
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct rlimit few = {FEW_DESCRIPTORS, FEW_DESCRIPTORS};
        struct http_limits limits;
        char byte;
        http_limits_default(&limits);
        limits.max_connections = max_connections;
        close(to[1]);
        setrlimit(RLIMIT_NOFILE, &few);
        case_start(the_case, &limits);
        bool is_ok = write(from[1], &the_case->port, sizeof the_case->port) > 0;
        is_ok = is_ok && read(to[0], &byte, 1) == 0;
        _exit(!is_ok);
    }
    close(to[0]);
    close(from[1]);
    assert_int_equal(read(from[0], &the_case->port, sizeof the_case->port), sizeof the_case->port);
    close(from[0]);
    *pipe_end = to[1];
    return child;
}

/* Ends it; the CPU seconds it used. */
static double end_poor_server(pid_t child, int pipe_end)
{
    int status;
    struct rusage usage;
    close(pipe_end);
    assert_int_equal(wait4(child, &status, 0, &usage), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

/* 400 idle connections to a server with 64 descriptors: requests are still served. */
static void serve_beside_idle_crowd(int max_connections)
{
    enum { CROWD = 400 };
    static struct client crowd[CROWD];
    struct http_case the_case;
    struct reply reply = {0};
    int pipe_end;
    pid_t child = start_poor_server(&the_case, max_connections, &pipe_end);
    for (int i = 0; i < CROWD; i++) {
        client_open(&crowd[i], &the_case);
        if (i % 20 == 0)
            assert_int_equal(case_get(&the_case, "/hello", &reply), 200);
    }
    for (int i = 0; i < 50; i++)
        assert_int_equal(case_get(&the_case, "/hello", &reply), 200);
    assert_true(case_read_stats(&the_case).idle_closed >= CROWD - FEW_DESCRIPTORS);
    /* One that became busy is not closed for the others. */
    client_ask(&crowd[CROWD - 1], "GET /later?300000");
    for (int i = 0; i < 200; i++) {
        struct client passing;
        client_open(&passing, &the_case);
        client_close(&passing);
    }
    assert_int_equal(client_read_reply(&crowd[CROWD - 1], &reply, true), 200);
    for (int i = 0; i < CROWD; i++)
        client_close(&crowd[i]);
    end_poor_server(child, pipe_end);
    reply_done(&reply);
}

static void an_idle_crowd_at_the_descriptor_limit_keeps_nobody_out(void **state)
{
    (void)state;
    serve_beside_idle_crowd(0);
    serve_beside_idle_crowd(100000);
}

static void a_busy_crowd_at_the_descriptor_limit_does_not_spin(void **state)
{
    enum { CROWD = 100 };
    static struct client crowd[CROWD];
    struct http_case the_case;
    struct reply reply = {0};
    int pipe_end;
    (void)state;
    pid_t child = start_poor_server(&the_case, 100000, &pipe_end);
    for (int i = 0; i < CROWD; i++) {
        client_open(&crowd[i], &the_case);
        client_ask(&crowd[i], "GET /later?1000000");
    }
    /* Those that found no descriptor wait in the listening socket until the first are answered. */
    for (int i = 0; i < CROWD; i++) {
        assert_int_equal(client_read_reply(&crowd[i], &reply, true), 200);
        client_close(&crowd[i]);
    }
    assert_int_equal(case_get(&the_case, "/hello", &reply), 200);
    double cpu = end_poor_server(child, pipe_end);
    printf("%d busy clients, %d descriptors: %.0f ms of CPU in 2 s\n", CROWD, FEW_DESCRIPTORS,
           cpu * 1000);
    assert_true(cpu < (IS_SANITIZED ? 0.5 : 0.1));
    reply_done(&reply);
}

/* One step of a client that may do anything; it is gone after some of them. */
static void misbehave(struct http_case *the_case, unsigned choice)
{
    static const char *const texts[] = {
        "GET /hello HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /hello HTTP/1.1\r\nHo",
        "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nabc",
        "GET /stream?500,100,300 HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /later?3000 HTTP/1.1\r\nHost: a\r\n\r\nGET /later?-1 HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /big?500000 HTTP/1.1\r\nHost: a\r\n\r\nGET /big?500000 HTTP/1.1\r\nHost: a\r\n\r\n",
        "\r\n",
        "{\"model\": \n",
    };
    struct client client;
    client_open(&client, the_case);
    const char *text = texts[choice % 8];
    client_send_bytes(&client, text, strlen(text));
    if (choice >> 3 & 1)
        sleep_ms((int)(choice >> 4 & 7));
    if (choice >> 7 & 1)
        client_fill(&client);
    if (choice >> 8 & 1)
        reset(&client);
    else
        client_close(&client);
}

static void random_disconnects_leave_nothing_behind(void **state)
{
    unsigned random = 12345;
    for (int i = 0; i < 600; i++) {
        random = random * 1103515245 + 12345;
        /* clients 1, 2, 6 of the list wait for an answer in vain: they leave without reading */
        unsigned choice = random >> 16;
        if (choice % 8 == 1 || choice % 8 == 2 || choice % 8 == 6)
            choice &= ~128u;
        misbehave(*state, choice);
    }
    assert_clean(*state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(half_a_head_is_answered_when_its_time_is_over),
        cmocka_unit_test(half_a_body_is_answered_when_its_time_is_over),
        cmocka_unit_test(a_body_that_drips_is_answered_when_its_time_is_over),
        cmocka_unit_test(idle_connections_are_closed_without_a_word),
        cmocka_unit_test(bad_requests_get_json_and_the_end_at_once),
        cmocka_unit_test(a_body_too_large_is_refused_though_all_of_it_is_sent),
        cmocka_unit_test(bodies_together_have_a_limit),
        cmocka_unit_test(a_client_that_leaves_is_noticed_while_nothing_flows),
        cmocka_unit_test(junk_while_an_answer_is_pending_harms_nobody),
        cmocka_unit_test(a_client_that_leaves_behind_its_junk_is_noticed),
        cmocka_unit_test(a_reader_that_never_reads_is_cut_off),
        cmocka_unit_test(a_stream_that_outgrows_its_queue_is_cut_off_at_once),
        cmocka_unit_test(busy_connections_are_kept_and_idle_ones_make_room),
        cmocka_unit_test(random_disconnects_leave_nothing_behind),
    };
    const struct CMUnitTest crowds[] = {
        cmocka_unit_test(an_idle_crowd_at_the_descriptor_limit_keeps_nobody_out),
        cmocka_unit_test(a_busy_crowd_at_the_descriptor_limit_does_not_spin),
    };
    int failed = cmocka_run_group_tests(crowds, NULL, NULL); /* fork before there are threads */
    return failed + cmocka_run_group_tests(tests, start, stop);
}
