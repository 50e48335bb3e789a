/* Any bytes as a config.json and, behind a NUL, a safetensors file: read as MLX's weights, and,
 * where they are floats, quantized. */
#include "checkpoint/safetensors.h"
#include "checkpoint_walk.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const uint8_t *end = bytes ? memchr(data, 0, bytes) : NULL;
    if (!end)
        return 0;
    struct checkpoint *c = checkpoint_new("memory");
    struct error error = {0};
    require(c != NULL);
    size_t text = (size_t)(end - data);
    enum status status =
        config_parse(c, "config.json", (const char *)data, text, &c->config, &error);
    if (status == OK)
        status = config_read_quantization(c, &error);
    if (status == OK)
        status = safetensors_parse(&c->tensors, end + 1, bytes - text - 1, 0, &error);
    if (status == OK)
        status = checkpoint_index(c, &error);
    require_sentence(status, &error);
    if (status == OK) {
        walk_weights(c);
        if (checkpoint_quantize(c, 3, 32, &error) == OK)
            walk_weights(c);
    }
    checkpoint_free(c);
    return 0;
}
