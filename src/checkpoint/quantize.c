/* Every tensor of mlx_layout passes once: floats as they are, matrices through the same encoder as
 * a quantization at load (checkpoint_quantize). */
#include "checkpoint/quantize.h"

#include "base/half.h"
#include "base/thread_pool.h"
#include "base/weight_encode.h"
#include "checkpoint/mlx_layout.h"
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
    struct mlx_layout layout;
    struct shard_writer shards;
    struct thread_pool *pool;
    bool is_tied;
};

static const struct json *config_value(const struct checkpoint *c, const char *key)
{
    const struct json *inner = json_get(json_get(&c->config, "text_config"), key);
    return json_is_null(inner) ? json_get(&c->config, key) : inner;
}

/* --- the list --------------------------------------------------------------------------------- */

/* "STEM.weight" -> "STEM.scales", in the checkpoint's arena; NULL if memory is exhausted. */
static const char *sibling(struct writing *w, const struct mlx_tensor *tensor, const char *suffix)
{
    struct str name = {0};
    str_append(&name, tensor->name, strlen(tensor->name) - strlen(".weight"));
    str_append_z(&name, suffix);
    const char *copy =
        name.failed ? NULL : arena_copy(&w->checkpoint->arena, str_z(&name), name.len);
    str_done(&name);
    return copy;
}

static uint64_t element_bytes(const struct mlx_tensor *tensor)
{
    return (uint64_t)weight_info((enum weight_encoding)tensor->source->encoding)->block_bytes;
}

/* A tensor of the same shape, but for its last dimension. */
static struct shard_tensor shard_of(const struct mlx_tensor *tensor, const char *name,
                                    const char *dtype, int64_t cols, uint64_t col_bytes)
{
    struct shard_tensor out = {.name = name, .dtype = dtype, .n_dims = tensor->n_dims};
    memcpy(out.dims, tensor->dims, sizeof out.dims);
    out.dims[out.n_dims - 1] = cols;
    out.bytes = (uint64_t)(tensor->n * tensor->rows * cols) * col_bytes;
    return out;
}

/* Words, scales and biases; levels are of the type that the floats have. */
static enum status list_quantized(struct writing *w, const struct mlx_tensor *tensor,
                                  struct error *error)
{
    static const char *const suffixes[] = {".scales", ".biases"};
    const struct mlx_format *format = &w->checkpoint->made;
    struct shard_tensor out =
        shard_of(tensor, tensor->name, "U32", tensor->cols * format->bits / 32, 4);
    enum status status = shard_writer_add(&w->shards, &out, error);
    for (int i = 0; i < 2 && status == OK; i++) {
        out = shard_of(tensor, sibling(w, tensor, suffixes[i]), tensor->source->dtype,
                       tensor->cols / format->group, element_bytes(tensor));
        status = out.name ? shard_writer_add(&w->shards, &out, error)
                          : error_memory(error, strlen(tensor->name));
    }
    return status;
}

static enum status list_tensor(struct writing *w, const struct mlx_tensor *tensor,
                               struct error *error)
{
    if (tensor->way == MLX_QUANTIZED)
        return list_quantized(w, tensor, error);
    struct shard_tensor out = {.name = tensor->name,
                               .dtype = tensor->source->dtype,
                               .n_dims = tensor->n_dims,
                               .bytes = tensor->source->bytes};
    memcpy(out.dims, tensor->dims, sizeof out.dims);
    if (tensor->way == MLX_GATHERED)
        out.bytes = (uint64_t)(tensor->n * tensor->rows * tensor->cols) * element_bytes(tensor);
    return shard_writer_add(&w->shards, &out, error);
}

/* --- the bytes -------------------------------------------------------------------------------- */

