// What both native attentions share: scores are kept in base 2.
#ifndef CSGL_KERNELS_CUDA_ATTENTION_H
#define CSGL_KERNELS_CUDA_ATTENTION_H

#include "native.h"

#define NO_SCORE (-1.0e30f)
#define LOG2_E 1.44269504f

// Where places lie in the pages of a KV head; pages hold a power of two of places.
struct kv_head {
    const uint16_t *k;
    const int32_t *table;
    size_t page_values, v_offset; // from a page to the next, from K to V
    uint32_t shift, mask;

    NATIVE kv_head(const uint16_t *pages, const int32_t *sequence_table, uint32_t head,
                   uint32_t dims, const kd_pages &p)
        : k(pages + (size_t)head * p.page_size * dims), table(sequence_table),
          page_values((size_t)2 * p.n_heads * p.page_size * dims),
          v_offset((size_t)p.n_heads * p.page_size * dims),
          shift(31 - __clz((int)p.page_size)), mask(p.page_size - 1)
    {
    }

    // K of a place on page `page`.
    NATIVE const uint16_t *on_page(uint32_t page, uint32_t place, uint32_t dims) const
    {
        return k + page * page_values + (place & mask) * dims;
    }
};

NATIVE float exp2_fast(float x)
{
    float r;
    asm("ex2.approx.ftz.f32 %0,%1;" : "=f"(r) : "f"(x));
    return r;
}

#endif
