#include "models/loader.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NAME = 256 };

void loader_share(const struct comm *comm, int32_t n, int32_t unit, int32_t *first, int32_t *count)
{
    if (unit < 1)
        unit = 1;
    int64_t units = n / unit, rank = comm->rank, ranks = comm->n_ranks;
    int64_t begin = rank * units / ranks, end = (rank + 1) * units / ranks;
    if (end == begin)
        end = begin + 1; /* more ranks than units: this rank holds a copy */
    *first = (int32_t)(begin * unit);
    *count = (int32_t)((end - begin) * unit);
}

static void report(struct loader *l)
{
    if (l->progress && !l->is_counting && l->total_bytes)
        l->progress(l->progress_context, (double)l->bytes / (double)l->total_bytes);
}

/* Otherwise than for counting, the weight can be read and is to be released. */
static enum status find(const struct loader *l, const char *name, const char *suffix, int64_t rows,
                        int64_t cols, struct weight *out, struct error *error)
{
    char full[MAX_NAME];
    snprintf(full, sizeof full, "%s%s", name, suffix);
    enum status status = checkpoint_weight(l->checkpoint, full, out, error);
    if (status != OK)
        return status;
    if (out->rows != rows || out->cols != cols)
        return error_set(error, ERROR_INVALID,
                         "%s: weight %s is [%lld, %lld]; the configuration makes it [%lld, %lld]",
                         checkpoint_path(l->checkpoint), full, (long long)out->rows,
                         (long long)out->cols, (long long)rows, (long long)cols);
    return l->is_counting ? OK : checkpoint_unpack(l->checkpoint, full, out, error);
}

/* Fills the slice of this rank. Its bias, if any, is read into a new array that the caller frees.
 */
static enum status slice_part(struct loader *l, const struct linear_part *part, enum shard shard,
                              struct weight_slice *out, float **bias, struct error *error)
{
    *bias = NULL;
    *out = (struct weight_slice){0};
    enum status status =
        find(l, part->name, ".weight", part->n_out, part->n_in, &out->weight, error);
    if (status != OK)
        return status;
    int32_t row = 0, rows = part->n_out, col = 0, cols = part->n_in;
    if (shard == SHARD_COLUMNS)
        loader_share(l->comm, part->n_out, part->unit, &row, &rows);
    else if (shard == SHARD_ROWS)
        loader_share(l->comm, part->n_in, part->unit, &col, &cols);
    int block = weight_shape(&out->weight).block;
    if (col % block || ((col + cols) % block && col + cols != part->n_in))
        return error_set(error, ERROR_UNSUPPORTED,
                         "%s: weight %s cannot be split over %d ranks: %d columns from %d are not "
                         "whole blocks of %d; use fewer ranks",
                         checkpoint_path(l->checkpoint), part->name, l->comm->n_ranks, (int)cols,
                         (int)col, block);
    if (out->weight.order && l->comm->n_ranks > 1 && shard == SHARD_ROWS)
        return error_set(
            error, ERROR_UNSUPPORTED,
            "%s: weight %s has its inputs in an order of its own (desc_act) and cannot "
            "be split over %d ranks; use 1",
            checkpoint_path(l->checkpoint), part->name, l->comm->n_ranks);
    out->row = row;
    out->rows = rows;
    out->col = col;
    out->cols = cols;
    /* The bias of a row-parallel linear is added once, by rank 0. */
    if (!part->has_bias || (shard == SHARD_ROWS && l->comm->rank != 0))
        return OK;
    struct weight w;
    status = find(l, part->name, ".bias", 1, part->n_out, &w, error);
    if (status != OK || l->is_counting)
        return status;
    *bias = malloc((size_t)part->n_out * sizeof **bias);
    if (!*bias)
        return error_memory(error, (size_t)part->n_out * sizeof **bias);
    weight_row_dequantize(&w, 0, *bias);
    out->bias = *bias + row;
    return OK;
}

/* Appends `item` to a growing array of pointers that the model owns. */
static bool keep(void *array_pointer, int32_t *n, void *item)
{
    void ***array = array_pointer;
    void **grown = realloc(*array, (size_t)(*n + 1) * sizeof *grown);
    if (!grown)
        return false;
    grown[(*n)++] = item;
    *array = grown;
    return true;
}

/* Makes one linear of slices that take their inputs in one order. */
static enum status load_slices(struct loader *l, const struct weight_slice *slices, int n_slices,
                               struct linear **out, struct error *error)
{
    enum status status =
        l->device->table->linear_load(l->device, slices, n_slices, l->max_rows, out, error);
    if (status != OK)
        return status;
    if (!keep(&l->model->linears, &l->model->n_linears, *out)) {
        l->device->table->linear_free(l->device, *out);
        return error_memory(error, sizeof(void *));
    }
    return OK;
}

