/* Any bytes as the configuration of a model, of one rank and of two. */
#include "models/model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void require(int truth)
{
    if (!truth)
        __builtin_trap();
}

static void configure(const struct json *config, int n_ranks)
{
    enum { MAX_ROWS = 512, MAX_WANT = 4 };
    struct comm comm = {.n_ranks = n_ranks};
    struct error error = {0};
    struct model *model;
    enum status status = model_configure_from(config, &comm, &model, &error);
    require(status == OK || (!model && error.status == status && error.message[0]));
    if (status != OK)
        return;
    require(model->n_layers > 0 && model->hidden > 0 && model->vocab_size > 0);
    require(model->family->scratch_bytes(model, MAX_ROWS, MAX_WANT) > 0);
    model->family->free(model);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct arena arena = {.limit = 64 << 20};
    struct json config;
    if (json_parse(&arena, (const char *)data, bytes, &config, NULL) == OK) {
        configure(&config, 1);
        configure(&config, 2);
    }
    arena_done(&arena);
    return 0;
}
