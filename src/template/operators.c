/* Python's operators on values. */
#include "template/eval.h"
#include "template/lexer.h"
#include "template/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool equal_at(struct eval *e, const struct value *a, const struct value *b, int depth,
                     bool *out);

static bool equal_lists(struct eval *e, const struct list *a, const struct list *b, int depth,
                        bool *out)
{
    *out = a->n == b->n;
    for (size_t i = 0; i < a->n && *out; i++)
        if (!equal_at(e, &a->items[i], &b->items[i], depth, out))
            return false;
    return true;
}

static bool equal_dicts(struct eval *e, const struct dict *a, const struct dict *b, int depth,
                        bool *out)
{
    *out = a->n == b->n;
    for (size_t i = 0; i < a->n && *out; i++) {
        const struct value *other = dict_get(b, &a->pairs[i].key);
        *out = other != NULL;
        if (other && !equal_at(e, &a->pairs[i].value, other, depth, out))
            return false;
    }
    return true;
}

static bool equal_at(struct eval *e, const struct value *a, const struct value *b, int depth,
                     bool *out)
{
    double x, y;
    int64_t i, j;
    if (depth > EVAL_MAX_NESTING)
        return eval_fail(e, ERROR_LIMIT, "values nested more than %d deep are compared",
                         EVAL_MAX_NESTING);
    if (!eval_step(e, 1))
        return false;
    if (value_integer(a, &i) && value_integer(b, &j)) {
        *out = i == j;
    } else if (value_number(a, &x)) {
        *out = value_number(b, &y) && x == y;
    } else if (a->kind != b->kind) {
        *out = false;
    } else if (a->kind == V_STRING || a->kind == V_BIG) {
        *out = a->len == b->len && memcmp(a->text, b->text, a->len) == 0;
        return eval_step(e, a->len / 64);
    } else if (a->kind == V_LIST || a->kind == V_TUPLE) {
        return a->list == b->list ? (*out = true)
                                  : equal_lists(e, a->list, b->list, depth + 1, out);
    } else if (a->kind == V_DICT) {
        return a->dict == b->dict ? (*out = true)
                                  : equal_dicts(e, a->dict, b->dict, depth + 1, out);
    } else if (a->kind == V_RANGE) {
        *out = a->range->n == b->range->n &&
               (a->range->n == 0 || (a->range->start == b->range->start &&
                                     (a->range->n == 1 || a->range->step == b->range->step)));
    } else if (a->kind == V_NONE || a->kind == V_UNDEFINED) {
        *out = true;
    } else {
        *out = a->dict == b->dict;
    }
    return true;
}

bool value_equal(struct eval *e, const struct value *a, const struct value *b, bool *out)
{
    return equal_at(e, a, b, 0, out);
}

static const char *operator_text(int op, char text[3])
{
    text[0] = (char)(op > 0xFF ? op >> 8 : op);
    text[1] = (char)(op > 0xFF ? op & 0xFF : '\0');
    text[2] = '\0';
    return text;
}

static bool fail_operands(struct eval *e, int op, const struct value *a, const struct value *b)
{
    char text[3];
    if (a->kind == V_UNDEFINED || b->kind == V_UNDEFINED)
        return eval_fail_undefined(e, a->kind == V_UNDEFINED ? a : b);
    if (a->kind == V_BIG || b->kind == V_BIG)
        return eval_fail(e, ERROR_UNSUPPORTED, "'%s' on an integer that does not fit 64 bits",
                         operator_text(op, text));
    return eval_fail(e, ERROR_INVALID, "'%s' does not work between %s and %s",
                     operator_text(op, text), value_type(a), value_type(b));
}

/* Like value_number, and the nearest double of a big integer. */
static bool rough_number(const struct value *v, double *out)
{
    if (v->kind != V_BIG)
        return value_number(v, out);
    *out = strtod(v->text, NULL); /* a NUL stands behind the digits of a literal and of JSON */
    return true;
}

