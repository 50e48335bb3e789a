/* The C library: the scheduler, its engine and a model's text side in one process, without sockets.
 */
#include "csgl_live.h"

#include "base/system.h"
#include "device/comm/comm.h"
#include "device/device_open.h"

#include <stdlib.h>
#include <string.h>

enum { PAGE_SIZE = 16, MAX_RUNNING = 1024, MAX_QUEUE = 1 << 16, SLOT_BITS = 20 };

/* A cancel is read between steps, so a step is kept short. */
static const double max_step_seconds = 0.25;

_Static_assert((int)CSGL_ERROR_CANCELLED == (int)ERROR_CANCELLED,
               "public statuses are the internal ones");
_Static_assert((int)CSGL_ACTIVATIONS_INT8 == (int)ACTIVATIONS_INT8,
               "public activation modes are the internal ones");
_Static_assert(MAX_RUNNING + MAX_QUEUE < 1 << SLOT_BITS, "an id holds a slot's number");

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

/* --- opening ---------------------------------------------------------------------------------- */

void csgl_config_init(struct csgl_config *config)
{
    *config = (struct csgl_config){
        .max_running = 1, .max_queue = 64, .max_prefill_length = 512, .memory_ratio = 0.9};
}

static enum status check_config(const struct csgl_config *c, struct error *error)
{
    if (!c->model_path)
        return error_set(error, ERROR_INVALID, "model_path is not set");
    if (c->max_running < 1 || c->max_running > MAX_RUNNING)
        return error_set(error, ERROR_INVALID, "max_running is %d; 1 to %d are possible",
                         c->max_running, MAX_RUNNING);
    if (c->max_queue < 1 || c->max_queue > MAX_QUEUE)
        return error_set(error, ERROR_INVALID, "max_queue is %d; 1 to %d are possible",
                         c->max_queue, MAX_QUEUE);
    if (c->max_prefill_length < 1 || c->max_prefill_length > 1 << 16)
        return error_set(error, ERROR_INVALID, "max_prefill_length is %d; 1 to 65536 are possible",
                         c->max_prefill_length);
    if (!(c->memory_ratio > 0.0 && c->memory_ratio <= 1.0))
        return error_set(error, ERROR_INVALID, "memory_ratio is %g; it must be above 0, at most 1",
                         c->memory_ratio);
    if (c->context_length < 0 || c->threads < 0 || c->num_mamba_slots < 0 ||
        !(c->kv_cache_gb >= 0.0) || !(c->mamba_cache_gb >= 0.0))
        return error_set(error, ERROR_INVALID,
                         "context_length, threads, kv_cache_gb, num_mamba_slots and mamba_cache_gb "
                         "must not be negative");
    if (c->activations < CSGL_ACTIVATIONS_AUTO || c->activations > CSGL_ACTIVATIONS_INT8 ||
        c->kv_cache_dtype < CSGL_KV_AUTO || c->kv_cache_dtype > CSGL_KV_INT4 ||
        c->mamba_ssm_dtype < CSGL_STATE_AUTO || c->mamba_ssm_dtype > CSGL_STATE_BF16)
        return error_set(error, ERROR_INVALID,
                         "activations, kv_cache_dtype or mamba_ssm_dtype is not one of csgl.h");
    if (c->quantization < CSGL_QUANTIZATION_NONE || c->quantization > CSGL_QUANTIZATION_MLX_Q8)
        return error_set(error, ERROR_INVALID, "quantization is not one of csgl.h");
    return OK;
}

