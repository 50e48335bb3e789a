/* Drawing tokens on every device: the same tokens as the scalar twin, and the twin's as defined. */
#include "ops/ops_support.h"

enum { N_KINDS = 12, MAX_TOP = 20 };

struct sampling {
    struct matrix *logits, *rows, *tokens;
};

static struct sampling new_sampling(struct device *device, int32_t n_rows, int32_t n_tokens)
{
    assert_int_equal(device->table->sample_reserve(device, n_tokens, n_rows, NULL), OK);
    return (struct sampling){new_matrix(device, DTYPE_F32, n_rows, n_tokens, 3),
                             new_matrix(device, DTYPE_I32, n_rows, SAMPLE_ROW_WORDS, 0),
                             new_matrix(device, DTYPE_I32, n_rows, 1, 1)};
}

static void free_sampling(struct device *device, struct sampling *s)
{
    free_matrix(device, s->logits);
    free_matrix(device, s->rows);
    free_matrix(device, s->tokens);
}

static struct sample_row *row_at(const struct sampling *s, int32_t i)
{
    return tensor_at(&s->rows->tensor, i);
}

/* Every kind of row by turns. Every second of them has logits in steps, so that many are equal; in
 * every fifth all are, and halves of the tokens weigh the same to the last bit. */
static void fill_row(struct sampling *s, int32_t i, uint64_t *state)
{
    int32_t n = s->logits->tensor.cols;
    float *logits = at(s->logits, i);
    uint64_t kind = next_random(state) % N_KINDS;
    for (int32_t t = 0; t < n; t++) {
        float x = 3.0f * (random_float(state) + random_float(state) + random_float(state));
        logits[t] = i % 2 ? roundf(x * 2) / 2 : x * 2;
    }
    logits[random_below(state, n)] += 9;
    for (int32_t t = 0; t < n && i % 5 == 4; t++)
        logits[t] = 2;
    *row_at(s, i) = (struct sample_row){
        .number = next_random(state), .least = 1, .inverse = 1 / 0.7f, .token = -1};
    struct sample_row *row = row_at(s, i);
    if (kind == 1)
        row->inverse = 0;
    if (kind == 2 || kind >= 8)
        row->top_k = 2 + 2 * random_below(state, 20);
    if (kind == 3 || kind == 8 || kind == 10)
        row->share = (i % 5 == 4 ? 0 : (uint32_t)next_random(state)) | 1u << 31;
    if (kind == 4 || kind == 9 || kind == 10)
        row->least = 1ull << (SAMPLE_WEIGHT_BITS - (i % 5 == 4 ? 0 : 1 + random_below(state, 8)));
    if (kind == 5)
        row->inverse = 0.02f;
    if (kind == 6)
        row->number = i % 2 ? 0 : UINT64_MAX;
    if (kind == 7)
        row->token = random_below(state, n);
    if (kind == 11)
        row->top_k = n + 1;
    for (int k = 0; k < 5 && kind % 2; k++)
        logits[random_below(state, n)] = k == 0 ? -INFINITY : NAN;
}

static void sample(struct device *device, const struct sampling *s)
{
    struct sample_args args = {
        .logits = s->logits->tensor, .rows = s->rows->tensor, .tokens = s->tokens->tensor};
    for (int32_t i = 0; i < args.rows.rows; i++) {
        const struct sample_row *row = row_at(s, i);
        if (row->inverse == 0 || row->token >= 0)
            continue;
        args.uses |= SAMPLE_DRAWS | (row->top_k ? SAMPLE_TOP_K : 0) |
                     (row->share ? SAMPLE_TOP_P : 0) | (row->least > 1 ? SAMPLE_MIN_P : 0);
    }
    device_sample(device, &args);
}

static bool is_before(const float *logits, int32_t a, int32_t b)
{
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
}

static const float *sorted_logits;

static int by_rank(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return is_before(sorted_logits, x, y) ? -1 : x != y;
}

