/* Qwen1.5-MoE and Qwen2-MoE: Qwen2's attention; sparse layers with a shared expert whose result is
 * gated. */
#include "models/config.h"
#include "models/decoder.h"

/* Without layer_types every other layer slides, of those before max_window_layers. (transformers;
 * Qwen2 itself slides behind them.) */
static enum status read_windows(const struct json *config, struct decoder_config *c,
                                struct error *error)
{
    bool is_used = json_bool(json_get(config, "use_sliding_window"), false);
    if (!is_used || !json_is_null(json_get(config, "layer_types")))
        return decoder_read_windows(config, c, error);
    int64_t end = 28; /* the class default of max_window_layers */
    json_int(json_get(config, "max_window_layers"), 0, DECODER_MAX_LAYERS, &end);
    for (int32_t i = 0; i < c->n_layers && i < end; i += 2)
        c->is_sliding[i] = true;
    return config_count(config, "sliding_window", 1 << 24, 4096, &c->window, error);
}

static enum status qwen2_moe_configure(const struct json *config, const struct comm *comm,
                                       struct model **out, struct error *error)
{
    struct decoder_config c;
    enum status status = decoder_config_read(config, &c, error);
    if (status != OK)
        return status;
    c.has_qkv_bias = json_bool(json_get(config, "qkv_bias"), true);
    c.moe = (struct moe_config){.n_experts = 60,
                                .top_k = 4,
                                .intermediate = 1408,
                                .router = "gate",
                                .shared = "shared_expert",
                                .shared_gate = "shared_expert_gate"};
    status = read_windows(config, &c, error);
    if (status == OK)
        status = moe_config_read(config, &c.moe, error);
    if (status == OK)
        status = config_count(config, "shared_expert_intermediate_size", 1 << 20, 5632,
                              &c.moe.shared_intermediate, error);
    if (status == OK)
        status = moe_read_layers(config, c.n_layers, c.is_sparse, error);
    return status == OK ? decoder_new(&c, comm, out, error) : status;
}

static const char *const model_types[] = {"qwen2_moe", NULL};

const struct model_family qwen2_moe_family = {
    .name = "qwen2_moe",
    .model_types = model_types,
    .configure = qwen2_moe_configure,
    DECODER_FAMILY_CALLS,
};
