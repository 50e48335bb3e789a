#include "engine/sampler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What a random number is drawn for; later purposes (acceptance of drafts) get their own. */
enum { PURPOSE_TOKEN = 0 };

struct sampling_params sampling_params_default(void)
{
    return (struct sampling_params){
        .top_p = 1.0f, .repetition_penalty = 1.0f, .n_logprobs = -1, .seed = 0};
}

static enum status check_range(const char *name, double value, double min, double max,
                               struct error *error)
{
    if (value >= min && value <= max)
        return OK;
    return error_set(error, ERROR_INVALID, "%s is %g; it must be from %g to %g", name, value, min,
                     max);
}

enum status sampling_params_check(const struct sampling_params *p, int32_t vocab_size,
                                  struct error *error)
{
    struct {
        const char *name;
        double value, min, max;
    } ranges[] = {
        {"temperature", p->temperature, 0, 100},
        {"top_k", p->top_k, 0, INT32_MAX},
        {"top_p", p->top_p, 1e-9, 1},
        {"min_p", p->min_p, 0, 1},
        {"repetition_penalty", p->repetition_penalty, 1e-3, 1e3},
        {"presence_penalty", p->presence_penalty, -2, 2},
        {"frequency_penalty", p->frequency_penalty, -2, 2},
        {"logprobs", p->n_logprobs, -1, SAMPLER_MAX_LOGPROBS},
    };
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++) {
        enum status status =
            check_range(ranges[i].name, ranges[i].value, ranges[i].min, ranges[i].max, error);
        if (status != OK)
            return status;
    }
    for (int32_t i = 0; i < p->n_biases; i++) {
        if (p->biases[i].token < 0 || p->biases[i].token >= vocab_size)
            return error_set(error, ERROR_INVALID,
                             "logit_bias names token %d; the vocabulary has ids 0 to %d",
                             p->biases[i].token, vocab_size - 1);
        enum status status = check_range("logit_bias", p->biases[i].bias, -100, 100, error);
        if (status != OK)
            return status;
    }
    return OK;
}

enum status token_history_init(struct token_history *h, int32_t vocab_size, struct error *error)
{
    *h = (struct token_history){.vocab_size = vocab_size};
    size_t n = (size_t)vocab_size;
    h->distinct = malloc(n * sizeof *h->distinct);
    h->n_outputs = calloc(n, sizeof *h->n_outputs);
    h->is_seen = calloc(n, sizeof *h->is_seen);
    if (h->distinct && h->n_outputs && h->is_seen)
        return OK;
    token_history_done(h);
    return error_memory(error, n * (2 * sizeof(int32_t) + 1));
}

void token_history_done(struct token_history *h)
{
    free(h->distinct);
    free(h->n_outputs);
    free(h->is_seen);
    *h = (struct token_history){0};
}

void token_history_clear(struct token_history *h)
{
    for (int32_t i = 0; i < h->n_distinct; i++) {
        h->n_outputs[h->distinct[i]] = 0;
        h->is_seen[h->distinct[i]] = false;
    }
    h->n_distinct = 0;
}

void token_history_add(struct token_history *h, int32_t token, bool is_output)
{
    if (!h->is_seen[token]) {
        h->is_seen[token] = true;
        h->distinct[h->n_distinct++] = token;
    }
    h->n_outputs[token] += is_output;
}

