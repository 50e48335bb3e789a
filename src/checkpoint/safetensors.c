/* Reads the header with the pull reader, one tensor at a time, then checks that the ranges tile the
 * data. Facts: the format's README and the validation of the `safetensors` crate. */
#include "checkpoint/safetensors.h"

#include "base/json.h"
#include "base/size.h"

#include <stdlib.h>
#include <string.h>

enum { LENGTH_BYTES = 8, HEADER_MAX = 100 * 1000 * 1000 };

/* Bits an element; encoding if a weight may have this dtype. */
struct dtype {
    const char *name;
    int bits, encoding;
};

static const struct dtype dtypes[] = {
    {"BF16", 16, WEIGHT_BF16},
    {"F16", 16, WEIGHT_F16},
    {"F32", 32, WEIGHT_F32},
    {"F64", 64, ENCODING_UNSUPPORTED},
    {"F8_E4M3", 8, ENCODING_UNSUPPORTED},
    {"F8_E5M2", 8, ENCODING_UNSUPPORTED},
    {"F8_E8M0", 8, ENCODING_UNSUPPORTED},
    {"F6_E2M3", 6, ENCODING_UNSUPPORTED},
    {"F6_E3M2", 6, ENCODING_UNSUPPORTED},
    {"F4", 4, ENCODING_UNSUPPORTED},
    {"C64", 64, ENCODING_UNSUPPORTED},
    {"BOOL", 8, ENCODING_UNSUPPORTED},
    {"U8", 8, ENCODING_UNSUPPORTED},
    {"I8", 8, ENCODING_UNSUPPORTED},
    {"U16", 16, ENCODING_UNSUPPORTED},
    {"I16", 16, ENCODING_UNSUPPORTED},
    {"U32", 32, ENCODING_UNSUPPORTED},
    {"I32", 32, ENCODING_UNSUPPORTED},
    {"U64", 64, ENCODING_UNSUPPORTED},
    {"I64", 64, ENCODING_UNSUPPORTED},
};

/* The fields of one header entry; offsets are relative to the end of the header. */
struct entry {
    const struct dtype *dtype;
    int n_dims; /* -1 until the shape is read */
    int64_t dims[TENSOR_DIMS_MAX];
    int n_offsets;
    int64_t offsets[2];
};

static enum status wrong_form(struct error *error, const char *name, const char *what)
{
    return error_set(error, ERROR_INVALID, "tensor %.200s: %s", name, what);
}

/* The status of a sentence that the JSON reader wrote. */
static enum status failed(struct error *error)
{
    enum status status = error->status;
    error_prefix(error, "its header");
    return status;
}

/* An array of at most `max` non-negative integers. */
static enum status read_integers(struct json_reader *r, const char *name, int max, int64_t *out,
                                 int *n, struct error *error)
{
    enum json_event event = json_next(r, error);
    if (event == JSON_FAILED)
        return failed(error);
    if (event != JSON_ARRAY)
        return wrong_form(error, name, "shape and data_offsets must be arrays");
    for (*n = 0;; (*n)++) {
        event = json_next(r, error);
        if (event == JSON_FAILED)
            return failed(error);
        if (event == JSON_ARRAY_END)
            return OK;
        if (*n == max)
            return wrong_form(error, name, "shape or data_offsets has too many items");
        if (event != JSON_NUMBER || !json_read_int(r, 0, INT64_MAX, &out[*n]))
            return wrong_form(error, name, "shape and data_offsets must hold whole numbers");
    }
}

static enum status read_dtype(struct json_reader *r, const char *name, struct entry *entry,
                              struct error *error)
{
    enum json_event event = json_next(r, error);
    if (event == JSON_FAILED)
        return failed(error);
    if (event != JSON_STRING)
        return wrong_form(error, name, "dtype must be a string");
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++)
        if (json_text_is(r, dtypes[i].name))
            entry->dtype = &dtypes[i];
    if (!entry->dtype)
        return error_set(error, ERROR_UNSUPPORTED, "tensor %.200s has the unknown dtype \"%.*s\"",
                         name, (int)(r->len < 32 ? r->len : 32), r->text);
    return OK;
}

