/* The layout of a page and the way into it: kv_page_bytes, kv_store, kv_copy_page. */
#include "device/cpu/attention.h"
#include "device/cpu/attention_codes.h"
#include "device/cpu/cpu_device.h"

#include <assert.h>
#include <string.h>

enum { LINE = 64 };

static size_t values_bytes(enum dtype dtype, size_t n)
{
    return dtype == DTYPE_I8 || dtype == DTYPE_I4 ? codes_bytes(dtype, n) : n * dtype_bytes(dtype);
}

struct kv_view kv_view_of(const struct kv_layout *layout, char *base)
{
    struct kv_view view = {.base = base,
                           .page_size = layout->page_size,
                           .head_dim = layout->head_dim,
                           .dtype = layout->dtype};
    int32_t size = layout->page_size;
    view.piece = size < ATTENTION_PIECE ? size : ATTENTION_PIECE;
    view.pair = layout->dtype == DTYPE_F32 || layout->dtype == DTYPE_F16 ? 1 : 2;
    size_t dim = (size_t)layout->head_dim, n_pieces = (size_t)(size / view.piece);
    size_t rows = (size_t)(size < view.pair ? view.pair : view.piece); /* a pair even for one */
    view.k_piece_bytes = values_bytes(layout->dtype, (size_t)view.piece * dim);
    view.v_piece_bytes = values_bytes(layout->dtype, rows * dim);
    view.k_bytes = n_pieces * view.k_piece_bytes;
    view.v_bytes = n_pieces * view.v_piece_bytes;
    view.head_bytes = view.k_bytes + view.v_bytes;
    if (kv_has_codes(&view))
        view.head_bytes += (size_t)size * 2 * sizeof(uint16_t);
    view.page_bytes = view.head_bytes * (size_t)layout->n_heads;
    return view;
}

size_t cpu_kv_page_bytes(const struct device *device, const struct kv_layout *layout)
{
    (void)device;
    return kv_view_of(layout, NULL).page_bytes;
}

/* Tasks are ranges of rows by ranges of heads. */
struct store_run {
    const struct kv_store_args *args;
    struct kv_view view;
    const struct attention_kernels *kernels;
    int n_row_ranges, n_head_ranges;
};

/* Tokens that follow each other in one piece: n rows of one head's k and v, the strides
 * in floats. */
struct tokens {
    const float *k, *v;
    size_t k_stride, v_stride;
    int n, place; /* of the first in its page */
    char *piece, *row;
};

static void store_f32(const struct kv_view *view, const struct tokens *tokens)
{
    float *to = (float *)(void *)tokens->piece + tokens->place % view->piece;
    for (int d = 0; d < view->head_dim; d++, to += view->piece)
        for (int i = 0; i < tokens->n; i++)
            to[i] = tokens->k[(size_t)i * tokens->k_stride + (size_t)d];
    size_t row = (size_t)view->head_dim * sizeof *to;
    for (int i = 0; i < tokens->n; i++)
        memcpy(tokens->row + (size_t)i * row, tokens->v + (size_t)i * tokens->v_stride, row);
}

static void store_f16(const struct store_run *run, const struct tokens *tokens)
{
    uint16_t rounded[ATTENTION_PIECE][ATTENTION_MAX_DIM];
    int dim = run->view.head_dim, width = run->view.piece;
    uint16_t *to = (uint16_t *)(void *)tokens->piece + tokens->place % width;
    for (int i = 0; i < tokens->n; i++)
        run->kernels->round_f16(tokens->k + (size_t)i * tokens->k_stride, rounded[i], dim);
    for (int d = 0; d < dim; d++, to += width)
        for (int i = 0; i < tokens->n; i++)
            to[i] = rounded[i][d];
    uint16_t *row = (uint16_t *)(void *)tokens->row;
    for (int i = 0; i < tokens->n; i++, row += dim)
        run->kernels->round_f16(tokens->v + (size_t)i * tokens->v_stride, row, dim);
}

