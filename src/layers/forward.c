#include "layers/forward.h"

#include "base/size.h"

#include <assert.h>

enum { SCRATCH_ALIGN = 64 };

size_t forward_tensor_bytes(int64_t rows, int64_t cols)
{
    return size_round_up((size_t)rows * (size_t)cols * sizeof(float), SCRATCH_ALIGN);
}

struct tensor forward_tensor(struct forward *f, int32_t rows, int32_t cols)
{
    struct tensor t = {.buffer = &f->scratch,
                       .offset = f->scratch_used,
                       .dtype = DTYPE_F32,
                       .rows = rows,
                       .cols = cols,
                       .stride = cols};
    f->scratch_used += forward_tensor_bytes(rows, cols);
    assert(f->scratch_used <= f->scratch.bytes);
    return t;
}
