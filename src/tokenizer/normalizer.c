#include "tokenizer/normalizer.h"

#include "tokenizer/unicode.h"

#include <stdlib.h>
#include <string.h>

/* Hangul syllables are composed by arithmetic (The Unicode Standard, section 3.12). */
enum {
    HANGUL_FIRST = 0xAC00,
    HANGUL_LEAD = 0x1100,
    HANGUL_VOWEL = 0x1161,
    HANGUL_TAIL = 0x11A7, /* one before the first tail: index 0 is "no tail" */
    HANGUL_N_LEADS = 19,
    HANGUL_N_VOWELS = 21,
    HANGUL_N_TAILS = 28,
    HANGUL_N = HANGUL_N_LEADS * HANGUL_N_VOWELS * HANGUL_N_TAILS
};

/* A canonical decomposition has at most four characters. */
enum { MAX_DECOMPOSITION = 4 };

struct nfc_character {
    uint32_t code_point;
    uint32_t combining_class;
};

void text_edits_clear(struct text_edits *edits)
{
    edits->n = 0;
}

void text_edits_done(struct text_edits *edits)
{
    free(edits->items);
    *edits = (struct text_edits){0};
}

static void add_edit(struct text_edits *edits, struct text_edit edit)
{
    if (!edits || edits->failed)
        return;
    if (edits->n == edits->cap) {
        size_t cap = edits->cap ? edits->cap * 2 : 64;
        struct text_edit *items = realloc(edits->items, cap * sizeof *items);
        if (!items) {
            edits->failed = true;
            return;
        }
        edits->items = items;
        edits->cap = cap;
    }
    edits->items[edits->n++] = edit;
}

size_t text_edits_map(const struct text_edits *edits, size_t offset)
{
    /* The last edit that starts before `offset`. */
    size_t low = 0, high = edits->n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (edits->items[middle].source < offset)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == 0)
        return offset;
    const struct text_edit *e = &edits->items[low - 1];
    return offset < e->source_end ? e->result : e->result_end + (offset - e->source_end);
}

static enum status finish(const struct str *out, const struct text_edits *edits,
                          struct error *error)
{
    return out->failed || (edits && edits->failed) ? error_memory(error, out->len) : OK;
}

enum status replace_invalid_utf8(const char *text, size_t n, struct str *out,
                                 struct text_edits *edits, struct error *error)
{
    str_clear(out);
    if (edits)
        text_edits_clear(edits);
    size_t at = 0;
    while (at < n) {
        size_t valid = utf8_valid_prefix(text + at, n - at);
        str_append(out, text + at, valid);
        at += valid;
        if (at == n)
            break;
        size_t bytes;
        utf8_examine(text + at, n - at, &bytes);
        add_edit(edits, (struct text_edit){at, at + bytes, out->len, out->len + 3});
        str_append(out, UTF8_REPLACEMENT, 3);
        at += bytes;
    }
    return finish(out, edits, error);
}