/* Rows [first, first + n) of one expert, or of a matrix, on their way into a file. */
struct batch {
    struct weight weight; /* MLX_QUANTIZED: as codes, otherwise floats */
    int64_t offset, step; /* row i is the weight's row offset + i * step */
    int64_t first, n;
    size_t row_bytes, level_row_bytes;
    uint8_t *codes;           /* [n][row_bytes] */
    uint8_t *scales, *biases; /* [rows][level_row_bytes], all rows of this expert */
    uint8_t *turned;          /* the expert's floats, if they do not lie in rows */
    uint8_t *scratch;         /* [workers][scratch_bytes] */
    size_t scratch_bytes;
    bool is_norm;
};

static void encode_row(const struct batch *b, int64_t row, uint8_t *scratch)
{
    const struct weight *w = &b->weight;
    size_t cols = (size_t)w->cols, groups = cols / (size_t)w->levels.group;
    float *scales = (float *)(void *)scratch, *biases = scales + groups;
    uint8_t *codes = (uint8_t *)(biases + groups);
    weight_row_read(w, b->offset + row * b->step,
                    &(struct weight_row){.codes = codes, .scales = scales, .biases = biases});
    weight_pack_stream(codes, cols, w->levels.bits,
                       b->codes + (size_t)(row - b->first) * b->row_bytes);
    weight_pack_levels(w->levels.type, scales, groups,
                       b->scales + (size_t)row * b->level_row_bytes);
    weight_pack_levels(w->levels.type, biases, groups,
                       b->biases + (size_t)row * b->level_row_bytes);
}

/* The values as they are; those of a norm plus 1, rounded to their type as mlx-lm does. */
static void copy_row(const struct batch *b, int64_t row, uint8_t *scratch)
{
    const struct weight *w = &b->weight;
    uint8_t *out = b->codes + (size_t)(row - b->first) * b->row_bytes;
    float *values = (float *)(void *)scratch;
    if (!b->is_norm) {
        memcpy(out, weight_row_data(w, b->offset + row * b->step), b->row_bytes);
        return;
    }
    weight_row_dequantize(w, b->offset + row * b->step, values);
    for (size_t i = 0; i < (size_t)w->cols; i++) {
        float sum = values[i] + 1.0f;
        uint16_t half = w->encoding == WEIGHT_F16 ? f16_from_f32(sum) : bf16_from_f32(sum);
        if (w->encoding == WEIGHT_F32)
            memcpy(out + i * sizeof sum, &sum, sizeof sum);
        else
            memcpy(out + i * sizeof half, &half, sizeof half);
    }
}

static void batch_task(void *context, int task, int worker)
{
    const struct batch *b = context;
    uint8_t *scratch = b->scratch + (size_t)worker * b->scratch_bytes;
    int64_t end = b->first + (int64_t)(task + 1) * ROWS_PER_TASK;
    if (end > b->first + b->n)
        end = b->first + b->n;
    for (int64_t row = b->first + (int64_t)task * ROWS_PER_TASK; row < end; row++)
        if (b->level_row_bytes)
            encode_row(b, row, scratch);
        else
            copy_row(b, row, scratch);
}

static void report(const struct writing *w)
{
    if (w->request->progress)
        w->request->progress(w->request->progress_context,
                             (double)w->shards.written / (double)w->shards.total);
}

static enum status write_rows(struct writing *w, struct batch *b, int64_t rows, struct error *error)
{
    enum status status = OK;
    int64_t rows_at_once = (int64_t)(BATCH_BYTES / b->row_bytes) + 1;
    for (b->first = 0; b->first < rows && status == OK; b->first += b->n) {
        b->n = rows - b->first < rows_at_once ? rows - b->first : rows_at_once;
        int n_tasks = (int)((b->n + ROWS_PER_TASK - 1) / ROWS_PER_TASK);
        thread_pool_run(w->pool, batch_task, b, n_tasks);
        status = shard_writer_write(&w->shards, b->codes, (size_t)b->n * b->row_bytes, error);
        report(w);
    }
    return status;
}

