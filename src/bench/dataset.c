#include "bench/dataset.h"

#include "bench/rng.h"
#include "bench/sharegpt.h"

#include <stdlib.h>
#include <string.h>

enum { ARENA_LIMIT = 1 << 30, MAX_LENGTH = 1 << 20 };

static int32_t *random_ids(struct dataset *d, const struct dataset_options *o, int32_t n,
                           uint64_t *state)
{
    int32_t *ids = arena_alloc_array(&d->arena, (size_t)n, sizeof *ids);
    for (int32_t i = 0; ids && i < n; i++)
        ids[i] = rng_int(state, 0, o->vocab_size - 1);
    return ids;
}

static int32_t random_length(int32_t length, double ratio, uint64_t *state)
{
    int32_t low = (int32_t)(ratio * length);
    return rng_int(state, low < 1 ? 1 : low, length);
}

static enum status make_random(struct dataset *d, const struct dataset_options *o,
                               struct error *error)
{
    uint64_t state = o->seed;
    for (int i = 0; i < o->n_prompts; i++) {
        struct bench_prompt *p = &d->prompts[i];
        p->n_ids = random_length(o->input_len, o->range_ratio, &state);
        p->output_len = random_length(o->output_len, o->range_ratio, &state);
        p->ids = random_ids(d, o, p->n_ids, &state);
        if (!p->ids)
            return error_memory(error, (unsigned long long)p->n_ids * sizeof *p->ids);
    }
    d->n = o->n_prompts;
    return OK;
}

static enum status make_shared(struct dataset *d, const struct dataset_options *o,
                               struct error *error)
{
    uint64_t state = o->seed;
    int32_t length = o->prefix_len + o->question_len;
    int32_t **prefixes = arena_alloc_array(&d->arena, (size_t)o->n_groups, sizeof *prefixes);
    for (int32_t g = 0; prefixes && g < o->n_groups; g++)
        if (!(prefixes[g] = random_ids(d, o, o->prefix_len, &state)))
            prefixes = NULL;
    for (int i = 0; i < o->n_prompts; i++) {
        struct bench_prompt *p = &d->prompts[i];
        p->ids = prefixes ? random_ids(d, o, length, &state) : NULL;
        if (!p->ids)
            return error_memory(error, (unsigned long long)length * sizeof *p->ids);
        memcpy(p->ids, prefixes[i % o->n_groups], (size_t)o->prefix_len * sizeof *p->ids);
        p->n_ids = length;
        p->output_len = o->output_len;
    }
    d->n = o->n_prompts;
    return OK;
}

static enum status check_length(const char *flag, int32_t value, struct error *error)
{
    if (value >= 1 && value <= MAX_LENGTH)
        return OK;
    return error_set(error, ERROR_INVALID, "%s is %d; 1 to %d are possible", flag, (int)value,
                     MAX_LENGTH);
}

static enum status check(const struct dataset_options *o, struct error *error)
{
    enum status status = check_length("--num-prompts", o->n_prompts, error);
    if (o->kind == DATASET_SHAREGPT)
        return status == OK && !o->path
                   ? error_set(error, ERROR_INVALID,
                               "--dataset-name sharegpt needs --dataset-path, a file of "
                               "conversations in ShareGPT's JSON")
                   : status;
    if (status == OK && o->vocab_size < 1)
        status = error_set(error, ERROR_INVALID, "the vocabulary's size is %d", o->vocab_size);
    if (status == OK)
        status = check_length("the output length", o->output_len, error);
    if (status == OK && o->kind == DATASET_RANDOM)
        status = check_length("the input length", o->input_len, error);
    if (status == OK && o->kind == DATASET_SHARED_PREFIX)
        status = check_length("--gsp-num-groups", o->n_groups, error);
    if (status == OK && o->kind == DATASET_SHARED_PREFIX)
        status = check_length("--gsp-system-prompt-len", o->prefix_len, error);
    if (status == OK && o->kind == DATASET_SHARED_PREFIX)
        status = check_length("--gsp-question-len", o->question_len, error);
    return status;
}

enum status dataset_make(struct dataset *d, const struct dataset_options *o, struct error *error)
{
    *d = (struct dataset){.arena.limit = ARENA_LIMIT};
    enum status status = check(o, error);
    if (status != OK)
        return status;
    d->prompts = calloc((size_t)o->n_prompts, sizeof *d->prompts);
    if (!d->prompts)
        return error_memory(error, (size_t)o->n_prompts * sizeof *d->prompts);
    status = o->kind == DATASET_RANDOM          ? make_random(d, o, error)
             : o->kind == DATASET_SHARED_PREFIX ? make_shared(d, o, error)
                                                : sharegpt_read(d, o, error);
    if (status != OK)
        dataset_done(d);
    return status;
}

void dataset_done(struct dataset *d)
{
    free(d->prompts);
    arena_done(&d->arena);
    *d = (struct dataset){0};
}
