/* A model: its configuration, its weights on a device, and one forward step. Families register in
 * registry.c. Knows batches as tensors; knows no request and no cache policy. */
#ifndef CSGL_MODELS_MODEL_H
#define CSGL_MODELS_MODEL_H

#include "checkpoint/checkpoint.h"
#include "layers/forward.h"

struct model;
struct loader;

/* Layers with the same lifetime rule for their pages. */
struct kv_group {
    int32_t window;   /* 0: every token is kept */
    int32_t n_layers; /* layers that store K/V in this group */
};

/* What a file in models/ provides. */
struct model_family {
    const char *name;
    const char *const *model_types; /* config.json's model_type, NULL at the end */

    /* Reads and checks the configuration; allocates the family's struct, whose first member is a
     * struct model with every field filled. No weight is read. */
    enum status (*configure)(const struct json *config, const struct comm *comm, struct model **out,
                             struct error *error);
    /* Hands every weight to the loader, which counts or loads. */
    enum status (*load)(struct model *model, struct loader *loader, struct error *error);
    /* Bytes that forward takes from the scratch for steps of at most max_rows rows, of which at
     * most max_want have their logits asked for. */
    size_t (*scratch_bytes)(const struct model *model, int32_t max_rows, int32_t max_want);
    /* Queues one step; fills f->logits when f->n_want > 0. */
    void (*forward)(struct model *model, struct forward *f);
    /* Tells layer `layer` of group `group` where its pages are. */
    void (*bind_pages)(struct model *model, int32_t group, int32_t layer, struct kv_pages pages);
    /* Tells gated-delta layer `layer` (0 .. states.n_layers - 1) where its slots are. NULL where
     * there are none. */
    void (*bind_states)(struct model *model, int32_t layer, struct state_slots slots);
    void (*free)(struct model *model);
};

struct model {
    const struct model_family *family;
    int32_t n_layers, hidden, vocab_size, max_positions;
    int32_t n_ranks;
    int32_t n_heads, n_kv_heads, head_dim; /* on this rank */
    int32_t n_kv_groups;
    struct kv_group kv_groups[KV_MAX_GROUPS];
    struct state_layout states;
    /* Everything the loader made for this model, freed by model_free. */
    struct device *device;
    struct linear **linears;
    struct buffer **buffers;
    struct embedding **embeddings;
    struct experts **experts; /* of one layer each */
    int32_t n_linears, n_buffers, n_embeddings, n_experts;
};

/* The family that serves this configuration, or ERROR_UNSUPPORTED with the list of those there are.
 */
enum status model_configure(const struct checkpoint *checkpoint, const struct comm *comm,
                            struct model **out, struct error *error);
/* The same from the configuration alone; sentences do not name the checkpoint. */
enum status model_configure_from(const struct json *config, const struct comm *comm,
                                 struct model **out, struct error *error);

/* Bytes that the weights will take on the device (`own`) and, for steps of at most max_rows rows,
 * the workspace that their operations share. Reads no weight data. */
enum status model_weight_bytes(struct model *model, const struct checkpoint *checkpoint,
                               struct device *device, struct comm *comm, int32_t max_rows,
                               struct device_bytes *bytes, struct error *error);

/* Told of each weight before it is counted, with the bytes that those before it take; NULL at the
 * end. Weights that only stay in their file take none. */
typedef void (*weight_visitor)(void *context, const char *name, uint64_t bytes_before);

/* model_weight_bytes, weight by weight. */
enum status model_visit_weights(struct model *model, const struct checkpoint *checkpoint,
                                struct device *device, struct comm *comm, int32_t max_rows,
                                weight_visitor visitor, void *context, struct device_bytes *bytes,
                                struct error *error);

/* Called after each weight with the part of all bytes done so far, 0 to 1. */
typedef void (*load_progress)(void *context, double done);

/* Loads all weights; `max_rows` bounds T of later steps. The device and checkpoint are kept. */
enum status model_load(struct model *model, const struct checkpoint *checkpoint,
                       struct device *device, struct comm *comm, int32_t max_rows,
                       load_progress progress, void *progress_context, struct error *error);

void model_free(struct model *model);

#endif
