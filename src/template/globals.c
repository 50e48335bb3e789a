/* Functions that every template can call by name. */
#include "template/eval.h"

#include <string.h>
#include <time.h>

static bool global_range(struct eval *e, const struct args *args, struct value *out)
{
    int64_t part[3] = {0, 0, 1};
    if (args->n < 1 || args->n > 3 || args->n_named)
        return eval_fail(e, ERROR_INVALID, "range takes one to three integers");
    for (size_t i = 0; i < args->n; i++)
        if (!arg_int(e, &args->items[i], "range", 0, &part[args->n == 1 ? 1 : i]))
            return false;
    if (part[2] == 0)
        return eval_fail(e, ERROR_INVALID, "range: the step is 0");
    /* In unsigned arithmetic, where the distance of any two bounds fits. */
    uint64_t n = 0, distance = 0, stride = 0;
    if (part[2] > 0 && part[1] > part[0]) {
        distance = (uint64_t)part[1] - (uint64_t)part[0];
        stride = (uint64_t)part[2];
    } else if (part[2] < 0 && part[0] > part[1]) {
        distance = (uint64_t)part[0] - (uint64_t)part[1];
        stride = 0 - (uint64_t)part[2];
    }
    if (distance)
        n = (distance - 1) / stride + 1;
    if (n > EVAL_MAX_RANGE)
        return eval_fail(e, ERROR_LIMIT, "range has %llu items; at most %d are allowed",
                         (unsigned long long)n, EVAL_MAX_RANGE);
    struct range *range = arena_alloc(&e->arena, sizeof *range);
    if (!range)
        return eval_fail_memory(e);
    *range = (struct range){part[0], part[1], part[2], (size_t)n};
    *out = (struct value){.kind = V_RANGE, .range = range};
    return true;
}

/* dict(...) and namespace(...): from a mapping or pairs, then the named arguments. */
static bool make_dict(struct eval *e, const struct args *args, struct value *out)
{
    struct dict *dict = dict_new(&e->arena);
    struct list *pairs;
    if (!dict)
        return eval_fail_memory(e);
    if (args->n > 1)
        return eval_fail(e, ERROR_INVALID, "a dict takes one positional argument at most");
    if (args->n == 1 && args->items[0].kind == V_DICT) {
        const struct dict *from = args->items[0].dict;
        for (size_t i = 0; i < from->n; i++)
            if (!eval_step(e, 1) || !put(e, dict, from->pairs[i].key, from->pairs[i].value))
                return false;
    } else if (args->n == 1) {
        if (!to_list(e, &args->items[0], &pairs))
            return false;
        for (size_t i = 0; i < pairs->n; i++) {
            struct list *pair;
            if (!to_list(e, &pairs->items[i], &pair))
                return false;
            if (pair->n != 2)
                return eval_fail(e, ERROR_INVALID, "dict: item %zu is no pair", i);
            if (!put(e, dict, pair->items[0], pair->items[1]))
                return false;
        }
    }
    for (size_t i = 0; i < args->n_named; i++)
        if (!put(e, dict, args->named[i].name, args->named[i].value))
            return false;
    *out = (struct value){.kind = V_DICT, .dict = dict};
    return true;
}

static bool global_namespace(struct eval *e, const struct args *args, struct value *out)
{
    if (!make_dict(e, args, out))
        return false;
    out->kind = V_NAMESPACE;
    return true;
}

static bool global_joiner(struct eval *e, const struct args *args, struct value *out)
{
    static const char *const names[] = {"sep"};
    const struct value *v[1];
    if (!args_take(e, args, "joiner", names, 0, 1, v))
        return false;
    struct joiner *joiner = arena_alloc(&e->arena, sizeof *joiner);
    if (!joiner)
        return eval_fail_memory(e);
    joiner->separator = v[0] ? *v[0] : value_text(", ", 2);
    *out = (struct value){.kind = V_JOINER, .joiner = joiner};
    return true;
}

static bool global_raise_exception(struct eval *e, const struct args *args, struct value *out)
{
    static const char *const names[] = {"message"};
    const struct value *v[1];
    struct value text;
    (void)out;
    if (!args_take(e, args, "raise_exception", names, 1, 1, v) || !to_text(e, v[0], &text))
        return false;
    /* The template's author wrote a sentence for whoever sent the messages: it stands alone. */
    error_set(e->error, ERROR_INVALID, "%.*s", (int)text.len, text.text);
    return false;
}

static bool global_strftime_now(struct eval *e, const struct args *args, struct value *out)
{
    static const char *const names[] = {"format"};
    const struct value *v[1];
    struct value format;
    struct tm local;
    char text[1024];
    if (!args_take(e, args, "strftime_now", names, 1, 1, v) ||
        !arg_text(e, v[0], "strftime_now", "", &format))
        return false;
    time_t now = e->now ? (time_t)e->now : time(NULL);
    char *copy = arena_copy(&e->arena, format.text, format.len);
    if (!copy)
        return eval_fail_memory(e);
    if (!localtime_r(&now, &local))
        return eval_fail(e, ERROR_INVALID, "the time %lld has no date", (long long)now);
    size_t n = *copy ? strftime(text, sizeof text, copy, &local) : 0;
    if (n == 0 && *copy)
        return eval_fail(e, ERROR_LIMIT, "strftime_now: the date is longer than %zu bytes or empty",
                         sizeof text);
    struct str built = {0};
    str_append(&built, text, n);
    return take_text(e, &built, out);
}

bool globals_add(struct arena *arena, struct dict *context)
{
    static const struct builtin globals[] = {
        {"range", global_range},
        {"dict", make_dict},
        {"namespace", global_namespace},
        {"joiner", global_joiner},
        {"raise_exception", global_raise_exception},
        {"strftime_now", global_strftime_now},
    };
    for (size_t i = 0; i < sizeof globals / sizeof globals[0]; i++) {
        struct value v = {.kind = V_BUILTIN, .builtin = &globals[i]};
        if (!dict_put(arena, context, value_z(globals[i].name), v))
            return false;
    }
    return true;
}
