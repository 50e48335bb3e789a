/* Every operation of a device, declared once, and the table that a device fills.
 *
 * Shapes are [rows, cols]; T is the number of token rows of a step. Activations are f32 unless a
 * comment says otherwise. Ops are queued in order and cannot fail; what a device cannot run it
 * refuses at load. Argument structs are borrowed for the call, tensors until
 * device_sync. Tolerances are against the scalar twin (device/cpu, CPU_ISA_SCALAR), which
 * accumulates in double. */
#ifndef CSGL_DEVICE_OPS_H
#define CSGL_DEVICE_OPS_H

#include "base/error.h"
#include "base/weight.h"
#include "device/tensor.h"

#include <stdbool.h>
#include <stdint.h>

struct device;

/* --- weights ---------------------------------------------------------------------------------- */

/* A part of a weight: rows [row, row + rows) and columns [col, col + cols) of `weight`, columns on
 * block borders; all columns, where the weight has an order of its own. `bias` is f32 [rows]
 * (already sliced) or NULL. */
struct weight_slice {
    struct weight weight;
    int64_t row, rows, col, cols;
    const float *bias;
};

enum { LINEAR_MAX_PARTS = 4 };

/* A device's own copy of a weight in its own layout; several parts share one input (q/k/v,
 * gate/up). Opaque outside the device. */
struct linear;

/* A table whose rows are looked up by id. Opaque outside the device. */
struct embedding;

/* --- paged KV --------------------------------------------------------------------------------- */

/* What one layer keeps for a token. The bytes inside a page are the device's affair. */
struct kv_layout {
    int32_t page_size; /* tokens a page, a power of two */
    int32_t n_heads;   /* KV heads */
    int32_t head_dim;
    enum dtype dtype; /* F32, F16 or BF16 */
};

/* One layer's pages: n_pages * kv_page_bytes at `offset` of `buffer`. */
struct kv_pages {
    const struct buffer *buffer;
    size_t offset;
    struct kv_layout layout;
};

/* --- argument structs ------------------------------------------------------------------------- */

/* out[t] = table[ids[t]]. ids i32 [T, 1], each in [0, rows). Exact. */
struct embed_args {
    const struct embedding *table;
    struct tensor ids;
    struct tensor out; /* [T, H] */
};

/* With residual: residual += x, then out = norm(residual); otherwise out = norm(x).
 * norm(v) = v / sqrt(mean(v^2) + eps) * (w + plus_one). Without `out.buffer` only the sum is done.
 * Relative 1e-5. */
struct rms_norm_args {
    struct tensor x;        /* [T, H] */
    struct tensor residual; /* [T, H], in and out; buffer NULL: none */
    struct tensor weight;   /* [1, H] */
    struct tensor out;      /* [T, H], may be x */
    float eps;
    bool plus_one;
};

/* out[t, :] = x[t, :] W^T + bias, the parts' outputs side by side in the order of loading.
 * Float mode: 1e-5 * sum |x w| of the row. int8 mode: the twin in int8 mode, same bound. */
struct linear_args {
    const struct linear *linear;
    struct tensor x;   /* [T, K] */
    struct tensor out; /* [T, sum of rows] */
};

/* out[t, 2i] , out[t, 2i+1] = scale * cos(a), scale * sin(a), a = position[t] * inv_freq[i] in f32.
 * 1e-6. */
struct rope_angles_args {
    struct tensor positions; /* i32 [T, 1] */
    struct tensor inv_freq;  /* [1, R/2] */
    struct tensor out;       /* [T, R] */
    float scale;
};

/* In place on q and k: per-head RMSNorm when a weight is given, then half-split RoPE on the first R
 * dims of each head: (x[i], x[i + R/2]) rotated by angle i. 1e-5 relative to the head's norm. */
struct qk_norm_rope_args {
    struct tensor q;      /* [T, n_q * D] */
    struct tensor k;      /* [T, n_kv * D] */
    struct tensor angles; /* [T, R], from rope_angles */
    struct tensor q_norm; /* [1, D]; buffer NULL: none */
    struct tensor k_norm;
    int32_t head_dim;
    float eps;
    bool plus_one;
};

