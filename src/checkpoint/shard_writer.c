#include "checkpoint/shard_writer.h"

#include "base/file.h"
#include "base/json.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static enum status failed(const char *path, struct error *error)
{
    return error_set(error, ERROR_IO, "%s cannot be written: %s", path, strerror(errno));
}

enum status shard_writer_add(struct shard_writer *w, const struct shard_tensor *tensor,
                             struct error *error)
{
    if (w->n == w->cap) {
        size_t cap = w->cap ? 2 * w->cap : 64;
        struct shard_tensor *grown = realloc(w->tensors, cap * sizeof *grown);
        if (!grown)
            return error_memory(error, cap * sizeof *grown);
        w->tensors = grown;
        w->cap = cap;
    }
    if (w->n_shards == 0 || (w->filled > 0 && tensor->bytes > w->shard_bytes - w->filled)) {
        w->n_shards++;
        w->filled = 0;
    }
    w->tensors[w->n] = *tensor;
    w->tensors[w->n++].shard = w->n_shards - 1;
    w->filled =
        w->filled + tensor->bytes < w->shard_bytes ? w->filled + tensor->bytes : w->shard_bytes;
    w->total += tensor->bytes;
    return OK;
}

static void shard_name(struct str *out, const struct shard_writer *w, int shard)
{
    if (w->n_shards == 1)
        str_append_z(out, "model.safetensors");
    else
        str_printf(out, "model-%05d-of-%05d.safetensors", shard + 1, w->n_shards);
}

/* The header of one file: its length, JSON padded with blanks to whole words. */
static void write_header(struct str *out, const struct shard_writer *w, int shard)
{
    uint64_t at = 0;
    str_append_z(out, "{\"__metadata__\": {\"format\": \"mlx\"}");
    for (size_t i = 0; i < w->n; i++) {
        const struct shard_tensor *tensor = &w->tensors[i];
        if (tensor->shard != shard)
            continue;
        str_append_z(out, ", ");
        json_write_string(out, tensor->name, strlen(tensor->name));
        str_printf(out, ": {\"dtype\": \"%s\", \"shape\": [", tensor->dtype);
        for (int d = 0; d < tensor->n_dims; d++)
            str_printf(out, "%s%lld", d ? ", " : "", (long long)tensor->dims[d]);
        str_printf(out, "], \"data_offsets\": [%llu, %llu]}", (unsigned long long)at,
                   (unsigned long long)(at + tensor->bytes));
        at += tensor->bytes;
    }
    str_append_char(out, '}');
    while (out->len % 8)
        str_append_char(out, ' ');
}

static enum status close_file(struct shard_writer *w, struct error *error)
{
    FILE *file = w->file;
    w->file = NULL;
    if (!file)
        return OK;
    bool is_written = fflush(file) == 0 && fsync(fileno(file)) == 0;
    if (fclose(file) != 0 || !is_written)
        return failed(w->folder, error);
    return OK;
}

static enum status open_shard(struct shard_writer *w, int shard, struct error *error)
{
    struct str name = {0}, path = {0}, header = {0};
    enum status status = close_file(w, error);
    if (status != OK)
        return status;
    shard_name(&name, w, shard);
    path_join(&path, w->folder, str_z(&name));
    write_header(&header, w, shard);
    uint8_t length[8];
    for (int i = 0; i < 8; i++)
        length[i] = (uint8_t)((uint64_t)header.len >> 8 * i);
    if (name.failed || path.failed || header.failed)
        status = error_memory(error, header.len);
    else if (!(w->file = fopen(str_z(&path), "wb")) ||
             fwrite(length, 1, sizeof length, w->file) != sizeof length ||
             fwrite(header.data, 1, header.len, w->file) != header.len)
        status = failed(str_z(&path), error);
    str_done(&name);
    str_done(&path);
    str_done(&header);
    return status;
}

enum status shard_writer_write(struct shard_writer *w, const void *data, size_t bytes,
                               struct error *error)
{
    assert(w->current < w->n);
    const struct shard_tensor *tensor = &w->tensors[w->current];
    bool is_first = w->current == 0 || w->tensors[w->current - 1].shard != tensor->shard;
    if (w->current_done == 0 && is_first) {
        enum status status = open_shard(w, tensor->shard, error);
        if (status != OK)
            return status;
    }
    assert(bytes <= tensor->bytes - w->current_done);
    if (fwrite(data, 1, bytes, w->file) != bytes)
        return failed(w->folder, error);
    w->current_done += bytes;
    w->written += bytes;
    if (w->current_done == tensor->bytes) {
        w->current++;
        w->current_done = 0;
    }
    return OK;
}

static enum status write_index(const struct shard_writer *w, struct error *error)
{
    struct str text = {0}, name = {0};
    str_printf(&text, "{\"metadata\": {\"total_size\": %llu}, \"weight_map\": {",
               (unsigned long long)w->total);
    for (size_t i = 0; i < w->n; i++) {
        str_append_z(&text, i ? ",\n" : "\n");
        json_write_string(&text, w->tensors[i].name, strlen(w->tensors[i].name));
        str_append_z(&text, ": ");
        str_clear(&name);
        shard_name(&name, w, w->tensors[i].shard);
        json_write_string(&text, str_z(&name), name.len);
    }
    str_append_z(&text, "}}\n");
    enum status status = text.failed || name.failed
                             ? error_memory(error, text.len)
                             : folder_write_file(w->folder, "model.safetensors.index.json",
                                                 text.data, text.len, error);
    str_done(&text);
    str_done(&name);
    return status;
}

enum status shard_writer_finish(struct shard_writer *w, struct error *error)
{
    assert(w->current == w->n && w->written == w->total);
    enum status status = close_file(w, error);
    return status == OK && w->n_shards > 1 ? write_index(w, error) : status;
}

void shard_writer_done(struct shard_writer *w)
{
    if (w->file)
        fclose(w->file);
    free(w->tensors);
    *w = (struct shard_writer){0};
}

enum status folder_write_file(const char *folder, const char *name, const char *data, size_t bytes,
                              struct error *error)
{
    struct str path = {0};
    path_join(&path, folder, name);
    enum status status = OK;
    FILE *file = path.failed ? NULL : fopen(str_z(&path), "wb");
    bool is_written = file && fwrite(data, 1, bytes, file) == bytes && fflush(file) == 0 &&
                      fsync(fileno(file)) == 0;
    if (!is_written)
        status = failed(str_z(&path), error);
    if (file && fclose(file) != 0 && status == OK)
        status = failed(str_z(&path), error);
    str_done(&path);
    return status;
}
