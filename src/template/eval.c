/* Expressions. */
#include "template/eval.h"

#include "template/lexer.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

bool eval_fail(struct eval *e, enum status status, const char *format, ...)
{
    char what[sizeof e->error->message];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    error_set(e->error, status, "chat template line %d: %s", e->line, what);
    return false;
}

bool eval_fail_memory(struct eval *e)
{
    return eval_fail(e, ERROR_LIMIT, "the render needs more than its limit of %d MiB of memory",
                     EVAL_MAX_MEMORY >> 20);
}

bool eval_fail_undefined(struct eval *e, const struct value *v)
{
    const struct undefined *u = v->undefined;
    struct str name = {0};
    if (u->hint) {
        if (u->line)
            return eval_fail(e, ERROR_INVALID, "%s (line %d)", u->hint, u->line);
        return eval_fail(e, ERROR_INVALID, "%s", u->hint);
    }
    if (!write_repr(e, &name, &u->name)) {
        str_done(&name);
        return false;
    }
    const char *object = u->object_type && strcmp(u->object_type, "None") != 0 ? " object" : "";
    if (!u->object_type)
        eval_fail(e, ERROR_INVALID, "%s is undefined", str_z(&name));
    else if (u->name.kind == V_STRING)
        eval_fail(e, ERROR_INVALID, "'%s%s' has no attribute %s", u->object_type, object,
                  str_z(&name));
    else
        eval_fail(e, ERROR_INVALID, "%s%s has no element %s", u->object_type, object, str_z(&name));
    str_done(&name);
    return false;
}

bool eval_step(struct eval *e, size_t n)
{
    e->steps += n;
    if (e->steps <= EVAL_MAX_STEPS)
        return true;
    return eval_fail(e, ERROR_LIMIT, "the render takes more than its limit of %d steps",
                     EVAL_MAX_STEPS);
}

static bool eval_name(struct eval *e, const struct node *n, struct value *out)
{
    struct activation *a = e->activation;
    for (int up = n->ref.up; up > 0; up--)
        a = a->up;
    *out = a->slots[n->ref.slot];
    return out->kind != V_MISSING || undefined_name(e, &n->value, out);
}

static bool eval_sequence(struct eval *e, const struct node *n, struct value *out)
{
    struct list *list = list_new(&e->arena, n->list.n);
    if (!list)
        return eval_fail_memory(e);
    for (size_t i = 0; i < n->list.n; i++) {
        if (!eval_expression(e, n->list.at[i], &list->items[i]))
            return false;
        list->n++;
    }
    *out = (struct value){.kind = n->kind == N_LIST ? V_LIST : V_TUPLE, .list = list};
    return true;
}

static bool eval_dict(struct eval *e, const struct node *n, struct value *out)
{
    struct dict *dict = dict_new(&e->arena);
    if (!dict)
        return eval_fail_memory(e);
    for (size_t i = 0; i + 1 < n->list.n; i += 2) {
        struct value key, v;
        if (!eval_expression(e, n->list.at[i], &key) ||
            !eval_expression(e, n->list.at[i + 1], &v) || !put(e, dict, key, v))
            return false;
    }
    *out = (struct value){.kind = V_DICT, .dict = dict};
    return true;
}

static bool eval_concat(struct eval *e, const struct node *n, struct value *out)
{
    *out = value_text("", 0);
    for (size_t i = 0; i < n->list.n; i++) {
        struct value v;
        if (!eval_expression(e, n->list.at[i], &v) || !to_text(e, &v, &v))
            return false;
        v.flag = 0; /* ~ joins plain strings: a safe mark is lost and nothing is escaped */
        if (!concatenate(e, out, &v, out))
            return false;
    }
    return true;
}

static bool compare_once(struct eval *e, int op, const struct value *a, const struct value *b,
                         bool *out)
{
    bool ok;
    switch (op) {
    case OP_EQUAL:
        return value_equal(e, a, b, out);
    case OP_NOT_EQUAL:
        ok = value_equal(e, a, b, out);
        *out = !*out;
        return ok;
    case OP_IN:
        return value_contains(e, b, a, out);
    case OP_NOT_IN:
        ok = value_contains(e, b, a, out);
        *out = !*out;
        return ok;
    default:
        return value_compare(e, op, a, b, out);
    }
}

static bool eval_compare(struct eval *e, const struct node *n, struct value *out)
{
    struct value a, b;
    bool is = true;
    if (!eval_expression(e, n->a, &a))
        return false;
    for (size_t i = 0; i < n->list.n && is; i++) {
        const struct node *operand = n->list.at[i];
        if (!eval_expression(e, operand->a, &b) || !compare_once(e, operand->op, &a, &b, &is))
            return false;
        a = b;
    }
    *out = value_bool(is);
    return true;
}

