/* Methods of list, tuple and dict, and the table of all methods. jinja2's immutable sandbox refuses
 * the ones that change their object; here they work, on the render's own copies. */
#include "template/eval.h"
#include "template/lexer.h"
#include "template/methods_text.h"

#include <string.h>

static bool self_only(struct eval *e, const struct args *args)
{
    return (args->n == 1 && args->n_named == 0) ||
           eval_fail(e, ERROR_INVALID, "this method takes no argument");
}

static bool one_more(struct eval *e, const struct args *args)
{
    return (args->n == 2 && args->n_named == 0) ||
           eval_fail(e, ERROR_INVALID, "this method takes one argument");
}

static bool dict_view(struct eval *e, const struct args *args, enum view_kind kind,
                      struct value *out)
{
    *out = (struct value){.kind = V_VIEW, .flag = (uint8_t)kind, .dict = args->items[0].dict};
    return self_only(e, args);
}

static bool dict_items(struct eval *e, const struct args *args, struct value *out)
{
    return dict_view(e, args, VIEW_ITEMS, out);
}

static bool dict_keys(struct eval *e, const struct args *args, struct value *out)
{
    return dict_view(e, args, VIEW_KEYS, out);
}

static bool dict_values(struct eval *e, const struct args *args, struct value *out)
{
    return dict_view(e, args, VIEW_VALUES, out);
}

/* The key's value, the default, or none; `*found` is where it stands in the dict. */
static bool look_up(struct eval *e, const struct args *args, const char *what,
                    const struct value **found, struct value *out)
{
    static const char *const names[] = {"self", "key", "default"};
    const struct value *v[3];
    *found = NULL;
    if (!args_take(e, args, what, names, 2, 3, v))
        return false;
    if (!value_hashable(v[1]))
        return eval_fail(e, ERROR_INVALID, "a %s cannot be the key of a dict", value_type(v[1]));
    *found = dict_get(v[0]->dict, v[1]);
    *out = *found ? **found : v[2] ? *v[2] : value_none();
    return true;
}

static bool dict_get_method(struct eval *e, const struct args *args, struct value *out)
{
    const struct value *found;
    return look_up(e, args, "get", &found, out);
}

static bool dict_pop(struct eval *e, const struct args *args, struct value *out)
{
    const struct value *found;
    if (!look_up(e, args, "pop", &found, out))
        return false;
    if (!found && args->n < 3)
        return eval_fail(e, ERROR_INVALID, "pop: the key is not in the dict");
    return !found || dict_remove(&e->arena, args->items[0].dict, found) || eval_fail_memory(e);
}

static bool dict_setdefault(struct eval *e, const struct args *args, struct value *out)
{
    const struct value *found;
    if (!look_up(e, args, "setdefault", &found, out))
        return false;
    return found || put(e, args->items[0].dict, args->items[1], *out);
}

static bool dict_update(struct eval *e, const struct args *args, struct value *out)
{
    struct dict *dict = args->items[0].dict;
    if (args->n > 2 || (args->n == 2 && args->items[1].kind != V_DICT))
        return eval_fail(e, ERROR_INVALID, "update takes one dict");
    if (args->n == 2 && args->items[1].dict != dict)
        for (size_t i = 0; i < args->items[1].dict->n; i++) {
            const struct pair *pair = &args->items[1].dict->pairs[i];
            if (!eval_step(e, 1) || !put(e, dict, pair->key, pair->value))
                return false;
        }
    for (size_t i = 0; i < args->n_named; i++)
        if (!put(e, dict, args->named[i].name, args->named[i].value))
            return false;
    *out = value_none();
    return true;
}

static bool dict_copy(struct eval *e, const struct args *args, struct value *out)
{
    struct dict *copy = dict_new(&e->arena);
    const struct dict *dict = args->items[0].dict;
    if (!copy)
        return eval_fail_memory(e);
    for (size_t i = 0; i < dict->n; i++)
        if (!eval_step(e, 1) || !put(e, copy, dict->pairs[i].key, dict->pairs[i].value))
            return false;
    *out = (struct value){.kind = V_DICT, .dict = copy};
    return self_only(e, args);
}

static bool dict_clear(struct eval *e, const struct args *args, struct value *out)
{
    struct dict *dict = args->items[0].dict;
    size_t message = dict->message;
    *dict = (struct dict){.message = message};
    *out = value_none();
    return self_only(e, args);
}

