/* Filters that apply another filter, a test or an order to every item. */
#include "template/strings.h"

#include <string.h>

/* An argument by name, removed from what is passed on. */
static const struct value *take_named(struct args *args, const char *name)
{
    for (size_t i = 0; i < args->n_named; i++) {
        if (!value_is_text(&args->named[i].name, name))
            continue;
        struct named found = args->named[i];
        memmove(&args->named[i], &args->named[i + 1], (args->n_named - i - 1) * sizeof found);
        args->named[--args->n_named] =
            found; /* kept behind the end, so that it can be pointed to */
        return &args->named[args->n_named].value;
    }
    return NULL;
}

/* The items to work on; falsy values have none. */
static bool items_of(struct eval *e, const struct value *v, struct list **out)
{
    if (value_truth(v))
        return to_list(e, v, out);
    *out = list_new(&e->arena, 0);
    return *out || eval_fail_memory(e);
}

/* Calls a filter or test with `item` before the arguments that follow the name in `args`. */
static bool apply(struct eval *e, const struct builtin *function, const struct args *args,
                  size_t first, const struct value *item, struct value *out)
{
    struct args call = {.named = args->named, .n_named = args->n_named};
    call.n = args->n > first ? args->n - first + 1 : 1;
    call.items = arena_alloc_array(&e->arena, call.n, sizeof *call.items);
    if (!call.items)
        return eval_fail_memory(e);
    call.items[0] = *item;
    if (call.n > 1)
        memcpy(call.items + 1, args->items + first, (call.n - 1) * sizeof *call.items);
    return eval_step(e, 1) && function->call(e, &call, out);
}

static bool filter_map(struct eval *e, const struct args *given, struct value *out)
{
    struct args args = *given;
    struct list *list, *result;
    const struct value *attribute = NULL, *otherwise = NULL;
    const struct builtin *filter = NULL;
    if (args.n == 1 && (attribute = take_named(&args, "attribute")) != NULL) {
        otherwise = take_named(&args, "default");
        if (otherwise && otherwise->kind == V_NONE)
            otherwise = NULL;
        if (args.n_named)
            return eval_fail(e, ERROR_INVALID, "map does not know the argument '%.*s'",
                             (int)args.named[0].name.len, args.named[0].name.text);
    } else {
        if (args.n < 2 || args.items[1].kind != V_STRING)
            return eval_fail(e, ERROR_INVALID, "map needs the name of a filter or an attribute");
        filter = filter_find(&args.items[1]);
        if (!filter)
            return eval_fail(e, ERROR_UNSUPPORTED, "the filter '%.*s' is not known",
                             (int)args.items[1].len, args.items[1].text);
    }
    if (!items_of(e, &args.items[0], &list))
        return false;
    result = list_new(&e->arena, list->n);
    if (!result)
        return eval_fail_memory(e);
    for (size_t i = 0; i < list->n; i++) {
        struct value v;
        if (attribute ? !get_path(e, &list->items[i], attribute, otherwise, &v)
                      : !apply(e, filter, &args, 2, &list->items[i], &v))
            return false;
        if (!push(e, result, v))
            return false;
    }
    return stream_value(e, result, out);
}

/* The four of select and reject. */
static bool pick(struct eval *e, const struct args *args, bool by_attribute, bool keep,
                 struct value *out)
{
    size_t at = by_attribute ? 2 : 1;
    const struct builtin *test = NULL;
    struct list *list, *result;
    if (by_attribute && args->n < 2)
        return eval_fail(e, ERROR_INVALID, "selectattr and rejectattr need an attribute");
    if (args->n > at) {
        test = args->items[at].kind == V_STRING ? test_find(&args->items[at]) : NULL;
        if (!test)
            return eval_fail(e, ERROR_UNSUPPORTED, "the test '%.*s' is not known",
                             (int)args->items[at].len,
                             args->items[at].kind == V_STRING ? args->items[at].text : "");
    }
    if (!items_of(e, &args->items[0], &list))
        return false;
    result = list_new(&e->arena, 8);
    if (!result)
        return eval_fail_memory(e);
    for (size_t i = 0; i < list->n; i++) {
        struct value v = list->items[i], passed;
        if (by_attribute && !get_path(e, &list->items[i], &args->items[1], NULL, &v))
            return false;
        passed = v;
        if (test && !apply(e, test, args, at + 1, &v, &passed))
            return false;
        if (value_truth(&passed) == keep && !push(e, result, list->items[i]))
            return false;
    }
    return stream_value(e, result, out);
}

static bool filter_select(struct eval *e, const struct args *args, struct value *out)
{
    return pick(e, args, false, true, out);
}

static bool filter_reject(struct eval *e, const struct args *args, struct value *out)
{
    return pick(e, args, false, false, out);
}

static bool filter_selectattr(struct eval *e, const struct args *args, struct value *out)
{
    return pick(e, args, true, true, out);
}

