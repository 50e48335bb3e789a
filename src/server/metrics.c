#include "server/metrics.h"

#include "message/board.h"
#include "server/http.h"

#include <stdio.h>

/* Seconds; the last bucket of counts is +Inf. From a token at full speed to a long prefill. */
static const double bounds[HISTOGRAM_BUCKETS] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                                 0.5,   1,      2.5,   5,    10,    30,   120};

enum outcome outcome_of_status(int http_status)
{
    return http_status == 503 || http_status == 429 ? OUTCOME_overloaded
           : http_status < 500                      ? OUTCOME_refused
                                                    : OUTCOME_failed;
}

void histogram_add(struct histogram *h, double seconds)
{
    int i = 0;
    while (i < HISTOGRAM_BUCKETS && seconds > bounds[i])
        i++;
    h->counts[i]++;
    h->sum += seconds;
    h->n++;
}

static void head(struct str *out, const char *name, const char *type, const char *help)
{
    str_printf(out, "# HELP csgl_%s %s\n# TYPE csgl_%s %s\n", name, help, name, type);
}

static void figure(struct str *out, const char *name, const char *type, uint64_t value,
                   const char *help)
{
    head(out, name, type, help);
    str_printf(out, "csgl_%s %llu\n", name, (unsigned long long)value);
}

static void histogram_write(struct str *out, const char *name, const struct histogram *h,
                            const char *help)
{
    uint64_t n = 0;
    head(out, name, "histogram", help);
    for (int i = 0; i < HISTOGRAM_BUCKETS; i++) {
        n += h->counts[i];
        str_printf(out, "csgl_%s_bucket{le=\"%g\"} %llu\n", name, bounds[i], (unsigned long long)n);
    }
    str_printf(out, "csgl_%s_bucket{le=\"+Inf\"} %llu\ncsgl_%s_sum %.6f\ncsgl_%s_count %llu\n",
               name, (unsigned long long)h->n, name, h->sum, name, (unsigned long long)h->n);
}

static void requests_write(struct str *out, const struct metrics *m)
{
    static const char *const endpoints[] = {"chat", "completions", "generate"};
#define OUTCOME_NAME(name) #name,
    static const char *const outcomes[] = {OUTCOMES(OUTCOME_NAME)};
#undef OUTCOME_NAME
    head(out, "requests_total", "counter", "Requests to generate that have ended, by outcome.");
    for (int e = 0; e < N_ENDPOINTS; e++)
        for (int o = 0; o < N_OUTCOMES; o++)
            str_printf(out, "csgl_requests_total{endpoint=\"%s\",outcome=\"%s\"} %llu\n",
                       endpoints[e], outcomes[o], (unsigned long long)m->requests[e][o]);
}

static void role_name(char *out, size_t bytes, int role)
{
    if (role >= ROLE_TOKENIZER)
        snprintf(out, bytes, "tokenizer_%d", role - ROLE_TOKENIZER);
    else
        snprintf(out, bytes, "%s",
                 role == ROLE_FRONTEND    ? "frontend"
                 : role == ROLE_SCHEDULER ? "scheduler"
                                          : "detokenizer");
}

static void processes_write(struct str *out, const struct board *board)
{
    char name[32];
    head(out, "process_restarts_total", "counter", "Times a process was started again.");
    for (int role = 0; role < N_ROLES; role++) {
        if (atomic_load(&board->state[role]) == PROCESS_ABSENT)
            continue;
        role_name(name, sizeof name, role);
        str_printf(out, "csgl_process_restarts_total{role=\"%s\"} %u\n", name,
                   atomic_load(&board->n_restarts[role]));
    }
    head(out, "process_ready", "gauge", "1 if the process is ready.");
    for (int role = 0; role < N_ROLES; role++) {
        uint32_t state = atomic_load(&board->state[role]);
        if (state == PROCESS_ABSENT)
            continue;
        role_name(name, sizeof name, role);
        str_printf(out, "csgl_process_ready{role=\"%s\"} %d\n", name, state == PROCESS_READY);
    }
}

static void kv_write(struct str *out, const struct board *board)
{
    uint64_t total = atomic_load(&board->kv_pages), used = atomic_load(&board->kv_pages_used),
             cached = atomic_load(&board->kv_pages_cached);
    uint64_t taken = used + cached;
    head(out, "kv_pages", "gauge",
         "Pages of the KV cache: held by requests, kept for reuse, free.");
    str_printf(out,
               "csgl_kv_pages{state=\"used\"} %llu\ncsgl_kv_pages{state=\"cached\"} %llu\n"
               "csgl_kv_pages{state=\"free\"} %llu\n",
               (unsigned long long)used, (unsigned long long)cached,
               (unsigned long long)(total > taken ? total - taken : 0));
    head(out, "kv_usage_ratio", "gauge", "Share of the KV cache held by requests.");
    str_printf(out, "csgl_kv_usage_ratio %.6f\n", total ? (double)used / (double)total : 0.0);
}

