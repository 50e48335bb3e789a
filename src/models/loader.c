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

void loader_add_bytes(struct loader *l, struct device_bytes bytes)
{
    l->bytes += bytes.own;
    l->workspace = l->workspace > bytes.workspace ? l->workspace : bytes.workspace;
}

static bool has_weight(const struct loader *l, const char *name)
{
    char full[MAX_NAME];
    snprintf(full, sizeof full, "%s.weight", name);
    return checkpoint_has(l->checkpoint, full);
}

bool loader_is_fused(const struct loader *l, const char *part, const char *fused)
{
    return !has_weight(l, part) && has_weight(l, fused);
}

static void report(struct loader *l)
{
    if (l->progress && !l->is_counting && l->total_bytes)
        l->progress(l->progress_context, (double)l->bytes / (double)l->total_bytes);
}

enum status loader_find(const struct loader *l, const char *name, const char *suffix, int64_t rows,
                        int64_t cols, struct weight *out, struct error *error)
{
    char full[MAX_NAME];
    snprintf(full, sizeof full, "%s%s", name, suffix);
    if (l->on_weight)
        l->on_weight(l->visitor_context, full, l->bytes);
    return checkpoint_weight_of(l->checkpoint, full, rows, cols, !l->is_counting, out, error);
}

enum status loader_check_columns(const struct loader *l, const char *name,
                                 const struct weight_slice *slice, struct error *error)
{
    if (slice->weight.has_order && slice->cols != slice->weight.cols)
        return error_set(
            error, ERROR_UNSUPPORTED,
            "%s: weight %s has its inputs in an order of its own (desc_act) and cannot "
            "be split over %d ranks; use 1",
            checkpoint_path(l->checkpoint), name, l->comm->n_ranks);
    int block = weight_shape(&slice->weight).block;
    int64_t end = slice->col + slice->cols;
    if (slice->col % block || (end % block && end != slice->weight.cols))
        return error_set(error, ERROR_UNSUPPORTED,
                         "%s: weight %s cannot be split over %d ranks: %lld columns from %lld are "
                         "not whole blocks of %d; use fewer ranks",
                         checkpoint_path(l->checkpoint), name, l->comm->n_ranks,
                         (long long)slice->cols, (long long)slice->col, block);
    return OK;
}

/* Reads the bias of outputs [first, first + n) into a new array that the caller frees. */
static enum status read_bias(struct loader *l, const struct linear_part *part,
                             const struct stored_rows *stored, int32_t first, int32_t n,
                             float **out, struct error *error)
{
    struct weight w;
    enum status status = loader_find(l, part->name, ".bias", 1, stored->n_stored, &w, error);
    if (status != OK || l->is_counting)
        return status;
    float *all = malloc((size_t)stored->n_stored * sizeof *all);
    *out = malloc((size_t)n * sizeof **out);
    if (!all || !*out) {
        free(all);
        return error_memory(error, (size_t)stored->n_stored * sizeof *all);
    }
    weight_row_dequantize(&w, 0, all);
    checkpoint_release(l->checkpoint, &w);
    for (int32_t i = 0; i < n; i++)
        (*out)[i] = all[row_pattern_at(&stored->pattern, first + i)];
    free(all);
    return OK;
}

/* Fills the slice of this rank. Its bias, if any, is read into a new array that the caller frees.
 */
