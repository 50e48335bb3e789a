/* Traces: what was recorded is written, oldest first out, and other processes can read it. */
#include "base/file.h"
#include "base/json.h"
#include "base/trace.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { CAPACITY = 64 };
static char ring_path[64], out_path[64];

static int make_paths(void **state)
{
    (void)state;
    snprintf(ring_path, sizeof ring_path, "/tmp/csgl-trace-%d.ring", (int)getpid());
    snprintf(out_path, sizeof out_path, "/tmp/csgl-trace-%d.json", (int)getpid());
    return 0;
}

static int remove_paths(void **state)
{
    (void)state;
    unlink(ring_path);
    unlink(out_path);
    return 0;
}

static void record(struct trace *trace, const char *name, double begin, enum trace_kind kind)
{
    trace_record(trace, &(struct trace_event){.kind = kind,
                                              .phase = TRACE_DECODE,
                                              .name = name,
                                              .begin = begin,
                                              .end = begin + 0.5,
                                              .id = 7,
                                              .values = {3, 4}});
}

/* The tree of the written file; `arena` is the caller's to end. */
static struct json read_trace(struct arena *arena)
{
    struct str text = {0};
    struct json tree;
    struct error error;
    assert_int_equal(file_read(out_path, 64 << 20, &text, &error), OK);
    assert_int_equal(json_parse(arena, str_z(&text), text.len, &tree, &error), OK);
    str_done(&text);
    return tree;
}

static const struct json *find_event(const struct json *tree, const char *name, const char *ph)
{
    const struct json *events = json_get(tree, "traceEvents");
    for (size_t i = 0; i < events->n; i++)
        if (json_string_is(json_get(&events->items[i], "name"), name) &&
            json_string_is(json_get(&events->items[i], "ph"), ph))
            return &events->items[i];
    return NULL;
}

static void spans_and_requests_are_written_with_their_times(void **state)
{
    (void)state;
    struct trace *trace;
    struct arena arena = {0};
    assert_int_equal(trace_new(&trace, NULL, "scheduler", 1, CAPACITY, NULL), OK);
    record(trace, "decode", 2.0, TRACE_STEP);
    record(trace, "queue", 1.0, TRACE_REQUEST);
    record(trace, "a \"quoted\" name\n", 3.0, TRACE_TASK);
    assert_int_equal(trace_write(out_path, &trace, 1, NULL), OK);
    trace_free(trace);
    struct json tree = read_trace(&arena);
    const struct json *step = find_event(&tree, "decode", "X");
    assert_non_null(step);
    assert_true(json_number(json_get(step, "ts"), 0) == 2e6);
    assert_true(json_number(json_get(step, "dur"), 0) == 5e5);
    assert_string_equal(json_string(json_get(step, "cat")), "step,decode");
    assert_true(json_number(json_get(json_get(step, "args"), "sequences"), 0) == 4);
    const struct json *begin = find_event(&tree, "queue", "b");
    const struct json *end = find_event(&tree, "queue", "e");
    assert_non_null(begin);
    assert_non_null(end);
    assert_true(json_number(json_get(end, "ts"), 0) == 1.5e6);
    assert_string_equal(json_string(json_get(begin, "id")), "7");
    assert_non_null(find_event(&tree, "a ?quoted? name?", "X"));
    assert_string_equal(
        json_string(json_get(json_get(find_event(&tree, "process_name", "M"), "args"), "name")),
        "scheduler");
    arena_done(&arena);
}

static void a_full_ring_keeps_the_newest_and_says_what_it_dropped(void **state)
{
    (void)state;
    struct trace *trace;
    struct arena arena = {0};
    char name[32];
    assert_int_equal(trace_new(&trace, NULL, "csgl", 1, CAPACITY, NULL), OK);
    for (int i = 0; i < CAPACITY + 10; i++) {
        snprintf(name, sizeof name, "event %d", i);
        record(trace, name, i, TRACE_TASK);
    }
    assert_int_equal(trace_dropped(trace), 10);
    assert_int_equal(trace_write(out_path, &trace, 1, NULL), OK);
    trace_free(trace);
    struct json tree = read_trace(&arena);
    assert_null(find_event(&tree, "event 9", "X"));
    assert_non_null(find_event(&tree, "event 10", "X"));
    assert_non_null(find_event(&tree, "event 73", "X"));
    assert_true(json_number(json_get(json_get(&tree, "otherData"), "dropped_events"), 0) == 10);
    arena_done(&arena);
}

static void *record_many(void *context)
{
    for (int i = 0; i < 1000; i++)
        record(context, "thread", i, TRACE_OP);
    return NULL;
}

static void threads_record_at_once(void **state)
{
    (void)state;
    struct trace *trace;
    pthread_t threads[4];
    assert_int_equal(trace_new(&trace, NULL, "csgl", 1, CAPACITY, NULL), OK);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, record_many, trace), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(trace_count(trace), 4000);
    trace_free(trace);
}

static void another_mapping_reads_the_ring(void **state)
{
    (void)state;
    struct trace *writer, *reader;
    struct arena arena = {0};
    assert_int_equal(trace_new(&writer, ring_path, "scheduler", 3, CAPACITY, NULL), OK);
    assert_int_equal(trace_open(&reader, ring_path, NULL), OK);
    record(writer, "prefill", 1.0, TRACE_STEP);
    assert_int_equal(trace_session(reader), 3);
    assert_int_equal(trace_write(out_path, &reader, 1, NULL), OK);
    trace_free(reader);
    trace_free(writer);
    struct json tree = read_trace(&arena);
    assert_non_null(find_event(&tree, "prefill", "X"));
    arena_done(&arena);
}

static void a_file_that_is_no_ring_is_refused(void **state)
{
    (void)state;
    struct trace *trace;
    struct error error;
    FILE *file = fopen(ring_path, "w");
    for (int i = 0; i < 500; i++)
        fputs("not a ring ", file);
    fclose(file);
    assert_int_equal(trace_open(&trace, ring_path, &error), ERROR_INVALID);
    assert_non_null(strstr(error.message, ring_path));
    unlink(ring_path);
    assert_int_equal(trace_open(&trace, ring_path, &error), ERROR_NOT_FOUND);
    assert_int_equal(trace_new(&trace, NULL, "csgl", 1, 0, &error), ERROR_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spans_and_requests_are_written_with_their_times),
        cmocka_unit_test(a_full_ring_keeps_the_newest_and_says_what_it_dropped),
        cmocka_unit_test(threads_record_at_once),
        cmocka_unit_test(another_mapping_reads_the_ring),
        cmocka_unit_test(a_file_that_is_no_ring_is_refused),
    };
    return cmocka_run_group_tests(tests, make_paths, remove_paths);
}
