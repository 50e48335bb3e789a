#include "checkpoint/random.h"

#include "base/half.h"
#include "base/map.h"
#include "base/size.h"
#include "base/str.h"
#include "base/thread_pool.h"
#include "base/weight_encode.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum {
    N_VALUES = 1 << 12,
    VALUES_A_WORD = 5, /* of 12 bits */
    MAX_MADE = 4096,
    SEED = 20251130,
    CHUNK = 8 * VALUES_A_WORD * 256 /* units that a task makes: whole words of bits */
};

struct random_weights {
    enum weight_encoding encoding;
    struct thread_pool *pool; /* NULL: nothing large was made yet */
    uint8_t *made[MAX_MADE];  /* bytes that live */
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
    thread_pool_free(r->pool);
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

/* What is made of a weight: `n` units, which are values of floats, blocks, or else words of 8 bytes
 * of codes. Every unit's numbers follow from its place alone, whichever thread makes it. */
struct filling {
    enum weight_encoding encoding;
    uint8_t *data;
    uint64_t n, seed;
    double spread;
    uint8_t values[N_VALUES * sizeof(float)]; /* that floats are drawn from, as they are stored */
};

/* Word i of the bits: the finalizer of splitmix64 over a counter. */
static uint64_t bits_at(uint64_t seed, uint64_t i)
{
    uint64_t x = seed + (i + 1) * 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

/* Words [first, end) of the data. */
static void fill_words(const struct filling *f, uint64_t first, uint64_t end)
{
    for (uint64_t i = first; i < end; i++) {
        uint64_t bits = bits_at(f->seed, i);
        memcpy(f->data + i * sizeof bits, &bits, sizeof bits);
    }
}

static void put_f16(uint8_t *at, double value)
{
    uint16_t bits = f16_from_f32((float)value);
    memcpy(at, &bits, sizeof bits);
}

/* Random codes and sub-scales, and the scale that gives them the spread. */
static void fill_blocks(const struct filling *f, uint64_t first, uint64_t end)
{
    const struct block_numbers *b = &block_numbers[f->encoding];
    size_t block_bytes = (size_t)weight_info(f->encoding)->block_bytes;
    fill_words(f, first * block_bytes / sizeof(uint64_t),
               (end * block_bytes + sizeof(uint64_t) - 1) / sizeof(uint64_t));
    for (uint8_t *data = f->data + first * block_bytes; first < end; first++, data += block_bytes) {
        if (b->scale_at >= 0)
            put_f16(data + b->scale_at, b->scale * f->spread);
        else
            data[0] = (uint8_t)(127 + (int)lrint(log2(b->scale * f->spread))); /* E8M0 */
        if (b->minimum_at >= 0)
            put_f16(data + b->minimum_at, b->minimum * f->spread);
    }
}

/* `size` is a value's, a constant. */
static inline void draw_values(const struct filling *f, size_t size, uint64_t first, uint64_t end)
{
    for (uint64_t i = first; i < end;) {
        uint64_t bits = bits_at(f->seed, i / VALUES_A_WORD);
        for (int k = 0; k < VALUES_A_WORD && i < end; k++, i++, bits >>= 12)
            memcpy(f->data + i * size, f->values + (bits & (N_VALUES - 1)) * size, size);
    }
}

static void fill_task(void *context, int task, int worker)
{
    const struct filling *f = context;
    uint64_t first = (uint64_t)task * CHUNK, end = f->n - first < CHUNK ? f->n : first + CHUNK;
    (void)worker;
    if (f->encoding == WEIGHT_AFFINE)
        fill_words(f, first, end);
    else if (f->encoding > WEIGHT_BF16)
        fill_blocks(f, first, end);
    else if (f->encoding == WEIGHT_F32)
        draw_values(f, sizeof(float), first, end);
    else
        draw_values(f, sizeof(uint16_t), first, end);
}

static enum status run_filling(struct random_weights *r, struct filling *f, struct error *error)
{
    int n_tasks = (int)((f->n + CHUNK - 1) / CHUNK);
    enum status status = OK;
    if (n_tasks > 1 && !r->pool)
        status = thread_pool_new(&r->pool, thread_pool_default_size(), error);
    if (status != OK)
        return status;
    if (n_tasks > 1)
        thread_pool_run(r->pool, fill_task, f, n_tasks);
    else
        fill_task(f, 0, 0);
    return OK;
}

/* Values uniform around `mean`, as many as 12 bits tell apart. */
static void make_values(struct filling *f, double mean, double spread)
{
    static const enum weight_level_type types[] = {
        [WEIGHT_F32] = LEVEL_F32, [WEIGHT_F16] = LEVEL_F16, [WEIGHT_BF16] = LEVEL_BF16};
    size_t size = (size_t)weight_info(f->encoding)->block_bytes;
    for (int i = 0; i < N_VALUES; i++) {
        float value = (float)(mean + spread * sqrt(12.0) * ((i + 0.5) / N_VALUES - 0.5));
        weight_pack_levels(types[f->encoding], &value, 1, f->values + (size_t)i * size);
    }
}

/* Norms stay near 1, biases near 0; the spread of a matrix keeps its output the size of its input.
 */
static enum status fill(struct random_weights *r, const char *name, const struct weight *w,
                        uint8_t *data, struct error *error)
{
    struct filling f = {.encoding = w->encoding,
                        .data = data,
                        .n = (uint64_t)w->rows * (uint64_t)w->cols,
                        .seed = hash_bytes(name, strlen(name)) + SEED,
                        .spread = 1.0 / sqrt((double)w->cols)};
    if (w->rows == 1)
        make_values(&f, strstr(name, "norm") ? 1.0 : 0.0, 0.02);
    else if (weight_is_float(w))
        make_values(&f, 0.0, f.spread);
    else if (w->encoding == WEIGHT_AFFINE)
        f.n = (weight_bytes(w) + sizeof(uint64_t) - 1) / sizeof(uint64_t);
    else
        f.n /= (uint64_t)weight_info(w->encoding)->block;
    return run_filling(r, &f, error);
}

/* n levels that give codes of any value the spread around 0: of 2^bits values, one step apart, it
 * is sqrt((4^bits - 1) / 12) steps. */
static void fill_levels(const struct weight *w, uint8_t *scales, uint8_t *biases)
{
    double most = (double)((1 << w->levels.bits) - 1);
    double step = sqrt(12.0 / (most * (most + 2.0)) / (double)w->cols);
    float levels[2] = {(float)step, (float)(-0.5 * most * step)};
    size_t bytes = weight_level_bytes(w->levels.type), n = (size_t)weight_levels_bytes(w) / bytes;
    for (size_t i = 0; i < n; i++) {
        weight_pack_levels(w->levels.type, &levels[0], 1, scales + i * bytes);
        weight_pack_levels(w->levels.type, &levels[1], 1, biases + i * bytes);
    }
}

enum status random_weights_fill(struct random_weights *r, const char *name, struct weight *w,
                                struct error *error)
{
    size_t n, bytes;
    if (!size_mul((size_t)w->rows, (size_t)w->cols, &n) || !size_mul(n, sizeof(float), &bytes))
        return error_set(error, ERROR_LIMIT, "a weight of %lld x %lld is too large",
                         (long long)w->rows, (long long)w->cols);
    if (r->n_made == MAX_MADE)
        return error_set(error, ERROR_LIMIT, "more than %d random weights are in use at once",
                         MAX_MADE);
    w->levels.is_made = false;
    bytes = size_round_up((size_t)weight_bytes(w), sizeof(uint64_t));
    size_t levels = w->encoding == WEIGHT_AFFINE ? (size_t)weight_levels_bytes(w) : 0;
    uint8_t *data = malloc(bytes + 2 * levels);
    if (!data)
        return error_memory(error, bytes + 2 * levels);
    enum status status = fill(r, name, w, data, error);
    if (status != OK) {
        free(data);
        return status;
    }
    r->made[r->n_made++] = data;
    w->data = data;
    if (w->encoding == WEIGHT_AFFINE) {
        w->levels.scales = data + bytes;
        w->levels.biases = data + bytes + levels;
        fill_levels(w, data + bytes, data + bytes + levels);
    }
    return OK;
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
    return wants_data ? random_weights_fill(r, name, out, error) : OK;
}
