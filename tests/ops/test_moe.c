/* Mixtures of experts on every device and in every mode against sums written out here in double. */
#include "ops/linear_case.h"

/* --- routing ---------------------------------------------------------------------------------- */

static void route(struct device *device, struct matrix *logits, struct matrix *experts,
                  struct matrix *weights, bool is_normalised)
{
    device_moe_route(device, &(struct moe_route_args){.logits = logits->tensor,
                                                      .experts = experts->tensor,
                                                      .weights = weights->tensor,
                                                      .is_normalised = is_normalised});
}

/* Expert e is chosen in place k if k others come before it: greater, or equal and lower. */
static void check_row(const float *logits, int n_experts, const int32_t *experts,
                      const float *weights, int n_chosen, bool is_normalised)
{
    double all = 0, chosen = 0;
    for (int e = 0; e < n_experts; e++) {
        int before = 0;
        for (int other = 0; other < n_experts; other++)
            before += logits[other] > logits[e] || (logits[other] == logits[e] && other < e);
        all += exp((double)logits[e]);
        if (before >= n_chosen)
            continue;
        assert_int_equal(experts[before], e);
        chosen += exp((double)logits[e]);
    }
    for (int k = 0; k < n_chosen; k++) {
        double expected = exp((double)logits[experts[k]]) / (is_normalised ? chosen : all);
        assert_true(fabs((double)weights[k] - expected) <= 1e-5 * expected);
    }
}

static void try_routing(struct device *device, int32_t rows, int32_t n_experts, int32_t n_chosen,
                        uint64_t *state)
{
    struct matrix *logits = random_matrix(device, rows, n_experts, 1, state);
    struct matrix *experts = new_matrix(device, DTYPE_I32, rows, n_chosen, 0);
    struct matrix *weights = new_matrix(device, DTYPE_F32, rows, n_chosen, 2);
    for (int32_t r = 0; r < rows; r++)
        for (int32_t e = 0; e < n_experts; e++) /* in steps, so that some are equal */
            at(logits, r)[e] = roundf(at(logits, r)[e] * 40) / 8;
    for (int normalised = 0; normalised < 2; normalised++) {
        route(device, logits, experts, weights, normalised);
        for (int32_t r = 0; r < rows; r++)
            check_row(at(logits, r), n_experts, ints_at(experts, r), at(weights, r), n_chosen,
                      normalised);
        check_borders(weights);
    }
    free_matrix(device, logits);
    free_matrix(device, experts);
    free_matrix(device, weights);
}

static void the_best_experts_are_chosen_with_their_softmax(void **unused)
{
    (void)unused;
    static const int32_t shapes[][2] = {{1, 1},  {3, 1},   {7, 4},    {13, 10},
                                        {60, 4}, {128, 8}, {512, 10}, {9, 9}};
    uint64_t state = 1;
    for (int d = 0; d < n_test_devices(); d++) {
        struct device *device = open_test_device(d, ACTIVATIONS_FLOAT, 2);
        for (int i = 0; i < 8; i++) {
            try_routing(device, 1, shapes[i][0], shapes[i][1], &state);
            try_routing(device, is_slow(device) ? 3 : 300, shapes[i][0], shapes[i][1], &state);
        }
        device->table->close(device);
    }
}

static void routing_survives_values_that_are_no_numbers(void **unused)
{
    (void)unused;
    const float rows[][4] = {{NAN, 1, 2, 0}, {NAN, NAN, NAN, NAN}, {-INFINITY, -INFINITY, 0, NAN}};
    const int32_t expected[][2] = {{2, 1}, {0, 1}, {2, 0}};
    for (int d = 0; d < n_test_devices(); d++) {
        struct device *device = open_test_device(d, ACTIVATIONS_FLOAT, 1);
        struct matrix *logits = new_matrix(device, DTYPE_F32, 3, 4, 0);
        struct matrix *experts = new_matrix(device, DTYPE_I32, 3, 2, 0);
        struct matrix *weights = new_matrix(device, DTYPE_F32, 3, 2, 0);
        for (int r = 0; r < 3; r++)
            memcpy(at(logits, r), rows[r], sizeof rows[r]);
        route(device, logits, experts, weights, true);
        for (int r = 0; r < 3; r++)
            assert_memory_equal(ints_at(experts, r), expected[r], sizeof expected[r]);
        assert_true(at(weights, 2)[0] == 1 && at(weights, 2)[1] == 0);
        free_matrix(device, logits);
        free_matrix(device, experts);
        free_matrix(device, weights);
        device->table->close(device);
    }
}

