/* What a user of a checkpoint does with whatever could be opened. */
#ifndef CSGL_TESTS_FUZZ_CHECKPOINT_WALK_H
#define CSGL_TESTS_FUZZ_CHECKPOINT_WALK_H

#include "checkpoint/checkpoint_struct.h"
#include "checkpoint/safetensors.h"

#include <stdlib.h>
#include <string.h>

static inline void require(int truth)
{
    if (!truth)
        __builtin_trap();
}

/* A failure has a sentence and its status. */
static inline void require_sentence(enum status status, const struct error *error)
{
    require(status == OK || (error->status == status && error->message[0]));
}

/* Reads the first and the last row of the weight, whole and in parts. */
static inline void walk_weight(const struct checkpoint *c, const char *name)
{
    struct weight w;
    struct error error = {0};
    enum status status = checkpoint_weight(c, name, &w, &error);
    require_sentence(status, &error);
    if (status != OK)
        return;
    require(w.rows > 0 && w.cols > 0);
    status = checkpoint_unpack(c, name, &w, &error);
    require_sentence(status, &error);
    if (status != OK)
        return;
    float *row = malloc((size_t)w.cols * sizeof *row);
    uint8_t *codes = malloc((size_t)w.cols);
    require(row && codes);
    int64_t rows[] = {0, w.rows - 1};
    for (int r = 0; r < 2; r++) {
        weight_row_dequantize(&w, rows[r], row);
        if (!weight_is_float(&w))
            weight_row_read(&w, rows[r], &(struct weight_row){.codes = codes});
    }
    for (int64_t i = 0; w.order && i < w.cols; i++)
        require(w.order[i] >= 0 && w.order[i] < w.cols);
    free(row);
    free(codes);
    if (w.unpacked)
        checkpoint_release(c, &w);
}

/* Every weight, also those that are made of two tensors. */
static inline void walk_weights(const struct checkpoint *c)
{
    static const char blocks[] = "_blocks";
    for (size_t i = 0; i < c->names.cap; i++) {
        const char *name = c->names.entries[i].key;
        if (!name)
            continue;
        walk_weight(c, name);
        size_t len = strlen(name), stem = len - (sizeof blocks - 1);
        if (len < sizeof blocks || strcmp(name + stem, blocks) != 0)
            continue;
        char *both = strdup(name);
        require(both != NULL);
        both[stem] = '\0';
        walk_weight(c, both);
        free(both);
    }
}

/* A configuration and, behind a NUL, a safetensors file; false if they could not be opened. */
static inline bool walk_open(struct checkpoint *c, const uint8_t *data, size_t bytes)
{
    const uint8_t *end = bytes ? memchr(data, 0, bytes) : NULL;
    struct error error = {0};
    if (!end)
        return false;
    size_t text = (size_t)(end - data);
    enum status status =
        config_parse(c, "config.json", (const char *)data, text, &c->config, &error);
    if (status == OK)
        status = config_read_quantization(c, &error);
    if (status == OK)
        status = safetensors_parse(&c->tensors, end + 1, bytes - text - 1, 0, &error);
    if (status == OK)
        status = checkpoint_index(c, &error);
    require_sentence(status, &error);
    return status == OK;
}

/* Every string of the vocabulary ends in a NUL that is ours. */
static inline void walk_vocab(const struct checkpoint *c)
{
    struct vocab v;
    size_t total = 0;
    if (checkpoint_vocab(c, &v, NULL) != OK)
        return;
    for (size_t i = 0; i < v.n_tokens; i++)
        total += strlen(v.tokens[i]) + (v.token_types ? (size_t)(v.token_types[i] & 1) : 0);
    for (size_t i = 0; i < v.n_merges; i++)
        total += strlen(v.merges[i]);
    total += strlen(v.chat_template ? v.chat_template : "") + strlen(v.pre ? v.pre : "");
    require(total < SIZE_MAX && v.eos_id < (int64_t)v.n_tokens && v.bos_id < (int64_t)v.n_tokens);
}

#endif
