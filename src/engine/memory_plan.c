#include "engine/memory_plan.h"

#include "base/log.h"
#include "base/size.h"
#include "base/system.h"
#include "device/device_open.h"
#include "engine/batch.h"
#include "engine/sampler.h"

static const double mib = 1.0 / (1024.0 * 1024.0);

/* Of one process: the program and its share of the libraries, stacks, configurations and templates,
 * the requests in flight. Measured (docs/performance.md): beside what is counted the supervisor
 * takes 2 MiB, the frontend 4 to 6, a tokenizer 7, the scheduler 4 to 7 and the end of its last
 * slab of weights. */
enum { PROCESS_BYTES = 11 << 19 };

uint64_t memory_plan_bytes(const struct memory_plan *p)
{
    return p->weights + p->workspace + p->kv + p->states + p->tables + p->programs + p->texts;
}

/* Pages of each group, and their bytes, for `n_sequences` sequences of `length` tokens. */
static uint64_t count_pages(struct memory_plan *p, const struct model *model,
                            const struct memory_request *r, int32_t length, int64_t n_sequences)
{
    uint64_t bytes = 0;
    for (int32_t g = 0; g < p->n_groups; g++) {
        int64_t pages = n_sequences * kv_pages_needed(model->kv_groups[g].window, length,
                                                      r->max_step_tokens, r->page_size);
        pages += p->n_states > 0; /* the part-filled page of the snapshot that a row continues */
        p->n_pages[g] =
            pages > INT32_MAX / r->page_size ? INT32_MAX / r->page_size : (int32_t)pages;
        bytes += (uint64_t)p->n_pages[g] * p->page_bytes[g];
    }
    return bytes;
}

uint64_t memory_plan_kv_bytes(const struct memory_plan *plan, const struct model *model,
                              const struct memory_request *r, int32_t length, int64_t n_sequences)
{
    struct memory_plan copy = *plan;
    return count_pages(&copy, model, r, length, n_sequences);
}

struct kv_cache_spec memory_plan_cache(const struct memory_plan *p, const struct model *model,
                                       const struct memory_request *r)
{
    struct kv_cache_spec spec = {.type = r->cache_type,
                                 .page_size = r->page_size,
                                 .n_rows = r->max_running,
                                 .max_length = p->context_length,
                                 .n_groups = p->n_groups,
                                 .n_states = p->n_states};
    for (int32_t g = 0; g < p->n_groups; g++) {
        spec.windows[g] = model->kv_groups[g].window;
        spec.n_pages[g] = p->n_pages[g];
    }
    return spec;
}

/* What is not the model's: the arrays of a step on the device, and on a CPU its copies that the
 * scheduler fills and that are packed, the cache's tables, the sampler's, a row of logits, and
 * what the penalties of every row need to know. */
static uint64_t table_bytes(const struct memory_plan *p, const struct model *model,
                            const struct memory_request *r)
{
    struct kv_cache_spec cache = memory_plan_cache(p, model, r);
    size_t batch = batch_bytes(&cache, r->max_step_tokens, r->max_running, r->max_want);
    uint64_t bytes = batch + sampler_device_bytes(model->vocab_size, r->max_want);
    if (!p->is_host)
        return bytes;
    return bytes + 2 * batch + sampler_host_bytes(model->vocab_size, r->max_want) +
           kv_cache_bytes(&cache) + (uint64_t)model->vocab_size * sizeof(float) +
           (uint64_t)r->max_running * token_history_bytes(model->vocab_size);
}

/* Pages and tables of `n_sequences` sequences of `length` tokens, in what is left and in the bytes
 * that the request gives the KV cache. */
static bool fits(struct memory_plan *p, const struct model *model, const struct memory_request *r,
                 int32_t length, int64_t n_sequences)
{
    p->context_length = length;
    p->kv = count_pages(p, model, r, length, n_sequences);
    p->tables = table_bytes(p, model, r);
    return memory_plan_bytes(p) <= p->budget && (!r->kv_cache_bytes || p->kv <= r->kv_cache_bytes);
}

