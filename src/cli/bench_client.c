#include "cli/bench_client.h"

#include "base/json.h"
#include "base/log.h"

enum { UNKNOWN_VOCABULARY = 1000 };

struct client_flags client_flags_default(void)
{
    return (struct client_flags){.base_url = "http://127.0.0.1:1919"};
}

struct load_options client_load_options(const struct client_flags *f)
{
    return (struct load_options){.base_url = f->base_url,
                                 .model = f->model,
                                 .api_key = f->api_key,
                                 .temperature = f->temperature,
                                 .ignore_eos = !f->uses_eos,
                                 .shows_progress = !f->is_json};
}

int32_t client_vocab_size(const struct client_flags *f)
{
    struct str text = {0};
    struct arena arena = {.limit = 1 << 20};
    struct json info;
    int64_t n = 0;
    if (f->vocab_size)
        return f->vocab_size;
    if (load_get(f->base_url, "/get_model_info", f->api_key, &text, NULL) == OK &&
        json_parse(&arena, str_z(&text), text.len, &info, NULL) == OK &&
        !json_int(json_get(&info, "vocab_size"), 1, 1 << 24, &n))
        n = 0;
    arena_done(&arena);
    str_done(&text);
    return n ? (int32_t)n : UNKNOWN_VOCABULARY;
}

enum status client_run(const struct client_flags *f, const struct load_options *options,
                       const struct dataset *dataset, struct load_result *result,
                       struct error *error)
{
    struct str reply = {0};
    enum status status = OK;
    *result = (struct load_result){0};
    if (f->has_profile)
        status = load_post(f->base_url, "/start_profile", f->api_key, "{}", &reply, error);
    if (status == OK)
        status = load_run(result, options, dataset, error);
    str_clear(&reply);
    if (status == OK && f->has_profile) {
        status = load_post(f->base_url, "/stop_profile", f->api_key, "{}", &reply, error);
        if (status == OK)
            log_info("the server says of its profile: %.*s", (int)reply.len, str_z(&reply));
        else
            load_result_done(result);
    }
    str_done(&reply);
    return status;
}

/* Of the answers that are whole. */
struct totals {
    int n_good;
    int64_t n_input, n_output;
    struct samples first, each, gaps, end;
};

static void add_answer(struct totals *t, const struct load_answer *a)
{
    if (!a->is_done)
        return;
    t->n_good++;
    t->n_input += a->n_prompt;
    t->n_output += a->n_output;
    samples_add(&t->first, a->first);
    samples_add(&t->end, a->end);
    samples_add_all(&t->gaps, &a->gaps);
    if (a->n_output > 1)
        samples_add(&t->each, (a->end - a->first) / (a->n_output - 1));
}

void client_report(struct report *r, const struct load_result *result)
{
    struct totals t = {0};
    for (int i = 0; i < result->n; i++)
        add_answer(&t, &result->answers[i]);
    double seconds = result->seconds;
    report_int(r, "completed", "answers", t.n_good);
    report_int(r, "failed", "failures", result->n - t.n_good);
    report_int(r, "max_concurrent", "most answers at once", result->max_running);
    report_number(r, "duration_s", "duration, s", seconds);
    report_int(r, "total_input_tokens", "input tokens", t.n_input);
    report_int(r, "total_output_tokens", "output tokens", t.n_output);
    report_number(r, "request_throughput", "answers/s", t.n_good / seconds);
    report_number(r, "input_throughput", "input tokens/s", (double)t.n_input / seconds);
    report_number(r, "output_throughput", "output tokens/s", (double)t.n_output / seconds);
    report_times(r, "ttft", "time to first token, ms", &t.first);
    report_times(r, "tpot", "time per further token, ms", &t.each);
    report_times(r, "itl", "between two events, ms", &t.gaps);
    report_times(r, "e2e", "end to end, ms", &t.end);
    samples_done(&t.first);
    samples_done(&t.each);
    samples_done(&t.gaps);
    samples_done(&t.end);
}

int client_check(const struct load_result *result)
{
    const char *failure = NULL;
    for (int i = 0; i < result->n; i++) {
        if (result->answers[i].is_done)
            return 0;
        if (!failure)
            failure = result->answers[i].error;
    }
    log_error("no request was answered; the first failed because: %s", failure ? failure : "?");
    return 1;
}
