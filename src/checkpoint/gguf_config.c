/* Writes the configuration that Hugging Face's config.json would have, from a GGUF's metadata. */
#include "checkpoint/gguf_model.h"

#include "base/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ARRAY_MAX = 4096 };

struct key_row {
    const char *gguf, *huggingface; /* behind "ARCHITECTURE." */
};

static const struct key_row model_keys[] = {
    {"context_length", "max_position_embeddings"},
    {"embedding_length", "hidden_size"},
    {"feed_forward_length", "intermediate_size"},
    {"attention.head_count", "num_attention_heads"},
    {"attention.layer_norm_rms_epsilon", "rms_norm_eps"},
    {"attention.sliding_window", "sliding_window"},
    {"full_attention_interval", "full_attention_interval"},
    {"ssm.group_count", "linear_num_key_heads"},
    {"ssm.time_step_rank", "linear_num_value_heads"},
    {"ssm.state_size", "linear_key_head_dim"},
    {"ssm.conv_kernel", "linear_conv_kernel_dim"},
    {"expert_count", "num_experts"},
    {"expert_used_count", "num_experts_per_tok"},
    {"expert_feed_forward_length", "moe_intermediate_size"},
    {"expert_shared_feed_forward_length", "shared_expert_intermediate_size"},
};

static const struct key_row rope_scaling_keys[] = {
    {"rope.scaling.factor", "factor"},
    {"rope.scaling.original_context_length", "original_max_position_embeddings"},
    {"rope.scaling.yarn_beta_fast", "beta_fast"},
    {"rope.scaling.yarn_beta_slow", "beta_slow"},
};

/* What the writer works on. */
struct writer {
    const struct gguf *gguf;
    const struct tensor_list *tensors;
    struct str *out;
    struct str architecture, key; /* key: scratch */
};

/* The value of ARCHITECTURE.`suffix`, or NULL; its full key stays in w->key. */
static const struct gguf_value *find(struct writer *w, const char *suffix)
{
    str_clear(&w->key);
    str_printf(&w->key, "%s.%s", str_z(&w->architecture), suffix);
    return w->key.failed ? NULL : gguf_find(w->gguf, str_z(&w->key));
}

static bool find_int(struct writer *w, const char *suffix, int64_t *out)
{
    const struct gguf_value *value = find(w, suffix);
    return value && value->type != GGUF_ARRAY && gguf_int(value, 0, out);
}

static bool find_float(struct writer *w, const char *suffix, double *out)
{
    const struct gguf_value *value = find(w, suffix);
    return value && value->type != GGUF_ARRAY && gguf_float(value, 0, out);
}

static void write_key(struct writer *w, const char *key)
{
    char last = w->out->len ? w->out->data[w->out->len - 1] : '{';
    str_append_z(w->out, last == '{' ? "\"" : ", \"");
    str_append_z(w->out, key);
    str_append_z(w->out, "\": ");
}

/* The shortest decimal that reads back as the same f32 (`is_single`) or f64. */
static void write_float(struct writer *w, double value, bool is_single)
{
    char text[40];
    for (int digits = is_single ? 6 : 15; digits <= (is_single ? 9 : 17); digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        double back = strtod(text, NULL);
        if (is_single ? (float)back == (float)value : back == value)
            break;
    }
    str_append_z(w->out, text);
}

static enum status write_number(struct writer *w, const struct gguf_value *value, uint64_t i,
                                struct error *error)
{
    int64_t integer;
    double number;
    if (gguf_int(value, i, &integer)) {
        str_printf(w->out, "%lld", (long long)integer);
        return OK;
    }
    if (!gguf_float(value, i, &number) || !isfinite(number))
        return error_set(error, ERROR_INVALID, "metadata key %s is not a finite number",
                         str_z(&w->key));
    write_float(w, number, (value->type == GGUF_ARRAY ? value->item : value->type) == GGUF_F32);
    return OK;
}

