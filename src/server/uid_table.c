#include "server/uid_table.h"

#include <stdlib.h>

/* Numbers that count upwards fill neighbouring slots: no better hash is needed. */
static size_t home_of(const struct uid_table *table, uint64_t uid)
{
    return (size_t)uid & (table->cap - 1);
}

/* The slot that has the uid, or the free one where it would go. */
static size_t find(const struct uid_table *table, uint64_t uid)
{
    size_t at = home_of(table, uid);
    while (table->slots[at] && table->slots[at]->uid != uid)
        at = (at + 1) & (table->cap - 1);
    return at;
}

static bool grow(struct uid_table *table)
{
    struct uid_table grown = {.n = table->n, .cap = table->cap ? table->cap * 2 : 64};
    grown.slots = calloc(grown.cap, sizeof *grown.slots);
    if (!grown.slots)
        return false;
    for (size_t i = 0; i < table->cap; i++)
        if (table->slots[i])
            grown.slots[find(&grown, table->slots[i]->uid)] = table->slots[i];
    free(table->slots);
    *table = grown;
    return true;
}

bool uid_table_put(struct uid_table *table, struct waiter *waiter)
{
    if (table->n * 2 >= table->cap && !grow(table))
        return false;
    table->slots[find(table, waiter->uid)] = waiter;
    table->n++;
    return true;
}

struct waiter *uid_table_get(const struct uid_table *table, uint64_t uid)
{
    return table->cap ? table->slots[find(table, uid)] : NULL;
}

void uid_table_remove(struct uid_table *table, uint64_t uid)
{
    if (!uid_table_get(table, uid))
        return;
    size_t mask = table->cap - 1, hole = find(table, uid);
    table->slots[hole] = NULL;
    table->n--;
    /* Those behind it that would have stood here move up, so that no search ends too early. */
    for (size_t at = (hole + 1) & mask; table->slots[at]; at = (at + 1) & mask) {
        size_t home = home_of(table, table->slots[at]->uid);
        if (((at - home) & mask) < ((at - hole) & mask))
            continue;
        table->slots[hole] = table->slots[at];
        table->slots[at] = NULL;
        hole = at;
    }
}

void uid_table_done(struct uid_table *table)
{
    free(table->slots);
    *table = (struct uid_table){0};
}
