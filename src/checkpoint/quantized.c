/* Facts: gptqmodel and autoawq as transformers 5.17 uses them, compressed-tensors 0.19, NVIDIA
 * ModelOpt's documentation. */
#include "checkpoint/quantized.h"

#include "base/half.h"
#include "base/size.h"
#include "checkpoint/quantized_integers.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

bool quantized_is(const struct quantization *q, const struct quantized_parts *parts)
{
    return q->method != QUANTIZED_NOT && (parts->codes || (parts->plain && parts->scales));
}

static bool has_dtype(const struct tensor *tensor, const char *dtype)
{
    return tensor && strcmp(tensor->dtype, dtype) == 0;
}

static enum status wrong_type(const char *path, const struct tensor *tensor, const char *wanted,
                              struct error *error)
{
    return error_set(error, ERROR_INVALID, "%.200s: %.100s is %s where %s is expected", path,
                     tensor->name, tensor->dtype, wanted);
}

static enum status wrong_shape(const char *path, const struct tensor *scales,
                               const struct weight *w, struct error *error)
{
    return error_set(error, ERROR_INVALID,
                     "%.200s: %.100s [%lld, %lld] does not fit a weight [%lld, %lld] in the groups "
                     "that config.json names",
                     path, scales->name, (long long)scales->rows, (long long)scales->cols,
                     (long long)w->rows, (long long)w->cols);
}

/* The type of scales that are floats. */
static enum status read_level_type(const char *path, const struct tensor *scales,
                                   enum weight_level_type *out, struct error *error)
{
    static const struct {
        const char *dtype;
        enum weight_level_type type;
    } floats[] = {{"F32", LEVEL_F32}, {"F16", LEVEL_F16}, {"BF16", LEVEL_BF16}};
    for (int i = 0; i < 3; i++)
        if (has_dtype(scales, floats[i].dtype)) {
            *out = floats[i].type;
            return OK;
        }
    return wrong_type(path, scales, "F32, F16 or BF16", error);
}

/* One scale for all, one a row, or one a block. */
static enum status place_scales(const struct quantization *q, const char *path,
                                const struct tensor *scales, struct weight *w, struct error *error)
{
    struct weight_levels *levels = &w->levels;
    int64_t n = scales->rows * scales->cols;
    if (w->rows > INT32_MAX || w->cols > INT32_MAX)
        return error_set(error, ERROR_LIMIT, "%.200s: more than %d rows or columns", path,
                         INT32_MAX);
    levels->scales = scales->data;
    levels->group = (int32_t)w->cols;
    levels->group_rows = n == 1 ? (int32_t)w->rows : 1;
    if (n == 1 || (n == w->rows && (scales->cols == 1 || scales->rows == 1)))
        return OK;
    levels->group = q->block_cols;
    levels->group_rows = q->block_rows;
    if (!q->block_cols || scales->rows != ceil_div(w->rows, q->block_rows) ||
        scales->cols != ceil_div(w->cols, q->block_cols))
        return wrong_shape(path, scales, w, error);
    return OK;
}

static enum status read_fp8(const struct quantization *q, const char *path,
                            const struct quantized_parts *parts, struct weight *out,
                            struct error *error)
{
    *out = (struct weight){.encoding = WEIGHT_E4M3,
                           .rows = parts->plain->rows,
                           .cols = parts->plain->cols,
                           .data = parts->plain->data,
                           .levels = {.bits = 8, .factor = 1.0f}};
    enum status status = read_level_type(path, parts->scales, &out->levels.type, error);
    return status == OK ? place_scales(q, path, parts->scales, out, error) : status;
}

/* Two E2M1 a byte in groups of 16; the factor of all scales is stored as it is (ModelOpt) or as
 * what it divides (compressed-tensors). */
