/* Qwen2 and Qwen2.5, dense: biases on q, k and v; layers from max_window_layers on may slide. */
#include "models/decoder.h"

static enum status qwen2_configure(const struct json *config, const struct comm *comm,
                                   struct model **out, struct error *error)
{
    struct decoder_config c;
    enum status status = decoder_config_read(config, &c, error);
    if (status != OK)
        return status;
    c.has_qkv_bias = true;
    status = decoder_read_windows(config, &c, error);
    return status == OK ? decoder_new(&c, comm, out, error) : status;
}

static const char *const model_types[] = {"qwen2", NULL};

const struct model_family qwen2_family = {
    .name = "qwen2",
    .model_types = model_types,
    .configure = qwen2_configure,
    DECODER_FAMILY_CALLS,
};
