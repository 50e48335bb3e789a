/* Reads a tokenizer.json event by event: the vocabulary and the merges, which are nearly all of it,
 * never become a tree. */
#include "base/file.h"
#include "base/json.h"
#include "tokenizer/tokenizer_sections.h"

#include <stdlib.h>
#include <string.h>

enum {
    MAX_FILE_BYTES = 512 << 20,
    MAX_SECTION_BYTES = 8 << 20, /* of a section's tree */
};

/* A value's text in the document. */
struct span {
    const char *text;
    size_t len;
};

/* An added token waits until vocabulary and normalizer are known. */
struct waiting_token {
    struct added_token token;
    size_t at, len; /* in loader.contents */
};

struct loader {
    struct tokenizer *t;
    struct json_reader reader;
    struct str first, scratch, contents;
    struct waiting_token *waiting;
    size_t n_waiting, cap_waiting;
    struct span normalizer, pre_tokenizer, post_processor, decoder, merges;
    bool has_model, has_vocabulary, has_merges;
    bool is_vocabulary_bad; /* not an object */
    char type[64], unknown[256];
    bool has_unknown;
    struct error *error;
};

static enum status next(struct loader *l, enum json_event *event)
{
    *event = json_next(&l->reader, l->error);
    return *event == JSON_FAILED ? l->error->status : OK;
}

static enum status skip(struct loader *l)
{
    enum json_event event;
    enum status status = next(l, &event);
    return status == OK ? json_skip(&l->reader, event, l->error) : status;
}

/* Skips the value at hand and remembers where it stands. */
static enum status take_span(struct loader *l, struct span *span)
{
    const char *from = json_position(&l->reader);
    enum status status = skip(l);
    *span = (struct span){from, (size_t)(json_position(&l->reader) - from)};
    return status;
}

static enum status malformed(struct loader *l, const char *what)
{
    return error_set(l->error, ERROR_INVALID, "%s", what);
}

/* ---- added tokens ---- */

static enum status wait_token(struct loader *l, const struct waiting_token *token)
{
    if (l->n_waiting == ADDED_TOKENS_MAX)
        return error_set(l->error, ERROR_LIMIT, "the tokenizer has more than %d added tokens",
                         ADDED_TOKENS_MAX);
    if (l->n_waiting == l->cap_waiting) {
        size_t cap = l->cap_waiting ? l->cap_waiting * 2 : 64;
        struct waiting_token *waiting = realloc(l->waiting, cap * sizeof *waiting);
        if (!waiting)
            return error_memory(l->error, cap * sizeof *waiting);
        l->waiting = waiting;
        l->cap_waiting = cap;
    }
    l->waiting[l->n_waiting++] = *token;
    return OK;
}

/* Where the key at hand of an added token goes; NULL for one that is not a flag. */
static bool *flag_of_key(const struct json_reader *reader, struct added_token *token)
{
    return json_text_is(reader, "single_word")  ? &token->single_word
           : json_text_is(reader, "lstrip")     ? &token->lstrip
           : json_text_is(reader, "rstrip")     ? &token->rstrip
           : json_text_is(reader, "normalized") ? &token->normalized
           : json_text_is(reader, "special")    ? &token->special
                                                : NULL;
}

/* The value of one key of an added token. */
static enum status read_token_member(struct loader *l, struct waiting_token *w, bool *has_content)
{
    bool *flag = flag_of_key(&l->reader, &w->token);
    bool is_id = json_text_is(&l->reader, "id"), is_content = json_text_is(&l->reader, "content");
    enum json_event event;
    enum status status = next(l, &event);
    if (status != OK)
        return status;
    int64_t id;
    if (flag) {
        if (event != JSON_TRUE && event != JSON_FALSE)
            return malformed(l, "a flag of an added token is neither true nor false");
        *flag = event == JSON_TRUE;
    } else if (is_id) {
        if (event != JSON_NUMBER || !json_read_int(&l->reader, 0, VOCABULARY_MAX_IDS - 1, &id))
            return error_set(l->error, ERROR_INVALID,
                             "the id of an added token is not a whole number from 0 to %d",
                             VOCABULARY_MAX_IDS - 1);
        w->token.id = (int32_t)id;
    } else if (is_content) {
        if (event != JSON_STRING)
            return malformed(l, "the content of an added token is not a string");
        w->at = l->contents.len;
        w->len = l->reader.len;
        str_append(&l->contents, l->reader.text, l->reader.len);
        *has_content = true;
    } else {
        return json_skip(&l->reader, event, l->error);
    }
    return OK;
}