int32_t memory_plan_longest(const struct memory_plan *plan, const struct model *model,
                            const struct memory_request *r, int32_t limit, int64_t n_sequences)
{
    struct memory_plan copy = *plan;
    int32_t low = 0, high = limit;
    while (low < high) {
        int32_t middle = low + (high - low + 1) / 2;
        if (fits(&copy, model, r, middle, n_sequences))
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* Of the memory that may be used, what the KV cache and its tables can have. */
static double room_mib(const struct memory_plan *p, const struct memory_request *r)
{
    struct memory_plan rest = *p;
    rest.kv = rest.tables = 0;
    uint64_t taken = memory_plan_bytes(&rest), room = p->budget > taken ? p->budget - taken : 0;
    return (double)(r->kv_cache_bytes && r->kv_cache_bytes < room ? r->kv_cache_bytes : room) * mib;
}

static enum status plan_given_pages(struct memory_plan *p, const struct model *model,
                                    const struct memory_request *r, struct error *error)
{
    p->kv = 0;
    for (int32_t g = 0; g < p->n_groups; g++) {
        if (r->n_pages < p->n_pages[g])
            return error_set(error, ERROR_LIMIT,
                             "--num-pages %d is less than the %d pages of one sequence of %d "
                             "tokens; raise it or lower --context-length",
                             r->n_pages, p->n_pages[g], p->context_length);
        p->n_pages[g] = r->n_pages;
        p->kv += (uint64_t)r->n_pages * p->page_bytes[g];
    }
    p->tables = table_bytes(p, model, r);
    return memory_plan_bytes(p) <= p->budget
               ? OK
               : error_set(error, ERROR_LIMIT,
                           "--num-pages %d needs %.0f MiB and %.0f MiB are left; lower it",
                           r->n_pages, (double)(p->kv + p->tables) * mib, room_mib(p, r));
}

static enum status plan_kv(struct memory_plan *p, const struct model *model,
                           const struct memory_request *r, struct error *error)
{
    bool is_given = r->context_length > 0;
    int32_t wanted = is_given ? r->context_length : model->max_positions;
    int32_t longest = memory_plan_longest(p, model, r, wanted, 1);
    if (longest < (is_given ? wanted : 1)) {
        fits(p, model, r, wanted, 1);
        return error_set(
            error, ERROR_LIMIT,
            "the KV cache of one sequence of %d tokens needs %.0f MiB and %.0f MiB are "
            "left; lower --context-length, raise --memory-ratio or --kv-cache-gb, or "
            "choose a narrower --kv-cache-dtype",
            (int)wanted, (double)(p->kv + p->tables) * mib, room_mib(p, r));
    }
    if (r->n_pages > 0) {
        fits(p, model, r, longest, 1);
        return plan_given_pages(p, model, r, error);
    }
    /* Room for as many sequences at once as fit; they share the pool. */
    int64_t n = r->max_running;
    while (!fits(p, model, r, longest, n) && n > 1)
        n--;
    return OK;
}

/* Slots of recurrent states: one for each running sequence, the others for snapshots. */
static enum status plan_states(struct memory_plan *p, const struct memory_request *r, uint64_t room,
                               struct error *error)
{
    enum { SLOTS_A_SEQUENCE = 8, LEAST_SLOTS = 2 };
    uint64_t slot_bytes = (uint64_t)p->layer_state_bytes * (uint64_t)p->state_layout.n_layers;
    uint64_t fit = room / slot_bytes, n = (uint64_t)r->n_states;
    if (n == 0 && r->state_bytes > 0)
        n = r->state_bytes / slot_bytes;
    else if (n == 0) {
        /* Snapshots pay, but not before the running sequences and the KV cache. */
        uint64_t running = (uint64_t)r->max_running + 1;
        uint64_t useful = r->cache_type == KV_CACHE_NAIVE
                              ? running
                              : (uint64_t)r->max_running * SLOTS_A_SEQUENCE + 1;
        n = fit / 4 < useful ? fit / 4 : useful;
        if (n < running)
            n = fit / 2 < running ? fit / 2 : running;
    }
    if (n < LEAST_SLOTS || n > fit || n > INT32_MAX / 2)
        return error_set(error, ERROR_LIMIT,
                         "recurrent states need %.1f MiB a sequence: %llu slots are asked for, at "
                         "least %d are needed and %.0f MiB hold %llu; change --num-mamba-slots or "
                         "--mamba-cache-gb, free memory or raise --memory-ratio",
                         (double)slot_bytes * mib, (unsigned long long)n, (int)LEAST_SLOTS,
                         (double)room * mib, (unsigned long long)fit);
    p->n_states = (int32_t)n;
    p->states = n * slot_bytes;
    return OK;
}

/* What the operations take beside their arguments. */
static size_t device_workspace(const struct memory_plan *p, const struct model *model,
                               struct device *device, size_t of_weights,
                               const struct memory_request *r)
{
    const struct device_table *table = device->table;
    size_t of_attention = table->attention_workspace(device, &p->layout, model->n_heads,
                                                     r->max_step_tokens, r->max_running);
    size_t of_states =
        model->states.n_layers > 0 ? table->gated_delta_workspace(device, &model->states) : 0;
    size_t of_sampling = table->sample_workspace(device, model->vocab_size, r->max_want);
    return table->shares_workspace
               ? size_max(size_max(of_weights, of_attention), size_max(of_states, of_sampling))
               : of_weights + of_attention + of_states + of_sampling;
}

enum status memory_plan_make(struct memory_plan *p, const struct model *model,
                             struct device *device, const struct device_bytes *weights,
                             const struct memory_request *r, struct error *error)
{
    *p = (struct memory_plan){
        .weights = weights->own, .n_groups = model->n_kv_groups, .is_host = device_is_cpu(device)};
    p->layout = (struct kv_layout){.page_size = r->page_size,
                                   .n_heads = model->n_kv_heads,
                                   .head_dim = model->head_dim,
                                   .dtype = r->kv_dtype};
    for (int32_t g = 0; g < p->n_groups; g++)
        p->page_bytes[g] =
            device->table->kv_page_bytes(device, &p->layout) * (size_t)model->kv_groups[g].n_layers;
    p->scratch_bytes = model->family->scratch_bytes(model, r->max_step_tokens, r->max_want);
    p->workspace = p->scratch_bytes + forward_tensor_bytes(r->max_want, model->vocab_size) +
                   device_workspace(p, model, device, weights->workspace, r);
    if (p->is_host) {
        p->programs = (uint64_t)r->n_processes * PROCESS_BYTES;
        p->texts = r->text_bytes;
    }
    uint64_t available =
        r->available_bytes ? r->available_bytes : device->table->memory_available(device);
    if (available == 0)
        available = UINT64_MAX / 4; /* nothing is known: let allocation decide */
    p->budget = (uint64_t)((double)available * r->memory_ratio);
    uint64_t taken = memory_plan_bytes(p);
    if (taken > p->budget)
        return error_set(
            error, ERROR_LIMIT,
            "the weights need %.0f MiB, a step %.0f MiB and the programs %.0f MiB, but "
            "only %.0f MiB may be used (%.0f MiB available, --memory-ratio %.2f); free "
            "memory, raise --memory-ratio or choose a smaller model",
            (double)p->weights * mib, (double)p->workspace * mib,
            (double)(p->programs + p->texts) * mib, (double)p->budget * mib,
            (double)available * mib, r->memory_ratio);
    uint64_t room = p->budget - taken;
    if (model->states.n_layers > 0) {
        p->state_layout = model->states;
        p->state_layout.dtype = r->state_dtype;
        p->layer_state_bytes = device->table->state_slot_bytes(device, &p->state_layout);
        enum status status = plan_states(p, r, room, error);
        if (status != OK)
            return status;
    } else if (r->n_states > 0 || r->state_bytes > 0 || r->state_dtype != DTYPE_F32) {
        return error_set(error, ERROR_INVALID,
                         "this model has no recurrent layers; leave out --num-mamba-slots, "
                         "--mamba-cache-gb and --mamba-ssm-dtype");
    }
    return plan_kv(p, model, r, error);
}

void memory_plan_print(const struct memory_plan *p)
{
    log_info(
        "memory: %.0f MiB of %.0f MiB: weights %.0f, KV cache %.0f (%s, %d tokens a sequence), "
        "workspace %.0f, programs and tables %.0f",
        (double)memory_plan_bytes(p) * mib, (double)p->budget * mib, (double)p->weights * mib,
        (double)p->kv * mib, dtype_name(p->layout.dtype), (int)p->context_length,
        (double)p->workspace * mib, (double)(p->programs + p->texts + p->tables) * mib);
    if (p->n_states > 0)
        log_info("memory: recurrent states and their snapshots %.1f MiB (%s, %d slots of %.2f MiB)",
                 (double)p->states * mib, dtype_name(p->state_layout.dtype), (int)p->n_states,
                 (double)p->states / (double)p->n_states * mib);
}
