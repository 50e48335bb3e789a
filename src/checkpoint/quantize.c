/* Every tensor passes once, in the order of the files: floats as they are, matrices through the
 * same weights that a quantization at load shows (checkpoint_quantize). */
#include "checkpoint/quantize.h"

#include "base/thread_pool.h"
#include "base/weight_encode.h"
#include "checkpoint/checkpoint_struct.h"
#include "checkpoint/shard_writer.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    BATCH_BYTES = 8 << 20, /* codes that are made before they are written */
    ROWS_PER_TASK = 16,
    COPIED_BYTES_MAX = 256 << 20 /* of a tokenizer's file */
};

/* What a model's folder has beside weights and config.json. */
static const char *const copied_files[] = {
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "chat_template.json",
};

struct writing {
    struct checkpoint *checkpoint;
    const struct quantize_request *request;
    struct shard_writer shards;
    struct thread_pool *pool;
    bool is_tied;
};

static const struct json *config_value(const struct checkpoint *c, const char *key)
{
    const struct json *inner = json_get(json_get(&c->config, "text_config"), key);
    return json_is_null(inner) ? json_get(&c->config, key) : inner;
}

/* The file's name of a tensor that belongs to the language model and is read. */
static bool is_kept(const struct writing *w, const struct tensor *tensor)
{
    const char *prefix, *rest;
    if (!name_normalise(tensor->name, &prefix, &rest))
        return false;
    bool is_head =
        strncmp(prefix, "lm_head.", 8) == 0 || (!*prefix && strncmp(rest, "lm_head.", 8) == 0);
    return !(is_head && w->is_tied);
}

/* --- the list --------------------------------------------------------------------------------- */

static const char *level_dtype(enum weight_level_type type)
{
    return type == LEVEL_F32 ? "F32" : type == LEVEL_F16 ? "F16" : "BF16";
}

/* "STEM.weight" -> "STEM.scales", in the checkpoint's arena; NULL if memory is exhausted. */
static const char *sibling(struct writing *w, const struct tensor *tensor, const char *suffix)
{
    struct str name = {0};
    str_append(&name, tensor->name, tensor->name_len - strlen(".weight"));
    str_append_z(&name, suffix);
    const char *copy =
        name.failed ? NULL : arena_copy(&w->checkpoint->arena, str_z(&name), name.len);
    str_done(&name);
    return copy;
}

/* The tensor's shape, but for its last dimension. */
static void copy_shape(const struct tensor *tensor, int64_t cols, struct shard_tensor *out)
{
    out->n_dims = tensor->n_dims;
    memcpy(out->dims, tensor->dims, sizeof out->dims);
    out->dims[out->n_dims - 1] = cols;
}

/* Words, scales and biases. */
static enum status list_quantized(struct writing *w, const struct tensor *tensor,
                                  const struct weight *weight, struct error *error)
{
    int64_t groups = weight->cols / weight->levels.group;
    int64_t words = weight->cols * weight->levels.bits / 32;
    uint64_t level = weight_level_bytes(weight->levels.type);
    struct shard_tensor codes = {
        .name = tensor->name, .dtype = "U32", .bytes = (uint64_t)(weight->rows * words) * 4};
    struct shard_tensor levels = {.dtype = level_dtype(weight->levels.type),
                                  .bytes = (uint64_t)(weight->rows * groups) * level};
    copy_shape(tensor, words, &codes);
    copy_shape(tensor, groups, &levels);
    enum status status = shard_writer_add(&w->shards, &codes, error);
    for (int i = 0; i < 2 && status == OK; i++) {
        levels.name = sibling(w, tensor, i ? ".biases" : ".scales");
        status = levels.name ? shard_writer_add(&w->shards, &levels, error)
                             : error_memory(error, tensor->name_len);
    }
    return status;
}

static enum status list_tensor(struct writing *w, const struct tensor *tensor, struct error *error)
{
    struct weight weight;
    if (strstr(tensor->name, ".experts."))
        return error_set(
            error, ERROR_UNSUPPORTED,
            "%s has experts of their own names (%.200s), which mlx-lm would not find quantized; "
            "quantize it at load with --quantization, or use a checkpoint of stacks (switch_mlp)",
            w->checkpoint->path, tensor->name);
    if (mlx_make(&w->checkpoint->made, tensor, &weight))
        return list_quantized(w, tensor, &weight, error);
    struct shard_tensor copy = {.name = tensor->name,
                                .dtype = tensor->dtype,
                                .n_dims = tensor->n_dims,
                                .bytes = tensor->bytes};
    memcpy(copy.dims, tensor->dims, sizeof copy.dims);
    return shard_writer_add(&w->shards, &copy, error);
}