static bool eval_conditional(struct eval *e, const struct node *n, struct value *out)
{
    struct value test;
    if (!eval_expression(e, n->a, &test))
        return false;
    if (value_truth(&test))
        return eval_expression(e, n->b, out);
    if (n->c)
        return eval_expression(e, n->c, out);
    return undefined_hint(e, "the inline if-expression was false and has no else", out);
}

static bool eval_item(struct eval *e, const struct node *n, struct value *out)
{
    struct value of, index;
    if (!eval_expression(e, n->a, &of))
        return false;
    if (n->b->kind != N_SLICE)
        return eval_expression(e, n->b, &index) && get_item(e, &of, &index, out);
    const struct node *nodes[3] = {n->b->a, n->b->b, n->b->c};
    struct value part[3];
    for (int i = 0; i < 3; i++) {
        part[i] = value_none();
        if (nodes[i] && !eval_expression(e, nodes[i], &part[i]))
            return false;
    }
    return get_slice(e, &of, part, out);
}

/* The items of "*list" as positional arguments and of "**dict" as named ones. */
static bool spread(struct eval *e, const struct node *n, struct list *items, struct dict *named)
{
    struct value v, item;
    struct iterator it;
    int got;
    if (!eval_expression(e, n->a, &v))
        return false;
    if (n->op == OP_POWER) {
        if (v.kind != V_DICT)
            return eval_fail(e, ERROR_INVALID, "the argument after ** is a %s, not a dict",
                             value_type(&v));
        for (size_t i = 0; i < v.dict->n; i++)
            if (!put(e, named, v.dict->pairs[i].key, v.dict->pairs[i].value))
                return false;
        return true;
    }
    if (!iterator_init(&it, &v))
        return eval_fail(e, ERROR_INVALID, "the argument after * is a %s, not a list",
                         value_type(&v));
    while ((got = iterator_next(&e->arena, &it, &item)) == 1)
        if (!push(e, items, item))
            return false;
    return got == 0 || eval_fail_memory(e);
}

/* The arguments of a call, filter or test; `self` (or NULL) becomes the first. */
static bool eval_args(struct eval *e, const struct nodes *nodes, const struct value *self,
                      struct args *out)
{
    struct list *items = list_new(&e->arena, nodes->n + 1);
    struct dict *named = NULL;
    if (!items || (self && !push(e, items, *self)))
        return eval_fail_memory(e);
    for (size_t i = 0; i < nodes->n; i++) {
        const struct node *n = nodes->at[i];
        struct value v;
        if (n->kind != N_KEYWORD && n->kind != N_SPREAD) {
            if (!eval_expression(e, n, &v) || !push(e, items, v))
                return false;
            continue;
        }
        if (!named && !(named = dict_new(&e->arena)))
            return eval_fail_memory(e);
        if (n->kind == N_SPREAD) {
            if (!spread(e, n, items, named))
                return false;
            continue;
        }
        if (dict_get(named, &n->value))
            return eval_fail(e, ERROR_INVALID, "the argument '%.*s' is given twice",
                             (int)n->value.len, n->value.text);
        if (!eval_expression(e, n->a, &v) || !put(e, named, n->value, v))
            return false;
    }
    *out = (struct args){.items = items->items, .n = items->n};
    if (!named)
        return true;
    out->named = arena_alloc_array(&e->arena, named->n + 1, sizeof *out->named);
    if (!out->named)
        return eval_fail_memory(e);
    for (size_t i = 0; i < named->n; i++)
        out->named[out->n_named++] = (struct named){named->pairs[i].key, named->pairs[i].value};
    return true;
}

/* Adds the caller() of a call block. */
static bool add_caller(struct eval *e, struct args *args, const struct value *caller)
{
    if (!caller)
        return true;
    struct named *named = arena_alloc_array(&e->arena, args->n_named + 1, sizeof *named);
    if (!named)
        return eval_fail_memory(e);
    if (args->n_named)
        memcpy(named, args->named, args->n_named * sizeof *named);
    named[args->n_named++] = (struct named){value_z("caller"), *caller};
    args->named = named;
    return true;
}

bool eval_call(struct eval *e, const struct value *callee, struct args *args, struct value *out)
{
    switch ((enum value_kind)callee->kind) {
    case V_MACRO:
        return macro_call(e, callee->macro, args, out);
    case V_BUILTIN:
        return callee->builtin->call(e, args, out);
    case V_METHOD: {
        struct value *items = arena_alloc_array(&e->arena, args->n + 1, sizeof *items);
        if (!items)
            return eval_fail_memory(e);
        items[0] = callee->method->self;
        memcpy(items + 1, args->items, args->n * sizeof *items);
        struct args with_self = {items, args->n + 1, args->named, args->n_named};
        return callee->method->method->call(e, &with_self, out);
    }
    case V_JOINER:
        *out = callee->joiner->used ? callee->joiner->separator : value_text("", 0);
        callee->joiner->used = true;
        return true;
    case V_UNDEFINED:
        return eval_fail_undefined(e, callee);
    default:
        return eval_fail(e, ERROR_INVALID, "a value of type %s cannot be called",
                         value_type(callee));
    }
}

