#include "checkpoint/random.h"

#include "base/half.h"
#include "base/map.h"
#include "base/size.h"
#include "base/str.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { N_VALUES = 1 << 12, MAX_MADE = 4096, SEED = 20251130 };

struct random_weights {
    enum weight_encoding encoding;
    uint8_t *made[MAX_MADE]; /* bytes that live */
    int n_made;
};

/* Where a block's numbers lie that are not codes, and what they are as multiples of the weights'
 * spread: chosen so that codes and sub-scales of any value give weights of about that spread around
 * 0. Layouts as in base/weight.c. */
static const struct block_numbers {
    int scale_at;   /* f16; -1: none */
    double scale;   /* of the spread */
    int minimum_at; /* f16; -1: none */
    double minimum; /* of the spread */
} block_numbers[N_WEIGHT_ENCODINGS] = {
    [WEIGHT_Q4_0] = {0, 0.217, -1, 0.0},    [WEIGHT_Q4_1] = {0, 0.217, 2, -1.63},
    [WEIGHT_Q5_0] = {0, 0.108, -1, 0.0},    [WEIGHT_Q5_1] = {0, 0.108, 2, -1.68},
    [WEIGHT_Q8_0] = {0, 0.0135, -1, 0.0},   [WEIGHT_Q2_K] = {80, 0.0721, 82, 0.108},
    [WEIGHT_Q3_K] = {108, 0.0231, -1, 0.0}, [WEIGHT_Q4_K] = {0, 0.00387, 2, 0.0290},
    [WEIGHT_Q5_K] = {0, 0.0019, 2, 0.0294}, [WEIGHT_Q6_K] = {208, 0.00073, -1, 0.0},
    [WEIGHT_IQ4_NL] = {0, 0.0143, -1, 0.0}, [WEIGHT_MXFP4] = {-1, 0.29, -1, 0.0},
};

enum status random_weights_new(struct random_weights **out, const char *encoding,
                               struct error *error)
{
    struct str known = {0};
    *out = NULL;
    for (int i = 0; i < N_WEIGHT_ENCODINGS; i++) {
        const struct weight_encoding_info *info = weight_info((enum weight_encoding)i);
        if (!info->block) /* its numbers are a weight's own */
            continue;
        const char *name = info->name;
        str_printf(&known, "%s%s", i ? ", " : "", name);
        if (strcasecmp(encoding, name) != 0)
            continue;
        str_done(&known);
        *out = calloc(1, sizeof **out);
        if (!*out)
            return error_memory(error, sizeof **out);
        (*out)->encoding = (enum weight_encoding)i;
        return OK;
    }
    enum status status = error_set(error, ERROR_INVALID,
                                   "random weights cannot be %.40s; they can be mlx_q4, mlx_q8, %s",
                                   encoding, str_z(&known));
    str_done(&known);
    return status;
}

void random_weights_free(struct random_weights *r)
{
    if (!r)
        return;
    for (int i = 0; i < r->n_made; i++)
        free(r->made[i]);
    free(r);
}

void random_weights_release(struct random_weights *r, const uint8_t *data)
{
    for (int i = 0; i < r->n_made; i++) {
        if (r->made[i] != data)
            continue;
        free(r->made[i]);
        r->made[i] = r->made[--r->n_made];
        return;
    }
}

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

bool random_weights_has(const struct json *config, const char *name)
{
    if (strcmp(name, "lm_head.weight") == 0)
        return !json_bool(json_get(config, "tie_word_embeddings"), false);
    /* Each expert is a weight of its own: a stack of all would be made for each of them. */
    const char *experts = strstr(name, ".experts.");
    if (strstr(name, "switch_mlp") || (experts && !strchr("0123456789", experts[9])))
        return false;
    return strcmp(name, "rope_freqs.weight") != 0 && !ends_with(name, ".bias") &&
           !ends_with(name, ".linear_attn.A"); /* GGUF's form of A_log */
}

/* --- bytes ------------------------------------------------------------------------------------ */

