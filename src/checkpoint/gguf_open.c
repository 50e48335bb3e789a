/* A GGUF model on disk: one file, or the files of a split one, of which the first carries the
 * metadata of all. Knows no key of the model itself. Split keys and names are llama.cpp's and the
 * public `gguf` package's. */
#include "checkpoint/checkpoint_struct.h"
#include "checkpoint/gguf_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "-00001-of-00003.gguf" */
enum { SPLIT_SUFFIX_BYTES = 20 };

/* Configuration and vocabulary from the first file's keys and the tensors of all files. */
static enum status read_metadata(struct checkpoint *c, const struct gguf *gguf, struct error *error)
{
    struct str config = {0}, generation = {0};
    enum status status;
    if ((status = gguf_set_rope_order(gguf, &c->tensors, error)) != OK ||
        (status = gguf_config(gguf, &c->tensors, &config, error)) != OK ||
        (status = gguf_generation_config(gguf, &generation, error)) != OK ||
        (status = gguf_vocab(gguf, &c->arena, &c->vocab, error)) != OK ||
        (status = config_parse(c, "its metadata", str_z(&config), config.len, &c->config, error)) !=
            OK)
        goto out;
    status = config_parse(c, "its metadata", str_z(&generation), generation.len,
                          &c->generation_config, error);
out:
    str_done(&config);
    str_done(&generation);
    return status;
}

/* What a file says of the split that it is part of. */
struct split {
    int64_t no, count, n_tensors;
};

/* Files without split.count are whole: number 0 of 1. */
static enum status read_split(const struct gguf *gguf, struct split *out, struct error *error)
{
    *out = (struct split){.count = 1};
    const struct gguf_value *count = gguf_find(gguf, "split.count");
    if (!count)
        return OK;
    if (!gguf_int(count, 0, &out->count) || out->count < 0 || out->count > CHECKPOINT_FILES_MAX)
        return error_set(error, ERROR_INVALID, "split.count is not a number of files up to %d",
                         CHECKPOINT_FILES_MAX);
    if (out->count < 2)
        return OK;
    if (!gguf_int(gguf_find(gguf, "split.no"), 0, &out->no) || out->no < 0 || out->no >= out->count)
        return error_set(error, ERROR_INVALID, "split.no is not a number below split.count (%lld)",
                         (long long)out->count);
    if (!gguf_int(gguf_find(gguf, "split.tensors.count"), 0, &out->n_tensors) || out->n_tensors < 0)
        return error_set(error, ERROR_INVALID, "split.tensors.count is not a number of tensors");
    return OK;
}

enum status checkpoint_read_gguf(struct checkpoint *c, const uint8_t *data, uint64_t bytes,
                                 struct error *error)
{
    struct gguf gguf = {0};
    struct split split;
    c->is_gguf = true;
    enum status status = gguf_parse(&gguf, &c->tensors, data, bytes, 0, error);
    if (status == OK)
        status = read_split(&gguf, &split, error);
    if (status == OK && split.count > 1)
        status = error_set(error, ERROR_INVALID,
                           "it is file %lld of the %lld of a split GGUF; name it "
                           "NAME-%05lld-of-%05lld.gguf with the others beside it",
                           (long long)split.no + 1, (long long)split.count, (long long)split.no + 1,
                           (long long)split.count);
    if (status == OK)
        status = read_metadata(c, &gguf, error);
    gguf_done(&gguf);
    return status;
}

/* Five digits as a number, or -1. */
static int five_digits(const char *text)
{
    int value = 0;
    for (int i = 0; i < 5; i++) {
        if (text[i] < '0' || text[i] > '9')
            return -1;
        value = value * 10 + (text[i] - '0');
    }
    return value;
}

/* How many files this one's name says the model has; 0 for any other name. */
static int count_in_name(const char *path)
{
    size_t n = strlen(path);
    if (n < SPLIT_SUFFIX_BYTES)
        return 0;
    const char *suffix = path + n - SPLIT_SUFFIX_BYTES;
    int no = five_digits(suffix + 1), count = five_digits(suffix + 10);
    bool is_split = suffix[0] == '-' && no >= 1 && memcmp(suffix + 6, "-of-", 4) == 0 &&
                    no <= count && strcmp(suffix + 15, ".gguf") == 0;
    return is_split ? count : 0;
}

