/* Inside the GPU device: its state, and how an op becomes a dispatch. */
#ifndef CSGL_DEVICE_GPU_GPU_DEVICE_H
#define CSGL_DEVICE_GPU_GPU_DEVICE_H

#include "device/gpu/driver.h"
#include "device/gpu/gpu.h"
#include "kernels/args.h"

/* The kernels by name. */
#define GPU_KERNELS(X)                                                                             \
    X(embed)                                                                                       \
    X(rms_norm)                                                                                    \
    X(rope_angles)                                                                                 \
    X(norm_rope)                                                                                   \
    X(silu_mul)                                                                                    \
    X(sigmoid_mul)                                                                                 \
    X(gated_norm)                                                                                  \
    X(gather)                                                                                      \
    X(fill_ids)                                                                                    \
    X(moe_route)                                                                                   \
    X(linear)                                                                                      \
    X(linear_few_q4_1)                                                                             \
    X(linear_few_q4_4)                                                                             \
    X(linear_few_q4_8)                                                                             \
    X(linear_few_q8_1)                                                                             \
    X(linear_few_q8_4)                                                                             \
    X(linear_few_q8_8)                                                                             \
    X(linear_few_f16_1)                                                                            \
    X(linear_few_f16_4)                                                                            \
    X(linear_few_f16_8)                                                                            \
    X(moe_inner)                                                                                   \
    X(moe_outer)                                                                                   \
    X(expert_sort)                                                                                 \
    X(expert_sum)                                                                                  \
    X(kv_store)                                                                                    \
    X(kv_store_i8)                                                                                 \
    X(kv_copy_page)                                                                                \
    X(paged_attention)                                                                             \
    X(attention_split_64_1)                                                                        \
    X(attention_split_64_2)                                                                        \
    X(attention_split_64_4)                                                                        \
    X(attention_split_128_1)                                                                       \
    X(attention_split_128_2)                                                                       \
    X(attention_split_128_4)                                                                       \
    X(attention_split_256_1)                                                                       \
    X(attention_split_256_2)                                                                       \
    X(attention_split_256_4)                                                                       \
    X(attention_split_i8_64_1)                                                                     \
    X(attention_split_i8_64_2)                                                                     \
    X(attention_split_i8_64_4)                                                                     \
    X(attention_split_i8_128_1)                                                                    \
    X(attention_split_i8_128_2)                                                                    \
    X(attention_split_i8_128_4)                                                                    \
    X(attention_split_i8_256_1)                                                                    \
    X(attention_split_i8_256_2)                                                                    \
    X(attention_split_i8_256_4)                                                                    \
    X(attention_merge)                                                                             \
    X(conv1d_update)                                                                               \
    X(conv1d_commit)                                                                               \
    X(gated_delta)                                                                                 \
    X(gated_delta_commit)                                                                          \
    X(state_copy)                                                                                  \
    X(edit_logits)                                                                                 \
    X(sample)                                                                                      \
    X(logprobs)

