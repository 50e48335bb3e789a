/* Any bytes as a config.json and, behind a NUL, a safetensors file: read as MLX's weights, and,
 * where they are floats, quantized. */
#include "checkpoint_walk.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct checkpoint *c = checkpoint_new("memory");
    require(c != NULL);
    if (walk_open(c, data, bytes)) {
        walk_weights(c);
        if (checkpoint_quantize(c, 3, 32, NULL) == OK)
            walk_weights(c);
    }
    checkpoint_free(c);
    return 0;
}
