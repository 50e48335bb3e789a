/* Readers of the fields that say how tokens are drawn, when they end and what is told of them. */
#include "server/request.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum status read_stream_options(struct request *r, const struct json *value, const char *param,
                                struct refusal *refusal)
{
    if (value->type != JT_OBJECT)
        return refuse_value(refusal, param, value, "an object");
    r->has_stream_options = true;
    for (size_t i = 0; i < value->n; i++) {
        const struct json_member *m = &value->members[i];
        char name[80];
        snprintf(name, sizeof name, "stream_options.%s", m->key);
        if (strcmp(m->key, "include_usage") == 0 && m->value.type == JT_BOOL)
            r->include_usage = m->value.boolean;
        else if (strcmp(m->key, "include_usage") == 0 && m->value.type != JT_NULL)
            return refuse_value(refusal, name, &m->value, "true or false");
        else if (strcmp(m->key, "include_usage") != 0 && m->value.type != JT_NULL &&
                 !(strcmp(m->key, "include_obfuscation") == 0 && !json_bool(&m->value, true)))
            return refuse(refusal, 400, "unknown_parameter", name,
                          "'%s' is not supported by this server; leave it out.", name);
    }
    return OK;
}

/* Any whole number; one generator state a value, negative ones included. */
enum status read_seed(struct request *r, const struct json *value, const char *param,
                      struct refusal *refusal)
{
    int64_t seed;
    if (!json_int(value, INT64_MIN, INT64_MAX, &seed))
        return refuse_value(refusal, param, value, "a whole number of 64 bits");
    r->settings.seed = (uint64_t)seed;
    r->has_seed = true;
    return OK;
}

enum status read_top_k(struct request *r, const struct json *value, const char *param,
                       struct refusal *refusal)
{
    int64_t top_k;
    if (!json_int(value, -1, INT32_MAX, &top_k))
        return refuse_value(refusal, param, value, "a whole number; 0 and -1 turn it off");
    r->settings.top_k = top_k < 0 ? 0 : (int32_t)top_k; /* -1 is "unset" in the message */
    return OK;
}

enum status read_stop(struct request *r, const struct json *value, const char *param,
                      struct refusal *refusal)
{
    const struct json *items = value->type == JT_ARRAY ? value->items : value;
    size_t n = value->type == JT_ARRAY ? value->n : 1;
    char what[80];
    snprintf(what, sizeof what, "a string of 1 to %d bytes, or an array of at most %d such",
             MAX_STOP_BYTES, MAX_STOP);
    if (n > MAX_STOP)
        return refuse_value(refusal, param, value, what);
    struct bytes *strings = arena_alloc_array(&r->arena, n, sizeof *strings);
    if (!strings)
        return refuse_memory(refusal);
    for (size_t i = 0; i < n; i++) {
        const char *text = json_string(&items[i]);
        if (!text || items[i].n == 0 || items[i].n > MAX_STOP_BYTES || strlen(text) != items[i].n)
            return refuse_value(refusal, param, &items[i], what);
        strings[i] = (struct bytes){text, (uint32_t)items[i].n};
    }
    r->settings.stop = (struct byte_strings){strings, (uint32_t)n};
    return OK;
}

static int64_t last_id(const struct request *r)
{
    return r->setup->vocab_size ? (int64_t)r->setup->vocab_size - 1 : INT32_MAX;
}

enum status read_stop_token_ids(struct request *r, const struct json *value, const char *param,
                                struct refusal *refusal)
{
    char what[96];
    int64_t id;
    snprintf(what, sizeof what, "an array of at most %d token ids from 0 to %lld", MAX_STOP_TOKENS,
             (long long)last_id(r));
    if (value->type != JT_ARRAY || value->n > MAX_STOP_TOKENS)
        return refuse_value(refusal, param, value, what);
    int32_t *ids = arena_alloc_array(&r->arena, value->n, sizeof *ids);
    if (!ids)
        return refuse_memory(refusal);
    for (size_t i = 0; i < value->n; i++) {
        if (!json_int(&value->items[i], 0, last_id(r), &id))
            return refuse_value(refusal, param, &value->items[i], what);
        ids[i] = (int32_t)id;
    }
    r->settings.stop_tokens = (struct i32s){ids, (uint32_t)value->n};
    return OK;
}

static bool parse_id(const char *text, int64_t last, int32_t *out)
{
    char *end;
    if (*text < '0' || *text > '9')
        return false;
    long long id = strtoll(text, &end, 10);
    *out = (int32_t)id;
    return !*end && id <= last;
}

enum status read_logit_bias(struct request *r, const struct json *value, const char *param,
                            struct refusal *refusal)
{
    if (value->type != JT_OBJECT || value->n > MAX_BIASES) {
        char what[80];
        snprintf(what, sizeof what, "an object of at most %d token ids and biases", MAX_BIASES);
        return refuse_value(refusal, param, value, what);
    }
    int32_t *ids = arena_alloc_array(&r->arena, value->n, sizeof *ids);
    float *biases = arena_alloc_array(&r->arena, value->n, sizeof *biases);
    if (!ids || !biases)
        return refuse_memory(refusal);
    for (size_t i = 0; i < value->n; i++) {
        const struct json_member *m = &value->members[i];
        double bias = json_number(&m->value, 1000);
        if (!parse_id(m->key, last_id(r), &ids[i]))
            return refuse(refusal, 400, "invalid_value", param,
                          "'%s' has the key \"%.40s\"; keys must be token ids from 0 to %lld.",
                          param, m->key, (long long)last_id(r));
        if (!(bias >= -100 && bias <= 100))
            return refuse(refusal, 400, "invalid_value", param,
                          "'%s' of token %d must be a number from -100 to 100.", param, ids[i]);
        biases[i] = (float)bias;
    }
    r->settings.bias_tokens = (struct i32s){ids, (uint32_t)value->n};
    r->settings.bias_values = (struct f32s){biases, (uint32_t)value->n};
    return OK;
}

/* How many alternatives; 0 is the drawn token's alone. */
enum status read_completion_logprobs(struct request *r, const struct json *value, const char *param,
                                     struct refusal *refusal)
{
    int64_t n;
    char what[48];
    snprintf(what, sizeof what, "a whole number from 0 to %d", MAX_LOGPROBS);
    if (value->type == JT_BOOL && !value->boolean)
        return OK;
    if (!json_int(value, 0, MAX_LOGPROBS, &n))
        return refuse_value(refusal, param, value, what);
    r->has_logprobs = true;
    r->top_logprobs = (int32_t)n;
    return OK;
}
