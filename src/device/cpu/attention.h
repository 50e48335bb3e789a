/* Inside the CPU's attention: how K and V lie in a page, and the kernels that work on them.
 *
 * A page holds, for each KV head, first K and then V. K is in pieces of 16 tokens (the page size if
 * that is less), and a piece is turned on its side: for each dim the 16 tokens' values side by
 * side, so that q K^T needs no sums across lanes. V has a row a token. In bf16 two values that a
 * dot product adds up lie side by side, as vdpbf16ps and AMX want them: two dims of K, two tokens
 * of V.
 *
 *     K  f32, f16: [tokens/16][D][16]       bf16, int8, int4: [tokens/16][D/2][16][2]
 *     V  f32, f16: [tokens][D]              bf16, int8, int4: [tokens/2][D][2]
 *
 * Codes are expanded to bf16 values, which have all of them exactly, a block at a time, and then
 * read as bf16 pages are; the scales, [tokens][2] bf16 behind a head's V, multiply scores and
 * probabilities. attention_codes.h says what codes mean. */
#ifndef CSGL_DEVICE_CPU_ATTENTION_H
#define CSGL_DEVICE_CPU_ATTENTION_H

#include "device/ops.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    ATTENTION_PIECE = 16, /* tokens side by side in K */
    ATTENTION_BLOCK = 64, /* tokens whose scores exist at a time */
    ATTENTION_PIECES = ATTENTION_BLOCK / ATTENTION_PIECE,
    ATTENTION_TILE = 64, /* most query vectors (a row's head each) that share one reading of K, V */
    ATTENTION_LANES = 16,
    ATTENTION_HEADROOM = 8,
    ATTENTION_MAX_DIM = 1024
};

/* One layer's pages with the sizes worked out. */
struct kv_view {
    char *base;
    int32_t page_size, head_dim;
    enum dtype dtype;
    int32_t piece, pair; /* tokens a piece; 1 for f32 and f16, else 2 */
    size_t k_piece_bytes, v_piece_bytes;
    size_t k_bytes, v_bytes, head_bytes, page_bytes;
};

static inline bool kv_has_codes(const struct kv_view *view)
{
    return view->dtype == DTYPE_I8 || view->dtype == DTYPE_I4;
}

/* Sizes only when `base` is NULL. */
struct kv_view kv_view_of(const struct kv_layout *layout, char *base);

static inline char *kv_k_head(const struct kv_view *view, int32_t page, int32_t head)
{
    return view->base + (size_t)page * view->page_bytes + (size_t)head * view->head_bytes;
}

/* The pieces of K and V in which token `place` of a page lies, and the scales of its piece. */
static inline char *kv_k_piece(const struct kv_view *view, char *k, int32_t place)
{
    return k + (size_t)(place / view->piece) * view->k_piece_bytes;
}

static inline char *kv_v_piece(const struct kv_view *view, char *k, int32_t place)
{
    return k + view->k_bytes + (size_t)(place / view->piece) * view->v_piece_bytes;
}

static inline uint16_t *kv_scales(const struct kv_view *view, char *k, int32_t place)
{
    char *scales = k + view->k_bytes + view->v_bytes;
    return (uint16_t *)(void *)scales + 2 * (place / view->piece * view->piece);
}

/* Floats: the row (bf16: pair of rows) of V in which token `place` lies. */
static inline char *kv_v_row(const struct kv_view *view, char *k, int32_t place)
{
    size_t rows = (size_t)(view->pair * view->head_dim) * dtype_bytes(view->dtype);
    return kv_v_piece(view, k, place) + (size_t)(place % view->piece / view->pair) * rows;
}

/* The query vectors of a task and what attention knows of them so far: in exact arithmetic
 * out = acc / sum with acc = sum of p v, sum = sum of p, p = 2^(score - base), where base is at
 * most ATTENTION_HEADROOM below the largest score. n <= ATTENTION_TILE vectors; arrays belong to
 * the worker. */
struct attention_tile {
    const struct kv_view *view;
    enum dtype dtype; /* of what the kernels read: the pages' own, or BF16 if codes are expanded */
    int n;
    float scale;          /* from q k to scores, log2(e) included */
    float *q;             /* [n, D] */
    uint16_t *q16;        /* [n, D] bf16, for kernels that round */
    float *scores;        /* [n, ATTENTION_BLOCK], then probabilities */
    uint16_t *p16;        /* [n, ATTENTION_BLOCK] bf16 */
    float *acc;           /* [n, D] */
    float *base;          /* [n], -FLT_MAX: no token yet */
    float *sums;          /* [n, ATTENTION_LANES]: parts of sum while the blocks are walked */
    float *sum;           /* [n] */
    int32_t *first, *end; /* [n]: the places that a vector sees */
    uint16_t *expanded;   /* a block's codes as bf16: K, then V; [2, ATTENTION_BLOCK, D] */
};

/* Up to ATTENTION_BLOCK tokens in a row, one KV head's. Only the tokens first <= i < end may be
 * used; pieces of K without any of them point to some other piece. */
