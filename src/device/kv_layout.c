#include "device/kv_layout.h"

enum status kv_layout_check(const struct kv_layout *layout, int32_t n_q_heads, int32_t max_dim,
                            bool has_int4, const char *device, struct error *error)
{
    int32_t dim = layout->head_dim, size = layout->page_size;
    bool is_there = layout->dtype == DTYPE_F32 || layout->dtype == DTYPE_F16 ||
                    layout->dtype == DTYPE_BF16 || layout->dtype == DTYPE_I8 ||
                    (has_int4 && layout->dtype == DTYPE_I4);
    if (!is_there)
        return error_set(error, ERROR_UNSUPPORTED,
                         "a KV cache of %s is not possible on the %s; use f32, f16, bf16%s",
                         (unsigned)layout->dtype < N_DTYPES ? dtype_name(layout->dtype)
                                                            : "an unknown type",
                         device, has_int4 ? ", int8 or int4" : " or int8");
    if (dim < 2 || dim > max_dim || dim % 2)
        return error_set(error, ERROR_UNSUPPORTED,
                         "attention heads of %d dims are not possible on the %s; even sizes of 2 "
                         "to %d are",
                         dim, device, max_dim);
    if (size < 1 || (size & (size - 1)) || size > 1 << 16)
        return error_set(error, ERROR_INVALID,
                         "KV pages of %d tokens are not possible; use a power of two of at most %d",
                         size, 1 << 16);
    if (layout->n_heads < 1 || n_q_heads < 1 || n_q_heads % layout->n_heads)
        return error_set(error, ERROR_INVALID,
                         "%d query heads cannot share %d KV heads; the first must be a multiple of "
                         "the second",
                         n_q_heads, layout->n_heads);
    return OK;
}
