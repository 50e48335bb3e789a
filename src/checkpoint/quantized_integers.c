#include "checkpoint/quantized_integers.h"

#include "base/half.h"
#include "base/size.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { TILE_ROWS = 256, AWQ_ROWS = 8 };

/* The place in AWQ's word of row % 8. */
static const uint8_t awq_places[AWQ_ROWS] = {0, 4, 1, 5, 2, 6, 3, 7};

/* Files are little endian, as all hosts that csgl runs on; data may lie at any address. */
static uint32_t load_u32(const uint8_t *words, size_t i)
{
    uint32_t word;
    memcpy(&word, words + i * sizeof word, sizeof word);
    return word;
}

static bool is_file_by_rows(const struct integers *n)
{
    return n->layout == INTEGERS_ROWS || n->layout == INTEGERS_BYTES;
}

static int codes_per_word(const struct integers *n)
{
    return 32 / n->bits;
}

static uint32_t mask_of(const struct integers *n)
{
    return (1u << n->bits) - 1;
}

/* --- levels as they are stored ---------------------------------------------------------------- */

static uint32_t zero_of(const struct integers *n, int64_t row, int64_t group)
{
    const uint8_t *words = n->parts->zeros->data;
    int64_t per = codes_per_word(n), at = row / per, place = row % per;
    if (n->layout == INTEGERS_AWQ)
        place = awq_places[place];
    if (n->layout == INTEGERS_ROWS)
        at = at * n->n_groups + group;
    else
        at = group * (n->rows / per) + at;
    uint32_t stored = load_u32(words, (size_t)at) >> (place * n->bits);
    return (stored + n->zero_step) & mask_of(n);
}

static float scale_of(const struct integers *n, size_t i)
{
    const uint8_t *scales = n->parts->scales->data;
    uint16_t half;
    if (n->scale_type == LEVEL_F32)
        return f32_from_bits(load_u32(scales, i));
    memcpy(&half, scales + i * sizeof half, sizeof half);
    return n->scale_type == LEVEL_F16 ? f32_from_f16(half) : f32_from_bf16(half);
}

/* --- checks ----------------------------------------------------------------------------------- */

static enum status wrong_part(const struct integers *n, const char *path, const struct tensor *part,
                              struct error *error)
{
    return error_set(
        error, ERROR_INVALID,
        "%.200s: %.100s, %s [%lld, %lld], does not fit a weight [%lld, %lld] of %d bits "
        "in %lld groups",
        path, part->name, part->dtype, (long long)part->rows, (long long)part->cols,
        (long long)n->rows, (long long)n->cols, (int)n->bits, (long long)n->n_groups);
}

static enum status check_scales(struct integers *n, const char *path, struct error *error)
{
    const struct tensor *scales = n->parts->scales;
    bool by_rows = is_file_by_rows(n);
    n->n_groups = by_rows ? scales->cols : scales->rows;
    if (by_rows && scales->cols == n->rows && scales->rows == 1)
        n->n_groups = 1; /* one a row, as a vector */
    bool fits = n->n_groups > 0 && n->n_groups <= n->cols &&
                scales->rows * scales->cols == n->rows * n->n_groups;
    /* Where nothing says how wide a group is, they are equal. */
    if (fits && !n->group && n->n_groups > 1)
        n->group = (int32_t)ceil_div(n->cols, n->n_groups);
    else if (!n->group || n->group > n->cols)
        n->group = (int32_t)n->cols;
    if (!fits || ceil_div(n->cols, n->group) != n->n_groups)
        return wrong_part(n, path, scales, error);
    if (n->group % 8 && n->n_groups > 1)
        return error_set(error, ERROR_UNSUPPORTED,
                         "%.200s has groups of %d columns; multiples of 32 are supported", path,
                         (int)n->group);
    return OK;
}

static enum status check_zeros(struct integers *n, const char *path, struct error *error)
{
    const struct tensor *zeros = n->parts->zeros;
    int64_t n_words = ceil_div(n->rows, codes_per_word(n));
    n->has_zeros = false;
    if (!zeros)
        return OK;
    bool fits = n->layout == INTEGERS_ROWS ? zeros->rows == n_words && zeros->cols == n->n_groups
                                           : zeros->rows == n->n_groups && zeros->cols == n_words &&
                                                 n->rows % codes_per_word(n) == 0;
    if (n->layout == INTEGERS_BYTES || !fits || strcmp(zeros->dtype, "I32") != 0)
        return wrong_part(n, path, zeros, error);
    uint32_t middle = 1u << (n->bits - 1);
    for (int64_t g = 0; g < n->n_groups && !n->has_zeros; g++)
        for (int64_t r = 0; r < n->rows && !n->has_zeros; r++)
            n->has_zeros = zero_of(n, r, g) != middle;
    return OK;
}

static int32_t group_of(const struct integers *n, int64_t col)
{
    return (int32_t)load_u32(n->parts->groups->data, (size_t)col);
}

