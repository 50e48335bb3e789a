/* Samples of a benchmark and what is reported of them. */
#ifndef CSGL_BENCH_STATISTICS_H
#define CSGL_BENCH_STATISTICS_H

#include <stdbool.h>
#include <stddef.h>

/* Zero-initialise, add, samples_done. `failed` is set when memory runs out, and stays. */
struct samples {
    double *values;
    size_t n, cap;
    bool failed;
};

void samples_add(struct samples *samples, double value);
void samples_add_all(struct samples *samples, const struct samples *others);
void samples_done(struct samples *samples);

struct summary {
    size_t n;
    double mean, median, p90, p99, min, max;
};

/* Sorts the samples. Percentiles are interpolated between neighbours as numpy's are; all are 0 of
 * no samples. */
struct summary samples_summary(struct samples *samples);
double samples_percentile(const struct samples *sorted, double percent);

#endif
