/* Who waits for mail about a uid: a hash map whose keys are numbers that count upwards. */
#ifndef CSGL_SERVER_UID_TABLE_H
#define CSGL_SERVER_UID_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum waiter_kind { WAITER_CHOICE, WAITER_ASK };

/* First member of what waits; owned by whoever put it in. */
struct waiter {
    uint64_t uid;
    enum waiter_kind kind;
};

/* Zero-initialise, put, uid_table_done. Open addressing, at most half full. */
struct uid_table {
    struct waiter **slots;
    size_t n, cap;
};

/* The uid is not in it yet. False if memory is exhausted. */
bool uid_table_put(struct uid_table *table, struct waiter *waiter);

/* NULL if nobody waits. */
struct waiter *uid_table_get(const struct uid_table *table, uint64_t uid);

/* Nothing happens if it is not in it. */
void uid_table_remove(struct uid_table *table, uint64_t uid);

void uid_table_done(struct uid_table *table);

#endif