/* --- the experts ------------------------------------------------------------------------------ */

struct mixture {
    int32_t n_experts, n_chosen, hidden, inner, rows;
    enum weight_encoding encoding;
    enum activation activation;
    int bits, group; /* 0: as the encoding is; else MLX's codes of its floats */
    bool has_bias, is_interleaved, has_shared, has_gate;
    bool is_crowded; /* all rows choose the same experts, so that the others have none */
    bool is_for_gpu; /* alone */
    int32_t first_inner, n_inner; /* the columns of a rank; 0: all */
};

static struct mixture mixture(int32_t n_experts, int32_t n_chosen, int32_t hidden, int32_t inner,
                              int32_t rows, enum weight_encoding encoding)
{
    return (struct mixture){.n_experts = n_experts,
                            .n_chosen = n_chosen,
                            .hidden = hidden,
                            .inner = inner,
                            .rows = rows,
                            .encoding = encoding};
}

/* A mixture with random weights and inputs, and what its result must be. */
struct mixture_case {
    const struct mixture *m;
    struct weight gate_up, down; /* [E * 2I, H], [E * H, I] */
    float *biases;               /* [E][2I + H] */
    struct expert_slices *slices;
    struct matrix *x, *experts, *weights, *shared, *shared_gate, *expected, *bound;
};

static const float alpha = 1.702f, limit = 0.7f;

static void make_slices(struct mixture_case *c)
{
    const struct mixture *m = c->m;
    int32_t first = m->first_inner, n = m->n_inner ? m->n_inner : m->inner;
    c->slices = calloc((size_t)m->n_experts, sizeof *c->slices);
    for (int32_t e = 0; e < m->n_experts; e++) {
        struct weight_slice *gate = &c->slices[e].gate, *up = &c->slices[e].up;
        int32_t step = m->is_interleaved ? 2 : 1;
        const float *bias = c->biases + e * (2 * m->inner + m->hidden);
        *gate = (struct weight_slice){.weight = c->gate_up,
                                      .row = first,
                                      .pattern = {.first = e * 2 * m->inner,
                                                  .run = step == 2 ? 1 : m->inner,
                                                  .stride = step == 2 ? 2 : m->inner},
                                      .rows = n,
                                      .cols = m->hidden,
                                      .bias = m->has_bias ? bias + first : NULL};
        *up = *gate;
        up->pattern.first += m->is_interleaved ? 1 : m->inner;
        up->bias = m->has_bias ? bias + m->inner + first : NULL;
        c->slices[e].down = (struct weight_slice){.weight = c->down,
                                                  .row = e * m->hidden,
                                                  .rows = m->hidden,
                                                  .col = first,
                                                  .cols = n,
                                                  .bias = m->has_bias ? bias + 2 * m->inner : NULL};
    }
}

/* y = row . x + bias; also the sum of the magnitudes. */
static double dot(const struct weight_slice *slice, int64_t row, const double *x, double *magnitude)
{
    float *values = malloc((size_t)slice->weight.cols * sizeof *values);
    double y = slice->bias ? (double)slice->bias[row] : 0;
    weight_row_dequantize(&slice->weight, row_pattern_at(&slice->pattern, slice->row + row),
                          values);
    *magnitude = fabs(y);
    for (int64_t k = 0; k < slice->cols; k++) {
        y += x[k] * (double)values[slice->col + k];
        *magnitude += fabs(x[k] * (double)values[slice->col + k]);
    }
    free(values);
    return y;
}

static double activated(const struct mixture *m, double gate, double up)
{
    if (m->activation == ACTIVATION_SILU)
        return gate / (1 + exp(-gate)) * up;
    double g = fmin(gate, (double)limit), u = fmax(fmin(up, (double)limit), (double)-limit);
    return (u + 1) * g / (1 + exp(-(double)alpha * g));
}

