#include "engine/sampler.h"

#include "base/size.h"

#include <assert.h>
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

size_t token_history_bytes(int32_t vocab_size)
{
    struct token_history *h = NULL;
    return (size_t)vocab_size * (sizeof *h->distinct + sizeof *h->n_outputs + sizeof *h->is_seen);
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

uint64_t sampler_bits(uint64_t seed, uint32_t choice, int64_t position, uint32_t purpose)
{
    return mix(mix(mix(seed) ^ (uint64_t)choice << 32 ^ purpose) ^ (uint64_t)position);
}

/* --- memory ----------------------------------------------------------------------------------- */

/* The next array of `bytes` in the memory at `host`; only counted where there is none yet. */
static void *take(uint8_t *host, size_t *used, size_t bytes)
{
    void *at = host ? host + *used : NULL;
    *used += size_round_up(bytes, 64);
    return at;
}

/* A step's results: the tokens first, which are read alone where nobody wants logprobs. */
static void lay_out_results(struct drawn_step *step, size_t rows, uint8_t *host, size_t *used)
{
    size_t tops = rows * SAMPLER_MAX_LOGPROBS;
    step->tokens = take(host, used, rows * sizeof *step->tokens);
    step->logprobs = take(host, used, rows * sizeof *step->logprobs);
    step->top_tokens = take(host, used, tops * sizeof *step->top_tokens);
    step->top_logprobs = take(host, used, tops * sizeof *step->top_logprobs);
}

/* Bytes of what the device has of the arrays, and of all. */
struct sampler_sizes {
    size_t device, host;
};

/* Lays the arrays out one behind another. */
static struct sampler_sizes lay_out(struct sampler *s, uint8_t *host)
{
    size_t rows = (size_t)s->max_rows, used = 0;
    struct sampler_sizes sizes;
    s->rows = take(host, &used, rows * sizeof *s->rows);
    s->edits = take(host, &used, (size_t)s->max_edits * sizeof *s->edits);
    lay_out_results(&s->steps[0], rows, host, &used);
    sizes.device = used;
    for (int i = 1; i < SAMPLER_STEPS; i++)
        lay_out_results(&s->steps[i], rows, host, &used);
    for (int i = 0; i < SAMPLER_STEPS; i++)
        s->steps[i].rows = take(host, &used, rows * sizeof *s->steps[i].rows);
    sizes.host = used;
    return sizes;
}

/* Of one step. */
static size_t results_bytes(int32_t max_rows)
{
    struct drawn_step step;
    size_t used = 0;
    lay_out_results(&step, (size_t)max_rows, NULL, &used);
    return used;
}

/* A row edits a token at most once, so that the edits of any one row fit. */
static struct sampler sampler_of_size(int32_t n_tokens, int32_t max_rows)
{
    return (struct sampler){.n_tokens = n_tokens, .max_rows = max_rows, .max_edits = n_tokens};
}

size_t sampler_device_bytes(int32_t n_tokens, int32_t max_rows)
{
    struct sampler s = sampler_of_size(n_tokens, max_rows);
    return lay_out(&s, NULL).device;
}

size_t sampler_host_bytes(int32_t n_tokens, int32_t max_rows)
{
    struct sampler s = sampler_of_size(n_tokens, max_rows);
    return lay_out(&s, NULL).host + (size_t)n_tokens * sizeof *s.places;
}

enum status sampler_init(struct sampler *s, struct device *device, int32_t n_tokens,
                         int32_t max_rows, struct error *error)
{
    *s = sampler_of_size(n_tokens, max_rows);
    if (results_bytes(max_rows) > DEVICE_MAX_READ)
        return error_set(error, ERROR_LIMIT,
                         "a step of %d rows with logits; their results must fit %d bytes", max_rows,
                         (int)DEVICE_MAX_READ);
    s->device = device;
    struct sampler_sizes sizes = lay_out(s, NULL);
    s->places = calloc((size_t)n_tokens, sizeof *s->places);
    s->host = calloc(1, sizes.host);
    if (!s->places || !s->host) {
        sampler_done(s);
        return error_memory(error, sampler_host_bytes(n_tokens, max_rows));
    }
    lay_out(s, s->host);
    enum status status = device->table->sample_reserve(device, n_tokens, max_rows, error);
    if (status == OK)
        status = device->table->buffer_alloc(device, sizes.device, &s->memory, error);
    if (status != OK)
        sampler_done(s);
    return status;
}

void sampler_done(struct sampler *s)
{
    if (s->device)
        s->device->table->buffer_free(s->device, &s->memory);
    free(s->places);
    free(s->host);
    *s = (struct sampler){0};
}

/* The device's copy of rows [first, first + rows) of one of the arrays. */
static struct tensor on_device(const struct sampler *s, const void *array, enum dtype dtype,
                               int32_t first, int32_t rows, int32_t cols)
{
    struct tensor t = {.buffer = &s->memory,
                       .offset = (size_t)((const uint8_t *)array - (const uint8_t *)s->host),
                       .dtype = dtype,
                       .rows = rows,
                       .cols = cols,
                       .stride = cols};
    return tensor_rows(t, first, rows);
}

static enum status upload(struct sampler *s, const void *array, size_t bytes, struct error *error)
{
    size_t offset = (size_t)((const uint8_t *)array - (const uint8_t *)s->host);
    if (bytes == 0)
        return OK;
    return s->device->table->buffer_write(s->device, &s->memory, offset, array, bytes, error);
}

struct tensor sampler_tokens(const struct sampler *s)
{
    return on_device(s, s->steps[0].tokens, DTYPE_I32, 0, s->max_rows, 1);
}

/* --- what the device is told ------------------------------------------------------------------ */

bool sampling_params_has_penalty(const struct sampling_params *p)
{
    return p->repetition_penalty != 1.0f || p->presence_penalty != 0.0f ||
           p->frequency_penalty != 0.0f;
}

/* The edit of a token in the row whose edits are being made; NULL if there is no place for it. */
static struct logit_edit *edit_of(struct sampler *s, int32_t row, int32_t token)
{
    if (token >= s->n_tokens) /* the vocabulary's padding */
        return &s->ignored;
    if (!s->places[token]) {
        if (s->n_edits == s->max_edits)
            return NULL;
        s->edits[s->n_edits] = (struct logit_edit){.row = row, .token = token, .penalty = 1.0f};
        s->places[token] = ++s->n_edits;
    }
    return &s->edits[s->places[token] - 1];
}

static bool add_penalties(struct sampler *s, int32_t row, const struct sampling_params *p,
                          const struct token_history *h)
{
    for (int32_t i = 0; i < h->n_distinct; i++) {
        int32_t token = h->distinct[i], n = h->n_outputs[token];
        struct logit_edit *e = edit_of(s, row, token);
        if (!e)
            return false;
        e->penalty = p->repetition_penalty;
        if (n > 0)
            e->minus = p->presence_penalty + p->frequency_penalty * (float)n;
    }
    return true;
}

/* Adds the edits of a row; false, and none is added, if they do not fit behind those that are
 * there.
 */
static bool add_edits(struct sampler *s, int32_t row, const struct draw *draw)
{
    const struct sampling_params *p = draw->params;
    int32_t before = s->n_edits;
    bool fits = true;
    for (int32_t i = 0; i < p->n_biases && fits; i++) {
        struct logit_edit *e = edit_of(s, row, p->biases[i].token);
        if ((fits = e != NULL))
            e->bias += p->biases[i].bias;
    }
    if (fits && draw->history && sampling_params_has_penalty(p))
        fits = add_penalties(s, row, p, draw->history);
    for (int32_t i = 0; i < draw->n_banned && fits; i++) {
        struct logit_edit *e = edit_of(s, row, draw->banned[i]);
        if ((fits = e != NULL))
            e->bias = -INFINITY;
    }
    for (int32_t i = before; i < s->n_edits; i++)
        s->places[s->edits[i].token] = 0;
    if (!fits)
        s->n_edits = before;
    return fits;
}

static struct sample_row make_row(struct sampler *s, const struct draw *draw)
{
    const struct sampling_params *p = draw->params;
    struct sample_row row = {.least = 1, .token = -1};
    float inverse = 1.0f / p->temperature;
    if (draw->is_given)
        row.token = draw->given < s->n_tokens ? draw->given : 0;
    /* The last: so cold that the first in rank alone is left. */
    if (draw->is_given || p->temperature == 0.0f || p->top_k == 1 || isinf(inverse))
        return row;
    row.inverse = inverse;
    row.number = sampler_bits(p->seed, p->choice, draw->position, PURPOSE_TOKEN);
    row.top_k = p->top_k;
    double least = ceil((double)p->min_p * (double)(1ull << SAMPLE_WEIGHT_BITS));
    row.least = least > 1.0 ? (uint64_t)least : 1;
    if (p->top_p < 1.0f)
        row.share = p->top_p > 0x1p-32f ? (uint32_t)(p->top_p * 0x1p32f) : 1;
    s->uses |= SAMPLE_DRAWS | (row.top_k ? SAMPLE_TOP_K : 0u) | (row.share ? SAMPLE_TOP_P : 0u) |
               (row.least > 1 ? SAMPLE_MIN_P : 0u);
    return row;
}

/* Brings as many draws from `first` on to the device as have room for their edits. */
static enum status upload_draws(struct sampler *s, int32_t first, struct error *error)
{
    s->first = s->end = first;
    s->n_edits = 0;
    s->uses = 0;
    while (s->end < s->n_draws && add_edits(s, s->end - first, &s->draws[s->end])) {
        s->rows[s->end - first] = make_row(s, &s->draws[s->end]);
        s->end++;
    }
    size_t rows = (size_t)(s->end - first), edits = (size_t)s->n_edits;
    enum status status = upload(s, s->rows, rows * sizeof *s->rows, error);
    return status == OK ? upload(s, s->edits, edits * sizeof *s->edits, error) : status;
}

enum status sampler_prepare(struct sampler *s, const struct draw *draws, int32_t n,
                            struct error *error)
{
    assert(n <= s->max_rows);
    s->draws = draws;
    s->n_draws = n;
    return upload_draws(s, 0, error);
}

/* --- drawing ---------------------------------------------------------------------------------- */

/* Asks for the logprobs of those draws [first, end) that want them, neighbours that want as many
 * together. */
static void queue_logprobs(struct sampler *s, struct device *ops, const struct tensor *logits)
{
    const struct drawn_step *at = &s->steps[0]; /* as the device has them */
    for (int32_t i = s->first, next; i < s->end; i = next) {
        int32_t n_top = s->draws[i].params->n_logprobs;
        for (next = i + 1; next < s->end && s->draws[next].params->n_logprobs == n_top; next++)
            ;
        if (n_top < 0)
            continue;
        struct logprobs_args args = {
            .logits = tensor_rows(*logits, i, next - i),
            .tokens = on_device(s, at->tokens, DTYPE_I32, i, next - i, 1),
            .logprobs = on_device(s, at->logprobs, DTYPE_F32, i, next - i, 1),
            .top_tokens =
                on_device(s, at->top_tokens, DTYPE_I32, i, next - i, SAMPLER_MAX_LOGPROBS),
            .top_logprobs =
                on_device(s, at->top_logprobs, DTYPE_F32, i, next - i, SAMPLER_MAX_LOGPROBS)};
        args.top_tokens.cols = args.top_logprobs.cols = n_top;
        device_logprobs(ops, &args);
    }
}

static bool wants_logprobs(const struct sampler *s)
{
    for (int32_t i = s->first; i < s->end; i++)
        if (s->draws[i].params->n_logprobs >= 0)
            return true;
    return false;
}

/* Of the draws that are on the device. */
static void queue_draws(struct sampler *s, struct device *ops, const struct tensor *logits)
{
    int32_t n = s->end - s->first;
    struct edit_logits_args edit = {
        .logits = tensor_rows(*logits, s->first, n),
        .edits = on_device(s, s->edits, DTYPE_I32, 0, s->n_edits, LOGIT_EDIT_WORDS)};
    if (s->n_edits > 0)
        device_edit_logits(ops, &edit);
    device_sample(
        ops, &(struct sample_args){.logits = tensor_rows(*logits, s->first, n),
                                   .rows = on_device(s, s->rows, DTYPE_I32, 0, n, SAMPLE_ROW_WORDS),
                                   .tokens = tensor_rows(sampler_tokens(s), s->first, n),
                                   .uses = s->uses});
    if (!wants_logprobs(s))
        return;
    edit.is_undo = true; /* logprobs are of the model's own distribution */
    if (s->n_edits > 0)
        device_edit_logits(ops, &edit);
    queue_logprobs(s, ops, logits);
}

/* Keeps of the draws what is to be known when they are read. */
static void keep_draws(const struct sampler *s, struct drawn_step *step)
{
    step->n = s->n_draws;
    for (int32_t i = 0; i < s->n_draws; i++)
        step->rows[i] = (struct drawn_row){.n_top = s->draws[i].params->n_logprobs,
                                           .given = s->draws[i].is_given ? s->draws[i].given : -1};
}

enum status sampler_queue(struct sampler *s, struct device *ops, const struct tensor *logits,
                          struct error *error)
{
    const struct device_table *table = s->device->table;
    struct drawn_step *step = &s->steps[s->n_queued % SAMPLER_STEPS];
    struct tensor known = tensor_cols(*logits, 0, s->n_tokens), tokens = sampler_tokens(s);
    bool has_logprobs = false;
    assert(s->n_queued - s->n_taken < SAMPLER_STEPS);
    while (s->n_draws > 0) {
        queue_draws(s, ops, &known);
        has_logprobs |= wants_logprobs(s);
        if (s->end == s->n_draws)
            break;
        enum status status = upload_draws(s, s->end, error);
        if (status != OK)
            return status;
    }
    keep_draws(s, step);
    size_t bytes = has_logprobs ? results_bytes(s->max_rows) : (size_t)s->n_draws * sizeof(int32_t);
    enum status status = table->read_queue(s->device, &s->memory, tokens.offset, step->tokens,
                                           bytes, (int)(s->n_queued % SAMPLER_STEPS), error);
    s->n_queued += status == OK;
    return status;
}

static void fill_sample(const struct sampler *s, const struct drawn_step *step, int32_t i,
                        struct sample *out)
{
    const struct drawn_row *row = &step->rows[i];
    *out = (struct sample){.token = row->given >= 0 ? row->given : step->tokens[i]};
    if (row->n_top < 0)
        return;
    const int32_t *top = step->top_tokens + (size_t)i * SAMPLER_MAX_LOGPROBS;
    const float *logprobs = step->top_logprobs + (size_t)i * SAMPLER_MAX_LOGPROBS;
    out->logprob = out->token < s->n_tokens ? step->logprobs[i] : -INFINITY;
    for (; out->n_top < row->n_top && top[out->n_top] >= 0; out->n_top++)
        out->top[out->n_top] = (struct token_logprob){top[out->n_top], logprobs[out->n_top]};
}

enum status sampler_take(struct sampler *s, struct sample *out, struct error *error)
{
    int place = (int)(s->n_taken % SAMPLER_STEPS);
    const struct drawn_step *step = &s->steps[place];
    assert(s->n_taken != s->n_queued);
    s->n_taken++;
    enum status status = s->device->table->read_wait(s->device, place, error);
    for (int32_t i = 0; i < step->n && status == OK; i++)
        fill_sample(s, step, i, &out[i]);
    return status;
}
