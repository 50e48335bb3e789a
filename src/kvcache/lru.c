#include "kvcache/lru.h"

#include <assert.h>
#include <stdlib.h>

enum { NOT_IN_LIST = -1 };

bool lru_init(struct lru *lru, int32_t n)
{
    size_t size = (size_t)n + 1;
    *lru = (struct lru){.n = n};
    lru->newer = malloc(size * sizeof *lru->newer);
    lru->older = malloc(size * sizeof *lru->older);
    if (!lru->newer || !lru->older)
        return false;
    for (int32_t i = 0; i < n; i++)
        lru->newer[i] = lru->older[i] = NOT_IN_LIST;
    lru->newer[n] = lru->older[n] = n;
    return true;
}

size_t lru_bytes(int32_t n)
{
    return ((size_t)n + 1) * 2 * sizeof(int32_t);
}

void lru_done(struct lru *lru)
{
    free(lru->newer);
    free(lru->older);
    *lru = (struct lru){0};
}

bool lru_has(const struct lru *lru, int32_t member)
{
    return lru->newer[member] != NOT_IN_LIST;
}

int32_t lru_next(const struct lru *lru, int32_t member)
{
    int32_t next = lru->newer[member];
    return next == lru->n ? -1 : next;
}

int32_t lru_oldest(const struct lru *lru)
{
    return lru_next(lru, lru->n);
}

void lru_add_after(struct lru *lru, int32_t older, int32_t member)
{
    assert(!lru_has(lru, member) && lru_has(lru, older));
    int32_t newer = lru->newer[older];
    lru->newer[member] = newer;
    lru->older[member] = older;
    lru->newer[older] = member;
    lru->older[newer] = member;
}

void lru_add_newest(struct lru *lru, int32_t member)
{
    lru_add_after(lru, lru->older[lru->n], member);
}

void lru_remove(struct lru *lru, int32_t member)
{
    assert(lru_has(lru, member));
    int32_t newer = lru->newer[member], older = lru->older[member];
    lru->newer[older] = newer;
    lru->older[newer] = older;
    lru->newer[member] = lru->older[member] = NOT_IN_LIST;
}
