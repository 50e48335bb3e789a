/* The public API over the engine: opening a model, sessions that keep their cache, the loop that
 * turns a prompt into tokens and tokens into text. */
#include "csgl.h"

#include "base/system.h"
#include "device/comm/comm.h"
#include "device/cpu/cpu.h"
#include "engine/engine.h"
#include "engine/sampler.h"
#include "scheduler/stop_strings.h"
#include "text_model.h"
#include "tokenizer/detokenizer.h"
#include "tokenizer/encoder.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE_SIZE = 16, JSON_TREE_MAX = 512 << 20, MAX_SESSIONS = 1024 };

struct csgl_engine {
    struct checkpoint *checkpoint;
    struct text_model text;
    struct device *device;
    struct engine *engine;
    struct encoder *encoder;
    struct sampler sampler;
    struct batch batch;
    int32_t max_step_tokens;
};

struct csgl_session {
    struct csgl_engine *engine;
    int32_t row;
    int32_t *tokens; /* [context_length] what the cache holds: cache->length[row] of them */
    struct token_history history;
    _Atomic int is_cancelled;
};

_Static_assert((int)CSGL_ERROR_CANCELLED == (int)ERROR_CANCELLED,
               "public statuses are the internal ones");
_Static_assert((int)CSGL_ACTIVATIONS_INT8 == (int)ACTIVATIONS_INT8,
               "public activation modes are the internal ones");

const char *csgl_version(void)
{
    return CSGL_VERSION;
}

/* Hands an internal error to the caller. */
static int give(struct csgl_error *out, enum status status, const struct error *error)
{
    if (out) {
        out->status = (int)status;
        memcpy(out->message, error->message, sizeof out->message);
    }
    return (int)status;
}

void csgl_config_init(struct csgl_config *config)
{
    *config =
        (struct csgl_config){.max_sessions = 1, .max_prefill_length = 512, .memory_ratio = 0.9};
}

static enum status check_config(const struct csgl_config *c, struct error *error)
{
    if (!c->model_path)
        return error_set(error, ERROR_INVALID, "model_path is not set");
    if (c->max_sessions < 1 || c->max_sessions > MAX_SESSIONS)
        return error_set(error, ERROR_INVALID, "max_sessions is %d; 1 to %d are possible",
                         c->max_sessions, MAX_SESSIONS);
    if (c->max_prefill_length < 1 || c->max_prefill_length > 1 << 16)
        return error_set(error, ERROR_INVALID, "max_prefill_length is %d; 1 to 65536 are possible",
                         c->max_prefill_length);
    if (!(c->memory_ratio > 0.0 && c->memory_ratio <= 1.0))
        return error_set(error, ERROR_INVALID, "memory_ratio is %g; it must be above 0, at most 1",
                         c->memory_ratio);
    if (c->context_length < 0 || c->threads < 0 || !(c->kv_cache_gb >= 0.0))
        return error_set(error, ERROR_INVALID,
                         "context_length, threads and kv_cache_gb must not be negative");
    if (c->activations < CSGL_ACTIVATIONS_AUTO || c->activations > CSGL_ACTIVATIONS_INT8 ||
        c->kv_cache_dtype < CSGL_KV_AUTO || c->kv_cache_dtype > CSGL_KV_F32)
        return error_set(error, ERROR_INVALID,
                         "activations or kv_cache_dtype is not one of csgl.h");
    return OK;
}

