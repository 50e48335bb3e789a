#include "tokenizer/encoder.h"

#include "tokenizer/normalizer.h"
#include "tokenizer/piece_cache.h"
#include "tokenizer/tokenizer_parts.h"
#include "tokenizer/unicode.h"

#include <stdlib.h>
#include <string.h>

/* Scratch of a piece longer than this is given back after the call. */
enum { KEPT_PIECE_BYTES = 1 << 20 };

/* The places of the text whose tokens are asked for. */
struct marks {
    const size_t *offsets; /* [n] in the text as given */
    size_t *tokens;        /* [n] the answer */
    size_t n, next;        /* those before `next` are answered */
};

struct encoder {
    const struct tokenizer *tokenizer;
    struct piece_cache cache;
    struct bpe_scratch bpe;
    struct pretokenizer_scratch pretokenizer;
    struct nfc_scratch nfc;
    struct str clean, normal;
    struct text_edits clean_edits, normal_edits;

    /* of the call at hand */
    struct token_ids *out;
    size_t n_before; /* ids in `out` that other calls put there */
    unsigned flags;
    struct marks marks;
    bool is_cleaned;    /* `clean` differs from the text */
    bool is_normalized; /* `normal` differs from the stretch at hand */
    size_t stretch;     /* where the stretch starts in the clean text */
    size_t part;        /* where the part between normalized added tokens starts in the stretch */
    size_t limit; /* the next mark's place in the normalized stretch; SIZE_MAX: there is none */
};

void token_ids_done(struct token_ids *list)
{
    free(list->ids);
    *list = (struct token_ids){0};
}

/* Room for `n` more ids; the caller writes them and adds to list->n. */
static bool reserve_ids(struct token_ids *list, size_t n)
{
    if (list->cap - list->n >= n)
        return true;
    size_t cap = list->cap + list->cap / 2 + n + 64;
    int32_t *ids = realloc(list->ids, cap * sizeof *ids);
    if (!ids)
        return false;
    list->ids = ids;
    list->cap = cap;
    return true;
}

enum status encoder_new(const struct tokenizer *tokenizer, size_t cache_bytes, struct encoder **out,
                        struct error *error)
{
    *out = NULL;
    struct encoder *e = calloc(1, sizeof *e);
    if (!e)
        return error_memory(error, sizeof *e);
    e->tokenizer = tokenizer;
    if (!piece_cache_init(&e->cache, cache_bytes)) {
        encoder_free(e);
        return error_memory(error, cache_bytes);
    }
    *out = e;
    return OK;
}

void encoder_free(struct encoder *e)
{
    if (!e)
        return;
    piece_cache_done(&e->cache);
    bpe_scratch_done(&e->bpe);
    pretokenizer_scratch_done(&e->pretokenizer);
    nfc_scratch_done(&e->nfc);
    str_done(&e->clean);
    str_done(&e->normal);
    text_edits_done(&e->clean_edits);
    text_edits_done(&e->normal_edits);
    free(e);
}

/* The next mark's place in the clean text. */
static size_t clean_offset_of_mark(const struct encoder *e)
{
    size_t offset = e->marks.offsets[e->marks.next];
    return e->is_cleaned ? text_edits_map(&e->clean_edits, offset) : offset;
}

static void find_limit(struct encoder *e)
{
    e->limit = SIZE_MAX;
    if (e->marks.next == e->marks.n)
        return;
    size_t offset = clean_offset_of_mark(e);
    /* A mark before the stretch has been answered, unless the token before it strips white space.
     */
    offset = offset > e->stretch ? offset - e->stretch : 0;
    e->limit = e->is_normalized ? text_edits_map(&e->normal_edits, offset) : offset;
}

/* The token that comes `nth` in the output ends behind the next mark: it is the mark's answer. */
static void answer_mark(struct encoder *e, size_t nth)
{
    e->marks.tokens[e->marks.next++] = nth - e->n_before;
    find_limit(e);
}

/* Answers the marks that a piece's tokens pass. `end` is where it ends in the normalized stretch,
 * its tokens are the last `n_ids`. */
