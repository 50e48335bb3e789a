/* Any encoding into the one layout that the kernels read: floats as they are, codes as a stream of
 * bits with f32 scales and biases, E4M3 as bytes with f32 scales. What an encoding saves by smaller
 * levels is lost; the plan counts what is really taken. Floats may also be read where they lie in
 * the checkpoint; codes may not, since their levels lie elsewhere and as another type. */
#include "device/gpu/gpu_weight.h"

#include "base/log.h"
#include "base/size.h"
#include "base/weight_encode.h"
#include "device/gpu/gpu_upload.h"

#include <string.h>

enum { SECTION_ALIGN = 16, MAX_COLS = 1 << 22, MAX_ROWS = UINT16_MAX * KD_DOTS };

static enum status check_slice(const struct weight_slice *slice, int32_t max_rows,
                               struct error *error)
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
    if (slice->cols > MAX_COLS || slice->rows > max_rows)
        return error_set(error, ERROR_LIMIT, "a weight of %lld x %lld; at most %d x %d can be run",
                         (long long)slice->rows, (long long)slice->cols, (int)max_rows, MAX_COLS);
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

static void describe(const struct weight_slice *slice, struct kd_weight *out)
{
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
}

enum status gpu_weight_describe(const struct weight_slice *slice, struct kd_weight *out,
                                struct error *error)
{
    enum status status = check_slice(slice, MAX_ROWS, error);
    if (status == OK)
        describe(slice, out);
    return status;
}

static struct weight_slice slice_of(const struct weight *table)
{
    return (struct weight_slice){.weight = *table, .rows = table->rows, .cols = table->cols};
}

enum status gpu_table_describe(const struct weight *weight, struct kd_weight *out,
                               struct error *error)
{
    struct weight_slice slice = slice_of(weight);
    enum status status = check_slice(&slice, INT32_MAX, error);
    if (status == OK)
        describe(&slice, out);
    return status;
}

struct load {
    const struct weight_slice *slice;
    const struct kd_weight *shape;
};

/* Row `row`: its values or codes, and its levels. scratch: its codes, a byte each. */
static void load_row(void *context, int64_t row, uint8_t *scratch,
                     uint8_t *const to[GPU_UPLOAD_SECTIONS])
{
    const struct load *load = context;
    const struct kd_weight *shape = load->shape;
    struct weight one = row_of(load->slice, row);
    size_t bytes = ((size_t)shape->cols * shape->bits + 7) / 8;
    memset(to[0] + bytes, 0, shape->row_bytes - bytes);
    if (shape->form == KD_FORM_FLOAT) {
        memcpy(to[0], one.data, bytes);
        return;
    }
    struct weight_row parts = {.codes = scratch, .scales = (float *)(void *)to[1]};
    if (shape->form == KD_FORM_CODES)
        parts.biases = (float *)(void *)to[2];
    weight_row_read(&one, 0, &parts);
    weight_pack_stream(scratch, shape->cols, (int)shape->bits, to[0]);
}

static enum status load_matrix(struct gpu_device *gpu, const struct weight_slice *slice,
                               const struct kd_weight *shape, const struct gpu_range *to,
                               struct error *error)
{
    struct load load = {slice, shape};
    size_t level_bytes = shape->n_groups * sizeof(float);
    struct gpu_upload upload = {
        .to = *to,
        .sections = {{0, shape->row_bytes},
                     {shape->scales, level_bytes},
                     {shape->biases, shape->form == KD_FORM_CODES ? level_bytes : 0}},
        .n_items = shape->rows,
        .scratch_bytes = shape->cols,
        .make = load_row,
        .context = &load};
    struct gpu_range bias = {to->memory, to->offset + shape->out_bias};
    struct gpu_range order = {to->memory, to->offset + shape->order};
    enum status status = gpu_upload(gpu, &upload, error);
    if (status == OK && shape->out_bias)
        status =
            gpu->driver->write(gpu->gpu, &bias, slice->bias, shape->rows * sizeof(float), error);
    if (status == OK && shape->order)
        status = gpu->driver->write(gpu->gpu, &order, slice->weight.order,
                                    shape->cols * sizeof(int32_t), error);
    return status;
}

bool gpu_weight_stays(const struct gpu_device *gpu, const struct weight_slice *slice)
{
    const struct weight *w = &slice->weight;
    if (!gpu->driver->wrap || !weight_is_float(w) || !w->data || w->unpacked || w->has_order ||
        w->rope_head_dim || slice->pattern.run || slice->bias)
        return false;
    size_t row_bytes = weight_row_bytes(w);
    return row_bytes % SECTION_ALIGN == 0 && row_bytes <= INT32_MAX &&
           (uintptr_t)row_of(slice, 0).data % SECTION_ALIGN == 0;
}

/* False: there is no view of the slice, so that it must be copied. */
static bool wrap(struct gpu_device *gpu, struct gpu_weight *w, const struct weight_slice *slice)
{
    struct error error;
    if (!gpu_weight_stays(gpu, slice))
        return false;
    struct weight first = row_of(slice, 0);
    size_t row_bytes = weight_row_bytes(&slice->weight);
    size_t bytes = (size_t)(slice->rows - 1) * row_bytes + weight_row_bytes(&first);
    if (gpu->driver->wrap(gpu->gpu, first.data, bytes, &w->memory, &error) != OK) {
        log_debug("a weight is copied: %s", error.message);
        return false;
    }
    w->shape.row_bytes = (uint32_t)row_bytes;
    return true;
}

enum status gpu_table_load(struct gpu_device *gpu, struct gpu_weight *w,
                           const struct weight *weight, struct error *error)
{
    struct weight_slice slice = slice_of(weight);
    *w = (struct gpu_weight){0};
    enum status status = gpu_table_describe(weight, &w->shape, error);
    if (status != OK || wrap(gpu, w, &slice))
        return status;
    status = gpu->driver->alloc(gpu->gpu, w->shape.matrix_bytes, &w->memory, error);
    return status == OK
               ? load_matrix(gpu, &slice, &w->shape, &(struct gpu_range){w->memory, 0}, error)
               : status;
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
    if (status != OK || (n_matrices == 1 && wrap(gpu, w, slices)))
        return status;
    size_t bytes = w->shape.matrix_bytes;
    status = gpu->driver->alloc(gpu->gpu, bytes * (size_t)n_matrices, &w->memory, error);
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
        if (status == OK)
            status = load_matrix(gpu, slice, &shape,
                                 &(struct gpu_range){w->memory, (size_t)i * bytes}, error);
    }
    return status;
}

void gpu_weight_done(struct gpu_device *gpu, struct gpu_weight *w)
{
    if (w->memory)
        gpu->driver->free(gpu->gpu, w->memory);
    *w = (struct gpu_weight){0};
}
