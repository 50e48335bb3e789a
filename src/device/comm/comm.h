/* Tensors exchanged between the ranks of one model (tensor parallelism). One rank needs none of it:
 * comm_self makes every call the identity. */
#ifndef CSGL_DEVICE_COMM_COMM_H
#define CSGL_DEVICE_COMM_COMM_H

#include "base/error.h"
#include "device/tensor.h"

struct comm {
    int rank, n_ranks;
    const struct comm_table *table;
};

/* All ranks make the same calls in the same order. Tensors are f32. */
struct comm_table {
    /* t = sum over ranks of t, added in rank order, so that every rank gets the same bits. */
    void (*all_reduce)(struct comm *, const struct tensor *t);
    /* out[:, r*n .. (r+1)*n] = rank r's `part` [rows, n]; out is [rows, n * n_ranks]. */
    void (*all_gather)(struct comm *, const struct tensor *part, const struct tensor *out);
    void (*close)(struct comm *);
};

/* The only rank there is. */
struct comm *comm_self(void);

/* Ranks that share `region`: comm_shared_bytes(n_ranks, max_floats) zeroed bytes, mapped MAP_SHARED
 * (processes) or ordinary memory (threads). Tensors of more than max_floats go in pieces of whole rows,
 * and one row must fit. A rank waits for the others without limit: the caller ends all ranks when one
 * dies. */
size_t comm_shared_bytes(int n_ranks, size_t max_floats);
enum status comm_shared_new(struct comm **out, void *region, int rank, int n_ranks,
                            size_t max_floats, struct error *error);

static inline void comm_all_reduce(struct comm *comm, const struct tensor *t)
{
    if (comm->n_ranks > 1)
        comm->table->all_reduce(comm, t);
}

#endif
