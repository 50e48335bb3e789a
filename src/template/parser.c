/* The parser's statements, and what both halves of it share. */
#include "template/parser.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static bool parse_body(struct parser *p, struct nodes *out, const char *const *ends);

struct node *parser_fail(struct parser *p, const char *format, ...)
{
    char what[400];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    error_set(p->error, ERROR_INVALID, "chat template line %d: %s", p->at->line, what);
    return NULL;
}

static struct node *fail_memory(struct parser *p)
{
    error_set(p->error, ERROR_LIMIT, "chat template needs more memory than its limit of %zu bytes",
              p->arena->limit);
    return NULL;
}

static bool fail_depth(struct parser *p)
{
    error_set(p->error, ERROR_LIMIT, "chat template line %d: nested more than %d deep", p->at->line,
              TEMPLATE_MAX_DEPTH);
    return false;
}

struct node *parser_node(struct parser *p, enum node_kind kind)
{
    struct node *n = arena_alloc(p->arena, sizeof *n);
    if (!n)
        return fail_memory(p);
    n->kind = kind;
    n->line = p->at->line;
    n->depth = 1;
    n->method = -1;
    return n;
}

bool parser_child(struct parser *p, struct node *parent, const struct node *child)
{
    if (child->depth >= parent->depth)
        parent->depth = child->depth + 1;
    return parent->depth <= TEMPLATE_MAX_DEPTH * 2 || fail_depth(p);
}

bool parser_enter(struct parser *p)
{
    return ++p->depth <= TEMPLATE_MAX_DEPTH || fail_depth(p);
}

bool parser_append(struct parser *p, struct node_list *list, struct node *node)
{
    if (!node)
        return false;
    struct node_link *link = arena_alloc(p->arena, sizeof *link);
    if (!link)
        return fail_memory(p) != NULL;
    link->node = node;
    if (!list->tail)
        list->tail = &list->first;
    *list->tail = link;
    list->tail = &link->next;
    list->n++;
    return true;
}

bool parser_finish(struct parser *p, struct node *parent, struct node_list *list, struct nodes *out)
{
    *out = (struct nodes){arena_alloc_array(p->arena, list->n, sizeof *out->at), 0};
    if (!out->at)
        return fail_memory(p) != NULL;
    for (struct node_link *link = list->first; link; link = link->next) {
        out->at[out->n++] = link->node;
        if (parent && !parser_child(p, parent, link->node))
            return false;
    }
    return true;
}

bool parser_is_op(const struct parser *p, int op)
{
    return p->at->kind == TOKEN_OPERATOR && p->at->op == op;
}

bool parser_is_name(const struct parser *p, const char *name)
{
    return p->at->kind == TOKEN_NAME && value_is_text(&p->at->value, name);
}

bool parser_take_op(struct parser *p, int op)
{
    bool is = parser_is_op(p, op);
    p->at += is;
    return is;
}

bool parser_take_name(struct parser *p, const char *name)
{
    bool is = parser_is_name(p, name);
    p->at += is;
    return is;
}

bool parser_expect_op(struct parser *p, int op)
{
    return parser_take_op(p, op) || parser_fail(p, "'%c' was expected", op) != NULL;
}

bool parser_expect_name(struct parser *p, const char *name)
{
    return parser_take_name(p, name) || parser_fail(p, "'%s' was expected", name) != NULL;
}

static bool expect_block_end(struct parser *p)
{
    if (p->at->kind != TOKEN_BLOCK_END)
        return parser_fail(p, "'%%}' was expected") != NULL;
    p->at++;
    return true;
}

/* "%}", the body, and the tag `end`. */
static bool parse_block(struct parser *p, struct nodes *out, const char *end)
{
    const char *const ends[] = {end, NULL};
    if (!expect_block_end(p) || !parse_body(p, out, ends))
        return false;
    p->at++;
    return expect_block_end(p);
}

/* The body of something that a break cannot leave. */
static bool parse_function_body(struct parser *p, struct nodes *out, const char *end)
{
    int n_loops = p->n_loops;
    p->n_loops = 0;
    bool ok = parse_block(p, out, end);
    p->n_loops = n_loops;
    return ok;
}

static struct node *parse_target_name(struct parser *p)
{
    if (p->at->kind != TOKEN_NAME)
        return parser_fail(p, "the name of a variable was expected");
    struct node *n = parser_node(p, N_NAME);
    if (!n)
        return NULL;
    static const char *const constants[] = {"true", "True", "false", "False", "none", "None"};
    for (size_t i = 0; i < sizeof constants / sizeof constants[0]; i++)
        if (parser_is_name(p, constants[i]))
            return parser_fail(p, "cannot assign to '%s'", constants[i]);
    n->value = p->at->value;
    p->at++;
    return n;
}

