#include "device/cpu/vec_neon.h"

#include "device/cpu/attention_codes.h"
#include "device/cpu/attention_encode.h"
#include "device/cpu/attention_vec.h"

/* Eight int8 as bf16, which is the upper half of f32. */
static uint16x8_t bf16_from_codes(int8x8_t codes)
{
    int16x8_t x = vmovl_s8(codes);
    uint32x4_t a = vreinterpretq_u32_f32(vcvtq_f32_s32(vmovl_s16(vget_low_s16(x))));
    uint32x4_t b = vreinterpretq_u32_f32(vcvtq_f32_s32(vmovl_s16(vget_high_s16(x))));
    return vcombine_u16(vshrn_n_u32(a, 16), vshrn_n_u32(b, 16));
}

static void expand(enum dtype dtype, const void *codes, const void *next, uint16_t *to, int n)
{
    const uint8_t *from = codes, *at = from;
    const uint16_t *end = to + n;
    const int8x16_t values = vld1q_s8(codes_values);
    if (dtype == DTYPE_I8) {
        for (; to < end; to += 8, at += 8) {
            if (next)
                fetch_place(from, next, at);
            vst1q_u16(to, bf16_from_codes(vreinterpret_s8_u8(vld1_u8(at))));
        }
        return;
    }
    for (; to < end; to += CODES_UNIT, at += CODES_UNIT_BYTES) {
        if (next)
            fetch_place(from, next, at);
        uint8x8x2_t x = vld2_u8(at); /* the lower and the upper bytes of the words */
        for (int i = 0; i < 2; i++) {
            int8x8_t a = vqtbl1_s8(values, vand_u8(x.val[i], vdup_n_u8(15)));
            int8x8_t b = vqtbl1_s8(values, vshr_n_u8(x.val[i], 4));
            vst1q_u16(to + 16 * i, bf16_from_codes(a));
            vst1q_u16(to + 16 * i + 8, bf16_from_codes(b));
        }
    }
}

static const struct attention_math exact_math = {.scores = exact_scores,
                                                 .softmax = exact_softmax,
                                                 .accumulate = exact_accumulate,
                                                 .end = reduce_sums};

const struct attention_kernels attention_kernels_neon = {.exact = &exact_math,
                                                         .expand = expand,
                                                         .encode = encode_vector,
                                                         .round_f16 = vec_round_f16,
                                                         .round_bf16 = round_bf16};
