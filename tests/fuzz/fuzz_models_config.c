/* Any bytes as the configuration of a model, of one rank and of two. */
#include "checkpoint_walk.h"

#include "models/model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void configure(const struct checkpoint *c, int n_ranks)
{
    enum { MAX_ROWS = 512, MAX_WANT = 4 };
    struct comm comm = {.n_ranks = n_ranks};
    struct error error = {0};
    struct model *model;
    enum status status = model_configure(c, &comm, &model, &error);
    require_sentence(status, &error);
    if (status != OK)
        return;
    require(model->n_layers > 0 && model->hidden > 0 && model->vocab_size > 0);
    require(model->n_heads % model->n_kv_heads == 0);
    require(model->family->scratch_bytes(model, MAX_ROWS, MAX_WANT) > 0);
    model->family->free(model);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct checkpoint *c = checkpoint_new("memory");
    struct error error = {0};
    require(c != NULL);
    enum status status =
        config_parse(c, "config.json", (const char *)data, bytes, &c->config, &error);
    if (status == OK) {
        configure(c, 1);
        configure(c, 2);
    }
    checkpoint_free(c);
    return 0;
}
