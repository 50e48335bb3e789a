/* Streams: framing, order, readers that lag but read, and what an event costs. */
#include "server_http_case.h"

#include <sys/resource.h>

static int start(void **state)
{
    struct http_limits limits;
    http_limits_default(&limits);
    limits.slow_reader_ms = 500;
    return case_setup(state, &limits);
}

static void every_write_is_a_chunk_and_the_connection_lives_on(void **state)
{
    static const int sizes[] = {1, 15, 16, 255, 256, 4095, 4096, 65535};
    struct client client;
    struct reply reply = {0};
    struct str what = {0};
    client_open(&client, *state);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        str_clear(&what);
        str_printf(&what, "GET /stream?%d,7,%d", i % 2 ? 500 : 0, sizes[i]);
        client_ask(&client, what.data);
        assert_int_equal(client_read_reply(&client, &reply, true), 200);
        assert_string_equal(reply_field(&reply, "content-type"), "text/event-stream");
        assert_string_equal(reply_field(&reply, "transfer-encoding"), "chunked");
        assert_int_equal(reply.n_chunks, 7);
        assert_int_equal(reply.body.len, 7 * sizes[i]);
    }
    str_done(&what);
    client_close(&client);
    reply_done(&reply);
}

static void an_empty_stream_is_complete(void **state)
{
    struct client client;
    struct reply reply = {0};
    client_open(&client, *state);
    client_ask(&client, "GET /stream?0,0,1");
    assert_int_equal(client_read_reply(&client, &reply, true), 200);
    assert_int_equal(reply.body.len, 0);
    client_ask(&client, "GET /hello");
    assert_int_equal(client_read_reply(&client, &reply, true), 200);
    client_close(&client);
    reply_done(&reply);
}

static void an_answer_is_not_delayed(void **state)
{
    struct client client;
    struct reply reply = {0};
    int64_t best = INT64_MAX, best_stream = INT64_MAX;
    client_open(&client, *state);
    for (int i = 0; i < 100; i++) {
        int64_t began = now_us();
        client_ask(&client, "GET /hello");
        assert_int_equal(client_read_reply(&client, &reply, true), 200);
        int64_t answered = now_us();
        client_ask(&client, "GET /stream?0,1,5");
        assert_int_equal(client_read_reply(&client, &reply, true), 200);
        int64_t streamed = now_us() - answered;
        best = answered - began < best ? answered - began : best;
        best_stream = streamed < best_stream ? streamed : best_stream;
    }
    printf("answered in %d us, a stream of one event in %d us\n", (int)best, (int)best_stream);
    assert_in_range(best, 0, 5000);
    assert_in_range(best_stream, 0, 5000);
    client_close(&client);
    reply_done(&reply);
}

static void an_event_leaves_when_it_is_written(void **state)
{
    struct client client;
    struct reply reply = {0};
    client_open(&client, *state);
    int64_t began = now_us();
    client_ask(&client, "GET /stream?150000,2,5");
    client_take(&client, client_find(&client, "\r\n\r\n"), &reply.head);
    assert_true(now_us() - began < 140000); /* the head, before the first event */
    client_take(&client, client_find(&client, "5\r\ne"), &reply.body);
    assert_in_range(now_us() - began, 140000, 290000 * (IS_SANITIZED ? 3 : 1));
    client_close(&client);
    reply_done(&reply);
}

/* 6 MB a second, for a reader that sleeps until more than the limit is unsent, but wakes in time.
 */
static void a_reader_that_lags_but_reads_gets_everything(void **state)
{
    struct client client;
    struct reply reply = {0};
    client_open_with(&client, *state, 16384);
    client_ask(&client, "GET /stream?10000,150,60000");
    struct pollfd wait = {.fd = client.fd, .events = POLLIN};
    for (int i = 0; i < 4; i++) {
        sleep_ms(300);
        for (int64_t end = now_us() + 100000; now_us() < end && poll(&wait, 1, 100) == 1;)
            assert_true(client_fill(&client) > 0);
    }
    assert_int_equal(client_read_reply(&client, &reply, true), 200);
    assert_int_equal(reply.n_chunks, 150);
    assert_int_equal(reply.body.len, 150 * 60000);
    client_close(&client);
    reply_done(&reply);
}

enum { STREAMS = 64, EVENT_BYTES = 200 };

/* A server thread that writes one event to each of the streams in every round, like a decode step
 * with as many rows, and paces the rounds. */
struct load {
    struct event_base *base;
    struct http_server *server;
    struct http_request *streams[STREAMS];
    int n_streams, rounds;
    int64_t round_us;
    double cpu_s; /* of the thread, for all rounds */
};

