#include "tokenizer/added_tokens.h"

#include "tokenizer/unicode.h"

#include <stdlib.h>
#include <string.h>

enum status added_tokens_append(struct added_tokens *t, const struct added_token *token,
                                const char *content, size_t len, const char *match,
                                size_t match_len, struct error *error)
{
    if (t->n == ADDED_TOKENS_MAX)
        return error_set(error, ERROR_LIMIT, "the tokenizer has more than %d added tokens",
                         ADDED_TOKENS_MAX);
    if (len > ADDED_TOKEN_MAX_BYTES || match_len > ADDED_TOKEN_MAX_BYTES)
        return error_set(error, ERROR_LIMIT,
                         "the added token %d has %zu bytes of text; the limit is %d",
                         (int)token->id, len, ADDED_TOKEN_MAX_BYTES);
    if (t->n == t->cap) {
        size_t cap = t->cap ? t->cap * 2 : 32;
        struct added_token *items = realloc(t->items, cap * sizeof *items);
        if (!items)
            return error_memory(error, cap * sizeof *items);
        t->items = items;
        t->cap = cap;
    }
    struct added_token *item = &t->items[t->n];
    *item = *token;
    item->at = t->text.len;
    item->len = len;
    str_append(&t->text, content, len);
    item->match_at = t->text.len;
    item->match_len = match_len;
    str_append(&t->text, match, match_len);
    if (t->text.failed)
        return error_memory(error, len + match_len);
    t->n++;
    return OK;
}

static int compare_bytes(const char *a, size_t a_len, const char *b, size_t b_len)
{
    int order = memcmp(a, b, a_len < b_len ? a_len : b_len);
    return order ? order : (a_len > b_len) - (a_len < b_len);
}

static int by_id(const void *a, const void *b)
{
    const struct added_token *x = a, *y = b;
    return x->id != y->id ? (x->id > y->id) - (x->id < y->id) : (x->at > y->at) - (x->at < y->at);
}

/* For sorting by match: a token with a pointer to its text, as qsort has no context. */
struct keyed {
    const char *match;
    const struct added_token *token;
};

static int by_match(const void *a, const void *b)
{
    const struct keyed *x = a, *y = b;
    int order = compare_bytes(x->match, x->token->match_len, y->match, y->token->match_len);
    return order ? order : by_id(x->token, y->token);
}

static enum status build_set(const struct added_tokens *t, struct added_set *set, bool normalized,
                             struct error *error)
{
    struct keyed *keyed = malloc((t->n + 1) * sizeof *keyed);
    set->sorted = malloc((t->n + 1) * sizeof *set->sorted);
    if (!keyed || !set->sorted) {
        free(keyed);
        return error_memory(error, (t->n + 1) * sizeof *keyed);
    }
    for (size_t i = 0; i < t->n; i++)
        if (t->items[i].normalized == normalized && t->items[i].match_len)
            keyed[set->n++] = (struct keyed){t->text.data + t->items[i].match_at, &t->items[i]};
    qsort(keyed, set->n, sizeof *keyed, by_match);
    for (size_t i = 0; i < set->n; i++) {
        set->sorted[i] = keyed[i].token;
        uint16_t *min_len = &set->min_len[(unsigned char)keyed[i].match[0]];
        if (!*min_len || keyed[i].token->match_len < *min_len)
            *min_len = (uint16_t)keyed[i].token->match_len;
    }
    free(keyed);
    return OK;
}

size_t added_tokens_memory(const struct added_tokens *t)
{
    return t->text.cap + t->cap * sizeof *t->items + 2 * (t->n + 1) * sizeof *t->raw.sorted;
}

