/* Any encoding into the one layout that the kernels read: floats as they are, codes as a stream of
 * bits with f32 scales and biases, E4M3 as bytes with f32 scales. What an encoding saves by smaller
 * levels is lost; the plan counts what is really taken. */
#include "device/gpu/gpu_weight.h"

#include "base/size.h"

#include <stdlib.h>
#include <string.h>

enum { SECTION_ALIGN = 16, MAX_COLS = 1 << 22, MAX_ROWS = UINT16_MAX * KD_DOTS };

static enum status check_slice(const struct weight_slice *slice, struct error *error)
{
    const struct weight *w = &slice->weight;
    if (!weight_info(w->encoding))
        return error_set(error, ERROR_UNSUPPORTED, "weight encoding %d is not known to the GPU",
                         (int)w->encoding);
    int block = weight_shape(w).block;
    if (slice->row < 0 || slice->rows < 1 || slice->rows > w->rows || slice->pattern.first < 0 ||
        slice->pattern.run < 0 || slice->pattern.stride < 0 ||
        row_pattern_at(&slice->pattern, slice->row + slice->rows - 1) >= w->rows)
        return error_set(error, ERROR_INVALID, "rows %lld + %lld of a weight of %lld rows",
                         (long long)slice->row, (long long)slice->rows, (long long)w->rows);
    if (slice->col < 0 || slice->cols < 1 || slice->col > w->cols ||
        slice->cols > w->cols - slice->col)
        return error_set(error, ERROR_INVALID, "columns %lld + %lld of a weight of %lld columns",
                         (long long)slice->col, (long long)slice->cols, (long long)w->cols);
    if (slice->col % block || (slice->cols % block && slice->col + slice->cols != w->cols))
        return error_set(error, ERROR_INVALID,
                         "columns %lld + %lld of a %s weight do not lie on its blocks of %d",
                         (long long)slice->col, (long long)slice->cols,
                         weight_info(w->encoding)->name, block);
    if (slice->cols > MAX_COLS || slice->rows > MAX_ROWS)
        return error_set(error, ERROR_LIMIT, "a weight of %lld x %lld; at most %d x %d can be run",
                         (long long)slice->rows, (long long)slice->cols, MAX_ROWS, MAX_COLS);
    return OK;
}

static struct weight row_of(const struct weight_slice *slice, int64_t row)
{
    return weight_row_piece(&slice->weight, row_pattern_at(&slice->pattern, slice->row + row),
                            slice->col, slice->cols);
}

/* Lays a section of `bytes` behind the matrix's others; returns where it begins. */
static uint64_t add_section(struct kd_weight *out, uint64_t bytes)
{
    uint64_t at = out->matrix_bytes;
    out->matrix_bytes += size_round_up(bytes, SECTION_ALIGN);
    return at;
}

enum status gpu_weight_describe(const struct weight_slice *slice, struct kd_weight *out,
                                struct error *error)
{
    enum status status = check_slice(slice, error);
    if (status != OK)
        return status;
    const struct weight *w = &slice->weight;
    const struct weight_encoding_info info = weight_shape(w);
    *out = (struct kd_weight){.rows = (uint32_t)slice->rows, .cols = (uint32_t)slice->cols};
    if (weight_is_float(w)) {
        out->form = KD_FORM_FLOAT;
        out->dtype = w->encoding == WEIGHT_F32   ? KD_F32
                     : w->encoding == WEIGHT_F16 ? KD_F16
                                                 : KD_BF16;
        out->bits = w->encoding == WEIGHT_F32 ? 32 : 16;
    } else {
        out->form = w->encoding == WEIGHT_E4M3 ? KD_FORM_E4M3 : KD_FORM_CODES;
        /* The codes of E2M1 are doubled values plus 16. */
        out->bits = w->encoding == WEIGHT_E2M1 ? 5 : (uint32_t)info.bits;
        out->group = (uint32_t)info.group;
        out->n_groups = (uint32_t)ceil_div(slice->cols, info.group);
    }
    out->row_bytes = (uint32_t)size_round_up(((size_t)out->cols * out->bits + 7) / 8, 4);
    add_section(out, (uint64_t)out->rows * out->row_bytes);
    uint64_t levels = (uint64_t)out->rows * out->n_groups * sizeof(float);
    out->scales = add_section(out, levels);
    out->biases = add_section(out, out->form == KD_FORM_CODES ? levels : 0);
    if (slice->bias)
        out->out_bias = add_section(out, (uint64_t)out->rows * sizeof(float));
    if (w->has_order)
        out->order = add_section(out, (uint64_t)out->cols * sizeof(int32_t));
    return OK;
}

