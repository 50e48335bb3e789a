/* From logits to tokens: edit_logits, sample, logprobs. */
#include "device/gpu/gpu_device.h"

#include "base/size.h"

#include <assert.h>

static_assert(sizeof(struct kd_logit_edit) == sizeof(struct logit_edit) &&
                  sizeof(struct logit_edit) == LOGIT_EDIT_WORDS * 4,
              "edits are handed on as they are");
static_assert(sizeof(struct kd_sample_row) == sizeof(struct sample_row) &&
                  sizeof(struct sample_row) == SAMPLE_ROW_WORDS * 4,
              "rows are handed on as they are");

void gpu_edit_logits(struct device *device, const struct edit_logits_args *args)
{
    assert(args->edits.cols == LOGIT_EDIT_WORDS && args->edits.stride == LOGIT_EDIT_WORDS);
    struct gpu_range buffers[] = {gpu_tensor(&args->logits), gpu_tensor(&args->edits)};
    struct kd_edit_logits p = {.n_edits = (uint32_t)args->edits.rows,
                               .logits_stride = (uint32_t)args->logits.stride,
                               .is_undo = args->is_undo};
    gpu_run(gpu_device_of(device), GPU_KERNEL_edit_logits, buffers, 2, &p, sizeof p,
            (struct gpu_groups){ceil_div(p.n_edits, KD_ROW_THREADS), 1, 1}, KD_ROW_THREADS);
}

void gpu_logprobs(struct device *device, const struct logprobs_args *args)
{
    assert(args->top_tokens.cols == args->top_logprobs.cols);
    struct gpu_range buffers[] = {gpu_tensor(&args->logits), gpu_tensor(&args->tokens),
                                  gpu_tensor(&args->logprobs), gpu_tensor(&args->top_tokens),
                                  gpu_tensor(&args->top_logprobs)};
    struct kd_logprobs p = {.n_tokens = (uint32_t)args->logits.cols,
                            .n_top = (uint32_t)args->top_tokens.cols,
                            .logits_stride = (uint32_t)args->logits.stride,
                            .tokens_stride = (uint32_t)args->tokens.stride,
                            .logprobs_stride = (uint32_t)args->logprobs.stride,
                            .top_tokens_stride = (uint32_t)args->top_tokens.stride,
                            .top_logprobs_stride = (uint32_t)args->top_logprobs.stride};
    gpu_run(gpu_device_of(device), GPU_KERNEL_logprobs, buffers, 5, &p, sizeof p,
            (struct gpu_groups){args->logits.rows, 1, 1}, KD_ROW_THREADS);
}

/* --- sample ----------------------------------------------------------------------------------- */

static uint32_t count_parts(int32_t n_tokens)
{
    int64_t n = ceil_div(n_tokens, KD_SAMPLE_PART);
    return n < KD_SAMPLE_MAX_PARTS ? (uint32_t)n : KD_SAMPLE_MAX_PARTS;
}

/* Bytes of the states of n rows, and of what their parts find. */
static size_t state_bytes(int32_t n_rows)
{
    return size_round_up((size_t)n_rows * sizeof(struct kd_sample_state), 64);
}

static size_t part_bytes(int32_t n_rows, uint32_t n_parts)
{
    return size_round_up((size_t)n_rows * n_parts * sizeof(struct kd_sample_part), 64);
}

size_t gpu_sample_workspace(struct device *device, int32_t n_tokens, int32_t max_rows)
{
    (void)device;
    return 2 * (state_bytes(max_rows) + part_bytes(max_rows, count_parts(n_tokens)));
}

enum status gpu_sample_reserve(struct device *device, int32_t n_tokens, int32_t max_rows,
                               struct error *error)
{
    struct gpu_device *gpu = gpu_device_of(device);
    if (n_tokens > SAMPLE_MAX_TOKENS)
        return error_set(error, ERROR_LIMIT, "a vocabulary of %d tokens; at most %d are possible",
                         (int)n_tokens, (int)SAMPLE_MAX_TOKENS);
    size_t bytes = gpu_sample_workspace(device, n_tokens, max_rows);
    if (bytes <= gpu->sampling_bytes)
        return OK;
    struct gpu_memory *grown;
    enum status status = gpu->driver->alloc(gpu->gpu, bytes, &grown, error);
    if (status != OK)
        return status;
    if (gpu->sampling)
        gpu->driver->free(gpu->gpu, gpu->sampling);
    gpu->sampling = grown;
    gpu->sampling_bytes = bytes;
    return OK;
}

/* What the kernel's longest way through its tasks takes. */
static int count_turns(unsigned uses)
{
    enum { FIRST_IN_RANK = 1, TOTAL = 1, SEARCH = KD_SAMPLE_DIGITS + 2, SEARCH_BY_ID = 2, END = 1 };
    int turns = FIRST_IN_RANK + END;
    if (uses & SAMPLE_DRAWS)
        turns += TOTAL + (uses == SAMPLE_DRAWS ? SEARCH_BY_ID : SEARCH);
    if (uses & SAMPLE_TOP_K)
        turns += SEARCH;
    if (uses & SAMPLE_TOP_P)
        turns += TOTAL + SEARCH;
    return turns;
}

void gpu_sample(struct device *device, const struct sample_args *args)
{
    struct gpu_device *gpu = gpu_device_of(device);
    int32_t n_rows = args->logits.rows;
    assert(args->rows.cols == SAMPLE_ROW_WORDS && args->rows.stride == SAMPLE_ROW_WORDS);
    struct kd_sample p = {.n_tokens = (uint32_t)args->logits.cols,
                          .n_parts = count_parts(args->logits.cols),
                          .logits_stride = (uint32_t)args->logits.stride,
                          .tokens_stride = (uint32_t)args->tokens.stride};
    p.part_tokens = (uint32_t)ceil_div(p.n_tokens, p.n_parts);
    /* Turns read what the one before has written into the other half. */
    size_t states = state_bytes(n_rows), half = states + part_bytes(n_rows, p.n_parts);
    assert(2 * half <= gpu->sampling_bytes);
    for (int turn = 0; turn < count_turns(args->uses); turn++) {
        size_t from = turn % 2 ? 0 : half, to = turn % 2 ? half : 0;
        struct gpu_range buffers[] = {
            gpu_tensor(&args->logits),      gpu_tensor(&args->rows), {gpu->sampling, from},
            {gpu->sampling, from + states}, {gpu->sampling, to},     {gpu->sampling, to + states},
            gpu_tensor(&args->tokens),
        };
        p.is_first = turn == 0;
        gpu_run(gpu, GPU_KERNEL_sample, buffers, 7, &p, sizeof p,
                (struct gpu_groups){p.n_parts, n_rows, 1}, KD_ROW_THREADS);
    }
}
