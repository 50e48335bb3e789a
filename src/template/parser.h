/* Shared by the two halves of the parser: parser.c (statements) and expression.c. */
#ifndef CSGL_TEMPLATE_PARSER_H
#define CSGL_TEMPLATE_PARSER_H

#include "template/ast.h"
#include "template/lexer.h"

struct parser {
    struct arena *arena;
    const struct token *at;
    int depth;   /* of nested brackets, tags and operators being parsed */
    int n_loops; /* around the current tag, within its macro */
    struct error *error;
};

/* A list under construction. */
struct node_link {
    struct node *node;
    struct node_link *next;
};

struct node_list {
    struct node_link *first, **tail;
    size_t n;
};

/* All return NULL or false after filling the error. */
struct node *parser_fail(struct parser *p, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
struct node *parser_node(struct parser *p, enum node_kind kind);
/* Notes the depth of a finished child; refuses nesting beyond TEMPLATE_MAX_DEPTH. */
bool parser_child(struct parser *p, struct node *parent, const struct node *child);
bool parser_append(struct parser *p, struct node_list *list, struct node *node);
bool parser_finish(struct parser *p, struct node *parent, struct node_list *list,
                   struct nodes *out);
bool parser_enter(struct parser *p);

bool parser_is_op(const struct parser *p, int op);
bool parser_is_name(const struct parser *p, const char *name);
bool parser_take_op(struct parser *p, int op);
bool parser_take_name(struct parser *p, const char *name);
bool parser_expect_op(struct parser *p, int op);
bool parser_expect_name(struct parser *p, const char *name);

/* An expression with everything in it. */
struct node *parse_expression(struct parser *p);
/* "a" or "a, b": a tuple without brackets. With `conditional` false "x if y" ends before the if, as
 * the iterable of a for must. */
struct node *parse_tuple(struct parser *p, bool conditional);
/* A callee with its attributes and one or more calls, without filters. */
struct node *parse_call(struct parser *p);
/* "|filter(...)|..." applied to `of` (NULL in a filter or set block); the first bar is optional
 * there. */
struct node *parse_filters(struct parser *p, struct node *of, bool bar_needed);

#endif
