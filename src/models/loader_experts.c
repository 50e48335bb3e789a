/* The experts of a layer: found in whichever way the file holds them, handed to the device as views
 * of the file's own bytes. */
#include "models/loader.h"

#include <stdio.h>
#include <stdlib.h>

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
};

/* How a file holds experts. In a file of single experts the names depend on the expert. */
struct expert_places {
    struct part_place parts[N_PARTS];
    bool is_single;
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

/* transformers 5: gate and up in one stack, their names without ".weight". */
static bool place_fused(const struct loader *l, const char *prefix,
                        const struct expert_shape *shape, struct part_place *parts)
{
    int32_t n = shape->intermediate;
    struct part_place gate_up = {.weight_suffix = "",
                                 .bias_suffix = "_bias",
                                 .stride = 2 * (int64_t)n,
                                 .step = shape->is_interleaved ? 2 : 1};
    name_part(&gate_up, prefix, "experts", "gate_up_proj");
    parts[GATE] = parts[UP] = parts[DOWN] = gate_up;
    parts[UP].offset = shape->is_interleaved ? 1 : n;
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

static void place_experts(const struct loader *l, const char *prefix,
                          const struct expert_shape *shape, struct expert_places *out)
{
    out->is_single = !place_fused(l, prefix, shape, out->parts) &&
                     !place_stacked(l, prefix, "switch_mlp", shape, out->parts) &&
                     !place_stacked(l, prefix, "experts", shape, out->parts);
}

/* Fills the slice of this rank, and the part's biases [rows] from its file's order. */
static enum status slice_expert_part(struct loader *l, const struct expert_shape *shape,
                                     const struct part_place *place, int part, int32_t n_stacked,
                                     int32_t e, struct weight_slice *out, float *bias,
                                     float *scratch, struct error *error)
{
    int32_t rows = part_rows(shape, part), cols = part_cols(shape, part), first = 0, n;
    enum status status = loader_find(l, place->name, place->weight_suffix,
                                     n_stacked * place->stride, cols, &out->weight, error);
    if (status != OK)
        return status;
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

/* All slices of all experts; `biases` is [E, 2I + H] and a row of scratch, or NULL. */
static enum status slice_experts(struct loader *l, const char *prefix,
                                 const struct expert_shape *shape, struct expert_slices *out,
                                 float *biases, struct error *error)
{
    struct expert_places places;
    int64_t per_expert = 2 * (int64_t)shape->intermediate + shape->hidden;
    float *scratch = biases ? biases + shape->n_experts * per_expert : NULL;
    place_experts(l, prefix, shape, &places);
    for (int32_t e = 0; e < shape->n_experts; e++) {
        struct weight_slice *slices[N_PARTS] = {&out[e].gate, &out[e].up, &out[e].down};
        char single[64];
        snprintf(single, sizeof single, "experts.%d", (int)e);
        if (places.is_single)
            (void)place_stacked(l, prefix, single, shape, places.parts);
        for (int i = 0; i < N_PARTS; i++) {
            float *bias = biases ? biases + e * per_expert + i * shape->intermediate : NULL;
            enum status status = slice_expert_part(
                l, shape, &places.parts[i], i, places.is_single ? 1 : shape->n_experts,
                places.is_single ? 0 : e, slices[i], bias, scratch, error);
            if (status != OK)
                return status;
        }
    }
    return OK;
}

/* Parts that share a stack are released with the first expert. */
static void release(const struct loader *l, const struct expert_slices *experts, int32_t n)
{
    for (int32_t e = 0; e < n; e++) {
        if (e > 0 && experts[e].gate.weight.data == experts[0].gate.weight.data)
            break;
        checkpoint_release(l->checkpoint, &experts[e].gate.weight);
        checkpoint_release(l->checkpoint, &experts[e].up.weight);
        checkpoint_release(l->checkpoint, &experts[e].down.weight);
    }
}

enum status loader_experts(struct loader *l, const char *prefix, const struct expert_shape *shape,
                           struct experts **out, struct error *error)
{
    size_t n = (size_t)shape->n_experts;
    size_t row = (size_t)(2 * (int64_t)shape->intermediate + shape->hidden);
    struct expert_slices *slices = calloc(n, sizeof *slices);
    float *biases = NULL;
    enum status status = slices ? OK : error_memory(error, n * sizeof *slices);
    *out = NULL;
    if (status == OK && shape->has_bias && !l->is_counting) {
        biases = malloc((n + 1) * row * sizeof *biases);
        if (!biases)
            status = error_memory(error, (n + 1) * row * sizeof *biases);
    }
    if (status == OK)
        status = slice_experts(l, prefix, shape, slices, biases, error);
    if (status != OK)
        goto out;
    l->bytes += l->device->table->experts_bytes(l->device, slices, shape->n_experts);
    if (l->is_counting)
        goto out;
    status = l->device->table->experts_load(l->device, slices, shape->n_experts, shape->top_k,
                                            l->max_rows, out, error);
    if (status == OK)
        status = loader_keep_experts(l, *out, error);
out:
    if (slices && !l->is_counting)
        release(l, slices, shape->n_experts);
    free(biases);
    free(slices);
    return status;
}
