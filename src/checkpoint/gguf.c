/* A cursor over the mapped file; every length is compared with the bytes left before it is used.
 * Facts: the GGUF document of the ggml project and the public `gguf` package. */
#include "checkpoint/gguf.h"

#include "base/size.h"

#include <stdio.h>
#include <string.h>

enum {
    KEYS_MAX = 1 << 16,
    KEY_BYTES_MAX = 65535,
    DIMS_MAX = 4,
    ARRAY_DEPTH_MAX = 4,
    ALIGNMENT_DEFAULT = 32,
    ALIGNMENT_MAX = 1 << 20,
    KEY_BYTES_MIN = 8 + 4 + 1,            /* length, type, value */
    TENSOR_BYTES_MIN = 8 + 1 + 4 + 4 + 8, /* name, dimensions, type, offset */
};

/* Bytes of a scalar; 0 for strings and arrays. */
static const uint8_t type_bytes[N_GGUF_TYPES] = {
    [GGUF_U8] = 1,  [GGUF_I8] = 1,   [GGUF_U16] = 2, [GGUF_I16] = 2, [GGUF_U32] = 4, [GGUF_I32] = 4,
    [GGUF_F32] = 4, [GGUF_BOOL] = 1, [GGUF_U64] = 8, [GGUF_I64] = 8, [GGUF_F64] = 8,
};

/* Tensor types: what is stored, elements and bytes a block. */
struct tensor_type {
    const char *name;
    int encoding;
    uint16_t block, block_bytes;
};

#define UNSUPPORTED(id, name, block, bytes) [id] = {name, ENCODING_UNSUPPORTED, block, bytes}
static const struct tensor_type tensor_types[] = {
    [0] = {"F32", WEIGHT_F32, 1, 4},
    [1] = {"F16", WEIGHT_F16, 1, 2},
    [2] = {"Q4_0", WEIGHT_Q4_0, 32, 18},
    [3] = {"Q4_1", WEIGHT_Q4_1, 32, 20},
    [6] = {"Q5_0", WEIGHT_Q5_0, 32, 22},
    [7] = {"Q5_1", WEIGHT_Q5_1, 32, 24},
    [8] = {"Q8_0", WEIGHT_Q8_0, 32, 34},
    UNSUPPORTED(9, "Q8_1", 32, 36),
    [10] = {"Q2_K", WEIGHT_Q2_K, 256, 84},
    [11] = {"Q3_K", WEIGHT_Q3_K, 256, 110},
    [12] = {"Q4_K", WEIGHT_Q4_K, 256, 144},
    [13] = {"Q5_K", WEIGHT_Q5_K, 256, 176},
    [14] = {"Q6_K", WEIGHT_Q6_K, 256, 210},
    UNSUPPORTED(15, "Q8_K", 256, 292),
    UNSUPPORTED(16, "IQ2_XXS", 256, 66),
    UNSUPPORTED(17, "IQ2_XS", 256, 74),
    UNSUPPORTED(18, "IQ3_XXS", 256, 98),
    UNSUPPORTED(19, "IQ1_S", 256, 50),
    [20] = {"IQ4_NL", WEIGHT_IQ4_NL, 32, 18},
    UNSUPPORTED(21, "IQ3_S", 256, 110),
    UNSUPPORTED(22, "IQ2_S", 256, 82),
    UNSUPPORTED(23, "IQ4_XS", 256, 136),
    UNSUPPORTED(24, "I8", 1, 1),
    UNSUPPORTED(25, "I16", 1, 2),
    UNSUPPORTED(26, "I32", 1, 4),
    UNSUPPORTED(27, "I64", 1, 8),
    UNSUPPORTED(28, "F64", 1, 8),
    UNSUPPORTED(29, "IQ1_M", 256, 56),
    [30] = {"BF16", WEIGHT_BF16, 1, 2},
    UNSUPPORTED(34, "TQ1_0", 256, 54),
    UNSUPPORTED(35, "TQ2_0", 256, 66),
    [39] = {"MXFP4", WEIGHT_MXFP4, 32, 17},
    UNSUPPORTED(40, "NVFP4", 64, 36),
};
#undef UNSUPPORTED

/* Where the reader stands. */
struct cursor {
    const uint8_t *at, *end;
};

static bool take(struct cursor *c, uint64_t n, const uint8_t **out)
{
    if (n > (uint64_t)(c->end - c->at))
        return false;
    *out = c->at;
    c->at += n;
    return true;
}

static uint64_t load(const uint8_t *p, int bytes)
{
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++)
        value |= (uint64_t)p[i] << 8 * i;
    return value;
}

