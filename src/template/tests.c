/* What may stand behind "is", and the lookup of filters and tests by name. */
#include "template/lexer.h"
#include "template/strings.h"
#include "template/text.h"

#include <string.h>

/* Without argument, and with one. */
static bool alone(struct eval *e, const struct args *args, const char *what)
{
    return (args->n == 1 && args->n_named == 0) ||
           eval_fail(e, ERROR_INVALID, "the test '%s' takes no argument", what);
}

static bool with_other(struct eval *e, const struct args *args, const char *what)
{
    return (args->n == 2 && args->n_named == 0) ||
           eval_fail(e, ERROR_INVALID, "the test '%s' takes one argument", what);
}

/* A test that only looks at the value: `condition` over `const struct value *v`. */
#define SIMPLE_TEST(name, condition)                                                               \
    static bool test_##name(struct eval *e, const struct args *args, struct value *out)            \
    {                                                                                              \
        const struct value *v = &args->items[0];                                                   \
        *out = value_bool(condition);                                                              \
        return alone(e, args, #name);                                                              \
    }

static bool is_sequence(const struct value *v)
{
    size_t n;
    return value_len(v, &n) && v->kind != V_VIEW;
}

static bool is_iterable(const struct value *v)
{
    struct iterator it;
    return iterator_init(&it, v);
}

/* All letters of one case and at least one of them. */
static bool has_case(const struct value *v, bool upper)
{
    bool any = false;
    if (v->kind != V_STRING)
        return false;
    for (size_t i = 0, bytes; i < v->len; i += bytes) {
        uint32_t c = text_decode(v->text + i, v->len - i, &bytes);
        if (upper ? text_is_lower(c) : text_is_upper(c))
            return false;
        any |= upper ? text_is_upper(c) : text_is_lower(c);
    }
    return any;
}

SIMPLE_TEST(defined, v->kind != V_UNDEFINED)
SIMPLE_TEST(undefined, v->kind == V_UNDEFINED)
SIMPLE_TEST(none, v->kind == V_NONE)
SIMPLE_TEST(boolean, v->kind == V_BOOL)
SIMPLE_TEST(true, v->kind == V_BOOL && v->boolean)
SIMPLE_TEST(false, v->kind == V_BOOL && !v->boolean)
SIMPLE_TEST(integer, v->kind == V_INT || v->kind == V_BIG)
SIMPLE_TEST(float, v->kind == V_FLOAT)
SIMPLE_TEST(number, v->kind == V_INT || v->kind == V_BIG || v->kind == V_FLOAT || v->kind == V_BOOL)
SIMPLE_TEST(string, v->kind == V_STRING)
SIMPLE_TEST(mapping, v->kind == V_DICT)
SIMPLE_TEST(sequence, is_sequence(v))
SIMPLE_TEST(iterable, is_iterable(v))
SIMPLE_TEST(callable, v->kind == V_MACRO || v->kind == V_BUILTIN || v->kind == V_METHOD ||
                          v->kind == V_JOINER || v->kind == V_LOOP || v->kind == V_UNDEFINED)
SIMPLE_TEST(escaped, v->kind == V_STRING && v->flag)
SIMPLE_TEST(lower, has_case(v, false))
SIMPLE_TEST(upper, has_case(v, true))
SIMPLE_TEST(filter, v->kind == V_STRING && filter_find(v))
SIMPLE_TEST(test, v->kind == V_STRING && test_find(v))

static bool remainder_is(struct eval *e, const struct value *v, const struct value *divisor,
                         int64_t wanted, struct value *out)
{
    struct value rest, expected = value_int(wanted);
    bool same;
    if (!operate(e, '%', v, divisor, &rest) || !value_equal(e, &rest, &expected, &same))
        return false;
    *out = value_bool(same);
    return true;
}

static bool test_odd(struct eval *e, const struct args *args, struct value *out)
{
    struct value two = value_int(2);
    return alone(e, args, "odd") && remainder_is(e, &args->items[0], &two, 1, out);
}

static bool test_even(struct eval *e, const struct args *args, struct value *out)
{
    struct value two = value_int(2);
    return alone(e, args, "even") && remainder_is(e, &args->items[0], &two, 0, out);
}

static bool test_divisibleby(struct eval *e, const struct args *args, struct value *out)
{
    return with_other(e, args, "divisibleby") &&
           remainder_is(e, &args->items[0], &args->items[1], 0, out);
}

static bool test_eq(struct eval *e, const struct args *args, struct value *out)
{
    bool same;
    if (!with_other(e, args, "eq") || !value_equal(e, &args->items[0], &args->items[1], &same))
        return false;
    *out = value_bool(same);
    return true;
}

static bool test_ne(struct eval *e, const struct args *args, struct value *out)
{
    if (!test_eq(e, args, out))
        return false;
    out->boolean = !out->boolean;
    return true;
}

static bool compare(struct eval *e, const struct args *args, int op, struct value *out)
{
    bool is;
    if (!with_other(e, args, "comparison") ||
        !value_compare(e, op, &args->items[0], &args->items[1], &is))
        return false;
    *out = value_bool(is);
    return true;
}

static bool test_lt(struct eval *e, const struct args *args, struct value *out)
{
    return compare(e, args, '<', out);
}

static bool test_le(struct eval *e, const struct args *args, struct value *out)
{
    return compare(e, args, OP_LESS_EQUAL, out);
}

static bool test_gt(struct eval *e, const struct args *args, struct value *out)
{
    return compare(e, args, '>', out);
}

static bool test_ge(struct eval *e, const struct args *args, struct value *out)
{
    return compare(e, args, OP_GREATER_EQUAL, out);
}

static bool test_in(struct eval *e, const struct args *args, struct value *out)
{
    bool is;
    if (!with_other(e, args, "in") || !value_contains(e, &args->items[1], &args->items[0], &is))
        return false;
    *out = value_bool(is);
    return true;
}

/* Python's "is": the same object; equal small values are one object. */
static bool test_sameas(struct eval *e, const struct args *args, struct value *out)
{
    const struct value *a = &args->items[0], *b = &args->items[1];
    bool same = false;
    if (!with_other(e, args, "sameas"))
        return false;
    if (a->kind == b->kind) {
        bool by_value = a->kind == V_BOOL || a->kind == V_INT || a->kind == V_NONE ||
                        a->kind == V_STRING || a->kind == V_FLOAT;
        if (by_value && !value_equal(e, a, b, &same))
            return false;
        if (!by_value)
            same = a->dict == b->dict;
    }
    *out = value_bool(same);
    return true;
}

static const struct builtin tests[] = {
    {"defined", test_defined},
    {"undefined", test_undefined},
    {"none", test_none},
    {"boolean", test_boolean},
    {"true", test_true},
    {"false", test_false},
    {"integer", test_integer},
    {"float", test_float},
    {"number", test_number},
    {"string", test_string},
    {"mapping", test_mapping},
    {"sequence", test_sequence},
    {"iterable", test_iterable},
    {"callable", test_callable},
    {"escaped", test_escaped},
    {"lower", test_lower},
    {"upper", test_upper},
    {"filter", test_filter},
    {"test", test_test},
    {"odd", test_odd},
    {"even", test_even},
    {"divisibleby", test_divisibleby},
    {"sameas", test_sameas},
    {"in", test_in},
    {"eq", test_eq},
    {"equalto", test_eq},
    {"==", test_eq},
    {"ne", test_ne},
    {"!=", test_ne},
    {"lt", test_lt},
    {"lessthan", test_lt},
    {"<", test_lt},
    {"le", test_le},
    {"<=", test_le},
    {"gt", test_gt},
    {"greaterthan", test_gt},
    {">", test_gt},
    {"ge", test_ge},
    {">=", test_ge},
    {NULL, NULL},
};

static const struct builtin *find_in(const struct builtin *table, const struct value *name)
{
    for (; table->name; table++)
        if (value_is_text(name, table->name))
            return table;
    return NULL;
}

const struct builtin *test_find(const struct value *name)
{
    return find_in(tests, name);
}

const struct builtin *filter_find(const struct value *name)
{
    const struct builtin *const tables[] = {text_filters, list_filters, pick_filters};
    const struct builtin *found = NULL;
    for (size_t i = 0; i < 3 && !found; i++)
        found = find_in(tables[i], name);
    return found;
}
