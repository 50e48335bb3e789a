#include "checkpoint/tensors.h"

#include "base/json.h"

#include <stdlib.h>
#include <string.h>

enum status name_check(const char *what, const char *name, size_t len, size_t limit,
                       struct error *error)
{
    if (len == 0)
        return error_set(error, ERROR_INVALID, "%s is empty", what);
    if (len > limit)
        return error_set(error, ERROR_LIMIT, "%s has %zu bytes; the limit is %zu", what, len,
                         limit);
    for (size_t i = 0; i < len;) {
        size_t n = utf8_sequence(name + i, len - i);
        if (!n)
            return error_set(error, ERROR_INVALID, "%s is not valid UTF-8", what);
        if ((unsigned char)name[i] < 0x20 || name[i] == 0x7F)
            return error_set(error, ERROR_INVALID, "%s contains a control character", what);
        i += n;
    }
    return OK;
}

enum status pointer_check(const uint8_t *data, uint64_t bytes, struct error *error)
{
    static const char start[] = "version https://git-lfs";
    if (bytes < sizeof start - 1 || memcmp(data, start, sizeof start - 1) != 0)
        return OK;
    return error_set(error, ERROR_INVALID,
                     "it is a Git LFS pointer, not the file itself; fetch it with `git lfs pull`");
}

static bool grow(struct tensor_list *list)
{
    size_t cap = list->cap ? list->cap * 2 : 64;
    struct tensor *items = realloc(list->items, cap * sizeof *items);
    if (!items)
        return false;
    list->items = items;
    list->cap = cap;
    return true;
}

enum status tensors_add(struct tensor_list *list, const char *name, size_t len, struct tensor **out,
                        struct error *error)
{
    enum status status = name_check("a tensor's name", name, len, TENSOR_NAME_MAX, error);
    if (status != OK)
        return status;
    if (tensors_find(list, name, len))
        return error_set(error, ERROR_INVALID, "tensor %.*s occurs twice", (int)len, name);
    if (list->n == TENSORS_MAX)
        return error_set(error, ERROR_LIMIT, "there are more than the limit of %d tensors",
                         TENSORS_MAX);
    const char *copy = arena_copy(list->arena, name, len);
    if (!copy || (list->n == list->cap && !grow(list)) ||
        !map_put(&list->by_name, copy, len, list->n))
        return error_memory(error, sizeof(struct tensor) + len);
    *out = &list->items[list->n++];
    **out = (struct tensor){.name = copy, .name_len = len};
    return OK;
}

const struct tensor *tensors_find(const struct tensor_list *list, const char *name, size_t len)
{
    uint64_t index;
    return map_get(&list->by_name, name, len, &index) ? &list->items[index] : NULL;
}

void tensors_done(struct tensor_list *list)
{
    free(list->items);
    map_done(&list->by_name);
    *list = (struct tensor_list){0};
}