/* Adds w FFN_e(x) to out and the magnitudes that its rounding may reach to bound. */
static void add_expert(const struct mixture_case *c, int32_t e, double w, const float *x,
                       double *out, double *bound)
{
    const struct expert_slices *s = &c->slices[e];
    int64_t n = s->gate.rows;
    double *wide = malloc((size_t)c->m->hidden * sizeof *wide);
    double *act = malloc((size_t)n * 2 * sizeof *act), *rounding = act + n;
    for (int32_t k = 0; k < c->m->hidden; k++)
        wide[k] = (double)x[k];
    for (int64_t i = 0; i < n; i++) {
        double gate_size, up_size, gate = dot(&s->gate, i, wide, &gate_size);
        double up = dot(&s->up, i, wide, &up_size);
        act[i] = activated(c->m, gate, up);
        rounding[i] = fabs(act[i]) + gate_size * (fabs(up) + 1) + fabs(gate) * up_size;
    }
    for (int32_t k = 0; k < c->m->hidden; k++) {
        double size;
        out[k] += w * dot(&s->down, k, act, &size);
        (void)dot(&s->down, k, rounding, &size);
        bound[k] += fabs(w) * size;
    }
    free(wide);
    free(act);
}

static void fill_expected(struct mixture_case *c)
{
    const struct mixture *m = c->m;
    double *out = malloc((size_t)m->hidden * 2 * sizeof *out), *bound = out + m->hidden;
    for (int32_t t = 0; t < m->rows; t++) {
        double s = m->has_gate ? 1 / (1 + exp(-(double)at(c->shared_gate, t)[0])) : 1;
        for (int32_t k = 0; k < m->hidden; k++) {
            out[k] = m->has_shared ? s * (double)at(c->shared, t)[k] : 0;
            bound[k] = fabs(out[k]);
        }
        for (int32_t k = 0; k < m->n_chosen; k++)
            add_expert(c, ints_at(c->experts, t)[k], (double)at(c->weights, t)[k], at(c->x, t), out,
                       bound);
        for (int32_t k = 0; k < m->hidden; k++) {
            at(c->expected, t)[k] = (float)out[k];
            at(c->bound, t)[k] = (float)bound[k];
        }
    }
    free(out);
}

/* Different experts for each row, in any order; some experts may have no rows. */
static void choose(struct mixture_case *c, uint64_t *state)
{
    const struct mixture *m = c->m;
    for (int32_t t = 0; t < m->rows; t++) {
        int32_t *experts = ints_at(c->experts, t);
        int32_t first = m->is_crowded ? m->n_experts / 2 : random_below(state, m->n_experts);
        int32_t step = m->n_experts % 3 ? 3 : 1;
        for (int32_t k = 0; k < m->n_chosen; k++)
            experts[k] = (first + k * step) % m->n_experts;
    }
}

static void mixture_case_make(struct mixture_case *c, const struct mixture *m, struct device *owner,
                              uint64_t *state)
{
    *c = (struct mixture_case){.m = m};
    c->gate_up = new_weight(m->encoding, m->n_experts * 2 * m->inner, m->hidden, state);
    c->down = new_weight(m->encoding, m->n_experts * m->hidden, m->inner, state);
    if (m->bits) {
        c->gate_up = weight_quantized(&c->gate_up, m->bits, m->group);
        c->down = weight_quantized(&c->down, m->bits, m->group);
    }
    size_t n_biases = (size_t)(m->n_experts * (2 * m->inner + m->hidden));
    c->biases = malloc(n_biases * sizeof *c->biases);
    for (size_t i = 0; i < n_biases; i++)
        c->biases[i] = random_float(state);
    make_slices(c);
    c->x = random_matrix(owner, m->rows, m->hidden, 3, state);
    c->experts = new_matrix(owner, DTYPE_I32, m->rows, m->n_chosen, 0);
    c->weights = random_matrix(owner, m->rows, m->n_chosen, 1, state);
    c->shared = random_matrix(owner, m->rows, m->hidden, 2, state);
    c->shared_gate = random_matrix(owner, m->rows, 1, 4, state);
    c->expected = new_matrix(owner, DTYPE_F32, m->rows, m->hidden, 0);
    c->bound = new_matrix(owner, DTYPE_F32, m->rows, m->hidden, 0);
    choose(c, state);
    fill_expected(c);
}

