/* Experts: transformers holds gate and up in one stack, older files every expert apart; mlx-lm
 * looks for stacks of each ("switch_mlp"; of gpt-oss "experts"). Its sanitisers bring floats into
 * this form while they are loaded, but not codes, so it must be in the file. The same holds for the
 * norms and convolutions of Qwen3-Next, which mlx-lm takes for its own as soon as the experts are.
 */
#include "checkpoint/mlx_layout.h"

#include <assert.h>
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_EXPERTS = 65536 };

struct plan {
    struct checkpoint *checkpoint;
    struct mlx_layout *out;
    bool is_tied;
    bool is_gpt_oss; /* stacks [E, in, out], gate and up in turn */
    bool is_next;    /* Qwen3-Next as Hugging Face has it */
};

static const char *const parts[] = {"gate_proj", "up_proj", "down_proj"};
enum { GATE, UP, DOWN };

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

static enum status append(struct plan *p, const struct mlx_tensor *tensor, struct error *error)
{
    struct mlx_layout *list = p->out;
    if (list->n == list->cap) {
        size_t cap = list->cap ? 2 * list->cap : 256;
        struct mlx_tensor *grown = realloc(list->items, cap * sizeof *grown);
        if (!grown)
            return error_memory(error, cap * sizeof *grown);
        list->items = grown;
        list->cap = cap;
    }
    list->items[list->n++] = *tensor;
    return OK;
}

/* `n` bytes of `stem`, then the rest, in the checkpoint's arena. */
static enum status make_name(struct plan *p, const char *stem, size_t n, const char *folder,
                             const char *part, const char *suffix, const char **out,
                             struct error *error)
{
    struct str name = {0};
    str_append(&name, stem, n);
    str_printf(&name, "%s%s%s", folder, part, suffix);
    *out = name.failed ? NULL : arena_copy(&p->checkpoint->arena, str_z(&name), name.len);
    str_done(&name);
    return *out ? OK : error_memory(error, n);
}

static bool is_float(const struct tensor *tensor)
{
    return tensor->encoding >= WEIGHT_F32 && tensor->encoding <= WEIGHT_BF16;
}

/* --- experts ---------------------------------------------------------------------------------- */

/* One part of all experts: names and shape follow from the part's place. */
static enum status add_stack(struct plan *p, const char *prefix, size_t prefix_len, int part,
                             const char *suffix, struct mlx_tensor *t, struct error *error)
{
    bool is_bias = strcmp(suffix, ".bias") == 0;
    enum status status =
        make_name(p, prefix, prefix_len, p->is_gpt_oss ? ".experts." : ".switch_mlp.", parts[part],
                  suffix, &t->name, error);
    t->n_dims = is_bias ? 2 : 3;
    t->dims[0] = t->n;
    t->dims[1] = t->rows;
    t->dims[2] = t->cols;
    bool is_whole = !is_bias && t->cols % p->checkpoint->made.group == 0;
    t->way = is_whole ? MLX_QUANTIZED : MLX_GATHERED;
    return status == OK ? append(p, t, error) : status;
}

static enum status refuse(const struct plan *p, const struct tensor *tensor, const char *why,
                          struct error *error)
{
    return error_set(error, ERROR_UNSUPPORTED, "%s: tensor %.200s is %s", p->checkpoint->path,
                     tensor->name, why);
}

/* transformers' stack of experts: gate and up, or down, "X" or the bias "X_bias". */
static enum status add_fused(struct plan *p, const struct tensor *tensor, size_t prefix_len,
                             const char *what, struct error *error)
{
    bool is_bias = ends_with(what, "_bias"), is_pair = strncmp(what, "gate_up_proj", 12) == 0;
    bool is_turned = p->is_gpt_oss && !is_bias;
    if (tensor->n_dims != (is_bias ? 2 : 3) || !is_float(tensor))
        return refuse(p, tensor, "not a stack of floats, as experts must be", error);
    int64_t outputs = tensor->dims[is_bias || !is_turned ? 1 : 2];
    struct mlx_tensor t = {.source = tensor,
                           .n = tensor->dims[0],
                           .rows = is_pair ? outputs / 2 : outputs,
                           .cols = is_bias ? 1 : tensor->dims[is_turned ? 1 : 2],
                           .stride = outputs,
                           .step = is_pair && p->is_gpt_oss ? 2 : 1,
                           .is_turned = is_turned};
    if (is_pair && outputs % 2)
        return refuse(p, tensor, "of an odd number of outputs, which are not gate and up", error);
    const char *suffix = is_bias ? ".bias" : ".weight";
    if (!is_pair)
        return add_stack(p, tensor->name, prefix_len, DOWN, suffix, &t, error);
    enum status status = add_stack(p, tensor->name, prefix_len, GATE, suffix, &t, error);
    t.offset = p->is_gpt_oss ? 1 : t.rows;
    return status == OK ? add_stack(p, tensor->name, prefix_len, UP, suffix, &t, error) : status;
}

