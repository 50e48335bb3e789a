#include "device/cpu/vec_avx2.h"

#include "device/cpu/attention_vec.h"

/* A tile of so few query vectors waits for memory, not for arithmetic. */
enum { FEW = 16 };

/* V is added up in strips of 16 dims, one cache line of each row: a walk that the machine's
 * prefetchers do not see through. Fetching it in order first makes decoding over long contexts 1.4
 * times as fast here; AVX-512, with strips four lines wide, gains nothing. */
static void scores_and_prefetch(struct attention_tile *tile, const struct attention_block *block)
{
    exact_scores(tile, block);
    if (tile->n >= FEW)
        return;
    size_t bytes = (size_t)(ATTENTION_PIECE * tile->view->head_dim) * tile->view->element;
    for (int i = 0; i * ATTENTION_PIECE < block->end; i++)
        for (size_t line = 0; line < bytes; line += 64)
            _mm_prefetch((const char *)block->v[i] + line, _MM_HINT_T0);
}

static const struct attention_math exact_math = {.scores = scores_and_prefetch,
                                                 .softmax = exact_softmax,
                                                 .accumulate = exact_accumulate,
                                                 .end = reduce_sums};

const struct attention_kernels attention_kernels_avx2 = {
    .exact = &exact_math, .round_f16 = vec_round_f16, .round_bf16 = round_bf16};
