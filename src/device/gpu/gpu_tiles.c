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
#include "device/gpu/gpu_upload.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    ROWS = KD_TILE_ROWS,
    COLS = KD_TILE_COLS,
    LANES = 32,
    WORD = 16,
    SECTION_ALIGN = 256,
    ROW_GAP = 64 /* or rows of 4096 bytes would all fall into the same few lines of the cache */
};

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

/* Bytes of a row of tiles, of its levels and of its rows' factors. */
static size_t codes_bytes(const struct gpu_tile_shape *shape)
{
    return (size_t)shape->n_tiles * ROWS * COLS * gpu_tile_infos[shape->form].bits / 8;
}

static size_t levels_bytes(const struct gpu_tile_shape *shape)
{
    const struct gpu_tile_info *info = &gpu_tile_infos[shape->form];
    return (size_t)n_levels(shape) * info->spans * ROWS * info->level_bytes;
}

static size_t factors_bytes(const struct gpu_tile_shape *shape)
{
    return gpu_tile_infos[shape->form].spans ? ROWS * sizeof(float) : 0;
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
    out->row_factors = add_section(out, row_tiles * factors_bytes(out));
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

/* Rows of one row of tiles, taken apart: codes or 16-bit values [ROWS][width], scales and biases
 * [ROWS][n_groups]. */
struct rows {
    uint8_t *values;
    float *scales, *biases;
    uint32_t group, n_groups;
    size_t row_bytes; /* of values */
};

static size_t value_bytes(const struct gpu_tile_shape *shape)
{
    return gpu_tile_infos[shape->form].bits == 16 ? 2 : 1;
}

/* Their sizes. */
static struct rows describe_rows(const struct weight_slice *slice,
                                 const struct gpu_tile_shape *shape)
{
    uint32_t group = (uint32_t)weight_shape(&slice->weight).group;
    return (struct rows){.group = group,
                         .n_groups = (uint32_t)ceil_div(slice->cols, group),
                         .row_bytes = (size_t)shape->n_tiles * COLS * value_bytes(shape) + ROW_GAP};
}

/* Room for the rows of any of the slices. */
static size_t rows_bytes(const struct weight_slice *slices, int n_slices,
                         const struct gpu_tile_shape *shape)
{
    size_t most = 0;
    for (int i = 0; i < n_slices; i++) {
        struct rows rows = describe_rows(&slices[i], shape);
        most = size_max(most, ROWS * (rows.row_bytes + 2 * rows.n_groups * sizeof(float)));
    }
    return most;
}

static struct rows rows_in(const struct weight_slice *slice, const struct gpu_tile_shape *shape,
                           uint8_t *scratch)
{
    struct rows rows = describe_rows(slice, shape);
    rows.values = scratch;
    rows.scales = (float *)(void *)(scratch + ROWS * rows.row_bytes);
    rows.biases = rows.scales + ROWS * (size_t)rows.n_groups;
    return rows;
}

/* Row `row` of the slice; columns behind its last one are 0. */
static void read_row(const struct weight_slice *slice, int64_t row, size_t r, const struct rows *to)
{
    struct weight one = weight_row_piece(
        &slice->weight, row_pattern_at(&slice->pattern, slice->row + row), slice->col, slice->cols);
    uint8_t *values = to->values + r * to->row_bytes;
    size_t bytes = (size_t)slice->cols * (weight_is_float(&one) ? 2 : 1);
    memset(values + bytes, 0, to->row_bytes - bytes);
    if (weight_is_float(&one)) {
        memcpy(values, one.data, bytes);
        return;
    }
    struct weight_row parts = {.codes = values,
                               .scales = to->scales + r * to->n_groups,
                               .biases = to->biases + r * to->n_groups};
    weight_row_read(&one, 0, &parts);
}

/* Rows [first, first + ROWS) of the slice, as far as there are any. */
static void read_rows(const struct weight_slice *slice, int64_t first, const struct rows *to)
{
    int64_t left = slice->rows - first;
    size_t n = left < ROWS ? (size_t)left : ROWS;
    for (size_t r = 0; r < n; r++)
        read_row(slice, first + (int64_t)r, r, to);
    memset(to->values + n * to->row_bytes, 0, (ROWS - n) * to->row_bytes);
    memset(to->scales + n * to->n_groups, 0, (ROWS - n) * to->n_groups * sizeof(float));
    memset(to->biases + n * to->n_groups, 0, (ROWS - n) * to->n_groups * sizeof(float));
}

static uint32_t load_u32(const uint8_t *from)
{
    uint32_t value;
    memcpy(&value, from, sizeof value);
    return value;
}

static uint64_t load_u64(const uint8_t *from)
{
    uint64_t value;
    memcpy(&value, from, sizeof value);
    return value;
}

static void store_u32(uint8_t *to, uint32_t value)
{
    memcpy(to, &value, sizeof value);
}

/* Four bytes, each moved to the even one of its place. */
static uint64_t spread(uint32_t bytes)
{
    uint64_t x = bytes;
    x = (x | x << 16) & 0x0000FFFF0000FFFFu;
    return (x | x << 8) & 0x00FF00FF00FF00FFu;
}

/* Value j of a word of floats; `code` is twice its value and 16, or 0 where there is none. */
static uint32_t e2m1_bits(uint8_t code, uint32_t j)
{
    static const uint8_t magnitudes[13] = {0, 1, 2, 3, 4, [6] = 5, [8] = 6, [12] = 7};
    static const uint32_t signs[4] = {15, 12, 14, 13}, places[4] = {9, 6, 3, 0};
    bool is_negative = code > 0 && code < 16;
    uint32_t magnitude = code == 0 ? 0 : magnitudes[is_negative ? 16 - code : code - 16];
    return ((uint32_t)is_negative << signs[j / 2] | magnitude << places[j / 2]) << (16 * (j % 2));
}

/* A lane's half of row g + 8 * low into its words; the values of j = 0 .. 3 lie at `a`, those of
 * j = 4 .. 7 at `b`. */
static inline void pack_half(uint32_t bits, bool is_e2m1, const uint8_t *a, const uint8_t *b,
                             uint32_t half, uint32_t low, uint8_t *to)
{
    if (is_e2m1) {
        uint32_t word = 0;
        for (uint32_t j = 0; j < 4; j++)
            word |= e2m1_bits(a[j], j) | e2m1_bits(b[j], 4 + j);
        store_u32(to + 8 * low + 4 * half, word);
    } else if (bits == 4) {
        uint32_t pairs = load_u32(a) | load_u32(b) << 4; /* 0, 4, 1, 5, 2, 6, 3, 7 */
        pairs = (pairs & 0xFF0000FFu) | (pairs & 0xFF00) << 8 | (pairs >> 8 & 0xFF00);
        store_u32(to + 8 * low + 4 * half, pairs);
    } else if (bits == 8) {
        uint64_t pairs = spread(load_u32(a)) | spread(load_u32(b)) << 8;
        memcpy(to + half * LANES * WORD + 8 * low, &pairs, sizeof pairs);
    } else {
        const uint8_t *const parts[2] = {a, b};
        for (uint32_t i = 0; i < 2; i++) {
            uint64_t four = load_u64(parts[i]);
            uint8_t *word = to + (2 * half + i) * LANES * WORD + 4 * low;
            store_u32(word, (uint32_t)four);
            store_u32(word + 8, (uint32_t)(four >> 32));
        }
    }
}

/* `bits`, `spans` and is_e2m1 are the form's, as constants. */
static inline void pack_tiles(uint32_t bits, uint32_t spans, bool is_e2m1, const struct rows *rows,
                              uint32_t n_tiles, uint8_t *to)
{
    const size_t size = bits == 16 ? 2 : 1;
    for (uint32_t k = 0; k < n_tiles; k++, to += ROWS * COLS * bits / 8)
        for (uint32_t lane = 0; lane < LANES; lane++)
            for (uint32_t i = 0; i < 4; i++) {
                uint32_t low = i / 2, half = i % 2, position = 32 * half + 8 * (lane % 4);
                const uint8_t *tile =
                    rows->values + (lane / 4 + 8 * low) * rows->row_bytes + (size_t)k * COLS * size;
                pack_half(bits, is_e2m1, tile + gpu_tile_column(position, spans) * size,
                          tile + gpu_tile_column(position + 4, spans) * size, half, low,
                          to + (size_t)lane * WORD);
            }
}

static void pack_codes(const struct rows *rows, const struct gpu_tile_shape *shape, uint8_t *to)
{
    const struct gpu_tile_info *info = &gpu_tile_infos[shape->form];
    if (info->bits == 16)
        pack_tiles(16, 0, false, rows, shape->n_tiles, to);
    else if (info->bits == 8 && info->spans == 4)
        pack_tiles(8, 4, false, rows, shape->n_tiles, to);
    else if (info->bits == 8)
        pack_tiles(8, 1, false, rows, shape->n_tiles, to);
    else if (shape->form == GPU_TILE_e2m1)
        pack_tiles(4, 1, true, rows, shape->n_tiles, to);
    else if (info->spans == 4)
        pack_tiles(4, 4, false, rows, shape->n_tiles, to);
    else
        pack_tiles(4, 1, false, rows, shape->n_tiles, to);
}

/* One level as it lies: f32, or the file's 2 bytes. */
static inline uint8_t *put_level(bool is_wide, bool is_bf16, float value, uint8_t *to)
{
    uint16_t half = is_bf16 ? bf16_from_f32(value) : f16_from_f32(value);
    if (is_wide)
        memcpy(to, &value, sizeof value);
    else
        memcpy(to, &half, sizeof half);
    return to + (is_wide ? sizeof value : sizeof half);
}

/* [level][span][g]: scale and bias of row g, then of row g + 8; of e2m1 the scales of its values.
 * is_wide, is_bf16 and is_e2m1 are the shape's, as constants. */
static inline void pack_levels_as(bool is_wide, bool is_bf16, bool is_e2m1, const struct rows *rows,
                                  const struct gpu_tile_shape *shape, uint8_t *to)
{
    const uint32_t spans = gpu_tile_infos[shape->form].spans;
    for (uint32_t l = 0; l < n_levels(shape); l++)
        for (uint32_t s = 0; s < spans; s++) {
            uint32_t group = ((l << shape->level_shift) * COLS + s * (COLS / spans)) / rows->group;
            bool is_there = group < rows->n_groups;
            for (uint32_t i = 0; i < ROWS; i++) {
                size_t at = (size_t)(i / 2 + 8 * (i % 2)) * rows->n_groups + group;
                float scale = is_there ? rows->scales[at] : 0;
                to = put_level(is_wide, is_bf16, is_e2m1 ? 2 * scale : scale, to);
                if (!is_e2m1)
                    to = put_level(is_wide, is_bf16, is_there ? rows->biases[at] : 0, to);
            }
        }
}

static void pack_levels(const struct rows *rows, const struct gpu_tile_shape *shape, uint8_t *to)
{
    if (shape->form == GPU_TILE_e2m1)
        pack_levels_as(false, true, true, rows, shape, to);
    else if (gpu_tile_infos[shape->form].level_bytes == 8)
        pack_levels_as(true, false, false, rows, shape, to);
    else if (shape->is_bf16)
        pack_levels_as(false, true, false, rows, shape, to);
    else
        pack_levels_as(false, false, false, rows, shape, to);
}

/* x < 2^ceiling_exponent(x); of 0, infinity and NaN the smallest. */
static int ceiling_exponent(float x)
{
    int exponent = -128;
    if (x != 0.0f && isfinite(x))
        frexpf(x, &exponent);
    return exponent;
}

/* A power of two that keeps the row's scales in the range of f16 after linear_wide has multiplied
 * them, by 2^24 for codes and 2^14 for E2M1, and the largest weight not far below what that allows.
 */
static float row_factor(const struct rows *rows, size_t r, enum gpu_tile_form form)
{
    const float *scales = rows->scales + r * rows->n_groups;
    const float *biases = rows->biases + r * rows->n_groups;
    int code_bits = (int)gpu_tile_infos[form].bits;
    int most = -112; /* or the factor would be above the largest power */
    for (uint32_t i = 0; i < rows->n_groups; i++) {
        int scaled = ceiling_exponent(scales[i]) + code_bits, bias = ceiling_exponent(biases[i]);
        most = scaled > most ? scaled : most;
        most = bias > most ? bias : most;
    }
    int exponent = code_bits + (form == GPU_TILE_e2m1 ? 1 : -9) - most;
    return ldexpf(1.0f, exponent > -126 ? exponent : -126);
}

/* Row `tile` of tiles, its levels and its rows' factors; `scratch` is rows_bytes. */
static void pack_row(const struct weight_slice *slices, const struct gpu_tile_shape *shape,
                     int64_t tile, uint8_t *scratch, uint8_t *codes, uint8_t *levels,
                     uint8_t *factors)
{
    int64_t first = tile * ROWS;
    for (; first >= slices->rows; slices++)
        first -= slices->rows;
    struct rows rows = rows_in(slices, shape, scratch);
    read_rows(slices, first, &rows);
    pack_codes(&rows, shape, codes);
    if (gpu_tile_infos[shape->form].spans == 0)
        return;
    pack_levels(&rows, shape, levels);
    for (size_t r = 0; r < ROWS; r++) {
        float factor = row_factor(&rows, r, shape->form);
        memcpy(factors + r * sizeof factor, &factor, sizeof factor);
    }
}

bool gpu_tiles_pack(const struct weight_slice *slices, int n_slices,
                    const struct gpu_tile_shape *shape, uint8_t *to)
{
    uint8_t *scratch = malloc(rows_bytes(slices, n_slices, shape));
    if (!scratch)
        return false;
    for (int64_t i = 0; i < ceil_div(shape->rows, ROWS); i++)
        pack_row(slices, shape, i, scratch, to + (size_t)i * codes_bytes(shape),
                 to + shape->levels + (size_t)i * levels_bytes(shape),
                 to + shape->row_factors + (size_t)i * factors_bytes(shape));
    free(scratch);
    size_t bias = shape->out_bias;
    for (int i = 0; i < n_slices && shape->out_bias; i++) {
        size_t bytes = (size_t)slices[i].rows * sizeof(float);
        if (slices[i].bias)
            memcpy(to + bias, slices[i].bias, bytes);
        bias += bytes;
    }
    if (shape->order)
        memcpy(to + shape->order, slices->weight.order, (size_t)shape->cols * sizeof(int32_t));
    return true;
}

struct load {
    const struct weight_slice *slices;
    const struct gpu_tile_shape *shape;
};

static void load_row(void *context, int64_t tile, uint8_t *scratch,
                     uint8_t *const to[GPU_UPLOAD_SECTIONS])
{
    const struct load *load = context;
    pack_row(load->slices, load->shape, tile, scratch, to[0], to[1], to[2]);
}

static enum status load_biases(struct gpu_device *gpu, const struct weight_slice *slices,
                               int n_slices, const struct gpu_tile_shape *shape,
                               const struct gpu_range *to, struct error *error)
{
    struct gpu_range at = {to->memory, to->offset + shape->out_bias};
    enum status status = OK;
    for (int i = 0; i < n_slices && shape->out_bias && status == OK; i++) {
        size_t bytes = (size_t)slices[i].rows * sizeof(float);
        if (slices[i].bias)
            status = gpu->driver->write(gpu->gpu, &at, slices[i].bias, bytes, error);
        at.offset += bytes;
    }
    return status;
}

enum status gpu_tiles_load(struct gpu_device *gpu, const struct weight_slice *slices, int n_slices,
                           const struct gpu_tile_shape *shape, const struct gpu_range *to,
                           struct error *error)
{
    struct load load = {slices, shape};
    struct gpu_upload upload = {.to = *to,
                                .sections = {{0, codes_bytes(shape)},
                                             {shape->levels, levels_bytes(shape)},
                                             {shape->row_factors, factors_bytes(shape)}},
                                .n_items = ceil_div(shape->rows, ROWS),
                                .scratch_bytes = rows_bytes(slices, n_slices, shape),
                                .make = load_row,
                                .context = &load};
    enum status status = gpu_upload(gpu, &upload, error);
    if (status == OK)
        status = load_biases(gpu, slices, n_slices, shape, to, error);
    if (status == OK && shape->order)
        status =
            gpu->driver->write(gpu->gpu, &(struct gpu_range){to->memory, to->offset + shape->order},
                               slices->weight.order, (size_t)shape->cols * sizeof(int32_t), error);
    return status;
}
