/* Ranks on one machine that meet in shared memory: each copies its piece into its own slot, all
 * wait, each reads what it needs, all wait again before a slot is reused. For tests and for CPU
 * ranks. */
#include "device/comm/comm.h"

#include "base/size.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { CACHE_LINE = 64 };

struct shared_header {
    _Alignas(CACHE_LINE) _Atomic unsigned n_arrived;
    _Alignas(CACHE_LINE) _Atomic unsigned generation;
};

struct comm_shared {
    struct comm comm;
    struct shared_header *header;
    float *slots; /* [n_ranks][max_floats] */
    size_t max_floats;
};

static size_t slots_offset(void)
{
    return size_round_up(sizeof(struct shared_header), CACHE_LINE);
}

size_t comm_shared_bytes(int n_ranks, size_t max_floats)
{
    return slots_offset() + (size_t)n_ranks * max_floats * sizeof(float);
}

static void barrier(struct comm_shared *c)
{
    unsigned generation = atomic_load(&c->header->generation);
    if (atomic_fetch_add(&c->header->n_arrived, 1) + 1 == (unsigned)c->comm.n_ranks) {
        atomic_store(&c->header->n_arrived, 0);
        atomic_fetch_add(&c->header->generation, 1);
        return;
    }
    while (atomic_load(&c->header->generation) == generation)
        sched_yield();
}

/* Whole rows that fit into a slot at once. */
static int32_t rows_at_once(const struct comm_shared *c, const struct tensor *t)
{
    size_t rows = c->max_floats / (size_t)t->cols;
    return rows < (size_t)t->rows ? (int32_t)rows : t->rows;
}

static void put(struct comm_shared *c, const struct tensor *t)
{
    float *slot = c->slots + (size_t)c->comm.rank * c->max_floats;
    for (int32_t row = 0; row < t->rows; row++)
        memcpy(slot + (size_t)row * (size_t)t->cols, tensor_at(t, row),
               (size_t)t->cols * sizeof(float));
}

static void reduce_piece(struct comm_shared *c, const struct tensor *t)
{
    put(c, t);
    barrier(c);
    for (int32_t row = 0; row < t->rows; row++) {
        float *out = tensor_at(t, row);
        for (int32_t col = 0; col < t->cols; col++) {
            float sum = 0.0f;
            for (int rank = 0; rank < c->comm.n_ranks; rank++)
                sum += c->slots[(size_t)rank * c->max_floats + (size_t)row * (size_t)t->cols +
                                (size_t)col];
            out[col] = sum;
        }
    }
    barrier(c);
}

static void gather_piece(struct comm_shared *c, const struct tensor *part, const struct tensor *out)
{
    put(c, part);
    barrier(c);
    for (int32_t row = 0; row < part->rows; row++)
        for (int rank = 0; rank < c->comm.n_ranks; rank++)
            memcpy((float *)tensor_at(out, row) + (size_t)rank * (size_t)part->cols,
                   c->slots + (size_t)rank * c->max_floats + (size_t)row * (size_t)part->cols,
                   (size_t)part->cols * sizeof(float));
    barrier(c);
}

static void shared_all_reduce(struct comm *comm, const struct tensor *t)
{
    struct comm_shared *c = (struct comm_shared *)(void *)comm;
    int32_t step = rows_at_once(c, t);
    for (int32_t row = 0; row < t->rows; row += step) {
        struct tensor piece = tensor_rows(*t, row, t->rows - row < step ? t->rows - row : step);
        reduce_piece(c, &piece);
    }
}

static void shared_all_gather(struct comm *comm, const struct tensor *part,
                              const struct tensor *out)
{
    struct comm_shared *c = (struct comm_shared *)(void *)comm;
    int32_t step = rows_at_once(c, part);
    for (int32_t row = 0; row < part->rows; row += step) {
        int32_t n = part->rows - row < step ? part->rows - row : step;
        struct tensor piece = tensor_rows(*part, row, n), whole = tensor_rows(*out, row, n);
        gather_piece(c, &piece, &whole);
    }
}

static void shared_close(struct comm *comm)
{
    free(comm);
}

static const struct comm_table shared_table = {shared_all_reduce, shared_all_gather, shared_close};

enum status comm_shared_new(struct comm **out, void *region, int rank, int n_ranks,
                            size_t max_floats, struct error *error)
{
    *out = NULL;
    struct comm_shared *c = calloc(1, sizeof *c);
    if (!c)
        return error_memory(error, sizeof *c);
    c->comm = (struct comm){.rank = rank, .n_ranks = n_ranks, .table = &shared_table};
    c->header = region;
    c->slots = (float *)(void *)((char *)region + slots_offset());
    c->max_floats = max_floats;
    *out = &c->comm;
    return OK;
}
