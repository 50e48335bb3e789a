/* A fixed set of threads that run numbered tasks together with their caller. */
#ifndef CSGL_BASE_THREAD_POOL_H
#define CSGL_BASE_THREAD_POOL_H

#include "base/error.h"

struct thread_pool;

/* `n_threads` (>= 1) counts the calling thread. Workers spin for some microseconds after each run,
 * then sleep. */
enum status thread_pool_new(struct thread_pool **out, int n_threads, struct error *error);
void thread_pool_free(struct thread_pool *pool);
int thread_pool_size(const struct thread_pool *pool);

/* Task 0 <= task < n_tasks, run by worker 0 <= worker < size (0 is the caller). */
typedef void (*thread_task)(void *context, int task, int worker);

/* Runs all tasks and returns when the last has ended. Each worker starts on its own contiguous
 * share (worker w on tasks w*n/size ...), so that with equal task counts a worker meets the same
 * bytes each time, and takes from the others' shares when its own is done. One caller at a time; a
 * task must not call it. */
void thread_pool_run(struct thread_pool *pool, thread_task run, void *context, int n_tasks);

/* Told of each run that a worker other than the caller took part in, by that worker. */
struct thread_observer {
    void (*ran)(void *context, int worker, double begin, double end); /* system_seconds() */
    void *context;
};

/* Sets the observer (kept until replaced), NULL for none. Not during a run. */
void thread_pool_observe(struct thread_pool *pool, const struct thread_observer *observer);

/* Logical processors available to this process (affinity and cgroup quota respected), at least 1.
 */
int thread_pool_default_size(void);

#endif
