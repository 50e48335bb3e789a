#include "tokenizer/vocabulary.h"

#include "base/json.h"
#include "base/map.h"
#include "base/size.h"
#include "tokenizer/unicode.h"

#include <stdlib.h>
#include <string.h>

void vocabulary_done(struct vocabulary *v)
{
    str_done(&v->text);
    free(v->tokens);
    free(v->flags);
    free(v->slots);
    *v = (struct vocabulary){0};
}

/* GPT-2's alphabet: printable Latin-1 stands for itself, the other 68 bytes are U+0100 and on. */
static int byte_of_character(uint32_t c)
{
    if ((c >= 33 && c <= 126) || (c >= 161 && c <= 172) || (c >= 174 && c <= 255))
        return (int)c;
    if (c < 256 || c > 256 + 67)
        return -1;
    int nth = (int)c - 256;
    return nth <= 32 ? nth : nth <= 66 ? nth - 33 + 127 : 173;
}

bool vocabulary_decode_written(struct str *out, const char *written, size_t len)
{
    size_t before = out->len;
    if (!str_reserve(out, len))
        return false;
    char *to = out->data + before;
    for (size_t i = 0, bytes; i < len; i += bytes) {
        int byte = byte_of_character(utf8_decode(written + i, &bytes));
        if (byte < 0) {
            out->data[before] = '\0';
            return false;
        }
        *to++ = (char)byte;
    }
    *to = '\0';
    out->len = (size_t)(to - out->data);
    return true;
}

static uint32_t hash_token(const char *bytes, size_t len, bool is_verbatim)
{
    return (uint32_t)(hash_bytes(bytes, len) >> 32) ^ (is_verbatim ? 0x5BD1E995u : 0);
}

const char *vocabulary_bytes(const struct vocabulary *v, int32_t id, size_t *len)
{
    if (id < 0 || (size_t)id >= v->n_ids || !(v->flags[id] & VOCABULARY_PRESENT))
        return NULL;
    *len = v->tokens[id].bytes;
    return str_z(&v->text) + v->tokens[id].at;
}

int32_t vocabulary_find(const struct vocabulary *v, const char *bytes, size_t len, bool is_verbatim)
{
    if (!v->n_slots)
        return -1;
    uint32_t hash = hash_token(bytes, len, is_verbatim);
    for (size_t i = hash & (v->n_slots - 1); v->slots[i]; i = (i + 1) & (v->n_slots - 1)) {
        if (v->slots[i] >> 32 != hash)
            continue;
        size_t id = (uint32_t)v->slots[i] - 1;
        if (v->tokens[id].bytes == len && !(v->flags[id] & VOCABULARY_VERBATIM) == !is_verbatim &&
            memcmp(v->text.data + v->tokens[id].at, bytes, len) == 0)
            return (int32_t)id;
    }
    return -1;
}

int32_t vocabulary_find_written(const struct vocabulary *v, const char *written, size_t len,
                                struct str *scratch)
{
    str_clear(scratch);
    if (vocabulary_decode_written(scratch, written, len))
        return vocabulary_find(v, str_z(scratch), scratch->len, false);
    return vocabulary_find(v, written, len, true);
}

size_t vocabulary_memory(const struct vocabulary *v)
{
    return v->text.cap + v->cap * (sizeof *v->tokens + sizeof *v->flags) +
           v->n_slots * sizeof *v->slots;
}

static bool grow_slots(struct vocabulary *v)
{
    size_t n = v->n_slots ? v->n_slots * 2 : 1024;
    uint64_t *slots = calloc(n, sizeof *slots);
    if (!slots)
        return false;
    for (size_t i = 0; i < v->n_slots; i++) {
        if (!v->slots[i])
            continue;
        size_t to = (v->slots[i] >> 32) & (n - 1);
        while (slots[to])
            to = (to + 1) & (n - 1);
        slots[to] = v->slots[i];
    }
    free(v->slots);
    v->slots = slots;
    v->n_slots = n;
    return true;
}

static bool grow_ids(struct vocabulary *v, size_t n)
{
    if (n <= v->cap)
        return true;
    size_t cap = n < 1024 ? 1024 : n + n / 2;
    struct vocabulary_token *tokens = realloc(v->tokens, cap * sizeof *tokens);
    if (tokens)
        v->tokens = tokens;
    uint8_t *flags = realloc(v->flags, cap);
    if (flags)
        v->flags = flags;
    if (!tokens || !flags)
        return false;
    memset(flags + v->cap, 0, cap - v->cap);
    v->cap = cap;
    return true;
}

static enum status check_token(size_t len, int64_t id, struct error *error)
{
    if (id < 0 || id >= VOCABULARY_MAX_IDS)
        return error_set(error, ERROR_LIMIT,
                         "token id %lld is outside the range this build supports, 0 to %d",
                         (long long)id, VOCABULARY_MAX_IDS - 1);
    if (len > VOCABULARY_MAX_TOKEN_BYTES)
        return error_set(error, ERROR_LIMIT, "token %lld is %zu bytes long; the limit is %d",
                         (long long)id, len, VOCABULARY_MAX_TOKEN_BYTES);
    return OK;
}

/* Enters the text of `id`, whose bytes are the last `len` of v->text. */
static enum status enter(struct vocabulary *v, size_t id, size_t len, unsigned flags,
                         struct error *error)
{
    if (v->text.failed || v->text.len > UINT32_MAX || !grow_ids(v, id + 1) ||
        (v->n_used + 1 > v->n_slots / 2 && !grow_slots(v)))
        return error_memory(error, v->text.len);
    v->tokens[id] = (struct vocabulary_token){(uint32_t)(v->text.len - len), (uint32_t)len};
    v->flags[id] = (uint8_t)(flags | VOCABULARY_PRESENT);
    if (id >= v->n_ids)
        v->n_ids = id + 1;
    uint32_t hash =
        hash_token(v->text.data + v->tokens[id].at, len, (flags & VOCABULARY_VERBATIM) != 0);
    size_t i = hash & (v->n_slots - 1);
    while (v->slots[i])
        i = (i + 1) & (v->n_slots - 1);
    v->slots[i] = (uint64_t)hash << 32 | (id + 1);
    v->n_used++;
    return OK;
}

enum status vocabulary_add_written(struct vocabulary *v, const char *written, size_t len,
                                   int64_t id, struct error *error)
{
    enum status status = check_token(len, id, error);
    if (status != OK)
        return status;
    if ((size_t)id < v->n_ids && (v->flags[id] & VOCABULARY_PRESENT))
        return error_set(error, ERROR_INVALID, "two tokens of the vocabulary have the id %lld",
                         (long long)id);
    size_t before = v->text.len;
    bool is_verbatim = !vocabulary_decode_written(&v->text, written, len);
    if (is_verbatim)
        str_append(&v->text, written, len);
    if (v->text.failed)
        return error_memory(error, len);
    size_t bytes = v->text.len - before;
    if (vocabulary_find(v, str_z(&v->text) + before, bytes, is_verbatim) >= 0) {
        v->text.len = before;
        return error_set(error, ERROR_INVALID, "the token \"%.*s\" is in the vocabulary twice",
                         len > 64 ? 64 : (int)len, written);
    }
    return enter(v, (size_t)id, bytes, is_verbatim ? VOCABULARY_VERBATIM : 0, error);
}
