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
#include "base/thread_pool.h"
#include "base/weight.h"
#include "device/tensor.h"

#include <stdbool.h>
#include <stdint.h>

struct device;

/* --- weights ---------------------------------------------------------------------------------- */

/* Which rows of a stored weight make a matrix: its row i is first + i / run * stride + i % run of
 * the stored ones. run 0: i. So parts that a file interleaves, head by head, are read apart. */
struct row_pattern {
    int64_t first;
    int32_t run, stride;
};

static inline int64_t row_pattern_at(const struct row_pattern *p, int64_t i)
{
    return p->run ? p->first + i / p->run * p->stride + i % p->run : i;
}

/* A part of a weight: rows [row, row + rows), counted in its pattern, and columns [col, col + cols)
 * of `weight`, columns on block borders; all columns, where the weight has an order of its own.
 * `bias` is f32 [rows] (already sliced) or NULL. */
struct weight_slice {
    struct weight weight;
    int64_t row, rows, col, cols;
    const float *bias;
    struct row_pattern pattern;
    bool keeps_f32; /* the inputs are not rounded, in whatever mode the device is (routers) */
};

/* What linears make of their inputs. A device opened with AUTO chooses: int8 on a CPU that
 * multiplies it at once, 16 bits where a GPU's matrix units take them, else FLOAT. */
enum activations {
    ACTIVATIONS_AUTO,
    ACTIVATIONS_FLOAT, /* nothing */
    ACTIVATIONS_INT8   /* for weights of codes int8, a scale for each row and 32 columns; for bf16
                          weights bf16 */
};

enum { LINEAR_MAX_PARTS = 4 };

/* A device's own copy of a weight in its own layout; several parts share one input (q/k/v,
 * gate/up). Opaque outside the device. */
struct linear;

/* A table whose rows are looked up by id. Opaque outside the device. */
struct embedding;

/* One expert of a mixture: gate and up [I, H], down [H, I]. */
struct expert_slices {
    struct weight_slice gate, up, down;
};

enum { MOE_MAX_EXPERTS = 4096 };

/* Where a device takes experts from, one after another, so that not all of a layer's need to be in
 * memory at once. `open` fills the slices of an expert, whose bytes and biases stay there until
 * `close` is told of it. */
struct expert_source {
    enum status (*open)(void *context, int32_t expert, struct expert_slices *out,
                        struct error *error);
    void (*close)(void *context, int32_t expert, const struct expert_slices *slices);
    void *context;
};

/* What a weight takes: bytes of its own, and bytes of the workspace that all of a device share, so
 * that the largest counts. */
struct device_bytes {
    size_t own, workspace;
};

/* A device's own copy of the experts of a layer. Opaque outside the device. */
struct experts;

/* --- paged KV --------------------------------------------------------------------------------- */

/* What one layer keeps for a token. The bytes inside a page are the device's affair. */
struct kv_layout {
    int32_t page_size; /* tokens a page, a power of two */
    int32_t n_heads;   /* KV heads */
    int32_t head_dim;
    enum dtype dtype; /* F32, F16, BF16; I8 or I4 where the device has them */
};

/* One layer's pages: n_pages * kv_page_bytes at `offset` of `buffer`. */
struct kv_pages {
    const struct buffer *buffer;
    size_t offset;
    struct kv_layout layout;
};

/* --- recurrent states ------------------------------------------------------------------------- */

/* What a sequence keeps besides KV: per gated-delta layer a state [n_v_heads][k_dim][v_dim] and the
 * last conv_rows pre-conv rows of conv_channels = 2 n_k_heads k_dim + n_v_heads v_dim values. On
 * this rank. n_layers 0: the model keeps nothing. The bytes inside a slot are the device's affair.
 */
struct state_layout {
    int32_t n_layers, n_v_heads, k_dim, v_dim, conv_channels, conv_rows;
    enum dtype dtype; /* of the state: F32 or BF16 */
    bool is_tiled;    /* value head j goes with key head j % n_k_heads, not j / (n_v / n_k) */
};

