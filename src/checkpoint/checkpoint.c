/* Opens either format and answers for its weights by Hugging Face's names. */
#include "checkpoint/checkpoint.h"

#include "checkpoint/checkpoint_struct.h"
#include "checkpoint/gguf_model.h"
#include "checkpoint/mxfp4.h"

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
    random_weights_free(c->random);
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
        const char *type = json_string(json_get(&c->config, "model_type"));
        gguf_huggingface_name(out, type ? type : "", tensor->name);
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

/* The folder that the file `path` lies in. */
static char *parent_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    if (!slash)
        return strdup(".");
    return strndup(path, slash == path ? 1 : (size_t)(slash - path));
}

int checkpoint_quantization_word(const char *text)
{
    static const char *const words[] = {"none", "mlx_q4", "mlx_q8"};
    for (int i = 0; i < 3; i++)
        if (strcmp(words[i], text) == 0)
            return i;
    return -1;
}

/* Gives the checkpoint its weights if its configuration was read (`status`), and hands it out; else
 * frees it. MLX's codes take the place of floats, as with a file's. */
static enum status add_random(struct checkpoint **out, struct checkpoint *c, enum status status,
                              const char *encoding, struct error *error)
{
    int word = checkpoint_quantization_word(encoding);
    if (status == OK)
        status = random_weights_new(&c->random, word < 0 ? encoding : "bf16", error);
    if (status == OK && word > 0)
        status = checkpoint_quantize_as(c, word, error);
    if (status == OK)
        *out = c;
    else
        checkpoint_free(c);
    return status;
}

enum status checkpoint_open_random(struct checkpoint **out, const char *path, const char *encoding,
                                   struct error *error)
{
    *out = NULL;
    char *folder = file_is_directory(path) ? strdup(path) : parent_of(path);
    struct checkpoint *c = folder ? checkpoint_new(folder) : NULL;
    free(folder);
    if (!c)
        return error_memory(error, sizeof *c);
    return add_random(out, c, folder_open_config(c, path, error), encoding, error);
}

enum status checkpoint_parse_random(struct checkpoint **out, const char *name, const char *text,
                                    size_t bytes, const char *encoding, struct error *error)
{
    *out = NULL;
    struct checkpoint *c = checkpoint_new(name);
    if (!c)
        return error_memory(error, sizeof *c);
    c->generation_config.type = JT_OBJECT;
    enum status status = config_parse(c, name, text, bytes, &c->config, error);
    return add_random(out, c, status, encoding, error);
}