static enum status read_added_tokens(struct loader *l)
{
    enum json_event event;
    enum status status = next(l, &event);
    if (status == OK && event == JSON_NULL)
        return OK;
    if (status == OK && event != JSON_ARRAY)
        return malformed(l, "added_tokens is not a list");
    while (status == OK && (status = next(l, &event)) == OK && event != JSON_ARRAY_END) {
        if (event != JSON_OBJECT)
            return malformed(l, "an added token is not an object");
        struct waiting_token w = {.token = {.id = -1}};
        bool has_content = false;
        while (status == OK && (status = next(l, &event)) == OK && event != JSON_OBJECT_END)
            status = read_token_member(l, &w, &has_content);
        if (status == OK && (w.token.id < 0 || !has_content))
            return malformed(l, "an added token lacks its id or its content");
        if (status == OK)
            status = wait_token(l, &w);
    }
    return status;
}

/* ---- the model ---- */

static enum status read_vocabulary(struct loader *l)
{
    if (l->has_vocabulary)
        return malformed(l, "the model has two vocabularies");
    enum json_event event;
    enum status status = next(l, &event);
    if (status == OK && event != JSON_OBJECT) {
        /* Another kind of model; its type, which may come later, makes the better message. */
        l->is_vocabulary_bad = true;
        return json_skip(&l->reader, event, l->error);
    }
    l->has_vocabulary = true;
    while (status == OK && (status = next(l, &event)) == OK && event != JSON_OBJECT_END) {
        str_clear(&l->first);
        str_append(&l->first, l->reader.text, l->reader.len);
        status = next(l, &event);
        if (status != OK)
            break;
        int64_t id;
        if (event != JSON_NUMBER || !json_read_int(&l->reader, 0, VOCABULARY_MAX_IDS - 1, &id))
            return error_set(l->error, ERROR_INVALID,
                             "the id of token \"%.60s\" is not a whole number from 0 to %d",
                             str_z(&l->first), VOCABULARY_MAX_IDS - 1);
        status =
            vocabulary_add_written(&l->t->vocabulary, str_z(&l->first), l->first.len, id, l->error);
    }
    return status;
}

/* A merge whose first event is `event`: "left right" or ["left", "right"]. */
static enum status read_merge(struct loader *l, struct json_reader *reader, enum json_event event)
{
    const char *wrong = "a merge is neither \"left right\" nor a list of two strings";
    struct bpe *bpe = &l->t->bpe;
    if (event == JSON_STRING) {
        const char *space = memchr(reader->text, ' ', reader->len);
        size_t left = space ? (size_t)(space - reader->text) : 0;
        if (!space || memchr(space + 1, ' ', reader->len - left - 1))
            return malformed(l, wrong);
        return bpe_add_merge(bpe, reader->text, left, space + 1, reader->len - left - 1,
                             &l->scratch, l->error);
    }
    if (event != JSON_ARRAY)
        return malformed(l, wrong);
    event = json_next(reader, l->error);
    if (event == JSON_STRING) {
        str_clear(&l->first);
        str_append(&l->first, reader->text, reader->len);
        event = json_next(reader, l->error);
        if (event == JSON_STRING) {
            enum status status = bpe_add_merge(bpe, str_z(&l->first), l->first.len, reader->text,
                                               reader->len, &l->scratch, l->error);
            if (status != OK)
                return status;
            event = json_next(reader, l->error);
            if (event == JSON_ARRAY_END)
                return OK;
        }
    }
    return event == JSON_FAILED ? l->error->status : malformed(l, wrong);
}

/* The vocabulary is complete. `reader` stands before the list. */
static enum status read_merges(struct loader *l, struct json_reader *reader)
{
    enum status status = bpe_init(&l->t->bpe, &l->t->vocabulary, l->error);
    if (status != OK)
        return status;
    enum json_event event = json_next(reader, l->error);
    if (event == JSON_FAILED)
        return l->error->status;
    if (event != JSON_ARRAY)
        return malformed(l, "the model's merges are not a list");
    while (status == OK && (event = json_next(reader, l->error)) != JSON_ARRAY_END)
        status = event == JSON_FAILED ? l->error->status : read_merge(l, reader, event);
    return status;
}