static void mixture_case_done(struct mixture_case *c, struct device *owner)
{
    struct matrix *all[] = {c->x,           c->experts,  c->weights, c->shared,
                            c->shared_gate, c->expected, c->bound};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free_matrix(owner, all[i]);
    free((void *)(uintptr_t)c->gate_up.data);
    free((void *)(uintptr_t)c->down.data);
    free(c->biases);
    free(c->slices);
}

/* Experts of an array, of which at most one may be open where a device takes them in turn. */
struct expert_array {
    const struct expert_slices *slices;
    int n_open, n_closed;
};

static enum status open_expert(void *context, int32_t e, struct expert_slices *out,
                               struct error *error)
{
    struct expert_array *array = context;
    (void)error;
    array->n_open++;
    *out = array->slices[e];
    return OK;
}

static void close_expert(void *context, int32_t e, const struct expert_slices *slices)
{
    struct expert_array *array = context;
    (void)e;
    (void)slices;
    array->n_closed++;
}

static enum status load_array(struct device *device, const struct expert_slices *slices, int32_t n,
                              int32_t top_k, int32_t max_rows, struct experts **out,
                              struct error *error)
{
    struct expert_array array = {.slices = slices};
    struct expert_source source = {open_expert, close_expert, &array};
    enum status status =
        device->table->experts_load(device, &source, n, top_k, max_rows, out, error);
    assert_int_equal(array.n_open, array.n_closed);
    return status;
}

static struct experts *load_experts(struct device *device, const struct mixture_case *c)
{
    struct experts *stack;
    struct error error;
    if (load_array(device, c->slices, c->m->n_experts, c->m->n_chosen, c->m->rows, &stack,
                   &error) != OK)
        fail_msg("%s", error.message);
    return stack;
}

/* Rows [first, first + n) of the case, from `x` into `out`. */
static void run_rows(struct device *device, const struct experts *stack,
                     const struct mixture_case *c, const struct matrix *x, struct matrix *out,
                     int32_t first, int32_t n)
{
    struct moe_ffn_args args = {.stack = stack,
                                .x = tensor_rows(x->tensor, first, n),
                                .experts = tensor_rows(c->experts->tensor, first, n),
                                .weights = tensor_rows(c->weights->tensor, first, n),
                                .out = tensor_rows(out->tensor, first, n),
                                .activation = c->m->activation,
                                .alpha = alpha,
                                .limit = limit};
    if (c->m->has_shared)
        args.shared = tensor_rows(c->shared->tensor, first, n);
    if (c->m->has_gate)
        args.shared_gate = tensor_rows(c->shared_gate->tensor, first, n);
    device_moe_ffn(device, &args);
}

static void check_against(const struct mixture_case *c, const struct matrix *out, double tolerance,
                          const char *what)
{
    for (int32_t t = 0; t < c->m->rows; t++)
        for (int32_t k = 0; k < c->m->hidden; k++) {
            double y = (double)at(out, t)[k], z = (double)at(c->expected, t)[k];
            if (!(fabs(y - z) <= tolerance * (double)at(c->bound, t)[k]))
                fail_msg("%s, %s, %d of %d experts, %d x %d: [%d of %d, %d] is %.9g, not %.9g "
                         "(bound %.3g)",
                         what, weight_info(c->m->encoding)->name, c->m->n_chosen, c->m->n_experts,
                         c->m->inner, c->m->hidden, t, c->m->rows, k, y, z,
                         (double)at(c->bound, t)[k]);
        }
    check_borders(out);
}

/* Two roundings of inputs in a row: 1/254 of a group's largest value each, which may be thrice the
 * usual value. */
static const double tolerances[] = {[ACTIVATIONS_FLOAT] = 1e-5, [ACTIVATIONS_INT8] = 0.02};