/* --- the bytes -------------------------------------------------------------------------------- */

/* Rows [first, first + n) of one weight, on their way into a file. */
struct batch {
    const struct weight *weight;
    int64_t first, n;
    size_t row_bytes, level_row_bytes;
    uint8_t *codes;           /* [n][row_bytes] */
    uint8_t *scales, *biases; /* [rows][level_row_bytes], all rows */
    uint8_t *scratch;         /* [workers][scratch_bytes] */
    size_t scratch_bytes;
};

static void encode_task(void *context, int task, int worker)
{
    const struct batch *b = context;
    const struct weight *w = b->weight;
    size_t cols = (size_t)w->cols, groups = cols / (size_t)w->levels.group;
    float *scales = (float *)(void *)(b->scratch + (size_t)worker * b->scratch_bytes);
    float *biases = scales + groups;
    uint8_t *codes = (uint8_t *)(biases + groups);
    int64_t end = (int64_t)(task + 1) * ROWS_PER_TASK;
    for (int64_t i = (int64_t)task * ROWS_PER_TASK; i < end && i < b->n; i++) {
        int64_t row = b->first + i;
        weight_row_read(w, row,
                        &(struct weight_row){.codes = codes, .scales = scales, .biases = biases});
        weight_pack_stream(codes, cols, w->levels.bits, b->codes + (size_t)i * b->row_bytes);
        size_t place = (size_t)row * b->level_row_bytes;
        weight_pack_levels(w->levels.type, scales, groups, b->scales + place);
        weight_pack_levels(w->levels.type, biases, groups, b->biases + place);
    }
}

static void report(const struct writing *w)
{
    if (w->request->progress)
        w->request->progress(w->request->progress_context,
                             (double)w->shards.written / (double)w->shards.total);
}

static enum status write_rows(struct writing *w, struct batch *b, struct error *error)
{
    enum status status = OK;
    int64_t rows_at_once = (int64_t)(BATCH_BYTES / b->row_bytes) + 1;
    for (b->first = 0; b->first < b->weight->rows && status == OK; b->first += b->n) {
        int64_t left = b->weight->rows - b->first;
        b->n = left < rows_at_once ? left : rows_at_once;
        int n_tasks = (int)((b->n + ROWS_PER_TASK - 1) / ROWS_PER_TASK);
        thread_pool_run(w->pool, encode_task, b, n_tasks);
        status = shard_writer_write(&w->shards, b->codes, (size_t)b->n * b->row_bytes, error);
        report(w);
    }
    return status;
}

static enum status write_quantized(struct writing *w, const struct weight *weight,
                                   struct error *error)
{
    size_t cols = (size_t)weight->cols, groups = cols / (size_t)weight->levels.group;
    struct batch b = {.weight = weight,
                      .row_bytes = cols * (size_t)weight->levels.bits / 8,
                      .level_row_bytes = groups * weight_level_bytes(weight->levels.type)};
    size_t level_bytes = (size_t)weight->rows * b.level_row_bytes;
    b.scratch_bytes = (2 * groups * sizeof(float) + cols + 63) / 64 * 64;
    b.codes = malloc(BATCH_BYTES + b.row_bytes);
    b.scales = malloc(level_bytes);
    b.biases = malloc(level_bytes);
    b.scratch = malloc(b.scratch_bytes * (size_t)thread_pool_size(w->pool));
    enum status status = OK;
    if (!b.codes || !b.scales || !b.biases || !b.scratch)
        status = error_memory(error, BATCH_BYTES + 2 * level_bytes);
    if (status == OK)
        status = write_rows(w, &b, error);
    if (status == OK)
        status = shard_writer_write(&w->shards, b.scales, level_bytes, error);
    if (status == OK)
        status = shard_writer_write(&w->shards, b.biases, level_bytes, error);
    free(b.codes);
    free(b.scales);
    free(b.biases);
    free(b.scratch);
    checkpoint_release(w->checkpoint, weight);
    return status;
}

static enum status write_tensor(struct writing *w, const struct tensor *tensor, struct error *error)
{
    struct weight weight;
    if (mlx_make(&w->checkpoint->made, tensor, &weight))
        return write_quantized(w, &weight, error);
    return tensor->bytes ? shard_writer_write(&w->shards, tensor->data, tensor->bytes, error)
                         : error_set(error, ERROR_INVALID, "%s: tensor %.200s is empty",
                                     w->checkpoint->path, tensor->name);
}

/* --- the other files -------------------------------------------------------------------------- */

