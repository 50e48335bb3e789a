/* Folders with safetensors, good and damaged. */
#include "unit/checkpoint_files.h"

/* Three dtypes, values 1 2 / 1 / 1 2 3, the f32 one at an odd address. */
static const char good_header[] =
    "{\"__metadata__\": {\"format\": \"pt\"},"
    "\"model.norm.weight\": {\"dtype\": \"BF16\", \"shape\": [2], \"data_offsets\": [0, 4]},"
    "\"model.layers.0.w\": {\"dtype\": \"F32\", \"shape\": [3, 1, 1], \"data_offsets\": [6, 18]},"
    "\"lm_head.weight\": {\"dtype\": \"F16\", \"shape\": [], \"data_offsets\": [4, 6]}}";
static const uint8_t good_data[] = {0x80, 0x3F, 0x00, 0x40, 0x00, 0x3C, 0, 0,    0x80,
                                    0x3F, 0,    0,    0,    0x40, 0,    0, 0x40, 0x40};

static void write_good(struct test_folder *folder, const char *name)
{
    struct str file = {0};
    put_safetensors(&file, good_header, good_data, sizeof good_data);
    folder_write(folder, name, file.data, file.len);
    str_done(&file);
}

static int setup(void **state)
{
    if (folder_setup(state) != 0)
        return -1;
    folder_write_text(*state, "config.json", "{\"model_type\": \"llama\"}");
    return 0;
}

static void expect_weight(const struct checkpoint *c, const char *name, int64_t rows, int64_t cols,
                          const float *values)
{
    struct weight w;
    struct error error = {0};
    if (checkpoint_weight(c, name, &w, &error) != OK)
        fail_msg("%s", error.message);
    assert_int_equal(w.rows, rows);
    assert_int_equal(w.cols, cols);
    for (int64_t r = 0; r < rows; r++) {
        float row[8];
        weight_row_dequantize(&w, r, row);
        assert_memory_equal(row, values + r * cols, (size_t)cols * sizeof *row);
    }
}

static void a_folder_with_one_file_hands_out_its_weights(void **state)
{
    struct test_folder *folder = *state;
    static const char *const names[] = {"model.safetensors", "weights.safetensors"};
    for (int i = 0; i < 2; i++) {
        write_good(folder, names[i]);
        struct checkpoint *c = expect_open(folder->path);
        static const float norm[] = {1, 2}, head[] = {1}, layer[] = {1, 2, 3};
        expect_weight(c, "model.norm.weight", 1, 2, norm);
        expect_weight(c, "lm_head.weight", 1, 1, head);
        expect_weight(c, "model.layers.0.w", 3, 1, layer);
        assert_true(checkpoint_has(c, "lm_head.weight"));
        assert_false(checkpoint_has(c, "lm_head.bias"));
        assert_false(checkpoint_has(c, "__metadata__"));
        assert_false(checkpoint_is_gguf(c));
        assert_int_equal(checkpoint_bytes(c), sizeof good_data);
        assert_string_equal(checkpoint_path(c), folder->path);
        expect_config(checkpoint_config(c), "{\"model_type\": \"llama\"}");
        expect_config(checkpoint_generation_config(c), "{}");
        struct weight w;
        struct error error;
        assert_int_equal(checkpoint_weight(c, "absent", &w, &error), ERROR_NOT_FOUND);
        assert_non_null(strstr(error.message, "absent"));
        struct vocab vocab;
        assert_int_equal(checkpoint_vocab(c, &vocab, &error), ERROR_NOT_FOUND);
        assert_int_equal(checkpoint_weight(c, "model.layers.0.w", &w, &error), OK);
        checkpoint_release(c, &w);
        expect_weight(c, "model.layers.0.w", 3, 1, layer);
        checkpoint_free(c);
        folder_unlink(folder, names[i]);
    }
}

