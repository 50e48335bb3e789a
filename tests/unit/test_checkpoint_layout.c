/* Experts and norms of a quantized folder lie where mlx-lm looks for them, with the values that
 * they had. */
#include "checkpoint/mlx_layout.h"
#include "checkpoint/quantize.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "unit/checkpoint_files.h"

enum { N_EXPERTS = 3, HIDDEN = 64, WIDTH = 32, GATE = 0, UP = 1, DOWN = 2 };

static const char *const part_names[] = {"gate_proj", "up_proj", "down_proj"};
static const char stem[] = "model.layers.0.mlp.";

/* A file that is put together tensor by tensor, all F32. */
struct file {
    struct str header, data;
};

static void begin_tensor(struct file *f, const char *name, const char *shape)
{
    str_printf(&f->header,
               "%s\"%s%s\": {\"dtype\": \"F32\", \"shape\": [%s], \"data_offsets\": [%zu",
               f->header.len ? ", " : "{", stem, name, shape, f->data.len);
}

static void end_tensor(struct file *f)
{
    str_printf(&f->header, ", %zu]}", f->data.len);
}

/* A number of its own for input `in` of output `out`; -1 is the bias. */
static float value_of(int64_t e, int part, int64_t out, int64_t in)
{
    return (float)(((e * 3 + part) * 100 + out) * 100 + in + 1);
}

static int64_t n_out(int part)
{
    return part == DOWN ? HIDDEN : WIDTH;
}

static int64_t n_in(int part)
{
    return part == DOWN ? WIDTH : HIDDEN;
}

static void put_expert(struct file *f, int64_t e, int part)
{
    for (int64_t o = 0; o < n_out(part); o++)
        for (int64_t i = 0; i < n_in(part); i++)
            put_f32(&f->data, value_of(e, part, o, i));
}

/* Every expert apart. */
static void put_singles(struct file *f)
{
    for (int64_t e = N_EXPERTS; e-- > 0;) /* in whatever order */
        for (int part = 0; part < 3; part++) {
            char name[64];
            snprintf(name, sizeof name, "experts.%d.%s.weight", (int)e, part_names[part]);
            begin_tensor(f, name, part == DOWN ? "64, 32" : "32, 64");
            put_expert(f, e, part);
            end_tensor(f);
        }
}

/* transformers 5: gate's rows before up's. */
static void put_fused(struct file *f)
{
    begin_tensor(f, "experts.gate_up_proj", "3, 64, 64");
    for (int64_t e = 0; e < N_EXPERTS; e++) {
        put_expert(f, e, GATE);
        put_expert(f, e, UP);
    }
    end_tensor(f);
    begin_tensor(f, "experts.down_proj", "3, 64, 32");
    for (int64_t e = 0; e < N_EXPERTS; e++)
        put_expert(f, e, DOWN);
    end_tensor(f);
}

/* gpt-oss: [E, in, out], gate and up in turn, with biases. */
static void put_gpt_oss(struct file *f)
{
    begin_tensor(f, "experts.gate_up_proj", "3, 64, 64");
    for (int64_t e = 0; e < N_EXPERTS; e++)
        for (int64_t i = 0; i < HIDDEN; i++)
            for (int64_t o = 0; o < 2 * WIDTH; o++)
                put_f32(&f->data, value_of(e, (int)(o % 2), o / 2, i));
    end_tensor(f);
    begin_tensor(f, "experts.gate_up_proj_bias", "3, 64");
    for (int64_t e = 0; e < N_EXPERTS; e++)
        for (int64_t o = 0; o < 2 * WIDTH; o++)
            put_f32(&f->data, value_of(e, (int)(o % 2), o / 2, -1));
    end_tensor(f);
    begin_tensor(f, "experts.down_proj", "3, 32, 64");
    for (int64_t e = 0; e < N_EXPERTS; e++)
        for (int64_t i = 0; i < WIDTH; i++)
            for (int64_t o = 0; o < HIDDEN; o++)
                put_f32(&f->data, value_of(e, DOWN, o, i));
    end_tensor(f);
    begin_tensor(f, "experts.down_proj_bias", "3, 64");
    for (int64_t e = 0; e < N_EXPERTS; e++)
        for (int64_t o = 0; o < HIDDEN; o++)
            put_f32(&f->data, value_of(e, DOWN, o, -1));
    end_tensor(f);
}

