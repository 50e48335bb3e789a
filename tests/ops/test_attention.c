/* Paged attention: the scalar twin against a softmax in double written here, every level against
 * the twin, over ragged batches, windows, page tables in any order and every KV dtype. */
#include "ops/ops_support.h"

#include "base/half.h"
#include "device/kv_layout.h"

enum { MAX_SEQUENCES = 6 };

struct shape {
    int32_t n_kv_heads, group, dim, page_size, window;
    enum dtype dtype;
    int32_t n_sequences;
    int32_t q_len[MAX_SEQUENCES], kv_len[MAX_SEQUENCES];
    float sinks; /* the largest of the heads' sinks; 0: there are none */
};

/* The inputs of a case: everything that each token's K and V was, and the args on one device. */
struct bench {
    struct shape shape;
    struct device *device;
    struct buffer pages;
    struct matrix *k[MAX_SEQUENCES],
        *v[MAX_SEQUENCES]; /* [kv_len, heads * dim], as the KV dtype has it */
    struct matrix *q, *out, *q_start, *kv_len, *table, *sinks;
    struct kv_pages kv;
    int32_t n_pages, n_rows;
};

static float as_stored(enum dtype dtype, float x)
{
    if (dtype == DTYPE_F16)
        return f32_from_f16(f16_from_f32(x));
    return dtype == DTYPE_BF16 ? f32_from_bf16(bf16_from_f32(x)) : x;
}

static bool has_codes(enum dtype dtype)
{
    return dtype == DTYPE_I8 || dtype == DTYPE_I4;
}

/* Pages in random order; every page and place that is not filled is full of NaN. */
static void fill_table(struct bench *b, uint64_t *state)
{
    const struct shape *s = &b->shape;
    int32_t most = 1;
    for (int i = 0; i < s->n_sequences; i++) {
        int32_t pages = (s->kv_len[i] + s->page_size - 1) / s->page_size;
        b->n_pages += pages;
        most = pages > most ? pages : most;
    }
    b->n_pages += 3;
    int32_t *order = malloc((size_t)b->n_pages * sizeof *order);
    assert_non_null(order);
    for (int32_t i = 0; i < b->n_pages; i++) {
        int32_t j = random_below(state, i + 1);
        order[i] = order[j];
        order[j] = i;
    }
    b->table = new_matrix(b->device, DTYPE_I32, s->n_sequences, most, 2);
    int32_t next = 0;
    for (int i = 0; i < s->n_sequences; i++)
        for (int32_t p = 0; p < (s->kv_len[i] + s->page_size - 1) / s->page_size; p++)
            ints_at(b->table, i)[p] = order[next++];
    free(order);
}

/* Stores the sequences' tokens in batches of `batch` rows. */
static void store_all(struct bench *b, int32_t batch)
{
    const struct shape *s = &b->shape;
    for (int i = 0; i < s->n_sequences; i++)
        for (int32_t first = 0; first < s->kv_len[i]; first += batch) {
            int32_t n = s->kv_len[i] - first < batch ? s->kv_len[i] - first : batch;
            struct matrix *slots = new_matrix(b->device, DTYPE_I32, n, 1, 0);
            for (int32_t t = 0; t < n; t++)
                ints_at(slots, t)[0] =
                    ints_at(b->table, i)[(first + t) / s->page_size] * s->page_size +
                    (first + t) % s->page_size;
            struct kv_store_args args = {b->kv, tensor_rows(b->k[i]->tensor, first, n),
                                         tensor_rows(b->v[i]->tensor, first, n), slots->tensor};
            device_kv_store(b->device, &args);
            free_matrix(b->device, slots);
        }
}

/* What has left the window of every row: its tokens become NaN, its pages are gone from the table.
 */
static void forget_unseen(struct bench *b)
{
    const struct shape *s = &b->shape;
    struct matrix *nan = new_matrix(b->device, DTYPE_F32, 1, s->n_kv_heads * s->dim, 0);
    struct matrix *slot = new_matrix(b->device, DTYPE_I32, 1, 1, 0);
    for (int32_t c = 0; c < nan->tensor.cols; c++)
        at(nan, 0)[c] = NAN;
    for (int i = 0; i < s->n_sequences && s->window > 0; i++) {
        int32_t first = s->kv_len[i] - s->q_len[i] - s->window + 1;
        if (has_codes(s->dtype) && first > 0) /* later tokens of a page need those before them */
            first = first / s->page_size * s->page_size;
        for (int32_t t = 0; t < first; t++) {
            int32_t *page = &ints_at(b->table, i)[t / s->page_size];
            ints_at(slot, 0)[0] = *page * s->page_size + t % s->page_size;
            device_kv_store(b->device,
                            &(struct kv_store_args){b->kv, nan->tensor, nan->tensor, slot->tensor});
            if ((t + 1) % s->page_size == 0)
                *page = -100000000;
        }
    }
    free_matrix(b->device, nan);
    free_matrix(b->device, slot);
}

