/* Any bytes through tokenizers of every splitter: ids must decode to the text as it was understood,
 * marks must ascend, and pieces must add up. The first byte picks the family. */
#include "tokenizer/detokenizer.h"
#include "tokenizer/encoder.h"
#include "tokenizer/normalizer.h"

#include <stdlib.h>
#include <string.h>

enum { N_FAMILIES = 7, N_TOKENS = 256 + 8, MAX_TEXT = 1 << 16 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* Every byte, a few merges, a control token and an added word. */
static struct tokenizer *new_tokenizer(const char *pre)
{
    static const char *const extra[] = {"ab",      "\xC4\xA0\xC4\xA0", "\xC4\xA0\x61",
                                        "aba",     "\xC3\x83\xC2\xA9", "11",
                                        "<|end|>", "<think>"};
    static const char *const merges[] = {"a b",  "\xC4\xA0 \xC4\xA0", "\xC4\xA0 a",
                                         "ab a", "\xC3\x83 \xC2\xA9", "1 1"};
    static char alphabet[256][3];
    static const char *tokens[N_TOKENS];
    static int32_t types[N_TOKENS];
    for (unsigned i = 0, nth = 0; i < 256; i++) {
        bool is_printable = (i >= 33 && i <= 126) || (i >= 161 && i <= 172) || i >= 174;
        unsigned c = is_printable ? i : 256 + nth++;
        alphabet[i][0] = (char)(c < 0x80 ? c : 0xC0 | c >> 6);
        alphabet[i][1] = (char)(c < 0x80 ? 0 : 0x80 | (c & 0x3F));
        tokens[i] = alphabet[i];
        types[i] = 1;
    }
    for (size_t i = 256; i < N_TOKENS; i++) {
        tokens[i] = extra[i - 256];
        types[i] = i == N_TOKENS - 2 ? 3 : i == N_TOKENS - 1 ? 4 : 1;
    }
    struct vocab vocab = {.model = "gpt2",
                          .pre = pre,
                          .n_tokens = N_TOKENS,
                          .tokens = tokens,
                          .token_types = types,
                          .n_merges = sizeof merges / sizeof merges[0],
                          .merges = merges,
                          .bos_id = -1,
                          .eos_id = -1};
    struct tokenizer *t;
    if (tokenizer_load_vocab(&vocab, &t, NULL) != OK)
        abort();
    return t;
}

/* What the ids must decode to. */
static void understood_text(const char *text, size_t n, bool is_nfc, struct str *out)
{
    struct str clean = {0};
    struct nfc_scratch scratch = {0};
    bool changed = false;
    if (replace_invalid_utf8(text, n, &clean, NULL, NULL) != OK)
        abort();
    if (is_nfc &&
        normalize_nfc(str_z(&clean), clean.len, &scratch, out, NULL, &changed, NULL) != OK)
        abort();
    if (!changed) {
        str_clear(out);
        str_append(out, str_z(&clean), clean.len);
    }
    nfc_scratch_done(&scratch);
    str_done(&clean);
}

static void check(const struct tokenizer *t, bool is_nfc, const char *text, size_t n)
{
    struct encoder *encoder;
    struct token_ids ids = {0};
    struct str decoded = {0}, expected = {0};
    size_t marks[4] = {0, n / 3, n / 2, n}, found[4];
    if (encoder_new(t, 1 << 12, &encoder, NULL) != OK ||
        encoder_encode_marked(encoder, text, n, 0, marks, 4, found, &ids, NULL) != OK ||
        tokenizer_decode(t, ids.ids, ids.n, false, &decoded, NULL) != OK)
        abort();
    understood_text(text, n, is_nfc, &expected);
    /* Around a control token the two sides are normalized apart, so only the rest must agree. */
    bool has_token = memmem(text, n, "<|end|>", 7) || memmem(text, n, "<think>", 7);
    if ((!is_nfc || !has_token) && (decoded.len != expected.len ||
                                    memcmp(str_z(&decoded), str_z(&expected), decoded.len) != 0))
        abort();
    if (found[0] != 0 || found[1] < found[0] || found[2] < found[1] || found[3] != ids.n)
        abort();
    encoder_free(encoder);
    token_ids_done(&ids);
    str_done(&decoded);
    str_done(&expected);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const char *const families[N_FAMILIES] = {"smollm", "qwen2", "qwen35",     "llama3",
                                                     "gpt-4o", "gpt-2", "deepseek-v3"};
    static struct tokenizer *tokenizers[N_FAMILIES];
    if (bytes < 1 || bytes > MAX_TEXT)
        return 0;
    size_t family = data[0] % N_FAMILIES;
    if (!tokenizers[family])
        tokenizers[family] = new_tokenizer(families[family]);
    bool is_nfc = strncmp(families[family], "qwen", 4) == 0;
    check(tokenizers[family], is_nfc, (const char *)data + 1, bytes - 1);
    return 0;
}
