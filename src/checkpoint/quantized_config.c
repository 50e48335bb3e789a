/* What config.json says of quantized weights, and which of it csgl reads. */
#include "checkpoint/quantized.h"

#include <stdio.h>
#include <string.h>

static const struct method {
    const char *name;
    const char *endings[N_QUANTIZED_PARTS];
} methods[N_QUANTIZED_METHODS] = {
    [QUANTIZED_NOT] = {"", {NULL}},
    [QUANTIZED_FP8] = {"fp8", {NULL, "weight_scale_inv", NULL, NULL, NULL, NULL, "weight"}},
    [QUANTIZED_GPTQ] = {"gptq", {"qweight", "scales", "qzeros", "g_idx", NULL, NULL, "weight"}},
    [QUANTIZED_AWQ] = {"awq", {"qweight", "scales", "qzeros", NULL, NULL, NULL, "weight"}},
    [QUANTIZED_COMPRESSED] = {"compressed-tensors",
                              {"weight_packed", "weight_scale", "weight_zero_point", "weight_g_idx",
                               "weight_global_scale", "weight_shape", "weight"}},
    [QUANTIZED_MODELOPT] = {"modelopt",
                            {NULL, "weight_scale", NULL, NULL, "weight_scale_2", NULL, "weight"}},
};

const char *const *quantized_endings(enum quantized_method method)
{
    return methods[method].endings;
}

/* `what` is the method with what is wrong about it: "hqq", "gptq with 3 bits". */
static enum status refuse(const char *what, struct error *error)
{
    return error_set(
        error, ERROR_UNSUPPORTED,
        "the weights are quantized as %.100s, which this version does not support; "
        "use the bf16 or f16 checkpoint, a GGUF file, or one quantized by MLX, GPTQ or "
        "AWQ (4 or 8 bits), compressed-tensors, ModelOpt or block FP8",
        what);
}

static bool is_word(const struct json *value, const char *word)
{
    const char *text = json_string(value);
    return text && strcmp(text, word) == 0;
}

/* bits and group_size (-1: a whole row) of GPTQ and AWQ, which older AWQ spells otherwise. */
static enum status read_groups(const struct json *block, const char *method,
                               struct quantization *out, struct error *error)
{
    const struct json *bits = json_get(block, "bits"), *group = json_get(block, "group_size");
    int64_t n_bits = 0, n_group = 0;
    char what[64];
    if (json_is_null(bits))
        bits = json_get(block, "w_bit");
    if (json_is_null(group))
        group = json_get(block, "q_group_size");
    if (!json_int(bits, 1, 64, &n_bits) || !json_int(group, -1, 1 << 20, &n_group) || n_group == 0)
        return error_set(error, ERROR_INVALID,
                         "quantization_config: %s needs bits and a group_size, -1 or positive",
                         method);
    if (n_bits != 4 && (n_bits != 8 || out->method == QUANTIZED_AWQ)) {
        snprintf(what, sizeof what, "%s with %d bits", method, (int)n_bits);
        return refuse(what, error);
    }
    out->bits = (int32_t)n_bits;
    out->group = n_group < 0 ? 0 : (int32_t)n_group;
    return OK;
}

/* GPTQModel's rules: "+:" or "-:" and a pattern of modules, and what is other for them. Which
 * module is quantized, and how, its tensors say by their presence and shapes, so patterns are not
 * matched here; what a rule may change besides (sym, desc_act) the tensors say too. */
static enum status read_rules(const struct json *rules, struct quantization *out,
                              struct error *error)
{
    if (json_is_null(rules))
        return OK;
    bool is_object = rules->type == JT_OBJECT;
    for (size_t i = 0; is_object && i < rules->n; i++)
        is_object = rules->members[i].value.type == JT_OBJECT;
    if (!is_object)
        return error_set(
            error, ERROR_INVALID,
            "quantization_config: dynamic of gptq is an object of patterns, each with an "
            "object of what is other for the modules that it matches");
    out->has_rules = rules->n > 0;
    return OK;
}