bool checkpoint_is_random(const struct checkpoint *c)
{
    return c->random != NULL;
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

static const struct tensor *find_bytes(const struct checkpoint *c, const char *name, size_t len)
{
    uint64_t index;
    return map_get(&c->names, name, len, &index) ? &c->tensors.items[index] : NULL;
}

static const struct tensor *find(const struct checkpoint *c, const char *name)
{
    return find_bytes(c, name, strlen(name));
}

/* The tensor beside "X.weight" that is named "X" and `suffix`, or NULL; `stem` is the length of
 * "X". */
static enum status find_sibling(const struct checkpoint *c, const char *name, size_t stem,
                                const char *suffix, const struct tensor **out, struct error *error)
{
    struct str sibling = {0};
    str_append(&sibling, name, stem);
    str_append_z(&sibling, suffix);
    enum status status = sibling.failed ? error_memory(error, stem) : OK;
    *out = status == OK ? find_bytes(c, str_z(&sibling), sibling.len) : NULL;
    str_done(&sibling);
    return status;
}

/* The tensors beside "X.weight" that make it an MLX weight; `scales` is NULL if it is none. */
static enum status find_levels(const struct checkpoint *c, const char *name,
                               const struct tensor **scales, const struct tensor **biases,
                               struct error *error)
{
    static const char suffix[] = ".weight";
    size_t len = strlen(name), stem = len - (sizeof suffix - 1);
    const struct tensor *global = NULL;
    *scales = *biases = NULL;
    if (c->is_gguf || len < sizeof suffix || strcmp(name + stem, suffix) != 0)
        return OK;
    enum status status = find_sibling(c, name, stem, ".scales", scales, error);
    if (status == OK && *scales)
        status = find_sibling(c, name, stem, ".biases", biases, error);
    if (status == OK && *scales)
        status = find_sibling(c, name, stem, ".global_scale", &global, error);
    if (status == OK && global)
        status = error_set(error, ERROR_UNSUPPORTED,
                           "%s: %.200s is a scale beside scales, which this version does not "
                           "support; convert the model without it",
                           c->path, global->name);
    return status;
}

/* The module's name is the tensor's, as in the file, without ".weight". */
static enum status read_mlx(const struct checkpoint *c, const struct tensor *codes,
                            const struct tensor *scales, const struct tensor *biases,
                            struct weight *out, struct error *error)
{
    struct str path = {0};
    str_append(&path, codes->name, codes->name_len - strlen(".weight"));
    enum status status = path.failed
                             ? error_memory(error, codes->name_len)
                             : mlx_weight(&c->mlx, str_z(&path), codes, scales, biases, out, error);
    if (status != OK)
        error_prefix(error, "%s", c->path);
    str_done(&path);
    return status;
}

/* The tensors of the module "X" of "X.weight", and its name as in the file, if it is quantized by
 * one of the methods of quantized.h. */
static bool find_quantized(const struct checkpoint *c, const char *name,
                           struct quantized_parts *parts, struct str *path)
{
    static const char suffix[] = "weight";
    const char *const *endings = quantized_endings(c->quantization.method);
    const struct tensor *found[N_QUANTIZED_PARTS] = {0};
    size_t len = strlen(name), stem = len - (sizeof suffix - 1);
    if (c->quantization.method == QUANTIZED_NOT || len <= sizeof suffix ||
        strcmp(name + stem, suffix) != 0 || name[stem - 1] != '.')
        return false;
    struct str sibling = {0};
    for (int i = 0; i < N_QUANTIZED_PARTS; i++) {
        if (!endings[i])
            continue;
        str_clear(&sibling);
        str_append(&sibling, name, stem);
        str_append_z(&sibling, endings[i]);
        found[i] = find_bytes(c, str_z(&sibling), sibling.len);
    }
    memcpy(parts, found, sizeof found);
    bool is_quantized = !sibling.failed && quantized_is(&c->quantization, parts);
    str_done(&sibling);
    if (is_quantized)
        str_append(path, name, stem - 1);
    return is_quantized;
}

/* The two tensors of the mxfp4 weight `name`; false if it is none. */
static bool find_mxfp4(const struct checkpoint *c, const char *name, const struct tensor **blocks,
                       const struct tensor **scales)
{
    if (!c->is_mxfp4)
        return false;
    struct str full = {0};
    str_printf(&full, "%s" MXFP4_BLOCKS, name);
    *blocks = find_bytes(c, str_z(&full), full.len);
    str_clear(&full);
    str_printf(&full, "%s" MXFP4_SCALES, name);
    *scales = find_bytes(c, str_z(&full), full.len);
    bool found = !full.failed && *blocks && *scales;
    str_done(&full);
    return found;
}

bool checkpoint_has(const struct checkpoint *c, const char *name)
{
    struct quantized_parts parts;
    struct str path = {0};
    const struct tensor *blocks, *scales;
    if (c->random)
        return random_weights_has(&c->config, name);
    bool has = find(c, name) || find_mxfp4(c, name, &blocks, &scales) ||
               find_quantized(c, name, &parts, &path);
    str_done(&path);
    return has;
}

/* What `read` (quantized_weight or quantized_unpack) makes of the module. */
static enum status read_quantized(const struct checkpoint *c, const struct quantized_parts *parts,
                                  struct str *path,
                                  enum status (*read)(const struct quantization *quantization,
                                                      const char *path,
                                                      const struct quantized_parts *parts,
                                                      struct weight *out, struct error *error),
                                  struct weight *out, struct error *error)
{
    enum status status = path->failed ? error_memory(error, path->len)
                                      : read(&c->quantization, str_z(path), parts, out, error);
    if (status != OK)
        error_prefix(error, "%s", c->path);
    str_done(path);
    return status;
}

static void release_bytes(const struct checkpoint *c, const uint8_t *data, uint64_t bytes)
{
    if (c->random)
        random_weights_release(c->random, data);
    for (size_t i = 0; i < c->n_files; i++) {
        const struct file_map *map = &c->files[i];
        uintptr_t start = (uintptr_t)map->data, at = (uintptr_t)data;
        if (map->data && at >= start && at - start < map->bytes)
            file_map_release(map, at - start, bytes);
    }
}

enum status checkpoint_unpack(const struct checkpoint *c, const char *name, struct weight *weight,
                              struct error *error)
{
    struct quantized_parts parts;
    struct str path = {0};
    if (!weight->is_packed)
        return OK;
    if (!find_quantized(c, name, &parts, &path))
        return error_set(error, ERROR_NOT_FOUND, "%s has no tensor %.200s", c->path, name);
    enum status status = read_quantized(c, &parts, &path, quantized_unpack, weight, error);
    const struct tensor *codes = parts.codes ? parts.codes : parts.plain;
    if (status == OK)
        release_bytes(c, codes->data, codes->bytes);
    return status;
}

enum status checkpoint_weight(const struct checkpoint *c, const char *name, struct weight *out,
                              struct error *error)
{
    const struct tensor *tensor = find(c, name), *blocks, *scales, *biases;
    struct quantized_parts parts;
    struct str path = {0};
    if (find_quantized(c, name, &parts, &path))
        return read_quantized(c, &parts, &path, quantized_weight, out, error);
    if (!tensor && find_mxfp4(c, name, &blocks, &scales)) {
        enum status status = mxfp4_weight(blocks, scales, out, error);
        return status == OK ? OK : error_prefix(error, "%s", c->path);
    }
    if (!tensor)
        return error_set(error, ERROR_NOT_FOUND, "%s has no tensor %.200s", c->path, name);
    if (tensor->rows == 0 || tensor->cols == 0)
        return error_set(error, ERROR_INVALID, "%s: tensor %.200s is empty", c->path, tensor->name);
    enum status status = find_levels(c, name, &scales, &biases, error);
    if (status != OK || scales)
        return status != OK ? status : read_mlx(c, tensor, scales, biases, out, error);
    if (tensor->encoding == ENCODING_UNSUPPORTED)
        return error_set(error, ERROR_UNSUPPORTED,
                         "%s: tensor %.200s has type %s, which this version does not support",
                         c->path, tensor->name, tensor->dtype);
    if (c->made.bits && mlx_make(&c->made, tensor, out))
        return OK;
    *out = (struct weight){.encoding = (enum weight_encoding)tensor->encoding,
                           .rows = tensor->rows,
                           .cols = tensor->cols,
                           .data = tensor->data,
                           .rope_head_dim = tensor->rope_head_dim};
    return OK;
}

static enum status make_random(const struct checkpoint *c, const char *name, int64_t rows,
                               int64_t cols, bool wants_data, struct weight *out,
                               struct error *error)
{
    enum status status = random_weights_make(c->random, name, rows, cols, false, out, error);
    struct tensor floats = {.name = name,
                            .name_len = strlen(name),
                            .rows = rows,
                            .cols = cols,
                            .encoding = (int)out->encoding,
                            .n_dims = 2};
    if (status == OK && c->made.bits)
        mlx_make(&c->made, &floats, out);
    return status == OK && wants_data ? random_weights_fill(c->random, name, out, error) : status;
}

enum status checkpoint_weight_of(const struct checkpoint *c, const char *name, int64_t rows,
                                 int64_t cols, bool wants_data, struct weight *out,
                                 struct error *error)
{
    if (c->random)
        return make_random(c, name, rows, cols, wants_data, out, error);
    enum status status = checkpoint_weight(c, name, out, error);
    if (status != OK)
        return status;
    if (out->rows == rows && out->cols == cols)
        return wants_data ? checkpoint_unpack(c, name, out, error) : OK;
    return error_set(error, ERROR_INVALID,
                     "%s: weight %s is [%lld, %lld]; the configuration makes it [%lld, %lld]",
                     c->path, name, (long long)out->rows, (long long)out->cols, (long long)rows,
                     (long long)cols);
}

enum status checkpoint_quantize(struct checkpoint *c, int32_t bits, int32_t group,
                                struct error *error)
{
    struct mlx_format format = {MLX_AFFINE, bits, group};
    if (!mlx_format_is_possible(&format))
        return error_set(error, ERROR_INVALID,
                         "%d bits in groups of %d; 2, 3, 4, 5, 6 or 8 bits in groups of 32, 64 or "
                         "128 are possible",
                         (int)bits, (int)group);
    if (c->mlx.block || c->quantization.method != QUANTIZED_NOT || c->is_mxfp4)
        return error_set(error, ERROR_INVALID,
                         "%s is quantized already; give the checkpoint that it was made from",
                         c->path);
    for (size_t i = 0; i < c->tensors.n; i++)
        if (c->tensors.items[i].encoding > WEIGHT_BF16)
            return error_set(error, ERROR_INVALID,
                             "%s is quantized already (%.200s is %s); give the checkpoint that it "
                             "was made from",
                             c->path, c->tensors.items[i].name, c->tensors.items[i].dtype);
    c->made = format;
    return OK;
}

void checkpoint_quantize_floats(const struct checkpoint *c, struct weight *w)
{
    if (c->made.bits && weight_is_float(w) && w->rows > 1 && w->cols % c->made.group == 0)
        *w = weight_quantized(w, c->made.bits, c->made.group);
}

enum status checkpoint_quantize_as(struct checkpoint *c, int word, struct error *error)
{
    return word == 0 ? OK : checkpoint_quantize(c, word == 1 ? 4 : 8, 64, error);
}

void checkpoint_release(const struct checkpoint *c, const struct weight *weight)
{
    if (weight->unpacked) {
        free(weight->unpacked);
        return;
    }
    release_bytes(c, weight->data, weight_bytes(weight));
    if (weight->levels.scales)
        release_bytes(c, weight->levels.scales, weight_levels_bytes(weight));
    if (weight->levels.biases)
        release_bytes(c, weight->levels.biases, weight_levels_bytes(weight));
}

enum status checkpoint_vocab(const struct checkpoint *c, struct vocab *out, struct error *error)
{
    if (!c->vocab.tokens)
        return error_set(error, ERROR_NOT_FOUND, "%s has no vocabulary inside", c->path);
    *out = c->vocab;
    return OK;
}