/* "a", "a, b", "(a, (b, c))", and "ns.a" where `with_namespace`. */
static struct node *parse_target(struct parser *p, bool with_namespace)
{
    struct node_list items = {0};
    struct node *tuple = parser_node(p, N_TUPLE);
    bool is_tuple = false;
    if (!tuple || !parser_enter(p))
        return NULL;
    for (;;) {
        struct node *n;
        if (parser_take_op(p, '(')) {
            n = parse_target(p, with_namespace);
            if (!n || !parser_expect_op(p, ')'))
                return NULL;
        } else {
            n = parse_target_name(p);
        }
        if (n && with_namespace && n->kind == N_NAME && parser_is_op(p, '.')) {
            p->at++;
            if (p->at->kind != TOKEN_NAME)
                return parser_fail(p, "a name was expected after '.'");
            n->kind = N_NS_TARGET;
            n->attribute = arena_copy(p->arena, p->at->value.text, p->at->value.len);
            if (!n->attribute)
                return fail_memory(p);
            p->at++;
        }
        if (!parser_append(p, &items, n))
            return NULL;
        if (!parser_take_op(p, ','))
            break;
        is_tuple = true;
        if (parser_is_name(p, "in") || parser_is_op(p, '=') || parser_is_op(p, ')'))
            break;
    }
    p->depth--;
    if (!is_tuple)
        return items.first->node;
    return parser_finish(p, tuple, &items, &tuple->list) ? tuple : NULL;
}

static struct node *parse_if(struct parser *p)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    struct node *n = parser_node(p, N_IF);
    struct node_list branches = {0};
    do {
        struct node *branch = parser_node(p, N_BRANCH);
        if (!n || !branch)
            return NULL;
        branch->a = parse_tuple(p, false);
        if (!branch->a || !parser_child(p, branch, branch->a) || !expect_block_end(p) ||
            !parse_body(p, &branch->body, ends) || !parser_append(p, &branches, branch))
            return NULL;
    } while (parser_take_name(p, "elif"));
    if (!parser_finish(p, n, &branches, &n->list))
        return NULL;
    if (parser_take_name(p, "else"))
        return parse_block(p, &n->other, "endif") ? n : NULL;
    p->at++;
    return expect_block_end(p) ? n : NULL;
}

static struct node *parse_for(struct parser *p)
{
    static const char *const ends[] = {"endfor", "else", NULL};
    struct node *n = parser_node(p, N_FOR);
    const struct token *target = p->at;
    if (!n || !(n->a = parse_target(p, false)))
        return NULL;
    /* The filter has variables of its own, so it gets a second copy of the target. */
    const struct token *after = p->at;
    p->at = target;
    n->test_target = parse_target(p, false);
    p->at = after;
    if (!n->test_target || !parser_expect_name(p, "in") || !(n->b = parse_tuple(p, false)))
        return NULL;
    if (parser_take_name(p, "if") && !(n->c = parse_expression(p)))
        return NULL;
    if (parser_is_name(p, "recursive"))
        return parser_fail(p, "recursive loops are not supported; use a macro");
    p->n_loops++;
    if (!parser_child(p, n, n->b) || (n->c && !parser_child(p, n, n->c)) || !expect_block_end(p) ||
        !parse_body(p, &n->body, ends))
        return NULL;
    p->n_loops--;
    if (parser_take_name(p, "else"))
        return parse_block(p, &n->other, "endfor") ? n : NULL;
    p->at++;
    return expect_block_end(p) ? n : NULL;
}

static struct node *parse_set(struct parser *p)
{
    struct node *n = parser_node(p, N_SET);
    if (!n || !(n->a = parse_target(p, true)))
        return NULL;
    if (parser_take_op(p, '=')) {
        n->b = parse_tuple(p, true);
        return n->b && parser_child(p, n, n->b) && expect_block_end(p) ? n : NULL;
    }
    n->kind = N_SET_BLOCK;
    if (parser_is_op(p, '|') && !(n->b = parse_filters(p, NULL, true)))
        return NULL;
    return parse_block(p, &n->body, "endset") ? n : NULL;
}

/* "(a, b=1)": the parameters of a macro or call block. */
static bool parse_parameters(struct parser *p, struct node *of)
{
    struct node_list items = {0};
    bool has_default = false;
    if (!parser_expect_op(p, '('))
        return false;
    while (!parser_is_op(p, ')')) {
        if (items.n && !parser_expect_op(p, ','))
            return false;
        struct node *n = parse_target_name(p);
        if (!n)
            return false;
        n->kind = N_PARAMETER;
        if (parser_take_op(p, '=')) {
            n->a = parse_expression(p);
            if (!n->a || !parser_child(p, n, n->a))
                return false;
            has_default = true;
        } else if (has_default) {
            return parser_fail(p, "a parameter without default follows one with") != NULL;
        }
        if (!parser_append(p, &items, n))
            return false;
    }
    p->at++;
    return parser_finish(p, of, &items, &of->list);
}

static struct node *parse_macro(struct parser *p)
{
    struct node *name = parse_target_name(p);
    if (!name)
        return NULL;
    name->kind = N_MACRO;
    return parse_parameters(p, name) && parse_function_body(p, &name->body, "endmacro") ? name
                                                                                        : NULL;
}

