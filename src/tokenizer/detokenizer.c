#include "tokenizer/detokenizer.h"

#include "tokenizer/unicode.h"

#include <string.h>

void detokenizer_init(struct detokenizer *d, const struct tokenizer *tokenizer)
{
    *d = (struct detokenizer){.tokenizer = tokenizer};
}

void detokenizer_done(struct detokenizer *d)
{
    str_done(&d->text);
}

/* Appends `n` bytes as UTF-8 up to a character that more bytes might complete; returns how many
 * bytes were used up. With `is_last` nothing can complete it, and it becomes U+FFFD. */
static size_t append_lossy(struct str *out, const char *bytes, size_t n, bool is_last)
{
    size_t at = 0;
    while (at < n) {
        size_t valid = utf8_valid_prefix(bytes + at, n - at);
        str_append(out, bytes + at, valid);
        at += valid;
        if (at == n)
            break;
        size_t part;
        if (utf8_examine(bytes + at, n - at, &part) == UTF8_INCOMPLETE && !is_last)
            break;
        str_append(out, UTF8_REPLACEMENT, 3);
        at += part;
    }
    return at;
}

/* Adds bytes to the held ones until these are a whole character or are known not to be one. */
static size_t complete_held(struct detokenizer *d, const char *bytes, size_t n)
{
    size_t used = 0, part;
    while (d->n_held && used < n) {
        d->held[d->n_held++] = bytes[used++];
        enum utf8_state state = utf8_examine(d->held, d->n_held, &part);
        if (state == UTF8_INCOMPLETE)
            continue;
        if (state == UTF8_VALID) {
            str_append(&d->text, d->held, d->n_held);
        } else {
            /* The last byte showed it; it is not part of the broken character. */
            str_append(&d->text, UTF8_REPLACEMENT, 3);
            used--;
        }
        d->n_held = 0;
    }
    return used;
}

static void flush_held(struct detokenizer *d)
{
    append_lossy(&d->text, d->held, d->n_held, true);
    d->n_held = 0;
}

static enum status fill_text(const struct detokenizer *d, struct detokenizer_piece *piece,
                             struct error *error)
{
    piece->text = str_z(&d->text);
    piece->len = d->text.len;
    return d->text.failed ? error_memory(error, d->text.len) : OK;
}

enum status detokenizer_push(struct detokenizer *d, int32_t id, struct detokenizer_piece *piece,
                             struct error *error)
{
    size_t n;
    const char *bytes = tokenizer_token_bytes(d->tokenizer, id, &n);
    *piece = (struct detokenizer_piece){
        .added = "", .flags = tokenizer_token_flags(d->tokenizer, id), .id = id};
    str_clear(&d->text);
    if (!bytes)
        return fill_text(d, piece, error);
    if (piece->flags & TOKEN_ADDED) {
        flush_held(d);
        piece->added = bytes;
        piece->added_len = n;
        return fill_text(d, piece, error);
    }
    size_t used = complete_held(d, bytes, n);
    used += append_lossy(&d->text, bytes + used, n - used, false);
    if (used < n) {
        d->n_held = n - used;
        memcpy(d->held, bytes + used, d->n_held);
    }
    return fill_text(d, piece, error);
}

enum status detokenizer_finish(struct detokenizer *d, struct detokenizer_piece *piece,
                               struct error *error)
{
    *piece = (struct detokenizer_piece){.added = "", .id = -1};
    str_clear(&d->text);
    flush_held(d);
    return fill_text(d, piece, error);
}