/* The finalizer of splitmix64 over a counter. */
static uint64_t next_bits(uint64_t *state)
{
    uint64_t x = *state += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

static void fill_bits(uint8_t *data, size_t bytes, uint64_t *state)
{
    size_t i = 0;
    for (; i + sizeof(uint64_t) <= bytes; i += sizeof(uint64_t)) {
        uint64_t bits = next_bits(state);
        memcpy(data + i, &bits, sizeof bits);
    }
    uint64_t bits = next_bits(state);
    memcpy(data + i, &bits, bytes - i);
}

static void put_f16(uint8_t *at, double value)
{
    uint16_t bits = f16_from_f32((float)value);
    memcpy(at, &bits, sizeof bits);
}

/* Random codes and sub-scales, and the scale that gives them the spread. */
static void fill_blocks(uint8_t *data, uint64_t n_blocks, enum weight_encoding encoding,
                        double spread, uint64_t *state)
{
    const struct block_numbers *b = &block_numbers[encoding];
    size_t block_bytes = (size_t)weight_info(encoding)->block_bytes;
    fill_bits(data, (size_t)n_blocks * block_bytes, state);
    for (uint64_t i = 0; i < n_blocks; i++, data += block_bytes) {
        if (b->scale_at >= 0)
            put_f16(data + b->scale_at, b->scale * spread);
        else
            data[0] = (uint8_t)(127 + (int)lrint(log2(b->scale * spread))); /* E8M0 */
        if (b->minimum_at >= 0)
            put_f16(data + b->minimum_at, b->minimum * spread);
    }
}

static void put_value(uint8_t *data, enum weight_encoding encoding, float value)
{
    uint16_t half = encoding == WEIGHT_F16 ? f16_from_f32(value) : bf16_from_f32(value);
    if (encoding == WEIGHT_F32)
        memcpy(data, &value, sizeof value);
    else
        memcpy(data, &half, sizeof half);
}

/* Values uniform around `mean`, drawn from a table of as many as 12 bits tell apart. */
static void fill_values(uint8_t *data, uint64_t n, enum weight_encoding encoding, double mean,
                        double spread, uint64_t *state)
{
    uint8_t values[N_VALUES * sizeof(float)];
    size_t size = (size_t)weight_info(encoding)->block_bytes;
    for (int i = 0; i < N_VALUES; i++)
        put_value(values + (size_t)i * size, encoding,
                  (float)(mean + spread * sqrt(12.0) * ((i + 0.5) / N_VALUES - 0.5)));
    for (uint64_t i = 0; i < n;) {
        uint64_t bits = next_bits(state);
        for (int k = 0; k < 5 && i < n; k++, i++, bits >>= 12)
            memcpy(data + i * size, values + (bits & (N_VALUES - 1)) * size, size);
    }
}

/* Norms stay near 1, biases near 0; the spread of a matrix keeps its output the size of its input.
 */
static void fill(uint8_t *data, const char *name, const struct weight *w)
{
    uint64_t state = hash_bytes(name, strlen(name)) + SEED;
    uint64_t n = (uint64_t)w->rows * (uint64_t)w->cols;
    double spread = 1.0 / sqrt((double)w->cols);
    if (w->rows == 1)
        fill_values(data, n, w->encoding, strstr(name, "norm") ? 1.0 : 0.0, 0.02, &state);
    else if (weight_is_float(w))
        fill_values(data, n, w->encoding, 0.0, spread, &state);
    else
        fill_blocks(data, n / (uint64_t)weight_info(w->encoding)->block, w->encoding, spread,
                    &state);
}

enum status random_weights_make(struct random_weights *r, const char *name, int64_t rows,
                                int64_t cols, bool wants_data, struct weight *out,
                                struct error *error)
{
    *out = (struct weight){.encoding = r->encoding, .rows = rows, .cols = cols};
    if (rows == 1)
        out->encoding = WEIGHT_F32;
    else if (cols % weight_info(r->encoding)->block)
        out->encoding = WEIGHT_BF16;
    if (!wants_data)
        return OK;
    size_t n, bytes;
    if (!size_mul((size_t)rows, (size_t)cols, &n) || !size_mul(n, sizeof(float), &bytes))
        return error_set(error, ERROR_LIMIT, "a weight of %lld x %lld is too large",
                         (long long)rows, (long long)cols);
    if (r->n_made == MAX_MADE)
        return error_set(error, ERROR_LIMIT, "more than %d random weights are in use at once",
                         MAX_MADE);
    bytes = (size_t)weight_bytes(out);
    uint8_t *data = malloc(bytes);
    if (!data)
        return error_memory(error, bytes);
    fill(data, name, out);
    r->made[r->n_made++] = data;
    out->data = data;
    return OK;
}
