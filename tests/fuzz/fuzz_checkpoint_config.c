/* Any bytes as config.json and as the name of a tensor. */
#include "checkpoint_walk.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct checkpoint *c = checkpoint_new("memory");
    struct error error = {0};
    require(c != NULL);
    enum status status =
        config_parse(c, "config.json", (const char *)data, bytes, &c->config, &error);
    require_sentence(status, &error);
    if (status == OK) {
        status = config_read_quantization(c, &error);
        require_sentence(status, &error);
    }
    checkpoint_free(c);

    char *name = malloc(bytes + 1);
    require(name != NULL);
    if (bytes)
        memcpy(name, data, bytes);
    name[bytes] = '\0';
    const char *prefix, *rest;
    if (name_normalise(name, &prefix, &rest))
        require(strlen(prefix) + strlen(rest) <= strlen(name));
    free(name);
    return 0;
}