/* Expert e of the file, beside that whose name is "PREFIX.experts.0.REST"; NULL if there is none.
 */
static enum status find_single(const struct plan *p, const char *prefix, size_t prefix_len,
                               long long e, const char *rest, const struct tensor **out,
                               struct error *error)
{
    struct str name = {0};
    str_append(&name, prefix, prefix_len);
    str_printf(&name, ".experts.%lld.%s", e, rest);
    enum status status = name.failed ? error_memory(error, prefix_len) : OK;
    *out = status == OK ? tensors_find(&p->checkpoint->tensors, str_z(&name), name.len) : NULL;
    str_done(&name);
    return status;
}

/* All experts of a part, from the first one's tensor. */
static enum status add_singles(struct plan *p, const struct tensor *first, size_t prefix_len,
                               int part, const char *rest, struct error *error)
{
    const struct tensor *next = first;
    enum status status = OK;
    int64_t n = 0;
    while (status == OK && next && n < MAX_EXPERTS)
        status = find_single(p, first->name, prefix_len, ++n, rest, &next, error);
    if (status != OK)
        return status;
    const struct tensor **singles =
        arena_alloc_array(&p->checkpoint->arena, (size_t)n, sizeof *singles);
    if (!singles)
        return error_memory(error, (size_t)n * sizeof *singles);
    for (int64_t e = 0; e < n && status == OK; e++) {
        status = find_single(p, first->name, prefix_len, e, rest, &singles[e], error);
        if (status == OK &&
            (singles[e]->n_dims != 2 || !is_float(first) || singles[e]->rows != first->rows ||
             singles[e]->cols != first->cols || singles[e]->encoding != first->encoding))
            status = refuse(p, singles[e], "not of the first expert's shape and type", error);
    }
    struct mlx_tensor t = {.source = first,
                           .singles = singles,
                           .n = n,
                           .rows = first->rows,
                           .cols = first->cols,
                           .step = 1};
    return status == OK ? add_stack(p, first->name, prefix_len, part, ".weight", &t, error)
                        : status;
}

/* A tensor "PREFIX.experts.E.REST", whose first expert brings the others with it. */
static enum status add_single(struct plan *p, const struct tensor *tensor, size_t prefix_len,
                              const char *number, struct error *error)
{
    char *rest;
    long long e = strtoll(number, &rest, 10);
    const struct tensor *before;
    int part = -1;
    for (int i = 0; i < 3 && *rest == '.'; i++)
        if (strncmp(rest + 1, parts[i], strlen(parts[i])) == 0 &&
            strcmp(rest + 1 + strlen(parts[i]), ".weight") == 0)
            part = i;
    if (part < 0)
        return refuse(p, tensor,
                      "part of an expert, but neither gate_proj, up_proj nor down_proj, which "
                      "mlx-lm would not find quantized; quantize at load with --quantization",
                      error);
    if (e == 0)
        return add_singles(p, tensor, prefix_len, part, rest + 1, error);
    enum status status = find_single(p, tensor->name, prefix_len, e - 1, rest + 1, &before, error);
    return status != OK || before
               ? status
               : refuse(p, tensor, "an expert behind one that is missing", error);
}

/* --- all tensors ------------------------------------------------------------------------------ */

/* Norms that Qwen3-Next stores as w - 1, as mlx-lm lists them. */
static bool is_zero_centred(const struct tensor *tensor)
{
    static const char *const suffixes[] = {".input_layernorm.weight",
                                           ".post_attention_layernorm.weight", "model.norm.weight",
                                           ".q_norm.weight", ".k_norm.weight"};
    bool found = false;
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++)
        found |= ends_with(tensor->name, suffixes[i]);
    return found && tensor->n_dims == 1 && is_float(tensor);
}

static bool is_convolution(const struct tensor *tensor)
{
    return ends_with(tensor->name, ".conv1d.weight") && tensor->n_dims == 3;
}

