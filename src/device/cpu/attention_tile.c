/* A tile: some query vectors over a range of one KV head's tokens, block by block. */
#include "device/cpu/attention_codes.h"

#include "base/half.h"

#include <assert.h>
#include <float.h>
#include <string.h>

/* A tile of so few query vectors waits for memory, not for arithmetic. */
enum { FEW = 16 };

/* The block of tokens from `place` (on a piece border), of which begin .. end-1 may be used. */
static struct attention_block block_at(const struct kv_view *view, const int32_t *pages,
                                       int32_t kv_head, int32_t place, int32_t begin, int32_t end)
{
    struct attention_block block = {.place = place, .first = 0, .end = end - place};
    if (begin > place)
        block.first = begin - place;
    if (block.end > ATTENTION_BLOCK)
        block.end = ATTENTION_BLOCK;
    for (int i = 0; i < ATTENTION_PIECES; i++) {
        int32_t token = i * ATTENTION_PIECE < block.end ? place + i * ATTENTION_PIECE : place;
        int32_t inside = token % view->page_size;
        char *k = kv_k_head(view, pages[token / view->page_size], kv_head);
        block.k[i] = kv_k_piece(view, k, inside);
        block.v[i] = kv_v_piece(view, k, inside);
        block.scales[i] = kv_has_codes(view) ? kv_scales(view, k, inside) : NULL;
    }
    return block;
}

/* Expands a block's codes to where the tile has room for them. */
static void expand_codes(const struct attention_kernels *kernels, const struct attention_tile *tile,
                         struct attention_block *block)
{
    const struct attention_block *next = block->next;
    size_t piece = (size_t)(ATTENTION_PIECE * tile->view->head_dim);
    for (int i = 0; i < ATTENTION_PIECES; i++) {
        bool is_used = i * ATTENTION_PIECE < block->end;
        uint16_t *k = tile->expanded + (is_used ? (size_t)i * piece : 0);
        uint16_t *v = k + ATTENTION_PIECES * piece;
        if (is_used) {
            kernels->expand(tile->view->dtype, block->k[i], next ? next->k[i] : NULL, k,
                            (int)piece);
            kernels->expand(tile->view->dtype, block->v[i], next ? next->v[i] : NULL, v,
                            (int)piece);
        }
        block->k[i] = k;
        block->v[i] = v;
    }
    block->next = NULL;
}

/* Fills `scales` [2][ATTENTION_BLOCK] for a block of codes. */
static void expand_scales(struct attention_block *block, float *scales)
{
    float *v_scales = scales + ATTENTION_BLOCK;
    for (int t = 0; t < ATTENTION_BLOCK; t++) {
        const uint16_t *pair = block->scales[t / ATTENTION_PIECE] + t % ATTENTION_PIECE * 2;
        scales[t] = t < block->end ? f32_from_bf16(pair[0]) : 0;
        v_scales[t] = t >= block->first && t < block->end ? f32_from_bf16(pair[1]) : 0;
    }
    block->k_scales = scales;
    block->v_scales = v_scales;
    block->shares = codes_shares;
}

/* Memory in the order in which it lies: of a page all heads, of a head K and then V. Read so, the
 * processor sees what comes next; a head's pages one after the other are 64 KiB apart. A piece is
 * computed when the one behind it is known; behind the last comes `then`. */
static void walk_pieces(const struct attention_math *math, struct attention_tile *tile,
                        const int32_t *pages, int32_t kv_head, int32_t n_kv_heads, int32_t begin,
                        int32_t end, const void *then)
{
    const struct kv_view *view = tile->view;
    int n = tile->n / n_kv_heads;
    int32_t seen = begin > tile->first[0] ? begin : tile->first[0], head = 0;
    struct attention_piece piece = {0};
    for (int32_t start = begin; start < end;) {
        int32_t page = start / view->page_size;
        int32_t border = (page + 1) * view->page_size, stop = border < end ? border : end;
        for (int32_t h = 0; h < n_kv_heads; h++) {
            char *k = kv_k_head(view, pages[page], kv_head + h);
            for (int32_t place = start; place < stop; place += ATTENTION_PIECE) {
                int32_t inside = place % view->page_size;
                const void *next = kv_k_piece(view, k, inside);
                piece.next = next;
                if (piece.k)
                    math->piece(tile, &piece, head * n, n);
                head = h;
                piece = (struct attention_piece){
                    .place = place,
                    .first = seen > place ? seen - place : 0,
                    .end = stop - place < ATTENTION_PIECE ? stop - place : ATTENTION_PIECE,
                    .k = next,
                    .v = kv_v_piece(view, k, inside),
                    .next = next};
            }
        }
        start = stop;
    }
    if (then)
        piece.next = then;
    if (piece.k)
        math->piece(tile, &piece, head * n, n);
}

static void walk_blocks(const struct attention_kernels *kernels, const struct attention_math *math,
                        struct attention_tile *tile, const int32_t *pages, int32_t kv_head,
                        int32_t begin, int32_t end)
{
    const struct kv_view *view = tile->view;
    /* The first row's window may begin inside a piece. */
    int32_t first = begin > tile->first[0] ? begin : tile->first[0];
    _Alignas(64) float scales[2 * ATTENTION_BLOCK];
    struct attention_block block = block_at(view, pages, kv_head, begin, first, end), next;
    for (int32_t place = begin; place < end; place += ATTENTION_BLOCK, block = next) {
        if (place + ATTENTION_BLOCK < end)
            next = block_at(view, pages, kv_head, place + ATTENTION_BLOCK, first, end);
        block.next = tile->n <= FEW && place + ATTENTION_BLOCK < end ? &next : NULL;
        if (kv_has_codes(view))
            expand_scales(&block, scales);
        if (tile->dtype != view->dtype)
            expand_codes(kernels, tile, &block);
        math->scores(tile, &block);
        math->softmax(tile, &block);
        math->accumulate(tile, &block);
    }
}

void attention_tile_run(const struct attention_kernels *kernels, const struct attention_math *math,
                        struct attention_tile *tile, const int32_t *pages, int32_t kv_head,
                        int32_t n_kv_heads, int32_t begin, int32_t end, const void *then)
{
    const struct kv_view *view = tile->view;
    assert(view->piece == ATTENTION_PIECE && tile->n <= ATTENTION_TILE);
    memset(tile->acc, 0, (size_t)tile->n * (size_t)view->head_dim * sizeof *tile->acc);
    for (int i = 0; i < tile->n; i++) {
        tile->base[i] = -FLT_MAX;
        for (int lane = 0; lane < ATTENTION_LANES; lane++)
            tile->sums[i * ATTENTION_LANES + lane] = 0;
    }
    if (math->begin)
        math->begin(tile);
    if (math->piece)
        walk_pieces(math, tile, pages, kv_head, n_kv_heads, begin, end, then);
    else
        walk_blocks(kernels, math, tile, pages, kv_head, begin, end);
    math->end(tile);
}
