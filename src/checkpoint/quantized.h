/* Weights as the quantizers of the Hugging Face hub store them: block FP8 (Qwen's own), GPTQ, AWQ,
 * compressed-tensors and ModelOpt. Each module has several tensors beside each other under its
 * name; what config.json says, their types and their shapes must agree. */
#ifndef CSGL_CHECKPOINT_QUANTIZED_H
#define CSGL_CHECKPOINT_QUANTIZED_H

#include "base/json.h"
#include "checkpoint/tensors.h"

enum quantized_method {
    QUANTIZED_NOT,
    QUANTIZED_FP8,
    QUANTIZED_GPTQ,
    QUANTIZED_AWQ,
    QUANTIZED_COMPRESSED, /* compressed-tensors */
    QUANTIZED_MODELOPT,
    N_QUANTIZED_METHODS
};

/* What "quantization_config" says. */
struct quantization {
    enum quantized_method method;
    int32_t bits, group;            /* GPTQ and AWQ; group 0: a whole row */
    bool has_rules;                 /* GPTQ: modules may have other bits and groups than these */
    bool is_zero_less_one;          /* GPTQ's first version stores zero points so */
    int32_t block_rows, block_cols; /* of FP8 scales; 0: not said */
};

/* ERROR_UNSUPPORTED with a sentence that names the method and what would work. */
enum status quantization_read(const struct json *config, struct quantization *out,
                              struct error *error);

/* The tensors of a module, NULL where there is none. */
struct quantized_parts {
    const struct tensor *codes, *scales, *zeros, *groups, *factor, *shape;
    const struct tensor *plain; /* "weight": the codes of some methods, or not quantized */
};

enum { N_QUANTIZED_PARTS = sizeof(struct quantized_parts) / sizeof(const struct tensor *) };

/* The endings of their names in the order of the struct, NULL where the method has none. */
const char *const *quantized_endings(enum quantized_method method);

/* Whether the module is quantized, rather than an ordinary weight. */
bool quantized_is(const struct quantization *quantization, const struct quantized_parts *parts);

/* The weight of the module `path`. Where the file's bytes are not what a decoder reads, `out` is
 * marked as packed. */
enum status quantized_weight(const struct quantization *quantization, const char *path,
                             const struct quantized_parts *parts, struct weight *out,
                             struct error *error);

/* Turns what quantized_weight gave into a weight that can be read; out->unpacked is then to be
 * freed. */
enum status quantized_unpack(const struct quantization *quantization, const char *path,
                             const struct quantized_parts *parts, struct weight *out,
                             struct error *error);

#endif