/* The configuration with MLX's block under both of the names that readers look for. */
static enum status write_config(struct writing *w, const char *folder, struct error *error)
{
    const struct json *config = &w->checkpoint->config;
    struct str text = {0};
    str_append_char(&text, '{');
    for (size_t i = 0; i < config->n; i++) {
        const struct json_member *member = &config->members[i];
        if (strcmp(member->key, "quantization") == 0 ||
            strcmp(member->key, "quantization_config") == 0)
            continue;
        str_append_z(&text, text.len > 1 ? ",\n" : "\n");
        json_write_string(&text, member->key, member->key_len);
        str_append_z(&text, ": ");
        json_write(&text, &member->value);
    }
    if (json_is_null(config_value(w->checkpoint, "tie_word_embeddings")))
        str_printf(&text, "%s\"tie_word_embeddings\": %s", text.len > 1 ? ",\n" : "\n",
                   w->is_tied ? "true" : "false");
    for (int i = 0; i < 2; i++)
        str_printf(&text, ",\n\"%s\": {\"group_size\": %d, \"bits\": %d, \"mode\": \"affine\"}",
                   i ? "quantization_config" : "quantization", (int)w->request->group,
                   (int)w->request->bits);
    str_append_z(&text, "}\n");
    enum status status = text.failed
                             ? error_memory(error, text.len)
                             : folder_write_file(folder, "config.json", text.data, text.len, error);
    str_done(&text);
    return status;
}

static enum status copy_files(const struct writing *w, const char *folder, struct error *error)
{
    enum status status = OK;
    for (size_t i = 0; i < sizeof copied_files / sizeof copied_files[0] && status == OK; i++) {
        struct str path = {0}, text = {0};
        path_join(&path, w->checkpoint->path, copied_files[i]);
        if (file_exists(str_z(&path))) {
            status = file_read(str_z(&path), COPIED_BYTES_MAX, &text, error);
            if (status == OK)
                status = folder_write_file(folder, copied_files[i], text.data, text.len, error);
        }
        str_done(&path);
        str_done(&text);
    }
    return status;
}

/* Removes the files of a folder, which has no folders inside, and itself. */
static void remove_folder(const char *path)
{
    DIR *folder = opendir(path);
    struct str name = {0};
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        path_join(&name, path, entry->d_name);
        unlink(str_z(&name));
    }
    if (folder)
        closedir(folder);
    str_done(&name);
    rmdir(path);
}

static enum status write_folder(struct writing *w, const char *folder, struct error *error)
{
    const struct tensor_list *tensors = &w->checkpoint->tensors;
    enum status status = OK;
    w->shards = (struct shard_writer){.folder = folder, .shard_bytes = w->request->shard_bytes};
    for (size_t i = 0; i < tensors->n && status == OK; i++)
        if (is_kept(w, &tensors->items[i]))
            status = list_tensor(w, &tensors->items[i], error);
    for (size_t i = 0; i < tensors->n && status == OK; i++)
        if (is_kept(w, &tensors->items[i]))
            status = write_tensor(w, &tensors->items[i], error);
    if (status == OK)
        status = shard_writer_finish(&w->shards, error);
    if (status == OK)
        status = write_config(w, folder, error);
    if (status == OK)
        status = copy_files(w, folder, error);
    return status;
}

enum status checkpoint_write_quantized(struct checkpoint *c, const struct quantize_request *request,
                                       struct error *error)
{
    struct str folder = {0};
    struct writing w = {.checkpoint = c, .request = request};
    if (c->is_gguf)
        return error_set(
            error, ERROR_UNSUPPORTED,
            "%s is a GGUF file; give the folder with safetensors that it was made from", c->path);
    if (file_exists(request->out))
        return error_set(error, ERROR_INVALID, "%s exists already; give a new name or remove it",
                         request->out);
    enum status status = checkpoint_quantize(c, request->bits, request->group, error);
    if (status == OK)
        status = thread_pool_new(&w.pool, request->n_threads, error);
    if (status != OK)
        return status;
    w.is_tied =
        json_bool(config_value(c, "tie_word_embeddings"), !checkpoint_has(c, "lm_head.weight"));
    str_append_z(&folder, request->out);
    str_append_z(&folder, ".XXXXXX");
    if (folder.failed) {
        status = error_memory(error, folder.len);
    } else if (!mkdtemp(folder.data)) {
        status = error_set(error, ERROR_IO, "%s cannot be made: %s", folder.data, strerror(errno));
    } else {
        status = write_folder(&w, folder.data, error);
        if (status == OK &&
            (chmod(folder.data, 0755) != 0 || rename(folder.data, request->out) != 0))
            status = error_set(error, ERROR_IO, "%s cannot be renamed to %s: %s", folder.data,
                               request->out, strerror(errno));
        if (status != OK)
            remove_folder(folder.data);
    }
    shard_writer_done(&w.shards);
    thread_pool_free(w.pool);
    str_done(&folder);
    return status;
}