static const struct unicode_decomposition *find_decomposition(uint32_t c)
{
    if (c < 0xC0)
        return NULL;
    size_t low = 0, high = unicode_n_decompositions;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const struct unicode_decomposition *d = &unicode_decompositions[middle];
        if (d->code_point == c)
            return d;
        if (d->code_point < c)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

/* Writes the full canonical decomposition of `c`; returns its length. */
static size_t decompose(uint32_t c, uint32_t out[MAX_DECOMPOSITION])
{
    if (c - HANGUL_FIRST < HANGUL_N) {
        uint32_t s = c - HANGUL_FIRST, tail = s % HANGUL_N_TAILS;
        out[0] = HANGUL_LEAD + s / (HANGUL_N_VOWELS * HANGUL_N_TAILS);
        out[1] = HANGUL_VOWEL + s / HANGUL_N_TAILS % HANGUL_N_VOWELS;
        out[2] = HANGUL_TAIL + tail;
        return tail ? 3 : 2;
    }
    /* Only the first part decomposes further, so the second parts come out last to first. */
    uint32_t behind[MAX_DECOMPOSITION];
    size_t n_behind = 0;
    const struct unicode_decomposition *d;
    while (n_behind < MAX_DECOMPOSITION - 1 && (d = find_decomposition(c))) {
        if (d->second)
            behind[n_behind++] = d->second;
        c = d->first;
    }
    size_t n = 0;
    out[n++] = c;
    while (n_behind)
        out[n++] = behind[--n_behind];
    return n;
}

/* The primary composite of two characters, or 0. */
static uint32_t compose_pair(uint32_t first, uint32_t second)
{
    if (first - HANGUL_LEAD < HANGUL_N_LEADS && second - HANGUL_VOWEL < HANGUL_N_VOWELS)
        return HANGUL_FIRST +
               ((first - HANGUL_LEAD) * HANGUL_N_VOWELS + second - HANGUL_VOWEL) * HANGUL_N_TAILS;
    if (first - HANGUL_FIRST < HANGUL_N && (first - HANGUL_FIRST) % HANGUL_N_TAILS == 0 &&
        second - HANGUL_TAIL - 1 < HANGUL_N_TAILS - 1)
        return first + (second - HANGUL_TAIL);
    size_t low = 0, high = unicode_n_compositions;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const struct unicode_decomposition *d =
            &unicode_decompositions[unicode_compositions[middle]];
        if (d->first == first && d->second == second)
            return d->code_point;
        if (d->first < first || (d->first == first && d->second < second))
            low = middle + 1;
        else
            high = middle;
    }
    return 0;
}

void nfc_scratch_done(struct nfc_scratch *s)
{
    free(s->characters);
    free(s->sorted);
    *s = (struct nfc_scratch){0};
}

static bool reserve(struct nfc_scratch *s, size_t n)
{
    if (n <= s->cap)
        return true;
    size_t cap = n + n / 2 + 64;
    struct nfc_character *characters = realloc(s->characters, cap * sizeof *characters);
    if (characters)
        s->characters = characters;
    struct nfc_character *sorted = realloc(s->sorted, cap * sizeof *sorted);
    if (sorted)
        s->sorted = sorted;
    if (!characters || !sorted)
        return false;
    s->cap = cap;
    return true;
}

/* Sorts a run of non-starters by combining class, keeping the order of equals: by insertion when it
 * is short, by counting when it is not, so that a long run costs no more than its length. */
static void sort_marks(struct nfc_character *marks, struct nfc_character *spare, size_t n)
{
    if (n <= 32) {
        for (size_t i = 1; i < n; i++) {
            struct nfc_character c = marks[i];
            size_t to = i;
            for (; to > 0 && marks[to - 1].combining_class > c.combining_class; to--)
                marks[to] = marks[to - 1];
            marks[to] = c;
        }
        return;
    }
    size_t starts[257] = {0};
    for (size_t i = 0; i < n; i++)
        starts[marks[i].combining_class + 1]++;
    for (size_t i = 1; i < 257; i++)
        starts[i] += starts[i - 1];
    for (size_t i = 0; i < n; i++)
        spare[starts[marks[i].combining_class]++] = marks[i];
    memcpy(marks, spare, n * sizeof *marks);
}

/* Canonical composition of `n` decomposed and ordered characters, in place; returns how many are
 * left. */
static size_t compose(struct nfc_character *c, size_t n)
{
    size_t starter = SIZE_MAX, kept = 0;
    for (size_t i = 0; i < n; i++) {
        /* Blocked: something since the starter has a class not below this one's. */
        bool is_adjacent = kept > 0 && starter == kept - 1;
        bool is_free = starter != SIZE_MAX &&
                       (is_adjacent || c[kept - 1].combining_class < c[i].combining_class);
        uint32_t both = is_free ? compose_pair(c[starter].code_point, c[i].code_point) : 0;
        if (both) {
            c[starter].code_point = both;
            continue;
        }
        if (c[i].combining_class == 0)
            starter = kept;
        c[kept++] = c[i];
    }
    return kept;
}