struct attention_block {
    int32_t place; /* of token 0 */
    int first, end;
    const void *k[ATTENTION_PIECES], *v[ATTENTION_PIECES];
    const uint16_t *scales[ATTENTION_PIECES]; /* of codes; NULL: none */
    const struct attention_block *next;       /* to be fetched meanwhile; NULL: nothing */
    /* Of expanded codes, else NULL: [ATTENTION_BLOCK] scales, V's 0 for tokens that may not be
     * used; and the shares of a piece's tokens in the scores behind them, if there are predictions.
     */
    const float *k_scales, *v_scales, *shares;
};

/* One KV head's ATTENTION_PIECE tokens, of which first <= i < end may be used. */
struct attention_piece {
    int32_t place; /* of token 0 */
    int first, end;
    const void *k, *v;
    const void *next; /* K of the piece that is read next; of the last one its own */
};

/* The steps of a tile: either `piece`, or the three that work on a block. */
struct attention_math {
    void (*begin)(struct attention_tile *tile); /* q is filled in; NULL: nothing to do */
    /* All steps of a piece for the tile's vectors m .. m + n - 1. */
    void (*piece)(struct attention_tile *tile, const struct attention_piece *piece, int m, int n);
    void (*scores)(struct attention_tile *tile, const struct attention_block *block);
    void (*softmax)(struct attention_tile *tile, const struct attention_block *block);
    void (*accumulate)(struct attention_tile *tile, const struct attention_block *block);
    void (*end)(struct attention_tile *tile); /* leaves acc, base and sum */
};

/* One vector's codes [dim]; returns its scale, a bf16 value. Not a number makes the scale one. */
typedef float (*codes_encoder)(enum dtype dtype, const float *x, int dim, uint8_t *codes);

struct attention_kernels {
    /* f32 arithmetic on any dtype; pages of at least ATTENTION_PIECE tokens. NULL: the twin does
     * it. */
    const struct attention_math *exact;
    /* Products of bf16 values on bf16 pages, for tiles of at least `rounded_least` vectors whose
     * dims are a multiple of `rounded_unit` and at most `rounded_most`. NULL: exact is used. */
    const struct attention_math *rounded;
    int rounded_least, rounded_unit, rounded_most;
    /* As `rounded`, by pieces: for at most few_most vectors a KV head, whose time goes into
     * reading, and dims that are a multiple of few_unit. NULL: there is none. */
    const struct attention_math *few;
    int few_unit, few_most;
    /* As `rounded` on codes as they lie, for tiles of at most coded_most vectors whose dims are a
     * multiple of coded_unit: expanding a block would cost more than the products. NULL: codes are
     * always expanded. */
    const struct attention_math *coded;
    int coded_unit, coded_most;
    /* n codes (a multiple of CODES_UNIT) of a dtype as bf16 values, in their order. The lines at
     * the same places behind `next`, if not NULL, are fetched meanwhile. */
    void (*expand)(enum dtype dtype, const void *codes, const void *next, uint16_t *to, int n);
    codes_encoder encode; /* all levels' make the same codes */
    /* n values rounded to nearest even. */
    void (*round_f16)(const float *from, uint16_t *to, int n);
    void (*round_bf16)(const float *from, uint16_t *to, int n);
};

/* One table a file; those of an instruction set exist where it does. */
extern const struct attention_kernels attention_kernels_scalar;
extern const struct attention_kernels attention_kernels_avx2;
extern const struct attention_kernels attention_kernels_avx512;
extern const struct attention_kernels attention_kernels_amx;
extern const struct attention_kernels attention_kernels_neon;

/* Parts of the AVX-512 table that AMX shares. */
extern const struct attention_math attention_exact_avx512, attention_rounded_avx512;
void attention_expand_avx512(enum dtype dtype, const void *codes, const void *next, uint16_t *to,
                             int n);
float attention_encode_avx512(enum dtype dtype, const float *x, int dim, uint8_t *codes);
void attention_round_f16_avx512(const float *from, uint16_t *to, int n);
void attention_round_bf16_avx512(const float *from, uint16_t *to, int n);

/* The scalar twin: head `kv_head` of the places first .. end-1 for one query vector, in double.
 * `pages` is the sequence's row of the page table; `sink` is the head's, or NULL. */
void attention_scalar(const struct kv_view *view, const int32_t *pages, int32_t kv_head,
                      const float *q, float *out, int32_t first, int32_t end, float scale,
                      const float *sink);

/* The vectors of `tile` (n, scale, q, first and end are given) over places begin .. end-1. Leaves
 * acc, base and sum. With math that works on pieces the vectors may be of n_kv_heads heads, each
 * head's together; else n_kv_heads is 1. `then` is K of the piece that the thread reads when this
 * is done, or NULL. */
void attention_tile_run(const struct attention_kernels *kernels, const struct attention_math *math,
                        struct attention_tile *tile, const int32_t *pages, int32_t kv_head,
                        int32_t n_kv_heads, int32_t begin, int32_t end, const void *then);

#endif
