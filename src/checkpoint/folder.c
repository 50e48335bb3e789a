/* A folder in Hugging Face's layout: which of its files hold the weights, and do they all agree. */
#include "checkpoint/checkpoint_struct.h"
#include "checkpoint/safetensors.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

enum { INDEX_BYTES_MAX = 64 << 20 };

static const char single_name[] = "model.safetensors";
static const char index_name[] = "model.safetensors.index.json";

static bool ends_with(const char *name, const char *suffix)
{
    size_t n = strlen(name), m = strlen(suffix);
    return n >= m && strcmp(name + n - m, suffix) == 0;
}

static enum status read_json(struct checkpoint *c, const char *name, size_t limit, bool is_required,
                             struct json *out, struct error *error)
{
    struct str path = {0}, text = {0};
    enum status status;
    path_join(&path, c->path, name);
    if (!file_exists(str_z(&path))) {
        out->type = JT_OBJECT;
        status = is_required ? error_set(error, ERROR_NOT_FOUND,
                                         "%s has no %s; give a model's folder or a .gguf file",
                                         c->path, name)
                             : OK;
        goto out;
    }
    status = file_read(str_z(&path), limit, &text, error);
    if (status == OK)
        status = config_parse(c, str_z(&path), str_z(&text), text.len, out, error);
out:
    str_done(&path);
    str_done(&text);
    return status;
}

/* Maps one safetensors file as the next of the checkpoint and lists its tensors. */
static enum status add_file(struct checkpoint *c, const char *name, struct error *error)
{
    struct str path = {0};
    path_join(&path, c->path, name);
    enum status status;
    struct file_map *files = realloc(c->files, (c->n_files + 1) * sizeof *files);
    if (!files) {
        status = error_memory(error, (c->n_files + 1) * sizeof *files);
        goto out;
    }
    c->files = files;
    status = file_map_open(&files[c->n_files], str_z(&path), error);
    if (status != OK)
        goto out;
    const struct file_map *map = &files[c->n_files++];
    status =
        safetensors_parse(&c->tensors, map->data, map->bytes, (int32_t)(c->n_files - 1), error);
    if (status != OK)
        error_prefix(error, "%s", str_z(&path));
out:
    str_done(&path);
    return status;
}

/* Only files beside the index may be named by it. */
static bool is_plain_name(const char *name, size_t len)
{
    return len == strlen(name) && !strchr(name, '/') && !strstr(name, "..") &&
           ends_with(name, ".safetensors");
}

/* What one pass over the index's weight_map does with each entry. */
typedef enum status entry_function(struct checkpoint *c, struct map *shards, const char *tensor,
                                   size_t tensor_len, const char *shard, size_t shard_len,
                                   struct error *error);

static enum status add_shard(struct checkpoint *c, struct map *shards, const char *tensor,
                             size_t tensor_len, const char *shard, size_t shard_len,
                             struct error *error)
{
    uint64_t known;
    if (map_get(shards, shard, shard_len, &known))
        return OK;
    if (!is_plain_name(shard, shard_len))
        return error_set(error, ERROR_INVALID,
                         "%s/%s: tensor %.*s is said to be in \"%.200s\", which is not the plain "
                         "name of a .safetensors file",
                         c->path, index_name, (int)(tensor_len < 200 ? tensor_len : 200), tensor,
                         shard);
    if (c->n_files == CHECKPOINT_FILES_MAX)
        return error_set(error, ERROR_LIMIT, "%s/%s names more than the limit of %d files", c->path,
                         index_name, CHECKPOINT_FILES_MAX);
    const char *copy = arena_copy(&c->arena, shard, shard_len);
    if (!copy || !map_put(shards, copy, shard_len, c->n_files))
        return error_memory(error, shard_len);
    return add_file(c, copy, error);
}

static enum status check_tensor(struct checkpoint *c, struct map *shards, const char *tensor,
                                size_t tensor_len, const char *shard, size_t shard_len,
                                struct error *error)
{
    uint64_t file = UINT64_MAX;
    map_get(shards, shard, shard_len, &file);
    const struct tensor *found = tensors_find(&c->tensors, tensor, tensor_len);
    if (found && (uint64_t)found->file == file)
        return OK;
    return error_set(error, ERROR_INVALID,
                     "%s/%s: tensor %.*s is said to be in %.200s, which does not hold it", c->path,
                     index_name, (int)(tensor_len < 200 ? tensor_len : 200), tensor, shard);
}

static enum status walk_weight_map(struct checkpoint *c, struct json_reader *r,
                                   entry_function *visit, struct map *shards, struct error *error)
{
    enum json_event event = json_next(r, error);
    struct str tensor = {0}, shard = {0};
    enum status status = OK;
    if (event != JSON_OBJECT && event != JSON_FAILED)
        status = error_set(error, ERROR_INVALID, "%s/%s: weight_map is not an object", c->path,
                           index_name);
    while (status == OK && event != JSON_FAILED) {
        event = json_next(r, error);
        if (event == JSON_OBJECT_END)
            break;
        if (event == JSON_FAILED)
            continue;
        str_clear(&tensor);
        str_append(&tensor, r->text, r->len);
        event = json_next(r, error);
        if (event == JSON_STRING) {
            str_clear(&shard);
            str_append(&shard, r->text, r->len);
            status = tensor.failed || shard.failed ? error_memory(error, r->len)
                                                   : visit(c, shards, str_z(&tensor), tensor.len,
                                                           str_z(&shard), shard.len, error);
        } else if (event != JSON_FAILED) {
            status =
                error_set(error, ERROR_INVALID, "%s/%s: weight_map must map names to file names",
                          c->path, index_name);
        }
    }
    if (status == OK && event == JSON_FAILED) {
        status = error->status;
        error_prefix(error, "%s/%s", c->path, index_name);
    }
    str_done(&tensor);
    str_done(&shard);
    return status;
}

