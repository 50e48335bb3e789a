/* A bar on stderr while a benchmark runs, when that is a terminal. */
#ifndef CSGL_BENCH_PROGRESS_H
#define CSGL_BENCH_PROGRESS_H

#include <stdbool.h>

struct progress {
    bool is_shown;
    double start, drawn_at;
    int total;
};

void progress_begin(struct progress *p, int total);
void progress_show(struct progress *p, int done);
void progress_end(struct progress *p);

#endif
