/* Shared by the files of this room. */
#ifndef CSGL_WORKER_WORKER_STATE_H
#define CSGL_WORKER_WORKER_STATE_H

#include "message/process_trace.h"
#include "tokenizer/detokenizer.h"
#include "worker/worker.h"

/* The text of one answer in the making. */
struct stream {
    uint64_t uid;
    struct detokenizer detokenizer;
};

struct worker {
    const struct worker_options *options;
    const struct worker_model *model;
    struct board *board;
    struct process_trace trace;
    char name[32]; /* of this process in traces */
    struct outbox to_frontend, to_scheduler;
    struct encoder *encoder;
    struct arena arena; /* of the frame being read */
    /* Of the prompt being read: */
    struct token_ids ids;
    int32_t marks[CHAT_MAX_MARKS], n_marks; /* see submit_message */
    struct str text;
    struct stream *streams; /* those that have begun and not ended */
    size_t n_streams, cap_streams;
};

/* tokenizer.c: messages from the frontend. */
void worker_prompt(struct worker *w, const struct prompt_message *m);
void worker_cancel(struct worker *w, const struct cancel_message *m);
void worker_tokenize(struct worker *w, const struct tokenize_message *m);
void worker_detokenize(struct worker *w, const struct detokenize_message *m);

/* detokenizer.c: messages from the scheduler. */
void worker_token(struct worker *w, const struct token_message *m);
void worker_drop_streams(struct worker *w);

#endif
