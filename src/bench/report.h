/* What a benchmark found, said twice: as one line of JSON for files and programs, and as a table
 * for people. */
#ifndef CSGL_BENCH_REPORT_H
#define CSGL_BENCH_REPORT_H

#include "base/error.h"
#include "base/str.h"
#include "bench/statistics.h"

#include <stdbool.h>
#include <stdint.h>

/* Zero-initialise, add, report_finish, report_done. `key` is the JSON's; `label` the table's, NULL:
 * not in the table. */
struct report {
    struct str json, table;
};

void report_text(struct report *r, const char *key, const char *label, const char *value);
void report_int(struct report *r, const char *key, const char *label, int64_t value);
void report_number(struct report *r, const char *key, const char *label, double value);

/* Seconds as milliseconds: "mean_KEY_ms", "median_KEY_ms", "p90_KEY_ms", "p99_KEY_ms". */
void report_times(struct report *r, const char *key, const char *label, struct samples *seconds);

/* JSON text under `key`. */
void report_json(struct report *r, const char *key, const char *text);

/* Prints the JSON line or the table to stdout, and appends the line to `path` if that is not NULL.
 */
enum status report_finish(struct report *r, bool is_json, const char *path, struct error *error);
void report_done(struct report *r);

#endif
