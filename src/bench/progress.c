#include "bench/progress.h"

#include "base/system.h"

#include <stdio.h>
#include <unistd.h>

enum { WIDTH = 40 };

void progress_begin(struct progress *p, int total)
{
    *p = (struct progress){
        .is_shown = isatty(STDERR_FILENO) != 0, .start = system_seconds(), .total = total};
}

void progress_show(struct progress *p, int done)
{
    double now = system_seconds();
    if (!p->is_shown || p->total < 1 || (done < p->total && now - p->drawn_at < 0.1))
        return;
    int n = (int)((long long)done * WIDTH / p->total);
    double rate = now > p->start ? done / (now - p->start) : 0.0;
    fprintf(stderr, "\r[%.*s%*s] %d of %d, %.2f/s ", n, "########################################",
            WIDTH - n, "", done, p->total, rate);
    fflush(stderr);
    p->drawn_at = now;
}

void progress_end(struct progress *p)
{
    if (p->is_shown)
        fprintf(stderr, "\r%*s\r", WIDTH + 40, "");
}
