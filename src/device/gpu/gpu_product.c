/* Products with a weight by the shared kernels: linear_few for what it reads, linear for all else.
 */
#include "device/gpu/gpu_weight.h"

#include "base/size.h"

enum { N_WIDTHS = 3 };
static const int32_t widths[N_WIDTHS] = {1, 4, KD_FEW_ROWS}; /* rows that a threadgroup makes */

/* The kernels that read a weight, by width; NULL: linear_few reads none like it. */
static const enum gpu_kernel_name *few_kernels(const struct kd_weight *w)
{
#define WIDTHS(form)                                                                               \
    {                                                                                              \
        GPU_KERNEL_linear_few_##form##_1, GPU_KERNEL_linear_few_##form##_4,                        \
            GPU_KERNEL_linear_few_##form##_8                                                       \
    }
    static const enum gpu_kernel_name q4[] = WIDTHS(q4), q8[] = WIDTHS(q8), f16[] = WIDTHS(f16);
#undef WIDTHS
    bool is_codes = w->form == KD_FORM_CODES && w->group % KD_FEW_COLS == 0;
    if (w->order || w->cols % KD_FEW_COLS)
        return NULL;
    if (w->form == KD_FORM_FLOAT && w->dtype != KD_F32)
        return f16;
    return is_codes && w->bits == 4 ? q4 : is_codes && w->bits == 8 ? q8 : NULL;
}

/* It reads four inputs at once. */
static bool is_aligned(const struct tensor *x)
{
    return x->stride % 4 == 0 && x->offset % 16 == 0;
}

static int width_for(int32_t n_rows)
{
    int i = 0;
    while (i < N_WIDTHS - 1 && widths[i] < n_rows)
        i++;
    return i;
}

/* As many as have columns to read. */
static uint32_t n_simds(const struct kd_weight *w)
{
    int64_t n = ceil_div(w->cols, KD_SIMD_WIDTH * KD_FEW_COLS);
    return n < KD_FEW_SIMDS ? (uint32_t)n : KD_FEW_SIMDS;
}

static void run_few(struct gpu_device *gpu, const enum gpu_kernel_name *kernels,
                    const struct gpu_range *buffers, const struct kd_linear *shape, int32_t n_rows)
{
    int width = width_for(n_rows);
    struct kd_linear_few p = {.weight = shape->weight,
                              .x_stride = shape->x_stride,
                              .out_stride = shape->out_stride,
                              .n_rows = (uint32_t)n_rows,
                              .n_simds = n_simds(&shape->weight)};
    gpu_run(gpu, kernels[width], buffers, 3, &p, sizeof p,
            (struct gpu_groups){ceil_div(n_rows, widths[width]),
                                ceil_div(shape->weight.rows, KD_FEW_OUTPUTS), 1},
            p.n_simds * KD_SIMD_WIDTH);
}

void gpu_product(struct gpu_device *gpu, const struct gpu_weight *w, const struct tensor *x,
                 const struct tensor *out)
{
    const enum gpu_kernel_name *few = is_aligned(x) ? few_kernels(&w->shape) : NULL;
    struct gpu_range buffers[] = {{w->memory, 0}, gpu_tensor(x), gpu_tensor(out)};
    struct kd_linear p = {
        .weight = w->shape, .x_stride = (uint32_t)x->stride, .out_stride = (uint32_t)out->stride};
    if (few)
        run_few(gpu, few, buffers, &p, x->rows);
    else
        gpu_run(gpu, GPU_KERNEL_linear, buffers, 3, &p, sizeof p,
                (struct gpu_groups){x->rows, ceil_div(w->shape.rows, KD_DOTS), 1}, KD_DOT_THREADS);
}