static enum status read_entry(struct json_reader *r, const char *name, struct entry *entry,
                              struct error *error)
{
    *entry = (struct entry){.n_dims = -1};
    enum json_event event = json_next(r, error);
    if (event == JSON_FAILED)
        return failed(error);
    if (event != JSON_OBJECT)
        return wrong_form(error, name, "its header entry is not an object");
    for (;;) {
        event = json_next(r, error);
        if (event == JSON_FAILED)
            return failed(error);
        if (event == JSON_OBJECT_END)
            break;
        enum status status;
        if (json_text_is(r, "dtype") && !entry->dtype)
            status = read_dtype(r, name, entry, error);
        else if (json_text_is(r, "shape") && entry->n_dims < 0)
            status = read_integers(r, name, TENSOR_DIMS_MAX, entry->dims, &entry->n_dims, error);
        else if (json_text_is(r, "data_offsets") && !entry->n_offsets)
            status = read_integers(r, name, 2, entry->offsets, &entry->n_offsets, error);
        else
            return wrong_form(error, name, "its header entry has an unknown or repeated key");
        if (status != OK)
            return status;
    }
    if (!entry->dtype || entry->n_dims < 0 || entry->n_offsets != 2)
        return wrong_form(error, name, "dtype, shape or its two data_offsets are missing");
    return OK;
}

/* Fills `tensor` from its entry; the size must be that of dtype and shape, inside `data_bytes`. */
static enum status check_entry(struct tensor *tensor, const struct entry *entry,
                               const uint8_t *data, uint64_t data_bytes, struct error *error)
{
    uint64_t rows = 1, elements, bits;
    for (int i = 0; i + 1 < entry->n_dims; i++)
        if (!u64_mul(rows, (uint64_t)entry->dims[i], &rows))
            return wrong_form(error, tensor->name, "the product of its shape overflows");
    uint64_t cols = entry->n_dims > 0 ? (uint64_t)entry->dims[entry->n_dims - 1] : 1;
    if (!u64_mul(rows, cols, &elements) || rows > INT64_MAX ||
        !u64_mul(elements, (uint64_t)entry->dtype->bits, &bits))
        return wrong_form(error, tensor->name, "the product of its shape overflows");
    uint64_t start = (uint64_t)entry->offsets[0], end = (uint64_t)entry->offsets[1];
    if (start > end || end > data_bytes)
        return error_set(error, ERROR_INVALID,
                         "tensor %.200s: data_offsets [%llu, %llu] do not lie in the file's %llu "
                         "bytes of data (is the file complete?)",
                         tensor->name, (unsigned long long)start, (unsigned long long)end,
                         (unsigned long long)data_bytes);
    if (bits % 8 || end - start != bits / 8)
        return error_set(error, ERROR_INVALID,
                         "tensor %.200s: %llu %s elements do not take the %llu bytes of its "
                         "data_offsets",
                         tensor->name, (unsigned long long)elements, entry->dtype->name,
                         (unsigned long long)(end - start));
    tensor->rows = (int64_t)rows;
    tensor->cols = (int64_t)cols;
    tensor->n_dims = entry->n_dims;
    memcpy(tensor->dims, entry->dims, sizeof tensor->dims);
    tensor->encoding = entry->dtype->encoding;
    tensor->dtype = entry->dtype->name;
    tensor->data = data + start;
    tensor->bytes = end - start;
    return OK;
}