/* One layer's slots: n_slots * slot_bytes at `offset` of `buffer`; a slot holds one sequence's
 * state after some token. */
struct state_slots {
    const struct buffer *buffer;
    size_t offset;
    size_t slot_bytes; /* from the device's state_slot_bytes */
    int32_t n_slots;
    struct state_layout layout;
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
 * Float mode: 1e-5 * sum |x w| of the row. int8 mode: the twin in int8 mode, same bound. A GPU in
 * auto mode may round x to bf16 where weights are bf16 (2^-8 * sum |x w|), else to f16. So it may
 * in int8 mode: for weights that are no codes or, as MXFP4's, floats of 4 bits; and for more than
 * 16 rows the values that the codes stand for. */
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
 * dims of each head: (x[i], x[i + R/2]) rotated by angle i. With norm_last the rotation comes
 * first. 1e-5 relative to the head's norm. */
struct qk_norm_rope_args {
    struct tensor q;      /* [T, n_q * D] */
    struct tensor k;      /* [T, n_kv * D] */
    struct tensor angles; /* [T, R], from rope_angles */
    struct tensor q_norm; /* [1, D]; buffer NULL: none */
    struct tensor k_norm;
    int32_t head_dim;
    float eps;
    bool plus_one;
    bool norm_last;
};

/* Writes row t of k and v to slot slots[t] = page * page_size + place. Rounds to the KV dtype. Of a
 * page's tokens one may be written when those before it are, and all that it held from its place on
 * is lost. */
struct kv_store_args {
    struct kv_pages pages;
    struct tensor k, v;  /* [T, n_kv * D] */
    struct tensor slots; /* i32 [T, 1] */
};

/* Copies whole pages of one layer, pair after pair in this order: page pairs[i, 1] becomes what
 * page pairs[i, 0] is. Exact. */
struct kv_copy_page_args {
    struct kv_pages pages;
    struct tensor pairs; /* i32 [n, 2] */
};

/* Ragged causal attention over pages. Sequence i owns rows q_start[i] .. q_start[i+1] of q; its new
 * tokens are the last ones of its kv_len[i] tokens, already stored. Row r at place p sees places
 * max(0, p - window + 1) .. p (window 0: all). Head h reads KV head h / (n_q / n_kv). With sinks a
 * head sees one more key, whose score is sinks[h] (not scaled) and whose value is 0.
 * One pass with online softmax; scores are never materialised.
 * 1e-5 relative to max |v| in float mode, to what the pages hold; otherwise products may be rounded
 * to bf16: 1e-2. */
struct paged_attention_args {
    struct kv_pages pages;
    struct tensor q;          /* [T, n_q * D] */
    struct tensor out;        /* [T, n_q * D] */
    struct tensor q_start;    /* i32 [n + 1, 1] */
    struct tensor kv_len;     /* i32 [n, 1] */
    struct tensor page_table; /* i32 [n, max_pages] */
    struct tensor sinks;      /* [1, n_q]; buffer NULL: none */
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

/* ids[t] = drawn[from[t]] where from[t] >= 0, or 0 where that is negative: a token that an earlier
 * step has drawn, which the host need not have read. Exact. */
struct fill_ids_args {
    struct tensor ids;   /* i32 [T, 1], in and out */
    struct tensor from;  /* i32 [T, 1], each < n */
    struct tensor drawn; /* i32 [n, 1] */
};

/* out = x * sigmoid(gate), value by value. Relative 1e-5. */
struct sigmoid_mul_args {
    struct tensor x;    /* [T, n] */
    struct tensor gate; /* [T, n] */
    struct tensor out;  /* [T, n], may be x */
};

/* Each head of D values for itself: out = norm(x) * silu(z), norm(v) = v / sqrt(mean(v^2) + eps) *
 * w. Relative 1e-5. */
struct gated_norm_args {
    struct tensor x;      /* [T, n * D] */
    struct tensor z;      /* [T, n * D] */
    struct tensor weight; /* [1, D] */
    struct tensor out;    /* [T, n * D], may be x */
    float eps;
};

/* Depthwise causal convolution over the rows of each sequence, which go on from those in its slot:
 * out[t] = silu(sum over j of weight[j] * x[t - conv_rows + j]). Writes the last conv_rows rows
 * back. A slot that is written belongs to one sequence of the step; no other one reads it.
 * Absolute 1e-5 * sum |w x|. */
struct conv1d_update_args {
    struct state_slots slots;
    struct tensor x;         /* [T, C] */
    struct tensor weight;    /* [conv_rows + 1, C] */
    struct tensor out;       /* [T, C], not x */
    struct tensor q_start;   /* i32 [n + 1, 1] */
    struct tensor state_in;  /* i32 [n, 1]; -1: zeros */
    struct tensor state_out; /* i32 [n, 1], may equal state_in; -1: not written */
    struct tensor snapshots; /* i32 [n_snapshots, 2] of (row, slot), rows ascending */
};

/* The gated delta rule (arXiv:2412.06464) over each sequence's rows, from the state in its slot.
 * With q and k of length 1 (x / sqrt(sum x^2 + 1e-6)) and q times k_dim^-1/2, per value head:
 *
 *     g = -rate * softplus(a + dt_bias);  beta = sigmoid(b)
 *     S = e^g S;  delta = beta (v - S^T k);  S = S + k delta^T;  out = S^T q
 *
 * Value head j uses key head j / (n_v_heads / n_k_heads), or as the layout says. Chunks of rows are
 * computed together; that changes nothing beyond 1e-5. Absolute 1e-5 * max |v|, also for the state.
 */
struct gated_delta_args {
    struct state_slots slots;
    struct tensor qkv;     /* [T, conv_channels]: all q, all k, all v */
    struct tensor a, b;    /* [T, n_v_heads] */
    struct tensor rate;    /* [1, n_v_heads], e^A_log */
    struct tensor dt_bias; /* [1, n_v_heads] */
    struct tensor out;     /* [T, n_v_heads * v_dim] */
    struct tensor q_start; /* as in conv1d_update, with its rules */
    struct tensor state_in;
    struct tensor state_out;
    struct tensor snapshots;
    struct tensor tape; /* [T, gated_delta_tape_cols]: what a commit needs; buffer NULL: none */
};

/* Columns of a tape: all delta, all k (of length 1), all g. */
static inline int32_t gated_delta_tape_cols(const struct state_layout *layout)
{
    int32_t v = layout->n_v_heads * layout->v_dim;
    return v + (layout->conv_channels - v) / 2 + layout->n_v_heads;
}

/* Moves the states of both ops above past the first `n_accepted` rows of each sequence, after a
 * step that wrote a tape and no state. The state is that of a step with these rows alone: within
 * 2e-7 where the sequence had at most 16 rows, else 1e-5. */
struct gated_delta_commit_args {
    struct state_slots slots;
    struct tensor x;          /* [T, C]: the rows before the convolution */
    struct tensor tape;       /* [T, gated_delta_tape_cols] */
    struct tensor q_start;    /* i32 [n + 1, 1] */
    struct tensor n_accepted; /* i32 [n, 1], 0 .. the sequence's rows */
    struct tensor state_in;   /* i32 [n, 1], as in that step */
    struct tensor state_out;  /* i32 [n, 1], may equal state_in */
};

/* The K experts with the largest logits of each row, largest first, of equal ones the lower; their
 * weights are softmax(logits) over all experts or, if is_normalised, over the chosen ones (which is
 * the same as dividing by the chosen ones' sum). Not a number counts as the smallest. Experts
 * exact, weights relative 1e-5. */
struct moe_route_args {
    struct tensor logits;  /* [T, E], K <= E <= MOE_MAX_EXPERTS */
    struct tensor experts; /* i32 [T, K] */
    struct tensor weights; /* [T, K] */
    bool is_normalised;
};

/* What a gated feed-forward block multiplies: silu(gate) * up, or gpt-oss's
 * (clamp(up, -limit, limit) + 1) * g * sigmoid(alpha * g), g = min(gate, limit). */
enum activation { ACTIVATION_SILU, ACTIVATION_CLAMPED_SWIGLU };

/* out[t] = sum_k weights[t, k] * FFN(experts[t, k], x[t]) + s * shared[t],
 * FFN(e, v) = down_e act(gate_e v, up_e v); s = sigmoid(shared_gate[t]), 1 without a gate.
 * The sum runs in the order of the experts' numbers, so that a row does not depend on the others.
 * Each chosen expert's weights are read once for up to a thousand rows. Tolerance as linear's. */
struct moe_ffn_args {
    const struct experts *stack;
    struct tensor x;           /* [T, H] */
    struct tensor experts;     /* i32 [T, K], each in [0, E) */
    struct tensor weights;     /* [T, K] */
    struct tensor shared;      /* [T, H]; buffer NULL: none */
    struct tensor shared_gate; /* [T, 1]; buffer NULL: none */
    struct tensor out;         /* [T, H], may be x or shared */
    enum activation activation;
    float alpha, limit; /* of CLAMPED_SWIGLU */
};

/* Slot `to` = slot `from` of one layer. Exact. */
struct state_copy_args {
    struct state_slots slots;
    int32_t from, to;
};

/* What becomes of the logit l of a token in a row: l += bias; l = l > 0 ? l / penalty : l *
 * penalty; l -= minus. */
struct logit_edit {
    int32_t row, token;
    float bias, penalty, minus;
    float before; /* l itself, filled by the op */
};

enum { LOGIT_EDIT_WORDS = 6 };

/* Exact. */
struct edit_logits_args {
    struct tensor logits; /* [n, V], in and out */
    struct tensor edits;  /* i32 [m, LOGIT_EDIT_WORDS]: struct logit_edit; a place at most once */
    bool is_undo;         /* logits become again what they were before the same edits */
};

/* How the token of a row is drawn, from weights that are whole numbers, so that a sum of them is
 * the same in any order and each device draws the same token:
 *
 *     weight = floor(2^SAMPLE_WEIGHT_BITS * e^((l - max) * inverse))
 *
 * with e^ computed as the CPU's row kernel weigh does it, fma by fma. A NaN weighs 0. Tokens of
 * weight 0 are never drawn. Ranks: larger logits first, of equal ones the lower id. Kept are the
 * first top_k in rank; of these the first whose weights reach share / 2^32 of theirs together; of
 * these the ones that weigh at least `least`. Drawn is the first kept token at which the sum of
 * weights passes number / 2^64 of the kept ones', in order of rank, or of ids where nothing is cut
 * (top_k, share and least are off).
 */
struct sample_row {
    uint64_t number; /* uniform in 0 .. 2^64 - 1 */
    uint64_t least;  /* min-p, of 2^SAMPLE_WEIGHT_BITS; at least 1, which is off */
    float inverse;   /* of the temperature, finite; 0: the first in rank */
    int32_t top_k;   /* 0: off */
    uint32_t share;  /* top-p; 0: off */
    int32_t token;   /* >= 0: this one, and nothing is drawn */
};

enum { SAMPLE_ROW_WORDS = 8, SAMPLE_WEIGHT_BITS = 40, SAMPLE_MAX_TOKENS = 1 << 22 };

/* What some row of a call asks for. */
enum sample_uses { SAMPLE_DRAWS = 1, SAMPLE_TOP_K = 2, SAMPLE_TOP_P = 4, SAMPLE_MIN_P = 8 };

/* tokens[i] is drawn from logits[i]; -1 where the largest is not finite. Exact. */
struct sample_args {
    struct tensor logits; /* [n, V] */
    struct tensor rows;   /* i32 [n, SAMPLE_ROW_WORDS]: struct sample_row */
    struct tensor tokens; /* i32 [n, 1] */
    unsigned uses;        /* enum sample_uses */
};

/* Logarithms of the probabilities softmax(logits[i]): of token tokens[i] (not a number for -1) and
 * of the most likely tokens, first in rank (of sample_row) first; where there are too few that are
 * numbers, the id is -1. Absolute 1e-5. */
struct logprobs_args {
    struct tensor logits;       /* [n, V] */
    struct tensor tokens;       /* i32 [n, 1] */
    struct tensor logprobs;     /* [n, 1] */
    struct tensor top_tokens;   /* i32 [n, n_top]; n_top may be 0 */
    struct tensor top_logprobs; /* [n, n_top] */
};

#define DEVICE_OPS(X)                                                                              \
    X(embed)                                                                                       \
    X(rms_norm)                                                                                    \
    X(linear)                                                                                      \
    X(rope_angles)                                                                                 \
    X(qk_norm_rope)                                                                                \
    X(kv_store)                                                                                    \
    X(kv_copy_page)                                                                                \
    X(paged_attention)                                                                             \
    X(silu_mul)                                                                                    \
    X(gather)                                                                                      \
    X(fill_ids)                                                                                    \
    X(state_copy)                                                                                  \
    X(moe_route)                                                                                   \
    X(moe_ffn)                                                                                     \
    X(sigmoid_mul)                                                                                 \
    X(gated_norm)                                                                                  \
    X(conv1d_update)                                                                               \
    X(gated_delta)                                                                                 \
    X(gated_delta_commit)                                                                          \
    X(edit_logits)                                                                                 \
    X(sample)                                                                                      \
    X(logprobs)

enum { DEVICE_MAX_READ = 1 << 20 /* bytes of one read_queue */ };

#define DEVICE_OP_POINTER(name) void (*name)(struct device *, const struct name##_args *);

/* What a device implements. */
struct device_table {
    DEVICE_OPS(DEVICE_OP_POINTER)

