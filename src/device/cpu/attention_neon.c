#include "device/cpu/vec_neon.h"

#include "device/cpu/attention_vec.h"

static const struct attention_math exact_math = {.scores = exact_scores,
                                                 .softmax = exact_softmax,
                                                 .accumulate = exact_accumulate,
                                                 .end = reduce_sums};

const struct attention_kernels attention_kernels_neon = {
    .exact = &exact_math, .round_f16 = vec_round_f16, .round_bf16 = round_bf16};