/* Recurrent states; all 0 with a model that has none. */
static void states_write(struct str *out, const struct board *b)
{
    uint64_t total = atomic_load(&b->state_slots), used = atomic_load(&b->state_slots_used),
             kept = atomic_load(&b->state_snapshots);
    head(out, "prefix_hit_tokens_total", "counter",
         "Prompt tokens whose K and V were in the cache, and those that a snapshot of recurrent "
         "state saved.");
    str_printf(out,
               "csgl_prefix_hit_tokens_total{kind=\"kv\"} %llu\n"
               "csgl_prefix_hit_tokens_total{kind=\"snapshot\"} %llu\n",
               (unsigned long long)atomic_load(&b->kv_hit_tokens),
               (unsigned long long)atomic_load(&b->snapshot_hit_tokens));
    head(out, "state_slots", "gauge",
         "Slots of recurrent states: held by requests, snapshots, free.");
    str_printf(out,
               "csgl_state_slots{state=\"used\"} %llu\ncsgl_state_slots{state=\"snapshot\"} %llu\n"
               "csgl_state_slots{state=\"free\"} %llu\n",
               (unsigned long long)used, (unsigned long long)kept,
               (unsigned long long)(total > used + kept ? total - used - kept : 0));
    figure(out, "snapshots_total", "counter", atomic_load(&b->made_snapshots),
           "Snapshots of recurrent states that were kept.");
    figure(out, "evicted_snapshots_total", "counter", atomic_load(&b->evicted_snapshots),
           "Snapshots that were given up.");
    figure(
        out, "copied_pages_total", "counter", atomic_load(&b->copied_pages),
        "Part-filled pages that were copied for snapshots and for requests that continue there.");
}

static void scheduler_write(struct str *out, const struct board *b)
{
    figure(out, "requests_running", "gauge", atomic_load(&b->running),
           "Requests that are being computed.");
    figure(out, "requests_waiting", "gauge", atomic_load(&b->waiting),
           "Requests in the scheduler's queue.");
    figure(out, "batch_size", "gauge", atomic_load(&b->last_batch_size),
           "Sequences in the last step.");
    figure(out, "steps_total", "counter", atomic_load(&b->steps), "Steps of the engine.");
    figure(out, "prefill_tokens_total", "counter", atomic_load(&b->prefill_tokens),
           "Prompt tokens that were computed.");
    figure(out, "decode_tokens_total", "counter", atomic_load(&b->decode_tokens),
           "Tokens that decode steps computed.");
    figure(out, "cache_hit_tokens_total", "counter", atomic_load(&b->cached_tokens),
           "Prompt tokens that were taken from the prefix cache.");
    figure(out, "evicted_pages_total", "counter", atomic_load(&b->evicted_pages),
           "Pages that the prefix cache gave up.");
    figure(out, "preemptions_total", "counter", atomic_load(&b->preemptions),
           "Requests that were put back into the queue for want of pages.");
    kv_write(out, b);
    states_write(out, b);
}

void metrics_write(struct str *out, const struct metrics *m, const struct board *board,
                   const struct http_stats *http, bool is_healthy)
{
    figure(out, "healthy", "gauge", is_healthy, "1 if /health answers 200.");
    requests_write(out, m);
    figure(out, "prompt_tokens_total", "counter", m->prompt_tokens,
           "Tokens of the prompts of answered requests.");
    figure(out, "cached_prompt_tokens_total", "counter", m->cached_tokens,
           "Those of them that were taken from the prefix cache.");
    figure(out, "generated_tokens_total", "counter", m->generated_tokens, "Tokens of answers.");
    histogram_write(out, "time_to_first_token_seconds", &m->ttft,
                    "From the request's last byte to its first token.");
    histogram_write(out, "time_per_output_token_seconds", &m->tpot,
                    "Between tokens of an answer, on average, one sample an answer.");
    histogram_write(out, "queue_time_seconds", &m->queue, "Waiting for the first step.");
    histogram_write(out, "request_seconds", &m->total, "From the request to the answer's end.");
    scheduler_write(out, board);
    processes_write(out, board);
    figure(out, "http_connections", "gauge", http->connections, "Open connections.");
    figure(out, "http_requests_total", "counter", http->requests, "Requests of all kinds.");
    figure(out, "http_refused_total", "counter", http->refused,
           "Requests that were no proper HTTP or passed a limit.");
    figure(out, "http_gone_total", "counter", http->gone,
           "Clients that left before their answer was complete.");
}