    /* Zeroed memory, aligned to at least 64 bytes. */
    enum status (*buffer_alloc)(struct device *, size_t bytes, struct buffer *out, struct error *);
    void (*buffer_free)(struct device *, struct buffer *);
    /* Copies between the caller's memory and a buffer from `offset` on, whether the CPU reaches it
     * or not. Everything queued is done before. */
    enum status (*buffer_write)(struct device *, const struct buffer *to, size_t offset,
                                const void *from, size_t bytes, struct error *);
    enum status (*buffer_read)(struct device *, const struct buffer *from, size_t offset, void *to,
                               size_t bytes, struct error *);

    /* Ops and writes run after they were called, in the order of the calls, so that work can be
     * queued behind work whose results nobody has read yet. */
    bool has_queue;
    /* read_queue copies up to DEVICE_MAX_READ bytes of a buffer, as they are when all that was
     * called before is done, to memory that belongs to the copy until read_wait has waited for it,
     * and for nothing behind it. Then the faults of what came before are known. Two copies, `i` 0
     * and 1, may be under way. */
    enum status (*read_queue)(struct device *, const struct buffer *from, size_t offset, void *to,
                              size_t bytes, int i, struct error *);
    enum status (*read_wait)(struct device *, int i, struct error *);

    /* Copies slices (1 .. LINEAR_MAX_PARTS, same cols and order) into the device's layout. The
     * slices' weights may be released afterwards, but those that it reads_in_place. `max_rows`
     * bounds T of later calls (sizes the workspace). */
    enum status (*linear_load)(struct device *, const struct weight_slice *slices, int n_slices,
                               int32_t max_rows, struct linear **out, struct error *);
    void (*linear_free)(struct device *, struct linear *);
    /* Whether linear_load makes no copy of the slice, nor embedding_load one of such a table: its
     * weight's bytes are read where they are, and must stay for the layer's life. NULL: linears are
     * always copied. */
    bool (*reads_in_place)(const struct device *, const struct weight_slice *slice);
    /* Bytes that linear_load would take for these slices, and those that it reads in place: for the
     * memory plan. SIZE_MAX: too many. */
    struct device_bytes (*linear_bytes)(struct device *, const struct weight_slice *slices,
                                        int n_slices, int32_t max_rows);