/* The tokens that a row may draw, in the order in which they are drawn; their number. */
static int32_t list_kept(const float *logits, int32_t n, const struct sample_row *row,
                         int32_t *kept)
{
    int32_t n_kept = 0, last = 0;
    for (int32_t t = 0; t < n; t++)
        if (!isnan(logits[t]))
            kept[n_kept++] = t;
    if (!row->top_k && !row->share && row->least <= 1)
        return n_kept;
    sorted_logits = logits;
    qsort(kept, (size_t)n_kept, sizeof *kept, by_rank);
    if (row->top_k && row->top_k < n_kept)
        n_kept = row->top_k;
    double total = 0, sum = 0, max = (double)logits[kept[0]], inverse = (double)row->inverse;
    for (int32_t i = 0; i < n_kept; i++)
        total += exp(((double)logits[kept[i]] - max) * inverse);
    for (int32_t i = 0; i < n_kept; i++, last = i) {
        double weight = exp(((double)logits[kept[i]] - max) * inverse);
        bool is_enough = row->share && i > 0 && sum >= total * (double)row->share * 0x1p-32;
        if (is_enough || weight * 0x1p40 < (double)row->least)
            break;
        sum += weight;
    }
    return last;
}

/* The number falls on the token, within what weights of 24 bits may be off. */
static void check_token(const float *logits, int32_t n, const struct sample_row *row, int32_t token)
{
    int32_t *kept = malloc((size_t)n * sizeof *kept);
    double before = 0, upto = 0, total = 0;
    assert_non_null(kept);
    int32_t n_kept = list_kept(logits, n, row, kept);
    bool is_there = false;
    for (int32_t i = 0; i < n_kept; i++) {
        double weight =
            exp(((double)logits[kept[i]] - (double)logits[kept[0]]) * (double)row->inverse);
        before += is_there || kept[i] == token ? 0 : weight;
        upto += is_there ? 0 : weight;
        is_there |= kept[i] == token;
        total += weight;
    }
    double u = (double)row->number * 0x1p-64;
    if (!is_there || u < before / total - 1e-6 || u > upto / total + 1e-6)
        fail_msg("token %d: %g lies not in [%g, %g] of %g", token, u, before / total, upto / total,
                 total);
    free(kept);
}

static void the_twin_draws_as_defined(void **test)
{
    (void)test;
    uint64_t state = 3;
    enum { ROWS = 400, TOKENS = 200 };
    struct device *twin = open_device(CPU_ISA_SCALAR, ACTIVATIONS_FLOAT, 1);
    struct sampling s = new_sampling(twin, ROWS, TOKENS);
    for (int32_t i = 0; i < ROWS; i++)
        fill_row(&s, i, &state);
    sample(twin, &s);
    for (int32_t i = 0; i < ROWS; i++) {
        const struct sample_row *row = row_at(&s, i);
        const float *logits = at(s.logits, i);
        int32_t token = *ints_at(s.tokens, i);
        if (row->token >= 0)
            assert_int_equal(token, row->token);
        else if (row->inverse > 0)
            check_token(logits, TOKENS, row, token);
        for (int32_t t = 0; t < TOKENS && row->token < 0 && row->inverse == 0; t++)
            assert_true(isnan(logits[t]) || !is_before(logits, t, token));
    }
    check_borders(s.logits);
    free_sampling(twin, &s);
    twin->table->close(twin);
}

static void try_shape(struct device *twin, struct device *device, int32_t n_rows, int32_t n_tokens,
                      uint64_t *state)
{
    struct sampling a = new_sampling(twin, n_rows, n_tokens);
    struct sampling b = new_sampling(device, n_rows, n_tokens);
    for (int32_t i = 0; i < n_rows; i++)
        fill_row(&a, i, state);
    copy_matrix(b.logits, a.logits);
    copy_matrix(b.rows, a.rows);
    sample(twin, &a);
    sample(device, &b);
    for (int32_t i = 0; i < n_rows; i++)
        assert_int_equal(*ints_at(b.tokens, i), *ints_at(a.tokens, i));
    check_borders(b.logits);
    free_sampling(twin, &a);
    free_sampling(device, &b);
}

