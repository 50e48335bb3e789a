/* Where the memory goes, decided and printed before anything big is allocated. */
#ifndef CSGL_ENGINE_MEMORY_PLAN_H
#define CSGL_ENGINE_MEMORY_PLAN_H

#include "base/error.h"
#include "device/ops.h"
#include "kvcache/kv_cache.h"
#include "models/model.h"

struct memory_request {
    enum dtype kv_dtype;
    enum kv_cache_type cache_type;
    int32_t page_size;
    int32_t max_running; /* sequences at once */
    int32_t
        context_length; /* tokens of one sequence; 0: the model's limit, less if memory is short */
    int32_t max_step_tokens;  /* rows of a step */
    int32_t max_want;         /* rows of a step with logits */
    double memory_ratio;      /* share of the available memory that may be used */
    uint64_t kv_cache_bytes;  /* 0: what max_running sequences of context_length need, if it fits */
    int32_t n_pages;          /* of each group's pool; 0: from kv_cache_bytes */
    enum dtype state_dtype;   /* of recurrent states: F32 or BF16 */
    int32_t n_states;         /* their slots: running sequences and snapshots; 0: state_bytes */
    uint64_t state_bytes;     /* all slots' at most; 0: a quarter of what is left, or as many as
                               * max_running sequences have a use for */
    uint64_t available_bytes; /* 0: what the device says */
    /* What shares a CPU's memory with the engine: */
    int32_t n_processes; /* of csgl, this one counted */
    uint64_t text_bytes; /* their tokenizers */
};

/* The type that the i-th word of --kv-cache-dtype means: auto, bf16, f16, f32, int8, int4. */
static inline enum dtype kv_dtype_of_word(int i)
{
    static const enum dtype dtypes[] = {DTYPE_BF16, DTYPE_BF16, DTYPE_F16,
                                        DTYPE_F32,  DTYPE_I8,   DTYPE_I4};
    return dtypes[i];
}

/* The type that the i-th word of --mamba-ssm-dtype means: auto, f32, bf16. */
static inline enum dtype state_dtype_of_word(int i)
{
    return i == 2 ? DTYPE_BF16 : DTYPE_F32;
}

/* All in bytes. The last three are 0 where the engine's memory is not the CPU's, but for the tables
 * that a step reads. */
struct memory_plan {
    uint64_t budget, weights, workspace, kv, states;
    uint64_t tables;   /* of the cache, the batch and the sampler; of penalties, all rows' */
    uint64_t programs; /* the processes themselves */
    uint64_t texts;    /* as in the request */
    bool is_host;      /* the engine's memory is the CPU's */
    int32_t context_length;
    size_t scratch_bytes;
    struct kv_layout layout;
    int32_t n_groups;
    size_t page_bytes[KV_MAX_GROUPS]; /* of one page in all of a group's layers */
    int32_t n_pages[KV_MAX_GROUPS];
    struct state_layout state_layout;
    size_t layer_state_bytes; /* of one layer's slot */
    int32_t n_states;         /* slots; 0: the model has no recurrent layers */
};

/* Fits the request into the budget, or ERROR_LIMIT with the numbers and the flag to change. */
enum status memory_plan_make(struct memory_plan *plan, const struct model *model,
                             struct device *device, const struct device_bytes *weights,
                             const struct memory_request *request, struct error *error);

/* The sum of its parts. */
uint64_t memory_plan_bytes(const struct memory_plan *plan);

/* The cache that was planned. */
struct kv_cache_spec memory_plan_cache(const struct memory_plan *plan, const struct model *model,
                                       const struct memory_request *request);

/* Bytes of the KV cache of `n_sequences` sequences of `length` tokens, and the longest length, at
 * most `limit`, of which so many fit with their tables. Of a plan that was made for this request.
 */
uint64_t memory_plan_kv_bytes(const struct memory_plan *plan, const struct model *model,
                              const struct memory_request *request, int32_t length,
                              int64_t n_sequences);
int32_t memory_plan_longest(const struct memory_plan *plan, const struct model *model,
                            const struct memory_request *request, int32_t limit,
                            int64_t n_sequences);

/* Logs the plan in a few lines. */
void memory_plan_print(const struct memory_plan *plan);

#endif
