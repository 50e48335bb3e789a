#include "device/comm/comm.h"

#include <string.h>

static void self_all_reduce(struct comm *comm, const struct tensor *t)
{
    (void)comm;
    (void)t;
}

static void self_all_gather(struct comm *comm, const struct tensor *part, const struct tensor *out)
{
    (void)comm;
    for (int32_t row = 0; row < part->rows; row++)
        memcpy(tensor_at(out, row), tensor_at(part, row), (size_t)part->cols * sizeof(float));
}

static void self_close(struct comm *comm)
{
    (void)comm;
}

static const struct comm_table self_table = {self_all_reduce, self_all_gather, self_close};

struct comm *comm_self(void)
{
    /* Never written to: rank 0 of 1 has no state. */
    static struct comm self = {.rank = 0, .n_ranks = 1, .table = &self_table};
    return &self;
}
