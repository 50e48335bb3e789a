/* gpt-oss's own files: blocks and scales together are one weight. */
#include "unit/checkpoint_files.h"

static const char config[] = "{\"quantization_config\": {\"quant_method\": \"mxfp4\"}}";

/* Blocks [blocks] of 0x21 bytes and scales [scales] of 128, as the shapes in JSON say. */
static void write_stack(struct test_folder *folder, const char *dtype, const char *blocks,
                        size_t n_blocks, const char *scales, size_t n_scales)
{
    struct str header = {0}, data = {0}, file = {0};
    for (size_t i = 0; i < n_blocks; i++)
        str_append_char(&data, 0x21);
    for (size_t i = 0; i < n_scales; i++)
        str_append_char(&data, (char)128);
    str_printf(&header,
               "{\"e.up_blocks\": {\"dtype\": \"%s\", \"shape\": %s, \"data_offsets\": [0, %zu]}, "
               "\"e.up_scales\": {\"dtype\": \"U8\", \"shape\": %s, \"data_offsets\": [%zu, %zu]}}",
               dtype, blocks, n_blocks, scales, n_blocks, n_blocks + n_scales);
    put_safetensors(&file, str_z(&header), data.data, data.len);
    folder_write(folder, "model.safetensors", file.data, file.len);
    folder_write_text(folder, "config.json", config);
    str_done(&header);
    str_done(&data);
    str_done(&file);
}

static void two_tensors_are_one_weight(void **state)
{
    struct test_folder *folder = *state;
    write_stack(folder, "U8", "[2, 3, 2, 16]", 192, "[2, 3, 2]", 12);
    struct checkpoint *c = expect_open(folder->path);
    struct weight w;
    float row[64];
    assert_true(checkpoint_has(c, "e.up") && !checkpoint_has(c, "e.down"));
    assert_int_equal(checkpoint_weight(c, "e.up", &w, NULL), OK);
    assert_int_equal(w.rows, 6);
    assert_int_equal(w.cols, 64);
    weight_row_dequantize(&w, 5, row);
    for (int i = 0; i < 64; i += 2) /* E2M1 1 and 2, times 2 */
        assert_true(row[i] == 1 && row[i + 1] == 2);
    checkpoint_free(c);
}

static void shapes_that_do_not_agree_are_refused(void **state)
{
    struct test_folder *folder = *state;
    static const struct {
        const char *dtype, *blocks, *scales;
        size_t n_blocks, n_scales;
    } bad[] = {
        {"U8", "[2, 2, 8]", "[2, 2]", 32, 4},     {"U8", "[2, 2, 16]", "[2, 1]", 64, 2},
        {"I8", "[2, 2, 16]", "[2, 2]", 64, 4},    {"U8", "[64]", "[4]", 64, 4},
        {"U8", "[2, 2, 16]", "[2, 0]", 64, 0},    {"U8", "[0, 2, 16]", "[2, 2]", 0, 4},
        {"U8", "[2, 2, 16]", "[2, 1, 3]", 64, 6},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        write_stack(folder, bad[i].dtype, bad[i].blocks, bad[i].n_blocks, bad[i].scales,
                    bad[i].n_scales);
        struct checkpoint *c = expect_open(folder->path);
        struct weight w;
        struct error error = {0};
        assert_int_equal(checkpoint_weight(c, "e.up", &w, &error), ERROR_INVALID);
        assert_non_null(strstr(error.message, "e.up_blocks"));
        checkpoint_free(c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(two_tensors_are_one_weight, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(shapes_that_do_not_agree_are_refused, folder_setup, folder_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