static bool list_append(struct eval *e, const struct args *args, struct value *out)
{
    *out = value_none();
    return one_more(e, args) && push(e, args->items[0].list, args->items[1]);
}

static bool list_extend(struct eval *e, const struct args *args, struct value *out)
{
    struct list *more;
    *out = value_none();
    if (!one_more(e, args) || !to_list(e, &args->items[1], &more))
        return false;
    for (size_t i = 0; i < more->n; i++)
        if (!push(e, args->items[0].list, more->items[i]))
            return false;
    return true;
}

static bool list_insert(struct eval *e, const struct args *args, struct value *out)
{
    struct list *list = args->items[0].list;
    int64_t i;
    *out = value_none();
    if (args->n != 3 || args->n_named)
        return eval_fail(e, ERROR_INVALID, "insert takes a position and a value");
    if (!arg_int(e, &args->items[1], "insert", 0, &i) || !eval_step(e, list->n / 8) ||
        !push(e, list, args->items[2]))
        return false;
    int64_t n = (int64_t)list->n - 1;
    i = i < 0 ? (i + n < 0 ? 0 : i + n) : i > n ? n : i;
    memmove(list->items + i + 1, list->items + i, (size_t)(n - i) * sizeof *list->items);
    list->items[i] = args->items[2];
    return true;
}

static bool list_pop(struct eval *e, const struct args *args, struct value *out)
{
    static const char *const names[] = {"self", "index"};
    const struct value *v[2];
    struct list *list = args->items[0].list;
    int64_t i, n = (int64_t)list->n;
    if (!args_take(e, args, "pop", names, 1, 2, v) || !arg_int(e, v[1], "pop", -1, &i) ||
        !eval_step(e, list->n / 8))
        return false;
    i += i < 0 ? n : 0;
    if (i < 0 || i >= n)
        return eval_fail(e, ERROR_INVALID, "pop: the list has only %zu items", list->n);
    *out = list->items[i];
    memmove(list->items + i, list->items + i + 1, (size_t)(n - i - 1) * sizeof *list->items);
    list->n--;
    return true;
}

static bool list_clear(struct eval *e, const struct args *args, struct value *out)
{
    *out = value_none();
    args->items[0].list->n = 0;
    return self_only(e, args);
}

static bool list_copy(struct eval *e, const struct args *args, struct value *out)
{
    struct list *copy;
    if (!self_only(e, args) || !to_list(e, &args->items[0], &copy))
        return false;
    *out = list_value(copy);
    return true;
}

static bool list_reverse(struct eval *e, const struct args *args, struct value *out)
{
    struct list *list = args->items[0].list;
    for (size_t i = 0, j = list->n; i + 1 < j; i++, j--) {
        struct value kept = list->items[i];
        list->items[i] = list->items[j - 1];
        list->items[j - 1] = kept;
    }
    *out = value_none();
    return self_only(e, args) && eval_step(e, list->n / 8);
}

/* list.sort(reverse=...): the filter's order with case, in place. */
static bool list_sort(struct eval *e, const struct args *args, struct value *out)
{
    struct value name = value_z("sort"), sorted;
    struct named named[2] = {{value_z("case_sensitive"), value_bool(true)}, {{0}, {0}}};
    struct args call = {args->items, 1, named, 1};
    if (args->n != 1 || args->n_named > 1)
        return eval_fail(e, ERROR_INVALID, "sort takes only the argument 'reverse'");
    if (args->n_named)
        named[call.n_named++] = args->named[0];
    if (!filter_find(&name)->call(e, &call, &sorted))
        return false;
    struct list *list = args->items[0].list;
    memcpy(list->items, sorted.list->items, list->n * sizeof *list->items);
    *out = value_none();
    return true;
}

/* The first index of the argument, n if it is not there. */
static bool position(struct eval *e, const struct args *args, size_t *out)
{
    const struct list *list = args->items[0].list;
    bool same = false;
    if (!one_more(e, args))
        return false;
    for (*out = 0; *out < list->n; ++*out) {
        if (!value_equal(e, &list->items[*out], &args->items[1], &same))
            return false;
        if (same)
            break;
    }
    return true;
}

static bool list_index(struct eval *e, const struct args *args, struct value *out)
{
    size_t i;
    if (!position(e, args, &i))
        return false;
    *out = value_int((int64_t)i);
    return i < args->items[0].list->n ||
           eval_fail(e, ERROR_INVALID, "index: it is not in the list");
}