static enum status open_parts(struct csgl_engine *e, const struct csgl_config *c,
                              struct error *error)
{
    static const enum dtype kv_dtypes[] = {DTYPE_BF16, DTYPE_BF16, DTYPE_F16, DTYPE_F32};
    struct cpu_options cpu = {.n_threads = c->threads,
                              .isa = cpu_isa_best(),
                              .activations = (enum activations)c->activations};
    e->max_step_tokens =
        c->max_prefill_length > c->max_sessions ? c->max_prefill_length : c->max_sessions;
    struct memory_request request = {.kv_dtype = kv_dtypes[c->kv_cache_dtype],
                                     .page_size = PAGE_SIZE,
                                     .max_running = c->max_sessions,
                                     .context_length = c->context_length,
                                     .max_step_tokens = e->max_step_tokens,
                                     .max_want = c->max_sessions,
                                     .memory_ratio = c->memory_ratio,
                                     .kv_cache_bytes =
                                         (uint64_t)(c->kv_cache_gb * 1024.0 * 1024.0 * 1024.0)};
    enum status status = checkpoint_open(&e->checkpoint, c->model_path, error);
    if (status == OK)
        status = text_model_open(&e->text, e->checkpoint, c->chat_template_path, error);
    if (status == OK)
        status = encoder_new(e->text.tokenizer, ENCODER_DEFAULT_CACHE_BYTES, &e->encoder, error);
    if (status == OK)
        status = cpu_device_open(&e->device, &cpu, error);
    if (status == OK)
        status = engine_open(&e->engine, e->checkpoint, e->device, comm_self(), &request,
                             c->on_progress, c->progress_context, error);
    if (status == OK)
        status = engine_batch_init(e->engine, &e->batch, error);
    if (status == OK)
        status = sampler_init(&e->sampler, engine_model(e->engine)->vocab_size, error);
    return status;
}

int csgl_open(struct csgl_engine **out, const struct csgl_config *config, struct csgl_error *error)
{
    struct error inner = {0};
    *out = NULL;
    enum status status = check_config(config, &inner);
    if (status != OK)
        return give(error, status, &inner);
    struct csgl_engine *e = calloc(1, sizeof *e);
    status = e ? open_parts(e, config, &inner) : error_memory(&inner, sizeof *e);
    if (status != OK) {
        csgl_close(e);
        return give(error, status, &inner);
    }
    *out = e;
    return CSGL_OK;
}

void csgl_close(struct csgl_engine *e)
{
    if (!e)
        return;
    sampler_done(&e->sampler);
    batch_done(&e->batch);
    engine_free(e->engine);
    if (e->device)
        e->device->table->close(e->device);
    encoder_free(e->encoder);
    text_model_done(&e->text);
    checkpoint_free(e->checkpoint);
    free(e);
}

int csgl_context_length(const struct csgl_engine *e)
{
    return engine_plan(e->engine)->context_length;
}

int csgl_vocab_size(const struct csgl_engine *e)
{
    return engine_model(e->engine)->vocab_size;
}

int csgl_session_open(struct csgl_session **out, struct csgl_engine *engine,
                      struct csgl_error *error)
{
    struct error inner = {0};
    *out = NULL;
    struct csgl_session *s = calloc(1, sizeof *s);
    if (!s)
        return give(error, error_memory(&inner, sizeof *s), &inner);
    s->engine = engine;
    s->row = kv_cache_open_row(engine_cache(engine->engine));
    enum status status = OK;
    if (s->row < 0)
        status = error_set(&inner, ERROR_LIMIT,
                           "all sessions of this engine are open; raise max_sessions or close one");
    size_t bytes = (size_t)csgl_context_length(engine) * sizeof *s->tokens;
    if (status == OK && !(s->tokens = malloc(bytes)))
        status = error_memory(&inner, bytes);
    if (status == OK)
        status = token_history_init(&s->history, csgl_vocab_size(engine), &inner);
    if (status != OK) {
        csgl_session_close(s);
        return give(error, status, &inner);
    }
    *out = s;
    return CSGL_OK;
}

void csgl_session_close(struct csgl_session *s)
{
    if (!s)
        return;
    if (s->row >= 0)
        kv_cache_close_row(engine_cache(s->engine->engine), s->row);
    token_history_done(&s->history);
    free(s->tokens);
    free(s);
}

void csgl_cancel(struct csgl_session *session)
{
    atomic_store(&session->is_cancelled, 1);
}

