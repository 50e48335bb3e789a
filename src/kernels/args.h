/* The argument structs of the kernels, shared by the host and every target: words of 4 bytes, and
 * of 8 at multiples of 8. Strides and counts are in elements. */
#ifndef CSGL_KERNELS_ARGS_H
#define CSGL_KERNELS_ARGS_H

#ifndef KD_KERNELS
#include <stdint.h>
#endif

enum {
    KD_SIMD_WIDTH = 32,
    KD_ROW_THREADS = 256, /* of kernels that give a threadgroup to a row */
    KD_MAX_SIMDS = KD_ROW_THREADS / KD_SIMD_WIDTH,
    KD_MAX_HEAD_DIM = 512,
    KD_MAX_HEAD_PARTS = KD_MAX_HEAD_DIM / KD_SIMD_WIDTH,
    KD_MAX_HEAD_UNITS = KD_MAX_HEAD_DIM / KD_ROW_THREADS /* of a thread: rope.metal */
};

/* In the order of enum dtype and, its floats, of enum weight_encoding. */
enum kd_dtype { KD_F32, KD_F16, KD_BF16, KD_I8 = 4 /* in pages alone */ };

struct kd_no_args {
    uint32_t unused;
};

struct kd_rms_norm {
    uint32_t cols;
    uint32_t x_stride, residual_stride, out_stride;
    uint32_t has_residual, has_out;
    float eps, plus; /* plus: 1 or 0, added to the weights */
};

struct kd_rope_angles {
    uint32_t pairs; /* a row: half the dims */
    uint32_t positions_stride, out_stride;
    float scale;
};

struct kd_norm_rope {
    uint32_t head_dim, rotated; /* rotated: the dims at its start that turn */
    uint32_t q_stride, k_stride, angles_stride;
    uint32_t n_q_heads;
    uint32_t n_simds; /* of a threadgroup: a thread for each unit, or KD_ROW_THREADS */
    uint32_t has_q_norm, has_k_norm, is_norm_last;
    float eps, plus;
};

struct kd_silu_mul {
    uint32_t cols; /* of out */
    uint32_t gate_up_stride, out_stride;
};

struct kd_sigmoid_mul {
    uint32_t cols;
    uint32_t x_stride, gate_stride, out_stride;
};

struct kd_gated_norm {
    uint32_t head_dim;
    uint32_t x_stride, z_stride, out_stride;
    float eps;
};

struct kd_gather {
    uint32_t words; /* of 2 bytes, a row */
    uint32_t rows_stride;
    uint32_t x_words, out_words; /* strides */
};

struct kd_fill_ids {
    uint32_t n;
};

struct kd_moe_route {
    uint32_t n_experts, n_chosen;
    uint32_t logits_stride, experts_stride, weights_stride;
    uint32_t is_normalised;
};

/* Weights: matrices [rows][cols] one behind another, each a run of bytes that begins on 16. */
enum kd_form {
    KD_FORM_FLOAT, /* values of `dtype` */
    KD_FORM_CODES, /* scale * code + bias: a row is a little-endian stream of codes of `bits` */
    KD_FORM_E4M3   /* scale * the value of an E4M3 byte */
};

struct kd_weight {
    uint64_t matrix_bytes;
    uint64_t scales, biases; /* f32 [rows][n_groups], bytes from the matrix's start */
    uint64_t out_bias;       /* f32 [rows], likewise; 0: none */
    uint64_t order;          /* i32 [cols], likewise: the input of each column; 0: its own */
    uint32_t form, dtype, bits, group;
    uint32_t rows, cols, row_bytes, n_groups;
};

struct kd_embed {
    struct kd_weight weight; /* without an order */
    uint32_t ids_stride, out_stride;
    uint32_t rounds_products; /* of scales and codes, before a bias is added */
    uint32_t unused;
};

enum { KD_DOT_THREADS = 128, KD_DOTS = KD_DOT_THREADS / KD_SIMD_WIDTH };

struct kd_linear {
    struct kd_weight weight;
    uint32_t x_stride, out_stride;
};

/* Native linears (kernels/cuda): weights as tiles of 16 rows and 64 columns, which the matrix unit
 * reads as they lie (device/gpu/gpu_tiles.c); columns are filled up to whole tiles, rows of tiles
 * and of the input to what the largest threadgroup takes. */
