#include "base/arena.h"

#include "base/size.h"

#include <stdlib.h>
#include <string.h>

enum { BLOCK_BYTES = 64 * 1024, ALIGN = 16 };

struct arena_block {
    struct arena_block *previous;
    size_t used, size;
    _Alignas(ALIGN) unsigned char data[];
};

static struct arena_block *add_block(struct arena *arena, size_t bytes)
{
    size_t size = bytes > BLOCK_BYTES / 4 ? bytes : BLOCK_BYTES, total;
    if (!size_add(sizeof(struct arena_block), size, &total))
        return NULL;
    struct arena_block *block = malloc(total);
    if (!block)
        return NULL;
    block->used = 0;
    block->size = size;
    /* A large block of its own goes behind the current one, whose rest stays usable. */
    if (size != BLOCK_BYTES && arena->last) {
        block->previous = arena->last->previous;
        arena->last->previous = block;
    } else {
        block->previous = arena->last;
        arena->last = block;
    }
    return block;
}

void *arena_alloc(struct arena *arena, size_t bytes)
{
    if (bytes > SIZE_MAX - ALIGN)
        return NULL;
    bytes = size_round_up(bytes ? bytes : 1, ALIGN);
    if (arena->limit && (bytes > arena->limit || arena->used > arena->limit - bytes))
        return NULL;
    struct arena_block *block = arena->last;
    if (!block || block->size - block->used < bytes) {
        block = add_block(arena, bytes);
        if (!block)
            return NULL;
    }
    void *p = block->data + block->used;
    block->used += bytes;
    arena->used += bytes;
    return memset(p, 0, bytes);
}

void *arena_alloc_array(struct arena *arena, size_t n, size_t size)
{
    size_t bytes;
    return size_mul(n, size, &bytes) ? arena_alloc(arena, bytes) : NULL;
}

char *arena_copy(struct arena *arena, const char *text, size_t n)
{
    if (n == SIZE_MAX)
        return NULL;
    char *copy = arena_alloc(arena, n + 1);
    if (copy && n)
        memcpy(copy, text, n);
    return copy;
}

void arena_done(struct arena *arena)
{
    struct arena_block *block = arena->last;
    while (block) {
        struct arena_block *previous = block->previous;
        free(block);
        block = previous;
    }
    arena->last = NULL;
    arena->used = 0;
}
