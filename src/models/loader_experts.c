/* The experts of a layer: found in whichever way the file holds them, handed to the device as views
 * of the file's own bytes, or of a copy where their matrices are stored transposed. */
#include "models/loader.h"

#include "base/size.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NAME = 256 };

enum { GATE, UP, DOWN, N_PARTS };
static const char *const part_names[N_PARTS] = {"gate_proj", "up_proj", "down_proj"};

/* Row r of expert e is row e * stride + offset + r * step of the weight, and output r of the bias
 * [E, stride]. */
struct part_place {
    char name[MAX_NAME];
    const char *weight_suffix, *bias_suffix;
    int64_t stride, offset;
    int32_t step;
    const struct weight *turned; /* the stack when its file has it transposed, or NULL */
};

/* How a file holds experts. In a file of single experts the names depend on the expert. */
struct expert_places {
    struct part_place parts[N_PARTS];
    bool is_single;
    struct weight turned[2]; /* of gate and up, and of down */
    uint8_t *turned_data[2]; /* owned, NULL while counting */
};

static int32_t part_rows(const struct expert_shape *shape, int part)
{
    return part == DOWN ? shape->hidden : shape->intermediate;
}

static int32_t part_cols(const struct expert_shape *shape, int part)
{
    return part == DOWN ? shape->intermediate : shape->hidden;
}

static void name_part(struct part_place *place, const char *prefix, const char *stem,
                      const char *name)
{
    snprintf(place->name, sizeof place->name, "%s.%s.%s", prefix, stem, name);
}

static bool has_weight(const struct loader *l, const struct part_place *place)
{
    char full[MAX_NAME];
    snprintf(full, sizeof full, "%s%s", place->name, place->weight_suffix);
    return checkpoint_has(l->checkpoint, full);
}

/* Gate and up in one stack: of transformers 5, whose names have no ".weight", or of a GGUF, where
 * they never take turns. */
static bool place_fused(const struct loader *l, const char *prefix,
                        const struct expert_shape *shape, bool is_gguf, struct part_place *parts)
{
    int32_t n = shape->intermediate;
    bool is_interleaved = shape->is_interleaved && !is_gguf;
    struct part_place gate_up = {.weight_suffix = is_gguf ? ".weight" : "",
                                 .bias_suffix = is_gguf ? ".bias" : "_bias",
                                 .stride = 2 * (int64_t)n,
                                 .step = is_interleaved ? 2 : 1};
    name_part(&gate_up, prefix, "experts", "gate_up_proj");
    parts[GATE] = parts[UP] = parts[DOWN] = gate_up;
    parts[UP].offset = is_interleaved ? 1 : n;
    name_part(&parts[DOWN], prefix, "experts", part_names[DOWN]);
    parts[DOWN].stride = shape->hidden;
    parts[DOWN].step = 1;
    return has_weight(l, &gate_up);
}

static bool place_stacked(const struct loader *l, const char *prefix, const char *stem,
                          const struct expert_shape *shape, struct part_place *parts)
{
    for (int i = 0; i < N_PARTS; i++) {
        parts[i] = (struct part_place){.weight_suffix = ".weight",
                                       .bias_suffix = ".bias",
                                       .stride = part_rows(shape, i),
                                       .step = 1};
        name_part(&parts[i], prefix, stem, part_names[i]);
    }
    return has_weight(l, &parts[GATE]);
}

/* Does [rows, cols] -> [cols, rows] in tiles that stay in the cache. */
static void transpose(const uint8_t *from, uint8_t *to, size_t rows, size_t cols, size_t element)
{
    enum { TILE = 32 };
    for (size_t r0 = 0; r0 < rows; r0 += TILE)
        for (size_t c0 = 0; c0 < cols; c0 += TILE)
            for (size_t r = r0; r < rows && r < r0 + TILE; r++)
                for (size_t c = c0; c < cols && c < c0 + TILE; c++)
                    if (element == 2)
                        memcpy(to + (c * rows + r) * 2, from + (r * cols + c) * 2, 2);
                    else
                        memcpy(to + (c * rows + r) * 4, from + (r * cols + c) * 4, 4);
}

/* The stack [E, in, out] of a part as [E, out, in]. */
static enum status turn_stack(struct loader *l, const struct expert_shape *shape, int part,
                              struct expert_places *places, struct error *error)
{
    const struct part_place *place = &places->parts[part];
    struct weight *out = &places->turned[part == DOWN], w;
    size_t n_in = (size_t)part_cols(shape, part), n_out = (size_t)place->stride, bytes;
    enum status status =
        loader_find(l, place->name, place->weight_suffix,
                    shape->n_experts * (int64_t)part_cols(shape, part), place->stride, &w, error);
    if (status != OK)
        return status;
    *out = w;
    out->rows = shape->n_experts * place->stride;
    out->cols = part_cols(shape, part);
    out->data = NULL;
    if (l->is_counting) {
        checkpoint_quantize_floats(l->checkpoint, out);
        return OK;
    }
    size_t element = w.encoding == WEIGHT_F32 ? 4 : 2, n = (size_t)shape->n_experts;
    if (!size_mul(n_in * n_out, element, &bytes) || !size_mul(bytes, n, &bytes))
        return error_memory(error, SIZE_MAX);
    uint8_t *data = malloc(bytes);
    if (!data)
        return error_memory(error, bytes);
    places->turned_data[part == DOWN] = data;
    for (size_t e = 0; e < n; e++)
        transpose(w.data + e * n_in * n_out * element, data + e * n_in * n_out * element, n_in,
                  n_out, element);
    checkpoint_release(l->checkpoint, &w);
    out->data = data;
    checkpoint_quantize_floats(l->checkpoint, out);
    return OK;
}