    /* Bytes of a loaded linear that a call reads: its weights and biases in the device's layout. */
    size_t (*linear_size)(const struct linear *);
    /* Copies experts that all have the same shape; every one that was opened is closed, also after
     * an error. `max_rows` bounds T and `top_k` K of later calls. */
    enum status (*experts_load)(struct device *, const struct expert_source *source,
                                int32_t n_experts, int32_t top_k, int32_t max_rows,
                                struct experts **out, struct error *);
    void (*experts_free)(struct device *, struct experts *);
    /* Bytes that experts_load would take. */
    struct device_bytes (*experts_bytes)(struct device *, const struct expert_slices *experts,
                                         int32_t n_experts, int32_t top_k, int32_t max_rows);
    /* Bytes of one loaded expert, as linear_size; `inner` becomes the outputs of its gate. */
    size_t (*expert_size)(const struct experts *, int32_t *inner);

    /* May keep reading `weight`'s bytes for its life. */
    enum status (*embedding_load)(struct device *, const struct weight *weight,
                                  struct embedding **out, struct error *);
    void (*embedding_free)(struct device *, struct embedding *);
    /* Bytes that its rows take: of the file's pages where they are read there. */
    uint64_t (*embedding_bytes)(const struct weight *weight);

    size_t (*kv_page_bytes)(const struct device *, const struct kv_layout *layout);
    /* Sizes the workspace for attention steps of at most max_rows rows and max_sequences sequences,
     * and what that takes; 0 for what is refused. */
    enum status (*attention_reserve)(struct device *, const struct kv_layout *layout,
                                     int32_t n_q_heads, int32_t max_rows, int32_t max_sequences,
                                     struct error *);
    size_t (*attention_workspace)(struct device *, const struct kv_layout *layout,
                                  int32_t n_q_heads, int32_t max_rows, int32_t max_sequences);

