/* A checkpoint's folder written anew with quantized weights, in MLX's format. */
#ifndef CSGL_CHECKPOINT_QUANTIZE_H
#define CSGL_CHECKPOINT_QUANTIZE_H

#include "checkpoint/checkpoint.h"

struct quantize_request {
    const char *out; /* a folder that does not exist yet */
    int32_t bits, group;
    uint64_t shard_bytes; /* most bytes of one file; a larger tensor has one of its own */
    int n_threads;
    void (*progress)(void *context, double done); /* or NULL; 0 to 1 */
    void *progress_context;
};

/* Writes what mlx_lm.convert would: quantized matrices and all other tensors of the language model,
 * config.json, the tokenizer's files. The folder appears under its name when it is whole; on an
 * error nothing is left. `checkpoint` is a folder of floats. Memory: a few MiB, the levels of
 * the largest tensor, and of gpt-oss's stacks one expert. */
enum status checkpoint_write_quantized(struct checkpoint *checkpoint,
                                       const struct quantize_request *request, struct error *error);

#endif
