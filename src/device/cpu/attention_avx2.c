#include "device/cpu/vec_avx2.h"

#include "device/cpu/attention_codes.h"
#include "device/cpu/attention_encode.h"
#include "device/cpu/attention_vec.h"

/* bf16 is the upper half of f32. */
static void expand(enum dtype dtype, const void *codes, const void *next, uint16_t *to, int n)
{
    const uint8_t *from = codes, *at = from;
    const uint16_t *end = to + n;
    if (dtype == DTYPE_I8) {
        for (; to < end; to += 16, at += 16) {
            if (next)
                fetch_place(from, next, at);
            __m128i x = _mm_loadu_si128((const __m128i *)(const void *)at);
            __m256i a = (__m256i)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(x));
            __m256i b = (__m256i)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(x, 8)));
            a = _mm256_packus_epi32(_mm256_srli_epi32(a, 16), _mm256_srli_epi32(b, 16));
            _mm256_storeu_si256((__m256i *)(void *)to, _mm256_permute4x64_epi64(a, 0xD8));
        }
        return;
    }
    uint8_t low[16], high[16];
    for (int i = 0; i < 16; i++) {
        uint16_t value = bf16_from_f32(codes_values[i]);
        low[i] = (uint8_t)value;
        high[i] = (uint8_t)(value >> 8);
    }
    const __m128i lows = _mm_loadu_si128((const __m128i *)(const void *)low);
    const __m128i highs = _mm_loadu_si128((const __m128i *)(const void *)high);
    const __m128i nibble = _mm_set1_epi8(15), byte = _mm_set1_epi16(255);
    for (; to < end; to += CODES_UNIT, at += CODES_UNIT_BYTES) {
        if (next)
            fetch_place(from, next, at);
        __m128i x = _mm_loadu_si128((const __m128i *)(const void *)at);
        for (int i = 0; i < 2; i++) { /* codes 0 and 2 of each word, then 1 and 3 */
            __m128i index = _mm_and_si128(_mm_srli_epi16(x, 4 * i), nibble);
            __m128i l = _mm_shuffle_epi8(lows, index), h = _mm_shuffle_epi8(highs, index);
            __m128i a = _mm_or_si128(_mm_and_si128(l, byte), _mm_slli_epi16(h, 8));
            __m128i b = _mm_or_si128(_mm_srli_epi16(l, 8), _mm_andnot_si128(byte, h));
            _mm_storeu_si128((__m128i *)(void *)(to + 8 * i), a);
            _mm_storeu_si128((__m128i *)(void *)(to + 16 + 8 * i), b);
        }
    }
}

/* A tile of so few query vectors waits for memory, not for arithmetic. */
enum { FEW = 16 };

/* V is added up in strips of 16 dims, one cache line of each row: a walk that the machine's
 * prefetchers do not see through. Fetching it in order first makes decoding over long contexts 1.4
 * times as fast here; AVX-512, with strips four lines wide, gains nothing. */
static void scores_and_prefetch(struct attention_tile *tile, const struct attention_block *block)
{
    exact_scores(tile, block);
    if (tile->n >= FEW || block->k_scales)
        return;
    size_t bytes = (size_t)(ATTENTION_PIECE * tile->view->head_dim) * dtype_bytes(tile->dtype);
    for (int i = 0; i * ATTENTION_PIECE < block->end; i++)
        for (size_t line = 0; line < bytes; line += 64)
            _mm_prefetch((const char *)block->v[i] + line, _MM_HINT_T0);
}

static const struct attention_math exact_math = {.scores = scores_and_prefetch,
                                                 .softmax = exact_softmax,
                                                 .accumulate = exact_accumulate,
                                                 .end = reduce_sums};

const struct attention_kernels attention_kernels_avx2 = {.exact = &exact_math,
                                                         .expand = expand,
                                                         .encode = encode_vector,
                                                         .round_f16 = vec_round_f16,
                                                         .round_bf16 = round_bf16};