static bool take_u32(struct cursor *c, uint32_t *out)
{
    const uint8_t *p;
    if (!take(c, 4, &p))
        return false;
    *out = (uint32_t)load(p, 4);
    return true;
}

static bool take_u64(struct cursor *c, uint64_t *out)
{
    const uint8_t *p;
    if (!take(c, 8, &p))
        return false;
    *out = load(p, 8);
    return true;
}

static bool take_string(struct cursor *c, const uint8_t **out, uint64_t *n)
{
    return take_u64(c, n) && take(c, *n, out);
}

static enum status truncated(struct error *error, const char *where)
{
    return error_set(error, ERROR_INVALID, "it ends inside %s (is the file complete?)", where);
}

static enum status skip_array(struct cursor *c, struct gguf_value *out, int depth,
                              struct error *error);

/* Moves over one value of `type` and describes it. */
static enum status take_value(struct cursor *c, uint32_t type, int depth, struct gguf_value *out,
                              struct error *error)
{
    if (type >= N_GGUF_TYPES)
        return error_set(error, ERROR_INVALID, "a metadata value has the unknown type %u", type);
    *out = (struct gguf_value){.type = (enum gguf_type)type, .n = 1};
    if (type == GGUF_ARRAY)
        return skip_array(c, out, depth, error);
    bool fits = type == GGUF_STRING ? take_string(c, &out->data, &out->n)
                                    : take(c, type_bytes[type], &out->data);
    return fits ? OK : truncated(error, "a metadata value");
}

static enum status skip_array(struct cursor *c, struct gguf_value *out, int depth,
                              struct error *error)
{
    uint32_t item;
    if (!take_u32(c, &item) || !take_u64(c, &out->n))
        return truncated(error, "a metadata array");
    if (item >= N_GGUF_TYPES)
        return error_set(error, ERROR_INVALID, "a metadata array holds the unknown type %u", item);
    if (depth == ARRAY_DEPTH_MAX)
        return error_set(error, ERROR_LIMIT, "metadata arrays are nested deeper than %d levels",
                         ARRAY_DEPTH_MAX);
    out->item = (enum gguf_type)item;
    out->data = c->at;
    if (type_bytes[item]) {
        const uint8_t *ignored;
        uint64_t bytes;
        if (!u64_mul(out->n, type_bytes[item], &bytes) || !take(c, bytes, &ignored))
            return truncated(error, "a metadata array");
        return OK;
    }
    /* Each item takes at least its length: a count that cannot fit fails before it is walked. */
    if (out->n > (uint64_t)(c->end - c->at) / 8)
        return truncated(error, "a metadata array");
    for (uint64_t i = 0; i < out->n; i++) {
        struct gguf_value value;
        enum status status = take_value(c, item, depth + 1, &value, error);
        if (status != OK)
            return status;
    }
    return OK;
}

static enum status read_keys(struct gguf *gguf, struct arena *arena, struct cursor *c, uint64_t n,
                             struct error *error)
{
    if (n > KEYS_MAX)
        return error_set(error, ERROR_LIMIT, "it has %llu metadata keys; the limit is %d",
                         (unsigned long long)n, KEYS_MAX);
    if (n > (uint64_t)(c->end - c->at) / KEY_BYTES_MIN)
        return truncated(error, "its metadata");
    gguf->values = arena_alloc_array(arena, (size_t)n, sizeof *gguf->values);
    if (!gguf->values)
        return error_memory(error, n * sizeof *gguf->values);
    for (gguf->n_values = 0; gguf->n_values < n; gguf->n_values++) {
        const uint8_t *key;
        uint64_t len, ignored;
        uint32_t type;
        if (!take_string(c, &key, &len) || !take_u32(c, &type))
            return truncated(error, "its metadata");
        enum status status =
            name_check("a metadata key", (const char *)key, (size_t)len, KEY_BYTES_MAX, error);
        if (status != OK)
            return status;
        if (map_get(&gguf->keys, (const char *)key, (size_t)len, &ignored))
            return error_set(error, ERROR_INVALID, "metadata key %.*s occurs twice",
                             (int)(len < 200 ? len : 200), (const char *)key);
        status = take_value(c, type, 0, &gguf->values[gguf->n_values], error);
        if (status != OK)
            return status;
        if (!map_put(&gguf->keys, (const char *)key, (size_t)len, gguf->n_values))
            return error_memory(error, sizeof(struct map_entry));
    }
    return OK;
}

