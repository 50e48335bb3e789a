/* Products with a weight by the shared kernels: linear_few for what it reads, linear for all else;
 * with int8 inputs linear_int8. */
#include "device/gpu/gpu_weight.h"

#include "base/size.h"

enum {
    N_WIDTHS = 3,
    MIN_MATRIX_ROWS = KD_MATRIX_ROWS / 2 + 1 /* fewer fill half a threadgroup of linear_matrix */
};
static const int32_t widths[N_WIDTHS] = {1, 4, KD_FEW_ROWS}; /* rows that a threadgroup makes */

/* The kernels that read a weight. */
struct kernels {
    enum gpu_kernel_name few[N_WIDTHS], matrix;
};

/* NULL: only the kernel linear reads one like it. */
static const struct kernels *kernels_for(const struct kd_weight *w)
{
#define FORM(form)                                                                                 \
    {                                                                                              \
        {GPU_KERNEL_linear_few_##form##_1, GPU_KERNEL_linear_few_##form##_4,                       \
         GPU_KERNEL_linear_few_##form##_8},                                                        \
            GPU_KERNEL_linear_matrix_##form                                                        \
    }
    static const struct kernels q4 = FORM(q4), q8 = FORM(q8), f16 = FORM(f16);
#undef FORM
    bool is_codes = w->form == KD_FORM_CODES && w->group % KD_FEW_COLS == 0;
    if (w->order || w->cols % KD_FEW_COLS)
        return NULL;
    if (w->form == KD_FORM_FLOAT && w->dtype != KD_F32)
        return &f16;
    return is_codes && w->bits == 4 ? &q4 : is_codes && w->bits == 8 ? &q8 : NULL;
}

/* They read four inputs at once. */
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

static void run_few(struct gpu_device *gpu, const struct kernels *kernels,
                    const struct gpu_range *buffers, const struct kd_linear_few *p)
{
    int width = width_for((int32_t)p->n_rows);
    gpu_run(gpu, kernels->few[width], buffers, 3, p, sizeof *p,
            (struct gpu_groups){ceil_div(p->n_rows, widths[width]),
                                ceil_div(p->weight.rows, KD_FEW_OUTPUTS), 1},
            p->n_simds * KD_SIMD_WIDTH);
}

static void run_matrix(struct gpu_device *gpu, const struct kernels *kernels,
                       const struct gpu_range *buffers, const struct kd_linear_few *p)
{
    gpu_run(gpu, kernels->matrix, buffers, 3, p, sizeof *p,
            (struct gpu_groups){ceil_div(p->n_rows, KD_MATRIX_ROWS),
                                ceil_div(p->weight.rows, KD_MATRIX_OUTPUTS), 1},
            KD_MATRIX_GROUP);
}

static void run_any(struct gpu_device *gpu, const struct gpu_range *buffers,
                    const struct kd_linear_few *p)
{
    struct kd_linear any = {p->weight, p->x_stride, p->out_stride};
    gpu_run(gpu, GPU_KERNEL_linear, buffers, 3, &any, sizeof any,
            (struct gpu_groups){p->n_rows, ceil_div(p->weight.rows, KD_DOTS), 1}, KD_DOT_THREADS);
}

/* --- int8 inputs ------------------------------------------------------------------------------ */

bool gpu_product_takes_int8(const struct kd_weight *w)
{
    bool has_kernel = (w->bits >= 2 && w->bits <= 6) || w->bits == 8;
    return w->form == KD_FORM_CODES && has_kernel && (w->group % 16 == 0 || w->n_groups == 1);
}

static size_t codes_bytes(uint32_t cols, int32_t n_rows)
{
    return (size_t)n_rows * (size_t)ceil_div(cols, 32) * 32;
}

/* A scale and two sums for each 32 codes. */
size_t gpu_product_int8_bytes(uint32_t cols, int32_t n_rows)
{
    size_t codes = codes_bytes(cols, n_rows);
    return codes + codes / 32 * 3 * sizeof(float);
}

static void run_int8(struct gpu_device *gpu, const struct gpu_weight *w, const struct tensor *x,
                     const struct tensor *out)
{
    struct gpu_range codes = {gpu->inputs.memory, 0};
    struct gpu_range levels = {gpu->inputs.memory, codes_bytes(w->shape.cols, x->rows)};
    struct gpu_range order = {w->shape.order ? w->memory : NULL, w->shape.order};
    struct gpu_range rounded[] = {gpu_tensor(x), order, codes, levels};
    struct gpu_range product[] = {{w->memory, 0}, codes, levels, gpu_tensor(out)};
    struct kd_int8_inputs inputs = {.cols = w->shape.cols,
                                    .n_units = (uint32_t)ceil_div(w->shape.cols, 32),
                                    .x_stride = (uint32_t)x->stride,
                                    .has_order = w->shape.order != 0};
    struct kd_linear_int8 p = {w->shape, inputs.n_units, (uint32_t)out->stride};
    gpu_run(gpu, GPU_KERNEL_int8_inputs, rounded, 4, &inputs, sizeof inputs,
            (struct gpu_groups){x->rows, ceil_div(inputs.n_units, KD_DOTS), 1}, KD_DOT_THREADS);
    gpu_run(gpu, GPU_KERNEL_linear_int8, product, 4, &p, sizeof p,
            (struct gpu_groups){x->rows, ceil_div(w->shape.rows, KD_DOTS), 1}, KD_DOT_THREADS);
}

/* ---------------------------------------------------------------------------------------------- */

void gpu_product(struct gpu_device *gpu, const struct gpu_weight *w, bool is_int8,
                 const struct tensor *x, const struct tensor *out)
{
    if (is_int8) {
        run_int8(gpu, w, x, out);
        return;
    }
    const struct kernels *kernels = is_aligned(x) ? kernels_for(&w->shape) : NULL;
    bool fills_matrices = x->rows >= MIN_MATRIX_ROWS && w->shape.cols % KD_MATRIX_COLS == 0;
    struct gpu_range buffers[] = {{w->memory, 0}, gpu_tensor(x), gpu_tensor(out)};
    struct kd_linear_few p = {.weight = w->shape,
                              .x_stride = (uint32_t)x->stride,
                              .out_stride = (uint32_t)out->stride,
                              .n_rows = (uint32_t)x->rows,
                              .n_simds = n_simds(&w->shape)};
    if (!kernels)
        run_any(gpu, buffers, &p);
    else if (gpu->info.has_matrices && fills_matrices)
        run_matrix(gpu, kernels, buffers, &p);
    else
        run_few(gpu, kernels, buffers, &p);
}