void csgl_request_init(struct csgl_request *request)
{
    *request = (struct csgl_request){.temperature = CSGL_UNSET,
                                     .top_k = CSGL_UNSET,
                                     .top_p = CSGL_UNSET,
                                     .min_p = CSGL_UNSET,
                                     .repetition_penalty = CSGL_UNSET,
                                     .presence_penalty = CSGL_UNSET,
                                     .frequency_penalty = CSGL_UNSET,
                                     .n_logprobs = -1};
}

/* --- one generation --------------------------------------------------------------------------- */

struct generation {
    struct csgl_session *session;
    const struct csgl_request *request;
    struct csgl_result *result;
    struct sampling_params params;
    struct logit_bias *biases;
    struct token_ids prompt;
    struct detokenizer detokenizer;
    struct stop_strings stop;
    struct str ready; /* text that can be handed out */
    int32_t max_tokens;
    double start, first_token;
};

static enum status parse_json(struct arena *arena, const char *text, const char *name,
                              enum json_type type, struct json *out, struct error *error)
{
    enum status status = json_parse(arena, text, strlen(text), out, error);
    if (status != OK)
        return error_prefix(error, "%s", name);
    if (out->type != type)
        return error_set(error, ERROR_INVALID, "%s must be a JSON %s", name,
                         type == JT_ARRAY ? "array" : "object");
    return OK;
}

/* Renders the chat and encodes it; control tokens come from the template, so none are added. */
static enum status encode_chat(struct generation *g, struct error *error)
{
    const struct csgl_request *r = g->request;
    struct csgl_engine *e = g->session->engine;
    struct arena arena = {.limit = JSON_TREE_MAX};
    struct json messages, tools, kwargs;
    struct chat_output output = {0};
    bool has_tools = r->tools_json != NULL;
    const struct chat_template *template =
        has_tools && e->text.tool_template ? e->text.tool_template : e->text.chat_template;
    enum status status = OK;
    if (!template)
        status = error_set(error, ERROR_UNSUPPORTED,
                           "%s has no chat template; give one with --chat-template, or a prompt "
                           "instead of messages",
                           checkpoint_path(e->checkpoint));
    if (status == OK)
        status = parse_json(&arena, r->messages_json, "messages", JT_ARRAY, &messages, error);
    if (status == OK && has_tools)
        status = parse_json(&arena, r->tools_json, "tools", JT_ARRAY, &tools, error);
    if (status == OK && r->template_kwargs_json)
        status = parse_json(&arena, r->template_kwargs_json, "chat_template_kwargs", JT_OBJECT,
                            &kwargs, error);
    struct chat_input input = {.messages = &messages,
                               .tools = has_tools ? &tools : NULL,
                               .kwargs = r->template_kwargs_json ? &kwargs : NULL,
                               .tokens = e->text.tokens,
                               .n_tokens = e->text.n_tokens,
                               .add_generation_prompt = true};
    if (status == OK)
        status = chat_template_render(template, &input, &output, error);
    if (status == OK)
        status =
            encoder_encode(e->encoder, str_z(&output.text), output.text.len, 0, &g->prompt, error);
    chat_output_done(&output);
    arena_done(&arena);
    return status;
}

static enum status encode_tokens(struct generation *g, struct error *error)
{
    const struct csgl_request *r = g->request;
    int32_t vocab_size = csgl_vocab_size(g->session->engine);
    if (r->n_tokens > INT32_MAX)
        return error_set(error, ERROR_LIMIT, "%zu prompt tokens are too many", r->n_tokens);
    for (size_t i = 0; i < r->n_tokens; i++)
        if (r->tokens[i] < 0 || r->tokens[i] >= vocab_size)
            return error_set(error, ERROR_INVALID,
                             "prompt token %zu is %d; the vocabulary has ids 0 to %d", i,
                             r->tokens[i], vocab_size - 1);
    g->prompt.ids = malloc((r->n_tokens + 1) * sizeof *g->prompt.ids);
    if (!g->prompt.ids)
        return error_memory(error, r->n_tokens * sizeof *g->prompt.ids);
    memcpy(g->prompt.ids, r->tokens, r->n_tokens * sizeof *g->prompt.ids);
    g->prompt.n = g->prompt.cap = r->n_tokens;
    return OK;
}