/* Rows of V go into pairs, of which the first token may be there already and the second not yet. */
static void store_pairs(const struct store_run *run, const struct tokens *tokens)
{
    uint16_t a[ATTENTION_MAX_DIM], b[ATTENTION_MAX_DIM];
    int dim = run->view.head_dim;
    uint32_t *pairs = (uint32_t *)(void *)tokens->row;
    for (int i = 0; i < tokens->n; pairs += dim) {
        const float *v = tokens->v + (size_t)i * tokens->v_stride;
        unsigned shift = (tokens->place + i) % 2 ? 16 : 0;
        run->kernels->round_bf16(v, a, dim);
        if (shift == 0 && i + 1 < tokens->n) {
            run->kernels->round_bf16(v + tokens->v_stride, b, dim);
            for (int d = 0; d < dim; d++)
                pairs[d] = a[d] | (uint32_t)b[d] << 16;
            i += 2;
            continue;
        }
        /* Words with the other token's half, because halves alone make no vectors. */
        for (int d = 0; d < dim; d++)
            pairs[d] = (pairs[d] & 0xFFFF0000u >> shift) | (uint32_t)a[d] << shift;
        i++;
    }
}

static void store_bf16(const struct store_run *run, const struct tokens *tokens)
{
    /* Pairs of dims are moved as one. */
    uint32_t rounded[ATTENTION_MAX_DIM / 2];
    int dim = run->view.head_dim, width = run->view.piece;
    uint32_t *to = (uint32_t *)(void *)tokens->piece + tokens->place % width;
    for (int i = 0; i < tokens->n; i++, to++) {
        run->kernels->round_bf16(tokens->k + (size_t)i * tokens->k_stride,
                                 (uint16_t *)(void *)rounded, dim);
        for (int d = 0; d < dim / 2; d++)
            to[d * width] = rounded[d];
    }
    store_pairs(run, tokens);
}

/* Asks for the lines of K that a token's dims lie in, each its own: more misses at once than stores
 * behind each other wait for. */
static void fetch_piece(const struct kv_view *view, const char *piece)
{
    for (size_t i = 0; i < view->k_piece_bytes; i += LINE)
        __builtin_prefetch(piece + i, 1);
}

/* Heads first_head .. end_head - 1 of rows row .. row + n - 1, whose slots follow each other in one
 * piece. */
static void store_rows(const struct store_run *run, int row, int n, int first_head, int end_head)
{
    const struct kv_view *view = &run->view;
    const struct kv_store_args *args = run->args;
    int32_t slot = *(const int32_t *)tensor_at(&args->slots, row);
    struct tokens tokens = {.n = n, .place = slot % view->page_size};
    tokens.k = (const float *)tensor_at(&args->k, row) + first_head * view->head_dim;
    tokens.v = (const float *)tensor_at(&args->v, row) + first_head * view->head_dim;
    tokens.k_stride = (size_t)args->k.stride;
    tokens.v_stride = (size_t)args->v.stride;
    for (int32_t head = first_head; head < end_head; head++) {
        char *page = kv_k_head(view, slot / view->page_size, head);
        tokens.piece = kv_k_piece(view, page, tokens.place);
        fetch_piece(view, tokens.piece);
        if (!kv_has_codes(view))
            tokens.row = kv_v_row(view, page, tokens.place);
        if (kv_has_codes(view))
            codes_store(view, tokens.k, tokens.k_stride, tokens.v, tokens.v_stride, n,
                        tokens.place % view->piece, tokens.piece,
                        kv_v_piece(view, page, tokens.place), kv_scales(view, page, tokens.place),
                        run->kernels->encode);
        else if (view->dtype == DTYPE_F32)
            store_f32(view, &tokens);
        else if (view->dtype == DTYPE_F16)
            store_f16(run, &tokens);
        else
            store_bf16(run, &tokens);
        tokens.k += view->head_dim;
        tokens.v += view->head_dim;
    }
}