static void all_devices_draw_the_same_tokens(void **test)
{
    (void)test;
    struct device *twin = open_device(CPU_ISA_SCALAR, ACTIVATIONS_FLOAT, 1);
    for (int d = 1; d < n_test_devices(); d++) {
        uint64_t state = 1;
        struct device *device = open_test_device(d, ACTIVATIONS_FLOAT, 2);
        for (int i = 0; i < 10; i++)
            try_shape(twin, device, 1, 1 + i * i * 9, &state);
        try_shape(twin, device, is_slow(device) ? 100 : 400, 331, &state);
        try_shape(twin, device, 3, 8200, &state); /* three parts on a GPU */
        if (!is_slow(device))
            try_shape(twin, device, 24, 151936, &state);
        device->table->close(device);
    }
    twin->table->close(twin);
}

static void a_row_without_a_finite_largest_logit_draws_nothing(void **test)
{
    (void)test;
    const float rows[][3] = {
        {NAN, NAN, NAN}, {-INFINITY, NAN, -INFINITY}, {0, INFINITY, 1}, {-INFINITY, -2, NAN}};
    for (int d = 0; d < n_test_devices(); d++) {
        struct device *device = open_test_device(d, ACTIVATIONS_FLOAT, 1);
        struct sampling s = new_sampling(device, 4, 3);
        for (int is_drawn = 0; is_drawn < 2; is_drawn++) {
            for (int i = 0; i < 4; i++) {
                memcpy(at(s.logits, i), rows[i], sizeof rows[i]);
                *row_at(&s, i) =
                    (struct sample_row){.least = 1, .inverse = (float)is_drawn, .token = -1};
            }
            sample(device, &s);
            for (int i = 0; i < 4; i++)
                assert_int_equal(*ints_at(s.tokens, i), i == 3 ? 1 : -1);
        }
        free_sampling(device, &s);
        device->table->close(device);
    }
}

static void edits_are_exact_and_undone(void **test)
{
    (void)test;
    enum { ROWS = 3, TOKENS = 700, EDITS = 1000 };
    for (int d = 0; d < n_test_devices(); d++) {
        uint64_t state = 5;
        struct device *device = open_test_device(d, ACTIVATIONS_FLOAT, 1);
        struct matrix *logits = random_matrix(device, ROWS, TOKENS, 2, &state);
        struct matrix *before = random_matrix(device, ROWS, TOKENS, 2, &state);
        struct matrix *edits = new_matrix(device, DTYPE_I32, EDITS, LOGIT_EDIT_WORDS, 0);
        copy_matrix(before, logits);
        for (int i = 0; i < EDITS; i++)
            *(struct logit_edit *)tensor_at(&edits->tensor, i) =
                (struct logit_edit){.row = i % ROWS,
                                    .token = i / ROWS * 2,
                                    .bias = i % 5 ? random_float(&state) : -INFINITY,
                                    .penalty = i % 7 ? 1 + random_float(&state) / 2 : 1,
                                    .minus = random_float(&state)};
        struct edit_logits_args args = {.logits = logits->tensor, .edits = edits->tensor};
        device_edit_logits(device, &args);
        for (int i = 0; i < EDITS; i++) {
            const struct logit_edit *e = tensor_at(&edits->tensor, i);
            volatile float l = at(before, e->row)[e->token] + e->bias;
            l = l > 0 ? l / e->penalty : l * e->penalty;
            l -= e->minus;
            assert_true(at(logits, e->row)[e->token] == l);
            at(logits, e->row)[e->token] = e->before;
        }
        check_close(logits, before, 0, 0, "edits");
        for (int i = 0; i < EDITS; i++) {
            const struct logit_edit *e = tensor_at(&edits->tensor, i);
            at(logits, e->row)[e->token] = 77;
        }
        args.is_undo = true;
        device_edit_logits(device, &args);
        check_close(logits, before, 0, 0, "undone edits");
        free_matrix(device, logits);
        free_matrix(device, before);
        free_matrix(device, edits);
        device->table->close(device);
    }
}

