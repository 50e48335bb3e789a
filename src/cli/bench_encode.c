#include "cli/bench_encode.h"

#include <string.h>

enum status bench_encoder_init(struct bench_encoder *e, const struct text_model *text,
                               struct error *error)
{
    *e = (struct bench_encoder){0};
    return encoder_new(text->tokenizer, ENCODER_DEFAULT_CACHE_BYTES, &e->encoder, error);
}

void bench_encoder_done(struct bench_encoder *e)
{
    encoder_free(e->encoder);
    token_ids_done(&e->ids);
}

int32_t bench_encode(void *context, const char *text, size_t len, int32_t *ids, int32_t cap)
{
    struct bench_encoder *e = context;
    e->ids.n = 0;
    if (encoder_encode(e->encoder, text, len, ENCODE_ADD_SPECIAL, &e->ids, NULL) != OK)
        return -1;
    size_t n = e->ids.n < (size_t)cap ? e->ids.n : (size_t)cap;
    memcpy(ids, e->ids.ids, n * sizeof *ids);
    return (int32_t)n;
}