/* -1, 0, 1 into `*order`, 2 if a NaN is involved. */
static bool order_of(struct eval *e, int op, const struct value *a, const struct value *b,
                     int depth, int *order)
{
    double x, y;
    int64_t i, j;
    if (value_integer(a, &i) && value_integer(b, &j)) {
        *order = (i > j) - (i < j);
        return true;
    }
    if (rough_number(a, &x) && rough_number(b, &y)) {
        *order = isnan(x) || isnan(y) ? 2 : (x > y) - (x < y);
        return true;
    }
    if (a->kind == V_STRING && b->kind == V_STRING) {
        size_t n = a->len < b->len ? a->len : b->len;
        int c = memcmp(a->text, b->text, n);
        *order = c ? (c > 0) - (c < 0) : (a->len > b->len) - (a->len < b->len);
        return eval_step(e, n / 64);
    }
    if (a->kind != b->kind || (a->kind != V_LIST && a->kind != V_TUPLE))
        return fail_operands(e, op, a, b);
    if (depth > EVAL_MAX_NESTING)
        return eval_fail(e, ERROR_LIMIT, "values nested more than %d deep are compared",
                         EVAL_MAX_NESTING);
    for (size_t k = 0; k < a->list->n && k < b->list->n; k++) {
        bool same;
        if (!value_equal(e, &a->list->items[k], &b->list->items[k], &same))
            return false;
        if (!same)
            return order_of(e, op, &a->list->items[k], &b->list->items[k], depth + 1, order);
    }
    *order = (a->list->n > b->list->n) - (a->list->n < b->list->n);
    return true;
}

bool value_compare(struct eval *e, int op, const struct value *a, const struct value *b, bool *out)
{
    int order;
    if (!eval_step(e, 1) || !order_of(e, op, a, b, 0, &order))
        return false;
    switch (op) {
    case '<':
        *out = order == -1;
        break;
    case '>':
        *out = order == 1;
        break;
    case OP_LESS_EQUAL:
        *out = order <= 0;
        break;
    default:
        *out = order == 0 || order == 1;
        break;
    }
    return true;
}

bool value_contains(struct eval *e, const struct value *container, const struct value *item,
                    bool *out)
{
    *out = false;
    if (container->kind == V_STRING) {
        if (item->kind == V_UNDEFINED)
            return eval_fail_undefined(e, item);
        if (item->kind != V_STRING)
            return eval_fail(e, ERROR_INVALID, "'in' a string needs a string on its left, not %s",
                             value_type(item));
        *out = item->len == 0 || memmem(container->text, container->len, item->text, item->len);
        return eval_step(e, container->len / 64);
    }
    if (container->kind == V_DICT || (container->kind == V_VIEW && container->flag == VIEW_KEYS)) {
        if (!value_hashable(item))
            return eval_fail(e, ERROR_INVALID, "a %s cannot be the key of a dict",
                             value_type(item));
        *out = dict_get(container->dict, item) != NULL;
        return true;
    }
    struct iterator it;
    struct value v;
    int got = 0;
    if (!iterator_init(&it, container))
        return eval_fail(e, ERROR_INVALID, "'in' does not work on a %s", value_type(container));
    while (!*out && (got = iterator_next(&e->arena, &it, &v)) == 1)
        if (!value_equal(e, &v, item, out))
            return false;
    return got >= 0 || eval_fail_memory(e);
}

/* ---- concatenation ---- */

bool concatenate(struct eval *e, const struct value *a, const struct value *b, struct value *out)
{
    size_t total = (size_t)a->len + b->len;
    uint8_t safe = a->flag || b->flag;
    if (!eval_step(e, b->len / 64))
        return false;
    if (total > EVAL_MAX_TEXT)
        return eval_fail(e, ERROR_LIMIT, "a string is longer than its limit of %d MiB",
                         EVAL_MAX_TEXT >> 20);
    if (a->len == 0 || b->len == 0) {
        *out = a->len ? *a : *b;
        out->flag = safe;
        return true;
    }
    /* A string that was just concatenated grows in place, so that building one piece by piece costs
     * its length and not its square. Nobody else's bytes are touched. */
    if (a->text + a->len == e->tip && b->len <= e->tip_room) {
        memcpy((char *)(uintptr_t)e->tip, b->text, b->len);
        e->tip += b->len;
        e->tip_room -= b->len;
        *out = value_text(a->text, total);
        out->flag = safe;
        return true;
    }
    size_t room = a->text + a->len == e->tip ? total : 64;
    char *text = arena_alloc(&e->arena, total + room);
    if (!text)
        return eval_fail_memory(e);
    memcpy(text, a->text, a->len);
    memcpy(text + a->len, b->text, b->len);
    e->tip = text + total;
    e->tip_room = room;
    *out = value_text(text, total);
    out->flag = safe;
    return eval_step(e, a->len / 64);
}