static void round_matrix(struct matrix *m, enum dtype dtype)
{
    for (int32_t r = 0; r < m->tensor.rows; r++)
        for (int32_t c = 0; c < m->tensor.cols; c++)
            at(m, r)[c] = as_stored(dtype, at(m, r)[c]);
}

static struct bench *open_bench(struct device *device, const struct shape *shape, uint64_t seed)
{
    struct bench *b = calloc(1, sizeof *b);
    assert_non_null(b);
    b->shape = *shape;
    b->device = device;
    const struct shape *s = &b->shape;
    uint64_t state = seed;
    fill_table(b, &state);
    struct kv_layout layout = {s->page_size, s->n_kv_heads, s->dim, s->dtype};
    size_t page_bytes = device->table->kv_page_bytes(device, &layout);
    struct error error;
    assert_int_equal(device->table->buffer_alloc(device, page_bytes * (size_t)b->n_pages + 64,
                                                 &b->pages, &error),
                     OK);
    memset(b->pages.host, 0xFF, b->pages.bytes);
    b->q_start = new_matrix(device, DTYPE_I32, s->n_sequences + 1, 1, 0);
    b->kv_len = new_matrix(device, DTYPE_I32, s->n_sequences, 1, 0);
    ints_at(b->q_start, 0)[0] = 0;
    for (int i = 0; i < s->n_sequences; i++) {
        b->k[i] = random_matrix(device, s->kv_len[i], s->n_kv_heads * s->dim, 1, &state);
        b->v[i] = random_matrix(device, s->kv_len[i], s->n_kv_heads * s->dim, 2, &state);
        b->n_rows += s->q_len[i];
        ints_at(b->q_start, i + 1)[0] = b->n_rows;
        ints_at(b->kv_len, i)[0] = s->kv_len[i];
    }
    /* Mostly rows that lie on 16 bytes, which some kernels need. */
    b->q = random_matrix(device, b->n_rows, s->n_kv_heads * s->group * s->dim, seed % 4 ? 4 : 1,
                         &state);
    b->out = new_matrix(device, DTYPE_F32, b->n_rows, s->n_kv_heads * s->group * s->dim, 3);
    b->sinks = random_matrix(device, 1, s->n_kv_heads * s->group, 0, &state);
    for (int32_t h = 0; h < b->sinks->tensor.cols; h++)
        at(b->sinks, 0)[h] *= s->sinks;
    b->kv = (struct kv_pages){&b->pages, 64, layout};
    if (device->table->attention_reserve(device, &layout, s->n_kv_heads * s->group, b->n_rows,
                                         s->n_sequences, &error) != OK)
        fail_msg("%s", error.message);
    store_all(b, 1 + (int32_t)(seed % 40) * 5);
    forget_unseen(b);
    for (int i = 0; i < s->n_sequences; i++) {
        round_matrix(b->k[i], s->dtype);
        round_matrix(b->v[i], s->dtype);
    }
    return b;
}

static void attend(struct bench *b)
{
    const struct shape *s = &b->shape;
    struct paged_attention_args args = {.pages = b->kv,
                                        .q = b->q->tensor,
                                        .out = b->out->tensor,
                                        .q_start = b->q_start->tensor,
                                        .kv_len = b->kv_len->tensor,
                                        .page_table = b->table->tensor,
                                        .n_sequences = s->n_sequences,
                                        .n_q_heads = s->n_kv_heads * s->group,
                                        .window = s->window,
                                        .scale = 2.5f / sqrtf((float)s->dim)};
    if (s->sinks > 0)
        args.sinks = b->sinks->tensor;
    device_paged_attention(b->device, &args);
}

static void close_bench(struct bench *b)
{
    b->device->table->buffer_free(b->device, &b->pages);
    for (int i = 0; i < b->shape.n_sequences; i++) {
        free_matrix(b->device, b->k[i]);
        free_matrix(b->device, b->v[i]);
    }
    struct matrix *all[] = {b->q, b->out, b->q_start, b->kv_len, b->table, b->sinks};
    for (int i = 0; i < 6; i++)
        free_matrix(b->device, all[i]);
    free(b);
}

/* --- the twin against the definition ---------------------------------------------------------- */

