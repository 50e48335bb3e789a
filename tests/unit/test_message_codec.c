/* Messages survive the way over the wire whole, and damaged frames are refused. */
#include "message/board.h"
#include "message/message.h"
#include "message/socket.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const int32_t ids[] = {5, -1, 2147483647};
static const float values[] = {0.5f, -3.0f};
static const struct bytes stops[] = {{"END", 3}, {"", 0}, {"a\0b", 3}};

static struct message sample_submit(void)
{
    struct message m = {.type = MESSAGE_submit};
    m.submit = (struct submit_message){.uid = 0x1234567890ABCDEFu,
                                       .ids = {ids, 3},
                                       .cache_key = 9,
                                       .marks = {ids + 1, 2},
                                       .temperature = 0.7,
                                       .top_p = NAN,
                                       .top_k = -1,
                                       .seed = 42,
                                       .ignore_eos = 1,
                                       .bias_tokens = {ids, 2},
                                       .bias_values = {values, 2},
                                       .stop = {stops, 3}};
    return m;
}

static struct message sample_piece(void)
{
    struct message m = {.type = MESSAGE_piece};
    m.piece = (struct piece_message){
        .uid = 7, .text = {"h\xC3\xA9llo", 6}, .id = 3, .finish = FINISH_STOP, .n_output = 12};
    return m;
}

static void every_field_survives(void **state)
{
    (void)state;
    struct message out[2] = {sample_submit(), sample_piece()}, in;
    struct str frame = {0};
    struct arena arena = {0};
    struct frame_reader reader;
    enum status status;
    frame_begin(&frame, 77);
    assert_true(frame_add(&frame, &out[0]));
    assert_true(frame_add(&frame, &out[1]));
    assert_int_equal(frame_open(&reader, frame.data, frame.len, &arena, NULL), OK);
    assert_int_equal(reader.epoch, 77);
    assert_true(frame_next(&reader, &in, &status, NULL));
    assert_int_equal(in.type, MESSAGE_submit);
    assert_true(in.submit.uid == out[0].submit.uid && in.submit.seed == 42);
    assert_int_equal(in.submit.ids.n, 3);
    assert_memory_equal(in.submit.ids.items, ids, sizeof ids);
    assert_int_equal(in.submit.marks.n, 2);
    assert_memory_equal(in.submit.marks.items, ids + 1, 2 * sizeof *ids);
    assert_memory_equal(in.submit.bias_values.items, values, sizeof values);
    assert_true(in.submit.temperature == 0.7 && isnan(in.submit.top_p));
    assert_int_equal(in.submit.top_k, -1);
    assert_int_equal(in.submit.stop.n, 3);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(in.submit.stop.items[i].n, stops[i].n);
        assert_memory_equal(in.submit.stop.items[i].data, stops[i].data, stops[i].n);
    }
    assert_true(frame_next(&reader, &in, &status, NULL));
    assert_int_equal(in.piece.text.n, 6);
    assert_int_equal(in.piece.n_output, 12);
    assert_false(frame_next(&reader, &in, &status, NULL));
    assert_int_equal(status, OK);
    arena_done(&arena);
    str_done(&frame);
}

static void frames_cut_anywhere_are_refused(void **state)
{
    (void)state;
    struct message m = sample_submit(), in;
    struct str frame = {0};
    frame_begin(&frame, 1);
    assert_true(frame_add(&frame, &m));
    for (size_t n = 0; n < frame.len; n++) {
        struct arena arena = {0};
        struct frame_reader reader;
        enum status status = OK;
        struct error error = {0};
        char *copy = malloc(n ? n : 1); /* exact, so that reading beyond is seen */
        memcpy(copy, frame.data, n);
        bool is_open = frame_open(&reader, copy, n, &arena, &error) == OK;
        bool has_message = is_open && frame_next(&reader, &in, &status, &error);
        assert_false(has_message);
        assert_true(!is_open || n == 12 || status == ERROR_INVALID);
        free(copy);
        arena_done(&arena);
    }
    frame.data[4] = 99; /* another version */
    struct arena arena = {0};
    struct frame_reader reader;
    assert_int_equal(frame_open(&reader, frame.data, frame.len, &arena, NULL), ERROR_INVALID);
    str_done(&frame);
}

struct boxes {
    char folder[64];
    void *context;
    struct inbox inbox;
    struct outbox outbox;
};

