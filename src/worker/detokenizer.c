/* Drawn tokens become text, as soon as whole characters are there. */
#include "worker/worker_state.h"

#include "base/log.h"

#include <stdlib.h>

static struct stream *find_stream(struct worker *w, uint64_t uid)
{
    for (size_t i = 0; i < w->n_streams; i++)
        if (w->streams[i].uid == uid)
            return &w->streams[i];
    return NULL;
}

static struct stream *open_stream(struct worker *w, uint64_t uid)
{
    struct stream *found = find_stream(w, uid);
    if (found)
        return found;
    if (w->n_streams == w->cap_streams) {
        size_t cap = w->cap_streams ? w->cap_streams * 2 : 64;
        struct stream *grown = realloc(w->streams, cap * sizeof *grown);
        if (!grown)
            return NULL;
        w->streams = grown;
        w->cap_streams = cap;
    }
    struct stream *s = &w->streams[w->n_streams++];
    s->uid = uid;
    detokenizer_init(&s->detokenizer, w->model->tokenizer);
    return s;
}

static void close_stream(struct worker *w, struct stream *s)
{
    detokenizer_done(&s->detokenizer);
    *s = w->streams[--w->n_streams];
}

void worker_drop_streams(struct worker *w)
{
    while (w->n_streams > 0)
        close_stream(w, &w->streams[w->n_streams - 1]);
}

static struct bytes token_bytes(const struct worker *w, int32_t id)
{
    size_t n = 0;
    const char *data = id >= 0 ? tokenizer_token_bytes(w->model->tokenizer, id, &n) : NULL;
    return (struct bytes){data, (uint32_t)n};
}

/* The bytes of the alternatives, in the arena of the frame. */
static struct byte_strings top_bytes(struct worker *w, struct i32s ids)
{
    struct bytes *items = arena_alloc_array(&w->arena, ids.n, sizeof *items);
    for (uint32_t i = 0; items && i < ids.n; i++)
        items[i] = token_bytes(w, ids.items[i]);
    return (struct byte_strings){items, items ? ids.n : 0};
}

/* Text that the token completes. At the end, what was held back is added behind it in w->text. */
static enum status make_text(struct worker *w, struct stream *s, const struct token_message *m,
                             struct piece_message *out, struct error *error)
{
    struct detokenizer_piece piece = {0};
    str_clear(&w->text);
    if (m->id >= 0) {
        enum status status = detokenizer_push(&s->detokenizer, m->id, &piece, error);
        if (status != OK)
            return status;
        str_append(&w->text, piece.text, piece.len);
        out->added = (struct bytes){piece.added, (uint32_t)piece.added_len};
        out->is_special = (piece.flags & TOKEN_SPECIAL) != 0;
    }
    if (m->finish != FINISH_NONE) {
        enum status status = detokenizer_finish(&s->detokenizer, &piece, error);
        if (status != OK)
            return status;
        str_append(&w->text, piece.text, piece.len);
    }
    out->text = bytes_of(&w->text);
    return w->text.failed ? error_memory(error, w->text.len) : OK;
}

void worker_token(struct worker *w, const struct token_message *m)
{
    struct error error;
    struct stream *s = open_stream(w, m->uid);
    if (!s) {
        log_error("out of memory: a token's text is lost");
        return;
    }
    struct message out = {.type = MESSAGE_piece};
    out.piece = (struct piece_message){.uid = m->uid,
                                       .id = m->id,
                                       .is_prompt = m->is_prompt,
                                       .token = token_bytes(w, m->id),
                                       .logprob = m->logprob,
                                       .top_ids = m->top_ids,
                                       .top_logprobs = m->top_logprobs,
                                       .top_tokens = top_bytes(w, m->top_ids),
                                       .finish = m->finish,
                                       .error = m->error,
                                       .http_status = m->http_status,
                                       .n_prompt = m->n_prompt,
                                       .n_cached = m->n_cached,
                                       .n_output = m->n_output,
                                       .queue_seconds = m->queue_seconds,
                                       .prefill_seconds = m->prefill_seconds,
                                       .decode_seconds = m->decode_seconds};
    if (m->has_text && m->text.n == 0 && m->finish != FINISH_NONE) {
        /* A silent last token (end of text): what was held back still comes out. */
        struct token_message end = *m;
        end.id = -1;
        if (make_text(w, s, &end, &out.piece, &error) != OK)
            log_error("%s", error.message);
    } else if (m->has_text) {
        /* The scheduler's text leaves special tokens out, which the parser may want to see. */
        out.piece.text = m->text;
        if (m->id >= 0 && (tokenizer_token_flags(w->model->tokenizer, m->id) & TOKEN_SPECIAL)) {
            out.piece.added = token_bytes(w, m->id);
            out.piece.is_special = 1;
        }
    } else if (make_text(w, s, m, &out.piece, &error) != OK) {
        log_error("%s", error.message);
    }
    if (!outbox_add(&w->to_frontend, uid_epoch(m->uid), &out))
        log_error("a piece of text is too large to be sent");
    if (m->finish != FINISH_NONE)
        close_stream(w, s);
}
