/* A tokenizer from the keys of a GGUF file. These name a family's splitter instead of spelling it.
 */
#include "base/json.h"
#include "tokenizer/tokenizer_parts.h"

#include <string.h>

/* Token types of GGUF that mean something here. */
enum { TYPE_CONTROL = 3, TYPE_USER_DEFINED = 4 };

enum { MAX_GGUF_TOKENS = VOCABULARY_MAX_IDS };

static const struct family {
    const char *pre;
    enum split_rule rule;
    bool digits; /* a Digits step before the rule */
    bool nfc;
    bool ignore_merges;
} families[] = {
    {"default", SPLIT_RULE_GPT2, false, false, false},
    {"gpt-2", SPLIT_RULE_GPT2, false, false, false},
    {"smollm", SPLIT_RULE_GPT2, true, false, false},
    {"qwen2", SPLIT_RULE_QWEN2, false, true, false},
    {"qwen35", SPLIT_RULE_QWEN35, false, true, false},
    {"llama-bpe", SPLIT_RULE_LLAMA3, false, false, true},
    {"llama3", SPLIT_RULE_LLAMA3, false, false, true},
    {"llama-v3", SPLIT_RULE_LLAMA3, false, false, true},
    {"gpt-4o", SPLIT_RULE_O200K, false, false, true},
    {"deepseek-v3", SPLIT_RULE_DEEPSEEK_WORDS, false, false, false},
    {"hunyuan", SPLIT_RULE_QWEN2, false, true, false},
    {"hunyuan-dense", SPLIT_RULE_DEEPSEEK_WORDS, false, false, false},
};

static enum status find_family(const struct vocab *vocab, const struct family **out,
                               struct error *error)
{
    if (!vocab->model || strcmp(vocab->model, "gpt2") != 0)
        return error_set(error, ERROR_UNSUPPORTED,
                         "the GGUF tokenizer model \"%.60s\" is not supported; only gpt2 "
                         "(byte-level BPE) is",
                         vocab->model ? vocab->model : "");
    const char *pre = vocab->pre ? vocab->pre : "default";
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
        if (strcmp(families[i].pre, pre) == 0) {
            *out = &families[i];
            return OK;
        }
    }
    return error_set(error, ERROR_UNSUPPORTED,
                     "the GGUF pre-tokenizer \"%.60s\" is not supported; smollm, qwen2, qwen35, "
                     "llama-bpe, gpt-4o, deepseek-v3, hunyuan, hunyuan-dense and gpt-2 are",
                     pre);
}

static enum status check_utf8(const char *text, const char *what, size_t nth, struct error *error)
{
    size_t n = strlen(text);
    for (size_t at = 0, bytes; at < n; at += bytes)
        if (!(bytes = utf8_sequence(text + at, n - at)))
            return error_set(error, ERROR_INVALID, "the GGUF file's %s %zu is not valid UTF-8",
                             what, nth);
    return OK;
}

/* Added tokens may repeat the text of a token before them; only the others are the model's. */
static enum status add_tokens(struct tokenizer *t, const struct vocab *vocab, struct error *error)
{
    if (vocab->n_tokens > MAX_GGUF_TOKENS)
        return error_set(error, ERROR_LIMIT, "the GGUF file has %zu tokens; the limit is %d",
                         vocab->n_tokens, MAX_GGUF_TOKENS);
    enum status status = OK;
    for (size_t i = 0; status == OK && i < vocab->n_tokens; i++) {
        int32_t type = vocab->token_types ? vocab->token_types[i] : 0;
        const char *text = vocab->tokens[i];
        status = check_utf8(text, "token", i, error);
        if (status != OK || type == TYPE_CONTROL || type == TYPE_USER_DEFINED)
            continue;
        status = vocabulary_add_written(&t->vocabulary, text, strlen(text), (int64_t)i, error);
    }
    for (size_t i = 0; status == OK && i < vocab->n_tokens; i++) {
        int32_t type = vocab->token_types ? vocab->token_types[i] : 0;
        if (type != TYPE_CONTROL && type != TYPE_USER_DEFINED)
            continue;
        struct added_token token = {.id = (int32_t)i, .special = type == TYPE_CONTROL};
        status = tokenizer_add_token(t, &token, vocab->tokens[i], strlen(vocab->tokens[i]), error);
    }
    return status;
}

static enum status add_merges(struct tokenizer *t, const struct vocab *vocab, struct error *error)
{
    struct str scratch = {0};
    enum status status = OK;
    for (size_t i = 0; status == OK && i < vocab->n_merges; i++) {
        const char *merge = vocab->merges[i];
        const char *space = strchr(merge, ' ');
        status = check_utf8(merge, "merge", i, error);
        if (status == OK && (!space || strchr(space + 1, ' ')))
            status = error_set(error, ERROR_INVALID,
                               "the GGUF file's merge %zu, \"%.60s\", is not two tokens with a "
                               "space between them",
                               i, merge);
        if (status == OK)
            status = bpe_add_merge(&t->bpe, merge, (size_t)(space - merge), space + 1,
                                   strlen(space + 1), &scratch, error);
    }
    str_done(&scratch);
    return status;
}

static enum status add_frame_id(int32_t id, int32_t *ids, size_t *n, const char *name,
                                struct error *error)
{
    if (id < 0)
        return error_set(error, ERROR_INVALID,
                         "the GGUF file asks for %s to be added to texts but does not name it",
                         name);
    ids[(*n)++] = id;
    return OK;
}

static enum status fill(struct tokenizer *t, const struct vocab *vocab, struct error *error)
{
    const struct family *family = NULL;
    enum status status = find_family(vocab, &family, error);
    if (status != OK)
        return status;
    t->is_nfc = family->nfc;
    if (family->digits)
        status = pretokenizer_add_digits(&t->pretokenizer, true, error);
    if (status == OK && family->rule == SPLIT_RULE_DEEPSEEK_WORDS)
        status = pretokenizer_add_rule(&t->pretokenizer, SPLIT_RULE_DEEPSEEK_NUMBERS, error);
    if (status == OK && family->rule == SPLIT_RULE_DEEPSEEK_WORDS)
        status = pretokenizer_add_rule(&t->pretokenizer, SPLIT_RULE_DEEPSEEK_CJK, error);
    if (status == OK)
        status = pretokenizer_add_rule(&t->pretokenizer, family->rule, error);
    if (status == OK)
        status = add_tokens(t, vocab, error);
    if (status == OK)
        status = bpe_init(&t->bpe, &t->vocabulary, error);
    if (status == OK)
        status = add_merges(t, vocab, error);
    t->bpe.ignore_merges = family->ignore_merges;
    struct token_frame *frame = &t->frame;
    if (status == OK && vocab->add_bos)
        status = add_frame_id(vocab->bos_id, frame->before, &frame->n_before, "BOS", error);
    if (status == OK && vocab->add_eos)
        status = add_frame_id(vocab->eos_id, frame->after, &frame->n_after, "EOS", error);
    return status == OK ? tokenizer_finish(t, error) : status;
}

enum status tokenizer_load_vocab(const struct vocab *vocab, struct tokenizer **out,
                                 struct error *error)
{
    *out = NULL;
    struct tokenizer *t = tokenizer_new();
    if (!t)
        return error_memory(error, sizeof(void *));
    enum status status = fill(t, vocab, error);
    if (status == OK)
        *out = t;
    else
        tokenizer_free(t);
    return status;
}