/* A type that is not in the table is listed as well: its tensor may never be asked for. */
static enum status set_type(struct arena *arena, struct tensor *tensor, uint32_t id,
                            struct error *error)
{
    if (id >= sizeof tensor_types / sizeof tensor_types[0] || !tensor_types[id].name) {
        char text[32];
        int n = snprintf(text, sizeof text, "%u", id);
        tensor->encoding = ENCODING_UNSUPPORTED;
        tensor->dtype = arena_copy(arena, text, (size_t)n);
        return tensor->dtype ? OK : error_memory(error, sizeof text);
    }
    const struct tensor_type *type = &tensor_types[id];
    if (tensor->cols % type->block)
        return error_set(error, ERROR_INVALID,
                         "tensor %.200s: its rows of %lld elements are not whole blocks of %d (%s)",
                         tensor->name, (long long)tensor->cols, type->block, type->name);
    tensor->encoding = type->encoding;
    tensor->dtype = type->name;
    return OK;
}

/* Until the place of the data section is known, `data` is NULL and `bytes` holds the offset. */
static enum status read_tensor(struct tensor_list *list, struct cursor *c, struct error *error)
{
    const uint8_t *name;
    uint64_t len, dims[DIMS_MAX] = {1, 1, 1, 1}, offset, rows;
    uint32_t n_dims, type;
    if (!take_string(c, &name, &len) || !take_u32(c, &n_dims))
        return truncated(error, "its list of tensors");
    struct tensor *tensor;
    enum status status = tensors_add(list, (const char *)name, (size_t)len, &tensor, error);
    if (status != OK)
        return status;
    if (n_dims > DIMS_MAX)
        return error_set(error, ERROR_LIMIT, "tensor %.200s has %u dimensions; the limit is %d",
                         tensor->name, n_dims, DIMS_MAX);
    for (uint32_t d = 0; d < n_dims; d++)
        if (!take_u64(c, &dims[d]))
            return truncated(error, "its list of tensors");
    if (!take_u32(c, &type) || !take_u64(c, &offset))
        return truncated(error, "its list of tensors");
    if (!u64_mul(dims[1], dims[2], &rows) || !u64_mul(rows, dims[3], &rows) || rows > INT64_MAX ||
        dims[0] > INT64_MAX)
        return error_set(error, ERROR_INVALID, "tensor %.200s: the product of its shape overflows",
                         tensor->name);
    tensor->rows = (int64_t)rows;
    tensor->cols = (int64_t)dims[0];
    tensor->bytes = offset;
    return set_type(list->arena, tensor, type, error);
}

/* The row of the table whose name a tensor was given, or NULL. */
static const struct tensor_type *type_of(const struct tensor *tensor)
{
    for (size_t i = 0; i < sizeof tensor_types / sizeof tensor_types[0]; i++)
        if (tensor_types[i].name == tensor->dtype)
            return &tensor_types[i];
    return NULL;
}

static enum status place_tensor(struct tensor *tensor, const uint8_t *section,
                                uint64_t section_bytes, struct error *error)
{
    const struct tensor_type *type = type_of(tensor);
    uint64_t offset = tensor->bytes, bytes;
    if (!type) { /* of unknown size: no bytes are handed out */
        tensor->data = section;
        tensor->bytes = 0;
        return OK;
    }
    if (!u64_mul((uint64_t)tensor->rows, (uint64_t)tensor->cols / type->block, &bytes) ||
        !u64_mul(bytes, type->block_bytes, &bytes) || offset > section_bytes ||
        bytes > section_bytes - offset)
        return error_set(error, ERROR_INVALID,
                         "tensor %.200s: offset %llu and %lld rows of %lld %s elements do not lie "
                         "in the file's %llu bytes of data (is the file complete?)",
                         tensor->name, (unsigned long long)offset, (long long)tensor->rows,
                         (long long)tensor->cols, tensor->dtype, (unsigned long long)section_bytes);
    tensor->data = section + offset;
    tensor->bytes = bytes;
    return OK;
}

static enum status read_tensors(const struct gguf *gguf, struct tensor_list *list, struct cursor *c,
                                const uint8_t *start, uint64_t n, int32_t file, struct error *error)
{
    size_t first = list->n;
    if (n > TENSORS_MAX)
        return error_set(error, ERROR_LIMIT, "it has %llu tensors; the limit is %d",
                         (unsigned long long)n, TENSORS_MAX);
    if (n > (uint64_t)(c->end - c->at) / TENSOR_BYTES_MIN)
        return truncated(error, "its list of tensors");
    for (uint64_t i = 0; i < n; i++) {
        enum status status = read_tensor(list, c, error);
        if (status != OK)
            return status;
    }
    int64_t alignment = ALIGNMENT_DEFAULT;
    const struct gguf_value *value = gguf_find(gguf, "general.alignment");
    if (value && (!gguf_int(value, 0, &alignment) || alignment <= 0 || alignment > ALIGNMENT_MAX ||
                  (alignment & (alignment - 1))))
        return error_set(error, ERROR_INVALID,
                         "general.alignment is not a power of two of at most %d", ALIGNMENT_MAX);
    uint64_t header = size_round_up((size_t)(c->at - start), (size_t)alignment);
    uint64_t bytes = (uint64_t)(c->end - start);
    header = header < bytes ? header : bytes; /* a file without data may lack the padding */
    for (size_t i = first; i < list->n; i++) {
        list->items[i].file = file;
        enum status status = place_tensor(&list->items[i], start + header, bytes - header, error);
        if (status != OK)
            return status;
    }
    return OK;
}

