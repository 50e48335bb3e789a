/* Weights in the GPU's memory: one layout for every encoding (kernels/args.h, struct kd_weight). */
#ifndef CSGL_DEVICE_GPU_GPU_WEIGHT_H
#define CSGL_DEVICE_GPU_GPU_WEIGHT_H

#include "device/gpu/gpu_device.h"

/* n_matrices of one shape and form in one run of memory: the device's own, or the checkpoint's. */
struct gpu_weight {
    struct gpu_memory *memory;
    struct kd_weight shape;
};

/* How a matrix like this slice lies; refuses what no kernel reads. Takes no memory. */
enum status gpu_weight_describe(const struct weight_slice *slice, struct kd_weight *out,
                                struct error *error);

/* Whether the slice lies in the checkpoint as the kernels read it, on a GPU that reads the CPU's
 * memory: floats, on 16 bytes, without a bias. Then gpu_weight_load of it alone makes no copy, and
 * its bytes must stay until gpu_weight_done. */
bool gpu_weight_stays(const struct gpu_device *gpu, const struct weight_slice *slice);

/* Loads a matrix from each slice; slice i is slices[i * stride_bytes]. All have the first one's
 * shape. Ends with gpu_weight_done, also after an error. */
enum status gpu_weight_load(struct gpu_device *gpu, struct gpu_weight *w,
                            const struct weight_slice *slices, size_t stride_bytes,
                            int32_t n_matrices, struct error *error);
/* The same of one whole weight whose rows are looked up, of which there may be more. */
enum status gpu_table_describe(const struct weight *weight, struct kd_weight *out,
                               struct error *error);
enum status gpu_table_load(struct gpu_device *gpu, struct gpu_weight *w,
                           const struct weight *weight, struct error *error);
void gpu_weight_done(struct gpu_device *gpu, struct gpu_weight *w);

/* gpu_product.c: queues out[t, n] = x[t, :] . w[n, :] + bias[n] by the shared kernel that suits the
 * weight and the number of rows; is_int8: with int8 inputs. */
void gpu_product(struct gpu_device *gpu, const struct gpu_weight *w, bool is_int8,
                 const struct tensor *x, const struct tensor *out);

/* Whether is_int8 may be true; then with so many bytes of the ops' shared memory for n_rows rows.
 */
bool gpu_product_takes_int8(const struct kd_weight *w);
size_t gpu_product_int8_bytes(uint32_t cols, int32_t n_rows);

#endif