static enum status open_engine(struct csgl_engine *e, const struct csgl_config *c,
                               struct error *error)
{
    struct cpu_options cpu = {.n_threads = c->threads,
                              .isa = cpu_isa_best(),
                              .activations = (enum activations)c->activations};
    struct memory_request request = {
        .kv_dtype = kv_dtype_of_word(c->kv_cache_dtype),
        .page_size = PAGE_SIZE,
        .max_running = c->max_running,
        .context_length = c->context_length,
        .max_step_tokens = c->max_prefill_length + c->max_running,
        .max_want = c->max_running,
        .memory_ratio = c->memory_ratio,
        .kv_cache_bytes = (uint64_t)(c->kv_cache_gb * 1024.0 * 1024.0 * 1024.0),
        .state_dtype = state_dtype_of_word(c->mamba_ssm_dtype),
        .n_states = c->num_mamba_slots,
        .state_bytes = (uint64_t)(c->mamba_cache_gb * 1024.0 * 1024.0 * 1024.0)};
    request.n_processes = 1;
    request.text_bytes = tokenizer_memory(e->text.tokenizer) + ENCODER_DEFAULT_CACHE_BYTES;
    enum status status = device_open(&e->device, c->device, &cpu, error);
    if (status == OK)
        status = engine_open(&e->engine, e->checkpoint, e->device, comm_self(), &request,
                             c->on_progress, c->progress_context, error);
    if (status == OK)
        status =
            engine_executor_init(&e->executor, e->engine, tokenizer_size(e->text.tokenizer), error);
    return status;
}

static void on_event(void *context, const struct token_event *event);