static bool filter_rejectattr(struct eval *e, const struct args *args, struct value *out)
{
    return pick(e, args, true, false, out);
}

/* ---- order ---- */

struct keyed {
    struct value key, item;
};

/* What an item is ordered by: itself or its attribute, strings in lower case unless `sensitive`. */
static bool key_of(struct eval *e, const struct value *item, const struct value *attribute,
                   const struct value *otherwise, bool sensitive, struct value *out)
{
    *out = *item;
    if (attribute && attribute->kind != V_NONE && !get_path(e, item, attribute, otherwise, out))
        return false;
    if (sensitive || out->kind != V_STRING)
        return true;
    struct value text = *out;
    return string_change_case(e, &text, CASE_LOWER, out);
}

/* "a,b" orders by several attributes: the key is a list. */
static bool sort_key(struct eval *e, const struct value *item, const struct value *attribute,
                     bool sensitive, struct value *out)
{
    if (!attribute || attribute->kind != V_STRING || !memchr(attribute->text, ',', attribute->len))
        return key_of(e, item, attribute, NULL, sensitive, out);
    struct list *keys = list_new(&e->arena, 4);
    if (!keys)
        return eval_fail_memory(e);
    for (size_t i = 0; i <= attribute->len;) {
        const char *comma = memchr(attribute->text + i, ',', attribute->len - i);
        size_t end = comma ? (size_t)(comma - attribute->text) : attribute->len;
        struct value part = value_text(attribute->text + i, end - i), key;
        if (!key_of(e, item, &part, NULL, sensitive, &key) || !push(e, keys, key))
            return false;
        i = end + 1;
    }
    *out = list_value(keys);
    return true;
}

/* A stable merge sort, since a comparison can fail. */
static bool merge_sort(struct eval *e, struct keyed *at, struct keyed *scratch, size_t n,
                       bool reverse)
{
    if (n < 2)
        return true;
    size_t half = n / 2;
    if (!merge_sort(e, at, scratch, half, reverse) ||
        !merge_sort(e, at + half, scratch, n - half, reverse))
        return false;
    size_t i = 0, j = half, k = 0;
    while (i < half && j < n) {
        bool take_right;
        const struct value *left = &at[i].key, *right = &at[j].key;
        if (!value_compare(e, '<', reverse ? left : right, reverse ? right : left, &take_right))
            return false;
        scratch[k++] = take_right ? at[j++] : at[i++];
    }
    while (i < half)
        scratch[k++] = at[i++];
    memcpy(at, scratch, k * sizeof *at);
    return true;
}

static bool sort_keyed(struct eval *e, struct keyed *keyed, size_t n, bool reverse)
{
    struct keyed *scratch = arena_alloc_array(&e->arena, n, sizeof *scratch);
    return scratch ? merge_sort(e, keyed, scratch, n, reverse) : eval_fail_memory(e);
}

static bool filter_sort(struct eval *e, const struct args *args, struct value *out)
{
    static const char *const names[] = {"value", "reverse", "case_sensitive", "attribute"};
    const struct value *v[4];
    struct list *list;
    if (!args_take(e, args, "sort", names, 1, 4, v) || !to_list(e, v[0], &list))
        return false;
    struct keyed *keyed = arena_alloc_array(&e->arena, list->n, sizeof *keyed);
    if (!keyed)
        return eval_fail_memory(e);
    for (size_t i = 0; i < list->n; i++) {
        keyed[i].item = list->items[i];
        if (!sort_key(e, &list->items[i], v[3], v[2] && value_truth(v[2]), &keyed[i].key))
            return false;
    }
    if (!sort_keyed(e, keyed, list->n, v[1] && value_truth(v[1])))
        return false;
    for (size_t i = 0; i < list->n; i++)
        list->items[i] = keyed[i].item;
    *out = list_value(list);
    return true;
}

static bool filter_dictsort(struct eval *e, const struct args *args, struct value *out)
{
    static const char *const names[] = {"value", "case_sensitive", "by", "reverse"};
    const struct value *v[4];
    struct value by, zero = value_int(0);
    struct list *list;
    if (!args_take(e, args, "dictsort", names, 1, 4, v) ||
        !arg_text(e, v[2], "dictsort", "key", &by))
        return false;
    if (v[0]->kind == V_UNDEFINED)
        return eval_fail_undefined(e, v[0]);
    if (v[0]->kind != V_DICT)
        return eval_fail(e, ERROR_INVALID, "dictsort needs a dict, not a %s", value_type(v[0]));
    if (value_is_text(&by, "value"))
        zero = value_int(1);
    else if (!value_is_text(&by, "key"))
        return eval_fail(e, ERROR_INVALID, "dictsort sorts by 'key' or 'value'");
    struct value view = {.kind = V_VIEW, .flag = VIEW_ITEMS, .dict = v[0]->dict};
    if (!to_list(e, &view, &list))
        return false;
    struct keyed *keyed = arena_alloc_array(&e->arena, list->n, sizeof *keyed);
    if (!keyed)
        return eval_fail_memory(e);
    for (size_t i = 0; i < list->n; i++) {
        keyed[i].item = list->items[i];
        if (!key_of(e, &list->items[i], &zero, NULL, v[1] && value_truth(v[1]), &keyed[i].key))
            return false;
    }
    if (!sort_keyed(e, keyed, list->n, v[3] && value_truth(v[3])))
        return false;
    for (size_t i = 0; i < list->n; i++)
        list->items[i] = keyed[i].item;
    *out = list_value(list);
    return true;
}