/* A GPU's matrix units may round inputs to bf16, twice in a row. */
static const double gpu_tolerance = 0x1p-8;

/* Lends or takes back what all devices read. */
static void share(struct device *device, const struct mixture_case *c,
                  void (*function)(struct device *, struct buffer *))
{
    struct matrix *all[] = {c->x, c->experts, c->weights, c->shared, c->shared_gate};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        function(device, &all[i]->buffer);
}

static void try_device(const struct mixture_case *c, int d, enum activations activations,
                       int n_threads)
{
    struct device *device = open_test_device(d, activations, n_threads);
    bool is_rounded = activations == ACTIVATIONS_AUTO; /* a GPU's, by kernels that suit the rows */
    double tolerance = is_rounded ? gpu_tolerance : tolerances[activations];
    share(device, c, mirror_lend);
    struct experts *stack = load_experts(device, c);
    struct matrix *out = new_matrix(device, DTYPE_F32, c->m->rows, c->m->hidden, 3);
    struct matrix *alone = new_matrix(device, DTYPE_F32, c->m->rows, c->m->hidden, 3);
    run_rows(device, stack, c, c->x, out, 0, c->m->rows);
    check_against(c, out, tolerance, test_device_name(d));
    /* In place and row by row (many rows of a GPU, whose memory is copied each time: some at a
     * time), the same bits. */
    int32_t step = is_test_gpu(d) && c->m->rows > 256 ? 97 : 1;
    copy_matrix(alone, c->x);
    for (int32_t t = 0; t < c->m->rows; t += step)
        run_rows(device, stack, c, alone, alone, t, step < c->m->rows - t ? step : c->m->rows - t);
    if (is_rounded)
        check_against(c, alone, tolerance, test_device_name(d));
    for (int32_t t = 0; t < c->m->rows && !is_rounded; t++)
        assert_memory_equal(at(alone, t), at(out, t), (size_t)c->m->hidden * sizeof(float));
    free_matrix(device, out);
    free_matrix(device, alone);
    share(device, c, mirror_give_back);
    device->table->experts_free(device, stack);
    device->table->close(device);
}

/* A GPU's experts have no int8 form; an emulator, which looks at every access, gets small
 * mixtures. */
static void try_gpu(const struct mixture_case *c, int d)
{
    const struct mixture *m = c->m;
    if (!has_real_gpu() && (int64_t)m->rows * m->n_chosen * m->hidden * m->inner >= 1 << 17)
        return;
    try_device(c, d, ACTIVATIONS_FLOAT, 1);
    try_device(c, d, ACTIVATIONS_AUTO, 1);
}

static void try_mixture(const struct mixture *m, uint64_t *state)
{
    struct device *owner = open_device(CPU_ISA_SCALAR, ACTIVATIONS_FLOAT, 1);
    struct mixture_case c;
    mixture_case_make(&c, m, owner, state);
    for (int d = 0; d < n_test_devices(); d++) {
        if (is_test_gpu(d)) {
            try_gpu(&c, d);
            continue;
        }
        if (m->is_for_gpu)
            continue;
        for (int n_threads = 1; n_threads <= 3; n_threads += 2) {
            try_device(&c, d, ACTIVATIONS_FLOAT, n_threads);
            try_device(&c, d, ACTIVATIONS_INT8, n_threads);
        }
    }
    mixture_case_done(&c, owner);
    owner->table->close(owner);
}

static void experts_of_every_encoding_and_shape_agree(void **unused)
{
    (void)unused;
    static const enum weight_encoding encodings[] = {WEIGHT_F32,  WEIGHT_F16,  WEIGHT_BF16,
                                                     WEIGHT_Q4_0, WEIGHT_Q8_0, WEIGHT_MXFP4};
    uint64_t state = 2;
    for (size_t i = 0; i < sizeof encodings / sizeof *encodings; i++) {
        struct mixture one_row = mixture(7, 4, 96, 64, 1, encodings[i]);
        one_row.has_shared = i % 2;
        struct mixture some_rows = mixture(5, 2, 64, 32, 37, encodings[i]);
        some_rows.has_shared = true;
        some_rows.has_gate = true;
        try_mixture(&one_row, &state);
        try_mixture(&some_rows, &state);
    }
    struct mixture super = mixture(3, 1, 256, 256, 9, WEIGHT_Q4_K);
    struct mixture odd = mixture(13, 10, 70, 23, 19, WEIGHT_F32);
    struct mixture wide = mixture(2, 2, 160, 288, 3, WEIGHT_Q8_0); /* more than a chunk of each */
    try_mixture(&super, &state);
    try_mixture(&odd, &state);
    try_mixture(&wide, &state);
}

