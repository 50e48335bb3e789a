#include "engine/batch.h"

#include <stdlib.h>
#include <string.h>

/* Lays the arrays out in `memory`, or counts the words they need when it is NULL. */
static size_t lay_out(struct batch *b, int32_t *memory)
{
    size_t tokens = (size_t)b->max_tokens, sequences = (size_t)b->max_sequences, used = 0;
    struct {
        int32_t **array;
        size_t n;
    } arrays[5 + 2 * KV_CACHE_MAX_GROUPS] = {{&b->tokens, tokens},
                                             {&b->positions, tokens},
                                             {&b->q_start, sequences + 1},
                                             {&b->kv_len, sequences},
                                             {&b->want, (size_t)b->max_want}};
    size_t n = 5;
    for (int32_t g = 0; g < b->n_groups; g++) {
        arrays[n].array = &b->slots[g];
        arrays[n++].n = tokens;
        arrays[n].array = &b->page_table[g];
        arrays[n++].n = sequences * (size_t)b->max_pages;
    }
    for (size_t i = 0; i < n; i++) {
        if (memory)
            *arrays[i].array = memory + used;
        used += arrays[i].n;
    }
    return used;
}

enum status batch_init(struct batch *b, const struct kv_cache *cache, int32_t max_tokens,
                       int32_t max_sequences, int32_t max_want, struct error *error)
{
    *b = (struct batch){.max_tokens = max_tokens,
                        .max_sequences = max_sequences,
                        .max_want = max_want,
                        .max_pages = cache->max_pages,
                        .n_groups = cache->n_groups};
    b->memory_bytes = lay_out(b, NULL) * sizeof(int32_t);
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
    b->n_tokens = b->n_sequences = b->n_want = 0;
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
    enum status status = kv_cache_extend(cache, row, start + n, error);
    if (status != OK)
        return status;
    memcpy(b->tokens + first, tokens, (size_t)n * sizeof *tokens);
    for (int32_t i = 0; i < n; i++)
        b->positions[first + i] = start + i;
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
    return OK;
}