static void prefixes_of_wrappers_are_taken_off(void **state)
{
    struct test_folder *folder = *state;
    static const char *const names[][2] = {
        {"model.language_model.layers.0.a", "model.layers.0.a"},
        {"language_model.model.layers.0.b", "model.layers.0.b"},
        {"language_model.lm_head.weight", "lm_head.weight"},
        {"model.norm.weight", "model.norm.weight"},
        {"model.visual.patch", NULL},
        {"visual.patch", NULL},
        {"vision_tower.patch", NULL},
        {"mtp.fc.weight", NULL},
        {"model.layers.0.self_attn.rotary_emb.inv_freq", NULL},
    };
    enum { N = sizeof names / sizeof names[0] };
    struct str header = {0}, file = {0};
    float data[N];
    for (int i = 0; i < N; i++) {
        str_printf(&header,
                   "%s\"%s\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [%d, %d]}",
                   i ? ", " : "{", names[i][0], i * 4, i * 4 + 4);
        data[i] = (float)i;
    }
    str_append_char(&header, '}');
    put_safetensors(&file, str_z(&header), data, sizeof data);
    folder_write(folder, "model.safetensors", file.data, file.len);
    struct checkpoint *c = expect_open(folder->path);
    uint64_t bytes = 0;
    for (int i = 0; i < N; i++) {
        if (names[i][1]) {
            expect_weight(c, names[i][1], 1, 1, &data[i]);
            bytes += 4;
        } else {
            assert_false(checkpoint_has(c, names[i][0]));
        }
    }
    assert_int_equal(checkpoint_bytes(c), bytes);
    checkpoint_free(c);
    str_done(&header);
    str_done(&file);
}

static void two_names_that_become_one_are_refused(void **state)
{
    struct test_folder *folder = *state;
    struct str file = {0};
    put_safetensors(&file,
                    "{\"model.a\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [0, 4]},"
                    "\"model.language_model.a\": {\"dtype\": \"F32\", \"shape\": [1], "
                    "\"data_offsets\": [4, 8]}}",
                    "12345678", 8);
    folder_write(folder, "model.safetensors", file.data, file.len);
    expect_refused(folder->path, ERROR_INVALID, "model.language_model.a");
    str_done(&file);
}

static void other_dtypes_are_refused_when_they_are_asked_for(void **state)
{
    struct test_folder *folder = *state;
    static const struct {
        const char *name;
        int bytes;
    } dtypes[] = {{"F8_E4M3", 2}, {"U8", 2},   {"I8", 2},   {"I32", 8}, {"U32", 8},
                  {"I64", 16},    {"BOOL", 2}, {"F64", 16}, {"F4", 1}};
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
        struct str header = {0}, file = {0};
        str_printf(&header,
                   "{\"w\": {\"dtype\": \"%s\", \"shape\": [2], \"data_offsets\": [0, %d]}}",
                   dtypes[i].name, dtypes[i].bytes);
        put_safetensors(&file, str_z(&header), "0123456789abcdef", (size_t)dtypes[i].bytes);
        folder_write(folder, "model.safetensors", file.data, file.len);
        struct checkpoint *c = expect_open(folder->path);
        struct weight w;
        struct error error = {0};
        assert_true(checkpoint_has(c, "w"));
        assert_int_equal(checkpoint_weight(c, "w", &w, &error), ERROR_UNSUPPORTED);
        assert_non_null(strstr(error.message, dtypes[i].name));
        assert_non_null(strstr(error.message, folder->path));
        checkpoint_free(c);
        str_done(&header);
        str_done(&file);
    }
}

static void an_empty_tensor_is_refused_when_it_is_asked_for(void **state)
{
    struct test_folder *folder = *state;
    struct str file = {0};
    put_safetensors(
        &file, "{\"w\": {\"dtype\": \"F32\", \"shape\": [0, 5], \"data_offsets\": [0, 0]}}", "", 0);
    folder_write(folder, "model.safetensors", file.data, file.len);
    struct checkpoint *c = expect_open(folder->path);
    struct weight w;
    struct error error = {0};
    assert_int_equal(checkpoint_weight(c, "w", &w, &error), ERROR_INVALID);
    checkpoint_free(c);
    str_done(&file);
}

static void a_file_cut_anywhere_is_refused(void **state)
{
    struct test_folder *folder = *state;
    struct str file = {0};
    put_safetensors(&file, good_header, good_data, sizeof good_data);
    for (size_t n = 0; n < file.len; n++) {
        folder_write(folder, "model.safetensors", file.data, n);
        expect_refused(folder->path, ERROR_INVALID, "model.safetensors");
    }
    str_append_char(&file, 'x');
    folder_write(folder, "model.safetensors", file.data, file.len);
    expect_refused(folder->path, ERROR_INVALID, "follow the last tensor");
    str_done(&file);
}

#define ENTRY(dtype, shape, offsets)                                                               \
    "{\"w\": {\"dtype\": " dtype ", \"shape\": " shape ", \"data_offsets\": " offsets "}}"

