/* Linear layers inside the CPU device: how weights and activations lie in memory, and the table of
 * kernels of each instruction set. linear.c drives, linear_pack.c lays weights out, linear_scalar.c
 * is the twin that judges the others.
 *
 * Weights. Output rows are interleaved in blocks of BLOCK_ROWS = 16 (one 512-bit register of f32 or
 * i32 lanes), columns padded with zeros to a multiple of SPAN = 64. A block is one run of bytes,
 * read once and in order. Per span of 64 columns, q meaning 4 consecutive columns of 16 rows in 64
 * bytes (lane r: row r, its bytes: columns 4i .. 4i+3, the operand of VNNI and of AMX):
 *
 * Codes of b bits lie in planes, those of b's binary digits, low bits of the code first; 8 bits are
 * plain bytes, q(0) .. q(7). A unit of 32 columns is b * 64 bytes:
 *
 *   4 bits     byte i*64.. holds q(i) | q(i+4) << 4, i < 4
 *   2 bits     byte j*64.. holds the pairs of q(4j) .. q(4j+3), lowest first, j < 2
 *   1 bit      64 bytes: bit i is that of q(i)
 *
 * A span is the levels of its 2 units, then the codes of both, so that it is read in order:
 *
 *   SCALE      f16 scales [2 units][16 rows]
 *   SCALE_BIAS f16 [2 units][scale, bias][16 rows]
 *   E8M0       u8 exponents [2 units][16 rows], as in MXFP4 blocks (scales are half of 2^(e - 127))
 *   SUPER      every 4 spans open with f16 [scale, bias][16 rows]; u8 [2 units][scale, bias][16
 *              rows]; scale = super * sub, bias = -super * sub
 *   HALVES     groups of 16 columns, no bias: every 4 spans open with f16 [16 rows] and 32 bytes
 *              unused; i8 scales [4 groups][16 rows]
 *   HALVES_BIAS  groups of 16: opens as SUPER; u8 [4 groups][16 rows], the scale in the low nibble,
 *              the bias in the high one
 *   E4M3       groups of 16 columns: u8 [4 groups][16 rows] E4M3, times the part's factor
 *   GROUP_BIAS groups of 32 or of any number of spans, of the part's level type: each span that
 *              begins a group opens with [scale, bias][16 rows], twice for groups of 32
 *   GROUP      the same without biases
 *
 * From codes without a bias the packing's offset is taken. IQ4, MX4 and NV4 hold 4-bit indices into
 * the tables of base/weight.h; F8 holds E4M3 values, which have no int8 form. F32, F16: [64
 * columns][16 rows]. BF16: [32 pairs of columns][16 rows][2], the operand of vdpbf16ps and of AMX.
 * RAW: the twin's, 16 rows as they lie in the file.
 *
 * Activations of the int8 mode: per token row and unit of 32 columns, scale = max|x| / 127,
 * q = round_to_even(x * (127 / max|x|)), all in f32; a unit whose max|x| is below 2^-100 is zero.
 * Rows are gathered in tiles of `tile_rows` H: tile t holds rows t*H .. t*H + H - 1. */
#ifndef CSGL_DEVICE_CPU_LINEAR_H
#define CSGL_DEVICE_CPU_LINEAR_H

#include "device/cpu/cpu_device.h"

/* X of every packing whose levels lie apart in the file, in groups of 32 or of whole spans. */
#define GROUPED_PACKINGS(X)                                                                        \
    X(A2)                                                                                          \
    X(A3)                                                                                          \
    X(A4)                                                                                          \
    X(A5)                                                                                          \
    X(A6)                                                                                          \
    X(A8)

/* X of every quantized packing, for tables and switches. */
#define QUANTIZED_PACKINGS(X)                                                                      \
    X(Q4)                                                                                          \
    X(Q4_BIAS)                                                                                     \
    X(Q5)                                                                                          \
    X(Q5_BIAS)                                                                                     \
    X(Q8)                                                                                          \
    X(Q2_SUPER)                                                                                    \
    X(Q3_SUPER)                                                                                    \
    X(Q4_SUPER)                                                                                    \
    X(Q5_SUPER)                                                                                    \
    X(Q6_SUPER)                                                                                    \
    X(IQ4)                                                                                         \
    X(MX4)                                                                                         \
    X(NV4)                                                                                         \
    GROUPED_PACKINGS(X)