/* Every expert's rows; of codes, the levels of all experts stay in memory until they are done. */
static enum status write_experts(struct writing *w, const struct mlx_tensor *tensor,
                                 struct batch *b, struct error *error)
{
    const struct mlx_format *format = &w->checkpoint->made;
    uint8_t *scales = b->scales, *biases = b->biases;
    size_t level_bytes = (size_t)tensor->rows * b->level_row_bytes;
    enum status status = OK;
    for (int64_t e = 0; e < tensor->n && status == OK; e++) {
        struct weight floats;
        mlx_tensor_rows(tensor, e, b->turned, &floats, &b->offset, &b->step);
        b->weight =
            b->level_row_bytes ? weight_quantized(&floats, format->bits, format->group) : floats;
        b->scales = scales + (size_t)e * level_bytes;
        b->biases = biases + (size_t)e * level_bytes;
        status = write_rows(w, b, tensor->rows, error);
        if (!tensor->is_turned && (tensor->singles || e == tensor->n - 1))
            checkpoint_release(w->checkpoint, &floats);
    }
    b->scales = scales;
    b->biases = biases;
    level_bytes *= (size_t)tensor->n;
    if (status == OK && level_bytes)
        status = shard_writer_write(&w->shards, scales, level_bytes, error);
    if (status == OK && level_bytes)
        status = shard_writer_write(&w->shards, biases, level_bytes, error);
    return status;
}

static enum status write_made(struct writing *w, const struct mlx_tensor *tensor,
                              struct error *error)
{
    bool is_quantized = tensor->way == MLX_QUANTIZED;
    const struct mlx_format *format = &w->checkpoint->made;
    size_t cols = (size_t)tensor->cols, groups = cols / (size_t)format->group;
    size_t element = (size_t)element_bytes(tensor);
    struct batch b = {.is_norm = tensor->is_norm,
                      .row_bytes = is_quantized ? cols * (size_t)format->bits / 8 : cols * element,
                      .level_row_bytes = is_quantized ? groups * element : 0};
    size_t level_bytes = (size_t)(tensor->n * tensor->rows) * b.level_row_bytes;
    size_t turned_bytes = tensor->is_turned ? (size_t)tensor->rows * cols * element : 0;
    b.scratch_bytes =
        ((is_quantized ? 2 * groups * sizeof(float) : 0) + cols * sizeof(float) + 63) / 64 * 64;
    b.codes = malloc(BATCH_BYTES + b.row_bytes);
    b.scales = malloc(level_bytes + 1);
    b.biases = malloc(level_bytes + 1);
    b.turned = malloc(turned_bytes + 1);
    b.scratch = malloc(b.scratch_bytes * (size_t)thread_pool_size(w->pool));
    enum status status = b.codes && b.scales && b.biases && b.turned && b.scratch
                             ? write_experts(w, tensor, &b, error)
                             : error_memory(error, BATCH_BYTES + 2 * level_bytes + turned_bytes);
    free(b.codes);
    free(b.scales);
    free(b.biases);
    free(b.turned);
    free(b.scratch);
    return status;
}

static enum status write_tensor(struct writing *w, const struct mlx_tensor *tensor,
                                struct error *error)
{
    if (tensor->way != MLX_COPIED)
        return write_made(w, tensor, error);
    return shard_writer_write(&w->shards, tensor->source->data, tensor->source->bytes, error);
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
    const struct mlx_layout *layout = &w->layout;
    enum status status = mlx_layout_make(w->checkpoint, w->is_tied, &w->layout, error);
    w->shards = (struct shard_writer){.folder = folder, .shard_bytes = w->request->shard_bytes};
    for (size_t i = 0; i < layout->n && status == OK; i++)
        status = list_tensor(w, &layout->items[i], error);
    for (size_t i = 0; i < layout->n && status == OK; i++)
        status = write_tensor(w, &layout->items[i], error);
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
    mlx_layout_done(&w.layout);
    thread_pool_free(w.pool);
    str_done(&folder);
    return status;
}
