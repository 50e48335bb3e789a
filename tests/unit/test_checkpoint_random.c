/* Random weights: every encoding has the spread that is asked of it, and the same name the same
 * bytes. */
#include "base/map.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/random.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { ROWS = 64, COLS = 1024 };

static void check_spread(enum weight_encoding encoding)
{
    struct random_weights *r;
    struct weight w;
    float row[COLS];
    double sum = 0.0, squares = 0.0;
    assert_int_equal(random_weights_new(&r, weight_info(encoding)->name, NULL), OK);
    assert_int_equal(random_weights_make(r, "a.weight", ROWS, COLS, true, &w, NULL), OK);
    assert_int_equal(w.encoding, encoding);
    for (int i = 0; i < ROWS; i++) {
        weight_row_dequantize(&w, i, row);
        for (int k = 0; k < COLS; k++) {
            assert_true(isfinite(row[k]));
            sum += row[k];
            squares += (double)row[k] * row[k];
        }
    }
    double n = (double)ROWS * COLS, mean = sum / n, deviation = sqrt(squares / n - mean * mean);
    double wanted = 1.0 / sqrt(COLS);
    if (deviation < 0.7 * wanted || deviation > 1.42 * wanted || fabs(mean) > 0.2 * wanted)
        fail_msg("%s: mean %g, deviation %g; wanted 0 and %g", weight_info(encoding)->name, mean,
                 deviation, wanted);
    random_weights_free(r);
}

static void every_encoding_keeps_activations_at_their_size(void **state)
{
    (void)state;
    for (int i = 0; i < N_WEIGHT_ENCODINGS; i++)
        if (weight_info((enum weight_encoding)i)->block)
            check_spread((enum weight_encoding)i);
}

static void names_tell_weights_apart_and_repeat_them(void **state)
{
    (void)state;
    struct random_weights *r;
    struct weight a, b, c, none;
    assert_int_equal(random_weights_new(&r, "q4_0", NULL), OK);
    assert_int_equal(random_weights_make(r, "a", ROWS, COLS, true, &a, NULL), OK);
    assert_int_equal(random_weights_make(r, "a", ROWS, COLS, true, &b, NULL), OK);
    assert_int_equal(random_weights_make(r, "c", ROWS, COLS, true, &c, NULL), OK);
    assert_memory_equal(a.data, b.data, (size_t)weight_bytes(&a));
    assert_memory_not_equal(a.data, c.data, (size_t)weight_bytes(&a));
    random_weights_release(r, b.data);
    assert_int_equal(random_weights_make(r, "a", ROWS, COLS, false, &none, NULL), OK);
    assert_null(none.data);
    random_weights_free(r);
}

/* Hashes of what one loop of one thread drew (commit 48e8493, before there were tasks). */
static void threads_make_the_bytes_of_one_loop(void **state)
{
    (void)state;
    static const struct {
        const char *encoding;
        uint64_t hash;
    } cases[] = {{"f32", 0x3628a2b62cdcd684},
                 {"bf16", 0xc53b64098f9d4f1b},
                 {"q4_0", 0x173431743b58425c},
                 {"q6_k", 0x3f12a325f2444e9a}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct random_weights *r;
        struct weight w;
        assert_int_equal(random_weights_new(&r, cases[i].encoding, NULL), OK);
        assert_int_equal(random_weights_make(r, "a", 371, 4096, true, &w, NULL), OK);
        assert_true(hash_bytes(w.data, (size_t)weight_bytes(&w)) == cases[i].hash);
        random_weights_free(r);
    }
}

