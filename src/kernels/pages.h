// Where keys and values lie, which of them a row sees, and its scores (args.h).
#ifndef CSGL_KERNELS_PAGES_H
#define CSGL_KERNELS_PAGES_H

// Where the head's row of a slot begins in a page's K (which 0) or V (1), in elements.
KD_INLINE ulong kd_page_row(constant kd_pages &p, ulong page, uint place, uint head, uint which)
{
    return (((page * 2u + which) * p.n_heads + head) * p.page_size + place) * p.head_dim;
}

// The same in a page of codes, in bytes.
KD_INLINE ulong kd_code_row(constant kd_pages &p, ulong page, uint place, uint head, uint which)
{
    const ulong bytes = 2ul * p.n_heads * p.page_size * (p.head_dim + 2u);
    const ulong page_bytes = (bytes + KD_PAGE_UNIT - 1) / KD_PAGE_UNIT * KD_PAGE_UNIT;
    return page * page_bytes +
           (ulong)((which * p.n_heads + head) * p.page_size + place) * p.head_dim;
}

// Where the head's two scales of a slot lie in a page of codes, in words of 4 bytes: that of K is
// the low half.
KD_INLINE ulong kd_scales_at(constant kd_pages &p, ulong page, uint place, uint head)
{
    return kd_code_row(p, page, 0, 0, 2) / 4 + (head * p.page_size + place);
}

#define KD_LOG2_E 1.44269504f

// Below every score, and finite: what no place was seen for counts for nothing.
#define KD_NOTHING -1.0e30f

// The sequence that row `row` belongs to: q_start[i] <= row < q_start[i + 1].
KD_INLINE uint kd_sequence_of(device const int *q_start, uint stride, uint n_sequences, uint row)
{
    uint low = 0, high = n_sequences - 1;
    while (low < high) {
        const uint middle = (low + high + 1) / 2;
        if (q_start[middle * stride] <= (int)row)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

// A row sees the places first .. end of its sequence, which is_tiled if its rows are for a kernel
// that takes tiles of columns.
struct kd_seen {
    uint sequence, first, end;
    bool is_tiled;
};

KD_INLINE bool kd_is_tiled(constant kd_attention &p, uint n_rows)
{
    return n_rows * (p.n_q_heads / p.pages.n_heads) > p.max_columns;
}

KD_INLINE kd_seen kd_places_seen(constant kd_attention &p, device const int *q_start,
                                 device const int *kv_len, uint row)
{
    kd_seen seen;
    seen.sequence = kd_sequence_of(q_start, p.q_start_stride, p.n_sequences, row);
    const uint begin = (uint)q_start[seen.sequence * p.q_start_stride];
    const uint next = (uint)q_start[(seen.sequence + 1) * p.q_start_stride];
    seen.is_tiled = kd_is_tiled(p, next - begin);
    seen.end = (uint)kv_len[seen.sequence * p.kv_len_stride] - (next - row) + 1;
    seen.first = p.window && seen.end > p.window ? seen.end - p.window : 0;
    return seen;
}

#endif