static enum status encode_prompt(struct generation *g, struct error *error)
{
    const struct csgl_request *r = g->request;
    struct csgl_engine *e = g->session->engine;
    enum status status;
    if ((r->prompt != NULL) + (r->messages_json != NULL) + (r->tokens != NULL) != 1)
        return error_set(error, ERROR_INVALID,
                         "a request has exactly one of prompt, messages_json and tokens");
    if (r->messages_json)
        status = encode_chat(g, error);
    else if (r->tokens)
        status = encode_tokens(g, error);
    else
        status = encoder_encode(e->encoder, r->prompt, strlen(r->prompt), ENCODE_ADD_SPECIAL,
                                &g->prompt, error);
    if (status != OK)
        return status;
    int context_length = csgl_context_length(e);
    if (g->prompt.n == 0)
        return error_set(error, ERROR_INVALID, "the prompt is empty");
    if (g->prompt.n >= (size_t)context_length)
        return error_set(error, ERROR_LIMIT,
                         "the prompt has %zu tokens and the context holds %d; shorten it or raise "
                         "--context-length",
                         g->prompt.n, context_length);
    int32_t room = (int32_t)((size_t)context_length - g->prompt.n);
    g->max_tokens = r->max_tokens > 0 && r->max_tokens < room ? r->max_tokens : room;
    return OK;
}

static float choose(double value, float otherwise)
{
    return value == CSGL_UNSET ? otherwise : (float)value;
}

static enum status read_params(struct generation *g, struct error *error)
{
    const struct csgl_request *r = g->request;
    struct csgl_engine *e = g->session->engine;
    struct sampling_params *p = &g->params;
    *p = e->text.defaults;
    p->temperature = choose(r->temperature, p->temperature);
    p->top_p = choose(r->top_p, p->top_p);
    p->min_p = choose(r->min_p, p->min_p);
    p->repetition_penalty = choose(r->repetition_penalty, p->repetition_penalty);
    p->presence_penalty = choose(r->presence_penalty, p->presence_penalty);
    p->frequency_penalty = choose(r->frequency_penalty, p->frequency_penalty);
    if (r->top_k != CSGL_UNSET) {
        if (!(r->top_k >= 0 && r->top_k <= INT32_MAX))
            return error_set(error, ERROR_INVALID, "top_k is %g; it must not be negative",
                             r->top_k);
        p->top_k = (int32_t)r->top_k;
    }
    p->seed = r->has_seed ? r->seed : system_random();
    p->n_logprobs = r->n_logprobs;
    if (r->max_tokens < 0)
        return error_set(error, ERROR_INVALID, "max_tokens is %d; it must not be negative",
                         r->max_tokens);
    if (r->n_biases > (size_t)csgl_vocab_size(e))
        return error_set(error, ERROR_LIMIT, "%zu logit biases are more than the vocabulary",
                         r->n_biases);
    if (r->n_biases) {
        g->biases = malloc(r->n_biases * sizeof *g->biases);
        if (!g->biases)
            return error_memory(error, r->n_biases * sizeof *g->biases);
        for (size_t i = 0; i < r->n_biases; i++)
            g->biases[i] = (struct logit_bias){r->bias_tokens[i], (float)r->biases[i]};
    }
    p->biases = g->biases;
    p->n_biases = (int32_t)r->n_biases;
    return sampling_params_check(p, csgl_vocab_size(e), error);
}

static bool is_cancelled(const struct generation *g)
{
    return atomic_load(&g->session->is_cancelled) != 0;
}