static enum status read_nvfp4(const struct quantization *q, const char *path,
                              const struct tensor *codes, const struct quantized_parts *parts,
                              struct weight *out, struct error *error)
{
    enum { GROUP = 16 };
    uint32_t bits;
    if (!has_dtype(codes, "U8"))
        return wrong_type(path, codes, "U8", error);
    if (!has_dtype(parts->scales, "F8_E4M3"))
        return wrong_type(path, parts->scales, "F8_E4M3", error);
    if (!has_dtype(parts->factor, "F32") || parts->factor->bytes != sizeof bits)
        return error_set(error, ERROR_INVALID,
                         "%.200s has no global scale of one F32 beside its FP4 weights", path);
    *out = (struct weight){.encoding = WEIGHT_E2M1,
                           .rows = codes->rows,
                           .cols = 2 * codes->cols,
                           .data = codes->data,
                           .levels = {.type = LEVEL_E4M3,
                                      .bits = 4,
                                      .group = GROUP,
                                      .group_rows = 1,
                                      .scales = parts->scales->data}};
    if (out->cols % GROUP || parts->scales->rows != out->rows ||
        parts->scales->cols != out->cols / GROUP)
        return wrong_shape(path, parts->scales, out, error);
    memcpy(&bits, parts->factor->data, sizeof bits);
    float factor = f32_from_bits(bits);
    out->levels.factor = q->method == QUANTIZED_COMPRESSED ? 1.0f / factor : factor;
    if (!isfinite(out->levels.factor) || !(factor > 0.0f))
        return error_set(error, ERROR_INVALID, "%.200s: its global scale %g is no positive number",
                         path, (double)factor);
    return OK;
}

/* Width and groups of a module that a rule of `dynamic` may have changed. Zero points, packed along
 * the rows, tell the bits; the groups are the configuration's if they fit, else equal parts of a
 * power of two, as GPTQModel makes them: for no other power do as many groups make up the columns.
 */
static enum status read_gptq_module(const char *path, const struct quantized_parts *parts,
                                    struct integers *n, struct error *error)
{
    const struct tensor *codes = parts->codes, *scales = parts->scales, *zeros = parts->zeros;
    int64_t bits = zeros && n->rows > 0 ? zeros->cols * 32 / n->rows : 0;
    if ((bits != 4 && bits != 8) || bits * n->rows != zeros->cols * 32)
        return error_set(error, ERROR_UNSUPPORTED,
                         "%.200s: gptq with rules for single modules (dynamic): %lld columns of "
                         "codes with %lld of zero points are not of 4 or 8 bits",
                         path, (long long)n->rows, (long long)(zeros ? zeros->cols : 0));
    n->bits = (int32_t)bits;
    n->cols = codes->rows * 32 / bits;
    int64_t n_groups = scales ? scales->rows : 0, group = n->group > 0 ? n->group : n->cols;
    if (n_groups < 1 || ceil_div(n->cols, group) == n_groups)
        return OK;
    group = n->cols / n_groups;
    if (n->cols % n_groups || (n_groups > 1 && (group & (group - 1))))
        return error_set(error, ERROR_UNSUPPORTED,
                         "%.200s: gptq with rules for single modules (dynamic): %lld groups of "
                         "%lld columns are not of a power of two",
                         path, (long long)n_groups, (long long)n->cols);
    n->group = (int32_t)group;
    return OK;
}

/* How the integers of this module lie, or a sentence. */
static enum status find_layout(const struct quantization *q, const char *path,
                               const struct quantized_parts *parts, struct integers *out,
                               struct error *error)
{
    const struct tensor *codes = parts->codes ? parts->codes : parts->plain;
    *out = (struct integers){
        .parts = parts, .bits = q->bits, .group = q->group, .zero_step = q->is_zero_less_one};
    if (!parts->codes) {
        out->layout = INTEGERS_BYTES;
        out->bits = 8;
        out->rows = codes->rows;
        out->cols = codes->cols;
        return has_dtype(codes, "I8") ? OK : wrong_type(path, codes, "I8", error);
    }
    if (!has_dtype(codes, "I32"))
        return wrong_type(path, codes, "I32", error);
    if (q->method == QUANTIZED_GPTQ) {
        out->layout = INTEGERS_GPTQ;
        out->rows = codes->cols;
        if (q->has_rules)
            return read_gptq_module(path, parts, out, error);
        out->cols = codes->rows * 32 / q->bits;
    } else if (q->method == QUANTIZED_AWQ) {
        out->layout = INTEGERS_AWQ;
        out->rows = codes->cols * 8;
        out->cols = codes->rows;
    } else {
        out->layout = INTEGERS_ROWS;
        out->rows = codes->rows;
    }
    return OK;
}

