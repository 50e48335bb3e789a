/* A list of small numbers from least to most recently used, linked through two arrays: every
 * operation takes constant time and none allocates. */
#ifndef CSGL_KVCACHE_LRU_H
#define CSGL_KVCACHE_LRU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct lru {
    int32_t n; /* members are 0 .. n-1; n itself is the ring's anchor */
    int32_t *newer, *older;
};

/* An empty list; false if memory is exhausted (lru_done is then still allowed). */
bool lru_init(struct lru *lru, int32_t n);
void lru_done(struct lru *lru);

/* What it takes. */
size_t lru_bytes(int32_t n);

bool lru_has(const struct lru *lru, int32_t member);

/* -1 when the list is empty. */
int32_t lru_oldest(const struct lru *lru);

/* The next newer member, or -1. */
int32_t lru_next(const struct lru *lru, int32_t member);

void lru_add_newest(struct lru *lru, int32_t member);

/* Adds `member` just after `older`, which is in the list. */
void lru_add_after(struct lru *lru, int32_t older, int32_t member);
void lru_remove(struct lru *lru, int32_t member);

#endif