enum status added_tokens_finish(struct added_tokens *t, struct error *error)
{
    if (t->n)
        qsort(t->items, t->n, sizeof *t->items, by_id);
    size_t kept = 0;
    for (size_t i = 0; i < t->n; i++) {
        const struct added_token *item = &t->items[i];
        const struct added_token *last = kept ? &t->items[kept - 1] : NULL;
        if (last && last->id == item->id) {
            if (compare_bytes(t->text.data + last->at, last->len, t->text.data + item->at,
                              item->len) != 0)
                return error_set(error, ERROR_INVALID, "two added tokens have the id %d",
                                 (int)item->id);
            kept--;
        }
        t->items[kept++] = *item;
    }
    t->n = kept;
    enum status status = build_set(t, &t->raw, false, error);
    return status == OK ? build_set(t, &t->normal, true, error) : status;
}

void added_tokens_done(struct added_tokens *t)
{
    str_done(&t->text);
    free(t->items);
    free(t->raw.sorted);
    free(t->normal.sorted);
    *t = (struct added_tokens){0};
}

const struct added_token *added_tokens_of_id(const struct added_tokens *t, int32_t id)
{
    size_t low = 0, high = t->n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (t->items[middle].id == id)
            return &t->items[middle];
        if (t->items[middle].id < id)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

const struct added_token *added_tokens_find(const struct added_tokens *t, const char *content,
                                            size_t len)
{
    for (size_t i = 0; i < t->n; i++)
        if (t->items[i].len == len && memcmp(t->text.data + t->items[i].at, content, len) == 0)
            return &t->items[i];
    return NULL;
}

/* The longest token whose match starts `text`. The sorted tokens that agree with its first `depth`
 * bytes are [low, high); the shortest of them comes first. */
static const struct added_token *longest_at(const struct added_tokens *t,
                                            const struct added_set *set, const char *text, size_t n)
{
    const struct added_token *found = NULL;
    size_t low = 0, high = set->n;
    for (size_t depth = 0; depth < n && low < high; depth++) {
        unsigned char c = (unsigned char)text[depth];
        for (int side = 0; side < 2; side++) {
            /* First the start of those whose byte at `depth` is at least c, then of those above it.
             */
            size_t from = low, to = high;
            while (from < to) {
                size_t middle = from + (to - from) / 2;
                const struct added_token *m = set->sorted[middle];
                bool is_below =
                    m->match_len <= depth ||
                    (unsigned char)t->text.data[m->match_at + depth] < (unsigned)c + (unsigned)side;
                if (is_below)
                    from = middle + 1;
                else
                    to = middle;
            }
            *(side ? &high : &low) = from;
        }
        if (low < high && set->sorted[low]->match_len == depth + 1)
            found = set->sorted[low];
    }
    return found;
}

static bool is_word(const char *at)
{
    size_t bytes;
    return (unicode_class(utf8_decode(at, &bytes)) & UNICODE_WORD) != 0;
}

static bool is_space(const char *at, size_t *bytes)
{
    return (unicode_class(utf8_decode(at, bytes)) & UNICODE_SPACE) != 0;
}

static bool is_single_word(const char *text, size_t n, size_t start, size_t end)
{
    return (start == 0 || !is_word(utf8_previous(text + start))) &&
           (end == n || !is_word(text + end));
}

const struct added_token *added_tokens_next(const struct added_tokens *t,
                                            const struct added_set *set, const char *text, size_t n,
                                            size_t from, size_t *search, bool plain_special,
                                            size_t *start, size_t *end)
{
    if (!set->n)
        return NULL;
    for (size_t at = *search; at < n;) {
        size_t shortest = set->min_len[(unsigned char)text[at]];
        const struct added_token *token =
            shortest && n - at >= shortest ? longest_at(t, set, text + at, n - at) : NULL;
        if (!token) {
            at++;
            continue;
        }
        size_t behind = at + token->match_len, bytes;
        if ((token->special && plain_special) ||
            (token->single_word && !is_single_word(text, n, at, behind))) {
            at = behind;
            continue;
        }
        *search = behind;
        *start = at;
        *end = behind;
        while (token->lstrip && *start > from) {
            const char *previous = utf8_previous(text + *start);
            if (!is_space(previous, &bytes))
                break;
            *start = (size_t)(previous - text);
        }
        while (token->rstrip && *end < n && is_space(text + *end, &bytes))
            *end += bytes;
        return token;
    }
    *search = n;
    return NULL;
}
