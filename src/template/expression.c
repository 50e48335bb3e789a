/* The parser's expressions, by precedence: conditional, or, and, not, comparison, + -, ~, * / // %,
 * **, unary, postfix, filters and tests. */
#include "template/functions.h"
#include "template/parser.h"

#include <string.h>

static struct node *parse_unary(struct parser *p, bool with_filters);
static struct node *parse_or(struct parser *p);

static struct node *unary_node(struct parser *p, enum node_kind kind, int op, struct node *a)
{
    struct node *n = a ? parser_node(p, kind) : NULL;
    if (!n || !parser_child(p, n, a))
        return NULL;
    n->op = op;
    n->a = a;
    n->line = a->line;
    return n;
}

static struct node *binary_node(struct parser *p, enum node_kind kind, int op, struct node *a,
                                struct node *b)
{
    struct node *n = b ? unary_node(p, kind, op, a) : NULL;
    if (!n || !parser_child(p, n, b))
        return NULL;
    n->b = b;
    return n;
}

static struct node *parse_literal(struct parser *p)
{
    struct node *n = parser_node(p, N_CONST);
    if (!n)
        return NULL;
    n->value = p->at->value;
    bool is_string = p->at->kind == TOKEN_STRING;
    p->at++;
    /* Strings side by side are one string. */
    while (is_string && p->at->kind == TOKEN_STRING) {
        size_t total = (size_t)n->value.len + p->at->value.len;
        char *joined = arena_alloc(p->arena, total + 1);
        if (!joined)
            return parser_fail(p, "the template needs too much memory");
        memcpy(joined, n->value.text, n->value.len);
        memcpy(joined + n->value.len, p->at->value.text, p->at->value.len);
        n->value = value_text(joined, total);
        p->at++;
    }
    return n;
}

static struct node *parse_name(struct parser *p)
{
    static const struct {
        const char *name;
        struct value value;
    } constants[] = {
        {"true", {.kind = V_BOOL, .boolean = true}},
        {"True", {.kind = V_BOOL, .boolean = true}},
        {"false", {.kind = V_BOOL}},
        {"False", {.kind = V_BOOL}},
        {"none", {.kind = V_NONE}},
        {"None", {.kind = V_NONE}},
    };
    struct node *n = parser_node(p, N_NAME);
    if (!n)
        return NULL;
    n->value = p->at->value;
    for (size_t i = 0; i < sizeof constants / sizeof constants[0]; i++) {
        if (!value_is_text(&p->at->value, constants[i].name))
            continue;
        n->kind = N_CONST;
        n->value = constants[i].value;
    }
    p->at++;
    return n;
}

/* The items of a list, tuple or dict up to its closing bracket. */
static struct node *parse_items(struct parser *p, enum node_kind kind, int close)
{
    struct node *n = parser_node(p, kind);
    struct node_list items = {0};
    if (!n)
        return NULL;
    while (!parser_is_op(p, close)) {
        if (items.n && !parser_expect_op(p, ','))
            return NULL;
        if (parser_is_op(p, close))
            break;
        if (!parser_append(p, &items, parse_expression(p)))
            return NULL;
        if (kind == N_DICT &&
            (!parser_expect_op(p, ':') || !parser_append(p, &items, parse_expression(p))))
            return NULL;
    }
    p->at++;
    return parser_finish(p, n, &items, &n->list) ? n : NULL;
}

static struct node *parse_brackets(struct parser *p)
{
    if (parser_take_op(p, '[')) {
        return parse_items(p, N_LIST, ']');
    } else if (parser_take_op(p, '{')) {
        return parse_items(p, N_DICT, '}');
    } else if (parser_take_op(p, '(')) {
        if (parser_is_op(p, ')'))
            return parse_items(p, N_TUPLE, ')');
        struct node *inner = parse_tuple(p, true);
        return inner && parser_expect_op(p, ')') ? inner : NULL;
    }
    return parser_fail(p, "an expression was expected");
}

static struct node *parse_primary(struct parser *p)
{
    switch (p->at->kind) {
    case TOKEN_NAME:
        return parse_name(p);
    case TOKEN_STRING:
    case TOKEN_INTEGER:
    case TOKEN_FLOAT:
        return parse_literal(p);
    case TOKEN_OPERATOR: {
        if (!parser_enter(p))
            return NULL;
        struct node *n = parse_brackets(p);
        p->depth--;
        return n;
    }
    default:
        return parser_fail(p, "an expression was expected");
    }
}