static void hostile_headers_are_refused(void **state)
{
    struct test_folder *folder = *state;
    static const struct {
        const char *header;
        enum status status;
        const char *words;
    } cases[] = {
        {"", ERROR_INVALID, "header"},
        {"[]", ERROR_INVALID, "not a JSON object"},
        {"{", ERROR_INVALID, "header"},
        {"{} {}", ERROR_INVALID, "follows the end"},
        {"{\"w\": 1}", ERROR_INVALID, "tensor w"},
        {"{\"w\": {}}", ERROR_INVALID, "missing"},
        {"{\"\": {}}", ERROR_INVALID, "name is empty"},
        {"{\"a\\nb\": {}}", ERROR_INVALID, "control character"},
        {"{\"\xFF\": {}}", ERROR_INVALID, "UTF-8"},
        {"{\"__metadata__\": {\"a\": }}", ERROR_INVALID, "malformed"},
        {ENTRY("\"F32\"", "[2]", "[0, 8]") " x", ERROR_INVALID, "follows the end"},
        {ENTRY("\"F33\"", "[2]", "[0, 8]"), ERROR_UNSUPPORTED, "F33"},
        {ENTRY("5", "[2]", "[0, 8]"), ERROR_INVALID, "dtype must be a string"},
        {ENTRY("\"F32\"", "2", "[0, 8]"), ERROR_INVALID, "must be arrays"},
        {ENTRY("\"F32\"", "[\"2\"]", "[0, 8]"), ERROR_INVALID, "whole numbers"},
        {ENTRY("\"F32\"", "[2.5]", "[0, 8]"), ERROR_INVALID, "whole numbers"},
        {ENTRY("\"F32\"", "[-2]", "[0, 8]"), ERROR_INVALID, "whole numbers"},
        {ENTRY("\"F32\"", "[1e30]", "[0, 8]"), ERROR_INVALID, "whole numbers"},
        {ENTRY("\"F32\"", "[1,1,1,1,1,1,1,1,2]", "[0, 8]"), ERROR_INVALID, "too many"},
        {ENTRY("\"F32\"", "[2]", "[0, 8, 9]"), ERROR_INVALID, "too many"},
        {ENTRY("\"F32\"", "[2]", "[0]"), ERROR_INVALID, "missing"},
        {ENTRY("\"F32\"", "[2]", "[8, 0]"), ERROR_INVALID, "do not lie"},
        {ENTRY("\"F32\"", "[2]", "[0, 9]"), ERROR_INVALID, "8 bytes of data"},
        {ENTRY("\"F32\"", "[2]", "[9223372036854775800, 9223372036854775807]"), ERROR_INVALID,
         "data_offsets"},
        {ENTRY("\"F32\"", "[3]", "[0, 8]"), ERROR_INVALID, "do not take"},
        {ENTRY("\"F16\"", "[2]", "[0, 8]"), ERROR_INVALID, "do not take"},
        {ENTRY("\"F4\"", "[15]", "[0, 8]"), ERROR_INVALID, "do not take"},
        {ENTRY("\"F32\"", "[4294967296, 4294967296]", "[0, 8]"), ERROR_INVALID, "overflows"},
        {ENTRY("\"F32\"", "[4611686018427387904]", "[0, 8]"), ERROR_INVALID, "overflows"},
        {ENTRY("\"F32\"", "[4294967296, 4294967296, 0]", "[0, 8]"), ERROR_INVALID, "overflows"},
        {ENTRY("\"F32\"", "[1]", "[0, 4]"), ERROR_INVALID, "follow the last tensor"},
        {ENTRY("\"F32\"", "[1]", "[4, 8]"), ERROR_INVALID, "hole"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [0, 8]}, \"b\": "
         "{\"dtype\": "
         "\"F32\", \"shape\": [1], \"data_offsets\": [4, 8]}}",
         ERROR_INVALID, "overlap"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [0, 4]}, \"a\": "
         "{\"dtype\": "
         "\"F32\", \"shape\": [1], \"data_offsets\": [4, 8]}}",
         ERROR_INVALID, "occurs twice"},
        {"{\"w\": {\"dtype\": \"F32\", \"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [0, "
         "8]}}",
         ERROR_INVALID, "repeated"},
        {"{\"w\": {\"dtype\": \"F32\", \"size\": 8, \"shape\": [2], \"data_offsets\": [0, 8]}}",
         ERROR_INVALID, "unknown"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct str file = {0};
        put_safetensors(&file, cases[i].header, "\0\0\0\0\0\0\0\0", 8);
        folder_write(folder, "model.safetensors", file.data, file.len);
        expect_refused(folder->path, cases[i].status, cases[i].words);
        str_done(&file);
    }
}