static void naive_head(const struct bench *b, int sequence, int32_t place, int32_t row,
                       int32_t head, double *out)
{
    const struct shape *s = &b->shape;
    int32_t kv = head / s->group * s->dim;
    int32_t first = s->window > 0 && place - s->window + 1 > 0 ? place - s->window + 1 : 0;
    const float *q = at(b->q, row) + head * s->dim;
    double *p = malloc((size_t)(place + 1) * sizeof *p), largest = -INFINITY, sum = 0;
    assert_non_null(p);
    for (int32_t t = first; t <= place; t++) {
        p[t] = 0;
        for (int32_t d = 0; d < s->dim; d++)
            p[t] += (double)q[d] * (double)at(b->k[sequence], t)[kv + d];
        p[t] *= (double)(2.5f / sqrtf((float)s->dim));
        largest = p[t] > largest ? p[t] : largest;
    }
    double sink = (double)at(b->sinks, 0)[head];
    if (s->sinks > 0) {
        largest = sink > largest ? sink : largest;
        sum = exp(sink - largest);
    }
    for (int32_t t = first; t <= place; t++)
        sum += p[t] = exp(p[t] - largest);
    for (int32_t d = 0; d < s->dim; d++) {
        out[d] = 0;
        for (int32_t t = first; t <= place; t++)
            out[d] += p[t] / sum * (double)at(b->v[sequence], t)[kv + d];
    }
    free(p);
}

static void check_naive(const struct bench *b, double tolerance)
{
    const struct shape *s = &b->shape;
    double expected[256];
    for (int i = 0; i < s->n_sequences; i++)
        for (int32_t r = 0; r < s->q_len[i]; r++)
            for (int32_t h = 0; h < s->n_kv_heads * s->group; h++) {
                int32_t row = ints_at(b->q_start, i)[0] + r;
                naive_head(b, i, s->kv_len[i] - s->q_len[i] + r, row, h, expected);
                for (int32_t d = 0; d < s->dim; d++) {
                    double x = (double)at(b->out, row)[h * s->dim + d];
                    if (!(fabs(x - expected[d]) <= tolerance))
                        fail_msg("row %d head %d dim %d is %.9g, not %.9g", row, h, d, x,
                                 expected[d]);
                }
            }
    check_borders(b->out);
}

static const struct shape small_shapes[] = {
    {1, 1, 64, 16, 0, DTYPE_F32, 1, {1}, {1}, 0},
    {2, 3, 64, 16, 0, DTYPE_F32, 3, {1, 5, 17}, {40, 5, 33}, 0},
    {3, 1, 80, 16, 7, DTYPE_F16, 2, {3, 1}, {50, 16}, 0},
    {1, 8, 96, 32, 33, DTYPE_BF16, 2, {20, 1}, {70, 100}, 0},
    {1, 4, 128, 1, 0, DTYPE_BF16, 2, {2, 1}, {9, 20}, 0},
    {2, 2, 16, 2, 5, DTYPE_BF16, 2, {2, 1}, {9, 20}, 0},
    {2, 2, 10, 4, 5, DTYPE_F16, 2, {2, 1}, {9, 20}, 0},
    {2, 2, 6, 8, 0, DTYPE_F32, 2, {20, 1}, {29, 20}, 0},
    {1, 3, 256, 64, 0, DTYPE_F32, 1, {70}, {70}, 0},
    {2, 3, 64, 16, 0, DTYPE_F32, 2, {5, 1}, {40, 1}, 4},
    {1, 8, 64, 16, 7, DTYPE_BF16, 2, {20, 1}, {33, 50}, 200},
    /* Places enough for several threadgroups a row. */
    {1, 4, 128, 16, 0, DTYPE_BF16, 1, {1}, {200}, 3},
    {2, 2, 64, 16, 100, DTYPE_F16, 2, {2, 1}, {300, 130}, 0},
    {1, 5, 128, 32, 0, DTYPE_F32, 1, {1}, {150}, 0},
    {1, 1, 256, 16, 0, DTYPE_BF16, 1, {2}, {190}, 2},
    {1, 1, 128, 16, 40, DTYPE_F16, 2, {1, 1}, {70, 230}, 0},
    {1, 2, 128, 16, 0, DTYPE_F32, 1, {3}, {66}, 0},
    {1, 2, 256, 64, 0, DTYPE_F16, 1, {1}, {129}, 0},
    /* Rows enough for tiles: heads of a row in two tiles, the fewest rows, windows within a tile
     * and longer than one, odd head sizes, long contexts, rows beside that are too few. */
    {1, 7, 64, 16, 0, DTYPE_BF16, 2, {9, 1}, {9, 40}, 0},
    {1, 1, 64, 16, 0, DTYPE_F32, 3, {16, 17, 1}, {16, 81, 150}, 0},
    {2, 1, 72, 8, 20, DTYPE_F16, 3, {33, 40, 2}, {70, 40, 30}, 2},
    {1, 2, 128, 1, 37, DTYPE_F32, 1, {50}, {120}, 300},
    {1, 16, 192, 32, 0, DTYPE_BF16, 2, {3, 2}, {100, 9}, 0},
    {1, 1, 96, 64, 5, DTYPE_BF16, 1, {65}, {65}, 0},
    {1, 33, 8, 16, 0, DTYPE_F32, 2, {2, 1}, {40, 9}, 3},
    {3, 2, 256, 4, 11, DTYPE_F16, 2, {10, 20}, {77, 20}, 0},
    {2, 4, 128, 16, 0, DTYPE_BF16, 2, {40, 3}, {200, 130}, 1},
};