static void check_logprobs(const float *logits, int32_t n, int32_t token, float logprob,
                           const int32_t *top, const float *top_logprobs, int n_top)
{
    double sum = 0;
    int n_numbers = 0;
    for (int32_t t = 0; t < n; t++)
        if (!isnan(logits[t])) {
            sum += exp((double)logits[t]);
            n_numbers++;
        }
    assert_true(fabs((double)logprob - ((double)logits[token] - log(sum))) <= 1e-5);
    for (int k = 0; k < n_top; k++) {
        if (k >= n_numbers) {
            assert_int_equal(top[k], -1);
            continue;
        }
        int before = 0;
        for (int32_t t = 0; t < n; t++)
            before += is_before(logits, t, top[k]);
        assert_int_equal(before, k);
        assert_true(fabs((double)top_logprobs[k] - ((double)logits[top[k]] - log(sum))) <= 1e-5);
        /* A client may look for the token among the best by its logprob. */
        assert_true(top[k] != token || top_logprobs[k] == logprob);
    }
}

static void try_logprobs(struct device *device, int32_t n_rows, int32_t n_tokens, int n_top,
                         uint64_t *state)
{
    struct sampling s = new_sampling(device, n_rows, n_tokens);
    struct matrix *logprobs = new_matrix(device, DTYPE_F32, n_rows, 1, 1);
    struct matrix *top = new_matrix(device, DTYPE_I32, n_rows, n_top + 1, 0);
    struct matrix *top_logprobs = new_matrix(device, DTYPE_F32, n_rows, n_top + 1, 0);
    top->tensor.cols = top_logprobs->tensor.cols = n_top;
    for (int32_t i = 0; i < n_rows; i++) {
        fill_row(&s, i, state);
        int32_t token = i % 3 ? random_below(state, n_tokens) : 0;
        at(s.logits, i)[token] = i % 3 ? random_float(state) : 20;
        *ints_at(s.tokens, i) = token;
    }
    device_logprobs(device, &(struct logprobs_args){.logits = s.logits->tensor,
                                                    .tokens = s.tokens->tensor,
                                                    .logprobs = logprobs->tensor,
                                                    .top_tokens = top->tensor,
                                                    .top_logprobs = top_logprobs->tensor});
    for (int32_t i = 0; i < n_rows; i++)
        check_logprobs(at(s.logits, i), n_tokens, *ints_at(s.tokens, i), *at(logprobs, i),
                       ints_at(top, i), at(top_logprobs, i), n_top);
    check_borders(logprobs);
    free_sampling(device, &s);
    free_matrix(device, logprobs);
    free_matrix(device, top);
    free_matrix(device, top_logprobs);
}

static void logprobs_of_all_devices_are_those_of_the_softmax(void **test)
{
    (void)test;
    for (int d = 0; d < n_test_devices(); d++) {
        uint64_t state = 8;
        struct device *device = open_test_device(d, ACTIVATIONS_FLOAT, 2);
        try_logprobs(device, 5, 300, 0, &state);
        try_logprobs(device, 1, 7, MAX_TOP, &state);
        try_logprobs(device, 6, 1000, 5, &state);
        if (!is_slow(device))
            try_logprobs(device, 9, 151936, MAX_TOP, &state);
        device->table->close(device);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_twin_draws_as_defined),
        cmocka_unit_test(all_devices_draw_the_same_tokens),
        cmocka_unit_test(a_row_without_a_finite_largest_logit_draws_nothing),
        cmocka_unit_test(edits_are_exact_and_undone),
        cmocka_unit_test(logprobs_of_all_devices_are_those_of_the_softmax),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