static bool list_remove(struct eval *e, const struct args *args, struct value *out)
{
    size_t i;
    struct list *list = args->items[0].list;
    *out = value_none();
    if (!position(e, args, &i))
        return false;
    if (i == list->n)
        return eval_fail(e, ERROR_INVALID, "remove: it is not in the list");
    memmove(list->items + i, list->items + i + 1, (list->n - i - 1) * sizeof *list->items);
    list->n--;
    return true;
}

static bool list_count(struct eval *e, const struct args *args, struct value *out)
{
    const struct list *list = args->items[0].list;
    int64_t n = 0;
    if (!one_more(e, args))
        return false;
    for (size_t i = 0; i < list->n; i++) {
        bool same;
        if (!value_equal(e, &list->items[i], &args->items[1], &same))
            return false;
        n += same;
    }
    *out = value_int(n);
    return true;
}

/* Methods that exist in Python, so that the attribute is one, but that no template has use for. */
static bool unsupported(struct eval *e, const struct args *args, struct value *out)
{
    (void)out;
    return eval_fail(e, ERROR_UNSUPPORTED, "this method of %s is not supported in templates",
                     value_type(&args->items[0]));
}

/* One name with its function for each type; a NULL function means that the type has no such method.
 */
struct method_row {
    const char *name;
    struct builtin of_text, of_list, of_tuple, of_dict;
};

#define ROW(name, text, list, tuple, dict)                                                         \
    {name, {name, text}, {name, list}, {name, tuple}, {name, dict}},
#define TEXT_ROW(name)                                                                             \
    {#name, {#name, text_method_##name}, {#name, NULL}, {#name, NULL}, {#name, NULL}},

static const struct method_row rows[] = {
    /* names that more than one type has come first: the first row of a name counts */
    ROW("count", text_method_count, list_count, list_count,
        NULL) ROW("index", text_method_index, list_index, list_index,
                  NULL) ROW("copy", NULL, list_copy, NULL,
                            dict_copy) ROW("clear", NULL, list_clear, NULL,
                                           dict_clear) ROW("pop", NULL, list_pop, NULL, dict_pop)
        TEXT_METHODS(TEXT_ROW) ROW("append", NULL, list_append, NULL, NULL) ROW(
            "extend", NULL, list_extend, NULL, NULL) ROW("insert", NULL, list_insert, NULL, NULL)
            ROW("remove", NULL,
                list_remove, NULL, NULL) ROW("reverse", NULL, list_reverse, NULL,
                                             NULL) ROW("sort", NULL, list_sort, NULL, NULL)
                ROW("get", NULL, NULL, NULL, dict_get_method) ROW(
                    "items", NULL, NULL, NULL, dict_items) ROW("keys", NULL, NULL, NULL, dict_keys)
                    ROW("values", NULL, NULL, NULL,
                        dict_values) ROW("setdefault", NULL, NULL, NULL, dict_setdefault)
                        ROW("update", NULL, NULL, NULL,
                            dict_update) ROW("popitem", NULL, NULL, NULL, unsupported)
                            ROW("fromkeys", NULL, NULL, NULL,
                                unsupported) ROW("encode", unsupported, NULL, NULL, NULL)
                                ROW("expandtabs", unsupported, NULL, NULL,
                                    NULL) ROW("format_map", unsupported, NULL, NULL, NULL)
                                    ROW("isidentifier", unsupported, NULL, NULL,
                                        NULL) ROW("isprintable", unsupported, NULL, NULL, NULL)
                                        ROW("istitle", unsupported, NULL, NULL, NULL)
                                            ROW("maketrans", unsupported, NULL, NULL, NULL)
                                                ROW("translate", unsupported, NULL, NULL, NULL)};

int method_find(const struct value *name)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (value_is_text(name, rows[i].name))
            return (int)i;
    return -1;
}

const struct builtin *method_of(int row, const struct value *object)
{
    const struct builtin *found = NULL;
    if (row < 0)
        return NULL;
    if (object->kind == V_STRING)
        found = &rows[row].of_text;
    else if (object->kind == V_LIST)
        found = &rows[row].of_list;
    else if (object->kind == V_TUPLE)
        found = &rows[row].of_tuple;
    else if (object->kind == V_DICT)
        found = &rows[row].of_dict;
    return found && found->call ? found : NULL;
}