/* A number, or an array of numbers (values that differ by layer). Absent keys write nothing. */
static enum status write_value(struct writer *w, const char *suffix, const char *key,
                               struct error *error)
{
    const struct gguf_value *value = find(w, suffix);
    if (!value)
        return OK;
    write_key(w, key);
    if (value->type != GGUF_ARRAY)
        return write_number(w, value, 0, error);
    if (value->n > ARRAY_MAX)
        return error_set(error, ERROR_LIMIT, "metadata key %s has %llu items; the limit is %d",
                         str_z(&w->key), (unsigned long long)value->n, ARRAY_MAX);
    str_append_char(w->out, '[');
    for (uint64_t i = 0; i < value->n; i++) {
        if (i)
            str_append_z(w->out, ", ");
        enum status status = write_number(w, value, i, error);
        if (status != OK)
            return status;
    }
    str_append_char(w->out, ']');
    return OK;
}

static void write_int(struct writer *w, const char *key, int64_t value)
{
    write_key(w, key);
    str_printf(w->out, "%lld", (long long)value);
}

static void write_bool(struct writer *w, const char *key, bool value)
{
    write_key(w, key);
    str_append_z(w->out, value ? "true" : "false");
}

static bool has_tensor(const struct writer *w, const char *name)
{
    return tensors_find(w->tensors, name, strlen(name)) != NULL;
}

/* Key heads, head size and the part of it that is rotated. */
static enum status write_heads(struct writer *w, struct error *error)
{
    bool has_kv = find(w, "attention.head_count_kv") != NULL;
    enum status status = write_value(w, has_kv ? "attention.head_count_kv" : "attention.head_count",
                                     "num_key_value_heads", error);
    if (status != OK)
        return status;
    int64_t hidden, heads, head_dim, rotated;
    bool is_known = find_int(w, "attention.key_length", &head_dim);
    if (!is_known && find_int(w, "embedding_length", &hidden) &&
        find_int(w, "attention.head_count", &heads) && heads > 0) {
        head_dim = hidden / heads;
        is_known = true;
    }
    if (!is_known || head_dim <= 0)
        return OK;
    write_int(w, "head_dim", head_dim);
    if (find_int(w, "rope.dimension_count", &rotated) && rotated > 0 && rotated < head_dim) {
        write_key(w, "partial_rotary_factor");
        write_float(w, (double)rotated / (double)head_dim, false);
    }
    return OK;
}

/* YaRN's attention_factor: GGUF's attn_factor multiplies the value that follows from `factor`. */
static void write_attention_factor(struct writer *w)
{
    double factor, attention;
    if (find_float(w, "rope.scaling.factor", &factor) &&
        find_float(w, "rope.scaling.attn_factor", &attention) && isfinite(attention) &&
        attention != 1 && isfinite(factor) && factor >= 1) {
        write_key(w, "attention_factor");
        write_float(w, attention * (0.1 * log(factor) + 1), true);
    }
}

static enum status write_rope(struct writer *w, struct error *error)
{
    if (find(w, "rope.freq_base")) {
        enum status status = write_value(w, "rope.freq_base", "rope_theta", error);
        if (status != OK)
            return status;
    } else {
        write_int(w, "rope_theta", 10000);
    }
    const struct gguf_value *type = find(w, "rope.scaling.type");
    double linear;
    if (!type && find_float(w, "rope.scale_linear", &linear) && linear != 1) {
        write_key(w, "rope_scaling");
        str_append_z(w->out, "{\"rope_type\": \"linear\"");
        enum status status = write_value(w, "rope.scale_linear", "factor", error);
        str_append_char(w->out, '}');
        return status;
    }
    if (!type || type->type != GGUF_STRING || gguf_string_is(type, "none"))
        return OK;
    write_key(w, "rope_scaling");
    str_append_z(w->out, "{\"rope_type\": ");
    json_write_string(w->out, (const char *)type->data, (size_t)type->n);
    for (size_t i = 0; i < sizeof rope_scaling_keys / sizeof rope_scaling_keys[0]; i++) {
        enum status status =
            write_value(w, rope_scaling_keys[i].gguf, rope_scaling_keys[i].huggingface, error);
        if (status != OK)
            return status;
    }
    if (gguf_string_is(type, "yarn"))
        write_attention_factor(w);
    /* GGUF has no key for it, and of its architectures this one alone does not round. */
    if (strcmp(str_z(&w->architecture), "gpt-oss") == 0)
        write_bool(w, "truncate", false);
    str_append_char(w->out, '}');
    return OK;
}

