/* Prompts of a dataset become ids with a model's own tokenizer. */
#ifndef CSGL_CLI_BENCH_ENCODE_H
#define CSGL_CLI_BENCH_ENCODE_H

#include "bench/dataset.h"
#include "text_model.h"
#include "tokenizer/encoder.h"

struct bench_encoder {
    struct encoder *encoder;
    struct token_ids ids;
};

/* The tokenizer is kept until bench_encoder_done. */
enum status bench_encoder_init(struct bench_encoder *e, const struct text_model *text,
                               struct error *error);
void bench_encoder_done(struct bench_encoder *e);

/* A dataset_encode; the context is the struct bench_encoder. */
int32_t bench_encode(void *context, const char *text, size_t len, int32_t *ids, int32_t cap);

#endif