/* On the twin and on a GPU, whose pages lie otherwise. */
static void attention_is_softmax(void **test)
{
    (void)test;
    for (int d = 0; d < n_test_devices(); d++) {
        if (d != CPU_ISA_SCALAR && !is_test_gpu(d))
            continue;
        struct device *device = open_test_device(d, ACTIVATIONS_FLOAT, 2);
        for (size_t i = 0; i < sizeof small_shapes / sizeof *small_shapes; i++) {
            struct bench *b = open_bench(device, &small_shapes[i], 7 + i);
            attend(b);
            check_naive(b, is_test_gpu(d) ? 1e-5 : 1e-6);
            close_bench(b);
        }
        device->table->close(device);
    }
}

/* On a GPU that may round what it multiplies: heads, types and pages that native kernels take, few
 * rows and many, contexts that are split over threadgroups. */
static const struct shape gpu_shapes[] = {
    {1, 1, 64, 16, 0, DTYPE_BF16, 1, {1}, {1}, 0},
    {2, 2, 64, 16, 0, DTYPE_BF16, 2, {1, 1}, {3001, 17}, 0},
    {8, 4, 128, 16, 0, DTYPE_BF16, 1, {1}, {2113}, 0},
    {2, 4, 128, 64, 0, DTYPE_F16, 3, {1, 1, 1}, {4096, 15, 300}, 3},
    {2, 8, 128, 16, 700, DTYPE_BF16, 2, {1, 1}, {1500, 90}, 0},
    {1, 24, 64, 16, 0, DTYPE_F16, 2, {1, 1}, {700, 33}, 2},
    {2, 4, 128, 16, 0, DTYPE_BF16, 3, {4, 2, 1}, {900, 1200, 5}, 0},
    {2, 4, 128, 16, 0, DTYPE_F16, 4, {4, 70, 1, 5}, {900, 70, 500, 1200}, 0},
    {1, 3, 64, 16, 100, DTYPE_BF16, 3, {300, 70, 1}, {300, 220, 1000}, 2},
    {1, 7, 64, 32, 0, DTYPE_F16, 2, {40, 1}, {1050, 17}, 0},
    {2, 2, 256, 16, 0, DTYPE_BF16, 2, {1, 1}, {1000, 70}, 0},
    {1, 8, 256, 16, 60, DTYPE_F16, 2, {90, 1}, {200, 70}, 0},
    {3, 1, 128, 16, 0, DTYPE_BF16, 2, {129, 64}, {129, 640}, 0},
};

static void rounded_attention_of_a_gpu_is_near_softmax(void **test)
{
    (void)test;
    if (!has_real_gpu())
        return;
    struct device *device = open_test_device(n_test_devices() - 1, ACTIVATIONS_AUTO, 1);
    for (size_t i = 0; i < sizeof gpu_shapes / sizeof *gpu_shapes; i++) {
        struct bench *b = open_bench(device, &gpu_shapes[i], 31 + i);
        for (int again = 0; again < 2; again++) { /* the second finds what the first left */
            attend(b);
            check_naive(b, 1e-2);
        }
        close_bench(b);
    }
    device->table->close(device);
}

/* --- codes on a GPU --------------------------------------------------------------------------- */

/* A case with pages of int8 on the GPU and on the twin, which rounds to the same codes. */
static void compare_codes(struct device *gpu, struct device *twin, const struct shape *shape,
                          uint64_t seed, double tolerance)
{
    struct shape coded = *shape;
    coded.dtype = DTYPE_I8;
    struct bench *ours = open_bench(gpu, &coded, seed), *b = open_bench(twin, &coded, seed);
    char what[120];
    snprintf(what, sizeof what, "codes, heads %d x %d, dim %d, page %d, window %d, q %d, kv %d",
             shape->n_kv_heads, shape->group, shape->dim, shape->page_size, shape->window,
             shape->q_len[0], shape->kv_len[0]);
    attend(b);
    for (int again = 0; again < 2; again++) { /* the second finds what the first left */
        attend(ours);
        check_close(ours->out, b->out, tolerance, 1, what);
        check_borders(ours->out);
    }
    close_bench(ours);
    close_bench(b);
}

