#include "cli/bench_common.h"

#include "base/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int int_list_parse(struct int_list *out, const char *name, const char *text, int min, int max)
{
    *out = (struct int_list){0};
    for (const char *at = text;; at++) {
        char *end;
        errno = 0;
        long value = strtol(at, &end, 10);
        if (end == at || errno || value < min || value > max || (*end && *end != ',')) {
            log_error("%s takes numbers from %d to %d with commas between, not \"%s\"", name, min,
                      max, text);
            return 2;
        }
        if (out->n == INT_LIST_MAX) {
            log_error("%s takes at most %d numbers", name, INT_LIST_MAX);
            return 2;
        }
        out->values[out->n++] = (int)value;
        at = end;
        if (!*end)
            return 0;
    }
}

int int_list_max(const struct int_list *list)
{
    int max = list->values[0];
    for (int i = 1; i < list->n; i++)
        if (list->values[i] > max)
            max = list->values[i];
    return max;
}

/* --- datasets --------------------------------------------------------------------------------- */

struct dataset_flags dataset_flags_default(void)
{
    return (struct dataset_flags){.n_prompts = 100,
                                  .input_len = 512,
                                  .output_len = 128,
                                  .range_ratio = 1.0,
                                  .seed = 1,
                                  .gsp_groups = 8,
                                  .gsp_prefix = 512,
                                  .gsp_question = 64,
                                  .gsp_output = 64};
}

struct dataset_options dataset_flags_read(const struct dataset_flags *f)
{
    bool is_shared = f->kind == DATASET_SHARED_PREFIX;
    return (struct dataset_options){.kind = (enum dataset_kind)f->kind,
                                    .path = f->path,
                                    .n_prompts = f->n_prompts,
                                    .seed = (uint64_t)f->seed,
                                    .input_len = f->input_len,
                                    .output_len = is_shared ? f->gsp_output : f->output_len,
                                    .range_ratio = f->range_ratio,
                                    .n_groups = f->gsp_groups,
                                    .prefix_len = f->gsp_prefix,
                                    .question_len = f->gsp_question};
}

const char *dataset_name(const struct dataset_flags *f)
{
    static const char *const names[] = {"random", "sharegpt", "generated-shared-prefix"};
    return names[f->kind];
}

/* --- profiles --------------------------------------------------------------------------------- */

bool profile_flags_wants(const struct profile_flags *f, long step)
{
    return step >= f->start_step && (!f->n_steps || step < (long)f->start_step + f->n_steps);
}

double limit_share(const struct cpu_limits *limits, enum arithmetic arithmetic, double bytes,
                   double operations, double seconds)
{
    double rate = limits->operations_per_s[arithmetic][1];
    double reading = bytes / limits->bytes_per_s[PAGES_HUGE][1];
    double computing = rate > 0.0 ? operations / rate : 0.0;
    return seconds > 0.0 ? (reading > computing ? reading : computing) / seconds : 0.0;
}

static void print_op(const struct profile_entry *e, double total, const struct cpu_limits *limits,
                     enum arithmetic arithmetic)
{
    printf("  %-18s %8llu %11.3f %6.1f%% %10.1f %8.2f %9.1f", e->name, (unsigned long long)e->calls,
           e->seconds * 1e3, total > 0.0 ? 100.0 * e->seconds / total : 0.0, e->bytes * 1e-6,
           e->bytes / e->seconds * 1e-9, e->operations / e->seconds * 1e-9);
    if (limits)
        printf(" %8.2f", limit_share(limits, arithmetic, e->bytes, e->operations, e->seconds));
    putchar('\n');
}

void print_ops(const struct profile *profile, enum trace_phase phase,
               const struct cpu_limits *limits, enum arithmetic arithmetic)
{
    int n;
    const struct profile_entry *entries = profile_entries(profile, phase, &n);
    double total = 0.0;
    for (int i = 0; i < n; i++)
        total += entries[i].seconds;
    if (total <= 0.0)
        return;
    printf("%s\n  %-18s %8s %11s %7s %10s %8s %9s%s\n",
           phase == TRACE_PREFILL ? "prefill" : "decode", "op", "calls", "ms", "share", "MB",
           "GB/s", "GOP/s", limits ? " of limit" : "");
    for (int i = 0; i < n; i++)
        if (entries[i].calls)
            print_op(&entries[i], total, limits, arithmetic);
    printf("  %-18s %8s %11.3f\n", "all ops", "", total * 1e3);
}
