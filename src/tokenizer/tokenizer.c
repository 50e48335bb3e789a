#include "tokenizer/tokenizer.h"

#include "tokenizer/detokenizer.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/tokenizer_parts.h"

#include <stdlib.h>

struct tokenizer *tokenizer_new(void)
{
    return calloc(1, sizeof(struct tokenizer));
}

void tokenizer_free(struct tokenizer *t)
{
    if (!t)
        return;
    pretokenizer_done(&t->pretokenizer);
    added_tokens_done(&t->added);
    bpe_done(&t->bpe);
    vocabulary_done(&t->vocabulary);
    free(t);
}

size_t tokenizer_memory(const struct tokenizer *t)
{
    return sizeof *t + vocabulary_memory(&t->vocabulary) + bpe_memory(&t->bpe) +
           added_tokens_memory(&t->added);
}

enum status tokenizer_add_token(struct tokenizer *t, const struct added_token *token,
                                const char *content, size_t len, struct error *error)
{
    if (!len)
        return OK;
    struct added_token added = *token;
    struct str scratch = {0}, normal = {0};
    int32_t known = vocabulary_find_written(&t->vocabulary, content, len, &scratch);
    if (known >= 0)
        added.id = known;
    const char *match = content;
    size_t match_len = len;
    enum status status = scratch.failed ? error_memory(error, len) : OK;
    if (status == OK && token->normalized && t->is_nfc) {
        struct nfc_scratch nfc = {0};
        bool changed;
        status = normalize_nfc(content, len, &nfc, &normal, NULL, &changed, error);
        nfc_scratch_done(&nfc);
        if (status == OK && changed) {
            match = normal.data;
            match_len = normal.len;
        }
    }
    if (status == OK)
        status = added_tokens_append(&t->added, &added, content, len, match, match_len, error);
    str_done(&scratch);
    str_done(&normal);
    return status;
}

enum status tokenizer_finish(struct tokenizer *t, struct error *error)
{
    enum status status = added_tokens_finish(&t->added, error);
    if (status != OK)
        return status;
    t->size = (int32_t)t->vocabulary.n_ids;
    if (t->added.n && t->added.items[t->added.n - 1].id >= t->size)
        t->size = t->added.items[t->added.n - 1].id + 1;
    for (size_t i = 0; i < t->frame.n_before + t->frame.n_after; i++) {
        int32_t id =
            i < t->frame.n_before ? t->frame.before[i] : t->frame.after[i - t->frame.n_before];
        size_t len;
        if (!tokenizer_token_bytes(t, id, &len))
            return error_set(error, ERROR_INVALID,
                             "the tokenizer adds the token id %d to texts, but has no such token",
                             (int)id);
    }
    return OK;
}

int32_t tokenizer_size(const struct tokenizer *t)
{
    return t->size;
}

unsigned tokenizer_token_flags(const struct tokenizer *t, int32_t id)
{
    const struct added_token *added = added_tokens_of_id(&t->added, id);
    return !added ? 0 : added->special ? TOKEN_ADDED | TOKEN_SPECIAL : TOKEN_ADDED;
}

const char *tokenizer_token_bytes(const struct tokenizer *t, int32_t id, size_t *len)
{
    const struct added_token *added = added_tokens_of_id(&t->added, id);
    if (!added)
        return vocabulary_bytes(&t->vocabulary, id, len);
    *len = added->match_len;
    return t->added.text.data + added->match_at;
}

int32_t tokenizer_find(const struct tokenizer *t, const char *text, size_t len)
{
    const struct added_token *added = added_tokens_find(&t->added, text, len);
    if (added)
        return added->id;
    int32_t id = vocabulary_find(&t->vocabulary, text, len, false);
    return id >= 0 ? id : vocabulary_find(&t->vocabulary, text, len, true);
}

enum status tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n,
                             bool skip_special, struct str *out, struct error *error)
{
    struct detokenizer detokenizer;
    detokenizer_init(&detokenizer, t);
    struct detokenizer_piece piece;
    enum status status = OK;
    for (size_t i = 0; status == OK && i < n; i++) {
        if (skip_special && (tokenizer_token_flags(t, ids[i]) & TOKEN_SPECIAL))
            continue;
        status = detokenizer_push(&detokenizer, ids[i], &piece, error);
        if (status != OK)
            break;
        str_append(out, piece.text, piece.len);
        str_append(out, piece.added, piece.added_len);
    }
    if (status == OK) {
        status = detokenizer_finish(&detokenizer, &piece, error);
        str_append(out, piece.text, piece.len);
    }
    detokenizer_done(&detokenizer);
    return status == OK && out->failed ? error_memory(error, out->len) : status;
}