/* SplitMix64's finaliser (Steele, Lea, Flood 2014): every input bit reaches every output bit. */
static uint64_t mix(uint64_t x)
{
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

double sampler_uniform(uint64_t seed, uint32_t choice, int64_t position, uint32_t purpose)
{
    uint64_t bits = mix(mix(mix(seed) ^ (uint64_t)choice << 32 ^ purpose) ^ (uint64_t)position);
    return (double)(bits >> 11) * 0x1p-53;
}

enum status sampler_init(struct sampler *s, int32_t vocab_size, struct error *error)
{
    s->vocab_size = vocab_size;
    size_t n = (size_t)vocab_size;
    s->candidates = malloc(n * sizeof *s->candidates);
    s->raw = malloc(n * sizeof *s->raw);
    if (s->candidates && s->raw)
        return OK;
    sampler_done(s);
    return error_memory(error, n * (sizeof *s->candidates + sizeof *s->raw));
}

void sampler_done(struct sampler *s)
{
    free(s->candidates);
    free(s->raw);
    *s = (struct sampler){0};
}

/* The most likely token, the lowest id among equals; -1 if no logit is a number. */
static int32_t argmax(const float *logits, int32_t n)
{
    int32_t best = -1;
    float max = -INFINITY;
    for (int32_t i = 0; i < n; i++)
        if (logits[i] > max) {
            max = logits[i];
            best = i;
        }
    return best;
}

static bool has_penalty(const struct sampling_params *p)
{
    return p->repetition_penalty != 1.0f || p->presence_penalty != 0.0f ||
           p->frequency_penalty != 0.0f;
}

static void apply_penalties(const struct sampling_params *p, const struct token_history *h,
                            float *logits)
{
    for (int32_t i = 0; i < h->n_distinct; i++) {
        int32_t token = h->distinct[i], n = h->n_outputs[token];
        float l = logits[token];
        l = l > 0.0f ? l / p->repetition_penalty : l * p->repetition_penalty;
        if (n > 0)
            l -= p->presence_penalty + p->frequency_penalty * (float)n;
        logits[token] = l;
    }
}

static bool is_before(struct candidate a, struct candidate b)
{
    return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
}

/* Restores a heap whose first is the most likely, after heap[i] changed. */
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

/* Takes candidates out of a heap, most likely first: O(n) to start, O(log n) for each. Those taken
 * are kept behind the shrinking heap, so that the k-th is heap[n_all - 1 - k]. */
struct selection {
    struct candidate *heap;
    int32_t n_left, n_all;
};

static void selection_start(struct selection *s, struct candidate *candidates, int32_t n)
{
    *s = (struct selection){.heap = candidates, .n_left = n, .n_all = n};
    for (int32_t i = n / 2; i-- > 0;)
        sift_down(candidates, n, i);
}

static struct candidate selection_next(struct selection *s)
{
    struct candidate top = s->heap[0];
    s->heap[0] = s->heap[--s->n_left];
    if (s->n_left > 0)
        sift_down(s->heap, s->n_left, 0);
    s->heap[s->n_left] = top;
    return top;
}

/* The n_top best of s->raw, and the logarithm of its softmax's denominator. */
static void find_logprobs(struct sampler *s, int32_t n_top, struct sample *out, double *log_sum)
{
    const float *logits = s->raw;
    int32_t best = argmax(logits, s->vocab_size), n = 0;
    double sum = 0.0, max = best < 0 ? 0.0 : logits[best];
    for (int32_t i = 0; i < s->vocab_size; i++) {
        if (isnan(logits[i]))
            continue;
        sum += exp(logits[i] - max);
        s->candidates[n++] = (struct candidate){logits[i], i};
    }
    *log_sum = max + log(sum);
    struct selection selection;
    selection_start(&selection, s->candidates, n);
    for (out->n_top = 0; out->n_top < n_top && out->n_top < n; out->n_top++) {
        struct candidate c = selection_next(&selection);
        out->top[out->n_top] = (struct token_logprob){c.token, (float)((double)c.logit - *log_sum)};
    }
}

/* Tokens this far (in units of temperature) below the best together weigh less than 2^18 e^-30,
 * which a float top_p below 1 cannot tell from nothing. */
static const float negligible = 30.0f;

static struct candidate selection_get(struct selection *s, int32_t k)
{
    while (s->n_all - s->n_left <= k)
        selection_next(s);
    return s->heap[s->n_all - 1 - k];
}

/* Draws from softmax(logits / temperature) cut by top-k, top-p and min-p. */
static int32_t draw_filtered(struct sampler *s, const struct sampling_params *p, double u,
                             const float *logits, float max)
{
    double inverse = 1.0 / p->temperature, total = 0.0, kept = 0.0;
    float floor = max - negligible * p->temperature;
    int32_t n = 0, n_kept = 0;
    for (int32_t i = 0; i < s->vocab_size; i++)
        if (logits[i] >= floor)
            s->candidates[n++] = (struct candidate){logits[i], i};
    struct selection selection;
    selection_start(&selection, s->candidates, n);
    /* top-p is a share of the mass that top-k leaves. */
    int32_t n_most = p->top_k > 0 && p->top_k < n ? p->top_k : n;
    for (int32_t i = 0; i < n_most && p->top_p < 1.0f; i++) {
        struct candidate c = n_most < n ? selection_get(&selection, i) : s->candidates[i];
        total += exp((c.logit - max) * inverse);
    }
    for (; n_kept < n_most; n_kept++) {
        double weight = exp((selection_get(&selection, n_kept).logit - max) * inverse);
        bool is_enough = n_kept > 0 && p->top_p < 1.0f && kept >= p->top_p * total;
        if (is_enough || weight < p->min_p)
            break;
        kept += weight;
    }
    double target = u * kept;
    for (int32_t i = 0; i + 1 < n_kept; i++) {
        struct candidate c = selection_get(&selection, i);
        target -= exp((c.logit - max) * inverse);
        if (target < 0.0)
            return c.token;
    }
    return selection_get(&selection, n_kept - 1).token;
}

/* Draws from softmax(logits / temperature) over the whole vocabulary, in order of ids. */
static int32_t draw_plain(const struct sampler *s, float temperature, double u, const float *logits,
                          float max)
{
    double inverse = 1.0 / temperature, total = 0.0;
    for (int32_t i = 0; i < s->vocab_size; i++)
        if (logits[i] > -INFINITY) /* false for NaN too */
            total += exp((logits[i] - max) * inverse);
    double target = u * total;
    int32_t last = 0;
    for (int32_t i = 0; i < s->vocab_size; i++) {
        if (!(logits[i] > -INFINITY))
            continue;
        last = i;
        target -= exp((logits[i] - max) * inverse);
        if (target < 0.0)
            break;
    }
    return last;
}

enum status sampler_draw(struct sampler *s, const struct sampling_params *p,
                         const struct token_history *history, int64_t position, float *logits,
                         struct sample *out, struct error *error)
{
    *out = (struct sample){0};
    double log_sum = 0.0;
    if (p->n_logprobs >= 0) {
        memcpy(s->raw, logits, (size_t)s->vocab_size * sizeof *logits);
        find_logprobs(s, p->n_logprobs, out, &log_sum);
    }
    for (int32_t i = 0; i < p->n_biases; i++)
        logits[p->biases[i].token] += p->biases[i].bias;
    if (history && has_penalty(p))
        apply_penalties(p, history, logits);
    int32_t best = argmax(logits, s->vocab_size);
    if (best < 0 || !isfinite(logits[best]))
        return error_set(error, ERROR_INVALID,
                         "the model produced no finite logit at output position %lld; its weights "
                         "are damaged or overflow",
                         (long long)position);
    out->token = best;
    if (p->temperature > 0.0f && p->top_k != 1) {
        double u = sampler_uniform(p->seed, p->choice, position, PURPOSE_TOKEN);
        bool is_filtered = p->top_k > 0 || p->top_p < 1.0f || p->min_p > 0.0f;
        out->token = is_filtered ? draw_filtered(s, p, u, logits, logits[best])
                                 : draw_plain(s, p->temperature, u, logits, logits[best]);
    }
    if (p->n_logprobs >= 0)
        out->logprob = (float)((double)s->raw[out->token] - log_sum);
    return OK;
}
