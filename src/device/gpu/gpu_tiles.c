/* A tile is 16 rows and 64 columns. Of the 32 lanes lane 4 g + t has rows g and g + 8, and of each
 * half of 32 positions those from 8 t on, j = 0 .. 7. What a lane has of a tile are words of 16
 * bytes, a word of all lanes after the other:
 *
 *     4 bits    1 word: rows g (halves 0, 1) and g + 8, 4 bytes each; j lies in bits 4 n, n of
 *               j = 0 .. 7: 0, 4, 2, 6, 1, 5, 3, 7
 *     e2m1      the same 4 bytes; of j = 2 n + h, 16 h is added to: the sign is bit 15, 12, 14 or
 *               13, the magnitude 3 bits from 9, 6, 3 or 0 on
 *     8 bits    2 words, one a half: rows g and g + 8, 8 bytes each; byte n of them has j of
 *               n = 0 .. 7: 0, 4, 1, 5, 2, 6, 3, 7
 *     16 bits   4 words, two a half: j = 0, 1 of rows g and g + 8, then 2, 3; 4, 5 and 6, 7
 *
 * So a mask makes two codes of a 32-bit word the f16 pair that the matrix unit wants: see
 * kernels/cuda/linear_tiles.h. */
#include "device/gpu/gpu_tiles.h"

#include "base/half.h"
#include "base/size.h"
#include "device/gpu/gpu_weight.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = KD_TILE_ROWS, COLS = KD_TILE_COLS, LANES = 32, WORD = 16, SECTION_ALIGN = 256 };

#define TILE_INFO(name, bits, spans, level_bytes) {bits, spans, level_bytes},
const struct gpu_tile_info gpu_tile_infos[N_GPU_TILE_FORMS] = {GPU_TILE_FORMS(TILE_INFO)};
#undef TILE_INFO

static bool is_power_of_two(int64_t n)
{
    return (n & (n - 1)) == 0;
}

/* Whether scales and biases are the file's own values of 2 bytes. */
static bool has_narrow_levels(const struct weight *w)
{
    const struct weight_levels *l = &w->levels;
    return w->encoding == WEIGHT_AFFINE && (l->type == LEVEL_F16 || l->type == LEVEL_BF16) &&
           l->factor == 1.0f && (l->biases || l->is_made || is_power_of_two(l->offset));
}

/* Whether they are floats of 4 bits with powers of two as scales, which are exact in bf16. */
static bool has_power_levels(const struct weight *w)
{
    return w->encoding == WEIGHT_MXFP4 ||
           (w->encoding == WEIGHT_E2M1 && w->levels.type == LEVEL_E8M0 && w->levels.factor == 1.0f);
}

/* Form and levels of one slice. */
static bool describe_slice(const struct weight_slice *slice, struct gpu_tile_shape *out)
{
    const struct weight *w = &slice->weight;
    const struct weight_encoding_info info = weight_shape(w);
    if (slice->keeps_f32 || w->encoding == WEIGHT_F32 || w->encoding == WEIGHT_E4M3)
        return false;
    if (weight_is_float(w)) {
        out->form = w->encoding == WEIGHT_BF16 ? GPU_TILE_bf16 : GPU_TILE_f16;
        out->is_bf16 = w->encoding == WEIGHT_BF16;
        return true;
    }
    int64_t group = info.group < slice->cols ? info.group : slice->cols;
    if (group == slice->cols) /* one group a row: any number of tiles shares its levels */
        for (group = COLS; group < slice->cols; group *= 2)
            ;
    if (group < 16 || !is_power_of_two(group))
        return false;
    for (out->level_shift = 0; COLS << out->level_shift < group; out->level_shift++)
        ;
    /* The codes of E2M1 are doubled values plus 16. */
    bool is_byte = info.bits > 4 || w->encoding == WEIGHT_E2M1;
    if (group == 32 && has_power_levels(w)) {
        out->form = GPU_TILE_e2m1;
        out->is_bf16 = true;
        return true;
    }
    bool is_narrow = has_narrow_levels(w);
    out->is_bf16 = is_narrow && w->levels.type == LEVEL_BF16;
    if (group == 16)
        out->form = is_byte ? GPU_TILE_q8s4w : GPU_TILE_q4s4w;
    else if (!is_narrow)
        out->form = is_byte ? GPU_TILE_q8s2w : GPU_TILE_q4s2w;
    else if (group == 32)
        out->form = is_byte ? GPU_TILE_q8s2 : GPU_TILE_q4s2;
    else
        out->form = is_byte ? GPU_TILE_q8 : GPU_TILE_q4;
    return true;
}

