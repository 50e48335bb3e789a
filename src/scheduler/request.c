#include "scheduler/request.h"

#include <stdlib.h>
#include <string.h>

/* A copy of n items of `size` bytes; NULL for none, `*failed` when memory is exhausted. */
static void *copy_items(const void *items, size_t n, size_t size, bool *failed)
{
    if (n == 0)
        return NULL;
    void *copy = malloc(n * size);
    if (copy)
        memcpy(copy, items, n * size);
    else
        *failed = true;
    return copy;
}

static bool copy_stop_tokens(struct request *r, const struct request_options *o,
                             const int32_t *eos_ids, int32_t n_eos)
{
    if (o->ignore_eos)
        n_eos = 0;
    r->n_stop_tokens = n_eos + o->n_stop_tokens;
    if (r->n_stop_tokens == 0)
        return true;
    r->stop_tokens = malloc((size_t)r->n_stop_tokens * sizeof *r->stop_tokens);
    if (!r->stop_tokens)
        return false;
    for (int32_t i = 0; i < n_eos; i++)
        r->stop_tokens[i] = eos_ids[i];
    for (int32_t i = 0; i < o->n_stop_tokens; i++)
        r->stop_tokens[n_eos + i] = o->stop_tokens[i];
    return true;
}

static enum status copy_stop_strings(struct request *r, const struct request_options *o,
                                     const struct tokenizer *tokenizer, struct error *error)
{
    r->has_stop = o->n_stop > 0;
    if (!r->has_stop)
        return OK;
    detokenizer_init(&r->detokenizer, tokenizer);
    r->stop_copies = calloc((size_t)o->n_stop, sizeof *r->stop_copies);
    if (!r->stop_copies)
        return error_memory(error, (size_t)o->n_stop * sizeof *r->stop_copies);
    r->stop.n = o->n_stop; /* for request_free, whatever fails below */
    for (int32_t i = 0; i < o->n_stop; i++)
        if (!(r->stop_copies[i] = strdup(o->stop[i])))
            return error_memory(error, strlen(o->stop[i]));
    return stop_strings_init(&r->stop, (const char *const *)r->stop_copies, o->n_stop, error);
}

enum status request_new(struct request **out, const struct request_options *o,
                        const int32_t *eos_ids, int32_t n_eos, const struct tokenizer *tokenizer,
                        int32_t vocab_size, int32_t context_length, struct error *error)
{
    *out = NULL;
    if (o->n_stop > STOP_MAX_STRINGS)
        return error_set(error, ERROR_LIMIT, "%d stop strings were given; at most %d are possible",
                         o->n_stop, STOP_MAX_STRINGS);
    struct request *r = calloc(1, sizeof *r);
    if (!r)
        return error_memory(error, sizeof *r);
    bool failed = false;
    int32_t room = context_length - o->n_ids;
    r->uid = o->uid;
    r->row = -1;
    r->n_prompt = r->n_tokens = o->n_ids;
    r->max_tokens = o->max_tokens >= 0 && o->max_tokens < room ? o->max_tokens : room;
    r->min_tokens = o->min_tokens;
    r->scores_prompt = o->scores_prompt;
    r->cache_key = o->cache_key;
    for (int32_t i = 0; i < o->n_marks && r->n_marks < KV_MAX_MARKS; i++)
        r->marks[r->n_marks++] = o->marks[i];
    r->params = o->params;
    r->submitted = o->submitted;
    r->biases =
        copy_items(o->params.biases, (size_t)o->params.n_biases, sizeof *r->biases, &failed);
    r->params.biases = r->biases;
    size_t n_bytes = (size_t)(o->n_ids + r->max_tokens) * sizeof *r->tokens;
    r->tokens = malloc(n_bytes);
    failed = failed || !r->tokens || !copy_stop_tokens(r, o, eos_ids, n_eos);
    enum status status = failed ? error_memory(error, n_bytes) : OK;
    if (status == OK) {
        memcpy(r->tokens, o->ids, (size_t)o->n_ids * sizeof *r->tokens);
        status = copy_stop_strings(r, o, tokenizer, error);
    }
    if (status == OK && sampling_params_has_penalty(&r->params)) {
        status = token_history_init(&r->history, vocab_size, error);
        r->has_history = status == OK;
        for (int32_t i = 0; i < o->n_ids && status == OK; i++)
            token_history_add(&r->history, o->ids[i], false);
    }
    if (status != OK) {
        request_free(r);
        return status;
    }
    *out = r;
    return OK;
}

void request_free(struct request *r)
{
    if (!r)
        return;
    if (r->has_history)
        token_history_done(&r->history);
    if (r->has_stop)
        detokenizer_done(&r->detokenizer);
    for (int32_t i = 0; r->stop_copies && i < r->stop.n; i++)
        free(r->stop_copies[i]);
    stop_strings_done(&r->stop);
    str_done(&r->text);
    free(r->stop_copies);
    free(r->stop_tokens);
    free(r->biases);
    free(r->tokens);
    free(r);
}

static bool ends_answer(const struct request *r, int32_t token)
{
    for (int32_t i = 0; i < r->n_stop_tokens; i++)
        if (r->stop_tokens[i] == token)
            return true;
    return false;
}

/* Adds the token's text behind the stop strings' filter; true when a stop string is complete. */
static bool add_text(struct request *r, int32_t token)
{
    struct detokenizer_piece piece;
    if (detokenizer_push(&r->detokenizer, token, &piece, NULL) != OK)
        return false;
    return stop_strings_push(&r->stop, piece.text, piece.len, &r->text) ||
           (!(piece.flags & TOKEN_SPECIAL) &&
            stop_strings_push(&r->stop, piece.added, piece.added_len, &r->text));
}

/* The answer's end: what was held back is text after all. */
static void flush_text(struct request *r)
{
    struct detokenizer_piece piece;
    if (detokenizer_finish(&r->detokenizer, &piece, NULL) == OK &&
        !stop_strings_push(&r->stop, piece.text, piece.len, &r->text))
        stop_strings_finish(&r->stop, &r->text);
}

enum finish_reason request_add_token(struct request *r, int32_t token, bool *is_silent)
{
    r->tokens[r->n_tokens++] = token;
    str_clear(&r->text);
    if (r->has_history)
        token_history_add(&r->history, token, true);
    bool is_stop_token = request_n_output(r) > r->min_tokens && ends_answer(r, token);
    *is_silent = is_stop_token;
    if (r->has_stop && !is_stop_token && add_text(r, token))
        return FINISH_STOP;
    enum finish_reason finish = is_stop_token                          ? FINISH_STOP
                                : request_n_output(r) >= r->max_tokens ? FINISH_LENGTH
                                                                       : FINISH_NONE;
    if (finish != FINISH_NONE && r->has_stop)
        flush_text(r);
    return finish;
}