/* Those and F8: what is expanded to f32 before it is multiplied. */
#define EXPANDED_PACKINGS(X)                                                                       \
    QUANTIZED_PACKINGS(X)                                                                          \
    X(F8)

enum {
    BLOCK_ROWS = 16,
    SPAN = 64,       /* columns */
    UNIT = 32,       /* columns */
    SUPER_SPANS = 4, /* spans under one super scale */
    TILE_ROWS_MAX = 16,
    LINEAR_PASS_BYTES = 1 << 20 /* half of a common second-level cache */
};

enum linear_packing {
    PACKING_RAW,
    PACKING_F32,
    PACKING_F16,
    PACKING_BF16,
#define PACKING_ENUM(name) PACKING_##name,
    EXPANDED_PACKINGS(PACKING_ENUM)
#undef PACKING_ENUM
        N_PACKINGS
};

enum linear_levels {
    LEVELS_SCALE,
    LEVELS_SCALE_BIAS,
    LEVELS_E8M0,
    LEVELS_GROUP_BIAS,
    LEVELS_GROUP,
    LEVELS_SUPER,
    LEVELS_HALVES,
    LEVELS_HALVES_BIAS,
    LEVELS_E4M3
};

/* Of the quantized packings. Kernels are compiled for one packing each: there all of this is
 * constant. */
struct packing_shape {
    int bits, offset;
    enum linear_levels levels;
};

static const struct packing_shape packing_shapes[N_PACKINGS] = {
    [PACKING_Q4] = {4, 8, LEVELS_SCALE},        [PACKING_Q4_BIAS] = {4, 0, LEVELS_SCALE_BIAS},
    [PACKING_Q5] = {5, 16, LEVELS_SCALE},       [PACKING_Q5_BIAS] = {5, 0, LEVELS_SCALE_BIAS},
    [PACKING_Q8] = {8, 128, LEVELS_SCALE},      [PACKING_Q2_SUPER] = {2, 0, LEVELS_HALVES_BIAS},
    [PACKING_Q3_SUPER] = {3, 4, LEVELS_HALVES}, [PACKING_Q4_SUPER] = {4, 0, LEVELS_SUPER},
    [PACKING_Q5_SUPER] = {5, 0, LEVELS_SUPER},  [PACKING_Q6_SUPER] = {6, 32, LEVELS_HALVES},
    [PACKING_IQ4] = {4, 128, LEVELS_SCALE},     [PACKING_MX4] = {4, 16, LEVELS_E8M0},
    [PACKING_NV4] = {4, 16, LEVELS_E4M3},       [PACKING_A2] = {2, 0, LEVELS_GROUP_BIAS},
    [PACKING_A3] = {3, 0, LEVELS_GROUP_BIAS},   [PACKING_A4] = {4, 0, LEVELS_GROUP_BIAS},
    [PACKING_A5] = {5, 0, LEVELS_GROUP_BIAS},   [PACKING_A6] = {6, 0, LEVELS_GROUP_BIAS},
    [PACKING_A8] = {8, 0, LEVELS_GROUP_BIAS},   [PACKING_F8] = {8, 0, LEVELS_GROUP},
};

static inline int unit_bytes_of(enum linear_packing packing)
{
    return packing_shapes[packing].bits * 64;
}

/* Each group opens with its levels. */
static inline bool is_grouped(enum linear_packing packing)
{
    enum linear_levels levels = packing_shapes[packing].levels;
    return levels == LEVELS_GROUP_BIAS || levels == LEVELS_GROUP;
}

/* Of both units of a span, before their codes. */
static inline int level_bytes_of(enum linear_packing packing)
{
    enum linear_levels levels = packing_shapes[packing].levels;
    if (is_grouped(packing))
        return 0;
    return levels == LEVELS_SCALE_BIAS ? 128 : levels == LEVELS_E8M0 ? 32 : 64;
}

