/* Linear layers: one dispatch a part. */
#include "device/gpu/gpu_weight.h"

#include "base/size.h"

#include <assert.h>
#include <stdlib.h>

struct linear {
    int n_parts;
    int32_t cols, rows, max_rows;
    struct gpu_weight parts[LINEAR_MAX_PARTS];
};

enum status gpu_linear_load(struct device *device, const struct weight_slice *slices, int n_slices,
                            int32_t max_rows, struct linear **out, struct error *error)
{
    *out = NULL;
    assert(n_slices >= 1 && n_slices <= LINEAR_MAX_PARTS);
    struct linear *linear = calloc(1, sizeof *linear);
    if (!linear)
        return error_memory(error, sizeof *linear);
    linear->n_parts = n_slices;
    linear->cols = (int32_t)slices[0].cols;
    linear->max_rows = max_rows;
    enum status status = OK;
    for (int i = 0; i < n_slices && status == OK; i++) {
        if (slices[i].cols != slices[0].cols)
            status = error_set(error, ERROR_INVALID,
                               "parts of one linear have %lld and %lld columns; they must agree",
                               (long long)slices[0].cols, (long long)slices[i].cols);
        else
            status =
                gpu_weight_load(gpu_device_of(device), &linear->parts[i], &slices[i], 0, 1, error);
        linear->rows += (int32_t)slices[i].rows;
    }
    if (status != OK) {
        gpu_linear_free(device, linear);
        return status;
    }
    *out = linear;
    return OK;
}

void gpu_linear_free(struct device *device, struct linear *linear)
{
    if (!linear)
        return;
    for (int i = 0; i < linear->n_parts; i++)
        gpu_weight_done(gpu_device_of(device), &linear->parts[i]);
    free(linear);
}

struct device_bytes gpu_linear_bytes(struct device *device, const struct weight_slice *slices,
                                     int n_slices, int32_t max_rows)
{
    (void)device;
    (void)max_rows;
    struct device_bytes bytes = {0};
    for (int i = 0; i < n_slices; i++) {
        struct kd_weight shape;
        if (gpu_weight_describe(&slices[i], &shape, NULL) == OK)
            bytes.own += shape.matrix_bytes;
    }
    return bytes;
}

size_t gpu_linear_size(const struct linear *linear)
{
    size_t bytes = 0;
    for (int i = 0; i < linear->n_parts; i++)
        bytes += linear->parts[i].shape.matrix_bytes;
    return bytes;
}

void gpu_linear(struct device *device, const struct linear_args *args)
{
    const struct linear *linear = args->linear;
    assert(args->x.rows <= linear->max_rows && args->x.cols == linear->cols);
    assert(args->out.rows == args->x.rows && args->out.cols == linear->rows);
    int32_t first = 0;
    for (int i = 0; i < linear->n_parts; i++) {
        const struct gpu_weight *part = &linear->parts[i];
        struct tensor out = tensor_cols(args->out, first, (int32_t)part->shape.rows);
        struct gpu_range buffers[] = {{part->memory, 0}, gpu_tensor(&args->x), gpu_tensor(&out)};
        struct kd_linear p = {.weight = part->shape,
                              .x_stride = (uint32_t)args->x.stride,
                              .out_stride = (uint32_t)args->out.stride};
        gpu_run(gpu_device_of(device), GPU_KERNEL_linear, buffers, 3, &p, sizeof p,
                (struct gpu_groups){args->x.rows, ceil_div(part->shape.rows, KD_DOTS), 1},
                KD_DOT_THREADS);
        first += (int32_t)part->shape.rows;
    }
}
