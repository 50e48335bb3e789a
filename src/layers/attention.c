#include "layers/attention.h"

void attention_forward(struct forward *f, const struct attention_layer *a,
                       const struct tensor *angles, const struct tensor *x,
                       const struct tensor *qkv, const struct tensor *out)
{
    int32_t q_cols = a->n_heads * a->head_dim, kv_cols = a->n_kv_heads * a->head_dim;
    struct tensor q = tensor_cols(*qkv, 0, q_cols);
    int32_t k_at = a->has_gate ? 2 * q_cols : q_cols;
    struct tensor k = tensor_cols(*qkv, k_at, a->shares_kv ? 0 : kv_cols);
    struct tensor v = tensor_cols(*qkv, k_at + kv_cols, kv_cols);
    struct tensor projected = tensor_cols(*qkv, 0, a->qkv.n_out);
    const struct kv_group_view *group = &f->groups[a->group];

    linear_forward(f, &a->qkv, x, &projected);
    device_qk_norm_rope(f->device, &(struct qk_norm_rope_args){.q = q,
                                                               .k = k,
                                                               .angles = *angles,
                                                               .q_norm = a->q_norm,
                                                               .k_norm = a->k_norm,
                                                               .head_dim = a->head_dim,
                                                               .eps = a->eps,
                                                               .plus_one = a->norm_plus_one,
                                                               .norm_last = a->norm_last});
    if (!a->shares_kv)
        device_kv_store(f->device, &(struct kv_store_args){
                                       .pages = a->pages, .k = k, .v = v, .slots = group->slots});
    device_paged_attention(f->device,
                           &(struct paged_attention_args){.pages = a->pages,
                                                          .q = q,
                                                          .out = *out,
                                                          .q_start = f->q_start,
                                                          .kv_len = f->kv_len,
                                                          .page_table = group->page_table,
                                                          .sinks = a->sinks,
                                                          .n_sequences = f->n_sequences,
                                                          .n_q_heads = a->n_heads,
                                                          .window = a->window,
                                                          .scale = a->scale});
    if (a->has_gate)
        device_sigmoid_mul(f->device,
                           &(struct sigmoid_mul_args){
                               .x = *out, .gate = tensor_cols(*qkv, q_cols, q_cols), .out = *out});
}
