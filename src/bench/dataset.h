/* The prompts of a benchmark: random ids, conversations in ShareGPT's JSON, or random ids with
 * shared beginnings. A seed repeats them. */
#ifndef CSGL_BENCH_DATASET_H
#define CSGL_BENCH_DATASET_H

#include "base/arena.h"
#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

enum dataset_kind { DATASET_RANDOM, DATASET_SHAREGPT, DATASET_SHARED_PREFIX };

/* Either ids, or text when nobody could encode it. */
struct bench_prompt {
    const char *text;
    size_t text_len;
    int32_t *ids;
    int32_t n_ids, output_len;
};

/* Encodes into `ids` (at most `cap`); the number of ids, or < 0 if the text cannot be encoded. */
typedef int32_t (*dataset_encode)(void *context, const char *text, size_t len, int32_t *ids,
                                  int32_t cap);

struct dataset_options {
    enum dataset_kind kind;
    const char *path; /* SHAREGPT */
    int n_prompts;
    uint64_t seed;
    int32_t vocab_size; /* random ids are below */
    /* RANDOM: lengths are uniform in [range_ratio * len, len]. */
    int32_t input_len, output_len;
    double range_ratio;
    /* SHARED_PREFIX: n_groups prefixes, each before its share of the prompts. */
    int32_t n_groups, prefix_len, question_len;
    /* SHAREGPT: without it prompts stay text, and lengths are guessed at four bytes a token. */
    dataset_encode encode;
    void *encode_context;
};

struct dataset {
    struct arena arena;
    struct bench_prompt *prompts;
    int n;
};

/* ERROR_INVALID names what is wrong with the file or the options. */
enum status dataset_make(struct dataset *out, const struct dataset_options *options,
                         struct error *error);
void dataset_done(struct dataset *dataset);

#endif