/* The width of compressed-tensors' codes, from the number of columns that a row has. */
static enum status read_width(const char *path, const struct tensor *shape, struct integers *out,
                              struct error *error)
{
    const struct tensor *codes = out->parts->codes;
    int64_t dims[2] = {0};
    if (!has_dtype(shape, "I64") || shape->bytes != sizeof dims)
        return error_set(error, ERROR_INVALID, "%.200s has no weight_shape of two I64", path);
    memcpy(dims, shape->data, sizeof dims);
    for (int bits = 2; bits <= 8; bits *= 2)
        if (dims[0] == out->rows && dims[1] == codes->cols * (32 / bits)) {
            out->cols = dims[1];
            out->bits = bits;
            return OK;
        }
    return error_set(
        error, ERROR_UNSUPPORTED,
        "%.200s: words [%lld, %lld] do not hold a weight [%lld, %lld] of 2, 4 or 8 bits "
        "in whole words",
        path, (long long)codes->rows, (long long)codes->cols, (long long)dims[0],
        (long long)dims[1]);
}

static enum status read_integers(const struct quantization *q, const char *path,
                                 const struct quantized_parts *parts, struct integers *integers,
                                 struct weight *out, struct error *error)
{
    enum status status = find_layout(q, path, parts, integers, error);
    if (status == OK && !parts->scales)
        status = error_set(error, ERROR_INVALID, "%.200s has codes but no scales", path);
    if (status == OK)
        status = read_level_type(path, parts->scales, &integers->scale_type, error);
    if (status == OK && integers->layout == INTEGERS_ROWS)
        status = read_width(path, parts->shape, integers, error);
    if (status != OK)
        return status;
    return integers_describe(integers, path, out, error);
}

/* Shapes with a zero in them may hold any other number. */
static enum status check_parts(const char *path, const struct quantized_parts *parts,
                               struct error *error)
{
    const struct tensor *all[N_QUANTIZED_PARTS];
    memcpy(all, parts, sizeof all);
    for (int i = 0; i < N_QUANTIZED_PARTS; i++)
        if (all[i] && all[i]->bytes == 0)
            return error_set(error, ERROR_INVALID, "%.200s: tensor %.200s is empty", path,
                             all[i]->name);
    return OK;
}

/* What kind of codes the module has: integers unless it is one of the two others. */
static bool is_fp8(const struct quantized_parts *parts)
{
    return !parts->codes && has_dtype(parts->plain, "F8_E4M3");
}

static bool is_nvfp4(const struct quantized_parts *parts)
{
    return has_dtype(parts->codes ? parts->codes : parts->plain, "U8");
}

enum status quantized_weight(const struct quantization *q, const char *path,
                             const struct quantized_parts *parts, struct weight *out,
                             struct error *error)
{
    struct integers integers;
    enum status status = check_parts(path, parts, error);
    if (status != OK)
        return status;
    if (is_fp8(parts))
        return read_fp8(q, path, parts, out, error);
    if (is_nvfp4(parts))
        return read_nvfp4(q, path, parts->codes ? parts->codes : parts->plain, parts, out, error);
    return read_integers(q, path, parts, &integers, out, error);
}

enum status quantized_unpack(const struct quantization *q, const char *path,
                             const struct quantized_parts *parts, struct weight *out,
                             struct error *error)
{
    struct integers integers;
    enum status status = read_integers(q, path, parts, &integers, out, error);
    return status == OK ? integers_unpack(&integers, path, out, error) : status;
}