enum {
    KD_TILE_ROWS = 16,
    KD_TILE_COLS = 64,
    KD_TILE_STACK = 16,      /* rows of tiles are filled up to a multiple of this */
    KD_INPUT_STACK = 128,    /* and rows of the input to one of this */
    KD_INPUT_THREADS = 1024, /* at most, as is the next */
    KD_FLAT_THREADS = 512,
    KD_MANY_THREADS = 256,
    KD_MANY_STAGES = 4,
    KD_WIDE_BYTES = 224 << 10, /* of a threadgroup's memory, and of these */
    KD_WIDE_REST_BYTES = 2048, /* beside the stages: barriers, to align */
    KD_WIDE_COPIERS = 128      /* threads of a threadgroup that bring what the others multiply */
};

struct kd_tiles {
    uint32_t rows, n_tiles; /* outputs; tiles along the columns */
    uint32_t level_shift;   /* 2^level_shift tiles share their levels */
    uint32_t is_bf16;       /* levels of 2 bytes, and values, are bf16, not f16 */
    uint32_t n_rows;        /* of the input */
    uint32_t n_terms;     /* rows of 16-bit values that a row of the input is the sum of: 1 or 2 */
    uint32_t term_stride; /* rows between the terms: n_rows filled up */
    uint32_t out_stride;
};

/* What native linears multiply in place of values of f32: such of 16 bits; in int8 mode, for
 * weights of codes, codes of 8 bits, with a scale for each 32 columns; or 16-bit values of what
 * these codes stand for, where there are so many rows that kernels for 16-bit values take them. */
enum kd_rounding { KD_ROUND_16, KD_ROUND_INT8, KD_ROUND_INT8_16 };

/* Rows of f32 into rows of 16-bit values [n_terms][term_stride][positions], times a factor that
 * keeps f16 in its range, and their sums over `span` positions [positions / span][n_terms]
 * [term_stride]. factors [n_rows] undo that factor and, where there are sums, the 2^-24 of codes as
 * f16. For linear_wide, is_paired: no sums, and the values of a tile in another order.
 *
 * KD_ROUND_INT8: codes [term_stride][positions], sums of codes times their scales, and in place of
 * the factors the scales [positions / 64][term_stride / 2][2 halves of 32][2 rows]; the order of
 * codes in a tile is that of cuda/int8_order.h. */
struct kd_inputs {
    uint32_t cols, positions; /* positions: cols filled up to whole tiles */
    uint32_t x_stride, n_terms;
    uint32_t is_bf16, has_order;
    uint32_t span; /* 64, 32 or 16, of which the last has an order of its own; 0: no sums */
    uint32_t term_stride;
    uint32_t is_paired;
    uint32_t rounding; /* enum kd_rounding */
};

/* A norm or an activation that also writes what a native linear reads of its output, whose columns
 * are `inputs.cols`. */
enum { KD_KEPT_QUADS = 4 /* positions four by four that a thread keeps */ };

struct kd_norm_inputs {
    struct kd_rms_norm norm; /* has_out */
    struct kd_inputs inputs; /* no has_order */
};

struct kd_silu_inputs {
    struct kd_silu_mul silu;
    struct kd_inputs inputs; /* likewise */
};

/* Experts as tiles: rows of the input, one for each of the experts a row has chosen, lie sorted by
 * expert, at places of which each expert's first is a multiple of KD_PLACE_ALIGN, so that sums are
 * loaded four by four. A slot is what a threadgroup takes of an expert's places. Where they are
 * follows from how many of the chosen experts are lower than one, so that no threadgroup of the
 * sort waits for another: of P chosen in all, of E experts, with C places a slot at most,
 *
 *     expert e, of which n lower ones were chosen, begins at place n + (KD_PLACE_ALIGN - 1) e,
 *     rounded up; its slots are those from n on if P <= E, else from e + n / C on.
 *
 * So there are at most P slots, or E + P / C, of which some are idle, without places. */
enum { KD_PLACE_ALIGN = 4, KD_MAX_CHOSEN = 32 /* experts of a row */ };

struct kd_expert_slot {
    uint32_t expert, first, n_places; /* n_places 0: idle */
    uint32_t unused;
};

struct kd_expert_sort {
    uint32_t n_rows, n_chosen; /* n_chosen: experts a row */
    uint32_t experts_stride;
    uint32_t n_experts, slot_places; /* slot_places: at most, of a slot */
    uint32_t n_threads;              /* of a threadgroup */
};

/* A stack of matrices of tiles; the threadgroups' rows are their slots'. */
struct kd_expert_tiles {
    uint64_t matrix_bytes;
    struct kd_tiles tiles; /* n_rows: not used; n_terms: 1 */
};

/* Rows of the input to the places of the experts they have chosen; or, at each place, what the
 * activation makes of gate [cols] and up [cols, behind gate_up's cols]. */
