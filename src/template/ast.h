/* A parsed template. Nodes belong to the template's arena and never change once chat_template_new
 * has returned, so that many threads can render one template. */
#ifndef CSGL_TEMPLATE_AST_H
#define CSGL_TEMPLATE_AST_H

#include "base/arena.h"
#include "base/error.h"
#include "template/value.h"

/* What the fields of a node mean, by kind. `list` are children in order; anything unnamed is
 * unused. */
enum node_kind {
    /* expressions */
    N_CONST,       /* value */
    N_NAME,        /* value = name, ref */
    N_TUPLE,       /* list; also an assignment target */
    N_LIST,        /* list */
    N_DICT,        /* list = key, value, key, value, ... */
    N_UNARY,       /* op '-' or '+'; a */
    N_NOT,         /* a */
    N_BINARY,      /* op; a, b */
    N_AND,         /* a, b */
    N_OR,          /* a, b */
    N_CONCAT,      /* list: a ~ b ~ c */
    N_COMPARE,     /* a; list of N_OPERAND */
    N_OPERAND,     /* op (an operator, OP_IN or OP_NOT_IN); a */
    N_CONDITIONAL, /* a = test, b = then, c = else or NULL */
    N_ATTRIBUTE,   /* a; value = name; method = its row in the method table or -1 */
    N_ITEM,        /* a; b = index or N_SLICE */
    N_SLICE,       /* a, b, c = start, stop, step, each or NULL */
    N_CALL,        /* a = callee; list = arguments */
    N_KEYWORD,     /* value = name; a (an argument) */
    N_SPREAD,      /* op '*' or OP_POWER; a (an argument) */
    N_FILTER,      /* a (NULL in a filter block); builtin, value = name; list = arguments */
    N_TEST,        /* a; builtin, value = name; list = arguments; op 1 = "is not" */
    /* statements */
    N_DATA,         /* value = text */
    N_PRINT,        /* a */
    N_IF,           /* list of N_BRANCH; other = else */
    N_BRANCH,       /* a = test; body */
    N_FOR,          /* a = target, b = iterable, c = filter or NULL; body, other = else;
                       test_target = the target again, for the filter; op 1 = the body uses "loop" */
    N_SET,          /* a = target, b = value */
    N_SET_BLOCK,    /* a = target, b = filter chain or NULL; body */
    N_NS_TARGET,    /* ref, value = the namespace's name; attribute (a target) */
    N_MACRO,        /* value = name, ref; list = parameters (N_PARAMETER); body */
    N_PARAMETER,    /* value = name, ref; a = default or NULL */
    N_CALL_BLOCK,   /* a = N_CALL; list = parameters; body */
    N_FILTER_BLOCK, /* b = filter chain; body */
    N_WITH,         /* list of N_SET; body */
    N_SCOPED,       /* body: the generation tag, which has its own variables */
    N_BREAK,
    N_CONTINUE
};

enum { OP_IN = 0x10000, OP_NOT_IN };

/* A variable's place: `slot` in the activation `up` functions outwards. */
struct ref {
    int up, slot;
};

/* What a scope's own variables hold when it is entered. */
enum load_kind {
    LOAD_NOTHING, /* it is assigned before it is read */
    LOAD_OUTER,   /* a copy of the outer variable `from`, so that assignments stay inside */
    LOAD_CONTEXT  /* what the caller or the globals call by this name */
};

struct load {
    enum load_kind kind;
    int slot;
    struct ref from;
    struct value name;
};

struct scope {
    struct load *loads;
    size_t n_loads;
    int loop_slot, varargs_slot, kwargs_slot, caller_slot; /* -1 if the body does not use it */
};

struct nodes {
    struct node **at;
    size_t n;
};

struct node {
    enum node_kind kind;
    int op;
    int line;
    int depth; /* 1 + the deepest child's */
    int method;
    struct ref ref;
    struct value value;
    struct node *a, *b, *c, *test_target;
    const char *attribute;
    const struct builtin *builtin;
    struct nodes list, body, other;
    const struct scope *scope, *test_scope, *other_scope; /* of body, c (the filter) and other */
    int n_slots; /* of a macro's or call block's activation */
};

struct ast {
    struct nodes body;
    const struct scope *scope;
    int n_slots;
};

enum { TEMPLATE_MAX_DEPTH = 200 };

/* Parses and resolves variables. ERROR_INVALID names the line and what was expected there. */
enum status template_parse(struct arena *arena, const char *source, size_t len, struct ast *out,
                           struct error *error);

/* Gives every name its place, following jinja2's rules: a for, macro, with or block has its own
 * variables, an if has not; an assignment in an inner scope makes a copy that ends with it. */
enum status template_resolve(struct arena *arena, struct ast *ast, struct error *error);

#endif