/* Writes row t of k and v to slot slots[t] = page * page_size + place. Rounds to the KV dtype. */
struct kv_store_args {
    struct kv_pages pages;
    struct tensor k, v;  /* [T, n_kv * D] */
    struct tensor slots; /* i32 [T, 1] */
};

/* Ragged causal attention over pages. Sequence i owns rows q_start[i] .. q_start[i+1] of q; its new
 * tokens are the last ones of its kv_len[i] tokens, already stored. Row r at place p sees places
 * max(0, p - window + 1) .. p (window 0: all). Head h reads KV head h / (n_q / n_kv).
 * One pass with online softmax; scores are never materialised.
 * 1e-5 relative to max |v| with f32 KV in float mode; otherwise products may be rounded to bf16:
 * 1e-2. */
struct paged_attention_args {
    struct kv_pages pages;
    struct tensor q;          /* [T, n_q * D] */
    struct tensor out;        /* [T, n_q * D] */
    struct tensor q_start;    /* i32 [n + 1, 1] */
    struct tensor kv_len;     /* i32 [n, 1] */
    struct tensor page_table; /* i32 [n, max_pages] */
    int32_t n_sequences;
    int32_t n_q_heads;
    int32_t window;
    float scale;
};

/* out = silu(gate) * up, from one row [gate | up]. Relative 1e-5. */
struct silu_mul_args {
    struct tensor gate_up; /* [T, 2I] */
    struct tensor out;     /* [T, I] */
};

/* out[i] = x[rows[i]]. Exact. */
struct gather_args {
    struct tensor x;    /* [T, H] */
    struct tensor rows; /* i32 [n, 1] */
    struct tensor out;  /* [n, H] */
};

#define DEVICE_OPS(X)                                                                              \
    X(embed)                                                                                       \
    X(rms_norm)                                                                                    \
    X(linear)                                                                                      \
    X(rope_angles)                                                                                 \
    X(qk_norm_rope)                                                                                \
    X(kv_store)                                                                                    \
    X(paged_attention)                                                                             \
    X(silu_mul)                                                                                    \
    X(gather)

#define DEVICE_OP_POINTER(name) void (*name)(struct device *, const struct name##_args *);

/* What a device implements. */
struct device_table {
    DEVICE_OPS(DEVICE_OP_POINTER)

    /* Zeroed memory, aligned to at least 64 bytes. */
    enum status (*buffer_alloc)(struct device *, size_t bytes, struct buffer *out, struct error *);
    void (*buffer_free)(struct device *, struct buffer *);

    /* Copies slices (1 .. LINEAR_MAX_PARTS, same cols and order) into the device's layout. The
     * slices' weights may be released afterwards. `max_rows` bounds T of later calls (sizes the
     * workspace).
     */
    enum status (*linear_load)(struct device *, const struct weight_slice *slices, int n_slices,
                               int32_t max_rows, struct linear **out, struct error *);
    void (*linear_free)(struct device *, struct linear *);
    /* Bytes that linear_load would take for these slices: for the memory plan. */
    size_t (*linear_bytes)(struct device *, const struct weight_slice *slices, int n_slices);

    /* May keep reading `weight`'s bytes for its life. */
    enum status (*embedding_load)(struct device *, const struct weight *weight,
                                  struct embedding **out, struct error *);
    void (*embedding_free)(struct device *, struct embedding *);

    size_t (*kv_page_bytes)(const struct device *, const struct kv_layout *layout);
    /* Sizes the workspace for attention steps of at most max_rows rows and max_sequences sequences.
     */
    enum status (*attention_reserve)(struct device *, const struct kv_layout *layout,
                                     int32_t n_q_heads, int32_t max_rows, int32_t max_sequences,
                                     struct error *);

    /* Waits for everything queued; the first fault of any op since the last call, sticky. */
    enum status (*sync)(struct device *, struct error *);
    void (*close)(struct device *);
};

struct device {
    const struct device_table *table;
    const char *name; /* "cpu" */
};

#undef DEVICE_OP_POINTER

/* Calls read `device_rms_norm(device, &args)`. */
#define DEVICE_OP_CALL(name)                                                                       \
    static inline void device_##name(struct device *device, const struct name##_args *args)        \
    {                                                                                              \
        device->table->name(device, args);                                                         \
    }
DEVICE_OPS(DEVICE_OP_CALL)
#undef DEVICE_OP_CALL

#endif
