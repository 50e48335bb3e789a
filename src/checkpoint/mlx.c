/* Facts: mlx_lm.utils.load_model and mlx.core.quantize of mlx-lm 0.32.2 and mlx 0.32.4. */
#include "checkpoint/mlx.h"

#include <string.h>

static const struct mode_info {
    const char *name;
    int32_t bits, group; /* what the mode has when the file does not say */
} modes[] = {
    [MLX_AFFINE] = {"affine", 4, 64},
    [MLX_MXFP4] = {"mxfp4", 4, 32},
    [MLX_MXFP8] = {"mxfp8", 8, 32},
    [MLX_NVFP4] = {"nvfp4", 4, 16},
};
enum { N_MODES = sizeof modes / sizeof modes[0] };

bool mlx_format_is_possible(const struct mlx_format *format)
{
    if (format->mode != MLX_AFFINE)
        return format->bits == modes[format->mode].bits &&
               format->group == modes[format->mode].group;
    bool has_bits = (format->bits >= 2 && format->bits <= 6) || format->bits == 8;
    return has_bits && (format->group == 32 || format->group == 64 || format->group == 128);
}

/* An integer key, or `otherwise` where it is absent or null. */
static bool read_key(const struct json *block, const char *key, int32_t otherwise, int32_t *out)
{
    int64_t value = otherwise;
    const struct json *found = json_get(block, key);
    if (!json_is_null(found) && !json_int(found, 1, 1024, &value))
        return false;
    *out = (int32_t)value;
    return true;
}

/* {group_size, bits, mode} of the block that `what` names. */
static enum status read_format(const struct json *block, const char *what, struct mlx_format *out,
                               struct error *error)
{
    const struct json *mode = json_get(block, "mode");
    const char *name = json_is_null(mode) ? modes[MLX_AFFINE].name : json_string(mode);
    int i = 0;
    while (i < N_MODES && !(name && strcmp(name, modes[i].name) == 0))
        i++;
    if (i == N_MODES)
        return error_set(error, ERROR_UNSUPPORTED,
                         "%.200s has the mode \"%.40s\"; affine, mxfp4, mxfp8 and nvfp4 are known",
                         what, name ? name : "?");
    out->mode = (enum mlx_mode)i;
    if (!read_key(block, "bits", modes[i].bits, &out->bits) ||
        !read_key(block, "group_size", modes[i].group, &out->group))
        return error_set(error, ERROR_INVALID,
                         "%.200s: bits and group_size must be small positive integers", what);
    if (!mlx_format_is_possible(out))
        return error_set(error, ERROR_UNSUPPORTED,
                         "%.200s asks for %d bits in groups of %d, which %s does not have", what,
                         (int)out->bits, (int)out->group, modes[i].name);
    return OK;
}

static const struct json *find_block(const struct json *config)
{
    const struct json *levels[] = {config, json_get(config, "text_config")};
    for (int i = 0; i < 2; i++) {
        const struct json *block = json_get(levels[i], "quantization");
        if (!json_is_null(block))
            return block;
        block = json_get(levels[i], "quantization_config");
        if (!json_is_null(block) && json_is_null(json_get(block, "quant_method")) &&
            !json_is_null(json_get(block, "bits")))
            return block;
    }
    return NULL;
}

enum status mlx_quantization_read(const struct json *config, struct mlx_quantization *out,
                                  struct error *error)
{
    *out = (struct mlx_quantization){.block = find_block(config)};
    if (!out->block)
        return OK;
    if (out->block->type != JT_OBJECT)
        return error_set(error, ERROR_INVALID, "quantization is not an object");
    return read_format(out->block, "quantization", &out->format, error);
}

/* The format of one module: the defaults, or what is said of this one. */
static enum status format_of(const struct mlx_quantization *q, const char *path,
                             struct mlx_format *out, struct error *error)
{
    const struct json *own = json_get(q->block, path);
    *out = q->format;
    if (json_is_null(own) || (own->type == JT_BOOL && own->boolean))
        return OK;
    if (own->type == JT_BOOL)
        return error_set(error, ERROR_INVALID,
                         "config.json says that %.200s is not quantized, but it has scales", path);
    if (own->type != JT_OBJECT)
        return error_set(error, ERROR_INVALID,
                         "quantization.%.200s must be true, false or an object", path);
    return read_format(own, path, out, error);
}

static bool has_dtype(const struct tensor *tensor, const char *dtype)
{
    return strcmp(tensor->dtype, dtype) == 0;
}

