/* Arbitrary bytes from a server, cut by the first byte, and as a ShareGPT file. */
#include "bench/sharegpt.h"
#include "bench/sse.h"

#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void on_event(void *context, const char *data, size_t len)
{
    struct stream_event event;
    (void)context;
    stream_event_read(&event, data, len);
}

static void feed_in_pieces(const char *text, size_t size, size_t piece)
{
    struct sse sse = {0};
    for (size_t at = 0; at < size; at += piece)
        sse_feed(&sse, text + at, size - at < piece ? size - at : piece, on_event, NULL);
    sse_done(&sse);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum { PROMPTS = 3 };
    if (size < 1)
        return 0;
    const char *text = (const char *)data + 1;
    feed_in_pieces(text, size - 1, (size_t)data[0] + 1);
    struct dataset dataset = {.prompts = calloc(PROMPTS, sizeof *dataset.prompts)};
    struct dataset_options options = {.kind = DATASET_SHAREGPT, .n_prompts = PROMPTS};
    if (dataset.prompts && sharegpt_parse(&dataset, &options, text, size - 1, NULL) == OK &&
        (dataset.n < 1 || dataset.n > PROMPTS || !dataset.prompts[0].text))
        __builtin_trap();
    dataset_done(&dataset);
    return 0;
}