/* Runs n tokens of the session's row; they are then part of its cache. */
static enum status run_step(struct csgl_session *s, const int32_t *tokens, int32_t n,
                            enum batch_want want, struct error *error)
{
    struct csgl_engine *e = s->engine;
    struct kv_cache *cache = engine_cache(e->engine);
    int32_t length = cache->length[s->row];
    batch_clear(&e->batch);
    enum status status = batch_add(&e->batch, cache, s->row, tokens, n, want, error);
    if (status == OK)
        status = engine_step(e->engine, &e->batch, error);
    if (status == OK)
        memcpy(s->tokens + length, tokens, (size_t)n * sizeof *tokens);
    return status;
}

/* Keeps what the cache and the prompt have in common; the last prompt token is always computed. */
static int32_t reuse_prefix(struct generation *g)
{
    struct csgl_session *s = g->session;
    struct kv_cache *cache = engine_cache(s->engine->engine);
    int32_t n = 0, limit = cache->length[s->row];
    if ((size_t)limit >= g->prompt.n)
        limit = (int32_t)g->prompt.n - 1;
    while (n < limit && s->tokens[n] == g->prompt.ids[n])
        n++;
    if (!kv_cache_can_truncate(cache, s->row, n))
        n = 0;
    kv_cache_truncate(cache, s->row, n);
    return n;
}

static enum status prefill(struct generation *g, struct error *error)
{
    int32_t n = (int32_t)g->prompt.n, done = reuse_prefix(g);
    g->result->prompt_tokens = n;
    g->result->cached_tokens = done;
    while (done < n && !is_cancelled(g)) {
        int32_t chunk = n - done, max = g->session->engine->max_step_tokens;
        chunk = chunk < max ? chunk : max;
        enum status status = run_step(g->session, g->prompt.ids + done, chunk,
                                      done + chunk == n ? WANT_LAST : WANT_NONE, error);
        if (status != OK)
            return status;
        done += chunk;
    }
    return OK;
}

static enum status sample_token(struct generation *g, struct sample *sample, struct error *error)
{
    struct csgl_engine *e = g->session->engine;
    float *logits = engine_logits(e->engine, 0);
    /* Rows behind the tokenizer's last id are padding of the matrix. */
    for (int32_t i = tokenizer_size(e->text.tokenizer); i < csgl_vocab_size(e); i++)
        logits[i] = -INFINITY;
    return sampler_draw(&e->sampler, &g->params, &g->session->history, g->result->output_tokens,
                        logits, sample, error);
}

static void report_token(const struct generation *g, const struct sample *sample)
{
    int32_t ids[SAMPLER_MAX_LOGPROBS];
    float logprobs[SAMPLER_MAX_LOGPROBS];
    if (!g->request->on_token)
        return;
    for (int32_t i = 0; i < sample->n_top; i++) {
        ids[i] = sample->top[i].token;
        logprobs[i] = sample->top[i].logprob;
    }
    g->request->on_token(g->request->context, &(struct csgl_token){.id = sample->token,
                                                                   .logprob = sample->logprob,
                                                                   .n_top = sample->n_top,
                                                                   .top_ids = ids,
                                                                   .top_logprobs = logprobs});
}

/* Hands out the text that is ready. False if the caller wants no more. */
static bool hand_out(struct generation *g)
{
    bool goes_on = true;
    if (g->ready.len && g->request->on_text)
        goes_on = g->request->on_text(g->request->context, g->ready.data, g->ready.len) == 0;
    str_clear(&g->ready);
    return goes_on;
}

/* Adds a token's text. True when a stop string is complete. */
static enum status add_text(struct generation *g, int32_t token, bool *is_stopped,
                            struct error *error)
{
    struct detokenizer_piece piece;
    enum status status = detokenizer_push(&g->detokenizer, token, &piece, error);
    if (status != OK)
        return status;
    *is_stopped = stop_strings_push(&g->stop, piece.text, piece.len, &g->ready);
    if (!*is_stopped && !(piece.flags & TOKEN_SPECIAL))
        *is_stopped = stop_strings_push(&g->stop, piece.added, piece.added_len, &g->ready);
    return OK;
}

