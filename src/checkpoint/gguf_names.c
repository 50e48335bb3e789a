/* Tables from GGUF's tensor names to Hugging Face's, and the row order that goes with some of them.
 */
#include "base/size.h"
#include "checkpoint/gguf_model.h"

#include <ctype.h>
#include <string.h>

struct name_row {
    const char *gguf, *huggingface;
};

static const struct name_row global_names[] = {
    {"token_embd.weight", "model.embed_tokens.weight"},
    {"output_norm.weight", "model.norm.weight"},
    {"output.weight", "lm_head.weight"},
};

/* Behind "blk.N." and "model.layers.N.", in front of ".weight" or ".bias", or with it. */
static const struct name_row layer_names[] = {
    {"attn_norm", "input_layernorm"},
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"},
    {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
    {"attn_sinks.weight", "self_attn.sinks"},
    {"post_attention_norm", "post_attention_layernorm"},
    {"ffn_gate_inp", "mlp.gate"},
    {"ffn_gate_exps", "mlp.experts.gate_proj"},
    {"ffn_up_exps", "mlp.experts.up_proj"},
    {"ffn_down_exps", "mlp.experts.down_proj"},
    {"ffn_gate_up_exps", "mlp.experts.gate_up_proj"},
    {"ffn_gate_inp_shexp", "mlp.shared_expert_gate"},
    {"ffn_gate_shexp", "mlp.shared_expert.gate_proj"},
    {"ffn_up_shexp", "mlp.shared_expert.up_proj"},
    {"ffn_down_shexp", "mlp.shared_expert.down_proj"},
    /* Gated delta nets; their decoders norm behind attention by a name of their own. */
    {"post_attention_norm", "post_attention_layernorm"},
    {"attn_qkv", "linear_attn.in_proj_qkv"},
    {"attn_gate", "linear_attn.in_proj_z"},
    {"ssm_in", "linear_attn.in_proj_qkvz"},
    {"ssm_ba", "linear_attn.in_proj_ba"},
    {"ssm_alpha", "linear_attn.in_proj_a"},
    {"ssm_beta", "linear_attn.in_proj_b"},
    {"ssm_conv1d", "linear_attn.conv1d"},
    {"ssm_norm", "linear_attn.norm"},
    {"ssm_out", "linear_attn.out_proj"},
};

/* Of these names, what Hunyuan's models call otherwise. */
static const struct name_row hunyuan_names[] = {
    {"attn_q_norm", "self_attn.query_layernorm"},
    {"attn_k_norm", "self_attn.key_layernorm"},
    {"ffn_gate_inp", "mlp.gate.wg"},
    {"ffn_gate_shexp", "mlp.shared_mlp.gate_proj"},
    {"ffn_up_shexp", "mlp.shared_mlp.up_proj"},
    {"ffn_down_shexp", "mlp.shared_mlp.down_proj"},
};

/* Behind "blk.N." and "model.layers.N.", as a whole. ssm_a is -e^A_log and has no counterpart. */
static const struct name_row layer_vectors[] = {
    {"ssm_a", "linear_attn.A"},
    {"ssm_dt.bias", "linear_attn.dt_bias"},
};

/* Architectures whose converter interleaves the halves of each query and key head. */
static const char *const interleaved[] = {"llama"};

/* The name behind "blk.N.", or NULL. */
static const char *behind_layer(const char *name)
{
    if (strncmp(name, "blk.", 4) != 0 || !isdigit((unsigned char)name[4]))
        return NULL;
    name += 4;
    while (isdigit((unsigned char)*name))
        name++;
    return *name == '.' ? name + 1 : NULL;
}

/* "model.layers.N." of "blk.N.MODULE" in `out`. */
static void write_layer(struct str *out, const char *name, const char *module)
{
    str_append_z(out, "model.layers.");
    str_append(out, name + 4, (size_t)(module - name - 4));
}

/* Appends the layer's module by the first of `n` rows that names it; false if none does. */
static bool write_module(struct str *out, const char *name, const char *module,
                         const struct name_row *rows, size_t n)
{
    const char *dot = strchr(module, '.');
    for (size_t i = 0; dot && i < n; i++) {
        size_t len = strlen(rows[i].gguf);
        bool is_same = strncmp(rows[i].gguf, module, len) == 0;
        if (is_same && (module + len == dot || !module[len])) {
            write_layer(out, name, module);
            str_append_z(out, rows[i].huggingface);
            str_append_z(out, module + len);
            return true;
        }
    }
    return false;
}

void gguf_huggingface_name(struct str *out, const char *model_type, const char *name)
{
    str_clear(out);
    for (size_t i = 0; i < sizeof global_names / sizeof global_names[0]; i++) {
        if (strcmp(name, global_names[i].gguf) == 0) {
            str_append_z(out, global_names[i].huggingface);
            return;
        }
    }
    const char *module = behind_layer(name);
    for (size_t i = 0; module && i < sizeof layer_vectors / sizeof layer_vectors[0]; i++) {
        if (strcmp(module, layer_vectors[i].gguf) == 0) {
            write_layer(out, name, module);
            str_append_z(out, layer_vectors[i].huggingface);
            return;
        }
    }
    if (module && strncmp(model_type, "hunyuan", 7) == 0 &&
        write_module(out, name, module, hunyuan_names,
                     sizeof hunyuan_names / sizeof hunyuan_names[0]))
        return;
    if (module &&
        write_module(out, name, module, layer_names, sizeof layer_names / sizeof layer_names[0]))
        return;
    str_append_z(out, name);
}

enum status gguf_architecture(const struct gguf *gguf, struct str *out, struct error *error)
{
    const struct gguf_value *value = gguf_find(gguf, "general.architecture");
    if (!value || value->type != GGUF_STRING)
        return error_set(error, ERROR_INVALID, "it has no metadata key general.architecture");
    enum status status =
        name_check("general.architecture", (const char *)value->data, (size_t)value->n, 64, error);
    if (status == OK)
        str_append(out, (const char *)value->data, (size_t)value->n);
    return status;
}

static enum status read_head_count(const struct gguf *gguf, const char *architecture,
                                   const char *suffix, int64_t *out)
{
    struct str key = {0};
    str_printf(&key, "%s.attention.%s", architecture, suffix);
    const struct gguf_value *value = gguf_find(gguf, str_z(&key));
    bool found = value && value->type != GGUF_ARRAY && gguf_int(value, 0, out) && *out > 0;
    str_done(&key);
    return found ? OK : ERROR_NOT_FOUND;
}

/* A copy of a bias whose elements are in Hugging Face's order, as weight_row_data does for rows. */
static enum status reorder_bias(struct arena *arena, struct tensor *tensor, int32_t head_dim,
                                struct error *error)
{
    if (tensor->encoding < 0 || tensor->encoding > WEIGHT_BF16)
        return error_set(error, ERROR_UNSUPPORTED,
                         "tensor %.200s has type %s; a bias must be F32, F16 or BF16", tensor->name,
                         tensor->dtype);
    uint8_t *copy = arena_alloc(arena, (size_t)tensor->bytes);
    if (!copy)
        return error_memory(error, tensor->bytes);
    struct weight w = {.encoding = (enum weight_encoding)tensor->encoding,
                       .rows = tensor->cols,
                       .cols = 1,
                       .data = tensor->data,
                       .rope_head_dim = head_dim};
    size_t bytes = weight_row_bytes(&w);
    for (int64_t i = 0; i < w.rows; i++)
        memcpy(copy + (size_t)i * bytes, weight_row_data(&w, i), bytes);
    tensor->data = copy;
    return OK;
}

enum status gguf_set_rope_order(const struct gguf *gguf, struct tensor_list *list,
                                struct error *error)
{
    struct str architecture = {0};
    int64_t n_heads, n_kv_heads;
    bool is_interleaved = false;
    enum status status = gguf_architecture(gguf, &architecture, error);
    if (status != OK)
        goto out;
    for (size_t i = 0; i < sizeof interleaved / sizeof interleaved[0]; i++)
        is_interleaved |= strcmp(str_z(&architecture), interleaved[i]) == 0;
    if (!is_interleaved)
        goto out;
    if (read_head_count(gguf, str_z(&architecture), "head_count", &n_heads) != OK) {
        status = error_set(error, ERROR_INVALID,
                           "metadata key %s.attention.head_count is missing or not one positive "
                           "number",
                           str_z(&architecture));
        goto out;
    }
    if (read_head_count(gguf, str_z(&architecture), "head_count_kv", &n_kv_heads) != OK)
        n_kv_heads = n_heads;
    for (size_t i = 0; i < list->n && status == OK; i++) {
        struct tensor *tensor = &list->items[i];
        const char *module = behind_layer(tensor->name);
        bool is_query = module && strncmp(module, "attn_q.", 7) == 0;
        bool is_key = module && strncmp(module, "attn_k.", 7) == 0;
        if (!is_query && !is_key)
            continue;
        bool is_bias = strcmp(module + 7, "bias") == 0;
        int64_t rows = is_bias ? tensor->cols : tensor->rows;
        int64_t heads = is_query ? n_heads : n_kv_heads;
        if (rows % heads || rows / heads % 2 || rows / heads > INT32_MAX || rows == 0) {
            status = error_set(error, ERROR_INVALID,
                               "tensor %.200s has %lld rows, which are not %lld heads of even size",
                               tensor->name, (long long)rows, (long long)heads);
            break;
        }
        if (is_bias)
            status = reorder_bias(list->arena, tensor, (int32_t)(rows / heads), error);
        else
            tensor->rope_head_dim = (int32_t)(rows / heads);
    }
out:
    str_done(&architecture);
    return status;
}