/* What is taken from a code: 0 where a bias is stored instead. */
static inline int offset_of(enum linear_packing packing)
{
    return packing_shapes[packing].offset;
}

static inline bool is_super(enum linear_packing packing)
{
    enum linear_levels levels = packing_shapes[packing].levels;
    return levels >= LEVELS_SUPER && levels <= LEVELS_HALVES_BIAS;
}

/* Groups of 16 columns. */
static inline bool has_halves(enum linear_packing packing)
{
    return packing_shapes[packing].levels >= LEVELS_HALVES;
}

/* A bias for each unit. */
static inline bool has_unit_bias(enum linear_packing packing)
{
    enum linear_levels levels = packing_shapes[packing].levels;
    return levels == LEVELS_SCALE_BIAS || levels == LEVELS_GROUP_BIAS || levels == LEVELS_SUPER;
}

/* 4-bit indices into weight_table_*. */
static inline bool has_table(enum linear_packing packing)
{
    return packing == PACKING_IQ4 || packing == PACKING_MX4 || packing == PACKING_NV4;
}

static inline const uint8_t *table_of(enum linear_packing packing)
{
    return packing == PACKING_IQ4 ? weight_table_iq4_nl : weight_table_mxfp4;
}

/* A bias for each group of 16. */
static inline bool has_half_bias(enum linear_packing packing)
{
    return packing_shapes[packing].levels == LEVELS_HALVES_BIAS;
}

/* What the activations become before they are multiplied. */
enum linear_mode { MODE_FLOAT, MODE_BF16, MODE_INT8 };

struct linear_part {
    enum linear_packing packing;
    /* Of packings made from levels that lie apart. */
    enum weight_level_type level_type;
    int32_t group_spans; /* 0: groups of 32 */
    float factor;
    enum linear_mode mode;
    int64_t rows;
    int32_t cols, padded_cols;
    int64_t n_blocks;
    size_t block_bytes;
    uint8_t *data;     /* [n_blocks][block_bytes] */
    float *bias;       /* [n_blocks * 16], or NULL */
    int64_t first_out; /* column of the output where this part begins */
    struct weight raw; /* PACKING_RAW: any one row; the others are copies like it */
};

struct linear {
    int n_parts;
    struct linear_part parts[LINEAR_MAX_PARTS];
    int32_t cols, padded_cols;
    bool has_order;
    int32_t *order; /* [cols]: column c takes input order[c]; NULL: c, or not yet loaded */
    int32_t max_rows;
    int64_t rows;     /* of all parts */
    int64_t n_blocks; /* of all parts */
    size_t scratch_bytes;
    bool needs[MODE_INT8 + 1]; /* some part has this mode */
    void *memory;              /* of all parts, in `slab` */
    struct weight_slab *slab;
};

/* The activations of one call in every form that its parts need. */
struct linear_input {
    const float *x; /* row t begins at x + t * x_stride */
    size_t x_stride;
    int32_t n_rows, cols, padded_cols, tile_rows;
    /* Of a linear with an order: x as it was given; the other x is filled from it. */
    const float *unordered;
    size_t unordered_stride;
    /* MODE_INT8, of tile t and unit u at index (t * n_units + u): */
    int8_t *codes; /* [H][32] */
    float *levels; /* [2][H]: the scale, and scale * sum(q) */
    int32_t *sums; /* [3][H]: -sum(q) of the unit, of its first 16 columns, of its last 16 */
    /* MODE_BF16: bf16 [tile][unit][H][32]. Kernels without bf16 products: f32 [row][padded_cols].
     */
    void *rounded;
};

/* Where a part's results go: `out` is the place of token row `row` and output `col`. */
struct linear_output {
    float *out;
    size_t stride; /* between token rows */
    int64_t row, col;
    bool is_streamed; /* so many that they should pass the caches by, where a kernel can */
};

static inline float *linear_output_at(const struct linear_output *output, int64_t row, int64_t col)
{
    return output->out + (size_t)(row - output->row) * output->stride + (col - output->col);
}

