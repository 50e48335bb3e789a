/* Any bytes as a config.json and, behind a NUL, a safetensors file: read as the weights of the
 * hub's quantizers. */
#include "checkpoint_walk.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* The weights of the modules to which the tensors belong. */
static void walk_modules(const struct checkpoint *c)
{
    for (size_t i = 0; i < c->names.cap; i++) {
        const char *name = c->names.entries[i].key, *dot = name ? strrchr(name, '.') : NULL;
        struct str weight = {0};
        if (!dot)
            continue;
        str_append(&weight, name, (size_t)(dot - name));
        str_append_z(&weight, ".weight");
        require(!weight.failed);
        walk_weight(c, str_z(&weight));
        str_done(&weight);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct checkpoint *c = checkpoint_new("memory");
    require(c != NULL);
    if (walk_open(c, data, bytes))
        walk_modules(c);
    checkpoint_free(c);
    return 0;
}
