/* csgl: run a language model inside your program. Load, submit, stream, cancel.
 *
 *     struct csgl_config config;
 *     csgl_config_init(&config);
 *     config.model_path = "model.gguf";
 *     struct csgl_engine *engine;
 *     struct csgl_error error;
 *     if (csgl_open(&engine, &config, &error) != CSGL_OK) ...
 *
 * Functions return CSGL_OK or a status and fill `error` (may be NULL) with one sentence. Strings
 * are UTF-8. An engine belongs to one thread at a time; csgl_cancel alone may be called from any
 * thread or signal handler. Requests that run at the same time are computed together. */
#ifndef CSGL_H
#define CSGL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define CSGL_API __attribute__((visibility("default")))
#else
#define CSGL_API
#endif

enum csgl_status {
    CSGL_OK,
    CSGL_ERROR_INVALID,     /* the input is wrong */
    CSGL_ERROR_UNSUPPORTED, /* the input is right, but not for this version or machine */
    CSGL_ERROR_NOT_FOUND,
    CSGL_ERROR_LIMIT, /* too large for a stated limit */
    CSGL_ERROR_MEMORY,
    CSGL_ERROR_IO,
    CSGL_ERROR_CANCELLED
};

struct csgl_error {
    int status;
    char message[512];
};

/* "MAJOR.MINOR.PATCH". */
CSGL_API const char *csgl_version(void);

/* --- engine ----------------------------------------------------------------------------------- */

enum csgl_activations { CSGL_ACTIVATIONS_AUTO, CSGL_ACTIVATIONS_FLOAT, CSGL_ACTIVATIONS_INT8 };
/* The last two on the CPU alone: codes with a scale a token and head. */
enum csgl_kv_dtype {
    CSGL_KV_AUTO,
    CSGL_KV_BF16,
    CSGL_KV_F16,
    CSGL_KV_F32,
    CSGL_KV_INT8,
    CSGL_KV_INT4
};
/* Weights of floats become MLX's affine codes of 4 or 8 bits in groups of 64 while they are loaded.
 */
enum csgl_quantization {
    CSGL_QUANTIZATION_NONE,
    CSGL_QUANTIZATION_MLX_Q4,
    CSGL_QUANTIZATION_MLX_Q8
};
enum csgl_state_dtype { CSGL_STATE_AUTO, CSGL_STATE_F32, CSGL_STATE_BF16 };

struct csgl_config {
    const char *model_path;         /* a folder or a .gguf file */
    const char *random_weights;     /* "bf16", "Q4_0", ...: model_path is a config.json or a folder
                                       with one, and weights of this type are made up; NULL: none */
    const char *chat_template_path; /* replaces the model's own; NULL: none */
    const char *device;             /* "cpu" or NULL; "cuda", "cuda:N": an NVIDIA GPU; "metal": an
                                       Apple GPU; "auto": a GPU if there is one */
    int threads;                    /* of the CPU; 0: all processors */
    int activations;                /* enum csgl_activations */
    int kv_cache_dtype;             /* enum csgl_kv_dtype */
    int quantization;               /* enum csgl_quantization */
    int max_running;                /* requests computed at once */
    int max_queue;                  /* requests that may wait */
    int context_length;             /* tokens of a request; 0: the model's limit or what fits */
    int max_prefill_length;         /* prompt tokens of one step */
    double memory_ratio;            /* share of the available memory that may be used */
    double kv_cache_gb;             /* 0: as large as the running requests need */
    /* Models with recurrent layers: states of running requests and kept ones, by number or memory;
     * 0 and 0: what fits. */
    int num_mamba_slots;
    int mamba_ssm_dtype; /* enum csgl_state_dtype */
    double mamba_cache_gb;
    /* Called while weights are loaded, with 0 to 1; may be NULL. */
    void (*on_progress)(void *context, double done);
    void *progress_context;
};

struct csgl_engine;

CSGL_API void csgl_config_init(struct csgl_config *config);
CSGL_API int csgl_open(struct csgl_engine **engine, const struct csgl_config *config,
                       struct csgl_error *error);
CSGL_API void csgl_close(struct csgl_engine *engine);

/* Tokens that a request may have, prompt and answer, and the number of ids. */
CSGL_API int csgl_context_length(const struct csgl_engine *engine);
CSGL_API int csgl_vocab_size(const struct csgl_engine *engine);

/* --- requests --------------------------------------------------------------------------------- */

/* Marks a sampling field that the request leaves to the model's generation_config.json, and then to
 * the default named here. */
#define CSGL_UNSET (-1e9)

