/* Any bytes as a GGUF file, opened and read. */
#include "checkpoint_walk.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct checkpoint *c = checkpoint_new("memory.gguf");
    struct error error = {0};
    require(c != NULL);
    enum status status = checkpoint_read_gguf(c, data, bytes, &error);
    if (status == OK)
        status = checkpoint_index(c, &error);
    require_sentence(status, &error);
    if (status == OK) {
        struct str text = {0};
        json_write(&text, checkpoint_config(c));
        json_write(&text, checkpoint_generation_config(c));
        str_done(&text);
        walk_weights(c);
        walk_vocab(c);
    }
    checkpoint_free(c);
    return 0;
}
