/* Opens either format and answers for its weights by Hugging Face's names. */
#include "checkpoint/checkpoint.h"

#include "checkpoint/checkpoint_struct.h"
#include "checkpoint/gguf_model.h"

#include <stdlib.h>
#include <string.h>

struct checkpoint *checkpoint_new(const char *path)
{
    struct checkpoint *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->tensors.arena = &c->arena;
    c->path = arena_copy(&c->arena, path, strlen(path));
    if (!c->path) {
        checkpoint_free(c);
        return NULL;
    }
    return c;
}

void checkpoint_free(struct checkpoint *c)
{
    if (!c)
        return;
    for (size_t i = 0; i < c->n_files; i++)
        file_map_done(&c->files[i]);
    free(c->files);
    map_done(&c->names);
    tensors_done(&c->tensors);
    arena_done(&c->config_arena);
    arena_done(&c->arena);
    free(c);
}

/* The name under which a tensor is handed out, in `out`; false if nothing here reads it. */
static bool public_name(const struct checkpoint *c, const struct tensor *tensor, struct str *out)
{
    if (c->is_gguf) {
        gguf_huggingface_name(out, tensor->name);
        return true;
    }
    const char *prefix, *rest;
    if (!name_normalise(tensor->name, &prefix, &rest))
        return false;
    str_clear(out);
    str_append_z(out, prefix);
    str_append_z(out, rest);
    return true;
}

enum status checkpoint_index(struct checkpoint *c, struct error *error)
{
    struct str name = {0};
    enum status status = OK;
    for (size_t i = 0; i < c->tensors.n && status == OK; i++) {
        const struct tensor *tensor = &c->tensors.items[i];
        uint64_t known;
        if (!public_name(c, tensor, &name))
            continue;
        if (map_get(&c->names, str_z(&name), name.len, &known)) {
            status =
                error_set(error, ERROR_INVALID, "tensors %.150s and %.150s are both read as %.150s",
                          c->tensors.items[known].name, tensor->name, str_z(&name));
            break;
        }
        /* Most names stay as they are: those are in the arena already. */
        const char *key = strcmp(str_z(&name), tensor->name) == 0
                              ? tensor->name
                              : arena_copy(&c->arena, str_z(&name), name.len);
        if (name.failed || !key || !map_put(&c->names, key, name.len, i))
            status = error_memory(error, name.len);
        c->bytes += tensor->bytes;
    }
    str_done(&name);
    return status;
}

enum status checkpoint_open(struct checkpoint **out, const char *path, struct error *error)
{
    struct error local = {0};
    struct error *e = error ? error : &local;
    *out = NULL;
    struct checkpoint *c = checkpoint_new(path);
    if (!c)
        return error_memory(e, sizeof *c);
    enum status status = file_is_directory(path) ? folder_open(c, e) : gguf_open(c, e);
    if (status == OK) {
        status = checkpoint_index(c, e);
        if (status != OK)
            error_prefix(e, "%s", path);
    }
    if (status != OK) {
        checkpoint_free(c);
        return status;
    }
    *out = c;
    return OK;
}

const char *checkpoint_path(const struct checkpoint *c)
{
    return c->path;
}

bool checkpoint_is_gguf(const struct checkpoint *c)
{
    return c->is_gguf;
}

const struct json *checkpoint_config(const struct checkpoint *c)
{
    return &c->config;
}

const struct json *checkpoint_generation_config(const struct checkpoint *c)
{
    return &c->generation_config;
}

uint64_t checkpoint_bytes(const struct checkpoint *c)
{
    return c->bytes;
}

static const struct tensor *find(const struct checkpoint *c, const char *name)
{
    uint64_t index;
    return map_get(&c->names, name, strlen(name), &index) ? &c->tensors.items[index] : NULL;
}

bool checkpoint_has(const struct checkpoint *c, const char *name)
{
    return find(c, name) != NULL;
}

enum status checkpoint_weight(const struct checkpoint *c, const char *name, struct weight *out,
                              struct error *error)
{
    const struct tensor *tensor = find(c, name);
    if (!tensor)
        return error_set(error, ERROR_NOT_FOUND, "%s has no tensor %.200s", c->path, name);
    if (tensor->encoding == ENCODING_UNSUPPORTED)
        return error_set(error, ERROR_UNSUPPORTED,
                         "%s: tensor %.200s has type %s, which this version does not support",
                         c->path, tensor->name, tensor->dtype);
    if (tensor->rows == 0 || tensor->cols == 0)
        return error_set(error, ERROR_INVALID, "%s: tensor %.200s is empty", c->path, tensor->name);
    *out = (struct weight){.encoding = (enum weight_encoding)tensor->encoding,
                           .rows = tensor->rows,
                           .cols = tensor->cols,
                           .data = tensor->data,
                           .rope_head_dim = tensor->rope_head_dim};
    return OK;
}

static void release_bytes(const struct checkpoint *c, const uint8_t *data, uint64_t bytes)
{
    for (size_t i = 0; i < c->n_files; i++) {
        const struct file_map *map = &c->files[i];
        uintptr_t start = (uintptr_t)map->data, at = (uintptr_t)data;
        if (map->data && at >= start && at - start < map->bytes)
            file_map_release(map, at - start, bytes);
    }
}

void checkpoint_release(const struct checkpoint *c, const struct weight *weight)
{
    release_bytes(c, weight->data, weight_bytes(weight));
    if (weight->levels.scales)
        release_bytes(c, weight->levels.scales, weight_levels_bytes(weight));
    if (weight->levels.biases)
        release_bytes(c, weight->levels.biases, weight_levels_bytes(weight));
}

enum status checkpoint_vocab(const struct checkpoint *c, struct checkpoint_vocab *out,
                             struct error *error)
{
    if (!c->vocab.tokens)
        return error_set(error, ERROR_NOT_FOUND, "%s has no vocabulary inside", c->path);
    *out = c->vocab;
    return OK;
}
