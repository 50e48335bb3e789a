/* A recorded case: a tiny checkpoint, a sequence, and the reference's float32 logits for it
 * (made by tools/make_tiny_models.py with transformers, make_mlx_models.py with mlx-lm). */
#ifndef CSGL_TESTS_MODEL_CASE_H
#define CSGL_TESTS_MODEL_CASE_H

#include "device/device_open.h"
#include "engine/engine.h"

struct model_case {
    char name[128];
    int32_t n_tokens, vocab_size;
    int32_t *tokens;
    float *logits; /* [n_tokens, vocab_size] */
    struct checkpoint *checkpoint;
    int32_t bits, group; /* what it is quantized to while it is loaded; 0: it is not */
};

/* Folder names of all cases under tests/models, sorted; the caller frees each and the array. */
char **model_case_list(int *n);

/* Fails the running test if anything is missing. */
void model_case_open(struct model_case *c, const char *name);
void model_case_done(struct model_case *c);

struct case_options {
    const char *device; /* as --device; NULL: the CPU */
    enum cpu_isa isa;
    enum activations activations;
    enum dtype kv_dtype;
    int n_threads;
    int32_t page_size;
};

/* float mode, f32 KV, the best instruction set, pages of 16. */
struct case_options case_options_default(void);

/* A device and an engine of a case; `comm` is the caller's. */
struct case_engine {
    struct device *device;
    struct engine *engine;
};

void case_engine_open(struct case_engine *e, const struct model_case *c,
                      const struct case_options *options, struct comm *comm);
void case_engine_done(struct case_engine *e);

/* Feeds the whole sequence in chunks of `chunk` tokens; logits of all rows into out. */
void case_engine_run(struct case_engine *e, const struct model_case *c, int32_t chunk, float *out);

/* The same on two ranks of this process, one thread each, in float mode; each rank's logits. */
void case_run_two_ranks(const struct model_case *c, int32_t chunk, float *out[2]);

/* Largest |a - b| over n values; infinite if one is not a number. */
double max_difference(const float *a, const float *b, size_t n);

#endif