static enum status add_plain(struct plan *p, const struct tensor *tensor, struct error *error)
{
    struct weight weight;
    struct mlx_tensor t = {.name = tensor->name,
                           .way = MLX_COPIED,
                           .n_dims = tensor->n_dims,
                           .source = tensor,
                           .n = 1,
                           .rows = tensor->rows,
                           .cols = tensor->cols,
                           .step = 1};
    memcpy(t.dims, tensor->dims, sizeof t.dims);
    if (mlx_make(&p->checkpoint->made, tensor, &weight))
        t.way = MLX_QUANTIZED;
    if (p->is_next && is_convolution(tensor) && t.dims[1] == 1) {
        t.dims[1] = t.dims[2]; /* [channels, 1, kernel] -> [channels, kernel, 1], the same bytes */
        t.dims[2] = 1;
    }
    if (p->is_next && is_zero_centred(tensor)) {
        t.way = MLX_GATHERED;
        t.is_norm = true;
    }
    return append(p, &t, error);
}

static enum status add(struct plan *p, const struct tensor *tensor, struct error *error)
{
    static const char *const fused[] = {"gate_up_proj", "gate_up_proj_bias", "down_proj",
                                        "down_proj_bias"};
    const char *prefix, *rest, *experts = strstr(tensor->name, ".experts.");
    if (!name_normalise(tensor->name, &prefix, &rest))
        return OK;
    if (!tensor->bytes)
        return refuse(p, tensor, "empty", error);
    bool is_head =
        strncmp(prefix, "lm_head.", 8) == 0 || (!*prefix && strncmp(rest, "lm_head.", 8) == 0);
    if (is_head && p->is_tied)
        return OK;
    size_t prefix_len = experts ? (size_t)(experts - tensor->name) : 0;
    const char *what = experts ? experts + strlen(".experts.") : "";
    if (isdigit((unsigned char)*what))
        return add_single(p, tensor, prefix_len, what, error);
    for (size_t i = 0; i < sizeof fused / sizeof *fused; i++)
        if (strcmp(what, fused[i]) == 0)
            return add_fused(p, tensor, prefix_len, what, error);
    return add_plain(p, tensor, error);
}

enum status mlx_layout_make(struct checkpoint *c, bool is_tied, struct mlx_layout *out,
                            struct error *error)
{
    const struct json *type = json_get(&c->config, "model_type");
    struct plan p = {.checkpoint = c,
                     .out = out,
                     .is_tied = is_tied,
                     .is_gpt_oss = json_string_is(type, "gpt_oss")};
    enum status status = OK;
    for (size_t i = 0; i < c->tensors.n; i++) {
        const struct tensor *tensor = &c->tensors.items[i];
        p.is_next |=
            json_string_is(type, "qwen3_next") && is_convolution(tensor) && tensor->dims[2] != 1;
    }
    for (size_t i = 0; i < c->tensors.n && status == OK; i++)
        status = add(&p, &c->tensors.items[i], error);
    return status;
}

void mlx_layout_done(struct mlx_layout *layout)
{
    free(layout->items);
    *layout = (struct mlx_layout){0};
}

/* Columns of [cols, stride], every `step`-th, as rows, in tiles that stay in the cache. */
static void turn(const struct mlx_tensor *t, const uint8_t *from, size_t element, uint8_t *to)
{
    enum { TILE = 32 };
    size_t rows = (size_t)t->rows, cols = (size_t)t->cols;
    size_t stride = (size_t)t->stride * element, gap = (size_t)t->step * element;
    for (size_t r0 = 0; r0 < rows; r0 += TILE)
        for (size_t c0 = 0; c0 < cols; c0 += TILE)
            for (size_t r = r0; r < rows && r < r0 + TILE; r++)
                for (size_t c = c0; c < cols && c < c0 + TILE; c++)
                    memcpy(to + (r * cols + c) * element, from + c * stride + r * gap, element);
}

void mlx_tensor_rows(const struct mlx_tensor *t, int64_t e, uint8_t *scratch, struct weight *out,
                     int64_t *first, int64_t *step)
{
    const struct tensor *source = t->singles ? t->singles[e] : t->source;
    size_t element = (size_t)weight_info((enum weight_encoding)source->encoding)->block_bytes;
    assert(is_float(source));
    *out = (struct weight){.encoding = (enum weight_encoding)source->encoding,
                           .rows = t->is_turned ? t->rows : source->rows * source->cols / t->cols,
                           .cols = t->cols,
                           .data = source->data};
    *first = t->singles ? 0 : e * t->stride + t->offset;
    *step = t->step;
    if (!t->is_turned)
        return;
    turn(t, source->data + (size_t)(e * t->cols * t->stride + t->offset) * element, element,
         scratch);
    out->data = scratch;
    *first = 0;
    *step = 1;
}
