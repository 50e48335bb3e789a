/* config.json: parsed with limits; how its weights are quantized. */
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

/* What the block says about itself: {"quant_method": "gptq", "bits": 4}. */
static enum status refuse(const struct json *block, struct error *error)
{
    const char *method = json_string(json_get(block, "quant_method"));
    if (!method)
        method = "of an unknown method";
    int64_t bits;
    char detail[32] = "";
    if (json_int(json_get(block, "bits"), 1, 64, &bits))
        snprintf(detail, sizeof detail, ", %lld bits", (long long)bits);
    return error_set(error, ERROR_UNSUPPORTED,
                     "the weights are quantized (%.40s%s), which this version does not support; "
                     "use the bf16 or f16 checkpoint, an MLX one or a GGUF file",
                     method, detail);
}

enum status config_read_quantization(struct checkpoint *c, struct error *error)
{
    enum status status = mlx_quantization_read(&c->config, &c->mlx, error);
    if (status != OK || c->mlx.block)
        return status;
    const struct json *levels[] = {&c->config, json_get(&c->config, "text_config")};
    for (int i = 0; i < 2; i++) {
        const struct json *block = json_get(levels[i], "quantization_config");
        if (!json_is_null(block))
            return refuse(block, error);
    }
    return OK;
}
