/* csgl plan: what memory a model takes, layer by layer, and how much context and how many sequences
 * fit, before any weight is read. Of a repository on the hub its configuration alone is fetched. */
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/system.h"
#include "checkpoint/checkpoint.h"
#include "cli/bench_common.h"
#include "cli/commands.h"
#include "cli/model_path.h"
#include "cli/serve.h"
#include "device/comm/comm.h"
#include "device/device_open.h"
#include "engine/memory_plan.h"
#include "text_model.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_LAYERS = 1024, N_BATCHES = 7 };

struct plan {
    struct model_options options;
    const char *name;
    int max_running, page_size, num_tokenizer;
    bool is_json;
    struct checkpoint *checkpoint;
    struct device *device;
    struct model *model;
    struct device_bytes weights;
    struct memory_request request;
    struct memory_plan memory;
    /* Bytes by layer; those of no layer by the name's first words. */
    uint64_t layers[MAX_LAYERS], outside;
    int n_layers;
    int current; /* the layer of the weight being counted; -1: outside */
    uint64_t counted;
};

/* --- which model ------------------------------------------------------------------------------ */

/* Types that no file is turned into while it is loaded take the files' place. */
static bool is_for_files(const struct plan *p)
{
    const char *text = p->options.quantization;
    return !text || checkpoint_quantization_word(text) >= 0;
}

static enum status open_files(struct plan *p, const char *path, struct error *error)
{
    const char *text = p->options.quantization;
    enum status status = checkpoint_open(&p->checkpoint, path, error);
    return status == OK && text
               ? checkpoint_quantize_as(p->checkpoint, checkpoint_quantization_word(text), error)
               : status;
}

static enum status open_hub(struct plan *p, const struct hub_reference *reference,
                            const char *encoding, struct error *error)
{
    struct hub_settings settings;
    struct str text = {0};
    enum status status = hub_settings_init(&settings, source_of(&p->options.source), error);
    if (status != OK)
        return status;
    status = hub_find(&settings, reference, &p->options.path_text, NULL);
    if (status == OK && is_for_files(p)) {
        status = open_files(p, str_z(&p->options.path_text), error);
    } else {
        status = hub_config(&settings, reference, &text, error);
        if (status == OK)
            status = checkpoint_parse_random(&p->checkpoint, p->name, str_z(&text), text.len,
                                             encoding, error);
    }
    str_done(&text);
    hub_settings_done(&settings);
    return status;
}

/* A folder with a configuration but no weights, which are then planned as --quantization says. */
static bool is_bare(const char *path, const struct error *error)
{
    struct str config = {0};
    path_join(&config, path, "config.json");
    bool has_config = file_is_directory(path) && file_exists(str_z(&config));
    str_done(&config);
    return has_config && error->status == ERROR_NOT_FOUND;
}

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

static enum status open_source(struct plan *p, struct error *error)
{
    struct hub_reference reference;
    const char *encoding = p->options.quantization ? p->options.quantization : "bf16";
    if (!file_exists(p->name) &&
        hub_reference_parse(&reference, source_of(&p->options.source), p->name, NULL) == OK)
        return open_hub(p, &reference, encoding, error);
    if (!is_for_files(p) || ends_with(p->name, ".json"))
        return checkpoint_open_random(&p->checkpoint, p->name, encoding, error);
    enum status status = open_files(p, p->name, error);
    if (status != OK && is_bare(p->name, error))
        status = checkpoint_open_random(&p->checkpoint, p->name, encoding, error);
    return status;
}

/* --- counting --------------------------------------------------------------------------------- */

/* The number in "model.layers.7.mlp...", or -1. */
static int layer_of(const char *name)
{
    const char *at = strstr(name, "layers.");
    char *end;
    if (!at)
        return -1;
    long layer = strtol(at + 7, &end, 10);
    return end != at + 7 && layer >= 0 && layer < MAX_LAYERS ? (int)layer : -1;
}

static void on_weight(void *context, const char *name, uint64_t bytes_before)
{
    struct plan *p = context;
    uint64_t bytes = bytes_before - p->counted;
    if (p->current >= 0)
        p->layers[p->current] += bytes;
    else
        p->outside += bytes;
    p->counted = bytes_before;
    p->current = name ? layer_of(name) : -1;
    if (p->current >= p->n_layers)
        p->n_layers = p->current + 1;
}

/* The tokenizer is read, as csgl serve does, for what it takes. For a configuration alone a
 * vocabulary without merges stands. */
static void plan_text(struct plan *p)
{
    struct text_model text;
    struct error error;
    if (text_model_open(&text, p->checkpoint, NULL, &error) != OK)
        log_info("tokenizers are not counted: %s", error.message);
    serve_memory(p->num_tokenizer, text.tokenizer, &p->request);
    text_model_done(&text);
}

