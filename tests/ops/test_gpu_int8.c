/* The int8 products of kernels/cuda/linear_flat_int8.cu over tiles as they are packed: its order of
 * codes, compiled as C, and in the place of the matrix unit what the PTX ISA says that lanes hold
 * ("Matrix fragments for mma.m16n8k32"). */
#include "ops/linear_case.h"

#include "device/gpu/gpu_tiles.h"

#define NATIVE static inline
typedef struct {
    uint32_t x, y, z, w;
} uint4;

/* Byte i of the result is that of the eight bytes of a and b which digit i of `digits` names. */
static uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t digits)
{
    uint64_t both = (uint64_t)b << 32 | a;
    uint32_t result = 0;
    for (int i = 0; i < 4; i++)
        result |= (uint32_t)(both >> 8 * (digits >> 4 * i & 7) & 255) << 8 * i;
    return result;
}

#include "kernels/cuda/int8_order.h"

enum { LANES = 32, TILE = KD_TILE_COLS, COLUMNS = 8 };

/* What the lanes of a simdgroup give to a product. */
struct operands {
    uint32_t a[LANES][4], b[LANES][2];
};

/* Of row `row` and column `column`, over k from first to end - 1. */
static int32_t product(const struct operands *o, uint32_t row, uint32_t column, uint32_t first,
                       uint32_t end)
{
    int32_t sum = 0;
    for (uint32_t k = first; k < end; k++) {
        uint32_t t = k % 16 / 4, shift = 8 * (k % 4);
        uint32_t a = o->a[4 * (row % 8) + t][k / 16 * 2 + row / 8] >> shift & 255;
        uint32_t b = o->b[4 * column + t][k / 16] >> shift & 255;
        sum += (int32_t)a * (int8_t)b;
    }
    return sum;
}

/* As int8_rows::multiply takes them: a half of tile k of row `row_tile` of tiles. */
static void take_half(struct operands *o, const struct gpu_tile_shape *shape, const uint8_t *packed,
                      uint32_t row_tile, uint32_t k, uint32_t half, const uint32_t *x)
{
    uint32_t bits = gpu_tile_infos[shape->form].bits;
    const uint8_t *tile = packed + ((size_t)row_tile * shape->n_tiles + k) * 128 * bits;
    for (uint32_t lane = 0; lane < LANES; lane++) {
        uint4 w, v;
        size_t word = bits == 8 ? half : 0;
        memcpy(&w, tile + (word * LANES + lane) * sizeof w, sizeof w);
        memcpy(&v, x + ((size_t)(lane / 4 * shape->n_tiles + k) * 4 + lane % 4) * 4, sizeof v);
        if (bits == 8)
            int8_codes_of_8_bits(o->a[lane], w);
        else
            int8_codes_of_4_bits(o->a[lane], half ? w.y : w.x, half ? w.w : w.z);
        o->b[lane][0] = half ? v.z : v.x;
        o->b[lane][1] = half ? v.w : v.y;
    }
}

/* Rows of codes [COLUMNS][n_tiles * 64], as linear_inputs writes them. */
static uint32_t *order_inputs(const int8_t *q, const struct gpu_tile_shape *shape)
{
    uint32_t spans = gpu_tile_infos[shape->form].spans, n = shape->n_tiles * TILE;
    uint32_t *x = calloc(COLUMNS * (size_t)n / 4, sizeof *x);
    assert_non_null(x);
    for (uint32_t row = 0; row < COLUMNS; row++)
        for (uint32_t first = 0; first < n; first += 4) {
            const int8_t *c =
                q + (size_t)row * n + first / TILE * TILE + gpu_tile_column(first % TILE, spans);
            x[row * n / 4 + int8_word_at(first)] = int8_word(c[0], c[1], c[2], c[3]);
        }
    return x;
}