struct kd_expert_inputs {
    struct kd_inputs inputs; /* n_terms: 1; has_order: 0; term_stride: places */
    uint32_t n_chosen;
    uint32_t activation; /* as enum activation */
    float alpha, limit;
};

struct kd_expert_sum {
    uint32_t cols, n_chosen;
    uint32_t parts_stride, weights_stride, out_stride;
    uint32_t shared_stride, shared_gate_stride; /* 0: none */
    uint32_t has_shared, has_shared_gate;
};

/* Of kernels whose threadgroups make a few outputs of a few rows. */
enum {
    KD_FEW_OUTPUTS = 4,
    KD_FEW_COLS = 16, /* that a lane reads at once */
    KD_FEW_SIMDS = 4, /* at most */
    KD_FEW_ROWS = 8   /* likewise */
};

struct kd_linear_few {
    struct kd_weight weight; /* codes of 4 or 8 bits in groups of 16 n columns, or 16-bit floats */
    uint32_t x_stride, out_stride;
    uint32_t n_rows, n_simds; /* n_simds: those of a threadgroup */
};

/* Of linear_int8.metal; a unit is 32 columns, each of n_units a row. */
struct kd_int8_inputs {
    uint32_t cols, n_units;
    uint32_t x_stride, has_order;
};

struct kd_linear_int8 {
    struct kd_weight weight; /* codes of 2 to 6 or 8 bits in groups of 16 n columns, or one */
    uint32_t n_units, out_stride;
};

/* Of kernels on matrix units, which take the same arguments: outputs and rows of a threadgroup, and
 * the floats of its memory. */
enum {
    KD_MATRIX_GROUP = 128, /* threads */
    KD_MATRIX_ROWS = 32,
    KD_MATRIX_OUTPUTS = 64,
    KD_MATRIX_COLS = 32,                   /* at once */
    KD_MATRIX_STRIDE = KD_MATRIX_COLS + 4, /* of their rows: columns lie in different banks */
    KD_MATRIX_TILE = (KD_MATRIX_ROWS + KD_MATRIX_OUTPUTS) * KD_MATRIX_STRIDE
};

struct kd_moe_inner {
    struct kd_weight gate, up;
    uint32_t top_k; /* experts a row */
    uint32_t x_stride, experts_stride;
    uint32_t activation; /* as enum activation */
    float alpha, limit;
    uint32_t unused;
};

struct kd_moe_outer {
    struct kd_weight down;
    uint32_t top_k;
    uint32_t experts_stride, weights_stride, out_stride;
    uint32_t shared_stride, shared_gate_stride; /* 0: none */
    uint32_t has_shared, has_shared_gate;
};

/* A page holds K and then V, each [n_heads][page_size][head_dim] of `dtype`. Where these are codes
 * (I8) their scales follow, bf16 [n_heads][page_size][K, V], and the page ends at a multiple of
 * KD_PAGE_UNIT bytes; what codes mean is said in device/cpu/attention_codes.h. */
enum { KD_PAGE_UNIT = 16, KD_PIECE = 16 /* tokens that predict each other's K, at most */ };

struct kd_pages {
    uint32_t page_size, n_heads, head_dim, dtype;
};

struct kd_kv_store {
    struct kd_pages pages;
    uint32_t k_stride, v_stride, slots_stride, n_rows;
};

struct kd_copy_page {
    uint32_t words; /* of 2 bytes, a page */
    uint32_t n_pairs, pairs_stride;
};

/* Queries of a sequence that share a KV head are its columns: column c is query c / (n_q_heads /
 * n_heads). Sequences of more than max_columns are for kernels that take tiles of columns
 * (attention_matrix, paged_attention_many), the others for those that take rows. */
struct kd_attention {
    struct kd_pages pages;
    uint32_t q_stride, out_stride, table_stride;
    uint32_t q_start_stride, kv_len_stride;
    uint32_t n_sequences, n_q_heads;
    uint32_t has_sinks, window;
    float scale;
    uint32_t max_columns;
};

/* Native attention (kernels/cuda). */
enum {
    KD_FEW_THREADS = 256,
    KD_MANY_QUERY_THREADS = 256,
    KD_MANY_QUERIES = KD_MANY_QUERY_THREADS / KD_SIMD_WIDTH * 16, /* packed, a threadgroup */
    KD_MIN_NATIVE_PAGE = 16,
    KD_MAX_SPLITS = 64 /* of a sequence's tokens, over threadgroups */
};

struct kd_native_attention {
    struct kd_attention attention;
    uint32_t n_splits;
    uint32_t column_groups; /* threadgroups that share the columns of a sequence and KV head */
};