static enum status make_plan(struct plan *p, struct error *error)
{
    const struct model_options *o = &p->options;
    struct cpu_options cpu = {.isa = cpu_isa_best(),
                              .activations = (enum activations)o->activations};
    p->request = (struct memory_request){
        .kv_dtype = kv_dtype_of_word(o->kv_cache_dtype),
        .page_size = p->page_size,
        .max_running = p->max_running,
        .context_length = o->context_length,
        .max_step_tokens = o->max_prefill_length + p->max_running,
        .max_want = scheduler_max_want(p->max_running, SERVE_MAX_SCORED),
        .memory_ratio = o->memory_ratio,
        .kv_cache_bytes = (uint64_t)(o->kv_cache_gb * 1024.0 * 1024.0 * 1024.0)};
    p->current = -1;
    enum status status = open_source(p, error);
    if (status == OK)
        plan_text(p);
    if (status == OK)
        status = device_open(&p->device, o->device, &cpu, error);
    if (status == OK)
        status = model_configure(p->checkpoint, comm_self(), &p->model, error);
    if (status == OK)
        status = model_visit_weights(p->model, p->checkpoint, p->device, comm_self(),
                                     p->request.max_step_tokens, on_weight, p, &p->weights, error);
    if (status == OK)
        status = memory_plan_make(&p->memory, p->model, p->device, &p->weights, &p->request, error);
    return status;
}

/* --- telling ---------------------------------------------------------------------------------- */

static void add_size(struct report *r, const char *key, const char *label, uint64_t bytes)
{
    char text[SIZE_TEXT];
    report_int(r, key, NULL, (int64_t)bytes);
    str_printf(&r->table, "%-34s %s\n", label, size_text(bytes, text));
}

/* Runs of layers of the same size share a line. */
static void report_layers(struct report *r, const struct plan *p)
{
    struct str json = {0};
    char text[SIZE_TEXT], label[48];
    str_append_char(&json, '[');
    for (int i = 0; i < p->n_layers; i++)
        str_printf(&json, "%s%llu", i ? ", " : "", (unsigned long long)p->layers[i]);
    str_append_char(&json, ']');
    report_json(r, "layer_bytes", str_z(&json));
    str_done(&json);
    for (int first = 0, last; first < p->n_layers; first = last + 1) {
        for (last = first; last + 1 < p->n_layers && p->layers[last + 1] == p->layers[first];)
            last++;
        snprintf(label, sizeof label, last > first ? "  each of layers %d to %d" : "  layer %d",
                 first, last);
        str_printf(&r->table, "%-34s %s\n", label, size_text(p->layers[first], text));
    }
}

/* For some numbers of sequences the longest context that fits. */
static void report_contexts(struct report *r, const struct plan *p)
{
    static const int batches[N_BATCHES] = {1, 2, 4, 8, 16, 32, 64};
    const struct memory_plan *m = &p->memory;
    struct str json = {0};
    str_printf(&r->table, "longest context, at most the model's %d:\n", p->model->max_positions);
    for (int i = 0; i < N_BATCHES; i++) {
        int32_t longest =
            memory_plan_longest(m, p->model, &p->request, p->model->max_positions, batches[i]);
        str_printf(&json, "%s\"%d\": %d", i ? ", " : "{", batches[i], (int)longest);
        str_printf(&r->table, "  %3d sequences %20s %d tokens each\n", batches[i], "",
                   (int)longest);
    }
    str_append_char(&json, '}');
    report_json(r, "longest_context", str_z(&json));
    str_done(&json);
}