static bool add_text(struct eval *e, const struct value *a, const struct value *b,
                     struct value *out)
{
    struct value x = *a, y = *b;
    /* A safe string escapes what is not. */
    if (a->flag && !b->flag && !escape_html(e, b, &y))
        return false;
    if (b->flag && !a->flag && !escape_html(e, a, &x))
        return false;
    return concatenate(e, &x, &y, out);
}

static bool join_lists(struct eval *e, const struct value *a, const struct value *b,
                       struct value *out)
{
    size_t n = a->list->n + b->list->n;
    struct list *list = list_new(&e->arena, n);
    if (!list)
        return eval_fail_memory(e);
    memcpy(list->items, a->list->items, a->list->n * sizeof *list->items);
    memcpy(list->items + a->list->n, b->list->items, b->list->n * sizeof *list->items);
    list->n = n;
    *out = (struct value){.kind = a->kind, .list = list};
    return eval_step(e, n / 8);
}

static bool repeat(struct eval *e, const struct value *a, int64_t times, struct value *out)
{
    size_t one = a->kind == V_STRING ? a->len : a->list->n;
    size_t n = times > 0 ? (size_t)times : 0, total;
    if (__builtin_mul_overflow(one, n, &total) || total > EVAL_MAX_TEXT ||
        !eval_step(e, total / 64))
        return eval_fail(e, ERROR_LIMIT, "a value repeated %zu times is too long", n);
    if (one == 0)
        n = 0;
    if (a->kind == V_STRING) {
        char *text = arena_alloc(&e->arena, total);
        if (!text)
            return eval_fail_memory(e);
        for (size_t i = 0; i < n; i++)
            memcpy(text + i * one, a->text, one);
        *out = value_text(text, total);
        out->flag = a->flag;
        return true;
    }
    struct list *list = list_new(&e->arena, total);
    if (!list)
        return eval_fail_memory(e);
    for (size_t i = 0; i < n; i++)
        memcpy(list->items + i * one, a->list->items, one * sizeof *list->items);
    list->n = total;
    *out = (struct value){.kind = a->kind, .list = list};
    return true;
}

/* ---- arithmetic ---- */

static bool fail_overflow(struct eval *e)
{
    return eval_fail(e, ERROR_UNSUPPORTED, "the result of integer arithmetic does not fit 64 bits");
}

static bool fail_zero(struct eval *e)
{
    return eval_fail(e, ERROR_INVALID, "division by zero");
}

static bool integer_power(struct eval *e, int64_t base, int64_t power, struct value *out)
{
    if (power < 0) {
        if (base == 0)
            return fail_zero(e);
        *out = value_float(pow((double)base, (double)power));
        return true;
    }
    int64_t result = 1;
    while (power > 0) {
        if ((power & 1) && __builtin_mul_overflow(result, base, &result))
            return fail_overflow(e);
        power >>= 1;
        if (power && __builtin_mul_overflow(base, base, &base))
            return fail_overflow(e);
    }
    *out = value_int(result);
    return true;
}

