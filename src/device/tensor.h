/* Views on device memory. A tensor is a matrix [rows, cols] with a row stride; it owns nothing. */
#ifndef CSGL_DEVICE_TENSOR_H
#define CSGL_DEVICE_TENSOR_H

#include <stddef.h>
#include <stdint.h>

/* The last two exist in KV pages alone: codes with scales, two of I4 to a byte. */
enum dtype { DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_I32, DTYPE_I8, DTYPE_I4, N_DTYPES };

static inline size_t dtype_bytes(enum dtype dtype)
{
    static const unsigned char bytes[N_DTYPES] = {4, 2, 2, 4, 1, 1};
    return bytes[dtype];
}

static inline const char *dtype_name(enum dtype dtype)
{
    static const char *const names[] = {"f32", "f16", "bf16", "i32", "int8", "int4"};
    return names[dtype];
}

/* Memory of one device. `host` is its address for the CPU, or NULL where the CPU cannot reach it.
 */
struct buffer {
    void *host;
    void *handle; /* the device's own */
    size_t bytes;
};

struct tensor {
    const struct buffer *buffer;
    size_t offset; /* bytes from the buffer's start */
    enum dtype dtype;
    int32_t rows, cols;
    int32_t stride; /* elements between two rows */
};

static inline struct tensor tensor_rows(struct tensor t, int32_t first, int32_t n)
{
    t.offset += (size_t)first * (size_t)t.stride * dtype_bytes(t.dtype);
    t.rows = n;
    return t;
}

static inline struct tensor tensor_cols(struct tensor t, int32_t first, int32_t n)
{
    t.offset += (size_t)first * dtype_bytes(t.dtype);
    t.cols = n;
    return t;
}

/* Address of element [row, 0] for the CPU; the buffer must be one that it reaches. */
static inline void *tensor_at(const struct tensor *t, int32_t row)
{
    return (char *)t->buffer->host + t->offset +
           (size_t)row * (size_t)t->stride * dtype_bytes(t->dtype);
}

#endif