static enum status read_type(struct loader *l)
{
    enum json_event event;
    enum status status = next(l, &event);
    if (status != OK)
        return status;
    if (event != JSON_STRING || l->reader.len >= sizeof l->type)
        return malformed(l, "the model's type is not a name");
    memcpy(l->type, l->reader.text, l->reader.len);
    l->type[l->reader.len] = '\0';
    return OK;
}

static enum status read_unknown(struct loader *l)
{
    enum json_event event;
    enum status status = next(l, &event);
    if (status != OK || event == JSON_NULL)
        return status;
    if (event != JSON_STRING || l->reader.len >= sizeof l->unknown)
        return malformed(l, "the model's unk_token is not a token");
    memcpy(l->unknown, l->reader.text, l->reader.len);
    l->unknown[l->reader.len] = '\0';
    l->has_unknown = true;
    return OK;
}

/* An option that must have its empty value: null, false, "", 0. */
static enum status require_empty(struct loader *l, const char *name)
{
    enum json_event event;
    enum status status = next(l, &event);
    if (status != OK)
        return status;
    int64_t number;
    bool is_empty = event == JSON_NULL || event == JSON_FALSE ||
                    (event == JSON_STRING && l->reader.len == 0) ||
                    (event == JSON_NUMBER && json_read_int(&l->reader, 0, 0, &number));
    if (!is_empty)
        return error_set(l->error, ERROR_UNSUPPORTED, "the BPE option %s is not supported", name);
    return OK;
}

static enum status read_flag(struct loader *l, bool *out)
{
    enum json_event event;
    enum status status = next(l, &event);
    if (status == OK && event != JSON_TRUE && event != JSON_FALSE && event != JSON_NULL)
        return malformed(l, "an option of the model is neither true nor false");
    *out = event == JSON_TRUE;
    return status;
}

static enum status read_model_member(struct loader *l, bool *ignore_merges, bool *fuse_unknown)
{
    static const char *const unsupported[] = {"dropout", "continuing_subword_prefix",
                                              "end_of_word_suffix", "byte_fallback"};
    const struct json_reader *reader = &l->reader;
    for (size_t i = 0; i < sizeof unsupported / sizeof unsupported[0]; i++)
        if (json_text_is(reader, unsupported[i]))
            return require_empty(l, unsupported[i]);
    if (json_text_is(reader, "type"))
        return read_type(l);
    if (json_text_is(reader, "unk_token"))
        return read_unknown(l);
    if (json_text_is(reader, "ignore_merges"))
        return read_flag(l, ignore_merges);
    if (json_text_is(reader, "fuse_unk"))
        return read_flag(l, fuse_unknown);
    if (json_text_is(reader, "vocab"))
        return read_vocabulary(l);
    if (!json_text_is(reader, "merges"))
        return skip(l);
    if (l->has_merges)
        return malformed(l, "the model has two lists of merges");
    l->has_merges = true;
    /* Merges name tokens, so they wait if the vocabulary comes behind them. */
    return l->has_vocabulary ? read_merges(l, &l->reader) : take_span(l, &l->merges);
}

static enum status find_unknown(struct loader *l)
{
    struct bpe *bpe = &l->t->bpe;
    if (!l->has_unknown)
        return OK;
    bpe->unknown_id =
        vocabulary_find_written(&l->t->vocabulary, l->unknown, strlen(l->unknown), &l->scratch);
    if (bpe->unknown_id < 0 && !bpe->has_all_bytes)
        return error_set(l->error, ERROR_INVALID,
                         "the model's unk_token \"%.60s\" is not in its vocabulary", l->unknown);
    return OK;
}

static enum status read_model(struct loader *l)
{
    if (l->has_model)
        return malformed(l, "the tokenizer has two models");
    l->has_model = true;
    enum json_event event;
    enum status status = next(l, &event);
    if (status == OK && event != JSON_OBJECT)
        return malformed(l, "the tokenizer's model is not an object");
    bool ignore_merges = false, fuse_unknown = false;
    while (status == OK && (status = next(l, &event)) == OK && event != JSON_OBJECT_END)
        status = read_model_member(l, &ignore_merges, &fuse_unknown);
    if (status != OK && (!l->type[0] || strcmp(l->type, "BPE") == 0))
        return status;
    if (l->type[0] && strcmp(l->type, "BPE") != 0)
        return error_set(l->error, ERROR_UNSUPPORTED,
                         "the tokenizer's model \"%s\" is not supported; only BPE is", l->type);
    if (l->is_vocabulary_bad || !l->has_vocabulary || !l->has_merges)
        return malformed(l, "the tokenizer's model lacks a vocabulary or merges");
    if (l->merges.text) {
        struct json_reader reader;
        json_reader_init(&reader, l->merges.text, l->merges.len);
        status = read_merges(l, &reader);
        json_reader_done(&reader);
    }
    l->t->bpe.ignore_merges = ignore_merges;
    l->t->bpe.fuse_unknown = fuse_unknown;
    return status == OK ? find_unknown(l) : status;
}

