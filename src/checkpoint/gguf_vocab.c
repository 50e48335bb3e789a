/* Copies the vocabulary out of the mapping: the file's strings have lengths, ours end in NULs. */
#include "base/size.h"
#include "checkpoint/gguf_model.h"

#include <string.h>

enum { STRINGS_MAX = 1 << 22, STRING_BYTES_MAX = 1 << 28 };

static bool is_array_of(const struct gguf_value *value, enum gguf_type item)
{
    return value && value->type == GGUF_ARRAY && value->item == item;
}

enum status gguf_token_id(const struct gguf *gguf, const char *key, int32_t *out,
                          struct error *error)
{
    *out = -1;
    const struct gguf_value *value = gguf_find(gguf, key);
    const struct gguf_value *tokens = gguf_find(gguf, "tokenizer.ggml.tokens");
    int64_t id, limit = is_array_of(tokens, GGUF_STRING) && tokens->n <= STRINGS_MAX
                            ? (int64_t)tokens->n
                            : INT32_MAX;
    if (!value)
        return OK;
    if (value->type == GGUF_ARRAY || !gguf_int(value, 0, &id))
        return error_set(error, ERROR_INVALID, "metadata key %s is not a token id", key);
    if (id == UINT32_MAX || id == -1) /* how converters write "none" */
        return OK;
    if (id < 0 || id >= limit)
        return error_set(error, ERROR_INVALID,
                         "metadata key %s is %lld, outside the vocabulary of %lld tokens", key,
                         (long long)id, (long long)limit);
    *out = (int32_t)id;
    return OK;
}

/* A string with a NUL behind; *out stays NULL when the key is absent. */
static enum status copy_string(const struct gguf *gguf, const char *key, struct arena *arena,
                               const char **out, struct error *error)
{
    const struct gguf_value *value = gguf_find(gguf, key);
    if (!value)
        return OK;
    if (value->type != GGUF_STRING || memchr(value->data, 0, (size_t)value->n))
        return error_set(error, ERROR_INVALID, "metadata key %s is not a string without NULs", key);
    if (value->n > STRING_BYTES_MAX)
        return error_set(error, ERROR_LIMIT, "metadata key %s has %llu bytes; the limit is %d", key,
                         (unsigned long long)value->n, STRING_BYTES_MAX);
    *out = arena_copy(arena, (const char *)value->data, (size_t)value->n);
    return *out ? OK : error_memory(error, value->n);
}

/* All strings of an array, in one piece of memory behind one array of pointers. */
static enum status copy_strings(const struct gguf *gguf, const char *key, struct arena *arena,
                                const char *const **out, size_t *n, struct error *error)
{
    const struct gguf_value *value = gguf_find(gguf, key);
    if (!value)
        return OK;
    if (!is_array_of(value, GGUF_STRING))
        return error_set(error, ERROR_INVALID, "metadata key %s is not an array of strings", key);
    size_t bytes = 0, len;
    const uint8_t *at = value->data;
    for (uint64_t i = 0; i < value->n && bytes <= STRING_BYTES_MAX; i++) {
        gguf_next_string(&at, &len);
        bytes += len + 1;
    }
    if (value->n > STRINGS_MAX || bytes > STRING_BYTES_MAX)
        return error_set(error, ERROR_LIMIT,
                         "metadata key %s holds more than %d strings or %d bytes", key, STRINGS_MAX,
                         STRING_BYTES_MAX);
    const char **strings = arena_alloc_array(arena, (size_t)value->n, sizeof *strings);
    char *copy = arena_alloc(arena, bytes);
    if (!strings || !copy)
        return error_memory(error, bytes + value->n * sizeof *strings);
    at = value->data;
    for (uint64_t i = 0; i < value->n; i++) {
        const char *text = gguf_next_string(&at, &len);
        if (memchr(text, 0, len))
            return error_set(error, ERROR_INVALID, "metadata key %s: string %llu contains a NUL",
                             key, (unsigned long long)i);
        memcpy(copy, text, len);
        strings[i] = copy;
        copy += len + 1; /* the arena's memory is zeroed */
    }
    *out = strings;
    *n = (size_t)value->n;
    return OK;
}

static enum status copy_types(const struct gguf *gguf, struct arena *arena, struct vocab *out,
                              struct error *error)
{
    const struct gguf_value *value = gguf_find(gguf, "tokenizer.ggml.token_type");
    if (!value)
        return OK;
    if (value->type != GGUF_ARRAY || value->n != (uint64_t)out->n_tokens)
        return error_set(error, ERROR_INVALID,
                         "metadata key tokenizer.ggml.token_type is not an array of one number for "
                         "each of the %zu tokens",
                         out->n_tokens);
    int32_t *types = arena_alloc_array(arena, (size_t)value->n, sizeof *types);
    if (!types)
        return error_memory(error, value->n * sizeof *types);
    for (uint64_t i = 0; i < value->n; i++) {
        int64_t type;
        if (!gguf_int(value, i, &type) || type < INT32_MIN || type > INT32_MAX)
            return error_set(error, ERROR_INVALID,
                             "metadata key tokenizer.ggml.token_type: item %llu is not a 32-bit "
                             "integer",
                             (unsigned long long)i);
        types[i] = (int32_t)type;
    }
    out->token_types = types;
    return OK;
}

/* Files converted before the key existed rely on Llama 3's splitter to imply a BOS. */
static bool implies_bos(const char *pre)
{
    return pre && (strcmp(pre, "llama-bpe") == 0 || strcmp(pre, "llama3") == 0 ||
                   strcmp(pre, "llama-v3") == 0);
}

enum status gguf_vocab(const struct gguf *gguf, struct arena *arena, struct vocab *out,
                       struct error *error)
{
    *out = (struct vocab){.bos_id = -1, .eos_id = -1};
    enum status status =
        copy_strings(gguf, "tokenizer.ggml.tokens", arena, &out->tokens, &out->n_tokens, error);
    if (status != OK || !out->tokens)
        return status;
    if ((status = copy_string(gguf, "tokenizer.ggml.model", arena, &out->model, error)) != OK ||
        (status = copy_string(gguf, "tokenizer.ggml.pre", arena, &out->pre, error)) != OK ||
        (status = copy_types(gguf, arena, out, error)) != OK ||
        (status = copy_strings(gguf, "tokenizer.ggml.merges", arena, &out->merges, &out->n_merges,
                               error)) != OK ||
        (status = gguf_token_id(gguf, "tokenizer.ggml.bos_token_id", &out->bos_id, error)) != OK ||
        (status = gguf_token_id(gguf, "tokenizer.ggml.eos_token_id", &out->eos_id, error)) != OK)
        return status;
    out->add_bos =
        gguf_bool(gguf_find(gguf, "tokenizer.ggml.add_bos_token"), implies_bos(out->pre));
    out->add_eos = gguf_bool(gguf_find(gguf, "tokenizer.ggml.add_eos_token"), false);
    return copy_string(gguf, "tokenizer.chat_template", arena, &out->chat_template, error);
}
