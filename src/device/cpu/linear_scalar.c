/* The twin: weights exactly as the file stores them, sums in double. It defines what every other
 * level must compute, and is written to be read. */
#include "base/half.h"
#include "device/cpu/linear.h"

#include <math.h>
#include <string.h>

/* One unit of one row; places past `n` columns count as zero. `codes` [32]; sums as linear_input.
 */
static void quantize_unit(const float *x, int n, int8_t *codes, float *scale, int32_t sums[3])
{
    uint32_t max_bits = 0; /* as integers, magnitudes order like floats, and a NaN is above all */
    for (int i = 0; i < n; i++) {
        uint32_t bits = bits_from_f32(x[i]) & 0x7FFFFFFF;
        max_bits = bits > max_bits ? bits : max_bits;
    }
    float max = f32_from_bits(max_bits);
    memset(codes, 0, UNIT);
    memset(sums, 0, 3 * sizeof *sums);
    *scale = 0;
    if (max < 0x1p-100f)
        return;
    *scale = max / 127.0f;
    if (!isfinite(max))
        return; /* the scale alone makes the results NaN or infinite */
    float inverse = 127.0f / max;
    for (int i = 0; i < n; i++) {
        /* At 1.5 * 2^23 floats are the integers: the sum is rounded to one, to even on a tie. */
        float scaled = x[i] * inverse;
        float rounded = scaled + 0x1.8p23f;
        codes[i] = (int8_t)(rounded - 0x1.8p23f);
    }
    for (int i = 0; i < 16; i++) {
        sums[1] -= codes[i];
        sums[2] -= codes[i + 16];
    }
    sums[0] = sums[1] + sums[2];
}

static void quantize_tile(const struct linear_input *in, int64_t tile, struct linear_range units)
{
    int32_t height = in->tile_rows, n_units = linear_n_units(in);
    for (int64_t unit = units.first; unit < units.end; unit++) {
        size_t at = (size_t)(tile * n_units + unit) * (size_t)height;
        for (int32_t r = 0; r < height; r++) {
            int64_t row = tile * height + r;
            int n = row >= in->n_rows ? 0 : in->cols - (int)unit * UNIT;
            n = n < 0 ? 0 : n > UNIT ? UNIT : n;
            const float *x = n ? in->x + (size_t)row * in->x_stride + unit * UNIT : NULL;
            float scale;
            int32_t sums[3];
            quantize_unit(x, n, in->codes + (at + (size_t)r) * UNIT, &scale, sums);
            in->levels[at * 2 + (size_t)r] = scale;
            in->levels[at * 2 + (size_t)(height + r)] = scale * -(float)sums[0];
            for (int i = 0; i < 3; i++)
                in->sums[at * 3 + (size_t)(i * height + r)] = sums[i];
        }
    }
}

static void round_tile(const struct linear_input *in, int64_t tile, struct linear_range units)
{
    for (int64_t row = tile * in->tile_rows; row < (tile + 1) * in->tile_rows; row++) {
        float *to = (float *)in->rounded + (size_t)row * (size_t)in->padded_cols;
        for (int64_t k = units.first * UNIT; k < units.end * UNIT; k++) {
            bool is_there = row < in->n_rows && k < in->cols;
            float x = is_there ? in->x[(size_t)row * in->x_stride + (size_t)k] : 0.0f;
            to[k] = f32_from_bf16(bf16_from_f32(x));
        }
    }
}

void linear_prepare_scalar(const struct linear_input *in, enum linear_mode mode,
                           struct linear_range tiles, struct linear_range units)
{
    for (int64_t tile = tiles.first; tile < tiles.end; tile++) {
        if (mode == MODE_INT8)
            quantize_tile(in, tile, units);
        else
            round_tile(in, tile, units);
    }
}

static int32_t tile_rows_scalar(int32_t n_rows)
{
    return n_rows < TILE_ROWS_MAX ? n_rows : TILE_ROWS_MAX;
}

/* The n-th row as it lies in the part's copy. */
static struct weight raw_row(const struct linear_part *part, int64_t n)
{
    return weight_copy_view(&part->raw, part->data + (size_t)n * part->block_bytes / BLOCK_ROWS);
}

/* One weight row, taken apart or as values. */
struct row_view {
    float *values;
    uint8_t *codes;
    float *scales, *biases;
};

static size_t scratch_bytes_scalar(const struct linear_part *part)
{
    size_t cols = (size_t)part->padded_cols; /* values, codes, scales and biases of groups of 16 */
    return cols * sizeof(float) + cols + 2 * (cols / 16) * sizeof(float);
}

static struct row_view view_of(const struct linear_part *part, void *scratch)
{
    size_t cols = (size_t)part->padded_cols;
    struct row_view view = {.values = scratch};
    view.scales = view.values + cols;
    view.biases = view.scales + cols / 16;
    view.codes = (uint8_t *)(view.biases + cols / 16);
    return view;
}

static double dot_float(const float *x, const float *w, int32_t n)
{
    double sum = 0;
    for (int32_t k = 0; k < n; k++)
        sum += (double)x[k] * w[k];
    return sum;
}

/* sum over groups of sx * (scale * sum(code * q) + bias * sum(q)), integers exact. */
static double dot_int8(const struct linear_part *part, const struct linear_input *in, int64_t row,
                       const struct row_view *w)
{
    int group = weight_shape(&part->raw).group, step = group < UNIT ? group : UNIT;
    int32_t height = in->tile_rows, n_units = linear_n_units(in);
    int64_t tile = row / height, r = row % height;
    double sum = 0;
    for (int32_t k = 0; k < part->cols; k += step) {
        size_t at = (size_t)(tile * n_units + k / UNIT) * (size_t)height;
        const int8_t *q = in->codes + (at + (size_t)r) * UNIT + k % UNIT;
        int32_t products = 0, codes = 0;
        for (int i = 0; i < step; i++) {
            products += w->codes[k + i] * q[i];
            codes += q[i];
        }
        sum += (double)in->levels[at * 2 + (size_t)r] *
               ((double)w->scales[k / group] * products + (double)w->biases[k / group] * codes);
    }
    return sum;
}

static void multiply_scalar(const struct linear_part *part, const struct linear_input *in,
                            struct linear_range blocks, struct linear_range rows,
                            const struct linear_output *output, void *scratch)
{
    struct row_view view = view_of(part, scratch);
    struct weight_row apart = {.codes = view.codes, .scales = view.scales, .biases = view.biases};
    for (int64_t n = blocks.first * BLOCK_ROWS; n < blocks.end * BLOCK_ROWS && n < part->rows;
         n++) {
        struct weight row = raw_row(part, n);
        if (part->mode == MODE_INT8)
            weight_row_read(&row, 0, &apart);
        else
            weight_row_dequantize(&row, 0, view.values);
        for (int64_t t = rows.first; t < rows.end; t++) {
            const float *x = in->x + (size_t)t * in->x_stride;
            if (part->mode == MODE_BF16)
                x = (const float *)in->rounded + (size_t)t * (size_t)in->padded_cols;
            double y = part->mode == MODE_INT8 ? dot_int8(part, in, t, &view)
                                               : dot_float(x, view.values, part->cols);
            if (part->bias)
                y += part->bias[n];
            *linear_output_at(output, t, n) = (float)y;
        }
    }
}

const struct linear_kernels linear_kernels_scalar = {
    .is_raw = true,
    .tile_rows = tile_rows_scalar,
    .pass_bytes = LINEAR_PASS_BYTES,
    .prepare = linear_prepare_scalar,
    .scratch_bytes = scratch_bytes_scalar,
    .multiply = multiply_scalar,
};