/* MLX's codes as a checkpoint that is to be quantized has them. */
static void codes_are_made_with_the_spread_of_floats(void **state)
{
    (void)state;
    static const char text[] = "{\"model_type\": \"llama\"}";
    static const char *const words[] = {"mlx_q4", "mlx_q8"};
    for (int i = 0; i < 2; i++) {
        struct checkpoint *c;
        struct weight w, again, shape;
        float row[COLS];
        double sum = 0.0, squares = 0.0, n = (double)ROWS * COLS;
        assert_int_equal(checkpoint_parse_random(&c, "here", text, sizeof text - 1, words[i], NULL),
                         OK);
        assert_int_equal(checkpoint_weight_of(c, "a.weight", ROWS, COLS, false, &shape, NULL), OK);
        assert_int_equal(checkpoint_weight_of(c, "a.weight", ROWS, COLS, true, &w, NULL), OK);
        assert_int_equal(checkpoint_weight_of(c, "a.weight", ROWS, COLS, true, &again, NULL), OK);
        assert_int_equal(w.encoding, WEIGHT_AFFINE);
        assert_int_equal(shape.encoding, WEIGHT_AFFINE);
        assert_int_equal(w.levels.bits, i ? 8 : 4);
        assert_int_equal(shape.levels.bits, w.levels.bits);
        assert_int_equal(shape.levels.type, w.levels.type);
        assert_memory_equal(w.data, again.data, (size_t)weight_bytes(&w));
        for (int k = 0; k < ROWS; k++) {
            weight_row_dequantize(&w, k, row);
            for (int j = 0; j < COLS; j++) {
                sum += (double)row[j];
                squares += (double)row[j] * (double)row[j];
            }
        }
        double mean = sum / n, deviation = sqrt(squares / n - mean * mean), wanted = 1 / sqrt(COLS);
        assert_true(fabs(deviation / wanted - 1) < 0.02 && fabs(mean) < 0.02 * wanted);
        checkpoint_release(c, &w);
        checkpoint_release(c, &again);
        checkpoint_free(c);
    }
}

static void vectors_and_odd_widths_have_types_of_their_own(void **state)
{
    (void)state;
    struct random_weights *r;
    struct weight norm, odd;
    float values[COLS];
    assert_int_equal(random_weights_new(&r, "Q4_K", NULL), OK);
    assert_int_equal(random_weights_make(r, "model.norm.weight", 1, COLS, true, &norm, NULL), OK);
    assert_int_equal(norm.encoding, WEIGHT_F32);
    weight_row_dequantize(&norm, 0, values);
    for (int i = 0; i < COLS; i++)
        assert_true(fabsf(values[i] - 1.0f) < 0.1f);
    assert_int_equal(random_weights_make(r, "a", ROWS, 96, true, &odd, NULL), OK);
    assert_int_equal(odd.encoding, WEIGHT_BF16);
    random_weights_free(r);
}

static void an_unknown_type_is_refused_with_the_list(void **state)
{
    (void)state;
    struct random_weights *r;
    struct error error;
    assert_int_equal(random_weights_new(&r, "int3", &error), ERROR_INVALID);
    assert_non_null(strstr(error.message, "int3"));
    assert_non_null(strstr(error.message, "Q4_0"));
}

static void a_configuration_alone_is_a_checkpoint(void **state)
{
    (void)state;
    static const char text[] = "{\"model_type\": \"llama\", \"tie_word_embeddings\": true}";
    char path[64];
    struct checkpoint *c;
    struct weight w;
    struct error error;
    snprintf(path, sizeof path, "/tmp/csgl-random-%d.json", (int)getpid());
    FILE *file = fopen(path, "w");
    fputs(text, file);
    fclose(file);
    assert_int_equal(checkpoint_open_random(&c, path, "bf16", &error), OK);
    unlink(path);
    assert_true(checkpoint_is_random(c));
    assert_string_equal(checkpoint_path(c), "/tmp");
    assert_false(checkpoint_has(c, "lm_head.weight"));
    assert_false(checkpoint_has(c, "rope_freqs.weight"));
    assert_int_equal(checkpoint_weight_of(c, "x.weight", 2, 3, true, &w, &error), OK);
    assert_int_equal(w.rows, 2);
    assert_int_equal(w.cols, 3);
    checkpoint_release(c, &w);
    checkpoint_free(c);
    assert_int_equal(checkpoint_open_random(&c, path, "bf16", &error), ERROR_NOT_FOUND);
    assert_int_equal(checkpoint_parse_random(&c, "here", "[]", 2, "bf16", &error), ERROR_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_encoding_keeps_activations_at_their_size),
        cmocka_unit_test(names_tell_weights_apart_and_repeat_them),
        cmocka_unit_test(threads_make_the_bytes_of_one_loop),
        cmocka_unit_test(codes_are_made_with_the_spread_of_floats),
        cmocka_unit_test(vectors_and_odd_widths_have_types_of_their_own),
        cmocka_unit_test(an_unknown_type_is_refused_with_the_list),
        cmocka_unit_test(a_configuration_alone_is_a_checkpoint),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
