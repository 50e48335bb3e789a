/* Builds small GGUF files for the tests of the checkpoint room and reads them from memory. */
#ifndef CSGL_TESTS_GGUF_FILES_H
#define CSGL_TESTS_GGUF_FILES_H

#include "checkpoint/checkpoint_struct.h"
#include "unit/checkpoint_files.h"

enum { U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 };

/* Keys and tensors are collected apart, since their counts stand first. */
struct gguf_file {
    struct str keys, infos, data;
    uint64_t n_keys, n_tensors;
};

static inline void key_begin(struct gguf_file *f, const char *key, uint32_t type)
{
    put_string(&f->keys, key);
    put_u32(&f->keys, type);
    f->n_keys++;
}

static inline void key_u32(struct gguf_file *f, const char *key, uint32_t value)
{
    key_begin(f, key, U32);
    put_u32(&f->keys, value);
}

static inline void key_f32(struct gguf_file *f, const char *key, float value)
{
    key_begin(f, key, F32);
    put_f32(&f->keys, value);
}

static inline void key_string(struct gguf_file *f, const char *key, const char *value)
{
    key_begin(f, key, STRING);
    put_string(&f->keys, value);
}

static inline void key_strings(struct gguf_file *f, const char *key, const char *const *values,
                               size_t n)
{
    key_begin(f, key, ARRAY);
    put_u32(&f->keys, STRING);
    put_u64(&f->keys, n);
    for (size_t i = 0; i < n; i++)
        put_string(&f->keys, values[i]);
}

static inline void key_i32s(struct gguf_file *f, const char *key, const int32_t *values, size_t n)
{
    key_begin(f, key, ARRAY);
    put_u32(&f->keys, I32);
    put_u64(&f->keys, n);
    put_bytes(&f->keys, values, n * sizeof *values);
}

static inline void pad(struct str *out, size_t unit)
{
    while (out->len % unit)
        str_append_char(out, 0);
}

/* A tensor of `type` with two dimensions (rows 0: one) behind what is there. */
static inline void tensor(struct gguf_file *f, const char *name, uint32_t type, uint64_t cols,
                          uint64_t rows, const void *data, size_t bytes)
{
    pad(&f->data, 32);
    put_string(&f->infos, name);
    put_u32(&f->infos, rows ? 2 : 1);
    put_u64(&f->infos, cols);
    if (rows)
        put_u64(&f->infos, rows);
    put_u32(&f->infos, type);
    put_u64(&f->infos, f->data.len);
    put_bytes(&f->data, data, bytes);
    f->n_tensors++;
}

/* The file's bytes; the parts are given up. */
static inline struct str finish(struct gguf_file *f, size_t alignment)
{
    struct str out = {0};
    str_append_z(&out, "GGUF");
    put_u32(&out, 3);
    put_u64(&out, f->n_tensors);
    put_u64(&out, f->n_keys);
    put_bytes(&out, f->keys.data, f->keys.len);
    put_bytes(&out, f->infos.data, f->infos.len);
    if (f->data.len)
        pad(&out, alignment);
    put_bytes(&out, f->data.data, f->data.len);
    str_done(&f->keys);
    str_done(&f->infos);
    str_done(&f->data);
    *f = (struct gguf_file){0};
    return out;
}

/* Reads `file` from memory, without a file on disk. */
static inline enum status read_memory(const struct str *file, struct checkpoint **out,
                                      struct error *error)
{
    struct checkpoint *c = checkpoint_new("memory.gguf");
    assert_non_null(c);
    enum status status = checkpoint_read_gguf(c, (const uint8_t *)file->data, file->len, error);
    if (status == OK)
        status = checkpoint_index(c, error);
    *out = c;
    return status;
}

static inline struct checkpoint *expect_read(const struct str *file)
{
    struct checkpoint *c;
    struct error error = {0};
    if (read_memory(file, &c, &error) != OK)
        fail_msg("%s", error.message);
    return c;
}

/* Gives up `f`. */
static inline void expect_unreadable(struct gguf_file *f, enum status status, const char *words)
{
    struct str file = finish(f, 32);
    struct checkpoint *c;
    struct error error = {0};
    enum status got = read_memory(&file, &c, &error);
    if (got != status || !strstr(error.message, words))
        fail_msg("status %s, expected %s with \"%s\": %s", status_name(got), status_name(status),
                 words, error.message);
    assert_int_equal(error.status, status);
    checkpoint_free(c);
    str_done(&file);
}

static inline void put_architecture(struct gguf_file *f, const char *architecture, uint32_t heads,
                                    uint32_t kv_heads)
{
    char key[64];
    key_string(f, "general.architecture", architecture);
    snprintf(key, sizeof key, "%s.attention.head_count", architecture);
    key_u32(f, key, heads);
    snprintf(key, sizeof key, "%s.attention.head_count_kv", architecture);
    key_u32(f, key, kv_heads);
}

static const char *const tokens[] = {"<|end|>", "a", "b", "ab", "<|turn|>"};
static const char *const merges[] = {"a b"};
static const int32_t token_types[] = {3, 1, 1, 1, 3};

static inline void put_vocabulary(struct gguf_file *f)
{
    key_string(f, "tokenizer.ggml.model", "gpt2");
    key_string(f, "tokenizer.ggml.pre", "smollm");
    key_strings(f, "tokenizer.ggml.tokens", tokens, 5);
    key_i32s(f, "tokenizer.ggml.token_type", token_types, 5);
    key_strings(f, "tokenizer.ggml.merges", merges, 1);
    key_u32(f, "tokenizer.ggml.bos_token_id", 1);
    key_u32(f, "tokenizer.ggml.eos_token_id", 0);
    key_u32(f, "tokenizer.ggml.padding_token_id", UINT32_MAX);
    key_string(f, "tokenizer.chat_template", "{{ messages }}");
}

/* A llama with two query heads of four rows and one key head, all rows numbered as in Hugging
 * Face's order; the stored order of four rows is 0 2 1 3. */
static inline void put_llama(struct gguf_file *f)
{
    static const float query[8] = {0, 2, 1, 3, 4, 6, 5, 7}, key[4] = {0, 2, 1, 3};
    static const float value[4] = {0, 1, 2, 3}, embedding[6] = {0, 1, 2, 3, 4, 5};
    static const float divisors[2] = {1, 8};
    put_architecture(f, "llama", 2, 1);
    key_u32(f, "llama.block_count", 1);
    key_u32(f, "llama.context_length", 2048);
    key_u32(f, "llama.embedding_length", 8);
    key_u32(f, "llama.feed_forward_length", 16);
    key_f32(f, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    key_f32(f, "llama.rope.freq_base", 1e6f);
    put_vocabulary(f);
    tensor(f, "token_embd.weight", 0, 1, 6, embedding, sizeof embedding);
    tensor(f, "blk.0.attn_q.weight", 0, 1, 8, query, sizeof query);
    tensor(f, "blk.0.attn_k.weight", 0, 1, 4, key, sizeof key);
    tensor(f, "blk.0.attn_v.weight", 0, 1, 4, value, sizeof value);
    tensor(f, "blk.0.attn_q.bias", 0, 8, 0, query, sizeof query);
    tensor(f, "blk.0.attn_k.bias", 0, 4, 0, key, sizeof key);
    tensor(f, "rope_freqs.weight", 0, 2, 0, divisors, sizeof divisors);
}

static inline struct str small_llama(void)
{
    struct gguf_file f = {0};
    put_llama(&f);
    return finish(&f, 32);
}

#endif