static struct node *parse_dot(struct parser *p, struct node *of)
{
    if (p->at->kind == TOKEN_NAME) {
        struct node *n = unary_node(p, N_ATTRIBUTE, 0, of);
        if (!n)
            return NULL;
        n->value = p->at->value;
        n->method = method_find(&n->value);
        p->at++;
        return n;
    }
    if (p->at->kind != TOKEN_INTEGER)
        return parser_fail(p, "a name was expected after '.'");
    return binary_node(p, N_ITEM, 0, of, parse_literal(p));
}

/* One index or slice between the brackets of a subscript. */
static struct node *parse_index(struct parser *p)
{
    struct node *part[3] = {NULL, NULL, NULL};
    int n_parts = 0;
    bool is_slice = false;
    struct node *slice = parser_node(p, N_SLICE);
    if (!slice)
        return NULL;
    while (!parser_is_op(p, ']') && !parser_is_op(p, ',')) {
        if (parser_take_op(p, ':')) {
            is_slice = true;
            if (++n_parts > 2)
                return parser_fail(p, "a slice has at most three parts");
            continue;
        }
        if (part[n_parts])
            return parser_fail(p, "']' was expected");
        part[n_parts] = parse_expression(p);
        if (!part[n_parts] || !parser_child(p, slice, part[n_parts]))
            return NULL;
    }
    if (!is_slice)
        return part[0] ? part[0] : parser_fail(p, "a subscript is empty");
    slice->a = part[0];
    slice->b = part[1];
    slice->c = part[2];
    return slice;
}

static struct node *parse_subscript(struct parser *p, struct node *of)
{
    struct node *index = parse_index(p);
    if (index && parser_is_op(p, ',')) {
        struct node *tuple = parser_node(p, N_TUPLE);
        struct node_list items = {0};
        if (!tuple || !parser_append(p, &items, index))
            return NULL;
        while (parser_take_op(p, ','))
            if (!parser_append(p, &items, parse_index(p)))
                return NULL;
        if (!parser_finish(p, tuple, &items, &tuple->list))
            return NULL;
        index = tuple;
    }
    if (!index || !parser_expect_op(p, ']'))
        return NULL;
    return binary_node(p, N_ITEM, 0, of, index);
}

static struct node *parse_argument(struct parser *p)
{
    if (parser_take_op(p, '*'))
        return unary_node(p, N_SPREAD, '*', parse_expression(p));
    if (parser_take_op(p, OP_POWER))
        return unary_node(p, N_SPREAD, OP_POWER, parse_expression(p));
    if (p->at->kind == TOKEN_NAME && p->at[1].kind == TOKEN_OPERATOR && p->at[1].op == '=') {
        struct value name = p->at->value;
        p->at += 2;
        struct node *n = unary_node(p, N_KEYWORD, 0, parse_expression(p));
        if (n)
            n->value = name;
        return n;
    }
    return parse_expression(p);
}

/* "(a, b=c)" behind a callee, filter or test. */
static bool parse_arguments(struct parser *p, struct node *call)
{
    struct node_list items = {0};
    bool named = false;
    if (!parser_expect_op(p, '(') || !parser_enter(p))
        return false;
    while (!parser_is_op(p, ')')) {
        if (items.n && !parser_expect_op(p, ','))
            return false;
        if (parser_is_op(p, ')'))
            break;
        struct node *n = parse_argument(p);
        if (!parser_append(p, &items, n))
            return false;
        bool is_named = n->kind == N_KEYWORD || (n->kind == N_SPREAD && n->op == OP_POWER);
        if (named && !is_named)
            return parser_fail(p, "a positional argument follows a named one") != NULL;
        named = is_named;
    }
    p->at++;
    p->depth--;
    return parser_finish(p, call, &items, &call->list);
}

static struct node *parse_call_of(struct parser *p, struct node *of)
{
    struct node *n = unary_node(p, N_CALL, 0, of);
    return n && parse_arguments(p, n) ? n : NULL;
}

static struct node *parse_postfix(struct parser *p, struct node *n)
{
    while (n) {
        if (parser_take_op(p, '.'))
            n = parse_dot(p, n);
        else if (parser_take_op(p, '['))
            n = parse_subscript(p, n);
        else if (parser_is_op(p, '('))
            n = parse_call_of(p, n);
        else
            break;
    }
    return n;
}