/* Groups may be named for each column; they must be as many columns as the format says. */
static enum status check_groups(struct integers *n, const char *path, struct error *error)
{
    const struct tensor *groups = n->parts->groups;
    n->is_ordered = false;
    if (!groups)
        return OK;
    if (groups->rows * groups->cols != n->cols || strcmp(groups->dtype, "I32") != 0)
        return wrong_part(n, path, groups, error);
    for (int64_t c = 0; c < n->cols; c++)
        n->is_ordered = n->is_ordered || group_of(n, c) != c / n->group;
    return OK;
}

/* A file whose rows are codes and whose scales are levels. */
static bool is_read_in_place(const struct integers *n)
{
    return n->layout == INTEGERS_ROWS && !n->has_zeros && !n->is_ordered;
}

enum status integers_describe(struct integers *n, const char *path, struct weight *out,
                              struct error *error)
{
    if (n->rows < 1 || n->cols < 1 || n->rows > INT32_MAX || n->cols > INT32_MAX ||
        n->cols % codes_per_word(n))
        return error_set(error, ERROR_UNSUPPORTED,
                         "%.200s: a weight [%lld, %lld] of %d bits; rows must be whole words of 32 "
                         "bits and at most %d columns",
                         path, (long long)n->rows, (long long)n->cols, (int)n->bits, INT32_MAX);
    enum status status = check_scales(n, path, error);
    if (status == OK)
        status = check_zeros(n, path, error);
    if (status == OK)
        status = check_groups(n, path, error);
    if (status != OK)
        return status;
    const struct tensor *codes = n->parts->codes ? n->parts->codes : n->parts->plain;
    *out = (struct weight){.encoding = WEIGHT_AFFINE,
                           .rows = n->rows,
                           .cols = n->cols,
                           .data = codes->data,
                           .levels = {.type = n->has_zeros ? LEVEL_F32 : n->scale_type,
                                      .bits = n->bits,
                                      .group = n->group,
                                      .group_rows = 1,
                                      .scales = n->parts->scales->data,
                                      .biases = n->has_zeros ? n->parts->zeros->data : NULL,
                                      .offset = 1 << (n->bits - 1),
                                      .factor = 1.0f},
                           .has_order = n->is_ordered,
                           .is_packed = !is_read_in_place(n)};
    return OK;
}

/* --- unpacking -------------------------------------------------------------------------------- */

/* Stable sort by group: order[] is the columns of the first group, then of the next. */
static enum status sort_columns(const struct integers *n, const char *path, int32_t *order,
                                struct error *error)
{
    int32_t *next = calloc((size_t)n->n_groups + 1, sizeof *next);
    if (!next)
        return error_memory(error, ((size_t)n->n_groups + 1) * sizeof *next);
    enum status status = OK;
    for (int64_t c = 0; c < n->cols; c++) {
        int32_t g = group_of(n, c);
        if (g < 0 || g >= n->n_groups) {
            status = error_set(error, ERROR_INVALID,
                               "%.200s: column %lld is said to be in group %d of %lld", path,
                               (long long)c, (int)g, (long long)n->n_groups);
            goto out;
        }
        next[g + 1]++;
    }
    for (int64_t g = 0; g < n->n_groups; g++) {
        int64_t left = n->cols - g * n->group;
        if (next[g + 1] != (left < n->group ? left : n->group)) {
            status = error_set(error, ERROR_UNSUPPORTED,
                               "%.200s: group %lld has %d columns; groups of other than %d are not "
                               "supported",
                               path, (long long)g, (int)next[g + 1], (int)n->group);
            goto out;
        }
        next[g + 1] += next[g];
    }
    for (int64_t c = 0; c < n->cols; c++)
        order[next[group_of(n, c)]++] = (int32_t)c;
out:
    free(next);
    return status;
}

/* Adds the codes of column `col` and rows [row, row + n_rows), shifted, to one word a row. */
static void add_codes(const struct integers *n, int64_t col, int64_t row, int n_rows, int shift,
                      uint32_t *restrict words)
{
    const struct tensor *tensor = n->parts->codes ? n->parts->codes : n->parts->plain;
    const uint8_t *data = tensor->data;
    uint32_t mask = mask_of(n);
    int64_t per = codes_per_word(n);
    int place = (int)(col % per) * n->bits;
    size_t at;
    switch (n->layout) {
    case INTEGERS_GPTQ:
        at = (size_t)(col / per * n->rows + row);
        for (int i = 0; i < n_rows; i++)
            words[i] |= (load_u32(data, at + (size_t)i) >> place & mask) << shift;
        break;
    case INTEGERS_AWQ:
        at = (size_t)(col * (n->rows / AWQ_ROWS) + row / AWQ_ROWS);
        for (int i = 0; i < n_rows; i += AWQ_ROWS, at++) {
            uint32_t word = load_u32(data, at);
            for (int k = 0; k < AWQ_ROWS; k++)
                words[i + k] |= (word >> 4 * awq_places[k] & 15) << shift;
        }
        break;
    default:
        assert(!is_file_by_rows(n));
    }
}

