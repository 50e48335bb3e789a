/* config.json: parsed with limits, and refused when it describes quantized weights. */
#include "checkpoint/checkpoint_struct.h"

#include <stdio.h>

enum status config_parse(struct checkpoint *checkpoint, const char *name, const char *text,
                         size_t bytes, struct json *out, struct error *error)
{
    checkpoint->config_arena.limit = CONFIG_TREE_MAX;
    enum status status = json_parse(&checkpoint->config_arena, text, bytes, out, error);
    if (status == OK && out->type != JT_OBJECT)
        status = error_set(error, ERROR_INVALID, "it does not hold a JSON object");
    if (status != OK)
        error_prefix(error, "%s", name);
    return status;
}

/* What the block says about itself: {"quant_method": "gptq", "bits": 4} or MLX's {"group_size": 64,
 * "bits": 4, "mode": "affine"}. */
static enum status refuse(const struct json *block, bool is_mlx, struct error *error)
{
    const char *method = json_string(json_get(block, is_mlx ? "mode" : "quant_method"));
    if (!method)
        method = is_mlx ? "affine" : "of an unknown method";
    int64_t bits;
    char detail[32] = "";
    if (json_int(json_get(block, "bits"), 1, 64, &bits))
        snprintf(detail, sizeof detail, ", %lld bits", (long long)bits);
    return error_set(error, ERROR_UNSUPPORTED,
                     "the weights are quantized (%s%.40s%s), which this version does not support; "
                     "use the bf16 or f16 checkpoint, or a GGUF file",
                     is_mlx ? "MLX " : "", method, detail);
}

enum status config_check_quantization(const struct json *config, struct error *error)
{
    const struct json *levels[] = {config, json_get(config, "text_config")};
    for (int i = 0; i < 2; i++) {
        const struct json *block = json_get(levels[i], "quantization_config");
        if (!json_is_null(block) && json_string(json_get(block, "quant_method")))
            return refuse(block, false, error);
        /* MLX writes the same block under both keys, without a quant_method. */
        const struct json *mlx = json_get(levels[i], "quantization");
        if (!json_is_null(mlx) || !json_is_null(block))
            return refuse(json_is_null(mlx) ? block : mlx, !json_is_null(mlx), error);
    }
    return OK;
}