static struct checkpoint *open_file(struct test_folder *folder, struct file *f, const char *type)
{
    struct str file = {0}, config = {0};
    str_append_char(&f->header, '}');
    str_printf(&config, "{\"model_type\": \"%s\"}", type);
    put_safetensors(&file, str_z(&f->header), f->data.data, f->data.len);
    folder_write(folder, "model.safetensors", file.data, file.len);
    folder_write_text(folder, "config.json", str_z(&config));
    str_done(&f->header);
    str_done(&f->data);
    str_done(&file);
    str_done(&config);
    return expect_open(folder->path);
}

/* All values of one tensor of the layout are those of `part`, its weight or its bias. */
static void check_values(const struct mlx_tensor *t, int part, bool is_bias)
{
    assert_true(t->n == N_EXPERTS && t->rows == n_out(part));
    assert_true(t->cols == (is_bias ? 1 : n_in(part)));
    uint8_t *scratch = malloc((size_t)(t->rows * t->cols) * sizeof(float));
    for (int64_t e = 0; e < t->n; e++) {
        struct weight w;
        int64_t first, step;
        float row[HIDDEN];
        mlx_tensor_rows(t, e, scratch, &w, &first, &step);
        for (int64_t o = 0; o < t->rows; o++) {
            weight_row_dequantize(&w, first + o * step, row);
            for (int64_t i = 0; i < t->cols; i++)
                assert_true(row[i] == value_of(e, part, o, is_bias ? -1 : i));
        }
    }
    free(scratch);
}

static const struct mlx_tensor *find(const struct mlx_layout *layout, const char *folder, int part,
                                     const char *suffix)
{
    char name[128];
    snprintf(name, sizeof name, "%s%s.%s.%s", stem, folder, part_names[part], suffix);
    for (size_t i = 0; i < layout->n; i++)
        if (strcmp(layout->items[i].name, name) == 0)
            return &layout->items[i];
    fail_msg("there is no %s", name);
    return NULL;
}

static void every_way_to_hold_experts_becomes_stacks(void **state)
{
    struct test_folder *folder = *state;
    static void (*const put[])(struct file *) = {put_singles, put_fused, put_gpt_oss};
    static const char *const types[] = {"qwen3_moe", "qwen3_moe", "gpt_oss"};
    for (int way = 0; way < 3; way++)
        for (int32_t group = 32; group <= 64; group *= 2) {
            struct file f = {0};
            struct mlx_layout layout = {0};
            struct error error = {0};
            put[way](&f);
            struct checkpoint *c = open_file(folder, &f, types[way]);
            assert_int_equal(checkpoint_quantize(c, 4, group, &error), OK);
            if (mlx_layout_make(c, false, &layout, &error) != OK)
                fail_msg("%s", error.message);
            assert_int_equal(layout.n, way == 2 ? 6 : 3);
            const char *name = way == 2 ? "experts" : "switch_mlp";
            for (int part = 0; part < 3; part++) {
                const struct mlx_tensor *t = find(&layout, name, part, "weight");
                assert_int_equal(t->way, n_in(part) % group ? MLX_GATHERED : MLX_QUANTIZED);
                assert_int_equal(t->n_dims, 3);
                assert_true(t->dims[0] == N_EXPERTS && t->dims[1] == n_out(part) &&
                            t->dims[2] == n_in(part));
                check_values(t, part, false);
                if (way == 2)
                    check_values(find(&layout, name, part, "bias"), part, true);
            }
            mlx_layout_done(&layout);
            checkpoint_free(c);
        }
}