static uint32_t n_levels(const struct gpu_tile_shape *shape)
{
    return (shape->n_tiles + (1u << shape->level_shift) - 1) >> shape->level_shift;
}

/* Bytes of a row of tiles, and of its levels. */
static size_t codes_bytes(const struct gpu_tile_shape *shape)
{
    return (size_t)shape->n_tiles * ROWS * COLS * gpu_tile_infos[shape->form].bits / 8;
}

static size_t levels_bytes(const struct gpu_tile_shape *shape)
{
    const struct gpu_tile_info *info = &gpu_tile_infos[shape->form];
    return (size_t)n_levels(shape) * info->spans * ROWS * info->level_bytes;
}

static size_t add_section(struct gpu_tile_shape *out, size_t bytes)
{
    size_t at = bytes ? out->bytes : 0;
    out->bytes += size_round_up(bytes, SECTION_ALIGN);
    return at;
}

bool gpu_tiles_describe(const struct weight_slice *slices, int n_slices, struct gpu_tile_shape *out)
{
    *out = (struct gpu_tile_shape){.cols = (uint32_t)slices->cols,
                                   .n_tiles = (uint32_t)ceil_div(slices->cols, COLS)};
    bool has_bias = false;
    for (int i = 0; i < n_slices; i++) {
        struct gpu_tile_shape one = {0};
        if (!describe_slice(&slices[i], &one))
            return false;
        if (i == 0) {
            out->form = one.form;
            out->level_shift = one.level_shift;
            out->is_bf16 = one.is_bf16;
        } else if (one.form != out->form || one.level_shift != out->level_shift ||
                   one.is_bf16 != out->is_bf16 || out->rows % ROWS || slices[i].weight.has_order ||
                   slices[0].weight.has_order)
            return false;
        out->rows += (uint32_t)slices[i].rows;
        has_bias |= slices[i].bias != NULL;
    }
    size_t row_tiles = size_round_up((size_t)ceil_div(out->rows, ROWS), KD_TILE_STACK);
    add_section(out, row_tiles * codes_bytes(out));
    out->levels = add_section(out, row_tiles * levels_bytes(out));
    bool has_codes = gpu_tile_infos[out->form].spans > 0;
    out->row_factors = add_section(out, has_codes ? row_tiles * ROWS * sizeof(float) : 0);
    out->out_bias = add_section(out, has_bias ? out->rows * sizeof(float) : 0);
    out->order = add_section(out, slices->weight.has_order ? out->cols * sizeof(int32_t) : 0);
    return true;
}

uint32_t gpu_tile_column(uint32_t position, uint32_t spans)
{
    if (spans < 4)
        return position;
    /* A group of 16 is what one product takes: j = 0 .. 3 or 4 .. 7 of a half. */
    uint32_t product = position / 32 * 2 + position % 8 / 4;
    return 16 * product + 4 * (position / 8 % 4) + position % 4;
}

/* --- packing ---------------------------------------------------------------------------------- */

/* Rows of one row of tiles, taken apart: codes or 16-bit values [ROWS][n_tiles * COLS] of 2 bytes,
 * scales and biases [ROWS][n_groups]. */
struct rows {
    uint16_t *values;
    float *scales, *biases;
    uint8_t *codes; /* a row's */
    uint32_t width, n_groups, group;
};

static void read_row(const struct weight_slice *slice, int64_t row, int r, const struct rows *to)
{
    struct weight one = weight_row_piece(
        &slice->weight, row_pattern_at(&slice->pattern, slice->row + row), slice->col, slice->cols);
    uint16_t *values = to->values + (size_t)r * to->width;
    if (weight_is_float(&one)) {
        memcpy(values, one.data, (size_t)slice->cols * 2);
        return;
    }
    struct weight_row parts = {.codes = to->codes,
                               .scales = to->scales + (size_t)r * to->n_groups,
                               .biases = to->biases + (size_t)r * to->n_groups};
    weight_row_read(&one, 0, &parts);
    for (int64_t c = 0; c < slice->cols; c++)
        values[c] = to->codes[c];
}