static struct node *parse_call_block(struct parser *p)
{
    struct node *n = parser_node(p, N_CALL_BLOCK);
    if (!n || (parser_is_op(p, '(') && !parse_parameters(p, n)))
        return NULL;
    n->value = value_z("caller");
    n->a = parse_call(p);
    if (!n->a || !parser_child(p, n, n->a))
        return NULL;
    return parse_function_body(p, &n->body, "endcall") ? n : NULL;
}

static struct node *parse_filter_block(struct parser *p)
{
    struct node *n = parser_node(p, N_FILTER_BLOCK);
    if (!n || !(n->b = parse_filters(p, NULL, false)))
        return NULL;
    return parse_block(p, &n->body, "endfilter") ? n : NULL;
}

static struct node *parse_with(struct parser *p)
{
    struct node *n = parser_node(p, N_WITH);
    struct node_list items = {0};
    while (n && p->at->kind != TOKEN_BLOCK_END) {
        if (items.n && !parser_expect_op(p, ','))
            return NULL;
        struct node *set = parser_node(p, N_SET);
        if (!set || !(set->a = parse_target(p, false)) || !parser_expect_op(p, '=') ||
            !(set->b = parse_expression(p)) || !parser_child(p, set, set->b) ||
            !parser_append(p, &items, set))
            return NULL;
    }
    if (!n || !parser_finish(p, n, &items, &n->list))
        return NULL;
    return parse_block(p, &n->body, "endwith") ? n : NULL;
}

static struct node *parse_print(struct parser *p)
{
    struct node *n = parser_node(p, N_PRINT);
    if (!n || !(n->a = parse_tuple(p, true)) || !parser_child(p, n, n->a))
        return NULL;
    return n;
}

static struct node *parse_print_tag(struct parser *p)
{
    struct node *n = parse_print(p);
    return n && expect_block_end(p) ? n : NULL;
}

static struct node *parse_generation(struct parser *p)
{
    struct node *n = parser_node(p, N_SCOPED);
    return n && parse_function_body(p, &n->body, "endgeneration") ? n : NULL;
}

static struct node *parse_jump(struct parser *p, enum node_kind kind)
{
    struct node *n = parser_node(p, kind);
    if (n && p->n_loops == 0)
        return parser_fail(p, "break and continue are for loops");
    return n && expect_block_end(p) ? n : NULL;
}

static struct node *parse_break(struct parser *p)
{
    return parse_jump(p, N_BREAK);
}

static struct node *parse_continue(struct parser *p)
{
    return parse_jump(p, N_CONTINUE);
}

static const struct {
    const char *name;
    struct node *(*parse)(struct parser *p);
} statements[] = {
    {"if", parse_if},       {"for", parse_for},           {"set", parse_set},
    {"macro", parse_macro}, {"call", parse_call_block},   {"filter", parse_filter_block},
    {"with", parse_with},   {"print", parse_print_tag},   {"generation", parse_generation},
    {"break", parse_break}, {"continue", parse_continue},
};

/* A tag behind its "{%". */
static struct node *parse_statement(struct parser *p)
{
    if (p->at->kind != TOKEN_NAME)
        return parser_fail(p, "the name of a tag was expected");
    for (size_t i = 0; i < sizeof statements / sizeof statements[0]; i++)
        if (parser_take_name(p, statements[i].name))
            return statements[i].parse(p);
    return parser_fail(p, "the tag '%.*s' is unknown or out of place", (int)p->at->value.len,
                       p->at->value.text);
}

/* Statements up to a tag named in `ends` (the parser then stands on that name), or, when `ends` is
 * NULL, to the end of the source. */
static bool parse_body(struct parser *p, struct nodes *out, const char *const *ends)
{
    struct node_list items = {0};
    if (!parser_enter(p))
        return false;
    for (;;) {
        struct node *n = NULL;
        if (p->at->kind == TOKEN_END) {
            if (ends)
                return parser_fail(p, "the template ends where '%s' was expected", ends[0]) != NULL;
            break;
        } else if (p->at->kind == TOKEN_DATA) {
            n = parser_node(p, N_DATA);
            if (n)
                n->value = p->at->value;
            p->at++;
        } else if (p->at->kind == TOKEN_VARIABLE_BEGIN) {
            p->at++;
            n = parse_print(p);
            if (n && p->at->kind != TOKEN_VARIABLE_END)
                n = parser_fail(p, "'}}' was expected");
            p->at += n != NULL;
        } else {
            p->at++;
            bool done = false;
            for (size_t i = 0; ends && ends[i]; i++)
                done |= parser_is_name(p, ends[i]);
            if (done)
                break;
            n = parse_statement(p);
        }
        if (!parser_append(p, &items, n))
            return false;
    }
    p->depth--;
    return parser_finish(p, NULL, &items, out);
}

enum status template_parse(struct arena *arena, const char *source, size_t len, struct ast *out,
                           struct error *error)
{
    struct error local = {0};
    struct error *e = error ? error : &local;
    struct tokens tokens;
    enum status status = template_lex(arena, source, len, &tokens, e);
    if (status != OK)
        return status;
    struct parser p = {.arena = arena, .at = tokens.at, .error = e};
    if (!parse_body(&p, &out->body, NULL))
        return e->status;
    return template_resolve(arena, out, e);
}