/* The embedding may have more rows than the tokenizer has tokens, as in Hugging Face's files. */
static void write_vocab_size(struct writer *w)
{
    const char *name = "token_embd.weight";
    const struct tensor *embedding = tensors_find(w->tensors, name, strlen(name));
    const struct gguf_value *tokens = gguf_find(w->gguf, "tokenizer.ggml.tokens");
    int64_t size;
    if (embedding)
        write_int(w, "vocab_size", embedding->rows);
    else if (tokens && tokens->type == GGUF_ARRAY && tokens->n <= INT32_MAX)
        write_int(w, "vocab_size", (int64_t)tokens->n);
    else if (find_int(w, "vocab_size", &size))
        write_int(w, "vocab_size", size);
}

/* The id that begins a text, and all ids that end an answer: end of text, of a turn, of a message.
 */
static enum status write_token_ids(struct writer *w, struct error *error)
{
    static const char *const end_keys[] = {"tokenizer.ggml.eos_token_id",
                                           "tokenizer.ggml.eot_token_id",
                                           "tokenizer.ggml.eom_token_id"};
    int32_t ids[3], n = 0, id;
    enum status status = gguf_token_id(w->gguf, "tokenizer.ggml.bos_token_id", &id, error);
    if (status != OK)
        return status;
    if (id >= 0)
        write_int(w, "bos_token_id", id);
    for (int i = 0; i < 3; i++) {
        status = gguf_token_id(w->gguf, end_keys[i], &id, error);
        if (status != OK)
            return status;
        bool is_new = id >= 0;
        for (int j = 0; j < n; j++)
            is_new &= ids[j] != id;
        if (is_new)
            ids[n++] = id;
    }
    if (n == 1)
        write_int(w, "eos_token_id", ids[0]);
    if (n > 1) {
        write_key(w, "eos_token_id");
        for (int i = 0; i < n; i++)
            str_printf(w->out, "%s%d", i ? ", " : "[", ids[i]);
        str_append_char(w->out, ']');
    }
    return OK;
}

/* Architectures that Hugging Face spells otherwise. */
static const struct key_row model_types[] = {
    {"qwen2moe", "qwen2_moe"},         {"qwen3moe", "qwen3_moe"},
    {"qwen3next", "qwen3_next"},       {"qwen35", "qwen3_5_text"},
    {"qwen35moe", "qwen3_5_moe_text"}, {"hunyuan-dense", "hunyuan_v1_dense"},
    {"hunyuan-moe", "hunyuan_v1_moe"},
};

/* block_count includes the layers of a head for drafts, which are not read. */
static void write_layer_count(struct writer *w)
{
    int64_t n_layers, n_drafts;
    if (!find_int(w, "block_count", &n_layers))
        return;
    if (find_int(w, "nextn_predict_layers", &n_drafts) && n_drafts > 0 && n_drafts < n_layers)
        n_layers -= n_drafts;
    write_int(w, "num_hidden_layers", n_layers);
}

static void write_model_type(struct writer *w)
{
    const char *type = str_z(&w->architecture);
    for (size_t i = 0; i < sizeof model_types / sizeof model_types[0]; i++)
        if (strcmp(type, model_types[i].gguf) == 0)
            type = model_types[i].huggingface;
    write_key(w, "model_type");
    json_write_string(w->out, type, strlen(type));
}

/* The intermediate width of experts whose key is missing: that of their weights in the first layer
 * that has some, divided by the number of experts that lie in one. */
static void write_expert_width(struct writer *w, const char *suffix, const char *tensor_suffix,
                               int64_t n_stacked, const char *key)
{
    int64_t width;
    if (find_int(w, suffix, &width))
        return; /* with the other keys */
    for (size_t i = 0; i < w->tensors->n; i++) {
        const struct tensor *tensor = &w->tensors->items[i];
        size_t len = strlen(tensor_suffix);
        if (tensor->name_len > len &&
            strcmp(tensor->name + tensor->name_len - len, tensor_suffix) == 0) {
            write_int(w, key, tensor->rows / n_stacked);
            return;
        }
    }
}

