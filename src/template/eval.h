/* A render in progress, and what the files of the evaluator call from each other. Functions that
 * can fail return false after eval_fail has filled the error. */
#ifndef CSGL_TEMPLATE_EVAL_H
#define CSGL_TEMPLATE_EVAL_H

#include "base/str.h"
#include "template/ast.h"
#include "template/functions.h"
#include "template/value.h"

/* A template comes with a model and its input from anywhere: each limit ends the render with an
 * error. */
enum {
    EVAL_MAX_STEPS =
        10 * 1000 * 1000,        /* nodes evaluated, and items and 64-byte runs handled inside */
    EVAL_MAX_DEPTH = 2500,       /* of nested evaluation: about 1.5 MB of stack */
    EVAL_MAX_CALLS = 200,        /* of macros in each other */
    EVAL_MAX_NESTING = 200,      /* of values compared or printed */
    EVAL_MAX_TEXT = 64 << 20,    /* bytes of the output and of any string */
    EVAL_MAX_MEMORY = 256 << 20, /* bytes of all values made */
    EVAL_MAX_RANGE = 100 * 1000  /* items of range(), as in jinja2's sandbox */
};

/* The variables of the template's top level, or of one call of a macro. */
struct activation {
    struct activation *up;
    struct value slots[];
};

struct macro {
    const struct node *definition;
    struct activation *closure;
};

/* What "loop" is. Items are taken one by one, looking ahead only when asked to, because a filter
 * may depend on what the body does. */
struct loop {
    struct iterator it;
    const struct node *node;
    struct activation *activation;
    struct value current, previous, next;
    bool has_previous, has_next;
    size_t index0;
    struct list *changed; /* the arguments of the last loop.changed() */
};

struct eval {
    struct arena arena;
    struct str *out; /* where text goes now: `text`, or a capture */
    struct str text; /* the output */
    struct str captures[EVAL_MAX_CALLS + 2 * TEMPLATE_MAX_DEPTH];
    int n_captures;
    struct activation *activation;
    struct dict *context; /* variables and globals by name */
    uint64_t steps;
    int depth, n_calls;
    int line; /* of the node under evaluation */
    struct value block_input;
    const char *tip; /* the end of the last concatenation, which may grow in place by tip_room */
    size_t tip_room;
    int64_t now;            /* seconds; 0 is the present */
    size_t *message_starts; /* [n_messages] output offsets, SIZE_MAX while unknown; or NULL */
    struct error *error;
};

struct named {
    struct value name, value;
};

struct args {
    struct value *items;
    size_t n;
    struct named *named;
    size_t n_named;
};

bool eval_fail(struct eval *e, enum status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
bool eval_fail_memory(struct eval *e);
/* The sentence of an undefined value that somebody needs. */
bool eval_fail_undefined(struct eval *e, const struct value *v);
/* Counts `n` steps of work. */
bool eval_step(struct eval *e, size_t n);

/* eval.c */
bool eval_expression(struct eval *e, const struct node *n, struct value *out);
bool eval_call(struct eval *e, const struct value *callee, struct args *args, struct value *out);
/* Evaluates the filter nodes of a filter or set block on `input`. */
bool eval_filters(struct eval *e, const struct node *n, const struct value *input,
                  struct value *out);
bool eval_call_node(struct eval *e, const struct node *n, const struct value *caller,
                    struct value *out);

/* statements.c */
bool eval_template(struct eval *e, const struct ast *ast);
bool macro_call(struct eval *e, const struct macro *macro, const struct args *args,
                struct value *out);
void scope_enter(struct eval *e, const struct scope *scope);
bool assign(struct eval *e, const struct node *target, const struct value *v);

/* loop.c: the next item that passes the loop's filter; 1, 0 at the end, -1 after an error. */
int loop_next(struct eval *e, struct loop *loop, struct value *out);
bool loop_attribute(struct eval *e, struct loop *loop, const struct value *name, struct value *out);

/* operators.c */
bool value_equal(struct eval *e, const struct value *a, const struct value *b, bool *out);
/* op is '<', '>', OP_LESS_EQUAL or OP_GREATER_EQUAL. */
bool value_compare(struct eval *e, int op, const struct value *a, const struct value *b, bool *out);
bool value_contains(struct eval *e, const struct value *container, const struct value *item,
                    bool *out);
bool operate(struct eval *e, int op, const struct value *a, const struct value *b,
             struct value *out);
bool operate_unary(struct eval *e, int op, const struct value *a, struct value *out);
bool concatenate(struct eval *e, const struct value *a, const struct value *b, struct value *out);

/* access.c */
bool get_attribute(struct eval *e, const struct value *of, const struct value *name, int method,
                   struct value *out);
bool get_item(struct eval *e, const struct value *of, const struct value *index, struct value *out);
/* Missing parts are V_NONE. */
bool get_slice(struct eval *e, const struct value *of, const struct value part[3],
               struct value *out);
bool undefined_hint(struct eval *e, const char *hint, struct value *out);
bool undefined_name(struct eval *e, const struct value *name, struct value *out);
/* "a.b.0" or an integer, as filters take it; `otherwise` (or NULL) replaces undefined. */
bool get_path(struct eval *e, const struct value *of, const struct value *path,
              const struct value *otherwise, struct value *out);

/* write.c: all fail when the text passes EVAL_MAX_TEXT. */
bool write_value(struct eval *e, struct str *out, const struct value *v); /* str(v) */
bool write_repr(struct eval *e, struct str *out, const struct value *v);
void write_float(struct str *out, double f);
struct json_style {
    bool ascii, sort_keys;
    const char *indent; /* one level, or NULL for one line */
    size_t indent_len;
    struct value item_separator, key_separator;
};
bool write_json(struct eval *e, struct str *out, const struct value *v,
                const struct json_style *style);
bool escape_html(struct eval *e, const struct value *text, struct value *out);

/* Copies a built string into the arena and frees it, also on failure. */
bool take_text(struct eval *e, struct str *built, struct value *out);
/* str(v) as a value; strings come back as they are. */
bool to_text(struct eval *e, const struct value *v, struct value *out);
/* All items of an iterable. */
bool to_list(struct eval *e, const struct value *v, struct list **out);
/* The value of a finished list. */
struct value list_value(struct list *list);
/* A list that can be walked once. */
bool stream_value(struct eval *e, struct list *list, struct value *out);
bool push(struct eval *e, struct list *list, struct value v);
bool put(struct eval *e, struct dict *dict, struct value key, struct value v);

/* format.c */
bool format_percent(struct eval *e, const struct value *format, const struct value *operand,
                    struct value *out);
bool format_braces(struct eval *e, const struct value *format, const struct args *args,
                   struct value *out);

/* Assigns arguments to parameters: names[0 .. n-1], the first `required` needed; out[i] points to
 * the value or is NULL. */
bool args_take(struct eval *e, const struct args *args, const char *what, const char *const *names,
               size_t required, size_t n, const struct value **out);
/* The integer of an argument, `otherwise` if it is absent; an error names `what`. */
bool arg_int(struct eval *e, const struct value *v, const char *what, int64_t otherwise,
             int64_t *out);
bool arg_text(struct eval *e, const struct value *v, const char *what, const char *otherwise,
              struct value *out);

#endif