static bool filter_unique(struct eval *e, const struct args *args, struct value *out)
{
    static const char *const names[] = {"value", "case_sensitive", "attribute"};
    const struct value *v[3];
    struct list *list, *result = list_new(&e->arena, 8);
    struct dict *seen = dict_new(&e->arena);
    if (!result || !seen)
        return eval_fail_memory(e);
    if (!args_take(e, args, "unique", names, 1, 3, v) || !to_list(e, v[0], &list))
        return false;
    for (size_t i = 0; i < list->n; i++) {
        struct value key;
        size_t before = seen->n;
        if (!key_of(e, &list->items[i], v[2], NULL, v[1] && value_truth(v[1]), &key) ||
            !put(e, seen, key, value_none()))
            return false;
        if (seen->n > before && !push(e, result, list->items[i]))
            return false;
    }
    return stream_value(e, result, out);
}

static bool extreme(struct eval *e, const struct args *args, int op, struct value *out)
{
    static const char *const names[] = {"value", "case_sensitive", "attribute"};
    const struct value *v[3];
    struct list *list;
    struct value best, key;
    if (!args_take(e, args, op == '<' ? "min" : "max", names, 1, 3, v) || !to_list(e, v[0], &list))
        return false;
    if (list->n == 0)
        return undefined_hint(e, "no aggregated item, the sequence was empty", out);
    bool sensitive = v[1] && value_truth(v[1]), better;
    *out = list->items[0];
    if (!key_of(e, out, v[2], NULL, sensitive, &best))
        return false;
    for (size_t i = 1; i < list->n; i++) {
        if (!key_of(e, &list->items[i], v[2], NULL, sensitive, &key) ||
            !value_compare(e, op, &key, &best, &better))
            return false;
        if (better) {
            *out = list->items[i];
            best = key;
        }
    }
    return true;
}

static bool filter_min(struct eval *e, const struct args *args, struct value *out)
{
    return extreme(e, args, '<', out);
}

static bool filter_max(struct eval *e, const struct args *args, struct value *out)
{
    return extreme(e, args, '>', out);
}

/* Sorted by an attribute, then (attribute, items) for each run of equal ones. */
static bool filter_groupby(struct eval *e, const struct args *args, struct value *out)
{
    static const char *const names[] = {"value", "attribute", "default", "case_sensitive"};
    const struct value *v[4];
    struct list *list, *groups = list_new(&e->arena, 8), *run = NULL;
    if (!groups)
        return eval_fail_memory(e);
    if (!args_take(e, args, "groupby", names, 2, 4, v) || !to_list(e, v[0], &list))
        return false;
    bool sensitive = v[3] && value_truth(v[3]);
    const struct value *otherwise = v[2] && v[2]->kind != V_NONE ? v[2] : NULL;
    struct keyed *keyed = arena_alloc_array(&e->arena, list->n, sizeof *keyed);
    if (!keyed)
        return eval_fail_memory(e);
    for (size_t i = 0; i < list->n; i++) {
        keyed[i].item = list->items[i];
        if (!key_of(e, &list->items[i], v[1], otherwise, sensitive, &keyed[i].key))
            return false;
    }
    if (!sort_keyed(e, keyed, list->n, false))
        return false;
    for (size_t i = 0; i < list->n; i++) {
        bool same = false;
        if (run && !value_equal(e, &keyed[i - 1].key, &keyed[i].key, &same))
            return false;
        if (!same) {
            struct list *group = list_new(&e->arena, 2);
            run = list_new(&e->arena, 4);
            if (!group || !run)
                return eval_fail_memory(e);
            if (!get_path(e, &keyed[i].item, v[1], otherwise, &group->items[0]))
                return false;
            group->items[1] = list_value(run);
            group->n = 2;
            if (!push(e, groups, (struct value){.kind = V_TUPLE, .flag = 1, .list = group}))
                return false;
        }
        if (!push(e, run, keyed[i].item))
            return false;
    }
    *out = list_value(groups);
    return true;
}

const struct builtin pick_filters[] = {
    {"dictsort", filter_dictsort},
    {"groupby", filter_groupby},
    {"map", filter_map},
    {"max", filter_max},
    {"min", filter_min},
    {"reject", filter_reject},
    {"rejectattr", filter_rejectattr},
    {"select", filter_select},
    {"selectattr", filter_selectattr},
    {"sort", filter_sort},
    {"unique", filter_unique},
    {NULL, NULL},
};