/* Those of src/kernels/cuda: a driver has all of them or none. */
#define GPU_NATIVE_LINEARS(X, form)                                                                \
    X(linear_flat_##form##_8)                                                                      \
    X(linear_flat_##form##_8x2)                                                                    \
    X(linear_flat_##form##_16)                                                                     \
    X(linear_many_##form##_64)                                                                     \
    X(linear_many_##form##_128)                                                                    \
    X(expert_flat_##form##_8)                                                                      \
    X(expert_flat_##form##_8x2)                                                                    \
    X(expert_flat_##form##_16)                                                                     \
    X(expert_many_##form##_64)                                                                     \
    X(expert_many_##form##_128)
#define GPU_NATIVE_INT8(X, form)                                                                   \
    X(linear_flat_int8_##form##_8)                                                                 \
    X(linear_flat_int8_##form##_8x2)                                                               \
    X(linear_flat_int8_##form##_16)
#define GPU_NATIVE_KERNELS(X)                                                                      \
    X(linear_inputs)                                                                               \
    X(rms_norm_inputs)                                                                             \
    X(silu_mul_inputs)                                                                             \
    X(expert_inputs)                                                                               \
    X(expert_inner_inputs)                                                                         \
    GPU_NATIVE_LINEARS(X, q4)                                                                      \
    GPU_NATIVE_LINEARS(X, q4s2)                                                                    \
    GPU_NATIVE_LINEARS(X, q4s2w)                                                                   \
    GPU_NATIVE_LINEARS(X, q4s4w)                                                                   \
    GPU_NATIVE_LINEARS(X, e2m1)                                                                    \
    GPU_NATIVE_LINEARS(X, q8)                                                                      \
    GPU_NATIVE_LINEARS(X, q8s2)                                                                    \
    GPU_NATIVE_LINEARS(X, q8s2w)                                                                   \
    GPU_NATIVE_LINEARS(X, q8s4w)                                                                   \
    GPU_NATIVE_LINEARS(X, f16)                                                                     \
    GPU_NATIVE_LINEARS(X, bf16)                                                                    \
    GPU_NATIVE_INT8(X, q4)                                                                         \
    GPU_NATIVE_INT8(X, q4s2)                                                                       \
    GPU_NATIVE_INT8(X, q4s2w)                                                                      \
    GPU_NATIVE_INT8(X, q4s4w)                                                                      \
    GPU_NATIVE_INT8(X, q8)                                                                         \
    GPU_NATIVE_INT8(X, q8s2)                                                                       \
    GPU_NATIVE_INT8(X, q8s2w)                                                                      \
    GPU_NATIVE_INT8(X, q8s4w)                                                                      \
    X(paged_attention_few_64_f16_8)                                                                \
    X(paged_attention_few_64_f16_16)                                                               \
    X(paged_attention_few_64_bf16_8)                                                               \
    X(paged_attention_few_64_bf16_16)                                                              \
    X(paged_attention_few_64_i8_8)                                                                 \
    X(paged_attention_few_64_i8_16)                                                                \
    X(paged_attention_few_128_f16_8)                                                               \
    X(paged_attention_few_128_f16_16)                                                              \
    X(paged_attention_few_128_bf16_8)                                                              \
    X(paged_attention_few_128_bf16_16)                                                             \
    X(paged_attention_few_128_i8_8)                                                                \
    X(paged_attention_few_128_i8_16)                                                               \
    X(paged_attention_few_256_f16_8)                                                               \
    X(paged_attention_few_256_bf16_8)                                                              \
    X(paged_attention_few_256_i8_8)                                                                \
    X(paged_attention_many_64_f16)                                                                 \
    X(paged_attention_many_64_bf16)                                                                \
    X(paged_attention_many_64_i8)                                                                  \
    X(paged_attention_many_128_f16)                                                                \
    X(paged_attention_many_128_bf16)                                                               \
    X(paged_attention_many_128_i8)                                                                 \
    X(paged_attention_many_256_f16)                                                                \
    X(paged_attention_many_256_bf16)                                                               \
    X(paged_attention_many_256_i8)

/* Likewise, on Hopper: kernels/cuda/linear_wide.cu. */
#define GPU_WIDE_LINEARS(X, form)                                                                  \
    X(linear_wide_##form##_64)                                                                     \
    X(linear_wide_##form##_64x4)                                                                   \
    X(linear_wide_##form##_128)                                                                    \
    X(linear_wide_##form##_128x2)
#define GPU_WIDE_KERNELS(X)                                                                        \
    GPU_WIDE_LINEARS(X, q4)                                                                        \
    GPU_WIDE_LINEARS(X, q4s2)                                                                      \
    GPU_WIDE_LINEARS(X, q4s2w)                                                                     \
    GPU_WIDE_LINEARS(X, q4s4w)                                                                     \
    GPU_WIDE_LINEARS(X, e2m1)                                                                      \
    GPU_WIDE_LINEARS(X, q8)                                                                        \
    GPU_WIDE_LINEARS(X, q8s2)                                                                      \
    GPU_WIDE_LINEARS(X, q8s2w)                                                                     \
    GPU_WIDE_LINEARS(X, q8s4w)                                                                     \
    GPU_WIDE_LINEARS(X, f16)                                                                       \
    GPU_WIDE_LINEARS(X, bf16)

/* Those that are there where the driver has_matrices. */
#define GPU_MATRIX_KERNELS(X)                                                                      \
    X(linear_matrix_q4)                                                                            \
    X(linear_matrix_q8)                                                                            \
    X(linear_matrix_f16)                                                                           \
    X(attention_matrix_64)                                                                         \
    X(attention_matrix_96)                                                                         \
    X(attention_matrix_128)                                                                        \
    X(attention_matrix_256)                                                                        \
    X(attention_matrix_i8_64)                                                                      \
    X(attention_matrix_i8_96)                                                                      \
    X(attention_matrix_i8_128)                                                                     \
    X(attention_matrix_i8_256)

/* And where it has_int8, loaded in int8 mode. */
#define GPU_INT8_KERNELS(X)                                                                        \
    X(int8_inputs)                                                                                 \
    X(linear_int8)

#define GPU_KERNEL_ENUM(name) GPU_KERNEL_##name,
enum gpu_kernel_name {
    GPU_KERNELS(GPU_KERNEL_ENUM) N_GPU_SHARED_KERNELS,
    GPU_KERNEL_LAST_SHARED = N_GPU_SHARED_KERNELS - 1,
    GPU_MATRIX_KERNELS(GPU_KERNEL_ENUM) FIRST_INT8_GPU_KERNEL,
    GPU_KERNEL_LAST_MATRIX = FIRST_INT8_GPU_KERNEL - 1,
    GPU_INT8_KERNELS(GPU_KERNEL_ENUM) FIRST_NATIVE_GPU_KERNEL,
    GPU_KERNEL_LAST_INT8 = FIRST_NATIVE_GPU_KERNEL - 1,
    GPU_NATIVE_KERNELS(GPU_KERNEL_ENUM) FIRST_WIDE_GPU_KERNEL,
    GPU_KERNEL_LAST_NATIVE = FIRST_WIDE_GPU_KERNEL - 1,
    GPU_WIDE_KERNELS(GPU_KERNEL_ENUM) N_GPU_KERNELS
};
#undef GPU_KERNEL_ENUM

/* Threadgroups of a dispatch. */
struct gpu_groups {
    int64_t x, y, z;
};

/* A tensor of f32. */
struct gpu_rows {
    struct gpu_range at;
    int32_t rows, cols, stride;
};

/* What the native linears read in place of their inputs: kernels/args.h, struct kd_inputs. Experts
 * of tiles (gpu_experts.c) have all that they keep for one op in the same memory. */
struct gpu_inputs {
    struct gpu_memory *memory; /* values, sums, factors */
    size_t bytes;
    size_t values_bytes, sums_bytes, factors_bytes;
    struct gpu_rows of; /* whose they are, in the form; 0 rows: not known */
    struct kd_inputs form;
};

/* A norm or an activation that is queued when it is known whether a native linear reads what it
 * makes (gpu_inputs.c). */
enum { GPU_WAITING_BUFFERS = 4 };
struct gpu_waiting {
    enum gpu_kernel_name kernel; /* rms_norm or silu_mul */
    int n_buffers;
    struct gpu_range buffers[GPU_WAITING_BUFFERS];
    struct gpu_rows out;
    struct gpu_groups groups;
    union {
        struct kd_rms_norm norm;
        struct kd_silu_mul silu;
    } args;
    size_t args_bytes;
};

/* Parts of a sequence's attention, for the threadgroup that merges them. */
struct gpu_splits {
    struct gpu_memory *parts, *levels, *counters;
};

struct gpu_device {
    struct device device; /* first, so that a struct device * is one of these */
    struct device_table table;
    const struct gpu_driver *driver;
    struct gpu *gpu;
    char name[64];
    const struct gpu_kernel *kernels[N_GPU_KERNELS];
    struct gpu_info info;
    bool has_native;  /* the driver has the native kernels */
    bool has_wide;    /* and those for Hopper */
    uint32_t n_terms; /* 16-bit values that stand for one of a native linear's inputs */
    bool is_int8;     /* inputs of linears whose weights are codes are int8 */
    struct gpu_inputs inputs;
    bool is_waiting;
    struct gpu_waiting waiting;
    struct gpu_splits splits;
    struct gpu_memory *sampling; /* what the turns of sample know, twice; NULL: none is reserved */
    size_t sampling_bytes;
    struct thread_pool *loaders; /* gpu_upload.h; NULL: nothing is loaded yet */
    bool is_queued;              /* something was dispatched since the last wait */
    struct gpu_memory *split_parts, *split_levels; /* gpu_split.h; NULL: no attention yet */
    bool is_beside; /* what is dispatched needs not see what was dispatched just before */
};

static inline struct gpu_device *gpu_device_of(struct device *device)
{
    return (struct gpu_device *)(void *)device;
}

/* A tensor's memory from its first element on; none: a buffer that the kernel does not touch. */
static inline struct gpu_range gpu_tensor(const struct tensor *t)
{
    if (!t->buffer)
        return (struct gpu_range){0};
    return (struct gpu_range){t->buffer->handle, t->offset};
}

/* Queues `groups` threadgroups of n_threads; nothing if one of them is 0. What is queued runs in
 * order, behind what was waiting. `args` is the kernel's struct. */
void gpu_run(struct gpu_device *gpu, enum gpu_kernel_name kernel, const struct gpu_range *buffers,
             int n_buffers, const void *args, size_t args_bytes, struct gpu_groups groups,
             uint32_t n_threads);
/* The same with shared_bytes of memory for each threadgroup beside what the kernel names. */
void gpu_run_shared(struct gpu_device *gpu, enum gpu_kernel_name kernel,
                    const struct gpu_range *buffers, int n_buffers, const void *args,
                    size_t args_bytes, struct gpu_groups groups, uint32_t n_threads,
                    uint32_t shared_bytes);

/* The same for native linears, which see to what waits themselves. */
void gpu_dispatch(struct gpu_device *gpu, enum gpu_kernel_name kernel,
                  const struct gpu_range *buffers, int n_buffers, const void *args,
                  size_t args_bytes, struct gpu_groups groups, uint32_t n_threads,
                  uint32_t shared_bytes);

/* Queues what is waiting; gpu_settle also forgets whose inputs are prepared, since what comes next
 * may write anything. */
void gpu_release(struct gpu_device *gpu);
void gpu_settle(struct gpu_device *gpu);

static inline uint32_t gpu_log2(uint32_t power)
{
    uint32_t n = 0;
    while (power >> n > 1)
        n++;
    return n;
}

/* Between these, what is queued may run side by side: each part of an op writes what no other one
 * touches. */
void gpu_beside_begin(struct gpu_device *gpu);
void gpu_beside_end(struct gpu_device *gpu);

/* The ops, in gpu_rows.c, gpu_inputs.c, gpu_linear.c, gpu_moe.c, gpu_attention.c, gpu_states.c and
 * gpu_sample.c. */
#define GPU_OP(name) void gpu_##name(struct device *device, const struct name##_args *args);
DEVICE_OPS(GPU_OP)
#undef GPU_OP

/* gpu_rows.c */
enum status gpu_embedding_load(struct device *device, const struct weight *weight,
                               struct embedding **out, struct error *error);
void gpu_embedding_free(struct device *device, struct embedding *embedding);
uint64_t gpu_embedding_bytes(const struct weight *weight);

/* gpu_linear.c */
enum status gpu_linear_load(struct device *device, const struct weight_slice *slices, int n_slices,
                            int32_t max_rows, struct linear **out, struct error *error);
void gpu_linear_free(struct device *device, struct linear *linear);
struct device_bytes gpu_linear_bytes(struct device *device, const struct weight_slice *slices,
                                     int n_slices, int32_t max_rows);
bool gpu_reads_in_place(const struct device *device, const struct weight_slice *slice);
size_t gpu_linear_size(const struct linear *linear);

/* gpu_moe.c */
enum status gpu_experts_load(struct device *device, const struct expert_source *source,
                             int32_t n_experts, int32_t top_k, int32_t max_rows,
                             struct experts **out, struct error *error);
void gpu_experts_free(struct device *device, struct experts *experts);
struct device_bytes gpu_experts_bytes(struct device *device, const struct expert_slices *experts,
                                      int32_t n_experts, int32_t top_k, int32_t max_rows);
size_t gpu_expert_size(const struct experts *experts, int32_t *inner);

/* gpu_attention.c */
size_t gpu_kv_page_bytes(const struct device *device, const struct kv_layout *layout);
enum status gpu_attention_reserve(struct device *device, const struct kv_layout *layout,
                                  int32_t n_q_heads, int32_t max_rows, int32_t max_sequences,
                                  struct error *error);
size_t gpu_attention_workspace(struct device *device, const struct kv_layout *layout,
                               int32_t n_q_heads, int32_t max_rows, int32_t max_sequences);

/* gpu_states.c */
size_t gpu_state_slot_bytes(const struct device *device, const struct state_layout *layout);
enum status gpu_gated_delta_reserve(struct device *device, const struct state_layout *layout,
                                    struct error *error);
size_t gpu_gated_delta_workspace(struct device *device, const struct state_layout *layout);

/* gpu_sample.c */
size_t gpu_sample_workspace(struct device *device, int32_t n_tokens, int32_t max_rows);
enum status gpu_sample_reserve(struct device *device, int32_t n_tokens, int32_t max_rows,
                               struct error *error);

#endif