struct csgl_token {
    int32_t id;
    float logprob;
    int n_top;              /* alternatives, most likely first */
    const int32_t *top_ids; /* [n_top] */
    const float *top_logprobs;
};

/* Names a request until it has ended (with on_text) or its end has been polled (without). Never 0.
 */
typedef uint64_t csgl_id;

enum csgl_finish {
    CSGL_FINISH_STOP,
    CSGL_FINISH_LENGTH,
    CSGL_FINISH_CANCELLED,
    CSGL_FINISH_ERROR /* the device failed, or the model's numbers overflowed */
};

struct csgl_result {
    int finish; /* enum csgl_finish */
    int prompt_tokens, cached_tokens, output_tokens;
    double queue_seconds;   /* from the call until it runs */
    double prefill_seconds; /* until the first token */
    double decode_seconds;  /* from the first token to the last */
    char error[512];        /* CSGL_FINISH_ERROR: one sentence */
};

struct csgl_request {
    /* Either text as it is, or a chat: OpenAI's messages as a JSON array, with optional tools (JSON
     * array) and variables for the template (JSON object). Or `tokens`. */
    const char *prompt;
    const char *messages_json, *tools_json, *template_kwargs_json;
    const int32_t *tokens;
    size_t n_tokens;

    int max_tokens;            /* 0: as many as the context holds */
    double temperature;        /* default 1; 0: the most likely token */
    double top_k;              /* default 0: off */
    double top_p;              /* default 1: off */
    double min_p;              /* default 0: off */
    double repetition_penalty; /* default 1: off */
    double presence_penalty;   /* default 0: off */
    double frequency_penalty;  /* default 0: off */
    int has_seed;
    uint64_t seed;
    const int32_t *bias_tokens; /* logits of these ids are raised by `biases`, -100 to 100 */
    const double *biases;
    size_t n_biases;
    const char *const *stop; /* text at which to stop; not part of the answer */
    size_t n_stop;
    int ignore_eos;
    int n_logprobs; /* -1: none; else 0 to 20 alternatives a token */

    /* Text of the answer in whole UTF-8 characters, as soon as it is certain. Return nonzero to
     * stop. NULL: the text is kept for csgl_poll. */
    int (*on_text)(void *context, const char *text, size_t bytes);
    /* Each token of the answer; may be NULL. */
    void (*on_token)(void *context, const struct csgl_token *token);
    /* The request's end, its last call; may be NULL. */
    void (*on_finish)(void *context, const struct csgl_result *result);
    /* csgl_generate only: the request's id, for csgl_cancel, before its first step; may be NULL. */
    void (*on_start)(void *context, csgl_id id);
    void *context;
};

CSGL_API void csgl_request_init(struct csgl_request *request);

/* Queues a request; what it points to may go afterwards, but for `context`. */
CSGL_API int csgl_submit(struct csgl_engine *engine, const struct csgl_request *request,
                         csgl_id *id, struct csgl_error *error);

/* Ends a request before the next step; an id that has ended is no error. */
CSGL_API void csgl_cancel(struct csgl_engine *engine, csgl_id id);

/* Nonzero while a request waits or runs, or a step is under way. */
CSGL_API int csgl_has_work(const struct csgl_engine *engine);

/* Computes one step for all running requests and makes their calls; on a GPU it starts one and
 * makes the calls of the one before. */
CSGL_API int csgl_step(struct csgl_engine *engine, struct csgl_error *error);

/* Records requests, steps and ops from now on, in a ring that keeps the newest. */
CSGL_API int csgl_profile_start(struct csgl_engine *engine, struct csgl_error *error);

/* Ends it and writes the trace as JSON for Perfetto or Chrome. */
CSGL_API int csgl_profile_stop(struct csgl_engine *engine, const char *path,
                               struct csgl_error *error);

/* Moves text that is ready into `text` (at most `size` bytes, whole characters, no NUL behind);
 * `*bytes` says how much. `*is_done` is set when the answer has ended and all of its text was
 * moved; `result` (may be NULL) is filled and the id forgotten then. For requests without on_text.
 */
CSGL_API int csgl_poll(struct csgl_engine *engine, csgl_id id, char *text, size_t size,
                       size_t *bytes, int *is_done, struct csgl_result *result,
                       struct csgl_error *error);

/* Submits a request with on_text and steps until it has ended. */
CSGL_API int csgl_generate(struct csgl_engine *engine, const struct csgl_request *request,
                           struct csgl_result *result, struct csgl_error *error);

#ifdef __cplusplus
}
#endif

#endif
