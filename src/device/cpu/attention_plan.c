#include "device/cpu/attention_plan.h"

#include "base/size.h"
#include "device/cpu/attention.h"

#include <assert.h>

enum {
    TASKS_PER_THREAD = 4, /* a split aims at so many tasks a thread */
    LEAST_PART = 128,     /* tokens of a part at least: a merge costs some tokens' time */
    READ_COST = 4,        /* reading a token's K and V, in query vectors' work on it */
    LINE = 64
};

static int32_t min32(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

static int32_t value(const struct tensor *t, int32_t row)
{
    return *(const int32_t *)tensor_at(t, row);
}

/* Heads of a group, and rows, that share a unit. */
static int32_t unit_heads(const struct attention_shape *shape)
{
    return min32(shape->n_q_heads / shape->n_kv_heads, ATTENTION_TILE);
}

static int32_t unit_rows(const struct attention_shape *shape)
{
    return ATTENTION_TILE / unit_heads(shape);
}

/* Places the next array of n items of `size` bytes. */
static bool place_array(struct attention_space *space, size_t *offset, size_t n, size_t size)
{
    size_t bytes;
    *offset = space->bytes;
    return size_mul(n, size, &bytes) && bytes < SIZE_MAX - LINE &&
           size_add(space->bytes, size_round_up(bytes, LINE), &space->bytes);
}

bool attention_space_of(const struct attention_shape *shape, struct attention_space *space)
{
    *space = (struct attention_space){0};
    size_t dim = (size_t)shape->head_dim, threads = (size_t)shape->n_threads;
    int64_t groups = ceil_div(shape->n_q_heads / shape->n_kv_heads, unit_heads(shape));
    int64_t tiles = ceil_div(shape->n_rows, unit_rows(shape)) + shape->n_sequences;
    int64_t slots = (int64_t)TASKS_PER_THREAD * shape->n_threads;
    int64_t tasks;
    if (__builtin_mul_overflow(tiles, groups * shape->n_kv_heads, &tasks) ||
        tasks > INT32_MAX - slots)
        return false;
    space->n_slots = (int32_t)slots;
    space->most_tasks = (int32_t)(tasks + slots);
    size_t n_tasks = (size_t)space->most_tasks;
    /* q, acc: f32; q16: bf16; scores f32; p16 bf16; sums, base, sum, first, end: f32, i32; expanded
     * codes: bf16. */
    space->scratch_bytes = size_round_up(
        ATTENTION_TILE * (dim * 10 + ATTENTION_BLOCK * 6 + (4 + ATTENTION_LANES) * sizeof(float)) +
            2 * ATTENTION_BLOCK * dim * sizeof(uint16_t),
        LINE);
    space->partial_bytes = size_round_up(ATTENTION_TILE * (dim + 2) * sizeof(float), LINE);
    return place_array(space, &space->tasks, n_tasks, sizeof(struct attention_task)) &&
           place_array(space, &space->order, n_tasks, 2 * sizeof(int32_t)) &&
           place_array(space, &space->done, (size_t)slots, LINE) &&
           place_array(space, &space->scratch, threads, space->scratch_bytes) &&
           place_array(space, &space->partials, (size_t)slots, space->partial_bytes);
}

static int64_t unit_cost(const struct attention_task *unit)
{
    return (int64_t)(unit->end - unit->begin) * (READ_COST + unit->n_rows * unit->n_heads) *
           unit->n_kv_heads;
}

/* What a walk over all units does with one of them (kv_head still 0). */
struct walk {
    int64_t total; /* cost of all units */
    int64_t most;  /* cost of the dearest task */
    int32_t most_parts;
    const struct attention_space *space;
    const struct attention_shape *shape;
    struct attention_task *tasks;
    int32_t n_tasks, n_slots;
};

static void count_unit(struct walk *walk, const struct attention_task *unit)
{
    walk->total += unit_cost(unit) / unit->n_kv_heads * walk->shape->n_kv_heads;
}

static bool is_by_pieces(const struct attention_shape *shape, const struct attention_task *unit)
{
    return unit->n_rows * unit->n_heads <= shape->few;
}

/* As many parts as are worth while. */
static void emit_parts(struct walk *walk, const struct attention_task *unit)
{
    int32_t tokens = unit->end - unit->begin;
    /* Rounded down, so that all units' parts fit into the slots. */
    int64_t wanted = unit_cost(unit) * walk->most_parts / walk->total;
    int32_t parts = (int32_t)(wanted < tokens / LEAST_PART ? wanted : tokens / LEAST_PART);
    parts = parts < 1 ? 1 : parts;
    int32_t step = is_by_pieces(walk->shape, unit) ? ATTENTION_PIECE : ATTENTION_BLOCK;
    int32_t part = (int32_t)ceil_div(ceil_div(tokens, parts), step) * step;
    parts = (int32_t)ceil_div(tokens, part);
    int32_t slot = -1;
    if (parts > 1) {
        slot = walk->n_slots;
        walk->n_slots += parts;
    }
    for (int32_t i = 0; i < parts; i++) {
        struct attention_task *task = &walk->tasks[walk->n_tasks++];
        *task = *unit;
        task->begin = unit->begin + i * part;
        task->end = min32(unit->end, task->begin + part);
        task->part = i;
        task->n_parts = parts;
        task->slot = slot;
        int64_t cost = unit_cost(task);
        walk->most = cost > walk->most ? cost : walk->most;
    }
}

static void emit_unit(struct walk *walk, const struct attention_task *unit)
{
    int32_t n = walk->shape->n_kv_heads, group = walk->shape->n_q_heads / n;
    for (int32_t kv_head = 0; kv_head < n; kv_head += unit->n_kv_heads) {
        struct attention_task one = *unit;
        one.kv_head = kv_head;
        one.n_kv_heads = min32(unit->n_kv_heads, n - kv_head);
        one.first_head += kv_head * group;
        emit_parts(walk, &one);
    }
}

/* KV heads of a unit with `vectors` query vectors each over some tokens. Few tokens are not worth
 * parts: threads share the heads instead, of sequences so few that there are not four for each. */
static int32_t unit_kv_heads(const struct attention_shape *shape, int32_t vectors, int32_t tokens)
{
    if (vectors > shape->few)
        return 1;
    int32_t fit = ATTENTION_TILE / vectors, share = shape->n_kv_heads;
    if (tokens < LEAST_PART * shape->n_threads) {
        int32_t shares = (int32_t)ceil_div(4 * (int64_t)shape->n_threads, shape->n_sequences);
        share = (int32_t)ceil_div(share, min32(shares, shape->n_threads));
    }
    return min32(fit, share);
}

typedef void (*unit_function)(struct walk *walk, const struct attention_task *unit);

/* The units of one sequence: its rows from the last to the first, which see ever less. */
static void walk_sequence(const struct paged_attention_args *args,
                          const struct attention_shape *shape, int32_t sequence,
                          unit_function visit, struct walk *walk)
{
    int32_t start = value(&args->q_start, sequence);
    int32_t q_len = value(&args->q_start, sequence + 1) - start;
    int32_t past = value(&args->kv_len, sequence) - q_len;
    int32_t group = shape->n_q_heads / shape->n_kv_heads;
    int32_t heads = unit_heads(shape), rows = unit_rows(shape);
    assert(past >= 0);
    for (int32_t end = q_len; end > 0; end -= rows) {
        int32_t first = end > rows ? end - rows : 0, place = past + first;
        int32_t begin = args->window > 0 ? place - args->window + 1 : 0;
        begin = begin < 0 ? 0 : begin / ATTENTION_PIECE * ATTENTION_PIECE;
        for (int32_t head = 0; head < group; head += heads) {
            struct attention_task unit = {.sequence = sequence,
                                          .first_head = head,
                                          .n_heads = min32(heads, group - head),
                                          .first_row = start + first,
                                          .n_rows = end - first,
                                          .place = place,
                                          .begin = begin,
                                          .end = past + end};
            unit.n_kv_heads =
                unit_kv_heads(shape, unit.n_rows * unit.n_heads, unit.end - unit.begin);
            visit(walk, &unit);
        }
    }
}

/* A counting sort by cost, to an eighth of the dearest, shared out: the pool gives each thread as
 * many tasks in a row, and those are its part of the dearest eighth, then of the next and so on. No
 * thread is left with a long task when the others have ended, and tasks of one cost stay in the
 * order in which their memory lies. */
static void order_tasks(const struct attention_task *tasks, int32_t n, int64_t most,
                        int32_t n_threads, int32_t *order)
{
    enum { BUCKETS = 8 };
    int32_t starts[BUCKETS + 1] = {0}, *sorted = order + n;
    for (int32_t i = 0; i < n; i++)
        starts[BUCKETS - unit_cost(&tasks[i]) * (BUCKETS - 1) / most]++;
    for (int b = 1; b <= BUCKETS; b++)
        starts[b] += starts[b - 1];
    for (int32_t i = n - 1; i >= 0; i--)
        sorted[--starts[BUCKETS - unit_cost(&tasks[i]) * (BUCKETS - 1) / most]] = i;
    for (int64_t t = 0; t < n_threads; t++)
        for (int b = 0; b <= BUCKETS; b++) {
            int64_t start = starts[b], size = (b < BUCKETS ? starts[b + 1] : n) - start;
            for (int64_t i = size * t / n_threads; i < size * (t + 1) / n_threads; i++)
                *order++ = sorted[start + i];
        }
}

int32_t attention_plan(const struct paged_attention_args *args, const struct attention_shape *shape,
                       const struct attention_space *space, struct attention_task *tasks,
                       int32_t *order, int64_t *work)
{
    struct walk walk = {.space = space, .shape = shape, .tasks = tasks};
    for (int32_t i = 0; i < args->n_sequences; i++)
        walk_sequence(args, shape, i, count_unit, &walk);
    *work = walk.total * shape->head_dim / 64;
    walk.most_parts = shape->n_threads > 1 ? space->n_slots : 0;
    for (int32_t i = 0; i < args->n_sequences; i++)
        walk_sequence(args, shape, i, emit_unit, &walk);
    assert(walk.n_tasks <= space->most_tasks && walk.n_slots <= space->n_slots);
    if (walk.n_tasks > 0)
        order_tasks(tasks, walk.n_tasks, walk.most, shape->n_threads, order);
    return walk.n_tasks;
}