static void experts_that_mlx_lm_cannot_find_are_refused(void **state)
{
    struct test_folder *folder = *state;
    static const struct {
        const char *names[2], *shapes[2], *words;
    } cases[] = {
        {{"experts.1.up_proj.weight"}, {"1, 2"}, "behind one that is missing"},
        {{"experts.0.gate_and_up_proj.weight"}, {"2, 2"}, "quantize at load"},
        {{"experts.0.up_proj.weight", "experts.1.up_proj.weight"},
         {"1, 2", "2, 2"},
         "first expert"},
        {{"experts.gate_up_proj"}, {"2, 3, 2"}, "odd number"},
        {{"experts.down_proj"}, {"2, 3"}, "not a stack"},
        {{"experts.down_proj"}, {"2, 0, 2"}, "empty"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct file f = {0};
        struct mlx_layout layout = {0};
        struct error error = {0};
        for (int k = 0; k < 2 && cases[i].names[k]; k++) {
            int a, b, c, n = sscanf(cases[i].shapes[k], "%d, %d, %d", &a, &b, &c);
            begin_tensor(&f, cases[i].names[k], cases[i].shapes[k]);
            for (int v = 0; v < a * b * (n == 3 ? c : 1); v++)
                put_f32(&f.data, 1);
            end_tensor(&f);
        }
        struct checkpoint *c = open_file(folder, &f, "qwen3_moe");
        assert_int_equal(checkpoint_quantize(c, 4, 32, &error), OK);
        assert_int_equal(mlx_layout_make(c, false, &layout, &error), ERROR_UNSUPPORTED);
        if (!strstr(error.message, cases[i].words))
            fail_msg("\"%s\" is not in: %s", cases[i].words, error.message);
        mlx_layout_done(&layout);
        checkpoint_free(c);
    }
}

static void remove_all(const char *path)
{
    DIR *dir = opendir(path);
    struct str name = {0};
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        path_join(&name, path, entry->d_name);
        unlink(str_z(&name));
    }
    if (dir)
        closedir(dir);
    str_done(&name);
    assert_int_equal(rmdir(path), 0);
}

/* mlx-lm takes a Qwen3-Next file with stacks for one of its own: norms are w, not w - 1. */
static void qwen3_next_is_written_as_mlx_lm_would(void **state)
{
    struct test_folder *folder = *state;
    struct file f = {0};
    struct error error = {0};
    static const char *const norms[] = {"input_layernorm.weight", "linear_attn.norm.weight"};
    for (int i = 0; i < 2; i++) {
        begin_tensor(&f, norms[i], "3");
        for (int v = 0; v < 3; v++)
            put_f32(&f.data, (float)v * 0.25f);
        end_tensor(&f);
    }
    begin_tensor(&f, "linear_attn.conv1d.weight", "5, 1, 4");
    for (int v = 0; v < 20; v++)
        put_f32(&f.data, (float)v);
    end_tensor(&f);
    struct checkpoint *c = open_file(folder, &f, "qwen3_next");
    char out[128];
    snprintf(out, sizeof out, "%s-out", folder->path);
    struct quantize_request request = {
        .out = out, .bits = 4, .group = 32, .shard_bytes = 1 << 20, .n_threads = 2};
    if (checkpoint_write_quantized(c, &request, &error) != OK)
        fail_msg("%s", error.message);
    checkpoint_free(c);
    c = expect_open(out);
    for (size_t i = 0; i < c->tensors.n; i++) {
        const struct tensor *t = &c->tensors.items[i];
        bool is_norm = strstr(t->name, "input_layernorm") != NULL;
        if (strstr(t->name, "conv1d"))
            assert_true(t->n_dims == 3 && t->dims[0] == 5 && t->dims[1] == 4 && t->dims[2] == 1);
        for (size_t v = 0; v < t->bytes / sizeof(float); v++) {
            float value, expected = strstr(t->name, "conv1d") ? (float)v
                                    : is_norm                 ? (float)v * 0.25f + 1
                                                              : (float)v * 0.25f;
            memcpy(&value, t->data + v * sizeof value, sizeof value);
            assert_true(value == expected);
        }
    }
    checkpoint_free(c);
    remove_all(out);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, folder_setup, folder_teardown)
    const struct CMUnitTest tests[] = {
        TEST(every_way_to_hold_experts_becomes_stacks),
        TEST(experts_that_mlx_lm_cannot_find_are_refused),
        TEST(qwen3_next_is_written_as_mlx_lm_would),
    };
#undef TEST
    return cmocka_run_group_tests(tests, NULL, NULL);
}