static void load_handle(void *context, struct http_request *request)
{
    struct load *load = context;
    http_stream_begin(request, 200, "text/event-stream");
    load->streams[load->n_streams++] = request;
}

static double thread_cpu(void)
{
    struct timespec cpu;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &cpu);
    return (double)cpu.tv_sec + (double)cpu.tv_nsec / 1e9;
}

static void *load_run(void *arg)
{
    static const char event[EVENT_BYTES] = "data: {}";
    struct load *load = arg;
    while (load->n_streams < STREAMS)
        event_base_loop(load->base, EVLOOP_ONCE);
    double began = thread_cpu();
    int64_t next = now_us();
    for (int round = 0; round < load->rounds; round++) {
        for (int i = 0; i < STREAMS; i++)
            http_stream_write(load->streams[i], event, sizeof event);
        event_base_loop(load->base, EVLOOP_NONBLOCK);
        next += load->round_us;
        for (int64_t left; (left = next - now_us()) > 0;) {
            struct timespec wait = {0, left * 1000};
            nanosleep(&wait, NULL);
        }
    }
    load->cpu_s = thread_cpu() - began;
    for (int i = 0; i < STREAMS; i++)
        http_stream_end(load->streams[i]);
    for (int i = 0; i < 3000 && http_server_stats(load->server).active; i++)
        event_base_loop(load->base, EVLOOP_ONCE);
    return NULL;
}

/* Reads all streams to their ends at once; the bytes of their chunks' contents. */
static size_t read_all(int *fds)
{
    static char data[65536];
    struct pollfd wait[STREAMS];
    size_t total = 0;
    int n_open = STREAMS;
    for (int i = 0; i < STREAMS; i++)
        wait[i] = (struct pollfd){.fd = fds[i], .events = POLLIN};
    while (n_open) {
        assert_true(poll(wait, STREAMS, CLIENT_PATIENCE_MS) > 0);
        for (int i = 0; i < STREAMS; i++) {
            ssize_t n = wait[i].revents ? recv(wait[i].fd, data, sizeof data, 0) : 0;
            total += n > 0 ? (size_t)n : 0;
            if (n >= 5 && memcmp(data + n - 5, "0\r\n\r\n", 5) == 0) {
                wait[i].fd = -1;
                n_open--;
            }
        }
    }
    return total;
}

static void an_event_costs_a_few_microseconds(void **state)
{
    (void)state;
    double best = 1e9;
    for (int repeat = 0; repeat < 3; repeat++) {
        struct load load = {.base = event_base_new(), .rounds = 500, .round_us = 1280};
        struct http_options options = {.handler = load_handle, .context = &load};
        struct error error;
        pthread_t thread;
        int fds[STREAMS], listen_fd = socket(AF_INET, SOCK_STREAM, 0);
        struct http_case the_case = {0};
        struct sockaddr_in address = {.sin_family = AF_INET,
                                      .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t len = sizeof address;
        http_limits_default(&options.limits);
        assert_int_equal(http_server_new(load.base, &options, &load.server, &error), OK);
        assert_int_equal(bind(listen_fd, (struct sockaddr *)&address, len), 0);
        assert_int_equal(getsockname(listen_fd, (struct sockaddr *)&address, &len), 0);
        assert_int_equal(http_server_listen(load.server, listen_fd, &error), OK);
        the_case.port = ntohs(address.sin_port);
        for (int i = 0; i < STREAMS; i++) {
            struct client client;
            client_open(&client, &the_case);
            client_ask(&client, "GET /");
            fds[i] = client.fd;
        }
        assert_int_equal(pthread_create(&thread, NULL, load_run, &load), 0);
        size_t bytes = read_all(fds);
        pthread_join(thread, NULL);
        assert_true(bytes >= (size_t)load.rounds * STREAMS * (EVENT_BYTES + 6));
        double us = load.cpu_s * 1e6 / (load.rounds * STREAMS);
        best = us < best ? us : best;
        for (int i = 0; i < STREAMS; i++)
            close(fds[i]);
        http_server_free(load.server);
        event_base_free(load.base);
        close(listen_fd);
    }
    printf("%d streams x 781 events/s: %.2f us of CPU an event\n", STREAMS, best);
    assert_true(best < (IS_SANITIZED ? 200 : 20));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_write_is_a_chunk_and_the_connection_lives_on),
        cmocka_unit_test(an_empty_stream_is_complete),
        cmocka_unit_test(an_answer_is_not_delayed),
        cmocka_unit_test(an_event_leaves_when_it_is_written),
        cmocka_unit_test(a_reader_that_lags_but_reads_gets_everything),
        cmocka_unit_test(an_event_costs_a_few_microseconds),
    };
    return cmocka_run_group_tests(tests, start, case_teardown);
}