enum status gguf_parse(struct gguf *gguf, struct tensor_list *list, const uint8_t *data,
                       uint64_t bytes, int32_t file, struct error *error)
{
    enum status status = pointer_check(data, bytes, error);
    if (status != OK)
        return status;
    if (bytes < 4 || memcmp(data, "GGUF", 4) != 0)
        return error_set(error, ERROR_INVALID, "it is not a GGUF file");
    struct cursor c = {data + 4, data + bytes};
    uint32_t version;
    uint64_t n_tensors, n_keys;
    if (!take_u32(&c, &version))
        return truncated(error, "its header");
    if (version != 0 && (version & 0xFFFF) == 0)
        return error_set(error, ERROR_UNSUPPORTED,
                         "it is a big-endian GGUF file; csgl reads little-endian ones only");
    if (version != 2 && version != 3)
        return error_set(error, ERROR_UNSUPPORTED,
                         "it is a GGUF file of version %u; csgl reads versions 2 and 3", version);
    if (!take_u64(&c, &n_tensors) || !take_u64(&c, &n_keys))
        return truncated(error, "its header");
    status = read_keys(gguf, list->arena, &c, n_keys, error);
    return status == OK ? read_tensors(gguf, list, &c, data, n_tensors, file, error) : status;
}

void gguf_done(struct gguf *gguf)
{
    map_done(&gguf->keys);
    *gguf = (struct gguf){0};
}

const struct gguf_value *gguf_find(const struct gguf *gguf, const char *key)
{
    uint64_t index;
    return map_get(&gguf->keys, key, strlen(key), &index) ? &gguf->values[index] : NULL;
}

/* The type and the bytes of a scalar or of one item; NULL for what is neither. */
static const uint8_t *number_at(const struct gguf_value *value, uint64_t i, enum gguf_type *type)
{
    if (!value)
        return NULL;
    *type = value->type == GGUF_ARRAY ? value->item : value->type;
    if (!type_bytes[*type] || i >= value->n)
        return NULL;
    return value->data + i * type_bytes[*type];
}

bool gguf_int(const struct gguf_value *value, uint64_t i, int64_t *out)
{
    enum gguf_type type;
    const uint8_t *p = number_at(value, i, &type);
    if (!p || type == GGUF_F32 || type == GGUF_F64 || type == GGUF_BOOL)
        return false;
    uint64_t bits = load(p, type_bytes[type]);
    switch (type) {
    case GGUF_I8:
        *out = (int8_t)bits;
        return true;
    case GGUF_I16:
        *out = (int16_t)bits;
        return true;
    case GGUF_I32:
        *out = (int32_t)bits;
        return true;
    case GGUF_U64:
        if (bits > INT64_MAX)
            return false;
        break;
    default:
        break;
    }
    *out = (int64_t)bits;
    return true;
}

bool gguf_float(const struct gguf_value *value, uint64_t i, double *out)
{
    enum gguf_type type;
    const uint8_t *p = number_at(value, i, &type);
    int64_t integer;
    float single;
    if (p && type == GGUF_F32) {
        memcpy(&single, p, sizeof single);
        *out = (double)single;
    } else if (p && type == GGUF_F64) {
        memcpy(out, p, sizeof *out);
    } else if (gguf_int(value, i, &integer)) {
        *out = (double)integer;
    } else {
        return false;
    }
    return true;
}

bool gguf_bool(const struct gguf_value *value, bool otherwise)
{
    return value && value->type == GGUF_BOOL ? value->data[0] != 0 : otherwise;
}

bool gguf_string_is(const struct gguf_value *value, const char *text)
{
    return value && value->type == GGUF_STRING && value->n == strlen(text) &&
           memcmp(value->data, text, (size_t)value->n) == 0;
}

const char *gguf_next_string(const uint8_t **at, size_t *len)
{
    *len = (size_t)load(*at, 8);
    const char *text = (const char *)*at + 8;
    *at += 8 + *len;
    return text;
}