/* Appends the normal form of a stretch that nothing outside it can change. */
static bool normalize_stretch(const char *text, size_t n, struct nfc_scratch *s, struct str *out)
{
    size_t n_characters = 0, n_marks = 0;
    for (size_t at = 0, bytes; at < n; at += bytes) {
        uint32_t parts[MAX_DECOMPOSITION];
        size_t n_parts = decompose(utf8_decode(text + at, &bytes), parts);
        if (!reserve(s, n_characters + n_parts))
            return false;
        for (size_t i = 0; i < n_parts; i++) {
            unsigned combining_class = unicode_nfc_kind(parts[i]).combining_class;
            if (combining_class == 0) {
                sort_marks(s->characters + n_characters - n_marks, s->sorted, n_marks);
                n_marks = 0;
            } else {
                n_marks++;
            }
            s->characters[n_characters++] = (struct nfc_character){parts[i], combining_class};
        }
    }
    sort_marks(s->characters + n_characters - n_marks, s->sorted, n_marks);
    n_characters = compose(s->characters, n_characters);
    for (size_t i = 0; i < n_characters; i++)
        str_append_utf8(out, s->characters[i].code_point);
    return !out->failed;
}

/* A character that starts a stretch: nothing before it combines with it. */
static bool is_boundary(struct unicode_nfc_kind kind)
{
    return kind.combining_class == 0 && kind.check == UNICODE_NFC_YES;
}

/* Finds the next stretch from `at` that may not be normal: *start to *end; false if there is none.
 */
static bool find_stretch(const char *text, size_t n, size_t at, size_t *start, size_t *end)
{
    size_t boundary = at;
    unsigned last_class = 0;
    for (size_t bytes; at < n; at += bytes) {
        if ((unsigned char)text[at] < 0x80) {
            boundary = at;
            last_class = 0;
            bytes = 1;
            continue;
        }
        struct unicode_nfc_kind kind = unicode_nfc_kind(utf8_decode(text + at, &bytes));
        if (is_boundary(kind))
            boundary = at;
        if (kind.check != UNICODE_NFC_YES ||
            (kind.combining_class && kind.combining_class < last_class))
            break;
        last_class = kind.combining_class;
    }
    if (at == n)
        return false;
    *start = boundary;
    for (size_t bytes; at < n; at += bytes) {
        uint32_t c = utf8_decode(text + at, &bytes);
        if (is_boundary(unicode_nfc_kind(c)))
            break;
    }
    *end = at;
    return true;
}

/* Takes whole characters that are the same in source and result off both ends of an edit. Nothing
 * is left of one that changes nothing; of others both sides keep something, as normal forms never
 * lose a character. */
static void trim_edit(struct text_edit *e, const char *source, const char *result)
{
    for (size_t bytes; e->source < e->source_end && e->result < e->result_end;
         e->source += bytes, e->result += bytes) {
        utf8_decode(source + e->source, &bytes);
        if (e->result_end - e->result < bytes ||
            memcmp(source + e->source, result + e->result, bytes) != 0)
            break;
    }
    while (e->source < e->source_end && e->result < e->result_end) {
        size_t bytes = (size_t)(source + e->source_end - utf8_previous(source + e->source_end));
        if (e->result_end - e->result < bytes ||
            memcmp(source + e->source_end - bytes, result + e->result_end - bytes, bytes) != 0)
            break;
        e->source_end -= bytes;
        e->result_end -= bytes;
    }
}

enum status normalize_nfc(const char *text, size_t n, struct nfc_scratch *scratch, struct str *out,
                          struct text_edits *edits, bool *changed, struct error *error)
{
    *changed = false;
    str_clear(out);
    if (edits)
        text_edits_clear(edits);
    size_t at = 0, start, end;
    while (find_stretch(text, n, at, &start, &end)) {
        str_append(out, text + at, start - at);
        size_t result = out->len;
        if (!normalize_stretch(text + start, end - start, scratch, out))
            return error_memory(error, end - start);
        struct text_edit edit = {start, end, result, out->len};
        trim_edit(&edit, text, out->data);
        if (edit.source < edit.source_end) {
            *changed = true;
            add_edit(edits, edit);
        }
        at = end;
    }
    if (*changed)
        str_append(out, text + at, n - at);
    return finish(out, edits, error);
}
