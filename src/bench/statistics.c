#include "bench/statistics.h"

#include <stdlib.h>

void samples_add(struct samples *s, double value)
{
    if (s->failed)
        return;
    if (s->n == s->cap) {
        size_t cap = s->cap ? 2 * s->cap : 64;
        double *grown = realloc(s->values, cap * sizeof *grown);
        if (!grown) {
            s->failed = true;
            return;
        }
        s->values = grown;
        s->cap = cap;
    }
    s->values[s->n++] = value;
}

void samples_add_all(struct samples *s, const struct samples *others)
{
    for (size_t i = 0; i < others->n; i++)
        samples_add(s, others->values[i]);
}

void samples_done(struct samples *s)
{
    free(s->values);
    *s = (struct samples){0};
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double samples_percentile(const struct samples *s, double percent)
{
    if (s->n == 0)
        return 0.0;
    double place = percent / 100.0 * (double)(s->n - 1);
    size_t i = (size_t)place;
    if (i + 1 >= s->n)
        return s->values[s->n - 1];
    return s->values[i] + (place - (double)i) * (s->values[i + 1] - s->values[i]);
}

struct summary samples_summary(struct samples *s)
{
    struct summary out = {.n = s->n};
    if (s->n == 0)
        return out;
    qsort(s->values, s->n, sizeof *s->values, by_value);
    double sum = 0.0;
    for (size_t i = 0; i < s->n; i++)
        sum += s->values[i];
    out.mean = sum / (double)s->n;
    out.median = samples_percentile(s, 50.0);
    out.p90 = samples_percentile(s, 90.0);
    out.p99 = samples_percentile(s, 99.0);
    out.min = s->values[0];
    out.max = s->values[s->n - 1];
    return out;
}
