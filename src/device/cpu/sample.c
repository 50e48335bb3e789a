/* From logits to tokens: edit_logits, sample, logprobs. A row is one task of the pool; each worker
 * has the weights and candidates of one row in the workspace. */
#include "device/cpu/rows.h"

#include "base/size.h"
#include "device/cpu/cpu_device.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* --- edit_logits ------------------------------------------------------------------------------ */

void cpu_edit_logits(struct device *device, const struct edit_logits_args *args)
{
    (void)device;
    assert(args->edits.dtype == DTYPE_I32 && args->edits.cols == LOGIT_EDIT_WORDS);
    for (int32_t i = 0; i < args->edits.rows; i++) {
        struct logit_edit *e = tensor_at(&args->edits, i);
        assert(e->row >= 0 && e->row < args->logits.rows && e->token < args->logits.cols);
        float *at = (float *)tensor_at(&args->logits, e->row) + e->token, l = *at;
        if (args->is_undo) {
            *at = e->before;
            continue;
        }
        e->before = l;
        l += e->bias;
        l = l > 0.0f ? l / e->penalty : l * e->penalty;
        *at = l - e->minus;
    }
}

/* --- the most likely -------------------------------------------------------------------------- */

enum { LANES = 16 };

/* The largest number of a block that is no NaN; -INFINITY if there is none. */
static float largest(const float *x, int n)
{
    float lanes[LANES], max = -INFINITY;
    int i = 0;
    for (int k = 0; k < LANES; k++)
        lanes[k] = -INFINITY;
    for (; i + LANES <= n; i += LANES)
        for (int k = 0; k < LANES; k++)
            lanes[k] = x[i + k] > lanes[k] ? x[i + k] : lanes[k];
    for (int k = 0; k < LANES; k++)
        max = lanes[k] > max ? lanes[k] : max;
    for (; i < n; i++)
        max = x[i] > max ? x[i] : max;
    return max;
}

/* The first in rank, or -1 where no logit is a number above -INFINITY. */
static int32_t first_in_rank(const float *logits, int32_t n)
{
    enum { BLOCK = 1024 };
    float max = -INFINITY;
    int32_t block = -1;
    for (int32_t i = 0; i < n; i += BLOCK) {
        float some = largest(logits + i, n - i < BLOCK ? n - i : BLOCK);
        if (some > max) {
            max = some;
            block = i;
        }
    }
    while (block >= 0 && logits[block] != max)
        block++;
    return block;
}

/* --- sample ----------------------------------------------------------------------------------- */

struct candidate {
    float logit;
    int32_t token;
};

/* Of one row. */
struct drawing {
    const float *logits;
    int32_t n;
    float *weights;               /* [n] e^..., of which weight_of makes whole numbers */
    struct candidate *candidates; /* [n], a heap in front, those taken from it behind */
    int32_t n_left, n_all;
};

static uint64_t weight_of(const struct drawing *d, int32_t token)
{
    float e = d->weights[token];
    return e >= 0x1p-40f ? (uint64_t)(e * 0x1p40f) : 0; /* exact: a float has 24 bits */
}

/* a * b / 2^64 */
static uint64_t high_product(uint64_t a, uint64_t b)
{
    uint64_t a_low = (uint32_t)a, a_high = a >> 32, b_low = (uint32_t)b, b_high = b >> 32;
    uint64_t middle = a_high * b_low + (a_low * b_low >> 32);
    uint64_t other = a_low * b_high + (uint32_t)middle;
    return a_high * b_high + (middle >> 32) + (other >> 32);
}

/* total * share / 2^32 */
static uint64_t share_of(uint64_t total, uint32_t share)
{
    return (total >> 32) * share + ((uint64_t)(uint32_t)total * share >> 32);
}

static bool is_before(struct candidate a, struct candidate b)
{
    return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
}

