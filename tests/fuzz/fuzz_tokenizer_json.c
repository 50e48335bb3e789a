/* tokenizer.json from hostile hands: loads it, and if that works encodes and decodes a little. */
#include "tokenizer/encoder.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const char text[] =
        "The ferry  left\r\n\n it's 123 caf\xC3\xA9 e\xCC\x81 <|im_end|>\xE4\xBD\xA0\xFF aaaaaaaa";
    struct tokenizer *t;
    struct error error;
    if (tokenizer_load_json_memory((const char *)data, bytes, &t, &error) != OK)
        return 0;
    struct encoder *encoder;
    struct token_ids ids = {0};
    struct str out = {0};
    if (encoder_new(t, 1 << 12, &encoder, &error) == OK) {
        if (encoder_encode(encoder, text, sizeof text - 1, ENCODE_ADD_SPECIAL, &ids, &error) == OK)
            (void)tokenizer_decode(t, ids.ids, ids.n, true, &out, &error);
        encoder_free(encoder);
    }
    token_ids_done(&ids);
    str_done(&out);
    tokenizer_free(t);
    return 0;
}
