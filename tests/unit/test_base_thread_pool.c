/* The thread pool: every task exactly once, by a worker of its own number, done when run returns.
 */
#include "base/thread_pool.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { MOST_TASKS = 1000, MOST_WORKERS = 8 };

struct record {
    _Atomic int is_in[MOST_WORKERS]; /* a worker number is one thread's at a time */
    int runs[MOST_TASKS];            /* plain: tsan sees if run returned too early */
    int n_workers;
};

static struct thread_pool *open_pool(int n_threads)
{
    struct thread_pool *pool;
    struct error error;
    if (thread_pool_new(&pool, n_threads, &error) != OK)
        fail_msg("%s", error.message);
    assert_int_equal(thread_pool_size(pool), n_threads);
    return pool;
}

static void note(void *context, int task, int worker)
{
    struct record *record = context;
    if (worker < 0 || worker >= record->n_workers || task < 0 || task >= MOST_TASKS ||
        atomic_fetch_add(&record->is_in[worker], 1) != 0) {
        record->runs[0] = 1000;
        return;
    }
    record->runs[task]++;
    atomic_fetch_sub(&record->is_in[worker], 1);
}

static void check_run(struct thread_pool *pool, struct record *record, int n_tasks)
{
    memset(record->runs, 0, sizeof record->runs);
    record->n_workers = thread_pool_size(pool);
    thread_pool_run(pool, note, record, n_tasks);
    for (int i = 0; i < MOST_TASKS; i++)
        if (record->runs[i] != (i < n_tasks))
            fail_msg("%d threads, %d tasks: task %d ran %d times", record->n_workers, n_tasks, i,
                     record->runs[i]);
}

static void every_task_runs_once(void **test)
{
    (void)test;
    struct record record = {0};
    for (int n_threads = 1; n_threads <= MOST_WORKERS; n_threads++) {
        struct thread_pool *pool = open_pool(n_threads);
        for (int n_tasks = 0; n_tasks < 40; n_tasks++)
            check_run(pool, &record, n_tasks);
        check_run(pool, &record, MOST_TASKS);
        thread_pool_free(pool);
    }
}

static void many_short_runs_in_a_row_are_complete(void **test)
{
    (void)test;
    struct record record = {0};
    struct thread_pool *pool = open_pool(3);
    for (int i = 0; i < 3000; i++)
        check_run(pool, &record, 1 + i % 7);
    thread_pool_free(pool);
}

/* Longer than workers spin: they sleep and must be woken. */
static void workers_wake_from_sleep(void **test)
{
    (void)test;
    struct record record = {0};
    struct thread_pool *pool = open_pool(4);
    for (int i = 0; i < 40; i++) {
        nanosleep(&(struct timespec){.tv_nsec = i * 100000}, NULL);
        check_run(pool, &record, 9);
    }
    thread_pool_free(pool);
}

static void wait_for_other(void *context, int task, int worker)
{
    (void)task;
    (void)worker;
    _Atomic int *n_there = context;
    atomic_fetch_add(n_there, 1);
    for (int i = 0; i < 20000 && atomic_load(n_there) < 2; i++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

/* Two tasks that wait for each other: only two threads at once can end them. */
static void tasks_run_at_the_same_time(void **test)
{
    (void)test;
    struct thread_pool *pool = open_pool(2);
    for (int i = 0; i < 20; i++) {
        _Atomic int n_there = 0;
        thread_pool_run(pool, wait_for_other, &n_there, 2);
        assert_int_equal(atomic_load(&n_there), 2);
    }
    thread_pool_free(pool);
}

struct shares {
    _Atomic int others;
    _Atomic int first_of[2];
};

static void note_first(void *context, int task, int worker)
{
    struct shares *shares = context;
    int none = -1;
    atomic_compare_exchange_strong(&shares->first_of[worker], &none, task);
    if (task == 0 || task == 50) /* both shares' first: wait until the other has begun */
        wait_for_other(&shares->others, task, worker);
}

static void a_worker_starts_on_its_own_share(void **test)
{
    (void)test;
    struct thread_pool *pool = open_pool(2);
    for (int i = 0; i < 20; i++) {
        struct shares shares = {.first_of = {-1, -1}};
        thread_pool_run(pool, note_first, &shares, 100);
        assert_int_equal(atomic_load(&shares.first_of[0]), 0);
        assert_int_equal(atomic_load(&shares.first_of[1]), 50);
    }
    thread_pool_free(pool);
}

static void slow_first(void *context, int task, int worker)
{
    (void)worker;
    _Atomic int *done = context;
    if (task == 0)
        wait_for_other(done, task, worker);
    else
        atomic_fetch_add(done, 1);
}

/* Worker 0 is held up by its first task; the others take the rest of its share. */
static void tasks_are_taken_from_a_slow_worker(void **test)
{
    (void)test;
    struct thread_pool *pool = open_pool(2);
    _Atomic int done = 0;
    thread_pool_run(pool, slow_first, &done, 10);
    assert_int_equal(atomic_load(&done), 10);
    thread_pool_free(pool);
}

static void pools_end_at_once_even_if_unused(void **test)
{
    (void)test;
    for (int i = 0; i < 50; i++)
        thread_pool_free(open_pool(1 + i % 5));
    thread_pool_free(NULL);
}

static void impossible_sizes_are_refused(void **test)
{
    (void)test;
    struct error error = {0};
    struct thread_pool *pool = (void *)1;
    assert_int_equal(thread_pool_new(&pool, 0, &error), ERROR_LIMIT);
    assert_null(pool);
    assert_int_equal(thread_pool_new(&pool, 100000, &error), ERROR_LIMIT);
    assert_true(strstr(error.message, "100000") != NULL);
    int n = thread_pool_default_size();
    assert_true(n >= 1 && n <= 1024);
}

static void see_mask(void *context, int task, int worker)
{
    _Atomic int *blocked = context;
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    if (worker == 1 && sigismember(&mask, SIGTERM))
        atomic_store(blocked, 100);
    wait_for_other(blocked, task, worker);
}

static void signals_are_left_to_the_caller(void **test)
{
    (void)test;
    sigset_t mask;
    struct thread_pool *pool = open_pool(2);
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    assert_false(sigismember(&mask, SIGTERM));
    _Atomic int blocked = 0;
    thread_pool_run(pool, see_mask, &blocked, 2);
    assert_true(atomic_load(&blocked) >= 100);
    thread_pool_free(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_task_runs_once),
        cmocka_unit_test(many_short_runs_in_a_row_are_complete),
        cmocka_unit_test(workers_wake_from_sleep),
        cmocka_unit_test(tasks_run_at_the_same_time),
        cmocka_unit_test(a_worker_starts_on_its_own_share),
        cmocka_unit_test(tasks_are_taken_from_a_slow_worker),
        cmocka_unit_test(pools_end_at_once_even_if_unused),
        cmocka_unit_test(impossible_sizes_are_refused),
        cmocka_unit_test(signals_are_left_to_the_caller),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