/* Codes as a little-endian stream of bits. */
static void pack_codes(const uint8_t *codes, uint32_t n, uint32_t bits, uint8_t *to)
{
    uint32_t held = 0, n_held = 0;
    for (uint32_t i = 0; i < n; i++) {
        held |= (uint32_t)codes[i] << n_held;
        for (n_held += bits; n_held >= 8; n_held -= 8, held >>= 8)
            *to++ = (uint8_t)held;
    }
    if (n_held)
        *to = (uint8_t)held;
}

/* `codes` is room for a row's. */
static void pack_matrix(const struct weight_slice *slice, const struct kd_weight *shape,
                        uint8_t *codes, uint8_t *to)
{
    for (uint32_t row = 0; row < shape->rows; row++) {
        struct weight one = row_of(slice, row);
        uint8_t *at = to + (size_t)row * shape->row_bytes;
        if (shape->form == KD_FORM_FLOAT) {
            memcpy(at, one.data, (size_t)shape->cols * shape->bits / 8);
            continue;
        }
        size_t levels = (size_t)row * shape->n_groups * sizeof(float);
        struct weight_row parts = {.codes = codes,
                                   .scales = (float *)(void *)(to + shape->scales + levels)};
        if (shape->form == KD_FORM_CODES)
            parts.biases = (float *)(void *)(to + shape->biases + levels);
        weight_row_read(&one, 0, &parts);
        pack_codes(codes, shape->cols, shape->bits, at);
    }
    if (shape->out_bias)
        memcpy(to + shape->out_bias, slice->bias, (size_t)shape->rows * sizeof(float));
    if (shape->order)
        memcpy(to + shape->order, slice->weight.order, (size_t)shape->cols * sizeof(int32_t));
}

static bool is_same(const struct kd_weight *a, const struct kd_weight *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

enum status gpu_weight_load(struct gpu_device *gpu, struct gpu_weight *w,
                            const struct weight_slice *slices, size_t stride_bytes,
                            int32_t n_matrices, struct error *error)
{
    *w = (struct gpu_weight){0};
    enum status status = gpu_weight_describe(slices, &w->shape, error);
    if (status != OK)
        return status;
    size_t bytes = w->shape.matrix_bytes;
    status = gpu->driver->alloc(gpu->gpu, bytes * (size_t)n_matrices, &w->memory, error);
    uint8_t *matrix = malloc(bytes), *codes = malloc(w->shape.cols);
    if (status == OK && (!matrix || !codes))
        status = error_memory(error, bytes);
    for (int32_t i = 0; i < n_matrices && status == OK; i++) {
        const struct weight_slice *slice =
            (const void *)((const char *)slices + (size_t)i * stride_bytes);
        struct kd_weight shape;
        status = gpu_weight_describe(slice, &shape, error);
        if (status == OK && !is_same(&shape, &w->shape))
            status = error_set(error, ERROR_UNSUPPORTED,
                               "experts of %s and %s weights in one layer; all must be of one type",
                               weight_info(slices->weight.encoding)->name,
                               weight_info(slice->weight.encoding)->name);
        if (status != OK)
            break;
        memset(matrix, 0, bytes);
        pack_matrix(slice, &shape, codes, matrix);
        status = gpu->driver->write(
            gpu->gpu, &(struct gpu_range){w->memory, (size_t)i * bytes}, matrix, bytes, error);
    }
    free(matrix);
    free(codes);
    return status;
}

void gpu_weight_done(struct gpu_device *gpu, struct gpu_weight *w)
{
    if (w->memory)
        gpu->driver->free(gpu->gpu, w->memory);
    *w = (struct gpu_weight){0};
}