static void deep_and_huge_headers_are_refused(void **state)
{
    struct test_folder *folder = *state;
    struct str header = {0}, file = {0};
    str_append_z(&header, "{\"__metadata__\": ");
    for (int i = 0; i < 10000; i++)
        str_append_char(&header, '[');
    put_safetensors(&file, str_z(&header), "", 0);
    folder_write(folder, "model.safetensors", file.data, file.len);
    expect_refused(folder->path, ERROR_LIMIT, "nested");
    str_clear(&file);
    put_u64(&file, 100000001);
    folder_write(folder, "model.safetensors", file.data, file.len);
    expect_refused(folder->path, ERROR_LIMIT, "100000001");
    str_clear(&file);
    put_u64(&file, UINT64_MAX);
    folder_write(folder, "model.safetensors", file.data, file.len);
    expect_refused(folder->path, ERROR_LIMIT, "model.safetensors");
    folder_write_text(folder, "model.safetensors", "version https://git-lfs.github.com/spec/v1\n");
    expect_refused(folder->path, ERROR_INVALID, "git lfs pull");
    folder_unlink(folder, "model.safetensors");
    assert_int_equal(mkdir(folder_file(folder, "model.safetensors"), 0700), 0);
    expect_refused(folder->path, ERROR_INVALID, "not a regular file");
    assert_int_equal(rmdir(folder_file(folder, "model.safetensors")), 0);
    str_done(&header);
    str_done(&file);
}

static const char index_name[] = "model.safetensors.index.json";

static void shards_are_read_by_their_index(void **state)
{
    struct test_folder *folder = *state;
    write_good(folder, "a-1.safetensors");
    struct str file = {0};
    put_safetensors(&file,
                    "{\"b\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [0, 4]}}",
                    "\0\0\x80\x3F", 4);
    folder_write(folder, "a-2.safetensors", file.data, file.len);
    folder_write_text(folder, index_name,
                      "{\"metadata\": {\"total_size\": [1, {}]}, \"weight_map\": {"
                      "\"model.norm.weight\": \"a-1.safetensors\", \"b\": \"a-2.safetensors\","
                      "\"lm_head.weight\": \"a-1.safetensors\"}}");
    folder_write_text(folder, "generation_config.json", "{\"eos_token_id\": [1, 2]}");
    struct checkpoint *c = expect_open(folder->path);
    static const float one[] = {1}, layer[] = {1, 2, 3};
    expect_weight(c, "b", 1, 1, one);
    expect_weight(c, "model.layers.0.w", 3, 1, layer);
    assert_int_equal(checkpoint_bytes(c), sizeof good_data + 4);
    expect_config(checkpoint_generation_config(c), "{\"eos_token_id\": [1, 2]}");
    checkpoint_free(c);
    folder_write_text(folder, index_name,
                      "{\"weight_map\": {\"lm_head.weight\": \"a-1.safetensors\", "
                      "\"model.norm.weight\": \"a-2.safetensors\"}}");
    expect_refused(folder->path, ERROR_INVALID, "a-2.safetensors, which does not hold it");
    str_done(&file);
}