bool eval_call_node(struct eval *e, const struct node *n, const struct value *caller,
                    struct value *out)
{
    struct value callee, object;
    struct args args;
    if (n->a->kind == N_ATTRIBUTE && n->a->method >= 0) {
        /* A method is called without making the bound object first. */
        if (!eval_expression(e, n->a->a, &object))
            return false;
        const struct builtin *method = method_of(n->a->method, &object);
        if (method)
            return eval_args(e, &n->list, &object, &args) && add_caller(e, &args, caller) &&
                   method->call(e, &args, out);
        if (!get_attribute(e, &object, &n->a->value, n->a->method, &callee))
            return false;
    } else if (!eval_expression(e, n->a, &callee)) {
        return false;
    }
    if (!eval_args(e, &n->list, NULL, &args) || !add_caller(e, &args, caller))
        return false;
    e->line = n->line;
    return eval_call(e, &callee, &args, out);
}

static bool eval_filter(struct eval *e, const struct node *n, struct value *out)
{
    struct value input = e->block_input;
    struct args args;
    if (n->a && !eval_expression(e, n->a, &input))
        return false;
    e->line = n->line;
    if (!n->builtin)
        return eval_fail(e, ERROR_UNSUPPORTED, "the filter '%.*s' is not known", (int)n->value.len,
                         n->value.text);
    return eval_args(e, &n->list, &input, &args) && n->builtin->call(e, &args, out);
}

bool eval_filters(struct eval *e, const struct node *n, const struct value *input,
                  struct value *out)
{
    struct value kept = e->block_input;
    e->block_input = *input;
    bool ok = eval_expression(e, n, out);
    e->block_input = kept;
    return ok;
}

static bool eval_test(struct eval *e, const struct node *n, struct value *out)
{
    struct value v;
    struct args args;
    if (!eval_expression(e, n->a, &v))
        return false;
    if (!n->builtin)
        return eval_fail(e, ERROR_UNSUPPORTED, "the test '%.*s' is not known", (int)n->value.len,
                         n->value.text);
    if (!eval_args(e, &n->list, &v, &args) || !n->builtin->call(e, &args, out))
        return false;
    *out = value_bool(value_truth(out) != (n->op == 1));
    return true;
}

static bool eval_kind(struct eval *e, const struct node *n, struct value *out)
{
    struct value a, b;
    switch (n->kind) {
    case N_CONST:
        *out = n->value;
        return true;
    case N_NAME:
        return eval_name(e, n, out);
    case N_TUPLE:
    case N_LIST:
        return eval_sequence(e, n, out);
    case N_DICT:
        return eval_dict(e, n, out);
    case N_UNARY:
        return eval_expression(e, n->a, &a) && operate_unary(e, n->op, &a, out);
    case N_NOT:
        if (!eval_expression(e, n->a, &a))
            return false;
        *out = value_bool(!value_truth(&a));
        return true;
    case N_BINARY:
        return eval_expression(e, n->a, &a) && eval_expression(e, n->b, &b) &&
               operate(e, n->op, &a, &b, out);
    case N_AND:
    case N_OR:
        if (!eval_expression(e, n->a, out))
            return false;
        return value_truth(out) == (n->kind == N_OR) || eval_expression(e, n->b, out);
    case N_CONCAT:
        return eval_concat(e, n, out);
    case N_COMPARE:
        return eval_compare(e, n, out);
    case N_CONDITIONAL:
        return eval_conditional(e, n, out);
    case N_ATTRIBUTE:
        return eval_expression(e, n->a, &a) && get_attribute(e, &a, &n->value, n->method, out);
    case N_ITEM:
        return eval_item(e, n, out);
    case N_SLICE:
        return eval_fail(e, ERROR_UNSUPPORTED, "a slice inside a tuple subscript");
    case N_CALL:
        return eval_call_node(e, n, NULL, out);
    case N_FILTER:
        return eval_filter(e, n, out);
    case N_TEST:
        return eval_test(e, n, out);
    default:
        return eval_fail(e, ERROR_INVALID, "this is not an expression");
    }
}

bool eval_expression(struct eval *e, const struct node *n, struct value *out)
{
    if (++e->depth > EVAL_MAX_DEPTH)
        return eval_fail(e, ERROR_LIMIT, "evaluation is nested more than %d deep", EVAL_MAX_DEPTH);
    int line = e->line;
    e->line = n->line;
    if (!eval_step(e, 1) || !eval_kind(e, n, out))
        return false;
    e->line = line;
    e->depth--;
    return true;
}
