/* A byte-level vocabulary as a GGUF carries it: the checkpoint fills it, the tokenizer is made from
 * it. */
#ifndef CSGL_BASE_VOCAB_H
#define CSGL_BASE_VOCAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* All is borrowed from who filled it. NULL fields are absent. */
struct vocab {
    const char *model;          /* tokenizer.ggml.model: "gpt2" */
    const char *pre;            /* tokenizer.ggml.pre, "smollm", "qwen2", ...; NULL is "default" */
    size_t n_tokens;            /* ids are 0 .. n_tokens - 1 */
    const char *const *tokens;  /* [n_tokens], NUL-terminated, as tokenizer.json writes them */
    const int32_t *token_types; /* [n_tokens] or NULL: 3 control, 4 user-defined, others plain */
    size_t n_merges;
    const char *const *merges; /* [n_merges] "left right" */
    int32_t bos_id, eos_id;    /* -1: none */
    bool add_bos, add_eos;     /* the file's word; without one, BOS is what `pre` implies */
    const char *chat_template;
};

#endif