static void pass_marks(struct encoder *e, size_t len, size_t end, size_t n_ids)
{
    const struct vocabulary *vocabulary = &e->tokenizer->vocabulary;
    const int32_t *ids = e->out->ids + e->out->n - n_ids;
    size_t sum = 0, bytes;
    for (size_t i = 0; i < n_ids; i++)
        sum += vocabulary_bytes(vocabulary, ids[i], &bytes) ? bytes : 0;
    /* Where bytes are unknown to the vocabulary, its tokens do not say which of them they are. */
    bool is_exact = sum == len;
    size_t behind = len; /* bytes of the piece from the token at hand on */
    for (size_t i = 0; i < n_ids; i++) {
        if (is_exact && vocabulary_bytes(vocabulary, ids[i], &bytes))
            behind -= bytes;
        size_t token_end = is_exact ? end - behind : end;
        while (e->limit < token_end)
            answer_mark(e, e->out->n - n_ids + i);
    }
}

static enum status encode_piece(void *context, const char *piece, size_t len, size_t end,
                                struct error *error)
{
    struct encoder *e = context;
    struct token_ids *out = e->out;
    if (!reserve_ids(out, PIECE_CACHE_MAX_IDS))
        return error_memory(error, out->n * sizeof *out->ids);
    size_t n_ids;
    struct piece_key key;
    bool is_cacheable = e->cache.n_sets && piece_key_make(&key, piece, len);
    if (is_cacheable && piece_cache_get(&e->cache, &key, out->ids + out->n, &n_ids)) {
        out->n += n_ids;
    } else {
        const int32_t *ids;
        enum status status =
            bpe_encode(&e->tokenizer->bpe, &e->bpe, piece, len, &ids, &n_ids, error);
        if (status != OK)
            return status;
        if (!reserve_ids(out, n_ids))
            return error_memory(error, (out->n + n_ids) * sizeof *out->ids);
        memcpy(out->ids + out->n, ids, n_ids * sizeof *ids);
        out->n += n_ids;
        if (is_cacheable)
            piece_cache_put(&e->cache, &key, ids, n_ids);
    }
    if (e->limit < e->part + end)
        pass_marks(e, len, e->part + end, n_ids);
    return OK;
}

/* An added token that ends at `end`, an offset that e->limit can be compared with. */
static enum status put_added(struct encoder *e, int32_t id, size_t end, struct error *error)
{
    if (!reserve_ids(e->out, 1))
        return error_memory(error, e->out->n * sizeof *e->out->ids);
    while (e->limit < end)
        answer_mark(e, e->out->n);
    e->out->ids[e->out->n++] = id;
    return OK;
}

static enum status encode_part(struct encoder *e, const char *text, size_t start, size_t end,
                               struct error *error)
{
    if (start >= end)
        return OK;
    e->part = start;
    return pretokenizer_run(&e->tokenizer->pretokenizer, &e->pretokenizer, text + start,
                            end - start, encode_piece, e, error);
}

/* The normalized stretch: cut out its added tokens, split the rest. */
static enum status encode_normal(struct encoder *e, const char *text, size_t n, struct error *error)
{
    const struct added_tokens *added = &e->tokenizer->added;
    bool plain_special = (e->flags & ENCODE_PLAIN_SPECIAL) != 0;
    size_t at = 0, search = 0, start, end;
    const struct added_token *token;
    while ((token = added_tokens_next(added, &added->normal, text, n, at, &search, plain_special,
                                      &start, &end))) {
        enum status status = encode_part(e, text, at, start, error);
        if (status == OK)
            status = put_added(e, token->id, end, error);
        if (status != OK)
            return status;
        at = end;
    }
    return encode_part(e, text, at, n, error);
}