/* A lane's half of a row: the values of j = 0 .. 7. */
static void half_of(const uint16_t *tile, uint32_t t, uint32_t half, uint32_t spans,
                    uint16_t out[8])
{
    for (uint32_t j = 0; j < 8; j++)
        out[j] = tile[gpu_tile_column(32 * half + 8 * t + j, spans)];
}

/* Value j of a word of floats; `code` is twice its value and 16, or 0 where there is none. */
static uint32_t e2m1_bits(uint16_t code, uint32_t j)
{
    static const uint8_t magnitudes[13] = {0, 1, 2, 3, 4, [6] = 5, [8] = 6, [12] = 7};
    static const uint32_t signs[4] = {15, 12, 14, 13}, places[4] = {9, 6, 3, 0};
    bool is_negative = code > 0 && code < 16;
    uint32_t magnitude = code == 0 ? 0 : magnitudes[is_negative ? 16 - code : code - 16];
    return ((uint32_t)is_negative << signs[j / 2] | magnitude << places[j / 2]) << (16 * (j % 2));
}

/* A lane's half of row g + 8 * low into its words. */
static void pack_half(const uint16_t v[8], enum gpu_tile_form form, uint32_t half, uint32_t low,
                      uint8_t *to)
{
    uint32_t word = 0, bits = gpu_tile_infos[form].bits;
    for (uint32_t j = 0; j < 8; j++)
        if (form == GPU_TILE_e2m1)
            word |= e2m1_bits(v[j], j);
        else if (bits == 4)
            word |= (uint32_t)v[j] << (4 * (j / 4 + j % 4 / 2 * 2 + 4 * (j % 2)));
        else if (bits == 8)
            to[half * LANES * WORD + 8 * low + j % 4 * 2 + j / 4] = (uint8_t)v[j];
        else
            memcpy(to + (2 * half + j / 4) * LANES * WORD + 8 * (j % 4 / 2) + 4 * low + 2 * (j % 2),
                   &v[j], 2);
    if (bits == 4)
        memcpy(to + 8 * low + 4 * half, &word, sizeof word);
}

static void pack_codes(const struct rows *rows, const struct gpu_tile_shape *shape, uint8_t *to)
{
    const struct gpu_tile_info *info = &gpu_tile_infos[shape->form];
    for (uint32_t k = 0; k < shape->n_tiles; k++, to += (size_t)ROWS * COLS * info->bits / 8)
        for (uint32_t lane = 0; lane < LANES; lane++)
            for (uint32_t half = 0; half < 2; half++)
                for (uint32_t low = 0; low < 2; low++) {
                    const uint16_t *row = rows->values +
                                          (size_t)(lane / 4 + 8 * low) * rows->width +
                                          (size_t)k * COLS;
                    uint16_t v[8];
                    half_of(row, lane % 4, half, info->spans, v);
                    pack_half(v, shape->form, half, low, to + (size_t)lane * WORD);
                }
}

static void put_level(const struct gpu_tile_shape *shape, float value, size_t i, uint8_t *to)
{
    uint16_t half = shape->is_bf16 ? bf16_from_f32(value) : f16_from_f32(value);
    if (gpu_tile_infos[shape->form].level_bytes == 8)
        memcpy(to + 4 * i, &value, 4);
    else
        memcpy(to + 2 * i, &half, 2);
}

/* [level][span][g]: scale and bias of row g, then of row g + 8; of e2m1 the scales of its values.
 */
static void pack_levels(const struct rows *rows, const struct gpu_tile_shape *shape, uint8_t *to)
{
    uint32_t spans = gpu_tile_infos[shape->form].spans;
    bool is_e2m1 = shape->form == GPU_TILE_e2m1;
    size_t i = 0;
    for (uint32_t l = 0; l < n_levels(shape); l++)
        for (uint32_t s = 0; s < spans; s++) {
            uint32_t group = ((l << shape->level_shift) * COLS + s * (COLS / spans)) / rows->group;
            for (uint32_t g = 0; g < 8; g++)
                for (uint32_t low = 0; low < 2; low++) {
                    size_t at = (size_t)(g + 8 * low) * rows->n_groups + group;
                    bool is_there = group < rows->n_groups;
                    float scale = is_there ? rows->scales[at] : 0;
                    put_level(shape, is_e2m1 ? 2 * scale : scale, i++, to);
                    if (!is_e2m1)
                        put_level(shape, is_there ? rows->biases[at] : 0, i++, to);
                }
        }
}