static void codes_of_a_gpu_are_the_twins(void **test)
{
    (void)test;
    static const struct shape larger_head = {1, 2, 320, 8, 9, DTYPE_I8, 2, {3, 1}, {20, 11}, 3};
    if (!test_gpu())
        return;
    struct device *twin = open_device(CPU_ISA_SCALAR, ACTIVATIONS_FLOAT, 2);
    struct device *gpu = open_test_device(n_test_devices() - 1, ACTIVATIONS_FLOAT, 2);
    for (size_t i = 0; i < sizeof small_shapes / sizeof *small_shapes; i++)
        compare_codes(gpu, twin, &small_shapes[i], 7 + i, 1e-5);
    compare_codes(gpu, twin, &larger_head, 5, 1e-5);
    gpu->table->close(gpu);
    twin->table->close(twin);
}

static void rounded_attention_of_a_gpu_is_near_the_twin_on_codes(void **test)
{
    (void)test;
    if (!has_real_gpu())
        return;
    struct device *twin = open_device(CPU_ISA_SCALAR, ACTIVATIONS_FLOAT, 2);
    struct device *gpu = open_test_device(n_test_devices() - 1, ACTIVATIONS_AUTO, 1);
    for (size_t i = 0; i < sizeof gpu_shapes / sizeof *gpu_shapes; i++)
        compare_codes(gpu, twin, &gpu_shapes[i], 31 + i, 1e-2);
    gpu->table->close(gpu);
    twin->table->close(twin);
}

/* --- levels against the twin ------------------------------------------------------------------ */

/* A device for every level above the twin with 1, 2 and 3 threads. */
struct devices {
    struct device *twin, *all[N_CPU_ISAS * 3];
    int n;
};

static struct devices open_devices(enum activations activations)
{
    struct devices devices = {.twin = open_device(CPU_ISA_SCALAR, ACTIVATIONS_FLOAT, 2)};
    for (enum cpu_isa isa = CPU_ISA_VECTOR; isa <= cpu_isa_best(); isa++)
        for (int n_threads = 1; n_threads <= 3; n_threads++)
            devices.all[devices.n++] = open_device(isa, activations, n_threads);
    return devices;
}

static void close_devices(struct devices *devices)
{
    devices->twin->table->close(devices->twin);
    for (int i = 0; i < devices->n; i++)
        devices->all[i]->table->close(devices->all[i]);
}

/* Pages equal bit for bit, results within `tolerance` of the largest |v|, which is 1. */
static void compare_all(struct devices *devices, const struct shape *shape, uint64_t seed,
                        double tolerance)
{
    struct bench *twin = open_bench(devices->twin, shape, seed);
    attend(twin);
    for (int i = 0; i < devices->n; i++) {
        struct bench *b = open_bench(devices->all[i], shape, seed);
        char what[160];
        snprintf(what, sizeof what,
                 "device %d: heads %d x %d, dim %d, page %d, window %d, sinks %g, %s, "
                 "sequences %d, q %d, kv %d",
                 i, shape->n_kv_heads, shape->group, shape->dim, shape->page_size, shape->window,
                 (double)shape->sinks, dtype_name(shape->dtype), shape->n_sequences,
                 shape->q_len[0], shape->kv_len[0]);
        assert_int_equal(b->pages.bytes, twin->pages.bytes);
        if (memcmp(b->pages.host, twin->pages.host, b->pages.bytes) != 0)
            fail_msg("%s: the pages differ", what);
        attend(b);
        check_close(b->out, twin->out, tolerance, 1, what);
        check_borders(b->out);
        close_bench(b);
    }
    close_bench(twin);
}

/* A random ragged batch: decode rows, chunks on top of a cache, fresh prompts. */
static struct shape random_shape(uint64_t *state, int round)
{
    static const int32_t dims[] = {64, 80, 96, 128, 256, 8, 72, 2};
    static const int32_t groups[] = {1, 3, 4, 8, 2, 7};
    static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_I8, DTYPE_I4};
    struct shape s = {.n_kv_heads = 1 + random_below(state, 3),
                      .group = groups[random_below(state, 6)],
                      .dim = dims[random_below(state, 8)],
                      .page_size = 16 << random_below(state, 3),
                      .dtype = dtypes[round % 5],
                      .n_sequences = 1 + random_below(state, MAX_SEQUENCES)};
    if (random_below(state, 2))
        s.window = 1 + random_below(state, 150);
    if (round % 12 == 0)
        s.page_size = 1 << random_below(state, 4);
    for (int i = 0; i < s.n_sequences; i++) {
        s.q_len[i] = random_below(state, 2) ? 1 : 1 + random_below(state, 70);
        s.kv_len[i] = s.q_len[i] + (random_below(state, 3) ? random_below(state, 200) : 0);
    }
    if (random_below(state, 3) == 0)
        s.sinks = random_below(state, 4) ? 3 : 300;
    return s;
}

