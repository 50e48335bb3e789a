#include "device/cpu/measure.h"

#include "base/system.h"
#include "base/thread_pool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum {
    BUFFER_BYTES = 256 << 20, /* larger than the caches of most machines */
    BUFFER_MIN_BYTES = 32 << 20,
    CHUNK_BYTES = 1 << 20,
    HUGE_PAGE = 2 << 20,
    PASSES = 5, /* the best one counts: the others met somebody else's work */
    TRIPS = 20000,
    SINK_STRIDE = 64 /* floats: two threads write no common line */
};

static const double pass_seconds = 0.02, trip_seconds = 0.3;

/* --- the scalar kernels ----------------------------------------------------------------------- */

enum { SCALAR_CHAINS = 16 };

static void scalar_f32(long rounds, float *sink)
{
    float sums[SCALAR_CHAINS], factor = 0.9999f, term = 1e-4f;
    for (int i = 0; i < SCALAR_CHAINS; i++)
        sums[i] = (float)i;
    for (long round = 0; round < rounds; round++)
        for (int i = 0; i < SCALAR_CHAINS; i++)
            sums[i] = sums[i] * factor + term;
    for (int i = 0; i < SCALAR_CHAINS; i++)
        *sink += sums[i];
}

static uint64_t scalar_read(const uint64_t *words, size_t n)
{
    uint64_t sums[8] = {0};
    for (size_t i = 0; i < n; i += 8)
        for (int k = 0; k < 8; k++)
            sums[k] += words[i + (size_t)k];
    uint64_t sum = 0;
    for (int k = 0; k < 8; k++)
        sum += sums[k];
    return sum;
}

static const struct measure_kernels scalar_kernels = {
    .arithmetic = {[ARITHMETIC_F32] = {scalar_f32, 2.0 * SCALAR_CHAINS}}, .read = scalar_read};

#if defined(__x86_64__)
extern const struct measure_kernels cpu_measure_avx2, cpu_measure_avx512, cpu_measure_amx;

const struct measure_kernels *cpu_measure_kernels(enum cpu_isa isa)
{
    return isa >= CPU_ISA_AMX      ? &cpu_measure_amx
           : isa >= CPU_ISA_AVX512 ? &cpu_measure_avx512
           : isa >= CPU_ISA_AVX2   ? &cpu_measure_avx2
                                   : &scalar_kernels;
}
#elif defined(__aarch64__)
extern const struct measure_kernels cpu_measure_neon, cpu_measure_dotprod, cpu_measure_i8mm;

const struct measure_kernels *cpu_measure_kernels(enum cpu_isa isa)
{
    return isa >= CPU_ISA_I8MM      ? &cpu_measure_i8mm
           : isa >= CPU_ISA_DOTPROD ? &cpu_measure_dotprod
           : isa >= CPU_ISA_NEON    ? &cpu_measure_neon
                                    : &scalar_kernels;
}
#else
const struct measure_kernels *cpu_measure_kernels(enum cpu_isa isa)
{
    (void)isa;
    return &scalar_kernels;
}
#endif

/* --- arithmetic ------------------------------------------------------------------------------- */

struct arithmetic_run {
    void (*run)(long rounds, float *sink);
    long rounds;
    float *sinks;
};

static void run_arithmetic(void *context, int task, int worker)
{
    const struct arithmetic_run *r = context;
    (void)worker;
    r->run(r->rounds, &r->sinks[task * SINK_STRIDE]);
}

/* Rounds of `n` tasks a second, the best of some passes. */
static double rounds_per_second(struct thread_pool *pool, struct arithmetic_run *r, int n)
{
    double best = 0.0;
    for (int pass = 0; pass < PASSES; pass++) {
        double start = system_seconds();
        thread_pool_run(pool, run_arithmetic, r, n);
        double seconds = system_seconds() - start;
        double rate = seconds > 0.0 ? (double)r->rounds * n / seconds : 0.0;
        if (rate > best)
            best = rate;
    }
    return best;
}

static void measure_arithmetic(struct cpu_limits *out, struct thread_pool *pool,
                               const struct measure_kernels *kernels, float *sinks)
{
    for (int i = 0; i < N_ARITHMETICS; i++) {
        struct arithmetic_run r = {kernels->arithmetic[i].run, 1 << 14, sinks};
        if (!r.run)
            continue;
        double first = rounds_per_second(pool, &r, 1);
        r.rounds = (long)(first * pass_seconds) + 1;
        double operations = kernels->arithmetic[i].operations;
        out->operations_per_s[i][0] = operations * rounds_per_second(pool, &r, 1);
        out->operations_per_s[i][1] = operations * rounds_per_second(pool, &r, out->n_threads);
    }
}

/* --- memory ----------------------------------------------------------------------------------- */

struct read_run {
    const struct measure_kernels *kernels;
    const uint64_t *words;
    _Atomic uint64_t sum;
};