static void clamped_experts_with_biases_and_rows_in_turn_agree(void **unused)
{
    (void)unused;
    uint64_t state = 3;
    struct mixture fused = mixture(4, 3, 64, 48, 11, WEIGHT_BF16);
    fused.activation = ACTIVATION_CLAMPED_SWIGLU;
    fused.has_bias = true;
    struct mixture in_turn = fused;
    in_turn.is_interleaved = true;
    try_mixture(&fused, &state);
    try_mixture(&in_turn, &state);
    in_turn.encoding = WEIGHT_MXFP4;
    in_turn.inner = 64;
    try_mixture(&in_turn, &state);
    fused.inner = 39; /* part of a vector on every level */
    try_mixture(&fused, &state);
}

/* Enough rows for each of a GPU's kernels, and shapes that fill no tile. */
static void any_number_of_rows_and_chosen_experts_is_right(void **unused)
{
    (void)unused;
    static const int32_t shapes[][5] = {
        /* experts, chosen, hidden, inner, rows */
        {7, 1, 96, 48, 2},  {33, 8, 96, 64, 1},    {33, 8, 96, 64, 2},  {33, 8, 160, 32, 17},
        {5, 4, 96, 96, 64}, {33, 10, 224, 32, 64}, {9, 4, 96, 32, 200}, {65, 8, 96, 32, 17}};
    static const enum weight_encoding encodings[] = {WEIGHT_Q4_0, WEIGHT_MXFP4, WEIGHT_BF16};
    uint64_t state = 7;
    for (int i = 0; i < 8; i++)
        for (int e = 0; e < 3; e++) {
            const int32_t *s = shapes[i];
            struct mixture m = mixture(s[0], s[1], s[2], s[3], s[4], encodings[e]);
            m.activation = e == 1 ? ACTIVATION_CLAMPED_SWIGLU : ACTIVATION_SILU;
            m.has_bias = e > 0;
            m.has_shared = i % 2;
            m.has_gate = i % 4 == 1;
            if (e == 2) /* of 32 and 48 columns alone, which no tile is */
                m.inner = s[3] == 48 ? 48 : s[3] + 16;
            else if (m.inner % 32)
                m.inner += 16;
            m.is_crowded = (i + e) % 4 == 3;
            try_mixture(&m, &state);
        }
}

/* Every form of a GPU's tiles. */
static void experts_of_every_kind_of_levels_agree(void **unused)
{
    (void)unused;
    static const int made[][2] = {{4, 64}, {4, 32}, {8, 64}, {8, 32}, {6, 64}, {4, 128}, {3, 64}};
    static const enum weight_encoding blocks[] = {WEIGHT_Q2_K, WEIGHT_Q6_K, WEIGHT_Q4_K};
    static const int32_t row_counts[] = {1, 12, 70};
    uint64_t state = 8;
    for (int i = 0; i < 10; i++)
        for (int r = 0; r < 3; r++) {
            int32_t wide = i < 7 ? 128 : 256;
            struct mixture m =
                mixture(3, 2, wide, wide, row_counts[r], i < 7 ? WEIGHT_BF16 : blocks[i - 7]);
            m.bits = i < 7 ? made[i][0] : 0;
            m.group = i < 7 ? made[i][1] : 0;
            m.has_bias = r == 1;
            try_mixture(&m, &state);
        }
}

