/* Random weights whose levels lie apart from their codes: MLX's formats, block FP8. */
#ifndef CSGL_TESTS_APART_CASE_H
#define CSGL_TESTS_APART_CASE_H

#include "ops/linear_case.h"

struct form {
    enum weight_encoding encoding;
    struct weight_levels levels;
};

#define FORM(name, level, n_bits, columns, n_rows, taken, by)                                      \
    {                                                                                              \
        WEIGHT_##name,                                                                             \
        {                                                                                          \
            .type = LEVEL_##level, .bits = n_bits, .group = columns, .group_rows = n_rows,         \
            .offset = taken, .factor = by                                                          \
        }                                                                                          \
    }
#define AFFINE(bits, group, type) FORM(AFFINE, type, bits, group, 1, 0, 1)
static const struct form forms[] = {
    AFFINE(2, 32, BF16),
    AFFINE(2, 64, F16),
    AFFINE(2, 128, F32),
    AFFINE(3, 32, F16),
    AFFINE(3, 64, BF16),
    AFFINE(3, 128, BF16),
    AFFINE(4, 32, F32),
    AFFINE(4, 64, BF16),
    AFFINE(4, 64, F16),
    AFFINE(4, 128, F16),
    AFFINE(5, 64, BF16),
    AFFINE(5, 32, F32),
    AFFINE(6, 64, F16),
    AFFINE(6, 128, BF16),
    AFFINE(8, 32, BF16),
    AFFINE(8, 64, F32),
    AFFINE(8, 128, F16),
    FORM(AFFINE, BF16, 4, 4096, 1, 8, 1), /* symmetric, one group a row */
    FORM(E2M1, E8M0, 4, 32, 1, 0, 1),     /* MXFP4 */
    FORM(E2M1, E4M3, 4, 16, 1, 0, 0.37f), /* NVFP4 */
    FORM(E4M3, E8M0, 8, 32, 1, 0, 1),     /* MXFP8 */
    FORM(E4M3, F32, 8, 128, 128, 0, 1),   /* block FP8 */
    FORM(E4M3, BF16, 8, 128, 128, 0, 3),
};
enum { N_FORMS = sizeof forms / sizeof forms[0] };

static inline void put_level(enum weight_level_type type, uint8_t *to, float value, uint64_t random)
{
    uint32_t word = bits_from_f32(value);
    if (type == LEVEL_F16)
        word = f16_from_f32(value);
    else if (type == LEVEL_BF16)
        word >>= 16;
    else if (type == LEVEL_E8M0) /* 2^-6 .. 2^-3, and now and then one below the normal f32 */
        word = random % 64 ? 121 + (uint32_t)(random >> 8 & 3) : (uint32_t)(random >> 8 & 1);
    else if (type == LEVEL_E4M3) /* every magnitude up to 0.25, both signs */
        word = (uint32_t)(random % 0x28) | (uint32_t)(random >> 8 & 0x80);
    memcpy(to, &word, weight_level_bytes(type));
}

/* One allocation: codes, scales, biases. Scales have either sign. */
static inline struct weight new_apart(const struct form *form, int64_t rows, int64_t cols,
                                      uint64_t *state)
{
    struct weight w = {
        .encoding = form->encoding, .rows = rows, .cols = cols, .levels = form->levels};
    size_t level = weight_level_bytes(w.levels.type);
    size_t n_codes = (size_t)weight_bytes(&w), n_levels = (size_t)weight_levels_bytes(&w) / level;
    uint8_t *data = malloc(n_codes + 2 * n_levels * level);
    assert_non_null(data);
    for (size_t i = 0; i < n_codes; i++) {
        data[i] = (uint8_t)(next_random(state) >> 33);
        if (w.encoding == WEIGHT_E4M3)
            data[i] &= 0xBF; /* up to 1.875, no NaN */
    }
    uint8_t *scales = data + n_codes, *biases = scales + n_levels * level;
    float most = w.encoding == WEIGHT_E4M3 ? 1.0f : 2.0f / (float)(1 << w.levels.bits);
    for (size_t i = 0; i < n_levels; i++) {
        put_level(w.levels.type, scales + i * level, most * random_float(state),
                  next_random(state) >> 20);
        put_level(w.levels.type, biases + i * level, random_float(state), 0);
    }
    w.data = data;
    w.levels.scales = scales;
    if (w.encoding == WEIGHT_AFFINE && w.levels.offset == 0)
        w.levels.biases = biases;
    return w;
}

#endif
