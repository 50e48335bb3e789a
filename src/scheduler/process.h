/* The scheduler process: the scheduler between its inbox and the detokenizer's, its figures on the
 * board. */
#ifndef CSGL_SCHEDULER_PROCESS_H
#define CSGL_SCHEDULER_PROCESS_H

#include "scheduler/scheduler.h"

struct scheduler_process {
    const char *folder; /* run directory */
    int life_fd;        /* its end of file means that the supervisor is gone */
    struct executor executor;
    struct kv_cache *cache;
    struct scheduler_options options;
};

/* Runs until the supervisor is gone (OK) or the device fails, which ends the process: a device that
 * has failed once is not asked again. */
enum status scheduler_process_run(const struct scheduler_process *process, struct error *error);

#endif
