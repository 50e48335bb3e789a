/* Inside the CPU device: its state and the tables of kernels, one instance per instruction set.
 * A driver (norm.c, linear.c, attention.c, ...) cuts an op into tasks for the pool and calls the
 * kernels of the device's level; only *_avx2.c, *_avx512.c, *_amx.c and *_neon.c use intrinsics. */
#ifndef CSGL_DEVICE_CPU_CPU_DEVICE_H
#define CSGL_DEVICE_CPU_CPU_DEVICE_H

#include "base/thread_pool.h"
#include "device/cpu/cpu.h"
#include "device/ops.h"

struct row_kernels;       /* rows.h: norms, rope, activations, conversions */
struct linear_kernels;    /* linear.h */
struct attention_kernels; /* attention.h */
struct delta_kernels;     /* gated_delta.h */
struct weight_slab;       /* linear_memory.c */

struct cpu_device {
    struct device device; /* first, so that a struct device * is one of these */
    struct thread_pool *pool;
    enum cpu_isa isa;
    bool is_int8; /* quantized linears multiply int8 activations */
    const struct row_kernels *rows;
    const struct linear_kernels *linears;
    const struct attention_kernels *attention;
    const struct delta_kernels *delta;
    /* Shared by the ops of a step, one at a time: quantized activations, partial results. */
    struct buffer workspace;
    /* Where the next small linear's weights go; owned by the linears in it. */
    struct weight_slab *slab;
};

static inline struct cpu_device *cpu_device_of(struct device *device)
{
    return (struct cpu_device *)(void *)device;
}

/* Grows the workspace to at least `bytes` (64-byte aligned, content lost): called at load, never in
 * a step. */
enum status cpu_workspace_reserve(struct cpu_device *cpu, size_t bytes, struct error *error);

/* The table of each level for each family of kernels; a level without kernels of its own returns
 * the next lower one's. */
const struct row_kernels *cpu_row_kernels(enum cpu_isa isa);
const struct linear_kernels *cpu_linear_kernels(enum cpu_isa isa);
const struct attention_kernels *cpu_attention_kernels(enum cpu_isa isa);
const struct delta_kernels *cpu_delta_kernels(enum cpu_isa isa);

/* The ops, as the device table names them. rows.c */
void cpu_embed(struct device *device, const struct embed_args *args);
void cpu_rms_norm(struct device *device, const struct rms_norm_args *args);
void cpu_rope_angles(struct device *device, const struct rope_angles_args *args);
void cpu_qk_norm_rope(struct device *device, const struct qk_norm_rope_args *args);
void cpu_silu_mul(struct device *device, const struct silu_mul_args *args);
void cpu_moe_route(struct device *device, const struct moe_route_args *args);
void cpu_gather(struct device *device, const struct gather_args *args);
void cpu_fill_ids(struct device *device, const struct fill_ids_args *args);
void cpu_sigmoid_mul(struct device *device, const struct sigmoid_mul_args *args);
void cpu_gated_norm(struct device *device, const struct gated_norm_args *args);
enum status cpu_embedding_load(struct device *device, const struct weight *weight,
                               struct embedding **out, struct error *error);
void cpu_embedding_free(struct device *device, struct embedding *embedding);
uint64_t cpu_embedding_bytes(const struct weight *weight);

/* linear.c */
void cpu_linear(struct device *device, const struct linear_args *args);
enum status cpu_linear_load(struct device *device, const struct weight_slice *slices, int n_slices,
                            int32_t max_rows, struct linear **out, struct error *error);
void cpu_linear_free(struct device *device, struct linear *linear);
struct device_bytes cpu_linear_bytes(struct device *device, const struct weight_slice *slices,
                                     int n_slices, int32_t max_rows);
size_t cpu_linear_size(const struct linear *linear);

/* moe.c */
void cpu_moe_ffn(struct device *device, const struct moe_ffn_args *args);
enum status cpu_experts_load(struct device *device, const struct expert_source *source,
                             int32_t n_experts, int32_t top_k, int32_t max_rows,
                             struct experts **out, struct error *error);
void cpu_experts_free(struct device *device, struct experts *experts);
struct device_bytes cpu_experts_bytes(struct device *device, const struct expert_slices *experts,
                                      int32_t n_experts, int32_t top_k, int32_t max_rows);
size_t cpu_expert_size(const struct experts *experts, int32_t *inner);

/* attention.c */
void cpu_kv_store(struct device *device, const struct kv_store_args *args);
void cpu_kv_copy_page(struct device *device, const struct kv_copy_page_args *args);
void cpu_paged_attention(struct device *device, const struct paged_attention_args *args);
size_t cpu_kv_page_bytes(const struct device *device, const struct kv_layout *layout);
enum status cpu_attention_reserve(struct device *device, const struct kv_layout *layout,
                                  int32_t n_q_heads, int32_t max_rows, int32_t max_sequences,
                                  struct error *error);
size_t cpu_attention_workspace(struct device *device, const struct kv_layout *layout,
                               int32_t n_q_heads, int32_t max_rows, int32_t max_sequences);

/* gated_delta.c */
void cpu_gated_delta(struct device *device, const struct gated_delta_args *args);
void cpu_gated_delta_commit(struct device *device, const struct gated_delta_commit_args *args);
enum status cpu_gated_delta_reserve(struct device *device, const struct state_layout *layout,
                                    struct error *error);
size_t cpu_gated_delta_workspace(struct device *device, const struct state_layout *layout);

/* sample.c */
void cpu_edit_logits(struct device *device, const struct edit_logits_args *args);
void cpu_sample(struct device *device, const struct sample_args *args);
void cpu_logprobs(struct device *device, const struct logprobs_args *args);
size_t cpu_sample_workspace(struct device *device, int32_t n_tokens, int32_t max_rows);
enum status cpu_sample_reserve(struct device *device, int32_t n_tokens, int32_t max_rows,
                               struct error *error);

/* conv1d.c */
void cpu_conv1d_update(struct device *device, const struct conv1d_update_args *args);

/* states.c */
size_t cpu_state_slot_bytes(const struct device *device, const struct state_layout *layout);
void cpu_state_copy(struct device *device, const struct state_copy_args *args);

#endif