/* As many rows as several passes and the largest tiles of a GPU take. */
static void a_gpu_takes_many_rows(void **unused)
{
    (void)unused;
    static const struct {
        enum weight_encoding encoding;
        int bits, group;
    } kinds[] = {{WEIGHT_Q4_0, 0, 0},  {WEIGHT_Q8_0, 0, 0},  {WEIGHT_F16, 0, 0},
                 {WEIGHT_BF16, 0, 0},  {WEIGHT_BF16, 4, 64}, {WEIGHT_BF16, 4, 32},
                 {WEIGHT_BF16, 8, 64}, {WEIGHT_BF16, 8, 32}};
    uint64_t state = 9;
    if (!has_real_gpu())
        skip();
    struct mixture even = mixture(9, 8, 64, 64, 2200, WEIGHT_Q8_0);
    even.is_for_gpu = true;
    try_mixture(&even, &state);
    for (int i = 0; i < 8; i++) {
        struct mixture m = mixture(2, 1, 64, 2048, 768, kinds[i].encoding);
        m.bits = kinds[i].bits;
        m.group = kinds[i].group;
        m.is_crowded = m.is_for_gpu = true;
        m.has_bias = i % 2;
        try_mixture(&m, &state);
    }
}

static void a_rank_computes_its_columns(void **unused)
{
    (void)unused;
    uint64_t state = 4;
    for (int32_t first = 0; first <= 64; first += 32) {
        struct mixture m = mixture(5, 2, 64, 96, 6, WEIGHT_Q4_0);
        m.first_inner = first;
        m.n_inner = 32;
        m.is_interleaved = first == 32;
        try_mixture(&m, &state);
    }
}

static void one_expert_may_have_all_rows_of_several_passes(void **unused)
{
    (void)unused;
    uint64_t state = 5;
    struct mixture one = mixture(1, 1, 64, 16, 1500, WEIGHT_BF16);
    struct mixture few = mixture(3, 2, 64, 16, 1100, WEIGHT_F32);
    few.has_shared = true;
    try_mixture(&one, &state);
    try_mixture(&few, &state);
}

static void expect_refusal(struct device *device, const struct expert_slices *experts, int32_t n,
                           int32_t top_k, const char *words)
{
    struct experts *stack;
    struct error error = {0};
    assert_int_not_equal(load_array(device, experts, n, top_k, 1, &stack, &error), OK);
    assert_null(stack);
    assert_non_null(strstr(error.message, words));
}

static void stacks_that_make_no_sense_are_refused(void **unused)
{
    (void)unused;
    uint64_t state = 6;
    struct mixture m = mixture(3, 2, 32, 16, 1, WEIGHT_F32);
    struct device *device = open_device(CPU_ISA_SCALAR, ACTIVATIONS_FLOAT, 1);
    struct mixture_case c;
    mixture_case_make(&c, &m, device, &state);
    expect_refusal(device, c.slices, 3, 4, "4 of 3 experts");
    expect_refusal(device, c.slices, 3, 0, "0 of 3 experts");
    expect_refusal(device, c.slices, MOE_MAX_EXPERTS + 1, 2, "4097 experts");
    c.slices[2].down.cols = 8;
    expect_refusal(device, c.slices, 3, 2, "expert 2");
    c.slices[2].down.cols = 16;
    c.slices[1].up.row = m.n_experts * 2 * m.inner; /* behind the last */
    expect_refusal(device, c.slices, 3, 2, "rows 96 + 16");
    mixture_case_done(&c, device);
    device->table->close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_best_experts_are_chosen_with_their_softmax),
        cmocka_unit_test(routing_survives_values_that_are_no_numbers),
        cmocka_unit_test(experts_of_every_encoding_and_shape_agree),
        cmocka_unit_test(clamped_experts_with_biases_and_rows_in_turn_agree),
        cmocka_unit_test(any_number_of_rows_and_chosen_experts_is_right),
        cmocka_unit_test(experts_of_every_kind_of_levels_agree),
        cmocka_unit_test(a_gpu_takes_many_rows),
        cmocka_unit_test(a_rank_computes_its_columns),
        cmocka_unit_test(one_expert_may_have_all_rows_of_several_passes),
        cmocka_unit_test(stacks_that_make_no_sense_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
