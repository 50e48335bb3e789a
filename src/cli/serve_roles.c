/* What each process of csgl serve runs. */
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/system.h"
#include "cli/serve.h"
#include "message/supervisor.h"
#include "scheduler/process.h"
#include "server/server.h"
#include "text_model.h"
#include "tokenizer/encoder.h"
#include "worker/worker.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum { KEY_FILE_MAX = 1 << 20, MAX_KEYS = 256, MAX_NAMES = OPTION_MAX_STRINGS + 2 };

static int finish(enum status status, const struct error *error)
{
    if (status != OK)
        log_error("%s", error->message);
    return status == OK ? 0 : 1;
}

typedef enum status (*open_text_parts)(struct text_model *, const struct checkpoint *, const char *,
                                       struct error *);

static enum status open_text(const struct serve_options *o, open_text_parts open_parts,
                             struct checkpoint **checkpoint, struct text_model *text,
                             struct error *error)
{
    *text = (struct text_model){0};
    enum status status = options_checkpoint(&o->model, checkpoint, error);
    return status == OK ? open_parts(text, *checkpoint, o->model.chat_template, error) : status;
}

void serve_memory(int num_tokenizer, const struct tokenizer *tokenizer, struct memory_request *r)
{
    int n_workers = 1 + num_tokenizer, n_encoders = num_tokenizer > 0 ? num_tokenizer : 1;
    r->n_processes = 3 + n_workers; /* supervisor, frontend, scheduler */
    r->text_bytes = (uint64_t)(1 + n_workers) * (tokenizer ? tokenizer_memory(tokenizer) : 0) +
                    (uint64_t)n_encoders * ENCODER_DEFAULT_CACHE_BYTES;
}

/* --- scheduler -------------------------------------------------------------------------------- */

struct scheduler_parts {
    struct checkpoint *checkpoint;
    struct text_model text;
    struct device *device;
    struct engine *engine;
    struct engine_executor executor;
};

static enum status open_scheduler(const struct serve_options *o, struct scheduler_parts *p,
                                  struct error *error)
{
    struct cpu_options cpu = {.n_threads = o->model.threads,
                              .isa = cpu_isa_best(),
                              .activations = (enum activations)o->model.activations};
    struct memory_request request = {
        .kv_dtype = kv_dtype_of_word(o->model.kv_cache_dtype),
        .cache_type = (enum kv_cache_type)o->cache_type,
        .page_size = o->page_size,
        .max_running = o->max_running,
        .context_length = o->model.context_length,
        .max_step_tokens = o->model.max_prefill_length + o->max_running,
        .max_want = scheduler_max_want(o->max_running, SERVE_MAX_SCORED),
        .memory_ratio = o->model.memory_ratio,
        .kv_cache_bytes = (uint64_t)(o->model.kv_cache_gb * 1024.0 * 1024.0 * 1024.0),
        .n_pages = o->num_pages,
        .state_dtype = state_dtype_of_word(o->model.mamba_ssm_dtype),
        .n_states = o->model.num_mamba_slots,
        .state_bytes = (uint64_t)(o->model.mamba_cache_gb * 1024.0 * 1024.0 * 1024.0)};
    double begin = system_seconds();
    enum status status = open_text(o, text_model_open, &p->checkpoint, &p->text, error);
    double read = system_seconds();
    if (status == OK)
        status = device_open(&p->device, o->model.device, &cpu, error);
    if (status == OK)
        log_info("%s: %s, %s activations", o->model.model_path,
                 device_is_cpu(p->device) ? cpu_isa_name(cpu.isa) : p->device->name,
                 device_activations_name(p->device));
    double opened = system_seconds();
    if (status == OK)
        serve_memory(o->num_tokenizer, p->text.tokenizer, &request);
    if (status == OK)
        status = engine_open(&p->engine, p->checkpoint, p->device, comm_self(), &request,
                             progress_if_terminal(), NULL, error);
    if (status == OK)
        status =
            engine_executor_init(&p->executor, p->engine, tokenizer_size(p->text.tokenizer), error);
    if (status != OK)
        return status;
    struct engine_times t = engine_times(p->engine);
    log_info("started in %.2f s: configuration and tokenizer %.2f, device %.2f, plan %.2f, memory "
             "%.2f, weights %.2f",
             system_seconds() - begin, read - begin, opened - read, t.plan, t.memory, t.weights);
    return OK;
}

int serve_scheduler(const struct serve_options *o)
{
    struct scheduler_parts p = {0};
    struct error error;
    enum status status = open_scheduler(o, &p, &error);
    if (status == OK) {
        struct scheduler_process process = {
            .folder = o->run_dir,
            .life_fd = CHILD_LIFE_FD,
            .executor = engine_executor_table(&p.executor),
            .cache = engine_cache(p.engine),
            .options = {.policy = (enum scheduler_policy)o->policy,
                        .max_running = o->max_running,
                        .max_queue = o->max_queue,
                        .max_prefill_length = o->model.max_prefill_length,
                        .max_scored = SERVE_MAX_SCORED,
                        .max_step_seconds = o->max_step_ms * 1e-3,
                        .context_length = engine_plan(p.engine)->context_length,
                        .vocab_size = engine_model(p.engine)->vocab_size,
                        .eos_ids = p.text.eos_ids,
                        .n_eos = p.text.n_eos,
                        .tokenizer = p.text.tokenizer}};
        status = scheduler_process_run(&process, &error);
    }
    engine_executor_done(&p.executor);
    engine_free(p.engine);
    if (p.device)
        p.device->table->close(p.device);
    text_model_done(&p.text);
    checkpoint_free(p.checkpoint);
    return finish(status, &error);
}

