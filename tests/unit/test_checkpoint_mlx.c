/* Checkpoints that MLX quantized: what is read, what is refused; and the ones that csgl writes. */
#include "unit/checkpoint_files.h"

#include "checkpoint/quantize.h"

/* One quantized module "lm.m" [rows, 64]: its three tensors with the given types and shapes. Codes
 * are 0x21 bytes, scales 1 or (U8) 127, biases 2. */
struct module {
    const char *name, *codes_dtype, *levels_dtype;
    int64_t rows, words, groups;
    bool has_biases;
    int64_t bias_groups;
};

static void put_level_bytes(struct str *data, const char *dtype, int64_t n, float value)
{
    for (int64_t i = 0; i < n; i++) {
        if (strcmp(dtype, "F32") == 0)
            put_f32(data, value);
        else if (strcmp(dtype, "BF16") == 0)
            put_bytes(data, value == 1.0f ? "\x80\x3F" : "\x00\x40", 2);
        else
            str_append_char(data, 127);
    }
}

static void append_tensor(struct str *header, const char *name, const char *suffix,
                          const char *dtype, int64_t rows, int64_t cols, size_t from, size_t to)
{
    str_printf(
        header,
        "%s\"%s%s\": {\"dtype\": \"%s\", \"shape\": [%lld, %lld], \"data_offsets\": [%zu, %zu]}",
        header->len > 1 ? ", " : "", name, suffix, dtype, (long long)rows, (long long)cols, from,
        to);
}

static void write_module(struct test_folder *folder, const struct module *m, const char *config)
{
    struct str header = {0}, data = {0}, file = {0};
    str_append_char(&header, '{');
    size_t code_bytes = strcmp(m->codes_dtype, "U32") == 0 ? 4 : 2, at;
    for (int64_t i = 0; i < m->rows * m->words * (int64_t)code_bytes; i++)
        str_append_char(&data, 0x21);
    append_tensor(&header, m->name, ".weight", m->codes_dtype, m->rows, m->words, 0, data.len);
    at = data.len;
    put_level_bytes(&data, m->levels_dtype, m->rows * m->groups, 1);
    append_tensor(&header, m->name, ".scales", m->levels_dtype, m->rows, m->groups, at, data.len);
    at = data.len;
    if (m->has_biases) {
        int64_t groups = m->bias_groups ? m->bias_groups : m->groups;
        put_level_bytes(&data, m->levels_dtype, m->rows * groups, 2);
        append_tensor(&header, m->name, ".biases", m->levels_dtype, m->rows, groups, at, data.len);
    }
    str_append_char(&header, '}');
    put_safetensors(&file, str_z(&header), data.data, data.len);
    folder_write(folder, "model.safetensors", file.data, file.len);
    folder_write_text(folder, "config.json", config);
    str_done(&header);
    str_done(&data);
    str_done(&file);
}

static const struct module good = {"lm.m", "U32", "BF16", 3, 8, 1, true, 0};

static void expect_row(struct test_folder *folder, const char *name, int64_t rows, float even,
                       float odd)
{
    struct checkpoint *c = expect_open(folder->path);
    struct weight w;
    struct error error = {0};
    float row[256];
    if (checkpoint_weight(c, name, &w, &error) != OK)
        fail_msg("%s", error.message);
    assert_int_equal(w.rows, rows);
    assert_int_equal(w.cols, 64);
    weight_row_dequantize(&w, rows - 1, row);
    for (int i = 0; i < 64; i += 2)
        assert_true(row[i] == even && row[i + 1] == odd);
    checkpoint_free(c);
}

static void every_way_to_say_it_is_understood(void **state)
{
    struct test_folder *folder = *state;
    static const char *const configs[] = {
        "{\"quantization\": {\"group_size\": 64, \"bits\": 4}}",
        "{\"quantization\": {\"group_size\": 64, \"bits\": 4, \"mode\": \"affine\"}, "
        "\"quantization_config\": {\"group_size\": 64, \"bits\": 4}}",
        "{\"quantization_config\": {\"group_size\": 64, \"bits\": 4}}",
        "{\"text_config\": {\"quantization\": {\"group_size\": 64, \"bits\": 4}}}",
        "{\"quantization\": {\"group_size\": 32, \"bits\": 8, \"lm.m\": {\"group_size\": 64, "
        "\"bits\": 4}}}",
        "{\"quantization\": {\"group_size\": 64, \"bits\": 4, \"lm.m\": true, \"x\": false}}",
        "{\"quantization\": {\"group_size\": 32, \"bits\": 8, \"mode\": \"mxfp8\", \"lm.m\": {}}}",
    };
    for (size_t i = 0; i < sizeof configs / sizeof configs[0]; i++) {
        write_module(folder, &good, configs[i]);
        expect_row(folder, "lm.m.weight", 3, 3, 4);
    }
}

