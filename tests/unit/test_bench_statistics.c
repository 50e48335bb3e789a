/* Percentiles as numpy computes them, and reports that are JSON. */
#include "base/json.h"
#include "bench/report.h"
#include "bench/statistics.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void close_to(double got, double wanted)
{
    assert_true(fabs(got - wanted) < 1e-12 * (1.0 + fabs(wanted)));
}

/* numpy.percentile([5, 1, 4, 2, 3, 10], [50, 90, 99]) is 3.5, 7.5, 9.75. */
static void percentiles_are_numpys(void **state)
{
    (void)state;
    static const double values[] = {5, 1, 4, 2, 3, 10};
    struct samples s = {0};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++)
        samples_add(&s, values[i]);
    struct summary out = samples_summary(&s);
    close_to(out.mean, 25.0 / 6.0);
    close_to(out.median, 3.5);
    close_to(out.p90, 7.5);
    close_to(out.p99, 9.75);
    close_to(out.min, 1.0);
    close_to(out.max, 10.0);
    samples_done(&s);
}

static void one_sample_and_none(void **state)
{
    (void)state;
    struct samples s = {0};
    struct summary none = samples_summary(&s);
    assert_true(none.n == 0 && none.mean == 0.0 && none.p99 == 0.0);
    samples_add(&s, 2.5);
    struct summary one = samples_summary(&s);
    close_to(one.median, 2.5);
    close_to(one.p99, 2.5);
    samples_done(&s);
}

static void samples_grow_and_join(void **state)
{
    (void)state;
    struct samples a = {0}, b = {0};
    for (int i = 0; i < 1000; i++)
        samples_add(i % 2 ? &a : &b, i);
    samples_add_all(&a, &b);
    struct summary out = samples_summary(&a);
    assert_int_equal(out.n, 1000);
    close_to(out.mean, 499.5);
    close_to(out.median, 499.5);
    samples_done(&a);
    samples_done(&b);
}

static void a_report_is_one_line_of_json(void **state)
{
    (void)state;
    struct report r = {0};
    struct samples s = {0};
    struct arena arena = {0};
    struct json tree;
    samples_add(&s, 0.25);
    report_text(&r, "name", "name", "a \"quoted\"\nname");
    report_int(&r, "n", NULL, 3);
    report_number(&r, "rate", "rate", 12.5);
    report_times(&r, "ttft", "first", &s);
    report_json(&r, "list", "[1, 2]");
    str_append_z(&r.json, "}");
    assert_int_equal(json_parse(&arena, str_z(&r.json), r.json.len, &tree, NULL), OK);
    assert_string_equal(json_string(json_get(&tree, "name")), "a \"quoted\"\nname");
    close_to(json_number(json_get(&tree, "p90_ttft_ms"), 0), 250.0);
    close_to(json_number(json_get(&tree, "rate"), 0), 12.5);
    assert_int_equal(json_get(&tree, "list")->n, 2);
    arena_done(&arena);
    samples_done(&s);
    report_done(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(percentiles_are_numpys),
        cmocka_unit_test(one_sample_and_none),
        cmocka_unit_test(samples_grow_and_join),
        cmocka_unit_test(a_report_is_one_line_of_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
