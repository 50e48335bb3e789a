/* Checkpoints of the hub's quantizers: exact values of tiny modules, and what is refused. Whole
 * models are judged in tests/models. */
#include "unit/checkpoint_files.h"

#include <math.h>

/* One tensor of the module "m": repeats the pattern as often as the shape needs. */
struct part {
    const char *ending, *dtype;
    int rows, cols;
    const void *pattern;
    size_t pattern_bytes;
};

enum { MAX_PARTS = 6 };

#define WORDS(...) (const uint32_t[]){__VA_ARGS__}, sizeof((const uint32_t[]){__VA_ARGS__})
#define FLOATS(...) (const float[]){__VA_ARGS__}, sizeof((const float[]){__VA_ARGS__})

static size_t element_bytes(const char *dtype)
{
    return strcmp(dtype, "I64") == 0                                ? 8
           : strcmp(dtype, "F32") == 0 || strcmp(dtype, "I32") == 0 ? 4
                                                                    : 1;
}

static void write_module(struct test_folder *folder, const char *quantization,
                         const struct part parts[MAX_PARTS])
{
    struct str header = {0}, data = {0}, file = {0}, config = {0};
    for (int i = 0; i < MAX_PARTS && parts[i].ending; i++) {
        const struct part *p = &parts[i];
        size_t from = data.len, bytes = (size_t)(p->rows * p->cols) * element_bytes(p->dtype);
        while (data.len - from < bytes) {
            size_t left = bytes - (data.len - from);
            put_bytes(&data, p->pattern, left < p->pattern_bytes ? left : p->pattern_bytes);
        }
        str_printf(
            &header,
            "%s\"m.%s\": {\"dtype\": \"%s\", \"shape\": [%d, %d], \"data_offsets\": [%zu, %zu]}",
            i ? ", " : "{", p->ending, p->dtype, p->rows, p->cols, from, data.len);
    }
    str_append_char(&header, '}');
    put_safetensors(&file, str_z(&header), data.data, data.len);
    str_printf(&config, "{\"quantization_config\": %s}", quantization);
    folder_write(folder, "model.safetensors", file.data, file.len);
    folder_write_text(folder, "config.json", str_z(&config));
    str_done(&header);
    str_done(&data);
    str_done(&file);
    str_done(&config);
}

static enum status read_module(struct test_folder *folder, struct checkpoint **c, struct weight *w,
                               struct error *error)
{
    *c = expect_open(folder->path);
    assert_true(checkpoint_has(*c, "m.weight"));
    enum status status = checkpoint_weight(*c, "m.weight", w, error);
    return status == OK ? checkpoint_unpack(*c, "m.weight", w, error) : status;
}

/* The value at (row, col) of the module, in the order of the inputs. */
static void check_value(struct test_folder *folder, int row, int col, float expected)
{
    struct checkpoint *c;
    struct weight w;
    struct error error = {0};
    float values[256], found = NAN;
    if (read_module(folder, &c, &w, &error) != OK)
        fail_msg("%s", error.message);
    assert_true(w.cols <= 256);
    weight_row_dequantize(&w, row, values);
    for (int i = 0; i < w.cols; i++)
        if ((w.order ? w.order[i] : i) == col)
            found = values[i];
    if (found != expected)
        fail_msg("(%d, %d) is %g, not %g", row, col, (double)found, (double)expected);
    checkpoint_release(c, &w);
    checkpoint_free(c);
}

static void expect_module_refused(struct test_folder *folder, const char *quantization,
                                  const struct part parts[MAX_PARTS], const char *words)
{
    struct checkpoint *c;
    struct weight w;
    struct error error = {0};
    write_module(folder, quantization, parts);
    if (read_module(folder, &c, &w, &error) == OK)
        fail_msg("accepted where \"%s\" was expected", words);
    if (!strstr(error.message, words) || !strstr(error.message, folder->path))
        fail_msg("\"%s\" is not in: %s", words, error.message);
    checkpoint_free(c);
}

/* --- GPTQ and AWQ ----------------------------------------------------------------------------- */

#define GPTQ_1 "{\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 32}"
#define GPTQ_2                                                                                     \
    "{\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 32, \"checkpoint_format\": "        \
    "\"gptq_v2\"}"
#define AWQ "{\"quant_method\": \"awq\", \"bits\": 4, \"group_size\": 32, \"version\": \"gemm\"}"

/* 8 outputs, 64 inputs in two groups. Code (row r, column c) is c % 8 where r is even, else 15. */
static const struct part gptq_parts[MAX_PARTS] = {
    {"qweight", "I32", 8, 8, WORDS(0x76543210, 0xFFFFFFFF)},
    {"qzeros", "I32", 2, 1, WORDS(0x87654F10)},
    {"scales", "F32", 2, 8, FLOATS(1, 2, 4, 8, 16, 32, 64, 128)},
    {"g_idx", "I32", 1, 64, WORDS(0, 1)},
};

