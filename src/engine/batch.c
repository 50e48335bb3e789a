#include "engine/batch.h"

#include "base/size.h"

#include <stdlib.h>
#include <string.h>

/* Lays the arrays out in `memory`, or counts the words they need when it is NULL. */
static size_t lay_out(struct batch *b, int32_t *memory)
{
    size_t tokens = (size_t)b->max_tokens, sequences = (size_t)b->max_sequences, used = 0;
    struct {
        int32_t **array;
        size_t n;
    } arrays[10 + 3 * KV_CACHE_MAX_GROUPS] = {
        {&b->tokens, tokens},       {&b->drawn_by, tokens},
        {&b->positions, tokens},    {&b->q_start, sequences + 1},
        {&b->kv_len, sequences},    {&b->want, (size_t)b->max_want},
        {&b->rows, sequences},      {&b->state_in, sequences},
        {&b->state_out, sequences}, {&b->snapshots, 2 * (size_t)b->max_snapshots}};
    size_t n = 10;
    for (int32_t g = 0; g < b->n_groups; g++) {
        arrays[n].array = &b->slots[g];
        arrays[n++].n = tokens;
        arrays[n].array = &b->page_table[g];
        arrays[n++].n = sequences * (size_t)b->max_pages;
        arrays[n].array = &b->copies[g];
        arrays[n++].n = 2 * (size_t)b->max_copies;
    }
    for (size_t i = 0; i < n; i++) {
        if (memory)
            *arrays[i].array = memory + used;
        used += arrays[i].n;
    }
    return used;
}

/* `cache_copies` are the cache's; 0: it has no states. */
static struct batch batch_of_size(int32_t max_tokens, int32_t max_sequences, int32_t max_want,
                                  int32_t max_pages, int32_t n_groups, int32_t cache_copies)
{
    struct batch b = {.max_tokens = max_tokens,
                      .max_sequences = max_sequences,
                      .max_want = max_want,
                      .max_pages = max_pages,
                      .n_groups = n_groups};
    if (cache_copies > 0) {
        b.max_snapshots = max_sequences * KV_MAX_MARKS;
        b.max_copies = cache_copies + max_sequences;
    }
    b.memory_bytes = lay_out(&b, NULL) * sizeof(int32_t);
    return b;
}

size_t batch_bytes(const struct kv_cache_spec *cache, int32_t max_tokens, int32_t max_sequences,
                   int32_t max_want)
{
    return batch_of_size(max_tokens, max_sequences, max_want,
                         (int32_t)ceil_div(cache->max_length, cache->page_size), cache->n_groups,
                         kv_max_copies(cache->n_rows, cache->n_states))
        .memory_bytes;
}

enum status batch_init(struct batch *b, const struct kv_cache *cache, int32_t max_tokens,
                       int32_t max_sequences, int32_t max_want, struct error *error)
{
    *b = batch_of_size(max_tokens, max_sequences, max_want, cache->max_pages, cache->n_groups,
                       cache->max_copies);
    b->memory = calloc(1, b->memory_bytes);
    if (!b->memory)
        return error_memory(error, b->memory_bytes);
    lay_out(b, b->memory);
    return OK;
}

void batch_done(struct batch *b)
{
    free(b->memory);
    *b = (struct batch){0};
}

void batch_clear(struct batch *b)
{
    b->n_tokens = b->n_sequences = b->n_want = b->n_snapshots = b->n_copies = 0;
    b->q_start[0] = 0;
}

enum status batch_add(struct batch *b, struct kv_cache *cache, int32_t row, const int32_t *tokens,
                      int32_t n, enum batch_want want, struct error *error)
{
    int32_t n_want = want == WANT_ALL ? n : want == WANT_LAST ? 1 : 0;
    if (b->n_sequences == b->max_sequences || b->n_tokens + n > b->max_tokens ||
        b->n_want + n_want > b->max_want)
        return error_set(error, ERROR_LIMIT,
                         "the step is full: %d sequences, %d tokens and %d wanted rows at most",
                         b->max_sequences, b->max_tokens, b->max_want);
    int32_t start = cache->length[row], first = b->n_tokens, sequence = b->n_sequences;
    int32_t state_in = kv_cache_state_in(cache, row);
    enum status status = kv_cache_extend(cache, row, start + n, error);
    if (status != OK)
        return status;
    memcpy(b->tokens + first, tokens, (size_t)n * sizeof *tokens);
    for (int32_t i = 0; i < n; i++) {
        b->positions[first + i] = start + i;
        b->drawn_by[first + i] = -1;
    }
    for (int32_t g = 0; g < b->n_groups; g++) {
        for (int32_t i = 0; i < n; i++)
            b->slots[g][first + i] = kv_cache_slot(cache, g, row, start + i);
        memcpy(b->page_table[g] + (size_t)sequence * (size_t)b->max_pages,
               kv_cache_pages(cache, g, row), (size_t)b->max_pages * sizeof(int32_t));
    }
    for (int32_t i = n - n_want; i < n; i++)
        b->want[b->n_want++] = first + i;
    b->n_tokens += n;
    b->q_start[++b->n_sequences] = b->n_tokens;
    b->kv_len[sequence] = start + n;
    b->rows[sequence] = row;
    b->state_in[sequence] = state_in;
    b->state_out[sequence] = cache->rows[row].state;
    return OK;
}

enum status batch_add_drawn(struct batch *b, struct kv_cache *cache, int32_t row, int32_t drawn_by,
                            struct error *error)
{
    static const int32_t unknown = 0;
    enum status status = batch_add(b, cache, row, &unknown, 1, WANT_LAST, error);
    if (status == OK)
        b->drawn_by[b->n_tokens - 1] = drawn_by;
    return status;
}

static void add_copy(struct batch *b, const struct kv_page_copy *copy)
{
    for (int32_t g = 0; g < b->n_groups; g++) {
        b->copies[g][2 * b->n_copies] = copy->from[g];
        b->copies[g][2 * b->n_copies + 1] = copy->to[g];
    }
    b->n_copies++;
}

void batch_finish(struct batch *b, struct kv_cache *cache)
{
    for (int32_t i = 0; i < cache->n_copies; i++)
        add_copy(b, &cache->copies[i]);
    cache->n_copies = 0;
    for (int32_t i = 0; i < b->n_sequences && kv_cache_has_states(cache); i++) {
        struct kv_state_step step = kv_cache_begin_step(cache, b->rows[i]);
        int32_t start = b->kv_len[i] - (b->q_start[i + 1] - b->q_start[i]);
        for (int32_t k = 0; k < step.n_snapshots; k++) {
            b->snapshots[2 * b->n_snapshots] = b->q_start[i] + step.marks[k] - start - 1;
            b->snapshots[2 * b->n_snapshots++ + 1] = step.slots[k];
        }
        if (step.has_copy)
            add_copy(b, &step.copy);
    }
}