/* Calls `visit` for each entry of "weight_map" in the text of the index. */
static enum status walk_index(struct checkpoint *c, const struct str *text, entry_function *visit,
                              struct map *shards, struct error *error)
{
    struct json_reader r;
    json_reader_init(&r, str_z(text), text->len);
    enum status status = OK;
    enum json_event event = json_next(&r, error);
    bool has_map = false;
    if (event != JSON_OBJECT && event != JSON_FAILED)
        status = error_set(error, ERROR_INVALID, "it does not hold a JSON object");
    while (status == OK && event != JSON_FAILED) {
        event = json_next(&r, error);
        if (event == JSON_OBJECT_END)
            event = json_next(&r, error);
        if (event == JSON_FAILED || event == JSON_END)
            break;
        if (json_text_is(&r, "weight_map")) {
            has_map = true;
            status = walk_weight_map(c, &r, visit, shards, error);
            if (status != OK)
                goto out;
        } else {
            event = json_next(&r, error);
            status = json_skip(&r, event, error);
        }
    }
    if (status == OK && event == JSON_FAILED)
        status = error->status;
    if (status == OK && (!has_map || shards->n == 0))
        status = error_set(error, ERROR_INVALID, "it has no weight_map with files");
    if (status != OK)
        error_prefix(error, "%s/%s", c->path, index_name);
out:
    json_reader_done(&r);
    return status;
}

static enum status open_shards(struct checkpoint *c, struct error *error)
{
    struct str path = {0}, text = {0};
    struct map shards = {0}; /* file name -> its number */
    path_join(&path, c->path, index_name);
    enum status status = file_read(str_z(&path), INDEX_BYTES_MAX, &text, error);
    if (status == OK)
        status = walk_index(c, &text, add_shard, &shards, error);
    if (status == OK)
        status = walk_index(c, &text, check_tensor, &shards, error);
    map_done(&shards);
    str_done(&path);
    str_done(&text);
    return status;
}

/* What a folder holds besides the names that are looked for first. */
struct contents {
    struct str safetensors, gguf, other; /* the last name seen of each kind */
    int n_safetensors;
};

static enum status list_folder(const char *path, struct contents *out, struct error *error)
{
    DIR *folder = opendir(path);
    if (!folder)
        return error_set(error, ERROR_IO, "%s cannot be listed", path);
    for (struct dirent *entry; (entry = readdir(folder));) {
        const char *name = entry->d_name;
        struct str *kind = NULL;
        if (ends_with(name, ".safetensors")) {
            kind = &out->safetensors;
            out->n_safetensors++;
        } else if (ends_with(name, ".gguf")) {
            kind = &out->gguf;
        } else if (ends_with(name, ".bin") || ends_with(name, ".pth") || ends_with(name, ".pt")) {
            kind = &out->other;
        }
        if (kind) {
            str_clear(kind);
            str_append_z(kind, name);
        }
    }
    closedir(folder);
    return OK;
}

/* The folder has neither of the usual names: one *.safetensors is taken, all else is explained. */
static enum status open_other(struct checkpoint *c, struct error *error)
{
    struct contents found = {0};
    enum status status = list_folder(c->path, &found, error);
    if (status != OK)
        goto out;
    if (found.n_safetensors == 1)
        status = add_file(c, str_z(&found.safetensors), error);
    else if (found.n_safetensors > 1)
        status = error_set(error, ERROR_INVALID,
                           "%s has %d .safetensors files but no %s that says what they hold",
                           c->path, found.n_safetensors, index_name);
    else if (found.gguf.len)
        status = error_set(error, ERROR_INVALID,
                           "%s has no safetensors weights but a GGUF file: give %s/%s instead",
                           c->path, c->path, str_z(&found.gguf));
    else if (found.other.len)
        status = error_set(error, ERROR_UNSUPPORTED,
                           "%s has its weights as a PyTorch file (%s) only; use a safetensors "
                           "version of the model",
                           c->path, str_z(&found.other));
    else
        status = error_set(error, ERROR_NOT_FOUND,
                           "%s holds no weights: neither %s nor %s is there (is the download "
                           "complete?)",
                           c->path, single_name, index_name);
out:
    str_done(&found.safetensors);
    str_done(&found.gguf);
    str_done(&found.other);
    return status;
}

static bool has_file(const struct checkpoint *c, const char *name)
{
    struct str path = {0};
    path_join(&path, c->path, name);
    bool found = file_exists(str_z(&path));
    str_done(&path);
    return found;
}

enum status folder_open_config(struct checkpoint *c, const char *path, struct error *error)
{
    struct str text = {0};
    c->generation_config.type = JT_OBJECT;
    if (file_is_directory(path))
        return read_json(c, "config.json", CONFIG_BYTES_MAX, true, &c->config, error);
    enum status status = file_read(path, CONFIG_BYTES_MAX, &text, error);
    if (status == OK)
        status = config_parse(c, path, str_z(&text), text.len, &c->config, error);
    str_done(&text);
    return status;
}

enum status folder_open(struct checkpoint *c, struct error *error)
{
    enum status status = read_json(c, "config.json", CONFIG_BYTES_MAX, true, &c->config, error);
    if (status != OK)
        return status;
    status = config_read_quantization(c, error);
    if (status != OK) {
        error_prefix(error, "%s/config.json", c->path);
        return status;
    }
    status = read_json(c, "generation_config.json", CONFIG_BYTES_MAX, false, &c->generation_config,
                       error);
    if (status != OK)
        return status;
    if (has_file(c, single_name))
        return add_file(c, single_name, error);
    return has_file(c, index_name) ? open_shards(c, error) : open_other(c, error);
}