static void random_shapes_on(enum activations activations, int rounds, double rounded_tolerance)
{
    struct devices devices = open_devices(activations);
    uint64_t state = 100 + (uint64_t)activations;
    for (int round = 0; round < rounds; round++) {
        struct shape shape = random_shape(&state, round);
        bool is_rounded = shape.dtype == DTYPE_BF16 || has_codes(shape.dtype);
        compare_all(&devices, &shape, state, is_rounded ? rounded_tolerance : 1e-5);
    }
    close_devices(&devices);
}

static void float_attention_of_all_levels_equals_the_twin(void **test)
{
    (void)test;
    random_shapes_on(ACTIVATIONS_FLOAT, 100, 1e-5);
}

static void rounded_attention_of_all_levels_is_near_the_twin(void **test)
{
    (void)test;
    random_shapes_on(ACTIVATIONS_INT8, 100, 1e-2);
}

/* Long enough that units are split into parts and merged, or that a chunk is many tiles. */
static void long_contexts_equal_the_twin(void **test)
{
    (void)test;
    static const struct shape shapes[] = {
        {2, 2, 64, 16, 0, DTYPE_BF16, 1, {1}, {3001}, 0},
        {1, 4, 128, 64, 0, DTYPE_F32, 1, {1}, {4096}, 0},
        {1, 3, 64, 16, 0, DTYPE_F16, 2, {40, 1}, {1050, 17}, 0},
        {3, 1, 64, 16, 1500, DTYPE_BF16, 1, {3}, {2500}, 0},
        {1, 3, 64, 16, 0, DTYPE_BF16, 2, {300, 70}, {300, 120}, 0},
        {1, 80, 8, 16, 0, DTYPE_BF16, 1, {3}, {600}, 0},
        {2, 8, 64, 16, 0, DTYPE_BF16, 1, {1}, {3001}, 5},
        {1, 3, 64, 64, 0, DTYPE_F32, 2, {1, 1}, {2000, 3000}, 200},
        {2, 2, 128, 16, 0, DTYPE_I8, 1, {1}, {3001}, 0},
        {5, 2, 128, 16, 0, DTYPE_BF16, 2, {1, 1}, {1800, 77}, 5},
        {5, 1, 144, 64, 1000, DTYPE_BF16, 2, {2, 1}, {1300, 90}, 0},
        {1, 7, 64, 64, 1500, DTYPE_I4, 2, {1, 40}, {2500, 1050}, 5},
    };
    for (enum activations mode = ACTIVATIONS_FLOAT; mode <= ACTIVATIONS_INT8; mode++) {
        struct devices devices = open_devices(mode);
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            bool is_rounded = mode == ACTIVATIONS_INT8 &&
                              (shapes[i].dtype == DTYPE_BF16 || has_codes(shapes[i].dtype));
            compare_all(&devices, &shapes[i], 55 + i, is_rounded ? 1e-2 : 1e-5);
        }
        close_devices(&devices);
    }
}

/* --- codes ------------------------------------------------------------------------------------ */

/* Root of the mean square of the twin's error against softmax over K and V as they were given, in
 * that of its results. Keys have `common` in all of them, as the keys of a model do. */
static double coded_error(enum dtype dtype, int32_t dim, float common)
{
    struct device *device = open_device(CPU_ISA_SCALAR, ACTIVATIONS_FLOAT, 2);
    struct shape shape = {2, 2, dim, 16, 0, dtype, 1, {150}, {150}, 0};
    struct bench *b = open_bench(device, &shape, 5);
    for (int32_t t = 0; t < 150; t++)
        for (int32_t c = 0; c < b->k[0]->tensor.cols; c++)
            at(b->k[0], t)[c] += c % 3 ? common : -common;
    store_all(b, 150);
    attend(b);
    double error = 0, power = 0, expected[256];
    for (int32_t row = 0; row < 150; row++)
        for (int32_t h = 0; h < 4; h++) {
            naive_head(b, 0, row, row, h, expected);
            for (int32_t d = 0; d < dim; d++) {
                double x = (double)at(b->out, row)[h * dim + d];
                error += (x - expected[d]) * (x - expected[d]);
                power += expected[d] * expected[d];
            }
        }
    close_bench(b);
    device->table->close(device);
    return sqrt(error / power);
}

/* Noise of 16 levels is 0.0095 of the power of a normal distribution, 1/11 of its root; of 255 up
 * to 2.8 deviations, 1/160. */
static void codes_leave_little_error(void **test)
{
    (void)test;
    assert_true(coded_error(DTYPE_F32, 128, 0) < 1e-6);
    assert_true(coded_error(DTYPE_I8, 128, 0) < 0.011);
    assert_true(coded_error(DTYPE_I8, 80, 0) < 0.011);
    assert_true(coded_error(DTYPE_I4, 128, 0) < 0.17);
    /* What keys have in common is predicted, so that it costs little. */
    assert_true(coded_error(DTYPE_I8, 128, 1) < 0.011);
    assert_true(coded_error(DTYPE_I4, 128, 1) < 0.2);
}