static enum status read_gptq(const struct json *block, struct quantization *out,
                             struct error *error)
{
    const struct json *format = json_get(block, "checkpoint_format");
    char what[64];
    bool is_second = is_word(format, "gptq_v2");
    if (!json_is_null(format) && !is_second && !is_word(format, "gptq")) {
        snprintf(what, sizeof what, "gptq in the format \"%.30s\"",
                 json_string(format) ? json_string(format) : "?");
        return refuse(what, error);
    }
    out->is_zero_less_one = !is_second;
    enum status status = read_groups(block, "gptq", out, error);
    return status == OK ? read_rules(json_get(block, "dynamic"), out, error) : status;
}

static enum status read_awq(const struct json *block, struct quantization *out, struct error *error)
{
    const char *version = json_string(json_get(block, "version"));
    char what[64];
    if (version && strcmp(version, "gemm") != 0 && strcmp(version, "GEMM") != 0) {
        snprintf(what, sizeof what, "awq in the version \"%.30s\"", version);
        return refuse(what, error);
    }
    return read_groups(block, "awq", out, error);
}

/* The block of 2-D scales, where one is named. */
static enum status read_block(const struct json *size, struct quantization *out,
                              struct error *error)
{
    int64_t rows, cols;
    if (json_is_null(size))
        return OK;
    if (size->type != JT_ARRAY || size->n != 2 || !json_int(&size->items[0], 1, 1 << 20, &rows) ||
        !json_int(&size->items[1], 1, 1 << 20, &cols))
        return error_set(error, ERROR_INVALID,
                         "quantization_config: a block of weights is two positive numbers");
    out->block_rows = (int32_t)rows;
    out->block_cols = (int32_t)cols;
    return OK;
}

static enum status read_compressed(const struct json *block, struct quantization *out,
                                   struct error *error)
{
    static const char *const formats[] = {"pack-quantized",       "int-quantized",
                                          "naive-quantized",      "float-quantized",
                                          "nvfp4-pack-quantized", "mixed-precision"};
    const struct json *groups = json_get(block, "config_groups");
    const char *format = json_string(json_get(block, "format"));
    char what[80];
    size_t i = 0;
    while (i < sizeof formats / sizeof *formats && !(format && strcmp(format, formats[i]) == 0))
        i++;
    if (i == sizeof formats / sizeof *formats) {
        snprintf(what, sizeof what, "compressed-tensors in the format \"%.40s\"",
                 format ? format : "?");
        return refuse(what, error);
    }
    enum status status = OK;
    for (size_t g = 0; status == OK && groups && groups->type == JT_OBJECT && g < groups->n; g++) {
        const struct json *weights = json_get(&groups->members[g].value, "weights");
        status = read_block(json_get(weights, "block_structure"), out, error);
    }
    return status;
}

static enum status read_modelopt(const struct json *block, struct error *error)
{
    const struct json *algorithm = json_get(block, "quant_algo");
    char what[64];
    if (is_word(algorithm, "NVFP4") || is_word(algorithm, "FP8"))
        return OK;
    snprintf(what, sizeof what, "modelopt's %.40s",
             json_string(algorithm) ? json_string(algorithm) : "unnamed algorithm");
    return refuse(what, error);
}

static enum status read_method(const struct json *block, struct quantization *out,
                               struct error *error)
{
    const char *name = json_string(json_get(block, "quant_method"));
    int method = QUANTIZED_FP8;
    while (method < N_QUANTIZED_METHODS && !(name && strcmp(name, methods[method].name) == 0))
        method++;
    out->method = (enum quantized_method)method;
    switch (method) {
    case QUANTIZED_FP8:
        return read_block(json_get(block, "weight_block_size"), out, error);
    case QUANTIZED_GPTQ:
        return read_gptq(block, out, error);
    case QUANTIZED_AWQ:
        return read_awq(block, out, error);
    case QUANTIZED_COMPRESSED:
        return read_compressed(block, out, error);
    case QUANTIZED_MODELOPT:
        return read_modelopt(block, error);
    default:
        return refuse(name ? name : "something without a quant_method", error);
    }
}

enum status quantization_read(const struct json *config, struct quantization *out,
                              struct error *error)
{
    const struct json *levels[] = {config, json_get(config, "text_config")};
    *out = (struct quantization){0};
    for (int i = 0; i < 2; i++) {
        const struct json *block = json_get(levels[i], "quantization_config");
        if (!json_is_null(block)) {
            enum status status = read_method(block, out, error);
            if (status != OK)
                *out = (struct quantization){0};
            return status;
        }
    }
    return OK;
}