/* A stretch of clean text between raw added tokens. */
static enum status encode_stretch(struct encoder *e, const char *text, size_t start, size_t end,
                                  struct error *error)
{
    if (start >= end)
        return OK;
    text += start;
    size_t n = end - start;
    e->stretch = start;
    enum status status = OK;
    if (e->tokenizer->is_nfc) {
        bool has_marks = e->marks.next < e->marks.n;
        status = normalize_nfc(text, n, &e->nfc, &e->normal, has_marks ? &e->normal_edits : NULL,
                               &e->is_normalized, error);
    }
    find_limit(e);
    if (status == OK)
        status = e->is_normalized ? encode_normal(e, e->normal.data, e->normal.len, error)
                                  : encode_normal(e, text, n, error);
    e->is_normalized = false;
    e->stretch = 0;
    return status;
}

/* The whole clean text: cut out its added tokens, encode the stretches between them. */
static enum status encode_clean(struct encoder *e, const char *text, size_t n, struct error *error)
{
    const struct added_tokens *added = &e->tokenizer->added;
    bool plain_special = (e->flags & ENCODE_PLAIN_SPECIAL) != 0;
    size_t at = 0, search = 0, start, end;
    const struct added_token *token;
    while ((token = added_tokens_next(added, &added->raw, text, n, at, &search, plain_special,
                                      &start, &end))) {
        enum status status = encode_stretch(e, text, at, start, error);
        find_limit(e);
        if (status == OK)
            status = put_added(e, token->id, end, error);
        if (status != OK)
            return status;
        at = end;
    }
    return encode_stretch(e, text, at, n, error);
}

static enum status add_frame(struct encoder *e, const int32_t *ids, size_t n, struct error *error)
{
    if (!(e->flags & ENCODE_ADD_SPECIAL) || !n)
        return OK;
    if (!reserve_ids(e->out, n))
        return error_memory(error, n * sizeof *ids);
    memcpy(e->out->ids + e->out->n, ids, n * sizeof *ids);
    e->out->n += n;
    return OK;
}

static enum status encode_all(struct encoder *e, const char *text, size_t len, struct error *error)
{
    const struct token_frame *frame = &e->tokenizer->frame;
    enum status status = OK;
    e->is_cleaned = utf8_valid_prefix(text, len) < len;
    if (e->is_cleaned) {
        struct text_edits *edits = e->marks.n ? &e->clean_edits : NULL;
        status = replace_invalid_utf8(text, len, &e->clean, edits, error);
        text = str_z(&e->clean);
        len = e->clean.len;
    }
    if (status == OK)
        status = add_frame(e, frame->before, frame->n_before, error);
    if (status == OK)
        status = encode_clean(e, text, len, error);
    if (status != OK)
        return status;
    while (e->marks.next < e->marks.n)
        e->marks.tokens[e->marks.next++] = e->out->n - e->n_before;
    return add_frame(e, frame->after, frame->n_after, error);
}

enum status encoder_encode_marked(struct encoder *e, const char *text, size_t len, unsigned flags,
                                  const size_t *marks, size_t n_marks, size_t *mark_tokens,
                                  struct token_ids *out, struct error *error)
{
    if (len > ENCODER_MAX_TEXT_BYTES)
        return error_set(error, ERROR_LIMIT,
                         "a text of %zu bytes is too long to encode in one call; the limit is %d",
                         len, ENCODER_MAX_TEXT_BYTES);
    for (size_t i = 0; i < n_marks; i++)
        if (marks[i] > len || (i && marks[i] < marks[i - 1]))
            return error_set(error, ERROR_INVALID,
                             "mark %zu at byte %zu is out of order or behind the text's %zu bytes",
                             i, marks[i], len);
    e->out = out;
    e->n_before = out->n;
    e->flags = flags;
    e->marks = (struct marks){marks, mark_tokens, n_marks, 0};
    e->is_normalized = false;
    enum status status = encode_all(e, text, len, error);
    if (status != OK)
        out->n = e->n_before;
    if (e->bpe.cap > KEPT_PIECE_BYTES)
        bpe_scratch_done(&e->bpe);
    return status;
}

enum status encoder_encode(struct encoder *e, const char *text, size_t len, unsigned flags,
                           struct token_ids *out, struct error *error)
{
    return encoder_encode_marked(e, text, len, flags, NULL, 0, NULL, out, error);
}