/* A filter's or test's name may be dotted. */
static bool parse_dotted(struct parser *p, struct value *out)
{
    if (p->at->kind != TOKEN_NAME)
        return parser_fail(p, "the name of a filter or test was expected") != NULL;
    *out = p->at->value;
    p->at++;
    while (parser_is_op(p, '.') && p->at[1].kind == TOKEN_NAME) {
        out->len = (uint32_t)(p->at[1].value.text + p->at[1].value.len - out->text);
        p->at += 2;
    }
    return true;
}

static struct node *parse_filter(struct parser *p, struct node *of)
{
    struct node *n = of ? unary_node(p, N_FILTER, 0, of) : parser_node(p, N_FILTER);
    if (!n || !parse_dotted(p, &n->value))
        return NULL;
    n->builtin = filter_find(&n->value);
    if (parser_is_op(p, '(') && !parse_arguments(p, n))
        return NULL;
    return n;
}

struct node *parse_filters(struct parser *p, struct node *of, bool bar_needed)
{
    if (!bar_needed) {
        of = parse_filter(p, of);
        if (!of)
            return NULL;
    }
    while (parser_take_op(p, '|')) {
        of = parse_filter(p, of);
        if (!of)
            return NULL;
    }
    return of;
}

/* "is [not] name", with arguments in brackets or one bare operand. */
static struct node *parse_test(struct parser *p, struct node *of)
{
    struct node *n = unary_node(p, N_TEST, 0, of);
    if (!n)
        return NULL;
    n->op = parser_take_name(p, "not");
    if (!parse_dotted(p, &n->value))
        return NULL;
    n->builtin = test_find(&n->value);
    if (parser_is_op(p, '('))
        return parse_arguments(p, n) ? n : NULL;
    enum token_kind kind = p->at->kind;
    bool operand = kind == TOKEN_NAME || kind == TOKEN_STRING || kind == TOKEN_INTEGER ||
                   kind == TOKEN_FLOAT || parser_is_op(p, '[') || parser_is_op(p, '{');
    if (!operand || parser_is_name(p, "else") || parser_is_name(p, "or") ||
        parser_is_name(p, "and"))
        return n;
    if (parser_is_name(p, "is"))
        return parser_fail(p, "tests with 'is' cannot be chained");
    struct node_list items = {0};
    if (!parser_append(p, &items, parse_postfix(p, parse_primary(p))) ||
        !parser_finish(p, n, &items, &n->list))
        return NULL;
    return n;
}

static struct node *parse_filters_and_tests(struct parser *p, struct node *n)
{
    while (n) {
        if (parser_is_op(p, '|'))
            n = parse_filters(p, n, true);
        else if (parser_take_name(p, "is"))
            n = parse_test(p, n);
        else if (parser_is_op(p, '('))
            n = parse_call_of(p, n);
        else
            break;
    }
    return n;
}

struct node *parse_call(struct parser *p)
{
    struct node *n = parse_postfix(p, parse_primary(p));
    if (n && n->kind != N_CALL)
        return parser_fail(p, "a call was expected");
    return n;
}

static struct node *parse_unary(struct parser *p, bool with_filters)
{
    struct node *n;
    if (parser_is_op(p, '-') || parser_is_op(p, '+')) {
        int op = p->at->op;
        p->at++;
        if (!parser_enter(p))
            return NULL;
        n = unary_node(p, N_UNARY, op, parse_unary(p, false));
        p->depth--;
    } else {
        n = parse_primary(p);
    }
    n = parse_postfix(p, n);
    return with_filters ? parse_filters_and_tests(p, n) : n;
}

static struct node *parse_power(struct parser *p)
{
    struct node *n = parse_unary(p, true);
    while (n && parser_take_op(p, OP_POWER))
        n = binary_node(p, N_BINARY, OP_POWER, n, parse_unary(p, true));
    return n;
}

static struct node *parse_product(struct parser *p)
{
    struct node *n = parse_power(p);
    while (n && (parser_is_op(p, '*') || parser_is_op(p, '/') || parser_is_op(p, '%') ||
                 parser_is_op(p, OP_FLOOR_DIVIDE))) {
        int op = p->at->op;
        p->at++;
        n = binary_node(p, N_BINARY, op, n, parse_power(p));
    }
    return n;
}

