/* config.json: parsed with limits; how its weights are quantized. */
#include "checkpoint/checkpoint_struct.h"

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

enum status config_read_quantization(struct checkpoint *c, struct error *error)
{
    enum status status = mlx_quantization_read(&c->config, &c->mlx, error);
    if (status != OK || c->mlx.block)
        return status;
    const struct json *levels[] = {&c->config, json_get(&c->config, "text_config")};
    for (int i = 0; i < 2; i++) {
        const struct json *block = json_get(levels[i], "quantization_config");
        c->is_mxfp4 |= json_string_is(json_get(block, "quant_method"), "mxfp4");
    }
    return c->is_mxfp4 ? OK : quantization_read(&c->config, &c->quantization, error);
}
