/* The load generator: sends a dataset's prompts to an OpenAI-compatible server as they would
 * arrive, and times each streamed answer. */
#ifndef CSGL_BENCH_LOAD_H
#define CSGL_BENCH_LOAD_H

#include "base/error.h"
#include "base/str.h"
#include "bench/dataset.h"
#include "bench/statistics.h"

#include <stdbool.h>

enum load_api { LOAD_COMPLETIONS, LOAD_CHAT };

struct load_options {
    const char *base_url;        /* "http://127.0.0.1:1919" */
    const char *model, *api_key; /* NULL: the server's first model; none */
    enum load_api api;
    double request_rate; /* a second, Poisson; 0: all at once */
    int max_concurrency; /* answers at once; 0: no limit */
    uint64_t seed;
    double temperature;
    bool ignore_eos, shows_progress;
};

/* One answer. Times are seconds from the sending of its request. */
struct load_answer {
    bool is_done;
    char error[256]; /* when it is not */
    double sent;     /* from the beginning of the run */
    double first, end;
    int n_prompt, n_output, n_events;
    struct samples gaps; /* between two events with text */
};

struct load_result {
    struct load_answer *answers; /* [n], in the dataset's order */
    int n;
    double seconds;  /* of the whole run */
    int max_running; /* answers that were awaited at once */
};

/* Chat asks for text: ids are sent to /v1/completions alone. ERROR_NOT_FOUND when nobody answers at
 * the address; a request that fails is counted, not an error. */
enum status load_run(struct load_result *out, const struct load_options *options,
                     const struct dataset *dataset, struct error *error);
void load_result_done(struct load_result *result);

/* GET base_url + path into `out`. ERROR_NOT_FOUND for a status other than 200. */
enum status load_get(const char *base_url, const char *path, const char *api_key, struct str *out,
                     struct error *error);

/* Sends an empty or JSON body by POST; the answer into `out`. */
enum status load_post(const char *base_url, const char *path, const char *api_key, const char *body,
                      struct str *out, struct error *error);

#endif