/* The power of two that brings the row's largest scale * code or bias to 2^13 .. 2^14: their sum
 * stays below the largest f16. */
static float row_factor(const struct rows *rows, int r, uint32_t bits)
{
    const float *scales = rows->scales + (size_t)r * rows->n_groups;
    const float *biases = rows->biases + (size_t)r * rows->n_groups;
    float largest = 0.0f, largest_code = bits == 4 ? 15.0f : 255.0f;
    for (uint32_t i = 0; i < rows->n_groups; i++)
        largest = fmaxf(largest, fmaxf(fabsf(scales[i]) * largest_code, fabsf(biases[i])));
    int exponent = 0;
    if (largest > 0.0f && largest < INFINITY)
        frexpf(largest, &exponent); /* largest < 2^exponent */
    return ldexpf(1.0f, exponent < -112 ? 126 : 14 - exponent);
}

static bool rows_init(struct rows *rows, const struct weight_slice *slice,
                      const struct gpu_tile_shape *shape)
{
    rows->width = shape->n_tiles * COLS;
    rows->group = (uint32_t)weight_shape(&slice->weight).group;
    rows->n_groups = (uint32_t)ceil_div(slice->cols, rows->group);
    rows->values = calloc((size_t)ROWS * rows->width, sizeof *rows->values);
    rows->scales = calloc((size_t)ROWS * rows->n_groups, sizeof *rows->scales);
    rows->biases = calloc((size_t)ROWS * rows->n_groups, sizeof *rows->biases);
    rows->codes = malloc(rows->width);
    return rows->values && rows->scales && rows->biases && rows->codes;
}

static void rows_done(struct rows *rows)
{
    free(rows->values);
    free(rows->scales);
    free(rows->biases);
    free(rows->codes);
}

/* `row` is the slice's first row in the whole. */
static bool pack_slice(const struct weight_slice *slice, const struct gpu_tile_shape *shape,
                       size_t row, uint8_t *to)
{
    struct rows rows = {0};
    bool is_ok = rows_init(&rows, slice, shape);
    size_t values_bytes = (size_t)ROWS * rows.width * sizeof *rows.values;
    for (int64_t first = 0; is_ok && first < slice->rows; first += ROWS) {
        int64_t n = slice->rows - first < ROWS ? slice->rows - first : ROWS;
        size_t tile = (row + (size_t)first) / ROWS;
        if (n < ROWS) { /* what is left of the rows before */
            memset(rows.values, 0, values_bytes);
            memset(rows.scales, 0, (size_t)ROWS * rows.n_groups * sizeof(float));
            memset(rows.biases, 0, (size_t)ROWS * rows.n_groups * sizeof(float));
        }
        for (int r = 0; r < (int)n; r++)
            read_row(slice, first + r, r, &rows);
        pack_codes(&rows, shape, to + tile * codes_bytes(shape));
        if (gpu_tile_infos[shape->form].spans == 0)
            continue;
        pack_levels(&rows, shape, to + shape->levels + tile * levels_bytes(shape));
        float factors[ROWS];
        for (int r = 0; r < ROWS; r++)
            factors[r] = row_factor(&rows, r, gpu_tile_infos[shape->form].bits);
        memcpy(to + shape->row_factors + tile * sizeof factors, factors, sizeof factors);
    }
    rows_done(&rows);
    if (slice->bias && shape->out_bias)
        memcpy(to + shape->out_bias + row * sizeof(float), slice->bias,
               (size_t)slice->rows * sizeof(float));
    return is_ok;
}

bool gpu_tiles_pack(const struct weight_slice *slices, int n_slices,
                    const struct gpu_tile_shape *shape, uint8_t *to)
{
    size_t row = 0;
    bool is_ok = true;
    for (int i = 0; i < n_slices && is_ok; i++) {
        is_ok = pack_slice(&slices[i], shape, row, to);
        row += (size_t)slices[i].rows;
    }
    if (shape->order)
        memcpy(to + shape->order, slices->weight.order, (size_t)shape->cols * sizeof(int32_t));
    return is_ok;
}