/* Turns the stacks if they are floats and the family stores those so. */
static enum status turn_stacks(struct loader *l, const struct expert_shape *shape,
                               struct expert_places *places, struct error *error)
{
    struct part_place *parts = places->parts;
    struct weight w;
    char full[MAX_NAME];
    snprintf(full, sizeof full, "%s%s", parts[GATE].name, parts[GATE].weight_suffix);
    if (!shape->is_transposed || *parts[GATE].weight_suffix ||
        checkpoint_weight(l->checkpoint, full, &w, NULL) != OK || !weight_is_float(&w))
        return OK;
    enum status status = turn_stack(l, shape, GATE, places, error);
    if (status == OK)
        status = turn_stack(l, shape, DOWN, places, error);
    parts[GATE].turned = parts[UP].turned = &places->turned[0];
    parts[DOWN].turned = &places->turned[1];
    return status;
}

static void place_experts(const struct loader *l, const char *prefix,
                          const struct expert_shape *shape, struct expert_places *out)
{
    out->is_single = !place_fused(l, prefix, shape, false, out->parts) &&
                     !place_fused(l, prefix, shape, true, out->parts) &&
                     !place_stacked(l, prefix, "switch_mlp", shape, out->parts) &&
                     !place_stacked(l, prefix, "experts", shape, out->parts);
}

/* One expert of a file of single ones; its gate and up may lie in one weight, up first. */
static void place_single(const struct loader *l, const char *prefix,
                         const struct expert_shape *shape, int32_t e, struct part_place *parts)
{
    char stem[64];
    snprintf(stem, sizeof stem, "experts.%d", (int)e);
    if (place_stacked(l, prefix, stem, shape, parts))
        return;
    struct part_place fused = parts[UP];
    name_part(&fused, prefix, stem, "gate_and_up_proj");
    if (!has_weight(l, &fused))
        return;
    fused.stride = 2 * (int64_t)shape->intermediate;
    parts[GATE] = parts[UP] = fused;
    parts[GATE].offset = shape->intermediate;
}

/* Fills the slice of this rank, and the part's biases [rows] from its file's order. */
static enum status slice_expert_part(struct loader *l, const struct expert_shape *shape,
                                     const struct part_place *place, int part, int32_t n_stacked,
                                     int32_t e, struct weight_slice *out, float *bias,
                                     float *scratch, struct error *error)
{
    int32_t rows = part_rows(shape, part), cols = part_cols(shape, part), first = 0, n;
    enum status status = OK;
    if (place->turned)
        out->weight = *place->turned;
    else
        status = loader_find(l, place->name, place->weight_suffix, n_stacked * place->stride, cols,
                             &out->weight, error);
    if (status != OK)
        return status;
    if (!*place->weight_suffix && !place->turned)
        checkpoint_quantize_floats(l->checkpoint, &out->weight);
    loader_share(l->comm, shape->intermediate, 1, &first, &n);
    out->pattern = (struct row_pattern){e * place->stride + place->offset, 1, place->step};
    if (part == DOWN) {
        out->rows = rows;
        out->col = first;
        out->cols = n;
        status = loader_check_columns(l, place->name, out, error);
    } else {
        out->row = first;
        out->rows = n;
        out->cols = cols;
        bias = bias ? bias + first : NULL;
    }
    /* The bias behind a split sum is added once, by rank 0. */
    if (status != OK || !shape->has_bias || (part == DOWN && l->comm->rank != 0))
        return status;
    struct weight w;
    status = loader_find(l, place->name, place->bias_suffix, n_stacked, place->stride, &w, error);
    if (status != OK || l->is_counting)
        return status;
    weight_row_dequantize(&w, e, scratch);
    for (int64_t i = 0; i < out->rows; i++)
        bias[i] = scratch[place->offset + (part == DOWN ? i : first + i) * place->step];
    out->bias = bias;
    return OK;
}

/* What expert after expert is taken from. `biases` is [E, 2I + H] and a row of scratch, or NULL. */
struct expert_loader {
    struct loader *loader;
    const char *prefix;
    const struct expert_shape *shape;
    struct expert_places places;
    float *biases;
};