/* Codes depend on the tokens before them in the page, not on how many come at a time. */
static void batches_do_not_change_codes(void **test)
{
    (void)test;
    static const enum dtype dtypes[] = {DTYPE_I8, DTYPE_I4};
    static const int32_t batches[] = {1, 3, 16, 40, 1000};
    struct device *device = open_device(cpu_isa_best(), ACTIVATIONS_FLOAT, 3);
    for (int i = 0; i < 2; i++) {
        struct shape shape = {5, 1, 96, 32, 0, dtypes[i], 1, {1}, {777}, 0};
        struct bench *b = open_bench(device, &shape, 8);
        char *first = malloc(b->pages.bytes);
        assert_non_null(first);
        memcpy(first, b->pages.host, b->pages.bytes);
        for (int n = 0; n < 5; n++) {
            memset(b->pages.host, 0xFF, b->pages.bytes);
            store_all(b, batches[n]);
            assert_memory_equal(first, b->pages.host, b->pages.bytes);
        }
        free(first);
        close_bench(b);
    }
    device->table->close(device);
}

/* --- independence of batches ------------------------------------------------------------------ */

/* One sequence in one chunk, and the same rows as decode steps and small chunks. */
static void check_chunks(struct device *device, enum dtype dtype, double tolerance)
{
    struct shape whole = {2, 3, 64, 16, 50, dtype, 1, {130}, {130}, 0};
    struct bench *b = open_bench(device, &whole, 77);
    attend(b);
    int32_t cols = b->q->tensor.cols, done = 0;
    struct matrix *out = new_matrix(device, DTYPE_F32, b->n_rows, cols, 3), *all = b->out;
    struct tensor q = b->q->tensor;
    static const int32_t chunks[] = {1, 1, 40, 1, 7, 80};
    for (int i = 0; i < 6; i++) {
        ints_at(b->q_start, 1)[0] = chunks[i];
        ints_at(b->kv_len, 0)[0] = done + chunks[i];
        b->q->tensor = tensor_rows(q, done, chunks[i]);
        struct matrix part = {out->buffer, tensor_rows(out->tensor, done, chunks[i])};
        b->out = &part;
        attend(b);
        done += chunks[i];
    }
    assert_int_equal(done, 130);
    check_close(out, all, tolerance, 1, "chunked");
    b->out = all;
    free_matrix(device, out);
    close_bench(b);
}

static void chunking_does_not_change_a_row(void **test)
{
    (void)test;
    for (int d = 0; d < n_test_devices(); d++) {
        struct device *device = open_test_device(d, ACTIVATIONS_FLOAT, 2);
        check_chunks(device, DTYPE_F32, 1e-5);
        check_chunks(device, DTYPE_BF16, 1e-5);
        check_chunks(device, DTYPE_I8, 1e-5);
        device->table->close(device);
        if (is_test_gpu(d))
            continue;
        device = open_test_device(d, ACTIVATIONS_INT8, 2);
        check_chunks(device, DTYPE_BF16, 1e-2);
        check_chunks(device, DTYPE_I8, 1e-2);
        check_chunks(device, DTYPE_I4, 1e-2);
        device->table->close(device);
    }
}

/* A sequence's pages move to spare ones, one of them on the way over another: a row is the same. */
static void a_copied_page_reads_like_the_first(void **test)
{
    (void)test;
    static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_I8, DTYPE_I4};
    for (int i = 0; i < 10; i++) {
        enum dtype dtype = dtypes[i / 2];
        int last =
            i % 2 * (n_test_devices() - 1); /* the twin, and the last: a GPU if there is one */
        if (dtype == DTYPE_I4 && is_test_gpu(last))
            last = (int)cpu_isa_best();
        struct device *device = open_test_device(last, ACTIVATIONS_FLOAT, 2);
        struct shape shape = {.n_kv_heads = 2,
                              .group = 2,
                              .dim = 32,
                              .page_size = 16,
                              .dtype = dtype,
                              .n_sequences = 1,
                              .q_len = {5},
                              .kv_len = {43}};
        struct bench *b = open_bench(device, &shape, 91);
        attend(b);
        struct matrix *before = b->out, *pairs = new_matrix(device, DTYPE_I32, 4, 2, 0);
        b->out = new_matrix(device, DTYPE_F32, b->n_rows, before->tensor.cols, 3);
        int32_t *table = ints_at(b->table, 0), spare[3], n_spare = 0;
        for (int32_t page = 0; page < b->n_pages && n_spare < 3; page++)
            if (page != table[0] && page != table[1] && page != table[2])
                spare[n_spare++] = page;
        const int32_t copies[4][2] = {
            {table[0], spare[0]}, {spare[0], spare[1]}, {table[1], spare[0]}, {table[2], spare[2]}};
        for (int32_t p = 0; p < 4; p++)
            memcpy(ints_at(pairs, p), copies[p], sizeof copies[p]);
        device_kv_copy_page(device, &(struct kv_copy_page_args){b->kv, pairs->tensor});
        table[0] = spare[1];
        table[1] = spare[0];
        table[2] = spare[2];
        attend(b);
        check_close(b->out, before, 0, 1, "copied");
        free_matrix(device, before);
        free_matrix(device, pairs);
        close_bench(b);
        device->table->close(device);
    }
}