/* The type of the levels, which must be one of the mode's. */
static enum status read_level_type(const struct mlx_format *format, const char *path,
                                   const struct tensor *scales, const struct tensor *biases,
                                   enum weight_level_type *out, struct error *error)
{
    static const struct {
        const char *dtype;
        enum weight_level_type type;
    } floats[] = {{"F32", LEVEL_F32}, {"F16", LEVEL_F16}, {"BF16", LEVEL_BF16}};
    if (format->mode != MLX_AFFINE) {
        *out = format->mode == MLX_NVFP4 ? LEVEL_E4M3 : LEVEL_E8M0;
        return has_dtype(scales, "U8") && !biases
                   ? OK
                   : error_set(error, ERROR_INVALID,
                               "%.200s is %s: its scales must be U8, not %s, and it has no biases",
                               path, modes[format->mode].name, scales->dtype);
    }
    for (int i = 0; i < 3 && biases && has_dtype(scales, biases->dtype); i++)
        if (has_dtype(scales, floats[i].dtype)) {
            *out = floats[i].type;
            return OK;
        }
    return error_set(error, ERROR_INVALID,
                     "%.200s is affine: its scales (%s) and biases (%s) must be of one float type",
                     path, scales->dtype, biases ? biases->dtype : "none");
}

enum status mlx_weight(const struct mlx_quantization *quantization, const char *path,
                       const struct tensor *codes, const struct tensor *scales,
                       const struct tensor *biases, struct weight *out, struct error *error)
{
    static const enum weight_encoding encodings[] = {WEIGHT_AFFINE, WEIGHT_E2M1, WEIGHT_E4M3,
                                                     WEIGHT_E2M1};
    struct mlx_format format;
    enum weight_level_type type = LEVEL_F32;
    if (!quantization->block)
        return error_set(error, ERROR_INVALID,
                         "%.200s has scales, but config.json has no quantization that says of "
                         "what kind",
                         path);
    if (!has_dtype(codes, "U32"))
        return error_set(error, ERROR_INVALID,
                         "%.200s has scales, but its weight is %s and not the U32 of packed codes",
                         path, codes->dtype);
    enum status status = format_of(quantization, path, &format, error);
    if (status == OK)
        status = read_level_type(&format, path, scales, biases, &type, error);
    if (status != OK)
        return status;
    int64_t bits = codes->cols > INT64_MAX / 32 ? INT64_MAX : codes->cols * 32;
    int64_t cols = bits / format.bits;
    bool is_same = !biases || (biases->rows == scales->rows && biases->cols == scales->cols);
    if (bits % format.bits || cols % format.group || cols / format.group != scales->cols ||
        codes->rows != scales->rows || !is_same)
        return error_set(error, ERROR_INVALID,
                         "%.200s: words [%lld, %lld] and scales [%lld, %lld] are not those of %d "
                         "bits in groups of %d, or its biases are not shaped like its scales",
                         path, (long long)codes->rows, (long long)codes->cols,
                         (long long)scales->rows, (long long)scales->cols, (int)format.bits,
                         (int)format.group);
    *out = (struct weight){.encoding = encodings[format.mode],
                           .rows = codes->rows,
                           .cols = cols,
                           .data = codes->data,
                           .levels = {.type = type,
                                      .bits = format.bits,
                                      .group = format.group,
                                      .group_rows = 1,
                                      .scales = scales->data,
                                      .biases = biases ? biases->data : NULL,
                                      .factor = 1.0f}};
    return OK;
}

static bool ends_with(const struct tensor *tensor, const char *suffix)
{
    size_t len = strlen(suffix);
    return tensor->name_len > len && strcmp(tensor->name + tensor->name_len - len, suffix) == 0;
}

/* Routers are small and their rounding changes the choice of experts: they stay floats. */
static bool is_router(const struct tensor *tensor)
{
    static const char *const suffixes[] = {".mlp.gate.weight", ".mlp.gate.wg.weight",
                                           ".mlp.router.weight", ".shared_expert_gate.weight",
                                           ".ffn_gate_inp.weight"};
    bool found = false;
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++)
        found |= ends_with(tensor, suffixes[i]);
    return found;
}

/* Experts that lie in one tensor [E, out, in]. */
static bool is_stack(const struct tensor *tensor)
{
    return tensor->n_dims == 3 &&
           (strstr(tensor->name, ".experts.") || strstr(tensor->name, ".switch_mlp."));
}

bool mlx_make(const struct mlx_format *format, const struct tensor *tensor, struct weight *out)
{
    bool is_matrix = tensor->n_dims <= 2 || is_stack(tensor);
    if (!ends_with(tensor, ".weight") || is_router(tensor) || tensor->rows < 2 || !is_matrix ||
        tensor->cols % format->group || tensor->encoding < WEIGHT_F32 ||
        tensor->encoding > WEIGHT_BF16)
        return false;
    struct weight floats = {.encoding = (enum weight_encoding)tensor->encoding,
                            .rows = tensor->rows,
                            .cols = tensor->cols,
                            .data = tensor->data,
                            .rope_head_dim = tensor->rope_head_dim};
    *out = weight_quantized(&floats, format->bits, format->group);
    return true;
}