static void gptqs_first_version_stores_zero_points_one_less(void **state)
{
    struct test_folder *folder = *state;
    write_module(folder, GPTQ_1, gptq_parts);
    check_value(folder, 0, 5, 5 - 1);
    check_value(folder, 1, 5, (15 - 2) * 2);
    check_value(folder, 2, 5, 5 * 4); /* 15 + 1 is 0 */
    check_value(folder, 7, 63, (15 - 9) * 128);
    write_module(folder, GPTQ_2, gptq_parts);
    check_value(folder, 0, 5, 5);
    check_value(folder, 2, 5, (5 - 15) * 4);
    check_value(folder, 7, 62, (15 - 8) * 128);
}

static void columns_of_a_group_come_together_and_know_their_inputs(void **state)
{
    struct test_folder *folder = *state;
    struct checkpoint *c;
    struct weight w;
    write_module(folder, GPTQ_1, gptq_parts);
    assert_int_equal(read_module(folder, &c, &w, NULL), OK);
    for (int i = 0; i < 64; i++)
        assert_int_equal(w.order[i], i < 32 ? 2 * i : 2 * (i - 32) + 1);
    checkpoint_release(c, &w);
    checkpoint_free(c);
    struct part parts[MAX_PARTS];
    memcpy(parts, gptq_parts, sizeof parts);
    parts[3] = (struct part){0}; /* without g_idx: one after the other */
    write_module(folder, GPTQ_1, parts);
    assert_int_equal(read_module(folder, &c, &w, NULL), OK);
    assert_true(!w.order && !w.has_order);
    checkpoint_release(c, &w);
    checkpoint_free(c);
    check_value(folder, 0, 13, 13 % 8 - 1);
}

#define GPTQ_RULES(rules)                                                                          \
    "{\"quant_method\": \"gptq\", \"bits\": 8, \"group_size\": 128, \"dynamic\": " rules "}"

/* The configuration says 8 bits in groups of 128, a rule that the module is another. */
static void modules_of_gptq_rules_are_what_their_tensors_say(void **state)
{
    struct test_folder *folder = *state;
    const char *rules = GPTQ_RULES("{\"+:.*m$\": {\"bits\": 4, \"group_size\": 32}}");
    const struct part plain[MAX_PARTS] = {{"weight", "F32", 1, 3, FLOATS(1, 2, 3)}};
    const struct {
        int part;
        struct part instead;
        const char *words;
    } cases[] = {
        {0, {"qweight", "I32", 0, 8, WORDS(0)}, "empty"},
        {1, {"qzeros", "I32", 2, 3, WORDS(0)}, "not of 4 or 8 bits"},
        {1, {"qzeros", "I32", 2, 2, WORDS(0)}, "g_idx"}, /* 8 bits: half as many columns */
        {1, {"other", "I32", 2, 1, WORDS(0)}, "not of 4 or 8 bits"},
        {2, {"scales", "F32", 3, 8, FLOATS(1)}, "3 groups of 64 columns"},
        {2, {"other", "F32", 2, 8, FLOATS(1)}, "no scales"},
    };
    write_module(folder, rules, gptq_parts);
    check_value(folder, 0, 5, 5 - 1);
    check_value(folder, 7, 63, (15 - 9) * 128);
    expect_module_refused(folder, GPTQ_RULES("{}"), gptq_parts, "scales"); /* no rule, 8 bits */
    write_module(folder, GPTQ_RULES("{\"-:.*\": {}}"), plain);
    check_value(folder, 0, 2, 3);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct part parts[MAX_PARTS];
        memcpy(parts, gptq_parts, sizeof parts);
        parts[cases[i].part] = cases[i].instead;
        expect_module_refused(folder, rules, parts, cases[i].words);
    }
}

static void awqs_words_hold_eight_rows_in_their_order(void **state)
{
    struct test_folder *folder = *state;
    const struct part parts[MAX_PARTS] = {
        {"qweight", "I32", 32, 1, WORDS(0x76543210)},
        {"qzeros", "I32", 1, 1, WORDS(0x00000010)},
        {"scales", "F32", 1, 8, FLOATS(1)},
    };
    static const float codes[] = {0, 4, 1, 5, 2, 6, 3, 7};
    write_module(folder, AWQ, parts);
    for (int row = 0; row < 8; row++)
        check_value(folder, row, 17, row == 2 ? 0 : codes[row]); /* row 2 has the zero point 1 */
}