static bool has_same_order(const struct weight *a, const struct weight *b)
{
    if (!a->order || !b->order || a->cols != b->cols)
        return a->order == b->order;
    return memcmp(a->order, b->order, (size_t)a->cols * sizeof *a->order) == 0;
}

/* Parts that take their inputs in different orders become linears of their own. */
static enum status load_parts(struct loader *l, const struct weight_slice *slices, int n_parts,
                              struct linear_layer *out, struct error *error)
{
    int32_t first_out = 0;
    for (int first = 0, end; first < n_parts; first = end) {
        int32_t rows = 0;
        for (end = first; end < n_parts; end++) {
            if (!has_same_order(&slices[first].weight, &slices[end].weight))
                break;
            rows += (int32_t)slices[end].rows;
        }
        struct linear *linear;
        enum status status = load_slices(l, slices + first, end - first, &linear, error);
        if (status != OK)
            return status;
        if (first == 0)
            out->weights = linear;
        else
            out->others[out->n_others++] = (struct linear_rest){linear, first_out, rows};
        first_out += rows;
    }
    return OK;
}

enum status loader_linear(struct loader *l, const struct linear_part *parts, int n_parts,
                          enum shard shard, struct linear_layer *out, struct error *error)
{
    struct weight_slice slices[LINEAR_MAX_PARTS] = {0};
    float *biases[LINEAR_MAX_PARTS] = {0};
    enum status status = OK;
    *out = (struct linear_layer){.shard = shard};
    for (int i = 0; i < n_parts && status == OK; i++) {
        status = slice_part(l, &parts[i], shard, &slices[i], &biases[i], error);
        out->n_out += (int32_t)slices[i].rows;
    }
    if (status == OK)
        l->bytes += l->device->table->linear_bytes(l->device, slices, n_parts);
    if (status == OK && !l->is_counting)
        status = load_parts(l, slices, n_parts, out, error);
    for (int i = 0; i < n_parts; i++) {
        if (!l->is_counting && slices[i].weight.data)
            checkpoint_release(l->checkpoint, &slices[i].weight);
        free(biases[i]);
    }
    if (status == OK)
        report(l);
    return status;
}

enum status loader_constant(struct loader *l, const float *values, int32_t n, struct tensor *out,
                            struct error *error)
{
    *out = (struct tensor){.dtype = DTYPE_F32, .rows = 1, .cols = n, .stride = n};
    l->bytes += (size_t)n * sizeof(float);
    if (l->is_counting)
        return OK;
    struct buffer *buffer = calloc(1, sizeof *buffer);
    if (!buffer)
        return error_memory(error, sizeof *buffer);
    enum status status =
        l->device->table->buffer_alloc(l->device, (size_t)n * sizeof(float), buffer, error);
    if (status != OK) {
        free(buffer);
        return status;
    }
    if (!keep(&l->model->buffers, &l->model->n_buffers, buffer)) {
        l->device->table->buffer_free(l->device, buffer);
        free(buffer);
        return error_memory(error, sizeof(void *));
    }
    out->buffer = buffer;
    for (int32_t i = 0; i < n; i++)
        ((float *)buffer->host)[i] = values[i];
    return OK;
}

enum status loader_vector(struct loader *l, const char *name, int32_t n, struct tensor *out,
                          struct error *error)
{
    struct weight w;
    enum status status = find(l, name, "", 1, n, &w, error);
    if (status != OK || l->is_counting)
        return status != OK ? status : loader_constant(l, NULL, n, out, error);
    float *values = malloc((size_t)n * sizeof *values);
    if (!values)
        return error_memory(error, (size_t)n * sizeof *values);
    weight_row_dequantize(&w, 0, values);
    checkpoint_release(l->checkpoint, &w);
    status = loader_constant(l, values, n, out, error);
    free(values);
    return status;
}

enum status loader_norm(struct loader *l, const char *name, int32_t n, float eps,
                        struct norm_layer *out, struct error *error)
{
    out->eps = eps;
    return loader_vector(l, name, n, &out->weight, error);
}

enum status loader_embedding(struct loader *l, const char *name, int32_t n_rows, int32_t n_cols,
                             struct embedding **out, struct error *error)
{
    struct weight w;
    enum status status = find(l, name, "", n_rows, n_cols, &w, error);
    if (status == OK && (w.is_packed || w.unpacked)) { /* rows are read from the file */
        checkpoint_release(l->checkpoint, &w);
        return error_set(error, ERROR_UNSUPPORTED,
                         "%s: %s is quantized by columns, which embeddings cannot be",
                         checkpoint_path(l->checkpoint), name);
    }
    if (status != OK || l->is_counting)
        return status;
    status = l->device->table->embedding_load(l->device, &w, out, error);
    if (status == OK && !keep(&l->model->embeddings, &l->model->n_embeddings, *out)) {
        l->device->table->embedding_free(l->device, *out);
        status = error_memory(error, sizeof(void *));
    }
    return status;
}