static enum status slice_part(struct loader *l, const struct linear_part *part,
                              const struct stored_rows *stored, enum shard shard,
                              struct weight_slice *out, float **bias, struct error *error)
{
    *bias = NULL;
    *out = (struct weight_slice){0};
    enum status status =
        loader_find(l, part->name, ".weight", stored->n_stored, part->n_in, &out->weight, error);
    if (status != OK)
        return status;
    int32_t row = 0, rows = part->n_out, col = 0, cols = part->n_in;
    if (shard == SHARD_COLUMNS)
        loader_share(l->comm, part->n_out, part->unit, &row, &rows);
    else if (shard == SHARD_ROWS)
        loader_share(l->comm, part->n_in, part->unit, &col, &cols);
    out->pattern = stored->pattern;
    out->row = row;
    out->rows = rows;
    out->col = col;
    out->cols = cols;
    status = loader_check_columns(l, part->name, out, error);
    if (status != OK)
        return status;
    /* The bias of a row-parallel linear is added once, by rank 0. */
    if (!part->has_bias || (shard == SHARD_ROWS && l->comm->rank != 0))
        return OK;
    status = read_bias(l, part, stored, row, rows, bias, error);
    out->bias = *bias;
    return status;
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

bool loader_is_same_order(const struct weight *a, const struct weight *b)
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
            if (!loader_is_same_order(&slices[first].weight, &slices[end].weight))
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

static bool reads_in_place(const struct loader *l, const struct weight_slice *slice)
{
    const struct device_table *table = l->device->table;
    return table->reads_in_place && table->reads_in_place(l->device, slice);
}

/* A head that reads the embedding's own bytes takes no others. */
static void count_slices(struct loader *l, const struct weight_slice *slices, int n_slices)
{
    loader_add_bytes(l, l->device->table->linear_bytes(l->device, slices, n_slices, l->max_rows));
    for (int i = 0; i < n_slices; i++)
        if (slices[i].weight.data == l->table && reads_in_place(l, &slices[i]))
            l->bytes -= l->device->table->linear_bytes(l->device, &slices[i], 1, l->max_rows).own;
}

/* Nothing will read the weight's bytes again but a device that reads them in place. */
static void release_slice(const struct loader *l, const struct weight_slice *slice)
{
    if (!l->is_counting && slice->weight.data && !reads_in_place(l, slice))
        checkpoint_release(l->checkpoint, &slice->weight);
}

/* `stored` is NULL for parts that are whole weights. */
static enum status load_linear(struct loader *l, const struct linear_part *parts,
                               const struct stored_rows *stored, int n_parts, enum shard shard,
                               bool keeps_f32, struct linear_layer *out, struct error *error)
{
    struct weight_slice slices[LINEAR_MAX_PARTS] = {0};
    float *biases[LINEAR_MAX_PARTS] = {0};
    enum status status = OK;
    *out = (struct linear_layer){.shard = shard};
    for (int i = 0; i < n_parts && status == OK; i++) {
        struct stored_rows whole = {.n_stored = parts[i].n_out};
        status = slice_part(l, &parts[i], stored ? &stored[i] : &whole, shard, &slices[i],
                            &biases[i], error);
        slices[i].keeps_f32 = keeps_f32;
        out->n_out += (int32_t)slices[i].rows;
    }
    if (status == OK)
        count_slices(l, slices, n_parts);
    if (status == OK && !l->is_counting)
        status = load_parts(l, slices, n_parts, out, error);
    for (int i = 0; i < n_parts; i++) {
        release_slice(l, &slices[i]);
        free(biases[i]);
    }
    if (status == OK)
        report(l);
    return status;
}

enum status loader_linear(struct loader *l, const struct linear_part *parts, int n_parts,
                          enum shard shard, struct linear_layer *out, struct error *error)
{
    return load_linear(l, parts, NULL, n_parts, shard, false, out, error);
}

enum status loader_linear_rows(struct loader *l, const struct linear_part *parts,
                               const struct stored_rows *stored, int n_parts, enum shard shard,
                               struct linear_layer *out, struct error *error)
{
    return load_linear(l, parts, stored, n_parts, shard, false, out, error);
}

enum status loader_router(struct loader *l, const struct linear_part *parts, int n_parts,
                          struct linear_layer *out, struct error *error)
{
    return load_linear(l, parts, NULL, n_parts, SHARD_WHOLE, true, out, error);
}

enum status loader_keep_experts(struct loader *l, struct experts *experts, struct error *error)
{
    if (!keep(&l->model->experts, &l->model->n_experts, experts)) {
        l->device->table->experts_free(l->device, experts);
        return error_memory(error, sizeof(void *));
    }
    report(l);
    return OK;
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
    return l->device->table->buffer_write(l->device, buffer, 0, values, (size_t)n * sizeof *values,
                                          error);
}

enum status loader_read_vector(struct loader *l, const char *name, int32_t n, float *values,
                               struct error *error)
{
    struct weight w;
    enum status status = loader_find(l, name, "", 1, n, &w, error);
    if (status == OK && !l->is_counting)
        weight_row_dequantize(&w, 0, values);
    if (status == OK && w.unpacked)
        checkpoint_release(l->checkpoint, &w);
    return status;
}

enum status loader_vector(struct loader *l, const char *name, int32_t n, struct tensor *out,
                          struct error *error)
{
    float *values = malloc((size_t)n * sizeof *values);
    if (!values)
        return error_memory(error, (size_t)n * sizeof *values);
    enum status status = loader_read_vector(l, name, n, values, error);
    if (status == OK)
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
    enum status status = loader_find(l, name, "", n_rows, n_cols, &w, error);
    if (status == OK && (w.is_packed || w.unpacked)) { /* rows are read from the file */
        if (w.unpacked)
            checkpoint_release(l->checkpoint, &w);
        return error_set(error, ERROR_UNSUPPORTED,
                         "%s: %s is quantized by columns, which embeddings cannot be",
                         checkpoint_path(l->checkpoint), name);
    }
    if (status != OK)
        return status;
    l->bytes += l->device->table->embedding_bytes(&w);
    l->table = w.data;
    if (l->is_counting)
        return OK;
    status = l->device->table->embedding_load(l->device, &w, out, error);
    if (status == OK && !keep(&l->model->embeddings, &l->model->n_embeddings, *out)) {
        l->device->table->embedding_free(l->device, *out);
        status = error_memory(error, sizeof(void *));
    }
    return status;
}