static void write_experts(struct writer *w)
{
    int64_t n_experts;
    if (!find_int(w, "expert_count", &n_experts) || n_experts < 1)
        return;
    write_expert_width(w, "expert_feed_forward_length", ".ffn_gate_exps.weight", n_experts,
                       "moe_intermediate_size");
    write_expert_width(w, "expert_shared_feed_forward_length", ".ffn_gate_shexp.weight", 1,
                       "shared_expert_intermediate_size");
    /* Without a key, what the architecture does in every program that reads these files. */
    bool is_qwen3 = strncmp(str_z(&w->architecture), "qwen3", 5) == 0;
    write_bool(w, "norm_topk_prob", gguf_bool(find(w, "expert_weights_norm"), is_qwen3));
}

/* Hunyuan's own keys. GGUF has one value for all layers, and the shared expert's width in place of
 * the number of ordinary widths that it has. The base of its rotation is raised already. */
static enum status write_hunyuan(struct writer *w, struct error *error)
{
    int64_t width, shared;
    if (strncmp(str_z(&w->architecture), "hunyuan", 7) != 0)
        return OK;
    write_bool(w, "use_qk_norm", has_tensor(w, "blk.0.attn_q_norm.weight"));
    if (find_int(w, "feed_forward_length", &width) && width > 0 &&
        find_int(w, "expert_shared_feed_forward_length", &shared) && shared > width)
        write_int(w, "num_shared_expert", shared / width);
    return write_value(w, "expert_used_count", "moe_topk", error);
}

/* Gated delta nets: what follows from the keys of model_keys. */
static void write_linear_attention(struct writer *w)
{
    int64_t inner, n_heads;
    if (!find_int(w, "ssm.inner_size", &inner) || !find_int(w, "ssm.time_step_rank", &n_heads) ||
        n_heads < 1)
        return;
    write_int(w, "linear_value_head_dim", inner / n_heads);
    /* The converter of Qwen3.5, not that of Next, puts the first value heads of all key heads
     * before the second ones. */
    write_bool(w, "linear_value_heads_tiled", strncmp(str_z(&w->architecture), "qwen35", 6) == 0);
}

static enum status write_config(struct writer *w, struct error *error)
{
    write_model_type(w);
    write_vocab_size(w);
    write_layer_count(w);
    for (size_t i = 0; i < sizeof model_keys / sizeof model_keys[0]; i++) {
        enum status status = write_value(w, model_keys[i].gguf, model_keys[i].huggingface, error);
        if (status != OK)
            return status;
    }
    enum status status = write_heads(w, error);
    if (status == OK)
        status = write_rope(w, error);
    if (status == OK)
        status = write_hunyuan(w, error);
    if (status != OK)
        return status;
    write_experts(w);
    write_linear_attention(w);
    write_bool(w, "tie_word_embeddings", !has_tensor(w, "output.weight"));
    write_bool(w, "attention_bias", has_tensor(w, "blk.0.attn_q.bias"));
    write_bool(w, "mlp_bias", has_tensor(w, "blk.0.ffn_up.bias"));
    return write_token_ids(w, error);
}

enum status gguf_config(const struct gguf *gguf, const struct tensor_list *list, struct str *out,
                        struct error *error)
{
    struct writer w = {.gguf = gguf, .tensors = list, .out = out};
    enum status status = gguf_architecture(gguf, &w.architecture, error);
    if (status == OK) {
        str_append_char(out, '{');
        status = write_config(&w, error);
        str_append_char(out, '}');
    }
    if (status == OK && (out->failed || w.key.failed || w.architecture.failed))
        status = error_memory(error, out->len);
    str_done(&w.architecture);
    str_done(&w.key);
    return status;
}

enum status gguf_generation_config(const struct gguf *gguf, struct str *out, struct error *error)
{
    struct writer w = {.gguf = gguf, .out = out};
    str_append_char(out, '{');
    enum status status = write_token_ids(&w, error);
    str_append_char(out, '}');
    return status == OK && out->failed ? error_memory(error, out->len) : status;
}