static enum status open_parts(struct csgl_engine *e, const struct csgl_config *c,
                              struct error *error)
{
    enum status status = c->random_weights ? checkpoint_open_random(&e->checkpoint, c->model_path,
                                                                    c->random_weights, error)
                                           : checkpoint_open(&e->checkpoint, c->model_path, error);
    if (status == OK)
        status = checkpoint_quantize_as(e->checkpoint, c->quantization, error);
    if (status == OK)
        status = text_model_open(&e->text, e->checkpoint, c->chat_template_path, error);
    if (status == OK)
        status = encoder_new(e->text.tokenizer, ENCODER_DEFAULT_CACHE_BYTES, &e->encoder, error);
    if (status == OK)
        status = open_engine(e, c, error);
    if (status != OK)
        return status;
    struct scheduler_options options = {.policy = POLICY_PREFILL_FIRST,
                                        .max_running = c->max_running,
                                        .max_queue = c->max_queue,
                                        .max_prefill_length = c->max_prefill_length,
                                        .max_step_seconds = max_step_seconds,
                                        .context_length = csgl_context_length(e),
                                        .vocab_size = csgl_vocab_size(e),
                                        .eos_ids = e->text.eos_ids,
                                        .n_eos = e->text.n_eos,
                                        .tokenizer = e->text.tokenizer};
    e->n_live = c->max_running + c->max_queue;
    e->live = calloc((size_t)e->n_live, sizeof *e->live);
    return e->live ? scheduler_new(&e->scheduler, engine_executor_table(&e->executor),
                                   engine_cache(e->engine), &options, on_event, e, error)
                   : error_memory(error, (size_t)e->n_live * sizeof *e->live);
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

static void free_live(struct live *l)
{
    detokenizer_done(&l->detokenizer);
    str_done(&l->text);
    l->id = 0;
}

static void end_profile(struct csgl_engine *e)
{
    if (!e->trace)
        return;
    scheduler_trace(e->scheduler, NULL);
    trace_free(e->trace);
    e->trace = NULL;
}

void csgl_close(struct csgl_engine *e)
{
    if (!e)
        return;
    end_profile(e);
    scheduler_free(e->scheduler);
    for (int i = 0; i < e->n_live && e->live; i++)
        if (e->live[i].id)
            free_live(&e->live[i]);
    free(e->live);
    engine_executor_done(&e->executor);
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

/* --- submitting ------------------------------------------------------------------------------- */

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

static float choose(double value, float otherwise)
{
    return value == CSGL_UNSET ? otherwise : (float)value;
}

static enum status read_params(const struct csgl_engine *e, const struct csgl_request *r,
                               struct sampling_params *p, struct error *error)
{
    *p = e->text.defaults;
    p->temperature = choose(r->temperature, p->temperature);
    p->top_p = choose(r->top_p, p->top_p);
    p->min_p = choose(r->min_p, p->min_p);
    p->repetition_penalty = choose(r->repetition_penalty, p->repetition_penalty);
    p->presence_penalty = choose(r->presence_penalty, p->presence_penalty);
    p->frequency_penalty = choose(r->frequency_penalty, p->frequency_penalty);
    p->seed = r->has_seed ? r->seed : system_random();
    p->n_logprobs = r->n_logprobs;
    if (r->top_k == CSGL_UNSET)
        return OK;
    if (!(r->top_k >= 0 && r->top_k <= INT32_MAX))
        return error_set(error, ERROR_INVALID, "top_k is %g; it must not be negative", r->top_k);
    p->top_k = (int32_t)r->top_k;
    return OK;
}

/* The request's biases as a new array, NULL for none. */
static enum status read_biases(const struct csgl_engine *e, const struct csgl_request *r,
                               struct logit_bias **out, struct error *error)
{
    *out = NULL;
    if (r->n_biases == 0)
        return OK;
    if (r->n_biases > (size_t)csgl_vocab_size(e))
        return error_set(error, ERROR_LIMIT,
                         "%zu logit biases are more than the vocabulary has ids", r->n_biases);
    struct logit_bias *biases = malloc(r->n_biases * sizeof *biases);
    if (!biases)
        return error_memory(error, r->n_biases * sizeof *biases);
    for (size_t i = 0; i < r->n_biases; i++)
        biases[i] = (struct logit_bias){r->bias_tokens[i], (float)r->biases[i]};
    *out = biases;
    return OK;
}

static struct live *take_slot(struct csgl_engine *e)
{
    for (int i = 0; i < e->n_live; i++) {
        struct live *l = &e->live[i];
        if (l->id)
            continue;
        l->id = ++l->n_uses << SLOT_BITS | (csgl_id)i;
        return l;
    }
    return NULL;
}

/* The request of this id, or NULL if it has ended. */
static struct live *find_live(const struct csgl_engine *e, csgl_id id)
{
    csgl_id slot = id & ((1u << SLOT_BITS) - 1);
    return id && slot < (csgl_id)e->n_live && e->live[slot].id == id ? &e->live[slot] : NULL;
}

static enum status submit(struct csgl_engine *e, const struct csgl_request *r, csgl_id *id,
                          double now, struct error *error)
{
    struct encoded_prompt prompt = {0};
    struct logit_bias *biases = NULL;
    struct sampling_params params;
    struct live *l = NULL;
    enum status status = read_params(e, r, &params, error);
    if (status == OK && (r->max_tokens < 0 || r->n_stop > STOP_MAX_STRINGS))
        status =
            error_set(error, ERROR_INVALID,
                      "max_tokens must not be negative, and at most %d stop strings are possible",
                      STOP_MAX_STRINGS);
    if (status == OK)
        status = read_biases(e, r, &biases, error);
    if (status == OK)
        status = csgl_encode_prompt(e, r, &prompt, error);
    if (status == OK && !(l = take_slot(e)))
        status = error_set(error, ERROR_LIMIT,
                           "%d requests are live, which is the limit; raise max_queue", e->n_live);
    params.biases = biases;
    params.n_biases = (int32_t)r->n_biases;
    if (status == OK)
        status = scheduler_submit(
            e->scheduler,
            &(struct request_options){.uid = l->id,
                                      .ids = prompt.ids.ids,
                                      .n_ids = (int32_t)prompt.ids.n,
                                      .marks = prompt.marks,
                                      .n_marks = prompt.n_marks,
                                      .params = params,
                                      .max_tokens = r->max_tokens ? r->max_tokens : -1,
                                      .ignore_eos = r->ignore_eos != 0,
                                      .stop = r->stop,
                                      .n_stop = (int32_t)r->n_stop,
                                      .submitted = now},
            error);
    if (status == OK) {
        l->request = *r;
        l->is_done = false;
        l->text = (struct str){0};
        detokenizer_init(&l->detokenizer, e->text.tokenizer);
        *id = l->id;
    } else if (l) {
        l->id = 0;
    }
    token_ids_done(&prompt.ids);
    free(biases);
    return status;
}

int csgl_submit(struct csgl_engine *e, const struct csgl_request *request, csgl_id *id,
                struct csgl_error *error)
{
    struct error inner = {0};
    *id = 0;
    enum status status = submit(e, request, id, system_seconds(), &inner);
    return status == OK ? CSGL_OK : give(error, status, &inner);
}

void csgl_cancel(struct csgl_engine *e, csgl_id id)
{
    csgl_id slot = id & ((1u << SLOT_BITS) - 1);
    if (id && slot < (csgl_id)e->n_live)
        atomic_store(&e->live[slot].cancelled, id);
}

/* --- stepping --------------------------------------------------------------------------------- */

/* Hands the text over. A caller that wants no more is taken by its word before the next step. */
static void hand_out(struct csgl_engine *e, struct live *l)
{
    if (!l->request.on_text || l->text.len == 0)
        return;
    if (l->request.on_text(l->request.context, l->text.data, l->text.len) != 0)
        csgl_cancel(e, l->id);
    str_clear(&l->text);
}

static void report_token(const struct live *l, const struct sample *sample)
{
    int32_t ids[SAMPLER_MAX_LOGPROBS];
    float logprobs[SAMPLER_MAX_LOGPROBS];
    if (!l->request.on_token || !sample)
        return;
    for (int32_t i = 0; i < sample->n_top; i++) {
        ids[i] = sample->top[i].token;
        logprobs[i] = sample->top[i].logprob;
    }
    l->request.on_token(l->request.context, &(struct csgl_token){.id = sample->token,
                                                                 .logprob = sample->logprob,
                                                                 .n_top = sample->n_top,
                                                                 .top_ids = ids,
                                                                 .top_logprobs = logprobs});
}

static void add_text(struct live *l, const struct token_event *event)
{
    struct detokenizer_piece piece;
    if (event->has_text) {
        str_append(&l->text, event->text.data, event->text.n);
    } else if (event->sample &&
               detokenizer_push(&l->detokenizer, event->sample->token, &piece, NULL) == OK) {
        str_append(&l->text, piece.text, piece.len);
        if (!(piece.flags & TOKEN_SPECIAL))
            str_append(&l->text, piece.added, piece.added_len);
    }
    if (event->finish != FINISH_NONE && detokenizer_finish(&l->detokenizer, &piece, NULL) == OK)
        str_append(&l->text, piece.text, piece.len);
}

static void end_live(struct live *l, const struct token_event *event)
{
    static const int finishes[] = {[FINISH_STOP] = CSGL_FINISH_STOP,
                                   [FINISH_LENGTH] = CSGL_FINISH_LENGTH,
                                   [FINISH_CANCELLED] = CSGL_FINISH_CANCELLED,
                                   [FINISH_ERROR] = CSGL_FINISH_ERROR};
    l->result = (struct csgl_result){.finish = finishes[event->finish],
                                     .prompt_tokens = event->n_prompt,
                                     .cached_tokens = event->n_cached,
                                     .output_tokens = event->n_output,
                                     .queue_seconds = event->queue_seconds,
                                     .prefill_seconds = event->prefill_seconds,
                                     .decode_seconds = event->decode_seconds};
    if (event->error)
        strncpy(l->result.error, event->error, sizeof l->result.error - 1);
    l->is_done = true;
    if (l->request.on_finish)
        l->request.on_finish(l->request.context, &l->result);
    if (l->request.on_text)
        free_live(l);
}

static void on_event(void *context, const struct token_event *event)
{
    struct csgl_engine *e = context;
    struct live *l = find_live(e, event->uid);
    if (!l)
        return;
    report_token(l, event->sample);
    add_text(l, event);
    hand_out(e, l);
    if (event->finish != FINISH_NONE)
        end_live(l, event);
}

int csgl_has_work(const struct csgl_engine *e)
{
    return scheduler_has_work(e->scheduler);
}

static void apply_cancels(struct csgl_engine *e)
{
    for (int i = 0; i < e->n_live; i++) {
        struct live *l = &e->live[i];
        if (l->id && !l->is_done && atomic_load(&l->cancelled) == l->id)
            scheduler_cancel(e->scheduler, l->id);
    }
}

int csgl_step(struct csgl_engine *e, struct csgl_error *error)
{
    struct error inner = {0};
    apply_cancels(e);
    enum status status = scheduler_step(e->scheduler, &inner);
    return status == OK ? CSGL_OK : give(error, status, &inner);
}

/* The longest beginning of the text, at most `size` bytes, that ends between characters. */
static size_t whole_characters(const struct str *text, size_t size)
{
    if (text->len <= size)
        return text->len;
    while (size > 0 && ((unsigned char)text->data[size] & 0xC0) == 0x80)
        size--;
    return size;
}

int csgl_poll(struct csgl_engine *e, csgl_id id, char *text, size_t size, size_t *bytes,
              int *is_done, struct csgl_result *result, struct csgl_error *error)
{
    struct error inner = {0};
    struct live *l = find_live(e, id);
    *bytes = 0;
    *is_done = 1;
    if (!l || l->request.on_text) {
        enum status status = error_set(&inner, ERROR_NOT_FOUND, "there is no request %llu to poll",
                                       (unsigned long long)id);
        return give(error, status, &inner);
    }
    *bytes = whole_characters(&l->text, size);
    if (*bytes) {
        memcpy(text, l->text.data, *bytes);
        memmove(l->text.data, l->text.data + *bytes, l->text.len - *bytes);
        l->text.len -= *bytes;
    }
    *is_done = l->is_done && l->text.len == 0;
    if (*is_done) {
        if (result)
            *result = l->result;
        free_live(l);
    }
    return CSGL_OK;
}

/* --- profiles --------------------------------------------------------------------------------- */

int csgl_profile_start(struct csgl_engine *e, struct csgl_error *error)
{
    struct error inner = {0};
    enum status status = OK;
    if (e->trace)
        status = error_set(&inner, ERROR_INVALID, "a profile is being made already");
    else
        status = trace_new(&e->trace, NULL, "csgl", 1, TRACE_DEFAULT_EVENTS, &inner);
    if (status != OK)
        return give(error, status, &inner);
    scheduler_trace(e->scheduler, e->trace);
    return CSGL_OK;
}

int csgl_profile_stop(struct csgl_engine *e, const char *path, struct csgl_error *error)
{
    struct error inner = {0};
    enum status status = e->trace ? trace_write(path, &e->trace, 1, &inner)
                                  : error_set(&inner, ERROR_INVALID, "no profile is being made");
    end_profile(e);
    return status == OK ? CSGL_OK : give(error, status, &inner);
}

/* --- the short way ---------------------------------------------------------------------------- */

struct waiting {
    const struct csgl_request *request;
    struct csgl_result result;
    bool is_done;
};

static int pass_text(void *context, const char *text, size_t bytes)
{
    const struct csgl_request *r = ((struct waiting *)context)->request;
    return r->on_text ? r->on_text(r->context, text, bytes) : 0;
}

static void pass_token(void *context, const struct csgl_token *token)
{
    const struct csgl_request *r = ((struct waiting *)context)->request;
    if (r->on_token)
        r->on_token(r->context, token);
}

static void note_finish(void *context, const struct csgl_result *result)
{
    struct waiting *w = context;
    w->result = *result;
    w->is_done = true;
}

int csgl_generate(struct csgl_engine *e, const struct csgl_request *request,
                  struct csgl_result *result, struct csgl_error *error)
{
    struct waiting w = {.request = request};
    struct csgl_request inner = *request;
    csgl_id id;
    inner.on_text = pass_text;
    inner.on_token = pass_token;
    inner.on_finish = note_finish;
    inner.context = &w;
    int status = csgl_submit(e, &inner, &id, error);
    if (status == CSGL_OK && request->on_start)
        request->on_start(request->context, id);
    while (status == CSGL_OK && !w.is_done)
        status = csgl_step(e, error);
    if (status == CSGL_OK && result)
        *result = w.result;
    return status;
}
