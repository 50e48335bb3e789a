/* Filters on lists, dicts and other things that can be walked. */
#include "template/strings.h"
#include "template/text.h"

#include <string.h>

static bool filter_length(struct eval *e, const struct args *args, struct value *out)
{
    static const char *const names[] = {"value"};
    const struct value *v[1];
    size_t n;
    if (!args_take(e, args, "length", names, 1, 1, v) || !eval_step(e, v[0]->len / 64))
        return false;
    if (!value_len(v[0], &n))
        return eval_fail(e, ERROR_INVALID, "a value of type %s has no length", value_type(v[0]));
    *out = value_int((int64_t)n);
    return true;
}

static bool filter_list(struct eval *e, const struct args *args, struct value *out)
{
    struct list *list;
    if (!to_list(e, &args->items[0], &list))
        return false;
    *out = list_value(list);
    return true;
}

static bool filter_first(struct eval *e, const struct args *args, struct value *out)
{
    struct iterator it;
    if (!iterator_init(&it, &args->items[0]))
        return eval_fail(e, ERROR_INVALID, "first does not work on a %s",
                         value_type(&args->items[0]));
    int got = iterator_next(&e->arena, &it, out);
    if (got == 0)
        return undefined_hint(e, "no first item, the sequence was empty", out);
    return got == 1 || eval_fail_memory(e);
}

static bool filter_last(struct eval *e, const struct args *args, struct value *out)
{
    const struct value *v = &args->items[0];
    struct list *list;
    if (v->kind == V_STREAM)
        return eval_fail(e, ERROR_INVALID, "last does not work on a generator; use list first");
    if (!to_list(e, v, &list))
        return false;
    if (list->n == 0)
        return undefined_hint(e, "no last item, the sequence was empty", out);
    *out = list->items[list->n - 1];
    return true;
}

static bool filter_reverse(struct eval *e, const struct args *args, struct value *out)
{
    const struct value *v = &args->items[0];
    struct value part[3] = {value_none(), value_none(), value_int(-1)};
    struct list *list;
    if (v->kind == V_STRING)
        return get_slice(e, v, part, out);
    if (!to_list(e, v, &list))
        return false;
    for (size_t i = 0, j = list->n; i + 1 < j; i++, j--) {
        struct value kept = list->items[i];
        list->items[i] = list->items[j - 1];
        list->items[j - 1] = kept;
    }
    if (v->kind != V_STREAM)
        return stream_value(e, list, out);
    *out = list_value(list);
    return true;
}

static bool filter_items(struct eval *e, const struct args *args, struct value *out)
{
    const struct value *v = &args->items[0];
    struct value view = {.kind = V_VIEW, .flag = VIEW_ITEMS, .dict = v->dict};
    struct list *list;
    if (v->kind == V_UNDEFINED) {
        list = list_new(&e->arena, 0);
        return list ? stream_value(e, list, out) : eval_fail_memory(e);
    }
    if (v->kind != V_DICT)
        return eval_fail(e, ERROR_INVALID, "items needs a mapping, not a %s", value_type(v));
    return to_list(e, &view, &list) && stream_value(e, list, out);
}

static bool filter_join(struct eval *e, const struct args *args, struct value *out)
{
    static const char *const names[] = {"value", "d", "attribute"};
    const struct value *v[3];
    struct value separator = value_text("", 0);
    struct list *list;
    if (!args_take(e, args, "join", names, 1, 3, v) || !to_list(e, v[0], &list) ||
        (v[1] && !to_text(e, v[1], &separator)))
        return false;
    struct str built = {0};
    bool ok = true;
    for (size_t i = 0; i < list->n && ok; i++) {
        struct value item = list->items[i];
        if (i)
            str_append(&built, separator.text, separator.len);
        ok = (!v[2] || v[2]->kind == V_NONE || get_path(e, &list->items[i], v[2], NULL, &item)) &&
             write_value(e, &built, &item);
    }
    if (!ok) {
        str_done(&built);
        return false;
    }
    return take_text(e, &built, out);
}