    /* From now on tells `observer` (kept; NULL ends it) what the device's further threads do. */
    void (*observe)(struct device *, const struct thread_observer *observer);
    /* Bytes of one layer's slot, a multiple of 64. */
    size_t (*state_slot_bytes)(const struct device *, const struct state_layout *layout);
    /* Sizes the workspace for gated_delta; refuses shapes that the device cannot run. And what that
     * takes. */
    enum status (*gated_delta_reserve)(struct device *, const struct state_layout *layout,
                                       struct error *error);
    size_t (*gated_delta_workspace)(struct device *, const struct state_layout *layout);

    /* Sizes the workspace for sampling from rows of n_tokens logits, max_rows at once; refuses more
     * than SAMPLE_MAX_TOKENS. And what that takes. */
    enum status (*sample_reserve)(struct device *, int32_t n_tokens, int32_t max_rows,
                                  struct error *);
    size_t (*sample_workspace)(struct device *, int32_t n_tokens, int32_t max_rows);

    /* Ops of different kinds take turns with one workspace: the largest counts, not their sum. */
    bool shares_workspace;

    /* Bytes that may still be taken; 0: not known. */
    uint64_t (*memory_available)(const struct device *);

    /* Of a device that runs ops after they were called; both NULL where an op is done when its call
     * returns. mark notes, as mark `i`, the time at which what was queued so far is done; after a
     * sync `marked` tells the seconds from one mark to another. */
    void (*mark)(struct device *, int i);
    enum status (*marked)(struct device *, int from, int to, double *seconds, struct error *);

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