static enum status tell(const struct plan *p, struct error *error)
{
    struct report r = {0};
    const struct memory_plan *m = &p->memory;
    const char *type = json_string(json_get(checkpoint_config(p->checkpoint), "model_type"));
    /* A thousand tokens more, so that what a window keeps for good does not count. */
    int32_t most = p->model->max_positions, few = most > 1024 ? most - 1024 : 0;
    uint64_t kv_more = memory_plan_kv_bytes(m, p->model, &p->request, most, 1) -
                       memory_plan_kv_bytes(m, p->model, &p->request, few, 1);
    report_text(&r, "model", "model", p->name);
    report_text(&r, "model_type", "family", type ? type : "");
    report_text(&r, "weights_from", "weights",
                p->options.quantization               ? p->options.quantization
                : checkpoint_is_random(p->checkpoint) ? "bf16"
                                                      : "as in the files");
    report_int(&r, "layers", "layers", p->model->n_layers);
    add_size(&r, "weight_bytes", "weights, on the device", m->weights);
    report_layers(&r, p);
    add_size(&r, "outside_bytes", "  outside of layers", p->outside);
    add_size(&r, "workspace_bytes", "workspace of a step", m->workspace);
    add_size(&r, "kv_bytes_per_token", "KV cache of a token", kv_more / (uint64_t)(most - few));
    report_text(&r, "kv_cache_dtype", "KV cache's type", dtype_name(m->layout.dtype));
    add_size(&r, "kv_bytes", "KV cache that is planned", m->kv);
    report_int(&r, "context_length", "context of a sequence, tokens", m->context_length);
    if (m->n_states > 0) {
        add_size(&r, "state_bytes_per_sequence", "recurrent state of a sequence",
                 m->states / (uint64_t)m->n_states);
        add_size(&r, "state_bytes", "recurrent states and snapshots", m->states);
    }
    add_size(&r, "beside_bytes", "programs and tables", m->programs + m->texts + m->tables);
    add_size(&r, "program_bytes", "  processes of csgl serve", m->programs);
    add_size(&r, "text_bytes", "  their tokenizers", m->texts);
    add_size(&r, "table_bytes", "  of cache, batch and sampler", m->tables);
    add_size(&r, "total_bytes", "in all", memory_plan_bytes(m));
    add_size(&r, "budget_bytes", "may be used", m->budget);
    report_contexts(&r, p);
    enum status status = report_finish(&r, p->is_json, NULL, error);
    report_done(&r);
    return status;
}

static int run(struct plan *p)
{
    struct error error = {0};
    enum status status = make_plan(p, &error);
    if (status == OK)
        status = tell(p, &error);
    if (status != OK)
        log_error("%s", error.message);
    model_free(p->model);
    if (p->device)
        p->device->table->close(p->device);
    checkpoint_free(p->checkpoint);
    model_path_done(&p->options);
    return status == OK ? 0 : 1;
}

int command_plan(int argc, char **argv)
{
    struct plan p = {.options = model_options_default(), .max_running = 16, .page_size = 16};
    const struct option options[] = {
        SOURCE_OPTIONS(p.options.source),
        {"--quantization", NULL, OPTION_STRING, &p.options.quantization, "TYPE", 0, 0,
         "plan with weights of this type: bf16, mlx_q4, Q4_0, ..."},
        {"--activations", NULL, OPTION_CHOICE, &p.options.activations, "auto|float|int8", 0, 0,
         "arithmetic of quantized linears"},
        {"--kv-cache-dtype", NULL, OPTION_CHOICE, &p.options.kv_cache_dtype,
         "auto|bf16|f16|f32|int8|int4", 0, 0,
         "type of cached keys and values; int4: CPU only; auto: bf16"},
        {"--memory-ratio", NULL, OPTION_NUMBER, &p.options.memory_ratio, "SHARE", 0.01, 1,
         "share of the available memory to use"},
        {"--kv-cache-gb", NULL, OPTION_NUMBER, &p.options.kv_cache_gb, "GIB", 0, 1 << 20,
         "size of the KV cache; 0: what the context needs"},
        {"--context-length", NULL, OPTION_INT, &p.options.context_length, "TOKENS", 0, 1 << 24,
         "tokens of a sequence; 0: the model's limit or what fits"},
        {"--max-prefill-length", NULL, OPTION_INT, &p.options.max_prefill_length, "TOKENS", 1,
         1 << 16, "prompt tokens of one step"},
        {"--max-running-requests", NULL, OPTION_INT, &p.max_running, "N", 1, 1024,
         "sequences computed at once"},
        {"--num-tokenizer", NULL, OPTION_INT, &p.num_tokenizer, "N", 0, 64,
         "tokenizer processes; 0: the detokenizer is one too"},
        {"--page-size", NULL, OPTION_INT, &p.page_size, "TOKENS", 1, 1024,
         "tokens of a KV page, a power of two"},
        {"--json", NULL, OPTION_FLAG, &p.is_json, NULL, 0, 0, "print one JSON object"},
    };
    struct command_line line = {
        .usage = "csgl plan [options] MODEL",
        .about = "Tells what memory MODEL takes: a model folder, a config.json, a .gguf file or "
                 "ORG/NAME on the hub.",
        .options = options,
        .n_options = sizeof options / sizeof options[0],
        .max_positionals = 1};
    int exit_status = command_line_parse(&line, argc, argv);
    if (exit_status >= 0)
        return exit_status;
    if (line.positionals.n != 1) {
        log_error("give one model: csgl plan MODEL");
        return 2;
    }
    if (p.page_size & (p.page_size - 1)) {
        log_error("--page-size %d is not a power of two", p.page_size);
        return 2;
    }
    p.name = line.positionals.items[0];
    return run(&p);
}