/* ---- the document ---- */

static enum status read_member(struct loader *l)
{
    const struct json_reader *reader = &l->reader;
    if (json_text_is(reader, "added_tokens"))
        return read_added_tokens(l);
    if (json_text_is(reader, "model"))
        return read_model(l);
    struct span *span = json_text_is(reader, "normalizer")       ? &l->normalizer
                        : json_text_is(reader, "pre_tokenizer")  ? &l->pre_tokenizer
                        : json_text_is(reader, "post_processor") ? &l->post_processor
                        : json_text_is(reader, "decoder")        ? &l->decoder
                                                                 : NULL;
    return span ? take_span(l, span) : skip(l);
}

typedef enum status (*section_reader)(struct tokenizer *t, const struct json *section,
                                      struct error *error);

static enum status read_section(struct loader *l, const struct span *span, section_reader read)
{
    struct arena arena = {.limit = MAX_SECTION_BYTES};
    struct json tree;
    enum status status = OK;
    if (span->text)
        status = json_parse(&arena, span->text, span->len, &tree, l->error);
    if (status == OK)
        status = read(l->t, span->text ? &tree : NULL, l->error);
    arena_done(&arena);
    return status;
}

static enum status check_decoder(struct tokenizer *t, const struct json *section,
                                 struct error *error)
{
    (void)t;
    return read_decoder(section, error);
}

static enum status read_document(struct loader *l)
{
    enum json_event event;
    enum status status = next(l, &event);
    if (status == OK && event != JSON_OBJECT)
        return malformed(l, "a tokenizer.json must be an object");
    while (status == OK && (status = next(l, &event)) == OK && event != JSON_OBJECT_END)
        status = read_member(l);
    if (status == OK)
        status = next(l, &event); /* nothing may follow */
    if (status == OK && !l->has_model)
        return malformed(l, "the tokenizer has no model");
    if (status == OK)
        status = read_section(l, &l->normalizer, read_normalizer);
    if (status == OK)
        status = read_section(l, &l->pre_tokenizer, read_pre_tokenizer);
    if (status == OK)
        status = read_section(l, &l->post_processor, read_post_processor);
    if (status == OK)
        status = read_section(l, &l->decoder, check_decoder);
    if (l->first.failed || l->scratch.failed || l->contents.failed)
        return error_memory(l->error, l->contents.len);
    for (size_t i = 0; status == OK && i < l->n_waiting; i++)
        status =
            tokenizer_add_token(l->t, &l->waiting[i].token, str_z(&l->contents) + l->waiting[i].at,
                                l->waiting[i].len, l->error);
    return status == OK ? tokenizer_finish(l->t, l->error) : status;
}

enum status tokenizer_load_json_memory(const char *data, size_t bytes, struct tokenizer **out,
                                       struct error *error)
{
    *out = NULL;
    if (bytes > MAX_FILE_BYTES)
        return error_set(error, ERROR_LIMIT, "the tokenizer's JSON has %zu bytes; the limit is %d",
                         bytes, MAX_FILE_BYTES);
    struct error own;
    struct loader l = {.t = tokenizer_new(), .error = error ? error : &own};
    if (!l.t)
        return error_memory(error, sizeof *l.t);
    json_reader_init(&l.reader, data, bytes);
    enum status status = read_document(&l);
    json_reader_done(&l.reader);
    str_done(&l.first);
    str_done(&l.scratch);
    str_done(&l.contents);
    free(l.waiting);
    if (status == OK)
        *out = l.t;
    else
        tokenizer_free(l.t);
    return status;
}

enum status tokenizer_load(const char *path, struct tokenizer **out, struct error *error)
{
    struct file_map map;
    *out = NULL;
    enum status status = file_map_open(&map, path, error);
    if (status != OK)
        return status;
    status = tokenizer_load_json_memory(map.bytes ? (const char *)map.data : "", (size_t)map.bytes,
                                        out, error);
    file_map_done(&map);
    if (status != OK)
        error_prefix(error, "%s", path);
    return status;
}