/* Every group's sum of a weight's packed rows and of random inputs is that of the codes. */
static void check_weight(const struct weight *w, enum gpu_tile_form form, uint64_t *state)
{
    struct weight_slice slice = {.weight = *w, .rows = w->rows, .cols = w->cols};
    struct gpu_tile_shape shape;
    assert_true(gpu_tiles_describe(&slice, 1, &shape));
    assert_int_equal(shape.form, form);
    assert_true(form < N_GPU_CODE_FORMS);
    uint8_t *packed = calloc(1, shape.bytes);
    assert_true(packed && gpu_tiles_pack(&slice, 1, &shape, packed));
    uint32_t n = shape.n_tiles * TILE, spans = gpu_tile_infos[form].spans;
    uint32_t per_product = spans == 4 ? 16 : 32;
    int8_t *q = calloc(COLUMNS, n);
    uint8_t *codes = calloc(1, n);
    float *levels = calloc(2 * n, sizeof *levels);
    for (uint32_t i = 0; i < COLUMNS * n; i++)
        q[i] = (int8_t)(random_below(state, 255) - 127);
    uint32_t *x = order_inputs(q, &shape);
    struct weight_row parts = {.codes = codes, .scales = levels, .biases = levels + n};
    for (uint32_t row = 0; row < w->rows; row++) {
        memset(codes, 0, n);
        weight_row_read(w, row, &parts);
        for (uint32_t first = 0; first < n; first += per_product) {
            struct operands o;
            take_half(&o, &shape, packed, row / 16, first / TILE, first / 32 % 2, x);
            for (uint32_t column = 0; column < COLUMNS; column++) {
                uint32_t from = first % 32;
                int32_t wanted = 0;
                for (uint32_t i = first; i < first + per_product; i++)
                    wanted += codes[i] * q[column * n + i];
                assert_int_equal(product(&o, row % 16, column, from, from + per_product), wanted);
            }
        }
    }
    free(x);
    free(levels);
    free(codes);
    free(q);
    free(packed);
}

static void products_of_a_group_are_those_of_its_codes(void **unused)
{
    (void)unused;
    static const struct {
        enum weight_encoding encoding;
        enum gpu_tile_form form;
        int32_t cols;
    } cases[] = {{WEIGHT_Q4_0, GPU_TILE_q4s2w, 160},  {WEIGHT_Q8_0, GPU_TILE_q8s2w, 96},
                 {WEIGHT_Q6_K, GPU_TILE_q8s4w, 256},  {WEIGHT_Q2_K, GPU_TILE_q4s4w, 512},
                 {WEIGHT_IQ4_NL, GPU_TILE_q8s2w, 64}, {WEIGHT_Q5_1, GPU_TILE_q8s2w, 32}};
    static const struct {
        int bits, group;
        enum gpu_tile_form form;
    } made[] = {{4, 64, GPU_TILE_q4}, {4, 32, GPU_TILE_q4s2}, {8, 128, GPU_TILE_q8},
                {3, 64, GPU_TILE_q4}, {8, 32, GPU_TILE_q8s2}, {6, 64, GPU_TILE_q8}};
    uint64_t state = 3;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct weight w = new_weight(cases[i].encoding, 37, cases[i].cols, &state);
        check_weight(&w, cases[i].form, &state);
        free((void *)(uintptr_t)w.data);
    }
    for (size_t i = 0; i < sizeof made / sizeof *made; i++) {
        struct weight floats = new_weight(WEIGHT_BF16, 20, 384, &state);
        struct weight w = weight_quantized(&floats, made[i].bits, made[i].group);
        check_weight(&w, made[i].form, &state);
        free((void *)(uintptr_t)floats.data);
    }
}

/* Each has a place of its own, and a lane finds those of two rows and both halves in four words. */
static void scales_of_two_rows_lie_together(void **unused)
{
    (void)unused;
    enum { N_TILES = 3, ROWS = 16 };
    bool is_taken[N_TILES * 2 * ROWS] = {0};
    for (uint32_t k = 0; k < N_TILES; k++)
        for (uint32_t row = 0; row < ROWS; row++)
            for (uint32_t half = 0; half < 2; half++) {
                size_t place = int8_scale_at(k * TILE + 32 * half, row, ROWS);
                assert_true(place < sizeof is_taken && !is_taken[place]);
                is_taken[place] = true;
                size_t first = int8_scale_at(k * TILE, row - row % 2, ROWS);
                assert_true(first % 4 == 0 && place == first + 2 * half + row % 2);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_of_a_group_are_those_of_its_codes),
        cmocka_unit_test(scales_of_two_rows_lie_together),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