/* Rows of `size` items, the last one filled up if a filler is given. */
static bool filter_batch(struct eval *e, const struct args *args, struct value *out)
{
    static const char *const names[] = {"value", "linecount", "fill_with"};
    const struct value *v[3];
    struct list *list, *rows = list_new(&e->arena, 8), *row = NULL;
    int64_t size;
    if (!rows)
        return eval_fail_memory(e);
    if (!args_take(e, args, "batch", names, 2, 3, v) || !arg_int(e, v[1], "batch", 1, &size) ||
        !to_list(e, v[0], &list))
        return false;
    if (size < 1 || size > EVAL_MAX_RANGE)
        return eval_fail(e, ERROR_INVALID, "batch: the size of a row must be 1 to %d",
                         EVAL_MAX_RANGE);
    for (size_t i = 0; i < list->n; i++) {
        if (!row || row->n == (size_t)size) {
            row = list_new(&e->arena, 4);
            if (!row || !push(e, rows, list_value(row)))
                return eval_fail_memory(e);
        }
        if (!push(e, row, list->items[i]))
            return false;
    }
    while (row && v[2] && v[2]->kind != V_NONE && row->n < (size_t)size)
        if (!eval_step(e, 1) || !push(e, row, *v[2]))
            return false;
    return stream_value(e, rows, out);
}

/* `slices` columns of nearly equal length, the longer ones first. */
static bool filter_slice(struct eval *e, const struct args *args, struct value *out)
{
    static const char *const names[] = {"value", "slices", "fill_with"};
    const struct value *v[3];
    struct list *list, *columns = list_new(&e->arena, 8);
    int64_t n;
    if (!columns)
        return eval_fail_memory(e);
    if (!args_take(e, args, "slice", names, 2, 3, v) || !arg_int(e, v[1], "slice", 1, &n) ||
        !to_list(e, v[0], &list))
        return false;
    if (n < 1 || n > EVAL_MAX_RANGE)
        return eval_fail(e, ERROR_INVALID, "slice: the number of columns must be 1 to %d",
                         EVAL_MAX_RANGE);
    size_t each = list->n / (size_t)n, longer = list->n % (size_t)n, at = 0;
    for (size_t c = 0; c < (size_t)n; c++) {
        size_t length = each + (c < longer);
        struct list *column = list_new(&e->arena, length + 1);
        if (!column || !eval_step(e, 1))
            return column != NULL || eval_fail_memory(e);
        for (size_t i = 0; i < length; i++)
            if (!push(e, column, list->items[at++]))
                return false;
        if (v[2] && v[2]->kind != V_NONE && c >= longer && !push(e, column, *v[2]))
            return false;
        if (!push(e, columns, list_value(column)))
            return false;
    }
    return stream_value(e, columns, out);
}

static bool filter_sum(struct eval *e, const struct args *args, struct value *out)
{
    static const char *const names[] = {"iterable", "attribute", "start"};
    const struct value *v[3];
    struct list *list;
    if (!args_take(e, args, "sum", names, 1, 3, v) || !to_list(e, v[0], &list))
        return false;
    *out = v[2] ? *v[2] : value_int(0);
    if (out->kind == V_STRING)
        return eval_fail(e, ERROR_INVALID, "sum does not add strings; use join");
    for (size_t i = 0; i < list->n; i++) {
        struct value item = list->items[i], total = *out;
        if (v[1] && v[1]->kind != V_NONE && !get_path(e, &list->items[i], v[1], NULL, &item))
            return false;
        if (!operate(e, '+', &total, &item, out))
            return false;
    }
    return true;
}

static bool filter_attr(struct eval *e, const struct args *args, struct value *out)
{
    static const char *const names[] = {"obj", "name"};
    const struct value *v[2];
    struct value name;
    if (!args_take(e, args, "attr", names, 2, 2, v) || !arg_text(e, v[1], "attr", "", &name))
        return false;
    int row = method_find(&name);
    /* Keys of a dict are no attributes. */
    if (v[0]->kind == V_DICT && !method_of(row, v[0]))
        return undefined_name(e, &name, out);
    return get_attribute(e, v[0], &name, row, out);
}

const struct builtin list_filters[] = {
    {"attr", filter_attr},
    {"batch", filter_batch},
    {"count", filter_length},
    {"first", filter_first},
    {"items", filter_items},
    {"join", filter_join},
    {"last", filter_last},
    {"length", filter_length},
    {"list", filter_list},
    {"reverse", filter_reverse},
    {"slice", filter_slice},
    {"sum", filter_sum},
    {NULL, NULL},
};