struct linear_range {
    int64_t first, end;
};

struct linear_kernels {
    bool is_raw; /* keeps rows as they lie in the file */
    /* The H for calls of n_rows rows. */
    int32_t (*tile_rows)(int32_t n_rows);
    /* Bytes of the activations' codes that a pass over the weights may have: what stays in the
     * second-level cache beside the weights. */
    size_t pass_bytes;
    /* Fills the form of `mode` for some units of whole tiles; rows past n_rows are zero. */
    void (*prepare)(const struct linear_input *in, enum linear_mode mode, struct linear_range tiles,
                    struct linear_range units);
    /* Bytes that one worker's `scratch` needs for this part. */
    size_t (*scratch_bytes)(const struct linear_part *part);
    /* All rows of whole tiles times whole blocks. Scratch is aligned to 64 bytes. */
    void (*multiply)(const struct linear_part *part, const struct linear_input *in,
                     struct linear_range blocks, struct linear_range rows,
                     const struct linear_output *out, void *scratch);
};

/* linear_memory.c: `bytes` of memory for weights, aligned to 64, or NULL; given back through
 * `owner`, of which the caller holds one share. */
void *linear_memory_alloc(struct cpu_device *cpu, size_t bytes, struct weight_slab **owner);
void linear_memory_free(struct cpu_device *cpu, struct weight_slab *slab);
/* What `bytes` take there: whole huge pages, or with half a huge page a slab, as its end is lost.
 */
size_t linear_memory_bytes(size_t bytes);

/* linear_pack.c */
enum linear_packing linear_packing_of(const struct weight *w);
/* Of a part whose packing, columns and levels are known. */
size_t linear_block_bytes(const struct linear_part *part);
/* Lays rows [block * 16, +16) of the slice out at `to`; rows past the last are zero. */
void linear_pack_block(const struct linear_part *part, const struct weight_slice *slice,
                       int64_t block, uint8_t *to);

/* The weight's row that is row `row` of the slice. */
static inline int64_t linear_slice_place(const struct weight_slice *slice, int64_t row)
{
    return row_pattern_at(&slice->pattern, slice->row + row);
}

/* A weight of the one output row `row` of the slice, its columns only. */
static inline struct weight linear_slice_row(const struct weight_slice *slice, int64_t row)
{
    return weight_row_piece(&slice->weight, linear_slice_place(slice, row), slice->col,
                            slice->cols);
}

/* linear.c: fills everything of a zeroed linear but its memory; the slices need no data. */
void linear_describe(const struct cpu_device *cpu, const struct weight_slice *slices, int n_slices,
                     struct linear *linear);

/* linear.c: bytes of the activations of n_rows rows in all forms that the linear needs, a multiple
 * of 64 and of no more than linear in n_rows rounded up to TILE_ROWS_MAX. */
size_t linear_input_bytes(const struct linear *linear, int32_t n_rows);
/* The input of a call; its forms lie at `at`, which is aligned to 64. */
struct linear_input linear_input_make(const struct linear_kernels *kernels,
                                      const struct linear *linear, const float *x, size_t x_stride,
                                      int32_t n_rows, uint8_t *at);
/* Fills the forms of some units of whole tiles. */
void linear_input_prepare(const struct linear_kernels *kernels, const struct linear *linear,
                          const struct linear_input *in, struct linear_range tiles,
                          struct linear_range units);

/* linear_scalar.c: the definition of the int8 form, used by levels without vector code for it. */
void linear_prepare_scalar(const struct linear_input *in, enum linear_mode mode,
                           struct linear_range tiles, struct linear_range units);

extern const struct linear_kernels linear_kernels_scalar;
extern const struct linear_kernels linear_kernels_avx2;
extern const struct linear_kernels linear_kernels_avx512;
extern const struct linear_kernels linear_kernels_amx;
extern const struct linear_kernels linear_kernels_neon;
extern const struct linear_kernels linear_kernels_dotprod;
extern const struct linear_kernels linear_kernels_i8mm;

static inline int32_t linear_n_units(const struct linear_input *in)
{
    return in->padded_cols / UNIT;
}

#endif