static void run_read(void *context, int task, int worker)
{
    struct read_run *r = context;
    size_t n = CHUNK_BYTES / sizeof *r->words;
    (void)worker;
    atomic_fetch_add_explicit(&r->sum, r->kernels->read(r->words + (size_t)task * n, n),
                              memory_order_relaxed);
}

static double read_rate(struct thread_pool *pool, struct read_run *r, size_t bytes)
{
    int n = (int)(bytes / CHUNK_BYTES);
    double best = 0.0;
    for (int pass = 0; pass < PASSES; pass++) {
        double start = system_seconds();
        thread_pool_run(pool, run_read, r, n);
        double rate = (double)bytes / (system_seconds() - start);
        if (rate > best)
            best = rate;
    }
    return best;
}

/* Pages of one kind are a wish: without huge pages both rows show the same. */
static void advise(void *memory, size_t bytes, enum page_kind kind)
{
#ifdef MADV_HUGEPAGE
    (void)madvise(memory, bytes, kind == PAGES_HUGE ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
#else
    (void)memory;
    (void)bytes;
    (void)kind;
#endif
}

static enum status measure_memory(struct cpu_limits *out, struct thread_pool *pool,
                                  struct thread_pool *single, const struct measure_kernels *kernels,
                                  struct error *error)
{
    uint64_t room = system_available_memory() / 4;
    size_t bytes = room && room < BUFFER_BYTES ? (size_t)room : BUFFER_BYTES;
    bytes -= bytes % HUGE_PAGE;
    if (bytes < BUFFER_MIN_BYTES)
        return error_set(error, ERROR_LIMIT,
                         "%d MiB of free memory are needed to measure reading from it",
                         BUFFER_MIN_BYTES >> 18);
    for (enum page_kind kind = PAGES_4K; kind < N_PAGE_KINDS; kind++) {
        size_t mapped = bytes + HUGE_PAGE;
        void *p = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED)
            return error_memory(error, mapped);
        advise(p, mapped, kind);
        char *memory = (char *)p + (HUGE_PAGE - (uintptr_t)p % HUGE_PAGE);
        memset(memory, 1, bytes);
        struct read_run r = {.kernels = kernels, .words = (const uint64_t *)(const void *)memory};
        out->bytes_per_s[kind][0] = read_rate(single, &r, bytes);
        out->bytes_per_s[kind][1] = read_rate(pool, &r, bytes);
        munmap(p, mapped);
    }
    return OK;
}

/* --- two threads ------------------------------------------------------------------------------ */

struct table_tennis {
    _Alignas(64) _Atomic int ball; /* even: the caller's turn */
    _Alignas(64) _Atomic bool is_over;
};

static void *return_balls(void *argument)
{
    struct table_tennis *t = argument;
    while (!atomic_load_explicit(&t->is_over, memory_order_relaxed)) {
        int ball = atomic_load_explicit(&t->ball, memory_order_acquire);
        if (ball & 1)
            atomic_store_explicit(&t->ball, ball + 1, memory_order_release);
    }
    return NULL;
}

static void measure_round_trip(struct cpu_limits *out)
{
    struct table_tennis t = {0};
    pthread_t other;
    if (out->n_threads < 2 || pthread_create(&other, NULL, return_balls, &t) != 0)
        return;
    int n = 0;
    double start = system_seconds(), now = start;
    for (; n < TRIPS && now - start < trip_seconds; n++) {
        atomic_store_explicit(&t.ball, 2 * n + 1, memory_order_release);
        while (atomic_load_explicit(&t.ball, memory_order_acquire) == 2 * n + 1)
            ;
        if (n % 64 == 0)
            now = system_seconds();
    }
    out->round_trip_s = (system_seconds() - start) / n;
    atomic_store(&t.is_over, true);
    pthread_join(other, NULL);
}

/* --- all of it -------------------------------------------------------------------------------- */

enum status cpu_measure(struct cpu_limits *out, int n_threads, enum cpu_isa isa,
                        struct error *error)
{
    struct thread_pool *pool = NULL, *single = NULL;
    const struct measure_kernels *kernels = cpu_measure_kernels(isa);
    *out = (struct cpu_limits){.n_threads = n_threads ? n_threads : thread_pool_default_size()};
    float *sinks = calloc((size_t)out->n_threads * SINK_STRIDE, sizeof *sinks);
    enum status status = sinks ? OK : error_memory(error, (unsigned long long)out->n_threads);
    if (status == OK)
        status = thread_pool_new(&single, 1, error);
    if (status == OK)
        status = thread_pool_new(&pool, out->n_threads, error);
    if (status == OK)
        status = measure_memory(out, pool, single, kernels, error);
    if (status == OK) {
        measure_arithmetic(out, pool, kernels, sinks);
        measure_round_trip(out);
    }
    thread_pool_free(pool);
    thread_pool_free(single);
    free(sinks);
    return status;
}
