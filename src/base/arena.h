/* Memory that is freed all at once: many small allocations with one lifetime. */
#ifndef CSGL_BASE_ARENA_H
#define CSGL_BASE_ARENA_H

#include <stddef.h>

struct arena_block;

/* Zero-initialise (`struct arena a = {0}`), allocate, then arena_done. `limit` bounds the bytes
 * that may be handed out over its life; 0 is no limit. */
struct arena {
    struct arena_block *last;
    size_t used, limit;
};

/* `bytes` zeroed bytes aligned to 16, owned by the arena; NULL if memory or the limit is exhausted.
 */
void *arena_alloc(struct arena *arena, size_t bytes);

/* n * size bytes, checked for overflow. */
void *arena_alloc_array(struct arena *arena, size_t n, size_t size);

/* A copy of `n` bytes with a NUL behind them. */
char *arena_copy(struct arena *arena, const char *text, size_t n);

void arena_done(struct arena *arena);

#endif