/* A row of a file that has them by rows. */
static void unpack_row(const struct integers *n, const uint8_t *restrict row, const int32_t *order,
                       uint8_t *restrict out)
{
    int per = codes_per_word(n);
    uint8_t flip = n->layout == INTEGERS_BYTES ? 0x80 : 0; /* signed bytes to codes from 0 */
    if (!order) {
        for (int64_t i = 0; i < n->cols * n->bits / 8; i++)
            out[i] = row[i] ^ flip;
        return;
    }
    for (int64_t c = 0; c < n->cols; c += per) {
        uint32_t word = 0;
        for (int j = 0; j < per; j++) {
            int32_t from = order[c + j];
            uint32_t code = load_u32(row, (size_t)(from / per)) >> from % per * n->bits;
            word |= ((code ^ flip) & mask_of(n)) << j * n->bits;
        }
        memcpy(out + c / per * (int64_t)sizeof word, &word, sizeof word);
    }
}

static void unpack_rows(const struct integers *n, const int32_t *order, uint8_t *out)
{
    const struct tensor *tensor = n->parts->codes ? n->parts->codes : n->parts->plain;
    size_t row_bytes = (size_t)(n->cols / codes_per_word(n)) * sizeof(uint32_t);
    for (int64_t row = 0; row < n->rows; row++)
        unpack_row(n, tensor->data + (size_t)row * row_bytes, order, out + (size_t)row * row_bytes);
}

/* Rows of codes, word by word for a tile of rows. */
static void unpack_codes(const struct integers *n, const int32_t *order, uint8_t *out)
{
    int per = codes_per_word(n);
    int64_t n_words = n->cols / per;
    for (int64_t row = 0; row < n->rows; row += TILE_ROWS) {
        int n_rows = (int)(n->rows - row < TILE_ROWS ? n->rows - row : TILE_ROWS);
        for (int64_t w = 0; w < n_words; w++) {
            uint32_t words[TILE_ROWS] = {0};
            for (int j = 0; j < per; j++) {
                int64_t col = w * per + j;
                add_codes(n, order ? order[col] : col, row, n_rows, j * n->bits, words);
            }
            for (int i = 0; i < n_rows; i++)
                memcpy(out + ((size_t)(row + i) * (size_t)n_words + (size_t)w) * 4, &words[i], 4);
        }
    }
}

/* Levels [rows][groups]: the scales as stored, or scales and -zero * scale as f32. */
static void unpack_levels(const struct integers *n, uint8_t *scales, uint8_t *biases)
{
    size_t bytes = weight_level_bytes(n->scale_type);
    for (int64_t r = 0; r < n->rows; r++)
        for (int64_t g = 0; g < n->n_groups; g++) {
            size_t from = (size_t)(is_file_by_rows(n) ? r * n->n_groups + g : g * n->rows + r);
            size_t to = (size_t)(r * n->n_groups + g);
            if (!biases) {
                memcpy(scales + to * bytes, n->parts->scales->data + from * bytes, bytes);
                continue;
            }
            float scale = scale_of(n, from), bias = -scale * (float)zero_of(n, r, g);
            memcpy(scales + to * sizeof scale, &scale, sizeof scale);
            memcpy(biases + to * sizeof bias, &bias, sizeof bias);
        }
}

enum status integers_unpack(const struct integers *n, const char *path, struct weight *out,
                            struct error *error)
{
    size_t code_bytes = (size_t)weight_bytes(out), level_bytes = (size_t)weight_levels_bytes(out);
    size_t order_bytes = n->is_ordered ? (size_t)n->cols * sizeof(int32_t) : 0, bytes;
    if (!size_mul(level_bytes, out->levels.biases ? 2 : 1, &bytes) ||
        !size_add(bytes, code_bytes, &bytes) || !size_add(bytes, order_bytes, &bytes))
        return error_memory(error, SIZE_MAX);
    uint8_t *memory = malloc(bytes);
    if (!memory)
        return error_memory(error, bytes);
    int32_t *order = n->is_ordered ? (int32_t *)(void *)memory : NULL;
    uint8_t *codes = memory + order_bytes, *scales = codes + code_bytes;
    uint8_t *biases = out->levels.biases ? scales + level_bytes : NULL;
    enum status status = order ? sort_columns(n, path, order, error) : OK;
    if (status != OK) {
        free(memory);
        return status;
    }
    if (is_file_by_rows(n))
        unpack_rows(n, order, codes);
    else
        unpack_codes(n, order, codes);
    unpack_levels(n, scales, biases);
    out->data = codes;
    out->levels.scales = scales;
    out->levels.biases = biases;
    out->order = order;
    out->is_packed = false;
    out->unpacked = memory;
    return OK;
}