/* Scores whose exponentials would overflow, and ones that vanish. */
static void large_scores_do_not_overflow(void **test)
{
    (void)test;
    struct shape shape = {1, 2, 64, 16, 0, DTYPE_BF16, 1, {4}, {100}, 0};
    struct device *twin = open_device(CPU_ISA_SCALAR, ACTIVATIONS_FLOAT, 1);
    for (enum cpu_isa isa = CPU_ISA_VECTOR; isa <= cpu_isa_best(); isa++)
        for (enum activations mode = ACTIVATIONS_FLOAT; mode <= ACTIVATIONS_INT8; mode++) {
            struct device *device = open_device(isa, mode, 2);
            struct bench *a = open_bench(device, &shape, 3), *b = open_bench(twin, &shape, 3);
            for (int32_t r = 0; r < 4; r++)
                for (int32_t c = 0; c < a->q->tensor.cols; c++) /* bf16 values: no rounding of q */
                    at(a->q, r)[c] = at(b->q, r)[c] = as_stored(DTYPE_BF16, at(a->q, r)[c] * 1024);
            attend(a);
            attend(b);
            check_close(a->out, b->out, 2e-2, 1, "large scores");
            close_bench(a);
            close_bench(b);
            device->table->close(device);
        }
    twin->table->close(twin);
}

/* --- refusals --------------------------------------------------------------------------------- */

static void what_cannot_be_done_is_refused(void **test)
{
    (void)test;
    struct device *device = open_device(CPU_ISA_SCALAR, ACTIVATIONS_FLOAT, 1);
    static const struct {
        struct kv_layout layout;
        int32_t n_q_heads, max_rows, max_sequences;
    } bad[] = {
        {{16, 2, 64, DTYPE_I32}, 4, 8, 8},
        {{16, 2, 63, DTYPE_F32}, 4, 8, 8},
        {{16, 2, 0, DTYPE_F32}, 4, 8, 8},
        {{16, 2, 4096, DTYPE_F32}, 4, 8, 8},
        {{24, 2, 64, DTYPE_F32}, 4, 8, 8},
        {{0, 2, 64, DTYPE_F32}, 4, 8, 8},
        {{16, 2, 64, DTYPE_F32}, 5, 8, 8},
        {{16, 0, 64, DTYPE_F32}, 4, 8, 8},
        {{16, 2, 64, DTYPE_F32}, 4, 0, 8},
        {{16, 2, 64, DTYPE_F32}, 4, 8, -1},
        {{16, 1 << 20, 64, DTYPE_F32}, 1 << 20, INT32_MAX, 8},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct error error = {0};
        enum status status =
            device->table->attention_reserve(device, &bad[i].layout, bad[i].n_q_heads,
                                             bad[i].max_rows, bad[i].max_sequences, &error);
        assert_int_not_equal(status, OK);
        assert_true(strlen(error.message) > 20);
    }
    device->table->close(device);
    struct kv_layout codes = {16, 2, 64, DTYPE_I4};
    struct error error = {0};
    assert_int_equal(kv_layout_check(&codes, 4, 64, false, "GPU", &error), ERROR_UNSUPPORTED);
    assert_string_equal(
        error.message, "a KV cache of int4 is not possible on the GPU; use f32, f16, bf16 or int8");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_is_softmax),
        cmocka_unit_test(rounded_attention_of_a_gpu_is_near_softmax),
        cmocka_unit_test(codes_of_a_gpu_are_the_twins),
        cmocka_unit_test(rounded_attention_of_a_gpu_is_near_the_twin_on_codes),
        cmocka_unit_test(float_attention_of_all_levels_equals_the_twin),
        cmocka_unit_test(rounded_attention_of_all_levels_is_near_the_twin),
        cmocka_unit_test(long_contexts_equal_the_twin),
        cmocka_unit_test(codes_leave_little_error),
        cmocka_unit_test(batches_do_not_change_codes),
        cmocka_unit_test(chunking_does_not_change_a_row),
        cmocka_unit_test(a_copied_page_reads_like_the_first),
        cmocka_unit_test(large_scores_do_not_overflow),
        cmocka_unit_test(what_cannot_be_done_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
