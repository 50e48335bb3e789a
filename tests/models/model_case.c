#include "models/model_case.h"

#include "base/file.h"

#include <dirent.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define CASES SOURCE_DIR "/tests/models/"

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static bool has_case(const char *name)
{
    char path[512];
    snprintf(path, sizeof path, CASES "%s/case.json", name);
    return file_exists(path);
}

char **model_case_list(int *n)
{
    DIR *dir = opendir(CASES);
    assert_non_null(dir);
    char **names = NULL;
    *n = 0;
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (entry->d_name[0] == '.' || !has_case(entry->d_name))
            continue;
        names = realloc(names, (size_t)(*n + 1) * sizeof *names);
        names[(*n)++] = strdup(entry->d_name);
    }
    closedir(dir);
    assert_true(*n > 0);
    qsort(names, (size_t)*n, sizeof *names, by_name);
    return names;
}

/* Fails with the sentence, which cmocka's assertions would hide. */
static void expect_ok(enum status status, const struct error *error)
{
    if (status != OK)
        fail_msg("%s", error->message);
}

void model_case_open(struct model_case *c, const char *name)
{
    struct error error = {0};
    struct arena arena = {0};
    struct str text = {0};
    struct json json;
    char path[512];
    *c = (struct model_case){0};
    snprintf(c->name, sizeof c->name, "%s", name);
    snprintf(path, sizeof path, CASES "%s/case.json", name);
    expect_ok(file_read(path, 1 << 20, &text, &error), &error);
    expect_ok(json_parse(&arena, text.data, text.len, &json, &error), &error);
    c->n_tokens = (int32_t)json_number(json_get(&json, "n_tokens"), 0);
    c->vocab_size = (int32_t)json_number(json_get(&json, "vocab"), 0);
    const struct json *tokens = json_get(&json, "tokens");
    assert_int_equal(tokens->n, c->n_tokens);
    c->tokens = calloc((size_t)c->n_tokens, sizeof *c->tokens);
    for (int32_t i = 0; i < c->n_tokens; i++)
        c->tokens[i] = (int32_t)json_number(&tokens->items[i], -1);
    snprintf(path, sizeof path, CASES "%s/logits.bin", name);
    str_clear(&text);
    expect_ok(file_read(path, 64 << 20, &text, &error), &error);
    size_t n = (size_t)c->n_tokens * (size_t)c->vocab_size * sizeof(float);
    assert_int_equal(text.len, n);
    c->logits = malloc(n);
    memcpy(c->logits, text.data, n);
    const char *model = json_string(json_get(&json, "model"));
    snprintf(path, sizeof path, CASES "%s/%s", name, strcmp(model, ".") == 0 ? "" : model);
    expect_ok(checkpoint_open(&c->checkpoint, path, &error), &error);
    const struct json *quantize = json_get(&json, "quantize");
    c->bits = (int32_t)json_number(json_get(quantize, "bits"), 0);
    c->group = (int32_t)json_number(json_get(quantize, "group_size"), 0);
    if (c->bits)
        expect_ok(checkpoint_quantize(c->checkpoint, c->bits, c->group, &error), &error);
    str_done(&text);
    arena_done(&arena);
}

void model_case_done(struct model_case *c)
{
    checkpoint_free(c->checkpoint);
    free(c->tokens);
    free(c->logits);
}

struct case_options case_options_default(void)
{
    return (struct case_options){.isa = cpu_isa_best(),
                                 .activations = ACTIVATIONS_FLOAT,
                                 .kv_dtype = DTYPE_F32,
                                 .n_threads = 2,
                                 .page_size = 16};
}

void case_engine_open(struct case_engine *e, const struct model_case *c,
                      const struct case_options *options, struct comm *comm)
{
    struct error error = {0};
    struct cpu_options cpu = {
        .n_threads = options->n_threads, .isa = options->isa, .activations = options->activations};
    struct memory_request request = {.kv_dtype = options->kv_dtype,
                                     .page_size = options->page_size,
                                     .max_running = 4,
                                     .context_length = c->n_tokens,
                                     .max_step_tokens = 4 * c->n_tokens,
                                     .max_want = 4 * c->n_tokens,
                                     .memory_ratio = 0.9};
    expect_ok(device_open(&e->device, options->device, &cpu, &error), &error);
    expect_ok(engine_open(&e->engine, c->checkpoint, e->device, comm, &request, NULL, NULL, &error),
              &error);
}

void case_engine_done(struct case_engine *e)
{
    engine_free(e->engine);
    e->device->table->close(e->device);
}

void case_engine_run(struct case_engine *e, const struct model_case *c, int32_t chunk, float *out)
{
    struct error error = {0};
    struct batch batch;
    struct kv_cache *cache = engine_cache(e->engine);
    expect_ok(engine_batch_init(e->engine, &batch, &error), &error);
    int32_t row = kv_cache_open_row(cache);
    for (int32_t from = 0; from < c->n_tokens; from += chunk) {
        int32_t n = c->n_tokens - from < chunk ? c->n_tokens - from : chunk;
        batch_clear(&batch);
        expect_ok(batch_add(&batch, cache, row, c->tokens + from, n, WANT_ALL, &error), &error);
        assert_true(kv_cache_check(cache));
        expect_ok(engine_step(e->engine, &batch, &error), &error);
        for (int32_t i = 0; i < n; i++)
            memcpy(out + (size_t)(from + i) * (size_t)c->vocab_size, engine_logits(e->engine, i),
                   (size_t)c->vocab_size * sizeof *out);
    }
    kv_cache_close_row(cache, row);
    batch_done(&batch);
}

struct rank {
    const struct model_case *c;
    struct comm *comm;
    int32_t chunk;
    float *out;
};

static void *run_rank(void *argument)
{
    struct rank *rank = argument;
    struct case_options options = case_options_default();
    options.n_threads = 1;
    struct case_engine e;
    case_engine_open(&e, rank->c, &options, rank->comm);
    case_engine_run(&e, rank->c, rank->chunk, rank->out);
    case_engine_done(&e);
    return NULL;
}

void case_run_two_ranks(const struct model_case *c, int32_t chunk, float *out[2])
{
    enum { MAX_FLOATS = 64 * 1024 };
    void *region = aligned_alloc(64, comm_shared_bytes(2, MAX_FLOATS));
    memset(region, 0, comm_shared_bytes(2, MAX_FLOATS));
    struct rank ranks[2];
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        ranks[i] = (struct rank){.c = c, .chunk = chunk, .out = out[i]};
        assert_int_equal(comm_shared_new(&ranks[i].comm, region, i, 2, MAX_FLOATS, NULL), OK);
    }
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, run_rank, &ranks[i]), 0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < 2; i++)
        ranks[i].comm->table->close(ranks[i].comm);
    free(region);
}

double max_difference(const float *a, const float *b, size_t n)
{
    double max = 0.0;
    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - b[i]);
        if (!(d <= max))
            max = isnan(d) ? INFINITY : d;
    }
    return max;
}