/* The text's end: what the detokenizer and the stop strings held back. */
static enum status flush_text(struct generation *g, struct error *error)
{
    struct detokenizer_piece piece;
    enum status status = detokenizer_finish(&g->detokenizer, &piece, error);
    if (status != OK)
        return status;
    if (!stop_strings_push(&g->stop, piece.text, piece.len, &g->ready))
        stop_strings_finish(&g->stop, &g->ready);
    hand_out(g);
    return OK;
}

/* Draws tokens until one ends the answer. `finish` is CANCELLED unless something else happens. */
static enum status decode(struct generation *g, struct error *error)
{
    struct csgl_session *s = g->session;
    const struct text_model *text = &s->engine->text;
    struct csgl_result *result = g->result;
    bool is_stopped = false;
    while (!is_cancelled(g)) {
        struct sample sample;
        enum status status = sample_token(g, &sample, error);
        if (status != OK)
            return status;
        result->output_tokens++;
        if (result->output_tokens == 1)
            g->first_token = system_seconds();
        report_token(g, &sample);
        token_history_add(&s->history, sample.token, true);
        if (!g->request->ignore_eos && text_model_is_eos(text, sample.token)) {
            result->finish = CSGL_FINISH_STOP;
            return flush_text(g, error);
        }
        status = add_text(g, sample.token, &is_stopped, error);
        if (status != OK)
            return status;
        if (!hand_out(g))
            return OK;
        if (is_stopped) {
            result->finish = CSGL_FINISH_STOP;
            return OK;
        }
        if (result->output_tokens == g->max_tokens) {
            result->finish = CSGL_FINISH_LENGTH;
            return flush_text(g, error);
        }
        status = run_step(s, &sample.token, 1, WANT_LAST, error);
        if (status != OK)
            return status;
    }
    return flush_text(g, error);
}

static enum status generate(struct generation *g, struct error *error)
{
    struct csgl_session *s = g->session;
    const struct csgl_request *r = g->request;
    enum status status = read_params(g, error);
    if (status == OK && r->n_stop > STOP_MAX_STRINGS)
        status =
            error_set(error, ERROR_LIMIT, "%zu stop strings were given; at most %d are possible",
                      r->n_stop, STOP_MAX_STRINGS);
    if (status == OK)
        status = stop_strings_init(&g->stop, r->stop, (int)r->n_stop, error);
    if (status == OK)
        status = encode_prompt(g, error);
    if (status != OK)
        return status;
    token_history_clear(&s->history);
    for (size_t i = 0; i < g->prompt.n; i++)
        token_history_add(&s->history, g->prompt.ids[i], false);
    g->result->finish = CSGL_FINISH_CANCELLED;
    status = prefill(g, error);
    if (status == OK)
        status = decode(g, error);
    return status;
}

int csgl_generate(struct csgl_session *session, const struct csgl_request *request,
                  struct csgl_result *result, struct csgl_error *error)
{
    struct error inner = {0};
    struct csgl_result unused;
    struct generation g = {.session = session,
                           .request = request,
                           .result = result ? result : &unused,
                           .start = system_seconds()};
    *g.result = (struct csgl_result){0};
    detokenizer_init(&g.detokenizer, session->engine->text.tokenizer);
    enum status status = generate(&g, &inner);
    double end = system_seconds();
    if (g.first_token == 0.0)
        g.first_token = end;
    g.result->prefill_seconds = g.first_token - g.start;
    g.result->decode_seconds = end - g.first_token;
    atomic_store(&session->is_cancelled, 0);
    detokenizer_done(&g.detokenizer);
    stop_strings_done(&g.stop);
    token_ids_done(&g.prompt);
    str_done(&g.ready);
    free(g.biases);
    return status == OK ? CSGL_OK : give(error, status, &inner);
}