/* Attention whose rows are split over several threadgroups (attention_split.metal). */
enum {
    KD_SPLIT_THREADS = 128, /* of a threadgroup */
    KD_SPLIT_SIMDS = KD_SPLIT_THREADS / KD_SIMD_WIDTH,
    KD_SPLIT_HEADS = 4, /* that share its K and V, at most */
    KD_MIN_SPLIT = 64   /* places, of which a threadgroup takes no fewer */
};

struct kd_attention_split {
    struct kd_attention attention;
    uint32_t page_shift; /* page_size is 2^page_shift */
    uint32_t n_splits;   /* threadgroups that share a row's places */
    uint32_t n_chunks;   /* threadgroups that share the query heads of a KV head */
    uint32_t unused;
};

/* Attention on matrix units, of tiles of columns (attention_matrix.metal). */
enum {
    KD_COLUMNS = 32,                  /* of a threadgroup */
    KD_COLUMN_SIMDS = KD_COLUMNS / 8, /* twice as many for heads of more than KD_COLUMN_DIMS dims */
    KD_COLUMN_THREADS = KD_COLUMN_SIMDS * KD_SIMD_WIDTH,
    KD_COLUMN_DIMS = 128
};

struct kd_attention_matrix {
    struct kd_attention attention;
    uint32_t page_shift; /* page_size is 2^page_shift */
};

/* A slot holds the state [n_v_heads][k_dim][v_dim] of `dtype`, then the rows before the convolution
 * [conv_rows][channels] in f32. */
enum {
    KD_MAX_STATE_DIM = 256, /* of a key or a value */
    KD_MAX_STATE_SIMDS = 8,
    KD_MAX_CONV_ROWS = 15
};

struct kd_states {
    uint64_t slot_bytes, rows_offset; /* where the slot's rows begin */
    uint32_t n_v_heads, n_k_heads, k_dim, v_dim;
    uint32_t channels, conv_rows, dtype, is_tiled;
};

/* Of the arrays that say where a sequence's rows and states are. */
struct kd_sequences {
    uint32_t q_start_stride, state_in_stride, state_out_stride;
    uint32_t n_snapshots, snapshots_stride;
};

struct kd_conv1d {
    struct kd_states states;
    struct kd_sequences sequences;
    uint32_t x_stride, weight_stride, out_stride;
};

struct kd_gated_delta {
    struct kd_states states;
    struct kd_sequences sequences;
    uint32_t qkv_stride, a_stride, b_stride, out_stride;
    uint32_t has_tape, tape_stride;
    float q_scale;
};

struct kd_delta_commit {
    struct kd_states states;
    struct kd_sequences sequences;
    uint32_t n_accepted_stride, x_stride, tape_stride;
};

/* As struct logit_edit. */
struct kd_logit_edit {
    int32_t row, token;
    float bias, penalty, minus, before;
};

struct kd_edit_logits {
    uint32_t n_edits, logits_stride, is_undo;
};

struct kd_logprobs {
    uint32_t n_tokens, n_top;
    uint32_t logits_stride, tokens_stride, logprobs_stride, top_tokens_stride, top_logprobs_stride;
};

/* A threadgroup looks through a part of a row's logits. */
enum {
    KD_SAMPLE_PART = 4096, /* logits, or more where there would be too many parts */
    KD_SAMPLE_MAX_PARTS = 64,
    KD_SAMPLE_DIGIT_BITS = 4, /* of a rank, that a turn finds */
    KD_SAMPLE_DIGITS = 32 / KD_SAMPLE_DIGIT_BITS,
    KD_SAMPLE_BINS = 1 << KD_SAMPLE_DIGIT_BITS
};

/* As struct sample_row. */
struct kd_sample_row {
    uint64_t number, least;
    float inverse;
    int32_t top_k;
    uint32_t share;
    int32_t token;
};

/* What is known of a row's draw between two turns (sample.metal). */
struct kd_sample_state {
    uint64_t goal, least;
    float max;
    uint32_t task, next, search;
    uint32_t key, shift, part;
    uint32_t last_key;
    int32_t last_id, token;
};

/* What a part of a row found in a turn. */
struct kd_sample_part {
    uint64_t sums[KD_SAMPLE_BINS];
    float max;
    int32_t id;
};

struct kd_sample {
    uint32_t n_tokens, n_parts, part_tokens;
    uint32_t logits_stride, tokens_stride;
    uint32_t is_first; /* turn */
};

struct kd_state_copy {
    uint64_t words; /* of 4 bytes, a slot */
};

#endif