static int64_t bias_floats(const struct expert_shape *shape)
{
    return 2 * (int64_t)shape->intermediate + shape->hidden;
}

static enum status open_expert(void *context, int32_t e, struct expert_slices *out,
                               struct error *error)
{
    struct expert_loader *x = context;
    const struct expert_shape *shape = x->shape;
    struct expert_places *places = &x->places;
    struct weight_slice *slices[N_PARTS] = {&out->gate, &out->up, &out->down};
    float *biases = x->biases ? x->biases + e * bias_floats(shape) : NULL;
    float *scratch = x->biases ? x->biases + shape->n_experts * bias_floats(shape) : NULL;
    enum status status = OK;
    *out = (struct expert_slices){0};
    if (places->is_single)
        place_single(x->loader, x->prefix, shape, e, places->parts);
    for (int i = 0; i < N_PARTS && status == OK; i++)
        status = slice_expert_part(
            x->loader, shape, &places->parts[i], i, places->is_single ? 1 : shape->n_experts,
            places->is_single ? 0 : e, slices[i], biases ? biases + i * shape->intermediate : NULL,
            scratch, error);
    if (status == OK && !loader_is_same_order(&out->gate.weight, &out->up.weight))
        status = error_set(error, ERROR_UNSUPPORTED,
                           "%s: expert %s takes its inputs in another order (desc_act) than its "
                           "gate_proj; convert the model with one order for both",
                           checkpoint_path(x->loader->checkpoint), places->parts[UP].name);
    return status;
}

/* The rows of the stack that are expert e's, as a weight of their own. */
static struct weight rows_of(const struct weight *stack, int32_t e, int32_t n_experts)
{
    struct weight rows = *stack;
    rows.rows = stack->rows / n_experts;
    rows.data += weight_row_bytes(stack) * (size_t)(rows.rows * e);
    if (rows.levels.scales) {
        uint64_t levels = weight_levels_bytes(stack) / (uint64_t)n_experts;
        rows.levels.scales += levels * (uint64_t)e;
        if (rows.levels.biases)
            rows.levels.biases += levels * (uint64_t)e;
    }
    return rows;
}

/* What an expert's file bytes take of memory is given back before the next one is read; with the
 * last one the whole stacks, whose pages at the borders of experts are still there. */
static void close_expert(void *context, int32_t e, const struct expert_slices *slices)
{
    struct expert_loader *x = context;
    const struct weight *weights[N_PARTS] = {&slices->gate.weight, &slices->up.weight,
                                             &slices->down.weight};
    for (int i = 0; i < N_PARTS; i++) {
        struct weight rows = *weights[i];
        if (!rows.data || x->places.parts[i].turned)
            continue;
        if (!x->places.is_single && !rows.unpacked && e + 1 < x->shape->n_experts)
            rows = rows_of(weights[i], e, x->shape->n_experts);
        checkpoint_release(x->loader->checkpoint, &rows);
    }
}

/* Counts all experts, whose slices have no data. */
static enum status count_experts(struct expert_loader *x, struct error *error)
{
    struct loader *l = x->loader;
    int32_t n = x->shape->n_experts;
    struct expert_slices *slices = calloc((size_t)n, sizeof *slices);
    enum status status = slices ? OK : error_memory(error, (size_t)n * sizeof *slices);
    for (int32_t e = 0; e < n && status == OK; e++)
        status = open_expert(x, e, &slices[e], error);
    if (status == OK)
        loader_add_bytes(
            l, l->device->table->experts_bytes(l->device, slices, n, x->shape->top_k, l->max_rows));
    free(slices);
    return status;
}

static enum status load_experts(struct expert_loader *x, struct experts **out, struct error *error)
{
    struct loader *l = x->loader;
    size_t n = (size_t)x->shape->n_experts, row = (size_t)bias_floats(x->shape);
    struct expert_source source = {open_expert, close_expert, x};
    if (x->shape->has_bias) {
        x->biases = malloc((n + 1) * row * sizeof *x->biases);
        if (!x->biases)
            return error_memory(error, (n + 1) * row * sizeof *x->biases);
    }
    enum status status = l->device->table->experts_load(l->device, &source, x->shape->n_experts,
                                                        x->shape->top_k, l->max_rows, out, error);
    free(x->biases);
    if (status != OK)
        return status;
    int32_t inner;
    l->bytes += n * l->device->table->expert_size(*out, &inner); /* for the progress */
    return loader_keep_experts(l, *out, error);
}

enum status loader_experts(struct loader *l, const char *prefix, const struct expert_shape *shape,
                           struct experts **out, struct error *error)
{
    struct expert_loader x = {.loader = l, .prefix = prefix, .shape = shape};
    *out = NULL;
    place_experts(l, prefix, shape, &x.places);
    enum status status = turn_stacks(l, shape, &x.places, error);
    if (status == OK)
        status = l->is_counting ? count_experts(&x, error) : load_experts(&x, out, error);
    free(x.places.turned_data[0]);
    free(x.places.turned_data[1]);
    return status;
}
