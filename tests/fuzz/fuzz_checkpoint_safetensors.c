/* Any bytes as a safetensors file, listed, indexed and read. */
#include "checkpoint/safetensors.h"
#include "checkpoint_walk.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct checkpoint *c = checkpoint_new("memory");
    struct error error = {0};
    require(c != NULL);
    enum status status = safetensors_parse(&c->tensors, data, bytes, 0, &error);
    if (status == OK)
        status = checkpoint_index(c, &error);
    require_sentence(status, &error);
    if (status == OK)
        walk_weights(c);
    checkpoint_free(c);
    return 0;
}