static void damaged_integers_are_refused(void **state)
{
    const struct {
        int part;
        struct part instead;
        const char *words;
    } cases[] = {
        {0, {"qweight", "F32", 8, 8, FLOATS(1)}, "I32"},
        {1, {"qzeros", "I32", 2, 2, WORDS(0)}, "qzeros"},
        {1, {"qzeros", "F32", 2, 1, FLOATS(0)}, "qzeros"},
        {2, {"scales", "F32", 3, 8, FLOATS(1)}, "scales"},
        {2, {"scales", "F32", 2, 7, FLOATS(1)}, "scales"},
        {2, {"scales", "I32", 2, 8, WORDS(1)}, "F32, F16 or BF16"},
        {2, {"other", "I32", 2, 8, WORDS(1)}, "no scales"},
        {2, {"scales", "F32", 2, 0, FLOATS(1)}, "empty"},
        {3, {"g_idx", "I32", 1, 63, WORDS(0, 1)}, "g_idx"},
        {3, {"g_idx", "I32", 1, 64, WORDS(0, 2)}, "group 2 of 2"},
        {3, {"g_idx", "I32", 1, 64, WORDS(0, 0xFFFFFFFF)}, "group -1 of 2"},
        {3, {"g_idx", "I32", 1, 64, WORDS(0, 0, 1)}, "groups of other than 32"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct part parts[MAX_PARTS];
        memcpy(parts, gptq_parts, sizeof parts);
        parts[cases[i].part] = cases[i].instead;
        expect_module_refused(*state, GPTQ_1, parts, cases[i].words);
    }
}

/* --- compressed-tensors, FP8, FP4 ------------------------------------------------------------- */

#define PACKED "{\"quant_method\": \"compressed-tensors\", \"format\": \"pack-quantized\"}"
#define NVFP4 "{\"quant_method\": \"compressed-tensors\", \"format\": \"nvfp4-pack-quantized\"}"
#define FP8 "{\"quant_method\": \"fp8\", \"weight_block_size\": [2, 32]}"
#define MODELOPT "{\"quant_method\": \"modelopt\", \"quant_algo\": \"NVFP4\"}"

static void packed_rows_are_read_where_they_lie(void **state)
{
    struct test_folder *folder = *state;
    struct part parts[MAX_PARTS] = {
        {"weight_packed", "I32", 2, 8, WORDS(0x76543210)},
        {"weight_scale", "F32", 2, 2, FLOATS(1, 2, 4, 8)},
        {"weight_shape", "I64", 1, 2, WORDS(2, 0, 64, 0)},
    };
    struct checkpoint *c;
    struct weight w;
    write_module(folder, PACKED, parts);
    assert_int_equal(read_module(folder, &c, &w, NULL), OK);
    assert_null(w.unpacked);
    checkpoint_free(c);
    check_value(folder, 1, 33, (1 - 8) * 8);
    parts[3] = (struct part){"weight_zero_point", "I32", 1, 2, WORDS(0x00000031)};
    write_module(folder, PACKED, parts);
    check_value(folder, 0, 7, 7 - 1);
    check_value(folder, 1, 7, (7 - 3) * 4);
    parts[2].pattern = (const uint32_t[]){3, 0, 64, 0};
    expect_module_refused(folder, PACKED, parts, "[3, 64]");
    parts[2].pattern = (const uint32_t[]){2, 0, 60, 0};
    expect_module_refused(folder, PACKED, parts, "[2, 60]");
    parts[2] = (struct part){0};
    parts[3] = (struct part){0};
    expect_module_refused(folder, PACKED, parts, "weight_shape");
}

static void fp4_takes_its_global_scale(void **state)
{
    struct test_folder *folder = *state;
    struct part parts[MAX_PARTS] = {
        {"weight_packed", "U8", 1, 16, "\x21", 1},
        {"weight_scale", "F8_E4M3", 1, 2, "\x38\x40", 2}, /* 1, 2 */
        {"weight_global_scale", "F32", 1, 1, FLOATS(4)},
    };
    write_module(folder, NVFP4, parts);
    check_value(folder, 0, 0, 0.5f / 4);
    check_value(folder, 0, 17, 1.0f * 2 / 4);
    parts[2].pattern = (const float[]){0};
    expect_module_refused(folder, NVFP4, parts, "no positive number");
    parts[2].pattern = (const float[]){NAN};
    expect_module_refused(folder, NVFP4, parts, "no positive number");
    parts[2].cols = 2;
    expect_module_refused(folder, NVFP4, parts, "no global scale");
    parts[2] = (struct part){"weight_global_scale", "F32", 1, 1, FLOATS(4)};
    parts[1].cols = 1;
    expect_module_refused(folder, NVFP4, parts, "weight_scale");
    parts[0].ending = "weight";
    parts[1].cols = 2;
    parts[2].ending = "weight_scale_2";
    write_module(folder, MODELOPT, parts);
    check_value(folder, 0, 17, 1.0f * 2 * 4);
}

static void fp8_has_a_scale_a_block(void **state)
{
    struct test_folder *folder = *state;
    struct part parts[MAX_PARTS] = {
        {"weight", "F8_E4M3", 3, 64, "\x38", 1},
        {"weight_scale_inv", "F32", 2, 2, FLOATS(1, 2, 4, 8)},
    };
    write_module(folder, FP8, parts);
    check_value(folder, 1, 31, 1);
    check_value(folder, 1, 32, 2);
    check_value(folder, 2, 63, 8);
    parts[1].rows = 3;
    expect_module_refused(folder, FP8, parts, "weight_scale_inv [3, 2]");
    expect_module_refused(folder, "{\"quant_method\": \"fp8\"}", parts, "weight_scale_inv");
    parts[0].dtype = "I32";
    parts[1].rows = 2;
    expect_module_refused(folder, FP8, parts, "I8");
}

/* --- what config.json may say ----------------------------------------------------------------- */

static void other_methods_are_refused_by_name(void **state)
{
    struct test_folder *folder = *state;
    static const char *const cases[][2] = {
        {"{\"quant_method\": \"bitsandbytes\", \"load_in_4bit\": true}", "bitsandbytes"},
        {"{\"quant_method\": \"hqq\"}", "hqq"},
        {"{\"quant_method\": \"aqlm\"}", "aqlm"},
        {"{\"quant_method\": \"eetq\"}", "eetq"},
        {"{\"quant_method\": \"quanto\"}", "quanto"},
        {"{\"quant_method\": \"torchao\"}", "torchao"},
        {"{\"quant_method\": \"gptq\", \"bits\": 3, \"group_size\": 128}", "gptq with 3 bits"},
        {"{\"quant_method\": \"gptq\", \"bits\": 4, \"checkpoint_format\": \"marlin\"}", "marlin"},
        {"{\"quant_method\": \"awq\", \"bits\": 8, \"group_size\": 128}", "awq with 8 bits"},
        {"{\"quant_method\": \"awq\", \"bits\": 4, \"version\": \"gemv\"}", "gemv"},
        {"{\"quant_method\": \"compressed-tensors\", \"format\": \"marlin-24\"}", "marlin-24"},
        {"{\"quant_method\": \"compressed-tensors\"}", "compressed-tensors"},
        {"{\"quant_method\": \"modelopt\", \"quant_algo\": \"W4A8_AWQ\"}", "W4A8_AWQ"},
        {"{}", "without a quant_method"},
        {"7", "without a quant_method"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_module(folder, cases[i][0], gptq_parts);
        expect_refused(folder->path, ERROR_UNSUPPORTED, cases[i][1]);
        expect_refused(folder->path, ERROR_UNSUPPORTED, "use the bf16 or f16 checkpoint");
        expect_refused(folder->path, ERROR_UNSUPPORTED, "config.json");
    }
}

static void senseless_numbers_are_refused(void **state)
{
    struct test_folder *folder = *state;
    static const char *const cases[][2] = {
        {"{\"quant_method\": \"gptq\", \"bits\": 4}", "group_size"},
        {GPTQ_RULES("[]"), "dynamic"},
        {GPTQ_RULES("{\"+:m\": 4}"), "dynamic"},
        {"{\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 0}", "group_size"},
        {"{\"quant_method\": \"awq\", \"bits\": \"4\", \"group_size\": 32}", "bits"},
        {"{\"quant_method\": \"fp8\", \"weight_block_size\": [128]}", "two positive numbers"},
        {"{\"quant_method\": \"fp8\", \"weight_block_size\": [0, 128]}", "two positive numbers"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_module(folder, cases[i][0], gptq_parts);
        expect_refused(folder->path, ERROR_INVALID, cases[i][1]);
    }
}

static void what_is_quantized_is_not_quantized_again(void **state)
{
    struct test_folder *folder = *state;
    write_module(folder, GPTQ_1, gptq_parts);
    struct checkpoint *c = expect_open(folder->path);
    assert_int_equal(checkpoint_quantize(c, 4, 64, NULL), ERROR_INVALID);
    checkpoint_free(c);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, folder_setup, folder_teardown)
    const struct CMUnitTest tests[] = {
        TEST(gptqs_first_version_stores_zero_points_one_less),
        TEST(modules_of_gptq_rules_are_what_their_tensors_say),
        TEST(columns_of_a_group_come_together_and_know_their_inputs),
        TEST(awqs_words_hold_eight_rows_in_their_order),
        TEST(damaged_integers_are_refused),
        TEST(packed_rows_are_read_where_they_lie),
        TEST(fp4_takes_its_global_scale),
        TEST(fp8_has_a_scale_a_block),
        TEST(other_methods_are_refused_by_name),
        TEST(senseless_numbers_are_refused),
        TEST(what_is_quantized_is_not_quantized_again),
    };
#undef TEST
    return cmocka_run_group_tests(tests, NULL, NULL);
}
