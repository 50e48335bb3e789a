/* Conversations in ShareGPT's JSON: [{"conversations": [{"from": "human", "value": TEXT}, ...]}].
 */
#ifndef CSGL_BENCH_SHAREGPT_H
#define CSGL_BENCH_SHAREGPT_H

#include "bench/dataset.h"

/* Fills `out`, whose prompts have room for options->n_prompts: a sample, drawn by the seed, of the
 * first messages and the lengths of their answers. */
enum status sharegpt_read(struct dataset *out, const struct dataset_options *options,
                          struct error *error);

/* The same from text in memory. */
enum status sharegpt_parse(struct dataset *out, const struct dataset_options *options,
                           const char *text, size_t bytes, struct error *error);

#endif
