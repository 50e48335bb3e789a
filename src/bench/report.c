#include "bench/report.h"

#include "base/json.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static void begin(struct report *r, const char *key)
{
    str_append_z(&r->json, r->json.len ? ", \"" : "{\"");
    str_append_z(&r->json, key);
    str_append_z(&r->json, "\": ");
}

void report_text(struct report *r, const char *key, const char *label, const char *value)
{
    begin(r, key);
    json_write_string(&r->json, value, strlen(value));
    if (label)
        str_printf(&r->table, "%-34s %s\n", label, value);
}

void report_int(struct report *r, const char *key, const char *label, int64_t value)
{
    begin(r, key);
    str_printf(&r->json, "%lld", (long long)value);
    if (label)
        str_printf(&r->table, "%-34s %12lld\n", label, (long long)value);
}

void report_number(struct report *r, const char *key, const char *label, double value)
{
    begin(r, key);
    str_printf(&r->json, "%.6g", value);
    if (label)
        str_printf(&r->table, "%-34s %12.*f\n", label, value >= 1000.0 ? 1 : 3, value);
}

void report_times(struct report *r, const char *key, const char *label, struct samples *seconds)
{
    struct summary s = samples_summary(seconds);
    const struct {
        const char *name;
        double value;
    } parts[] = {{"mean", s.mean}, {"median", s.median}, {"p90", s.p90}, {"p99", s.p99}};
    char name[64];
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        snprintf(name, sizeof name, "%s_%s_ms", parts[i].name, key);
        report_number(r, name, NULL, parts[i].value * 1e3);
    }
    str_printf(&r->table, "%-34s %12.2f  median %.2f  p90 %.2f  p99 %.2f\n", label, s.mean * 1e3,
               s.median * 1e3, s.p90 * 1e3, s.p99 * 1e3);
}

void report_json(struct report *r, const char *key, const char *text)
{
    begin(r, key);
    str_append_z(&r->json, text);
}

static enum status append_line(const char *path, const char *line, struct error *error)
{
    FILE *file = fopen(path, "ae");
    if (!file)
        return error_set(error, ERROR_IO, "%s cannot be written: %s", path, strerror(errno));
    bool is_bad = fputs(line, file) == EOF;
    if (fclose(file) != 0 || is_bad)
        return error_set(error, ERROR_IO, "%s could not be written; is the disk full?", path);
    return OK;
}

enum status report_finish(struct report *r, bool is_json, const char *path, struct error *error)
{
    str_append_z(&r->json, "}\n");
    if (r->json.failed || r->table.failed)
        return error_memory(error, r->json.len);
    fputs(str_z(is_json ? &r->json : &r->table), stdout);
    fflush(stdout);
    return path ? append_line(path, str_z(&r->json), error) : OK;
}

void report_done(struct report *r)
{
    str_done(&r->json);
    str_done(&r->table);
}