static struct node *parse_concat(struct parser *p)
{
    struct node *first = parse_product(p);
    if (!first || !parser_is_op(p, '~'))
        return first;
    struct node *n = parser_node(p, N_CONCAT);
    struct node_list items = {0};
    if (!n || !parser_append(p, &items, first))
        return NULL;
    while (parser_take_op(p, '~'))
        if (!parser_append(p, &items, parse_product(p)))
            return NULL;
    return parser_finish(p, n, &items, &n->list) ? n : NULL;
}

static struct node *parse_sum(struct parser *p)
{
    struct node *n = parse_concat(p);
    while (n && (parser_is_op(p, '+') || parser_is_op(p, '-'))) {
        int op = p->at->op;
        p->at++;
        n = binary_node(p, N_BINARY, op, n, parse_concat(p));
    }
    return n;
}

/* The comparison operator that stands here, or 0. */
static int take_comparison(struct parser *p)
{
    static const int ops[] = {OP_EQUAL, OP_NOT_EQUAL, OP_LESS_EQUAL, OP_GREATER_EQUAL, '<', '>'};
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++)
        if (parser_take_op(p, ops[i]))
            return ops[i];
    if (parser_take_name(p, "in"))
        return OP_IN;
    if (parser_is_name(p, "not") && p->at[1].kind == TOKEN_NAME &&
        value_is_text(&p->at[1].value, "in")) {
        p->at += 2;
        return OP_NOT_IN;
    }
    return 0;
}

static struct node *parse_compare(struct parser *p)
{
    struct node *first = parse_sum(p), *n = NULL;
    struct node_list items = {0};
    int op;
    while (first && (op = take_comparison(p)) != 0) {
        if (!n)
            n = unary_node(p, N_COMPARE, 0, first);
        if (!n || !parser_append(p, &items, unary_node(p, N_OPERAND, op, parse_sum(p))))
            return NULL;
    }
    if (!n)
        return first;
    return parser_finish(p, n, &items, &n->list) ? n : NULL;
}

static struct node *parse_not(struct parser *p)
{
    if (!parser_take_name(p, "not"))
        return parse_compare(p);
    if (!parser_enter(p))
        return NULL;
    struct node *n = unary_node(p, N_NOT, 0, parse_not(p));
    p->depth--;
    return n;
}

static struct node *parse_and(struct parser *p)
{
    struct node *n = parse_not(p);
    while (n && parser_take_name(p, "and"))
        n = binary_node(p, N_AND, 0, n, parse_not(p));
    return n;
}

static struct node *parse_or(struct parser *p)
{
    struct node *n = parse_and(p);
    while (n && parser_take_name(p, "or"))
        n = binary_node(p, N_OR, 0, n, parse_and(p));
    return n;
}

struct node *parse_expression(struct parser *p)
{
    if (!parser_enter(p))
        return NULL;
    struct node *n = parse_or(p);
    while (n && parser_take_name(p, "if")) {
        struct node *then = n, *test = parse_or(p), *otherwise = NULL;
        if (test && parser_take_name(p, "else")) {
            otherwise = parse_expression(p);
            if (!otherwise)
                return NULL;
        }
        n = binary_node(p, N_CONDITIONAL, 0, test, then);
        if (n && otherwise && !parser_child(p, n, otherwise))
            return NULL;
        if (n)
            n->c = otherwise;
    }
    p->depth--;
    return n;
}

/* Where a tuple without brackets ends. */
static bool ends_tuple(const struct parser *p)
{
    return p->at->kind == TOKEN_VARIABLE_END || p->at->kind == TOKEN_BLOCK_END ||
           p->at->kind == TOKEN_END || parser_is_op(p, ')') || parser_is_op(p, '=') ||
           parser_is_name(p, "in") || parser_is_name(p, "recursive");
}

struct node *parse_tuple(struct parser *p, bool conditional)
{
    struct node *first = conditional ? parse_expression(p) : parse_or(p);
    if (!first || !parser_is_op(p, ','))
        return first;
    struct node *n = parser_node(p, N_TUPLE);
    struct node_list items = {0};
    if (!n || !parser_append(p, &items, first))
        return NULL;
    while (parser_take_op(p, ',') && !ends_tuple(p))
        if (!parser_append(p, &items, conditional ? parse_expression(p) : parse_or(p)))
            return NULL;
    return parser_finish(p, n, &items, &n->list) ? n : NULL;
}
