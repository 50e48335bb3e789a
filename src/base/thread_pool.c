#include "base/thread_pool.h"

#include "base/system.h"

#include <assert.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum {
    MAX_THREADS = 1024,
    /* About 50 us of pauses on current x86 cores: longer than the gap between two ops of a step. */
    SPIN_ROUNDS = 2000,
    CACHE_LINE = 64
};

/* One worker's share of the tasks of a run; others may take from it. */
struct share {
    _Alignas(CACHE_LINE) _Atomic int next;
    int end;
};

struct worker {
    struct thread_pool *pool;
    pthread_t thread;
    int index;
};

/* A run is open from its announcement until its caller finds no task left. Workers enter while it
 * is open, and the caller waits for those inside alone: one that sleeps or has lost its core delays
 * nobody. All of that is one word: OPEN, and the number of workers inside. */
enum { OPEN = 1 << 30 };

struct thread_pool {
    int n_threads, n_started;
    struct worker *workers;
    struct share *shares;
    /* Written only while the run is closed and nobody is inside. */
    thread_task run;
    void *context;
    const struct thread_observer *observer;
    _Alignas(CACHE_LINE) _Atomic unsigned generation; /* raised once a run */
    _Alignas(CACHE_LINE) _Atomic int inside;
    _Alignas(CACHE_LINE) _Atomic int n_sleeping;
    _Atomic bool is_stopping;
    pthread_mutex_t lock; /* guards only the way into and out of sleep */
    pthread_cond_t wake;
};