/* The path of file `no` (from 0) of `count`. */
static void part_path(struct str *out, const char *path, int no, int count)
{
    char suffix[SPLIT_SUFFIX_BYTES + 1];
    snprintf(suffix, sizeof suffix, "-%05d-of-%05d.gguf", (no + 1) % 100000, count % 100000);
    str_clear(out);
    str_append(out, path, strlen(path) - SPLIT_SUFFIX_BYTES);
    str_append_z(out, suffix);
}

/* Maps file `no` at `path` and lists its tensors; its keys are in `gguf`. */
static enum status add_part(struct checkpoint *c, const char *path, int no, int count,
                            struct gguf *gguf, struct split *split, struct error *error)
{
    struct file_map *map = &c->files[no];
    enum status status = file_map_open(map, path, error);
    if (status != OK)
        return status;
    c->n_files++;
    status = gguf_parse(gguf, &c->tensors, map->data, map->bytes, no, error);
    if (status == OK)
        status = read_split(gguf, split, error);
    if (status == OK && (split->count != count || split->no != no))
        status = error_set(error, ERROR_INVALID,
                           "its name says file %d of %d, its metadata file %lld of %lld", no + 1,
                           count, (long long)split->no + 1, (long long)split->count);
    if (status != OK)
        error_prefix(error, "%s", path);
    return status;
}

static enum status open_parts(struct checkpoint *c, int count, struct error *error)
{
    struct str path = {0};
    struct gguf first = {0}, other = {0};
    struct split whole, split;
    enum status status = OK;
    c->is_gguf = true;
    for (int no = 0; no < count && status == OK; no++) {
        part_path(&path, c->path, no, count);
        if (path.failed)
            status = error_memory(error, path.len);
        else if (!file_exists(str_z(&path)))
            status = error_set(error, ERROR_NOT_FOUND,
                               "%s is one of the %d files of a split GGUF, of which %s is missing",
                               c->path, count, str_z(&path));
        else
            status = no == 0 ? add_part(c, str_z(&path), no, count, &first, &whole, error)
                             : add_part(c, str_z(&path), no, count, &other, &split, error);
        gguf_done(&other);
    }
    if (status == OK) {
        part_path(&path, c->path, 0, count);
        if ((uint64_t)whole.n_tensors != c->tensors.n)
            status = error_set(error, ERROR_INVALID,
                               "split.tensors.count says %lld, but its %d files hold %zu tensors",
                               (long long)whole.n_tensors, count, c->tensors.n);
        else
            status = read_metadata(c, &first, error);
        if (status != OK)
            error_prefix(error, "%s", str_z(&path));
    }
    gguf_done(&first);
    str_done(&path);
    return status;
}

static enum status open_single(struct checkpoint *c, struct error *error)
{
    enum status status = file_map_open(c->files, c->path, error);
    if (status != OK)
        return status;
    c->n_files = 1;
    const uint8_t *data = c->files->data;
    uint64_t bytes = c->files->bytes;
    size_t n = strlen(c->path);
    bool is_named_safetensors = n > 12 && strcmp(c->path + n - 12, ".safetensors") == 0;
    if (is_named_safetensors && (bytes < 4 || memcmp(data, "GGUF", 4) != 0))
        return error_set(error, ERROR_INVALID,
                         "%s: csgl reads safetensors with the config.json beside them; give the "
                         "folder instead",
                         c->path);
    status = checkpoint_read_gguf(c, data, bytes, error);
    if (status != OK)
        error_prefix(error, "%s", c->path);
    return status;
}

enum status gguf_open(struct checkpoint *c, struct error *error)
{
    int count = count_in_name(c->path);
    if (count > CHECKPOINT_FILES_MAX)
        return error_set(error, ERROR_LIMIT, "%s: a model of %d files; the limit is %d", c->path,
                         count, CHECKPOINT_FILES_MAX);
    c->files = calloc((size_t)(count > 1 ? count : 1), sizeof *c->files);
    if (!c->files)
        return error_memory(error, (size_t)count * sizeof *c->files);
    return count > 1 ? open_parts(c, count, error) : open_single(c, error);
}