static bool operate_integers(struct eval *e, int op, int64_t a, int64_t b, struct value *out)
{
    int64_t r = 0;
    switch (op) {
    case '+':
        if (__builtin_add_overflow(a, b, &r))
            return fail_overflow(e);
        break;
    case '-':
        if (__builtin_sub_overflow(a, b, &r))
            return fail_overflow(e);
        break;
    case '*':
        if (__builtin_mul_overflow(a, b, &r))
            return fail_overflow(e);
        break;
    case '/':
        if (b == 0)
            return fail_zero(e);
        *out = value_float((double)a / (double)b);
        return true;
    case OP_POWER:
        return integer_power(e, a, b, out);
    default: /* // and % round towards minus infinity */
        if (b == 0)
            return fail_zero(e);
        if (a == INT64_MIN && b == -1) {
            if (op == OP_FLOOR_DIVIDE)
                return fail_overflow(e);
            break;
        }
        bool adjust = a % b != 0 && (a % b < 0) != (b < 0);
        r = op == OP_FLOOR_DIVIDE ? a / b - adjust : a % b + (adjust ? b : 0);
        break;
    }
    *out = value_int(r);
    return true;
}

static bool operate_floats(struct eval *e, int op, double a, double b, struct value *out)
{
    double r;
    if (b == 0 && (op == '/' || op == '%' || op == OP_FLOOR_DIVIDE))
        return fail_zero(e);
    switch (op) {
    case '+':
        r = a + b;
        break;
    case '-':
        r = a - b;
        break;
    case '*':
        r = a * b;
        break;
    case '/':
        r = a / b;
        break;
    case OP_POWER:
        r = pow(a, b);
        if ((a == 0 && b < 0) || (isnan(r) && !isnan(a) && !isnan(b)))
            return eval_fail(e, ERROR_INVALID, "the power of these numbers is not a real number");
        if (isinf(r) && !isinf(a) && !isinf(b))
            return eval_fail(e, ERROR_INVALID, "the result of a power is too large");
        break;
    default: {
        double rest = fmod(a, b);
        if (rest != 0 && (rest < 0) != (b < 0))
            rest += b;
        else if (rest == 0)
            rest = copysign(0.0, b);
        if (op == '%') {
            r = rest;
        } else {
            double quotient = (a - rest) / b;
            r = quotient != 0 ? floor(quotient) : copysign(0.0, a / b);
            if (quotient - r > 0.5)
                r += 1.0;
        }
        break;
    }
    }
    *out = value_float(r);
    return true;
}

bool operate(struct eval *e, int op, const struct value *a, const struct value *b,
             struct value *out)
{
    int64_t i, j;
    double x, y;
    if (op == '%' && a->kind == V_STRING)
        return format_percent(e, a, b, out);
    if (value_integer(a, &i) && value_integer(b, &j))
        return operate_integers(e, op, i, j, out);
    if (value_number(a, &x) && value_number(b, &y))
        return operate_floats(e, op, x, y, out);
    if (op == '+' && a->kind == b->kind) {
        if (a->kind == V_STRING)
            return add_text(e, a, b, out);
        if (a->kind == V_LIST || a->kind == V_TUPLE)
            return join_lists(e, a, b, out);
    }
    bool repeats_a = a->kind == V_STRING || a->kind == V_LIST || a->kind == V_TUPLE;
    bool repeats_b = b->kind == V_STRING || b->kind == V_LIST || b->kind == V_TUPLE;
    if (op == '*' && repeats_a && value_integer(b, &j))
        return repeat(e, a, j, out);
    if (op == '*' && repeats_b && value_integer(a, &i))
        return repeat(e, b, i, out);
    return fail_operands(e, op, a, b);
}

bool operate_unary(struct eval *e, int op, const struct value *a, struct value *out)
{
    int64_t i;
    if (a->kind == V_FLOAT) {
        *out = value_float(op == '-' ? -a->number : a->number);
    } else if (value_integer(a, &i)) {
        if (op == '-' && __builtin_sub_overflow(0, i, &i))
            return fail_overflow(e);
        *out = value_int(i);
    } else if (a->kind == V_UNDEFINED) {
        return eval_fail_undefined(e, a);
    } else {
        return eval_fail(e, ERROR_INVALID, "unary '%c' does not work on a %s", op, value_type(a));
    }
    return true;
}