/* Rows from `row`, before `end`, that store_rows takes at once. */
static int run_length(const struct store_run *run, int row, int end)
{
    const struct tensor *slots = &run->args->slots;
    int32_t slot = *(const int32_t *)tensor_at(slots, row);
    int most = run->view.piece - slot % run->view.piece, n = 1;
    most = end - row < most ? end - row : most;
    while (n < most && *(const int32_t *)tensor_at(slots, row + n) == slot + n)
        n++;
    return n;
}

/* The first row from `row` on that may begin a task: tokens of one piece share cache lines and
 * bytes, and codes need those before them. */
static int task_border(const struct store_run *run, int row)
{
    const struct tensor *slots = &run->args->slots;
    int n_rows = run->args->k.rows;
    for (; row > 0 && row < n_rows; row++) {
        int32_t slot = *(const int32_t *)tensor_at(slots, row);
        if (slot % run->view.piece == 0 || slot != *(const int32_t *)tensor_at(slots, row - 1) + 1)
            break;
    }
    return row;
}

static void store_task(void *context, int task, int worker)
{
    (void)worker;
    const struct store_run *run = context;
    int64_t n_rows = run->args->k.rows, n_heads = run->args->pages.layout.n_heads;
    int rows = task / run->n_head_ranges, heads = task % run->n_head_ranges;
    int end = task_border(run, (int)(n_rows * (rows + 1) / run->n_row_ranges));
    int first_head = (int)(n_heads * heads / run->n_head_ranges);
    int end_head = (int)(n_heads * (heads + 1) / run->n_head_ranges);
    for (int row = task_border(run, (int)(n_rows * rows / run->n_row_ranges)); row < end;) {
        int n = run_length(run, row, end);
        store_rows(run, row, n, first_head, end_head);
        row += n;
    }
}

static int64_t at_most(int64_t n, int64_t most)
{
    return n < most ? n : most;
}

void cpu_kv_store(struct device *device, const struct kv_store_args *args)
{
    struct cpu_device *cpu = cpu_device_of(device);
    const struct kv_layout *layout = &args->pages.layout;
    assert(args->k.dtype == DTYPE_F32 && args->v.dtype == DTYPE_F32);
    assert(args->k.cols == layout->n_heads * layout->head_dim && args->v.cols == args->k.cols);
    assert(layout->head_dim <= ATTENTION_MAX_DIM);
    char *base = (char *)args->pages.buffer->host + args->pages.offset;
    struct store_run run = {args, kv_view_of(layout, base), cpu->attention, 1, 1};
    /* Of many rows a task has several pieces; few rows are shared out by their heads. TASK_FLOATS
     * of a lone token touch as many lines as take 1 us to come from memory. */
    enum { TASK_ROWS = 64, TASK_FLOATS = 1024 };
    int64_t n_rows = args->k.rows, n_tasks = n_rows * args->k.cols / TASK_FLOATS;
    int64_t n_row_ranges = at_most(n_rows / TASK_ROWS, n_tasks / 8);
    run.n_row_ranges = n_row_ranges < 1 ? 1 : (int)n_row_ranges;
    if (n_row_ranges < thread_pool_size(cpu->pool) && n_tasks > 1)
        run.n_head_ranges = (int)at_most(layout->n_heads, thread_pool_size(cpu->pool));
    thread_pool_run(cpu->pool, store_task, &run, run.n_row_ranges * run.n_head_ranges);
}

void cpu_kv_copy_page(struct device *device, const struct kv_copy_page_args *args)
{
    char *base = (char *)args->pages.buffer->host + args->pages.offset;
    size_t bytes = cpu_kv_page_bytes(device, &args->pages.layout);
    for (int32_t i = 0; i < args->pairs.rows; i++) {
        const int32_t *pair = tensor_at(&args->pairs, i);
        if (pair[0] != pair[1])
            memcpy(base + (size_t)pair[1] * bytes, base + (size_t)pair[0] * bytes, bytes);
    }
}
