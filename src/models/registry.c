/* The families, and what all models have in common. */
#include "models/config.h"
#include "models/loader.h"
#include "models/model.h"

#include <stdlib.h>
#include <string.h>

extern const struct model_family llama_family, qwen2_family, qwen3_family, hunyuan_dense_family;
extern const struct model_family qwen2_moe_family, qwen3_moe_family;
extern const struct model_family qwen3_next_family, qwen3_5_family, qwen3_5_moe_family;
extern const struct model_family gpt_oss_family, hunyuan_moe_family;

static const struct model_family *const families[] = {
    &llama_family,       &qwen2_family,     &qwen3_family,      &hunyuan_dense_family,
    &qwen2_moe_family,   &qwen3_moe_family, &qwen3_next_family, &qwen3_5_family,
    &qwen3_5_moe_family, &gpt_oss_family,   &hunyuan_moe_family};
enum { N_FAMILIES = sizeof families / sizeof families[0] };

static const struct model_family *find_family(const char *model_type)
{
    for (int i = 0; i < N_FAMILIES; i++)
        for (const char *const *type = families[i]->model_types; *type; type++)
            if (strcmp(*type, model_type) == 0)
                return families[i];
    return NULL;
}

static enum status unknown_family(const char *model_type, struct error *error)
{
    struct str known = {0};
    for (int i = 0; i < N_FAMILIES; i++)
        for (const char *const *type = families[i]->model_types; *type; type++)
            str_printf(&known, "%s%s", known.len ? ", " : "", *type);
    enum status status =
        error_set(error, ERROR_UNSUPPORTED, "model type \"%s\" is not supported; these are: %s",
                  model_type, str_z(&known));
    str_done(&known);
    return status;
}

enum status model_configure_from(const struct json *config, const struct comm *comm,
                                 struct model **out, struct error *error)
{
    *out = NULL;
    const char *model_type = json_string(json_get(config, "model_type"));
    if (!model_type)
        return error_set(error, ERROR_INVALID, "the configuration has no \"model_type\"");
    const struct model_family *family = find_family(model_type);
    if (!family)
        return unknown_family(model_type, error);
    enum status status = config_check_types(config, error);
    if (status == OK)
        status = family->configure(config, comm, out, error);
    if (status == OK)
        (*out)->family = family;
    return status;
}

enum status model_configure(const struct checkpoint *checkpoint, const struct comm *comm,
                            struct model **out, struct error *error)
{
    enum status status = model_configure_from(checkpoint_config(checkpoint), comm, out, error);
    return status == OK ? OK : error_prefix(error, "%s", checkpoint_path(checkpoint));
}

enum status model_visit_weights(struct model *model, const struct checkpoint *checkpoint,
                                struct device *device, struct comm *comm, int32_t max_rows,
                                weight_visitor visitor, void *context, struct device_bytes *bytes,
                                struct error *error)
{
    struct loader loader = {.model = model,
                            .checkpoint = checkpoint,
                            .device = device,
                            .comm = comm,
                            .max_rows = max_rows,
                            .is_counting = true,
                            .on_weight = visitor,
                            .visitor_context = context};
    enum status status = model->family->load(model, &loader, error);
    if (visitor)
        visitor(context, NULL, loader.bytes);
    *bytes = (struct device_bytes){loader.bytes, loader.workspace};
    return status;
}

enum status model_weight_bytes(struct model *model, const struct checkpoint *checkpoint,
                               struct device *device, struct comm *comm, int32_t max_rows,
                               struct device_bytes *bytes, struct error *error)
{
    return model_visit_weights(model, checkpoint, device, comm, max_rows, NULL, NULL, bytes, error);
}

enum status model_load(struct model *model, const struct checkpoint *checkpoint,
                       struct device *device, struct comm *comm, int32_t max_rows,
                       load_progress progress, void *progress_context, struct error *error)
{
    struct loader loader = {.model = model,
                            .checkpoint = checkpoint,
                            .device = device,
                            .comm = comm,
                            .max_rows = max_rows,
                            .progress = progress,
                            .progress_context = progress_context};
    struct device_bytes bytes;
    enum status status =
        model_weight_bytes(model, checkpoint, device, comm, max_rows, &bytes, error);
    if (status != OK)
        return status;
    loader.total_bytes = bytes.own;
    model->device = device;
    return model->family->load(model, &loader, error);
}

void model_free(struct model *model)
{
    if (!model)
        return;
    for (int32_t i = 0; i < model->n_linears; i++)
        model->device->table->linear_free(model->device, model->linears[i]);
    for (int32_t i = 0; i < model->n_experts; i++)
        model->device->table->experts_free(model->device, model->experts[i]);
    for (int32_t i = 0; i < model->n_embeddings; i++)
        model->device->table->embedding_free(model->device, model->embeddings[i]);
    for (int32_t i = 0; i < model->n_buffers; i++) {
        model->device->table->buffer_free(model->device, model->buffers[i]);
        free(model->buffers[i]);
    }
    free(model->linears);
    free(model->experts);
    free(model->embeddings);
    free(model->buffers);
    model->family->free(model);
}