static void pause_briefly(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void work(struct thread_pool *pool, int worker)
{
    for (int i = 0; i < pool->n_threads; i++) {
        struct share *share = &pool->shares[(worker + i) % pool->n_threads];
        for (;;) {
            int task = atomic_fetch_add_explicit(&share->next, 1, memory_order_relaxed);
            if (task >= share->end)
                break;
            pool->run(pool->context, task, worker);
        }
    }
}

/* Waits until the generation is not `seen` any more; returns the new one. */
static unsigned wait_for_run(struct thread_pool *pool, unsigned seen)
{
    for (int i = 0; i < SPIN_ROUNDS; i++) {
        unsigned now = atomic_load_explicit(&pool->generation, memory_order_acquire);
        if (now != seen)
            return now;
        pause_briefly();
    }
    pthread_mutex_lock(&pool->lock);
    atomic_fetch_add(&pool->n_sleeping, 1);
    unsigned now;
    while ((now = atomic_load(&pool->generation)) == seen)
        pthread_cond_wait(&pool->wake, &pool->lock);
    atomic_fetch_sub(&pool->n_sleeping, 1);
    pthread_mutex_unlock(&pool->lock);
    return now;
}

static void start_run(struct thread_pool *pool)
{
    atomic_fetch_add(&pool->generation, 1); /* sequentially consistent with n_sleeping */
    if (atomic_load(&pool->n_sleeping) > 0) {
        pthread_mutex_lock(&pool->lock);
        pthread_cond_broadcast(&pool->wake);
        pthread_mutex_unlock(&pool->lock);
    }
}

/* False if the run is over; a later one may have begun, which is entered as well. */
static bool enter_run(struct thread_pool *pool)
{
    int inside = atomic_load_explicit(&pool->inside, memory_order_relaxed);
    while (inside & OPEN)
        if (atomic_compare_exchange_weak_explicit(&pool->inside, &inside, inside + 1,
                                                  memory_order_acquire, memory_order_relaxed))
            return true;
    return false;
}

static void work_observed(struct thread_pool *pool, int worker)
{
    double begin = system_seconds();
    work(pool, worker);
    pool->observer->ran(pool->observer->context, worker, begin, system_seconds());
}

static void *worker_main(void *argument)
{
    struct worker *self = argument;
    struct thread_pool *pool = self->pool;
    unsigned seen = 0;
    for (;;) {
        seen = wait_for_run(pool, seen);
        if (atomic_load(&pool->is_stopping))
            return NULL;
        if (!enter_run(pool))
            continue;
        if (pool->observer)
            work_observed(pool, self->index);
        else
            work(pool, self->index);
        atomic_fetch_sub_explicit(&pool->inside, 1, memory_order_release);
    }
}

/* Signals are for the process's own threads: workers start with all of them blocked. */
static void start_workers(struct thread_pool *pool)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (int i = 1; i < pool->n_threads; i++) {
        pool->workers[i] = (struct worker){.pool = pool, .index = i};
        if (pthread_create(&pool->workers[i].thread, NULL, worker_main, &pool->workers[i]) != 0)
            break;
        pool->n_started++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

enum status thread_pool_new(struct thread_pool **out, int n_threads, struct error *error)
{
    *out = NULL;
    if (n_threads < 1 || n_threads > MAX_THREADS)
        return error_set(error, ERROR_LIMIT, "%d threads asked for; 1 to %d are possible",
                         n_threads, MAX_THREADS);
    struct thread_pool *pool = aligned_alloc(CACHE_LINE, sizeof *pool);
    if (!pool)
        return error_memory(error, sizeof *pool);
    *pool = (struct thread_pool){.n_threads = n_threads};
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pool->workers = calloc((size_t)n_threads, sizeof *pool->workers);
    pool->shares = aligned_alloc(CACHE_LINE, (size_t)n_threads * sizeof *pool->shares);
    if (!pool->workers || !pool->shares) {
        thread_pool_free(pool);
        return error_memory(error, (size_t)n_threads * sizeof *pool->shares);
    }
    start_workers(pool);
    if (pool->n_started < n_threads - 1) {
        int n_started = pool->n_started;
        thread_pool_free(pool);
        return error_set(error, ERROR_MEMORY,
                         "thread %d of %d could not be started; ask for fewer or raise the limit "
                         "of processes (ulimit -u)",
                         n_started + 2, n_threads);
    }
    *out = pool;
    return OK;
}

void thread_pool_free(struct thread_pool *pool)
{
    if (!pool)
        return;
    atomic_store(&pool->is_stopping, true);
    start_run(pool);
    for (int i = 1; i <= pool->n_started; i++)
        pthread_join(pool->workers[i].thread, NULL);
    pthread_mutex_destroy(&pool->lock);
    pthread_cond_destroy(&pool->wake);
    free(pool->workers);
    free(pool->shares);
    free(pool);
}

void thread_pool_observe(struct thread_pool *pool, const struct thread_observer *observer)
{
    pool->observer = observer;
}

int thread_pool_size(const struct thread_pool *pool)
{
    return pool->n_threads;
}

void thread_pool_run(struct thread_pool *pool, thread_task run, void *context, int n_tasks)
{
    assert(n_tasks <= INT_MAX - MAX_THREADS * MAX_THREADS); /* share.next goes past its end */
    if (pool->n_threads == 1 || n_tasks <= 1) {
        for (int task = 0; task < n_tasks; task++)
            run(context, task, 0);
        return;
    }
    pool->run = run;
    pool->context = context;
    for (int i = 0; i < pool->n_threads; i++) {
        long long n = n_tasks;
        pool->shares[i].end = (int)(n * (i + 1) / pool->n_threads);
        atomic_store_explicit(&pool->shares[i].next, (int)(n * i / pool->n_threads),
                              memory_order_relaxed);
    }
    atomic_store_explicit(&pool->inside, OPEN, memory_order_release);
    start_run(pool);
    work(pool, 0);
    atomic_fetch_and_explicit(&pool->inside, ~OPEN, memory_order_acquire);
    /* A worker that lost its core ends late; let it have this one rather than spin against it. */
    for (int i = 0; atomic_load_explicit(&pool->inside, memory_order_acquire) > 0; i++) {
        if (i < SPIN_ROUNDS)
            pause_briefly();
        else
            sched_yield();
    }
}

int thread_pool_default_size(void)
{
    int n = (int)sysconf(_SC_NPROCESSORS_ONLN);
#ifdef __linux__
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        n = CPU_COUNT(&set);
    /* A container's share of the processors, rounded up (cgroup v2). */
    FILE *file = fopen("/sys/fs/cgroup/cpu.max", "re");
    long quota, period;
    if (file) {
        if (fscanf(file, "%ld %ld", &quota, &period) == 2 && quota > 0 && period > 0 &&
            (quota + period - 1) / period < n)
            n = (int)((quota + period - 1) / period);
        fclose(file);
    }
#endif
    return n < 1 ? 1 : n > MAX_THREADS ? MAX_THREADS : n;
}