/* Restores a heap whose first is first in rank, after heap[i] changed. */
static void sift_down(struct candidate *heap, int32_t n, int32_t i)
{
    struct candidate moved = heap[i];
    for (;;) {
        int32_t child = 2 * i + 1;
        if (child >= n)
            break;
        if (child + 1 < n && is_before(heap[child + 1], heap[child]))
            child++;
        if (!is_before(heap[child], moved))
            break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = moved;
}

/* The tokens whose logits are at least `floor` and that weigh something become candidates; the sum
 * of their weights. */
static uint64_t find_candidates(struct drawing *d, float floor)
{
    uint64_t sum = 0;
    int32_t n = 0;
    for (int32_t i = 0; i < d->n; i++) {
        uint64_t weight = d->logits[i] >= floor ? weight_of(d, i) : 0;
        if (weight == 0)
            continue;
        sum += weight;
        d->candidates[n++] = (struct candidate){d->logits[i], i};
    }
    d->n_left = d->n_all = n;
    return sum;
}

/* Finds candidates that hold all that is kept, few of them where few are kept, and ranks them:
 * O(n), and O(log n) for each that is taken. */
static void start_ranking(struct drawing *d, const struct sample_row *p, float max, uint64_t enough)
{
    /* In units of the temperature; what is farther down weighs nothing. */
    enum { FIRST_DEPTH = 4, LAST_DEPTH = 16 };
    bool is_enough = false;
    for (int depth = FIRST_DEPTH; depth <= LAST_DEPTH && !is_enough; depth *= 2) {
        uint64_t sum = find_candidates(d, max - (float)depth / p->inverse);
        is_enough = p->top_k > 0 ? d->n_all >= p->top_k : p->share && sum >= enough;
    }
    if (!is_enough)
        find_candidates(d, -INFINITY);
    for (int32_t i = d->n_all / 2; i-- > 0;)
        sift_down(d->candidates, d->n_all, i);
}

/* The k-th candidate in rank, k < n_all. */
static int32_t in_rank(struct drawing *d, int32_t k)
{
    while (d->n_all - d->n_left <= k) {
        struct candidate first = d->candidates[0];
        d->candidates[0] = d->candidates[--d->n_left];
        if (d->n_left > 0)
            sift_down(d->candidates, d->n_left, 0);
        d->candidates[d->n_left] = first;
    }
    return d->candidates[d->n_all - 1 - k].token;
}

static uint64_t sum_weights(const struct drawing *d)
{
    uint64_t sum = 0;
    for (int32_t i = 0; i < d->n; i++)
        sum += weight_of(d, i);
    return sum;
}

/* From the tokens that top-k, top-p and min-p keep, in order of rank. */
static int32_t draw_filtered(struct drawing *d, const struct sample_row *p, float max)
{
    uint64_t enough = 0, reached = 0, kept = 0, passed = 0;
    if (p->share && p->top_k == 0)
        enough = share_of(sum_weights(d), p->share);
    start_ranking(d, p, max, enough);
    int32_t n_most = p->top_k > 0 && p->top_k < d->n_all ? p->top_k : d->n_all, n_kept = n_most;
    if (p->share && p->top_k > 0) {
        uint64_t total = 0;
        for (int32_t i = 0; i < n_most; i++)
            total += weight_of(d, in_rank(d, i));
        enough = share_of(total, p->share);
    }
    for (n_kept = 0; n_kept < n_most; n_kept++) {
        if (p->share && n_kept > 0 && reached >= enough)
            break;
        uint64_t weight = weight_of(d, in_rank(d, n_kept));
        reached += weight;
        kept += weight >= p->least ? weight : 0;
    }
    uint64_t goal = high_product(p->number, kept);
    for (int32_t i = 0;; i++) {
        int32_t token = in_rank(d, i);
        uint64_t weight = weight_of(d, token);
        passed += weight >= p->least ? weight : 0;
        if (passed > goal)
            return token;
    }
}

/* From all tokens, in order of ids. */
static int32_t draw_plain(const struct drawing *d, const struct sample_row *p)
{
    uint64_t goal = high_product(p->number, sum_weights(d)), passed = 0;
    for (int32_t i = 0;; i++) {
        passed += weight_of(d, i);
        if (passed > goal)
            return i;
    }
}

struct sample_run {
    const struct sample_args *args;
    const struct row_kernels *kernels;
    uint8_t *workspace; /* [workers][worker_bytes] */
};

static size_t worker_bytes(int32_t n_tokens)
{
    return size_round_up((size_t)n_tokens * (sizeof(float) + sizeof(struct candidate)), 64);
}

static void run_rows(struct cpu_device *cpu, thread_task task, void *run, int32_t n_rows)
{
    if (n_rows == 1)
        task(run, 0, 0);
    else
        thread_pool_run(cpu->pool, task, run, n_rows);
}

static void sample_task(void *context, int row, int worker)
{
    const struct sample_run *run = context;
    const struct sample_row *p = tensor_at(&run->args->rows, row);
    int32_t *token = tensor_at(&run->args->tokens, row), n = run->args->logits.cols;
    const float *logits = tensor_at(&run->args->logits, row);
    if (p->token >= 0) {
        *token = p->token;
        return;
    }
    *token = first_in_rank(logits, n);
    if (*token >= 0 && isinf(logits[*token]))
        *token = -1;
    if (*token < 0 || p->inverse == 0.0f)
        return;
    uint8_t *memory = run->workspace + (size_t)worker * worker_bytes(n);
    struct drawing d = {.logits = logits,
                        .n = n,
                        .candidates = (struct candidate *)(void *)memory,
                        .weights = (float *)(void *)(memory + (size_t)n * sizeof *d.candidates)};
    float max = logits[*token];
    run->kernels->weigh(logits, max, p->inverse, d.weights, n);
    bool is_filtered = p->top_k > 0 || p->share || p->least > 1;
    *token = is_filtered ? draw_filtered(&d, p, max) : draw_plain(&d, p);
}

size_t cpu_sample_workspace(struct device *device, int32_t n_tokens, int32_t max_rows)
{
    (void)max_rows;
    return worker_bytes(n_tokens) * (size_t)thread_pool_size(cpu_device_of(device)->pool);
}

enum status cpu_sample_reserve(struct device *device, int32_t n_tokens, int32_t max_rows,
                               struct error *error)
{
    if (n_tokens > SAMPLE_MAX_TOKENS)
        return error_set(error, ERROR_LIMIT, "a vocabulary of %d tokens; at most %d are possible",
                         (int)n_tokens, (int)SAMPLE_MAX_TOKENS);
    return cpu_workspace_reserve(cpu_device_of(device),
                                 cpu_sample_workspace(device, n_tokens, max_rows), error);
}

void cpu_sample(struct device *device, const struct sample_args *args)
{
    struct cpu_device *cpu = cpu_device_of(device);
    struct sample_run run = {args, cpu->rows, cpu->workspace.host};
    assert(args->logits.dtype == DTYPE_F32 && args->tokens.dtype == DTYPE_I32);
    assert(args->rows.dtype == DTYPE_I32 && args->rows.cols == SAMPLE_ROW_WORDS);
    run_rows(cpu, sample_task, &run, args->logits.rows);
}

/* --- logprobs --------------------------------------------------------------------------------- */

struct logprobs_run {
    const struct logprobs_args *args;
    const struct row_kernels *kernels;
    uint8_t *workspace;
};

/* The first n in rank, of those that are numbers; -1 behind them. Most tokens only look at the
 * list's end. */
static void find_top(const float *logits, int32_t n_tokens, int32_t *top, int n)
{
    int found = 0;
    for (int32_t token = 0; token < n_tokens && n > 0; token++) {
        float logit = logits[token];
        if (isnan(logit) || (found == n && !(logit > logits[top[n - 1]])))
            continue;
        int at = found < n ? found++ : n - 1;
        for (; at > 0 && logit > logits[top[at - 1]]; at--)
            top[at] = top[at - 1];
        top[at] = token;
    }
    for (; found < n; found++)
        top[found] = -1;
}

static void logprobs_task(void *context, int row, int worker)
{
    const struct logprobs_run *run = context;
    const struct logprobs_args *args = run->args;
    int32_t token = *(const int32_t *)tensor_at(&args->tokens, row), n = args->logits.cols;
    const float *logits = tensor_at(&args->logits, row);
    float *logprob = tensor_at(&args->logprobs, row);
    struct drawing d = {
        .n = n, .weights = (float *)(void *)(run->workspace + (size_t)worker * worker_bytes(n))};
    int32_t first = first_in_rank(logits, n);
    double log_sum = NAN;
    if (first >= 0 && !isinf(logits[first])) {
        run->kernels->weigh(logits, logits[first], 1.0f, d.weights, n);
        log_sum = (double)logits[first] + log((double)sum_weights(&d) * 0x1p-40);
    }
    *logprob = token >= 0 ? (float)((double)logits[token] - log_sum) : NAN;
    if (args->top_tokens.cols == 0)
        return;
    int32_t *top = tensor_at(&args->top_tokens, row);
    float *top_logprobs = tensor_at(&args->top_logprobs, row);
    find_top(logits, n, top, args->top_tokens.cols);
    for (int32_t k = 0; k < args->top_tokens.cols; k++)
        top_logprobs[k] = top[k] >= 0 ? (float)((double)logits[top[k]] - log_sum) : NAN;
}

void cpu_logprobs(struct device *device, const struct logprobs_args *args)
{
    struct cpu_device *cpu = cpu_device_of(device);
    struct logprobs_run run = {args, cpu->rows, cpu->workspace.host};
    assert(args->logits.dtype == DTYPE_F32 && args->tokens.dtype == DTYPE_I32);
    assert(args->top_tokens.cols == args->top_logprobs.cols);
    run_rows(cpu, logprobs_task, &run, args->logits.rows);
}