static void a_wrong_index_is_refused(void **state)
{
    struct test_folder *folder = *state;
    write_good(folder, "a.safetensors");
    write_good(folder, "same.safetensors");
    static const struct {
        const char *index;
        enum status status;
        const char *words;
    } cases[] = {
        {"", ERROR_INVALID, index_name},
        {"[]", ERROR_INVALID, "object"},
        {"{}", ERROR_INVALID, "weight_map"},
        {"{\"weight_map\": {}}", ERROR_INVALID, "weight_map"},
        {"{\"weight_map\": []}", ERROR_INVALID, "weight_map"},
        {"{\"weight_map\": {\"w\": 1}}", ERROR_INVALID, "weight_map"},
        {"{\"weight_map\": {\"w\": \"a.safetensors\"", ERROR_INVALID, "index.json"},
        {"{\"weight_map\": {\"w\": \"../a.safetensors\"}}", ERROR_INVALID, "plain name"},
        {"{\"weight_map\": {\"w\": \"/a.safetensors\"}}", ERROR_INVALID, "plain name"},
        {"{\"weight_map\": {\"w\": \"..safetensors\"}}", ERROR_INVALID, "plain name"},
        {"{\"weight_map\": {\"w\": \"x/a.safetensors\"}}", ERROR_INVALID, "plain name"},
        {"{\"weight_map\": {\"w\": \"a.safetensors\\u0000\"}}", ERROR_INVALID, "plain name"},
        {"{\"weight_map\": {\"w\": \"config.json\"}}", ERROR_INVALID, "plain name"},
        {"{\"weight_map\": {\"w\": \"absent.safetensors\"}}", ERROR_NOT_FOUND,
         "absent.safetensors"},
        {"{\"weight_map\": {\"w\": \"a.safetensors\"}}", ERROR_INVALID, "tensor w"},
        {"{\"weight_map\": {\"lm_head.weight\": \"a.safetensors\", \"x\": \"same.safetensors\"}}",
         ERROR_INVALID, "occurs twice"},
        {"{\"weight_map\": {\"lm_head.weight\": \"a.safetensors\"}} {}", ERROR_INVALID,
         "follows the end"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        folder_write_text(folder, index_name, cases[i].index);
        expect_refused(folder->path, cases[i].status, cases[i].words);
    }
}

static void an_index_cut_anywhere_is_refused(void **state)
{
    struct test_folder *folder = *state;
    static const char index[] = "{\"metadata\": {\"a\": [1]}, \"weight_map\": {\"lm_head.weight\": "
                                "\"a.safetensors\", \"model.norm.weight\": \"a.safetensors\"}}";
    write_good(folder, "a.safetensors");
    for (size_t n = 0; n < sizeof index - 1; n++) {
        folder_write(folder, index_name, index, n);
        expect_refused(folder->path, ERROR_INVALID, index_name);
    }
    folder_write_text(folder, index_name, index);
    checkpoint_free(expect_open(folder->path));
}

static void folders_without_usable_weights_say_what_is_wrong(void **state)
{
    struct test_folder *folder = *state;
    expect_refused(folder->path, ERROR_NOT_FOUND, "no weights");
    folder_write_text(folder, "pytorch_model.bin", "x");
    expect_refused(folder->path, ERROR_UNSUPPORTED, "PyTorch");
    folder_write_text(folder, "model.gguf", "x");
    expect_refused(folder->path, ERROR_INVALID, "model.gguf");
    write_good(folder, "a.safetensors");
    write_good(folder, "b.safetensors");
    expect_refused(folder->path, ERROR_INVALID, "2 .safetensors files");
    folder_unlink(folder, "config.json");
    expect_refused(folder->path, ERROR_NOT_FOUND, "config.json");
    char path[256];
    snprintf(path, sizeof path, "%s", folder_file(folder, "a.safetensors"));
    expect_refused(path, ERROR_INVALID, "folder");
    snprintf(path, sizeof path, "%s", folder_file(folder, "absent"));
    expect_refused(path, ERROR_NOT_FOUND, "absent");
}

static void wrong_configurations_are_refused(void **state)
{
    struct test_folder *folder = *state;
    write_good(folder, "model.safetensors");
    static const char *const texts[] = {"",   "[]", "3", "{", "{\"a\": \"\xC3\"}", "{\"a\": NaN}",
                                        "{}x"};
    static const char *const names[] = {"generation_config.json", "config.json"};
    for (int f = 0; f < 2; f++) {
        for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
            folder_write_text(folder, names[f], texts[i]);
            expect_refused(folder->path, ERROR_INVALID, names[f]);
        }
        struct str text = {0};
        for (int i = 0; i < 200; i++)
            str_append_z(&text, "{\"a\": ");
        folder_write(folder, names[f], text.data, text.len);
        expect_refused(folder->path, ERROR_LIMIT, names[f]);
        str_clear(&text);
        str_append_char(&text, '{');
        for (int i = 0; i < (8 << 20); i++)
            str_append_char(&text, ' ');
        str_append_char(&text, '}');
        folder_write(folder, names[f], text.data, text.len);
        expect_refused(folder->path, ERROR_LIMIT, names[f]);
        str_clear(&text);
        str_append_z(&text, "{\"a\": [0"); /* small enough as text, too large as a tree */
        for (int i = 0; i < (1 << 21); i++)
            str_append_z(&text, ",0");
        str_append_z(&text, "]}");
        folder_write(folder, names[f], text.data, text.len);
        expect_refused(folder->path, ERROR_LIMIT, names[f]);
        str_done(&text);
        folder_unlink(folder, names[f]);
    }
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, folder_teardown)
    const struct CMUnitTest tests[] = {
        TEST(a_folder_with_one_file_hands_out_its_weights),
        TEST(prefixes_of_wrappers_are_taken_off),
        TEST(two_names_that_become_one_are_refused),
        TEST(other_dtypes_are_refused_when_they_are_asked_for),
        TEST(an_empty_tensor_is_refused_when_it_is_asked_for),
        TEST(a_file_cut_anywhere_is_refused),
        TEST(hostile_headers_are_refused),
        TEST(deep_and_huge_headers_are_refused),
        TEST(shards_are_read_by_their_index),
        TEST(a_wrong_index_is_refused),
        TEST(an_index_cut_anywhere_is_refused),
        TEST(folders_without_usable_weights_say_what_is_wrong),
        TEST(wrong_configurations_are_refused),
    };
#undef TEST
    return cmocka_run_group_tests(tests, NULL, NULL);
}