/* Overrides go by the file's names, weights are asked for by the normalised ones. */
static void overrides_name_modules_as_the_file_does(void **state)
{
    struct test_folder *folder = *state;
    struct module m = good;
    m.name = "language_model.model.m";
    write_module(folder, &m,
                 "{\"quantization\": {\"group_size\": 32, \"bits\": 8, \"language_model.model.m\": "
                 "{\"group_size\": 64, \"bits\": 4}}}");
    expect_row(folder, "model.m.weight", 3, 3, 4);
}

static void modes_without_biases_read_their_floats(void **state)
{
    struct test_folder *folder = *state;
    struct module m = {"lm.m", "U32", "U8", 2, 8, 2, false, 0};
    write_module(folder, &m,
                 "{\"quantization\": {\"group_size\": 32, \"bits\": 4, \"mode\": \"mxfp4\"}}");
    expect_row(folder, "lm.m.weight", 2, 0.5f, 1); /* E2M1 1 and 2 */
    m.words = 16;
    write_module(folder, &m,
                 "{\"quantization\": {\"group_size\": 32, \"bits\": 8, \"mode\": \"mxfp8\"}}");
    expect_row(folder, "lm.m.weight", 2, 0.140625f, 0.140625f); /* E4M3 0x21 */
}

static void what_contradicts_itself_is_refused(void **state)
{
    struct test_folder *folder = *state;
    static const char four[] = "{\"quantization\": {\"group_size\": 64, \"bits\": 4}}";
    static const char mxfp4[] =
        "{\"quantization\": {\"group_size\": 32, \"bits\": 4, \"mode\": \"mxfp4\"}}";
    const struct {
        struct module module;
        const char *config, *words;
    } cases[] = {
        {good, "{}", "no quantization"},
        {good, "{\"quantization\": {\"group_size\": 64, \"bits\": 4, \"lm.m\": false}}",
         "not quantized"},
        {good, "{\"quantization\": {\"group_size\": 64, \"bits\": 4, \"lm.m\": 4}}",
         "true, false or an object"},
        {good, "{\"quantization\": {\"group_size\": 64, \"bits\": 8}}", "words [3, 8]"},
        {good, "{\"quantization\": {\"group_size\": 32, \"bits\": 4}}", "groups of 32"},
        {good, "{\"quantization\": {\"group_size\": 32, \"bits\": 3}}", "of 3 bits"},
        {good, "{\"quantization\": {\"group_size\": 64, \"bits\": 4, \"lm.m\": {\"bits\": 7}}}",
         "7 bits"},
        {good, mxfp4, "must be U8, not BF16"},
        {{"lm.m", "U32", "U8", 3, 8, 2, true, 0}, mxfp4, "no biases"},
        {{"lm.m", "U32", "U8", 3, 8, 1, true, 0}, four, "one float type"},
        {{"lm.m", "U32", "BF16", 3, 8, 1, false, 0}, four, "biases (none)"},
        {{"lm.m", "BF16", "BF16", 3, 64, 1, true, 0}, four, "not the U32"},
        {{"lm.m", "U32", "BF16", 3, 8, 1, true, 2}, four, "shaped like its scales"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_module(folder, &cases[i].module, cases[i].config);
        struct checkpoint *c = expect_open(folder->path);
        struct weight w;
        struct error error = {0};
        assert_true(checkpoint_weight(c, "lm.m.weight", &w, &error) != OK);
        if (!strstr(error.message, cases[i].words) || !strstr(error.message, "lm.m"))
            fail_msg("\"%s\" is not in: %s", cases[i].words, error.message);
        checkpoint_free(c);
    }
}

static void a_global_scale_is_refused(void **state)
{
    struct test_folder *folder = *state;
    static const uint8_t data[32 + 4 + 4] = {0};
    struct str file = {0};
    put_safetensors(
        &file,
        "{\"m.weight\": {\"dtype\": \"U32\", \"shape\": [1, 8], \"data_offsets\": [0, 32]}, "
        "\"m.scales\": {\"dtype\": \"U8\", \"shape\": [1, 4], \"data_offsets\": [32, 36]}, "
        "\"m.global_scale\": {\"dtype\": \"F32\", \"shape\": [], \"data_offsets\": [36, 40]}}",
        data, sizeof data);
    folder_write(folder, "model.safetensors", file.data, file.len);
    folder_write_text(folder, "config.json", "{\"quantization\": {\"mode\": \"nvfp4\"}}");
    struct checkpoint *c = expect_open(folder->path);
    struct weight w;
    struct error error = {0};
    assert_int_equal(checkpoint_weight(c, "m.weight", &w, &error), ERROR_UNSUPPORTED);
    assert_non_null(strstr(error.message, "m.global_scale"));
    checkpoint_free(c);
    str_done(&file);
}

static void impossible_defaults_are_refused_at_once(void **state)
{
    struct test_folder *folder = *state;
    static const char *const cases[][2] = {
        {"{\"quantization\": 4}", "not an object"},
        {"{\"quantization\": {\"bits\": 7}}", "7 bits"},
        {"{\"quantization\": {\"bits\": 4, \"group_size\": 48}}", "groups of 48"},
        {"{\"quantization\": {\"bits\": \"4\"}}", "small positive integers"},
        {"{\"quantization\": {\"mode\": \"fp2\"}}", "\"fp2\""},
        {"{\"quantization\": {\"mode\": 3}}", "mode"},
        {"{\"quantization\": {\"mode\": \"nvfp4\", \"group_size\": 32}}", "nvfp4"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_module(folder, &good, cases[i][0]);
        struct checkpoint *c;
        struct error error = {0};
        assert_true(checkpoint_open(&c, folder->path, &error) != OK);
        if (!strstr(error.message, cases[i][1]) || !strstr(error.message, "config.json"))
            fail_msg("\"%s\" is not in: %s", cases[i][1], error.message);
    }
}

/* --- written by csgl -------------------------------------------------------------------------- */

/* [4, 64] and [4, 32] matrices, a vector, a tied head that is left out; all F32. */
static void write_floats(struct test_folder *folder, const char *config)
{
    static const struct {
        const char *name;
        int64_t rows, cols;
    } tensors[] = {{"model.wide", 4, 64}, {"model.narrow", 4, 32}, {"lm_head", 4, 64}};
    struct str header = {0}, data = {0}, file = {0};
    str_append_char(&header, '{');
    for (size_t t = 0; t < 3; t++) {
        size_t at = data.len;
        for (int64_t i = 0; i < tensors[t].rows * tensors[t].cols; i++)
            put_f32(&data, (float)(i % 23) * 0.25f - 2.0f);
        append_tensor(&header, tensors[t].name, ".weight", "F32", tensors[t].rows, tensors[t].cols,
                      at, data.len);
    }
    size_t at = data.len;
    for (int i = 0; i < 64; i++)
        put_f32(&data, (float)i);
    str_printf(&header,
               ", \"model.norm.weight\": {\"dtype\": \"F32\", \"shape\": [64], \"data_offsets\": "
               "[%zu, %zu]}}",
               at, data.len);
    put_safetensors(&file, str_z(&header), data.data, data.len);
    folder_write(folder, "model.safetensors", file.data, file.len);
    folder_write_text(folder, "config.json", config);
    folder_write_text(folder, "tokenizer.json", "{\"a\": 1}");
    str_done(&header);
    str_done(&data);
    str_done(&file);
}

static void same_rows(const struct checkpoint *a, const struct checkpoint *b, const char *name)
{
    struct weight u, v;
    float x[64], y[64];
    assert_int_equal(checkpoint_weight(a, name, &u, NULL), OK);
    assert_int_equal(checkpoint_weight(b, name, &v, NULL), OK);
    assert_true(u.rows == v.rows && u.cols == v.cols && u.encoding == v.encoding);
    for (int64_t r = 0; r < u.rows; r++) {
        weight_row_dequantize(&u, r, x);
        weight_row_dequantize(&v, r, y);
        assert_memory_equal(x, y, (size_t)u.cols * sizeof *x);
    }
}

static void remove_written(const char *out)
{
    static const char *const names[] = {"config.json", "tokenizer.json", "model.safetensors",
                                        "model.safetensors.index.json"};
    struct str path = {0};
    for (int i = 0; i < 4; i++) {
        path_join(&path, out, names[i]);
        unlink(str_z(&path));
    }
    for (int n = 1; n < 8; n++)
        for (int i = 1; i <= n; i++) {
            char name[64];
            snprintf(name, sizeof name, "model-%05d-of-%05d.safetensors", i, n);
            path_join(&path, out, name);
            unlink(str_z(&path));
        }
    assert_int_equal(rmdir(out), 0);
    str_done(&path);
}

static struct quantize_request request_for(const char *out, uint64_t shard_bytes)
{
    return (struct quantize_request){
        .out = out, .bits = 4, .group = 64, .shard_bytes = shard_bytes, .n_threads = 2};
}

static void a_written_folder_holds_what_a_quantization_at_load_shows(void **state)
{
    struct test_folder *folder = *state;
    static const uint64_t shard_bytes[] = {1 << 20, 600, 1};
    write_floats(folder, "{\"model_type\": \"llama\", \"tie_word_embeddings\": true}");
    for (int i = 0; i < 3; i++) {
        char out[128];
        struct error error = {0};
        snprintf(out, sizeof out, "%s-out", folder->path);
        struct quantize_request request = request_for(out, shard_bytes[i]);
        struct checkpoint *c = expect_open(folder->path);
        if (checkpoint_write_quantized(c, &request, &error) != OK)
            fail_msg("%s", error.message);
        struct checkpoint *written = expect_open(out), *shown = expect_open(folder->path);
        assert_int_equal(checkpoint_quantize_as(shown, 1, &error), OK);
        same_rows(written, shown, "model.wide.weight");
        same_rows(written, shown, "model.narrow.weight");
        same_rows(written, shown, "model.norm.weight");
        assert_false(checkpoint_has(written, "lm_head.weight"));
        expect_config(checkpoint_config(written),
                      "{\"model_type\": \"llama\", \"tie_word_embeddings\": true, "
                      "\"quantization\": {\"group_size\": 64, \"bits\": 4, \"mode\": \"affine\"}, "
                      "\"quantization_config\": {\"group_size\": 64, \"bits\": 4, \"mode\": "
                      "\"affine\"}}");
        struct str path = {0};
        path_join(&path, out, "tokenizer.json");
        assert_true(file_exists(str_z(&path)));
        path_join(&path, out, "model.safetensors.index.json");
        assert_int_equal(file_exists(str_z(&path)), i > 0);
        str_done(&path);
        checkpoint_free(c);
        checkpoint_free(written);
        checkpoint_free(shown);
        remove_written(out);
    }
}

/* Without the key, what the file holds decides, and is then said. */
static void a_head_of_its_own_is_kept_and_said(void **state)
{
    struct test_folder *folder = *state;
    char out[128];
    struct error error = {0};
    write_floats(folder, "{}");
    snprintf(out, sizeof out, "%s-out", folder->path);
    struct quantize_request request = request_for(out, 1 << 20);
    struct checkpoint *c = expect_open(folder->path);
    if (checkpoint_write_quantized(c, &request, &error) != OK)
        fail_msg("%s", error.message);
    struct checkpoint *written = expect_open(out);
    assert_true(checkpoint_has(written, "lm_head.weight"));
    assert_false(json_bool(json_get(checkpoint_config(written), "tie_word_embeddings"), true));
    checkpoint_free(c);
    checkpoint_free(written);
    remove_written(out);
}

static void expect_not_written(struct checkpoint *c, struct quantize_request request,
                               const char *words)
{
    struct error error = {0};
    assert_true(checkpoint_write_quantized(c, &request, &error) != OK);
    if (!strstr(error.message, words))
        fail_msg("\"%s\" is not in: %s", words, error.message);
    assert_true(!file_exists(request.out) || file_is_directory(request.out));
}

static void nothing_is_left_of_what_cannot_be_written(void **state)
{
    struct test_folder *folder = *state;
    char out[128];
    snprintf(out, sizeof out, "%s-out", folder->path);
    write_floats(folder, "{}");
    struct checkpoint *c = expect_open(folder->path);
    struct quantize_request request = request_for(folder->path, 1 << 20);
    expect_not_written(c, request, "exists already");
    request = request_for("no/such/folder", 1 << 20);
    expect_not_written(c, request, "no/such/folder");
    request = request_for(out, 1 << 20);
    request.bits = 7;
    expect_not_written(c, request, "7 bits");
    request.bits = 4;
    request.group = 16;
    expect_not_written(c, request, "groups of 16");
    checkpoint_free(c);
    write_module(folder, &good, "{\"quantization\": {\"group_size\": 64, \"bits\": 4}}");
    c = expect_open(folder->path);
    expect_not_written(c, request_for(out, 1 << 20), "quantized already");
    assert_int_equal(checkpoint_quantize_as(c, 2, NULL), ERROR_INVALID);
    assert_int_equal(checkpoint_quantize_as(c, 0, NULL), OK);
    assert_false(file_exists(out));
    checkpoint_free(c);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, folder_setup, folder_teardown)
    const struct CMUnitTest tests[] = {
        TEST(every_way_to_say_it_is_understood),
        TEST(overrides_name_modules_as_the_file_does),
        TEST(modes_without_biases_read_their_floats),
        TEST(what_contradicts_itself_is_refused),
        TEST(a_global_scale_is_refused),
        TEST(impossible_defaults_are_refused_at_once),
        TEST(a_written_folder_holds_what_a_quantization_at_load_shows),
        TEST(a_head_of_its_own_is_kept_and_said),
        TEST(nothing_is_left_of_what_cannot_be_written),
    };
#undef TEST
    return cmocka_run_group_tests(tests, NULL, NULL);
}