static void open_boxes(struct boxes *b, int high_water, size_t max_waiting)
{
    struct error error;
    snprintf(b->folder, sizeof b->folder, "/tmp/csgl-test-XXXXXX");
    assert_non_null(mkdtemp(b->folder));
    assert_int_equal(socket_context_new(&b->context, &error), OK);
    assert_int_equal(inbox_open(&b->inbox, b->context, b->folder, "peer", &error), OK);
    assert_int_equal(
        outbox_open(&b->outbox, b->context, b->folder, "peer", high_water, max_waiting, &error),
        OK);
}

static void close_boxes(struct boxes *b)
{
    char path[96];
    outbox_close(&b->outbox);
    inbox_close(&b->inbox);
    socket_context_free(b->context);
    snprintf(path, sizeof path, "%s/peer", b->folder);
    unlink(path);
    rmdir(b->folder);
}

/* Counts the pieces that arrive, whose n_output must ascend, until `n` are there. */
static void receive(struct boxes *b, int n)
{
    struct inbox_frame frame = {0};
    int next = 0;
    while (next < n) {
        if (!inbox_receive(&b->inbox, &frame)) {
            outbox_flush(&b->outbox);
            assert_false(socket_wait(&b->inbox, 1, -1, 1));
            continue;
        }
        struct arena arena = {0};
        struct frame_reader reader;
        struct message m;
        enum status status;
        assert_int_equal(frame_open(&reader, frame.data, frame.bytes, &arena, NULL), OK);
        while (frame_next(&reader, &m, &status, NULL))
            assert_int_equal(m.piece.n_output, next++);
        arena_done(&arena);
    }
    inbox_frame_done(&frame);
}

/* More frames than the sockets hold: none blocks, none is lost, order is kept. */
static void a_slow_reader_loses_nothing_and_blocks_nobody(void **state)
{
    (void)state;
    enum { N = 20000 };
    struct boxes b;
    open_boxes(&b, 4, 64 << 20);
    for (int i = 0; i < N; i++) {
        struct message m = sample_piece();
        m.piece.n_output = i;
        assert_true(outbox_add(&b.outbox, (uint32_t)(i / 1000), &m));
        assert_true(outbox_flush(&b.outbox));
    }
    receive(&b, N);
    close_boxes(&b);
}

static void a_reader_that_never_drains_is_noticed(void **state)
{
    (void)state;
    struct boxes b;
    char text[10000] = {0};
    open_boxes(&b, 1, 1 << 20);
    bool is_refused = false;
    /* The kernel's buffers, both high-water marks of 4096 and 1 frames, and a MiB of our own. */
    for (int i = 0; i < 100000 && !is_refused; i++) {
        struct message m = sample_piece();
        m.piece.text = (struct bytes){text, sizeof text};
        assert_true(outbox_add(&b.outbox, 1, &m));
        is_refused = !outbox_flush(&b.outbox);
    }
    assert_true(is_refused);
    assert_true(b.outbox.waiting_bytes <= (1 << 20) + 20000);
    close_boxes(&b);
}

static void the_board_shows_who_is_young_and_ready(void **state)
{
    (void)state;
    char folder[] = "/tmp/csgl-test-XXXXXX", path[64];
    struct board *mine, *other;
    assert_non_null(mkdtemp(folder));
    assert_int_equal(board_create(&mine, folder, NULL), OK);
    assert_int_equal(board_open(&other, folder, NULL), OK);
    assert_true(board_is_ready(other));
    atomic_store(&mine->state[ROLE_SCHEDULER], PROCESS_STARTING);
    atomic_store(&mine->started_at[ROLE_SCHEDULER], 5);
    atomic_store(&mine->started_at[ROLE_FRONTEND], 3);
    assert_false(board_is_ready(other));
    assert_int_equal(board_youngest_start(other), 5);
    atomic_store(&mine->state[ROLE_SCHEDULER], PROCESS_READY);
    assert_true(board_is_ready(other));
    board_close(other);
    board_close(mine);
    snprintf(path, sizeof path, "%s/board", folder);
    unlink(path);
    rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_field_survives),
        cmocka_unit_test(frames_cut_anywhere_are_refused),
        cmocka_unit_test(a_slow_reader_loses_nothing_and_blocks_nobody),
        cmocka_unit_test(a_reader_that_never_drains_is_noticed),
        cmocka_unit_test(the_board_shows_who_is_young_and_ready),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