static enum status read_header(struct tensor_list *list, struct json_reader *r, const uint8_t *data,
                               uint64_t data_bytes, int32_t file, struct error *error)
{
    enum json_event event = json_next(r, error);
    if (event == JSON_FAILED)
        return failed(error);
    if (event != JSON_OBJECT)
        return error_set(error, ERROR_INVALID, "its header is not a JSON object");
    for (;;) {
        event = json_next(r, error);
        if (event == JSON_FAILED)
            return failed(error);
        if (event == JSON_OBJECT_END)
            break;
        if (json_text_is(r, "__metadata__")) {
            if (json_skip(r, json_next(r, error), error) != OK)
                return failed(error);
            continue;
        }
        struct tensor *tensor;
        enum status status = tensors_add(list, r->text, r->len, &tensor, error);
        struct entry entry;
        if (status == OK)
            status = read_entry(r, tensor->name, &entry, error);
        if (status == OK)
            status = check_entry(tensor, &entry, data, data_bytes, error);
        if (status != OK)
            return status;
        tensor->file = file;
    }
    return json_next(r, error) == JSON_END ? OK : failed(error);
}

static int by_place(const void *a, const void *b)
{
    const struct tensor *x = *(const struct tensor *const *)a,
                        *y = *(const struct tensor *const *)b;
    if (x->data != y->data)
        return x->data < y->data ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes); /* empty ones first */
}

/* The tensors from `first` on must follow each other without hole or overlap and end with the file.
 */
static enum status check_tiling(const struct tensor_list *list, size_t first, const uint8_t *data,
                                uint64_t data_bytes, struct error *error)
{
    size_t n = list->n - first;
    const struct tensor **order = malloc((n ? n : 1) * sizeof *order);
    if (!order)
        return error_memory(error, n * sizeof *order);
    for (size_t i = 0; i < n; i++)
        order[i] = &list->items[first + i];
    qsort(order, n, sizeof *order, by_place);
    enum status status = OK;
    const uint8_t *at = data;
    for (size_t i = 0; i < n && status == OK; i++) {
        if (order[i]->data != at)
            status = wrong_form(error, order[i]->name,
                                order[i]->data < at ? "its bytes overlap another tensor's"
                                                    : "there is a hole before its bytes");
        at = order[i]->data + order[i]->bytes;
    }
    if (status == OK && at != data + data_bytes)
        status = error_set(error, ERROR_INVALID, "%llu bytes follow the last tensor",
                           (unsigned long long)(data + data_bytes - at));
    free(order);
    return status;
}

enum status safetensors_parse(struct tensor_list *list, const uint8_t *data, uint64_t bytes,
                              int32_t file, struct error *error)
{
    struct error local; /* sentences of the JSON reader are always needed for their status */
    if (!error)
        error = &local;
    if (bytes < LENGTH_BYTES)
        return error_set(error, ERROR_INVALID,
                         "it has %llu bytes and is too short to be a safetensors file",
                         (unsigned long long)bytes);
    enum status status = pointer_check(data, bytes, error);
    if (status != OK)
        return status;
    uint64_t header = 0;
    for (int i = 0; i < LENGTH_BYTES; i++)
        header |= (uint64_t)data[i] << 8 * i;
    if (header > HEADER_MAX)
        return error_set(error, ERROR_LIMIT,
                         "its header of %llu bytes exceeds the limit of %d; it is probably not a "
                         "safetensors file",
                         (unsigned long long)header, HEADER_MAX);
    if (header > bytes - LENGTH_BYTES)
        return error_set(error, ERROR_INVALID,
                         "its header of %llu bytes is longer than the file (is it complete?)",
                         (unsigned long long)header);
    const uint8_t *body = data + LENGTH_BYTES + header;
    uint64_t body_bytes = bytes - LENGTH_BYTES - header;
    size_t first = list->n;
    struct json_reader reader;
    json_reader_init(&reader, (const char *)data + LENGTH_BYTES, (size_t)header);
    status = read_header(list, &reader, body, body_bytes, file, error);
    json_reader_done(&reader);
    return status == OK ? check_tiling(list, first, body, body_bytes, error) : status;
}