/* --- workers ---------------------------------------------------------------------------------- */

int serve_worker(const struct serve_options *o, bool is_detokenizer)
{
    struct checkpoint *checkpoint = NULL;
    struct text_model text;
    struct error error;
    enum status status = open_text(o, text_model_open, &checkpoint, &text, &error);
    if (status == OK) {
        const struct sampling_params *d = &text.defaults;
        struct worker_model model = {.tokenizer = text.tokenizer,
                                     .chat_template = text.chat_template,
                                     .tool_template = text.tool_template,
                                     .tokens = text.tokens,
                                     .n_tokens = text.n_tokens,
                                     .temperature = d->temperature,
                                     .top_p = d->top_p,
                                     .min_p = d->min_p,
                                     .repetition_penalty = d->repetition_penalty,
                                     .presence_penalty = d->presence_penalty,
                                     .frequency_penalty = d->frequency_penalty,
                                     .top_k = d->top_k};
        struct worker_options options = {.folder = o->run_dir,
                                         .role = is_detokenizer
                                                     ? ROLE_DETOKENIZER
                                                     : (enum board_role)(ROLE_TOKENIZER + o->index),
                                         .tokenizer_index = o->index,
                                         .is_detokenizer = is_detokenizer,
                                         .life_fd = CHILD_LIFE_FD};
        status = worker_run(&options, &model, &error);
    }
    text_model_done(&text);
    checkpoint_free(checkpoint);
    return finish(status, &error);
}

/* --- frontend --------------------------------------------------------------------------------- */

/* Adds the file's lines, which stay in `text`. */
static enum status read_keys(const char *path, struct str *text, const char **keys, int *n,
                             struct error *error)
{
    enum status status = file_read(path, KEY_FILE_MAX, text, error);
    if (status != OK)
        return status;
    char *rest = NULL;
    for (char *line = text->len ? strtok_r(text->data, "\r\n", &rest) : NULL; line;
         line = strtok_r(NULL, "\r\n", &rest)) {
        if (*n == MAX_KEYS)
            return error_set(error, ERROR_LIMIT, "%s has more than %d keys", path, MAX_KEYS);
        keys[(*n)++] = line;
    }
    return OK;
}

/* The names that requests may use: those given, else the path and its last component. */
static int collect_names(const struct serve_options *o, const char **names)
{
    int n = 0;
    for (; n < o->served_names.n; n++)
        names[n] = o->served_names.items[n];
    if (n > 0)
        return n;
    const char *path = o->model.model_path, *slash = strrchr(path, '/');
    if (slash && slash[1])
        names[n++] = slash + 1;
    names[n++] = path;
    return n;
}

int serve_frontend(const struct serve_options *o)
{
    struct checkpoint *checkpoint = NULL;
    struct text_model text;
    struct error error;
    struct str key_text = {0};
    const char *keys[MAX_KEYS + OPTION_MAX_STRINGS], *names[MAX_NAMES];
    int n_keys = o->api_keys.n;
    for (int i = 0; i < n_keys; i++)
        keys[i] = o->api_keys.items[i];
    signal(SIGPIPE, SIG_IGN);
    enum status status = open_text(o, text_model_open_templates, &checkpoint, &text, &error);
    if (status == OK && o->api_key_file)
        status = read_keys(o->api_key_file, &key_text, keys, &n_keys, &error);
    if (status == OK) {
        struct server_options options = {.listen_fd = CHILD_LISTEN_FD,
                                         .life_fd = CHILD_LIFE_FD,
                                         .folder = o->run_dir,
                                         .model_names = names,
                                         .n_model_names = collect_names(o, names),
                                         .model_path = o->model.path,
                                         .api_keys = keys,
                                         .n_api_keys = n_keys,
                                         .max_body_bytes = (size_t)o->max_body_mb << 20,
                                         .cors_origin = o->cors_origin,
                                         .reasoning_parser = o->reasoning_parser,
                                         .tool_call_parser = o->tool_call_parser,
                                         .chat_template_source = text.template_source,
                                         .response_config = text.response_config,
                                         .default_template_kwargs = o->default_kwargs,
                                         .n_tokenizers = o->num_tokenizer ? o->num_tokenizer : 1,
                                         .max_queue = o->max_queue,
                                         .profile_path = o->profile_output};
        status = server_run(&options, &error);
    }
    text_model_done(&text);
    checkpoint_free(checkpoint);
    str_done(&key_text);
    return finish(status, &error);
}
