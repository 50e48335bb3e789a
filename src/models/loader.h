/* How a family asks for its weights: by name and shard, in the same words for counting and loading.
 */
#ifndef CSGL_MODELS_LOADER_H
#define CSGL_MODELS_LOADER_H

#include "layers/linear.h"
#include "layers/norm.h"
#include "models/model.h"

struct loader {
    struct model *model;
    const struct checkpoint *checkpoint;
    struct device *device;
    struct comm *comm;
    int32_t max_rows;
    bool is_counting; /* only add up `bytes`; nothing is read or made */
    uint64_t bytes, total_bytes;
    size_t workspace;     /* of the device, for what was counted */
    const uint8_t *table; /* an embedding's rows, which the head may be too */
    load_progress progress;
    void *progress_context;
    weight_visitor on_weight; /* while counting */
    void *visitor_context;
};

/* One part of a fused linear: weight "NAME.weight" [n_out, n_in] and, if has_bias, "NAME.bias". */
struct linear_part {
    const char *name;
    int32_t n_out, n_in;
    bool has_bias;
    /* Outputs come in units (heads) that are not split; a rank whose share is less than one unit
     * holds a copy (KV heads when there are more ranks). 0: any row may begin a share. */
    int32_t unit;
};

/* Loads 1 to LINEAR_MAX_PARTS parts that share their input. */
enum status loader_linear(struct loader *loader, const struct linear_part *parts, int n_parts,
                          enum shard shard, struct linear_layer *out, struct error *error);

/* Where a part's outputs lie among the n_stored rows of "NAME.weight" and values of "NAME.bias". */
struct stored_rows {
    int32_t n_stored;
    struct row_pattern pattern;
};

/* The same for parts that are rows of larger weights; one stored_rows a part. */
enum status loader_linear_rows(struct loader *loader, const struct linear_part *parts,
                               const struct stored_rows *stored, int n_parts, enum shard shard,
                               struct linear_layer *out, struct error *error);

/* Whether the file has FUSED.weight in the place of PART.weight. */
bool loader_is_fused(const struct loader *loader, const char *part, const char *fused);

/* Reads "NAME" into values [n]; nothing is read while counting. */
enum status loader_read_vector(struct loader *loader, const char *name, int32_t n, float *values,
                               struct error *error);

/* The same as loader_linear, whole on every rank and for inputs that are never rounded: what
 * chooses experts. */
enum status loader_router(struct loader *loader, const struct linear_part *parts, int n_parts,
                          struct linear_layer *out, struct error *error);

/* The experts of one layer, of the whole model; their intermediate columns are split over ranks. */
struct expert_shape {
    int32_t n_experts, top_k, hidden, intermediate;
    bool has_bias;
    bool is_interleaved; /* in a stack of both, gate and up rows take turns */
    bool is_transposed;  /* floats in transformers' stacks are [E, in, out] */
};

/* loader_experts.c: loads the experts at PREFIX, which are one of
 *   experts.gate_up_proj [E, 2I, H], experts.down_proj [E, H, I]       transformers 5, gpt-oss
 *   experts.gate_up_proj.weight, experts.down_proj.weight, the same    GGUF, if fused
 *   {experts,switch_mlp}.{gate,up,down}_proj.weight [E, out, in]       GGUF, MLX
 *   experts.N.{gate,up,down}_proj.weight [out, in]                     transformers 4
 *   experts.N.gate_and_up_proj.weight [2I, H], up first, and down_proj  older Hunyuan */
enum status loader_experts(struct loader *loader, const char *prefix,
                           const struct expert_shape *shape, struct experts **out,
                           struct error *error);

/* Loads "NAME" as f32 [1, n]. */
enum status loader_vector(struct loader *loader, const char *name, int32_t n, struct tensor *out,
                          struct error *error);

/* Puts `n` f32 values made by the caller on the device as [1, n]. */
enum status loader_constant(struct loader *loader, const float *values, int32_t n,
                            struct tensor *out, struct error *error);

enum status loader_norm(struct loader *loader, const char *name, int32_t n, float eps,
                        struct norm_layer *out, struct error *error);

enum status loader_embedding(struct loader *loader, const char *name, int32_t n_rows,
                             int32_t n_cols, struct embedding **out, struct error *error);

/* Weight "NAMESUFFIX", whose shape must be [rows, cols]. */
enum status loader_find(const struct loader *loader, const char *name, const char *suffix,
                        int64_t rows, int64_t cols, struct weight *out, struct error *error);

/* ERROR_UNSUPPORTED if this rank's columns of weight NAME are not whole blocks. */
enum status loader_check_columns(const struct loader *loader, const char *name,
                                 const struct weight_slice *slice, struct error *error);

/* Whether both take their inputs in one order (desc_act), or in the order in which they come. */
bool loader_is_same_order(const struct weight *a, const struct weight *b);

/* Gives the model a stack that was loaded; frees it when there is no memory for that. */
enum status loader_keep_experts(struct loader *loader, struct experts *experts,
                                struct error *error);

/* Adds what a weight takes to what was counted. */
void loader_add_bytes(struct loader *loader, struct device_bytes bytes);

/* This rank's share of `n` outputs in units: first and count. */
void loader_share(const struct comm *comm, int32_t n, int32_t unit, int32_t *first, int32_t *count);

#endif
