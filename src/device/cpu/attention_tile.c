/* A tile: some query vectors over a range of one KV head's tokens, block by block. */
#include "device/cpu/attention.h"

#include <assert.h>
#include <float.h>
#include <string.h>

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
        block.v[i] = kv_v_row(view, k, inside);
    }
    return block;
}

void attention_tile_run(const struct attention_math *math, struct attention_tile *tile,
                        const int32_t *pages, int32_t kv_head, int32_t begin, int32_t end)
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
    /* The first row's window may begin inside a piece. */
    int32_t first = begin > tile->first[0] ? begin : tile->first[0];
    for (int32_t place = begin; place < end; place += ATTENTION_BLOCK) {
        struct attention_block block = block_at(view, pages, kv_head, place, first, end);
        math->scores(tile, &block);
        math->softmax(tile, &block);
        math->accumulate(tile, &block);
    }
    math->end(tile);
}
