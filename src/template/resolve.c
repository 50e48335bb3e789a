/* Variables to slots. jinja2 compiles a template to Python functions and decides there, for the
 * whole scope at once, where each name lives; the same decisions are made here, so that the corner
 * cases (a name set after a loop that reads it, a set inside an if, closures of macros) come out
 * alike.
 *
 * A frame is analysed first (which names does it read and assign, without looking into inner
 * scopes), then bound (names get their slots, inner scopes become frames of their own). */
#include "template/ast.h"

#include <assert.h>
#include <string.h>

enum { MAX_SYMBOLS = 4096 }; /* names of one scope */

struct symbol {
    struct value name;
    struct load load;
    bool is_parameter; /* filled by whoever enters the scope: no load */
    struct symbol *next;
};

struct frame {
    struct frame *parent;
    int *n_slots; /* of the function that the frame belongs to */
    struct symbol *first, **tail;
    size_t n_symbols;
    bool soft; /* inside an if: unknown filters are errors only when reached */
};

struct resolver {
    struct arena *arena;
    struct error *error;
};

static bool bind(struct resolver *r, struct frame *f, struct node *n);

static bool fail_memory(struct resolver *r)
{
    error_set(r->error, ERROR_LIMIT, "chat template needs more memory than its limit of %zu bytes",
              r->arena->limit);
    return false;
}

static struct frame frame_inside(struct frame *parent, int *n_slots)
{
    return (struct frame){.parent = parent, .n_slots = n_slots};
}

static bool same_name(const struct value *a, const struct value *b)
{
    return a->len == b->len && memcmp(a->text, b->text, a->len) == 0;
}

static struct symbol *own_symbol(const struct frame *f, const struct value *name)
{
    for (struct symbol *s = f->first; s; s = s->next)
        if (same_name(&s->name, name))
            return s;
    return NULL;
}

static struct symbol *find(const struct frame *f, const struct value *name, struct ref *ref)
{
    *ref = (struct ref){0};
    for (; f; f = f->parent) {
        struct symbol *s = own_symbol(f, name);
        if (s) {
            ref->slot = s->load.slot;
            return s;
        }
        ref->up += f->parent && f->parent->n_slots != f->n_slots;
    }
    return NULL;
}

static struct symbol *define(struct resolver *r, struct frame *f, const struct value *name,
                             enum load_kind kind)
{
    if (f->n_symbols == MAX_SYMBOLS) {
        error_set(r->error, ERROR_LIMIT, "chat template has more than %d names in one scope",
                  MAX_SYMBOLS);
        return NULL;
    }
    struct symbol *s = arena_alloc(r->arena, sizeof *s);
    if (!s) {
        fail_memory(r);
        return NULL;
    }
    s->name = *name;
    s->load = (struct load){.kind = kind, .slot = (*f->n_slots)++, .name = *name};
    if (!f->tail)
        f->tail = &f->first;
    *f->tail = s;
    f->tail = &s->next;
    f->n_symbols++;
    return s;
}

static bool note_read(struct resolver *r, struct frame *f, const struct value *name)
{
    struct ref ref;
    return find(f, name, &ref) || define(r, f, name, LOAD_CONTEXT);
}

/* `branch`: the assignment may not happen, so that what the caller calls by this name shows
 * through. */
static bool note_assigned(struct resolver *r, struct frame *f, const struct value *name,
                          bool branch)
{
    struct ref outer;
    if (own_symbol(f, name))
        return true;
    bool has_outer = find(f, name, &outer) != NULL;
    struct symbol *s = define(r, f, name,
                              has_outer ? LOAD_OUTER
                              : branch  ? LOAD_CONTEXT
                                        : LOAD_NOTHING);
    if (s)
        s->load.from = outer;
    return s != NULL;
}

static int parameter(struct resolver *r, struct frame *f, const struct value *name)
{
    struct symbol *s = own_symbol(f, name);
    if (!s)
        s = define(r, f, name, LOAD_NOTHING);
    if (!s)
        return -1;
    s->is_parameter = true;
    return s->load.slot;
}

/* Makes parameters of the names in a target. */
static bool target_parameters(struct resolver *r, struct frame *f, const struct node *target)
{
    if (target->kind == N_NAME)
        return parameter(r, f, &target->value) >= 0;
    for (size_t i = 0; i < target->list.n; i++)
        if (!target_parameters(r, f, target->list.at[i]))
            return false;
    return true;
}

static bool note_target(struct resolver *r, struct frame *f, const struct node *target, bool branch)
{
    if (target->kind == N_NAME)
        return note_assigned(r, f, &target->value, branch);
    if (target->kind == N_NS_TARGET)
        return note_read(r, f, &target->value);
    for (size_t i = 0; i < target->list.n; i++)
        if (!note_target(r, f, target->list.at[i], branch))
            return false;
    return true;
}

static bool analyse(struct resolver *r, struct frame *f, const struct node *n, bool branch);

static bool analyse_all(struct resolver *r, struct frame *f, const struct nodes *nodes, bool branch)
{
    for (size_t i = 0; i < nodes->n; i++)
        if (!analyse(r, f, nodes->at[i], branch))
            return false;
    return true;
}

/* What the frame itself reads and assigns in `n`; bodies with scopes of their own are not entered.
 */
static bool analyse(struct resolver *r, struct frame *f, const struct node *n, bool branch)
{
    if (!n)
        return true;
    switch (n->kind) {
    case N_NAME:
        return note_read(r, f, &n->value);
    case N_FOR:
        return analyse(r, f, n->b, branch);
    case N_SET:
        return analyse(r, f, n->b, branch) && note_target(r, f, n->a, branch);
    case N_SET_BLOCK:
        return note_target(r, f, n->a, branch);
    case N_MACRO:
        return note_assigned(r, f, &n->value, branch);
    case N_CALL_BLOCK:
        return analyse(r, f, n->a, branch);
    case N_FILTER_BLOCK:
        return analyse(r, f, n->b, branch);
    case N_WITH:
        for (size_t i = 0; i < n->list.n; i++)
            if (!analyse(r, f, n->list.at[i]->b, branch))
                return false;
        return true;
    case N_SCOPED:
        return true;
    case N_IF:
        for (size_t i = 0; i < n->list.n; i++) {
            const struct node *b = n->list.at[i];
            if (!analyse(r, f, b->a, branch || i > 0) || !analyse_all(r, f, &b->body, true))
                return false;
        }
        return analyse_all(r, f, &n->other, true);
    default:
        return analyse(r, f, n->a, branch) && analyse(r, f, n->b, branch) &&
               analyse(r, f, n->c, branch) && analyse_all(r, f, &n->list, branch);
    }
}

static bool uses_any(const struct nodes *nodes, const char *name);

/* Whether `n`, with everything inside it, reads the variable `name`. */
static bool uses(const struct node *n, const char *name)
{
    if (!n)
        return false;
    if (n->kind == N_NAME)
        return value_is_text(&n->value, name);
    return uses(n->a, name) || uses(n->b, name) || uses(n->c, name) || uses_any(&n->list, name) ||
           uses_any(&n->body, name) || uses_any(&n->other, name);
}

static bool uses_any(const struct nodes *nodes, const char *name)
{
    for (size_t i = 0; i < nodes->n; i++)
        if (uses(nodes->at[i], name))
            return true;
    return false;
}

static bool bind_all(struct resolver *r, struct frame *f, const struct nodes *nodes)
{
    for (size_t i = 0; i < nodes->n; i++)
        if (!bind(r, f, nodes->at[i]))
            return false;
    return true;
}

/* The part of a frame that the evaluator needs. */
static struct scope *finish(struct resolver *r, const struct frame *f)
{
    struct scope *scope = arena_alloc(r->arena, sizeof *scope);
    struct load *loads = arena_alloc_array(r->arena, f->n_symbols, sizeof *loads);
    if (!scope || !loads) {
        fail_memory(r);
        return NULL;
    }
    *scope = (struct scope){
        .loads = loads, .loop_slot = -1, .varargs_slot = -1, .kwargs_slot = -1, .caller_slot = -1};
    for (const struct symbol *s = f->first; s; s = s->next)
        if (!s->is_parameter)
            loads[scope->n_loads++] = s->load;
    return scope;
}

/* A body with its own variables and no parameters. */
static const struct scope *bind_body(struct resolver *r, struct frame *inner,
                                     const struct nodes *body)
{
    if (!analyse_all(r, inner, body, false) || !bind_all(r, inner, body))
        return NULL;
    return finish(r, inner);
}

static bool bind_for(struct resolver *r, struct frame *f, struct node *n)
{
    if (!bind(r, f, n->b))
        return false;
    if (n->c) {
        struct frame test = frame_inside(f, f->n_slots);
        if (!target_parameters(r, &test, n->test_target) || !analyse(r, &test, n->c, false) ||
            !bind(r, &test, n->test_target) || !bind(r, &test, n->c) ||
            !(n->test_scope = finish(r, &test)))
            return false;
    }
    struct frame body = frame_inside(f, f->n_slots);
    struct value loop = value_z("loop");
    int loop_slot = -1;
    if (uses_any(&n->body, "loop") && (loop_slot = parameter(r, &body, &loop)) < 0)
        return false;
    if (!target_parameters(r, &body, n->a))
        return false;
    struct scope *scope = NULL;
    if (!analyse_all(r, &body, &n->body, false) || !bind(r, &body, n->a) ||
        !bind_all(r, &body, &n->body) || !(scope = finish(r, &body)))
        return false;
    scope->loop_slot = loop_slot;
    n->scope = scope;
    struct frame other = frame_inside(f, f->n_slots);
    return (n->other_scope = bind_body(r, &other, &n->other)) != NULL;
}

/* The body of a macro or call block: a function of its own. */
static bool bind_function(struct resolver *r, struct frame *f, struct node *n)
{
    static const char *const specials[] = {"varargs", "kwargs", "caller"};
    struct frame inner = frame_inside(f, &n->n_slots);
    int slots[3] = {-1, -1, -1};
    for (size_t i = 0; i < n->list.n; i++) {
        struct node *p = n->list.at[i];
        if (own_symbol(&inner, &p->value)) {
            error_set(r->error, ERROR_INVALID,
                      "chat template line %d: the parameter '%.*s' appears twice", p->line,
                      (int)p->value.len, p->value.text);
            return false;
        }
        p->ref.slot = parameter(r, &inner, &p->value);
        if (p->ref.slot < 0)
            return false;
    }
    for (size_t i = 0; i < 3; i++) {
        struct value name = value_z(specials[i]);
        if (own_symbol(&inner, &name) || !uses_any(&n->body, specials[i]))
            continue;
        slots[i] = parameter(r, &inner, &name);
        if (slots[i] < 0)
            return false;
    }
    for (size_t i = 0; i < n->list.n; i++)
        if (!analyse(r, &inner, n->list.at[i]->a, false))
            return false;
    if (!analyse_all(r, &inner, &n->body, false))
        return false;
    for (size_t i = 0; i < n->list.n; i++)
        if (!bind(r, &inner, n->list.at[i]->a))
            return false;
    struct scope *scope = NULL;
    if (!bind_all(r, &inner, &n->body) || !(scope = finish(r, &inner)))
        return false;
    scope->varargs_slot = slots[0];
    scope->kwargs_slot = slots[1];
    scope->caller_slot = slots[2];
    n->scope = scope;
    return true;
}

static bool bind_with(struct resolver *r, struct frame *f, struct node *n)
{
    struct frame inner = frame_inside(f, f->n_slots);
    for (size_t i = 0; i < n->list.n; i++)
        if (!bind(r, f, n->list.at[i]->b) || !target_parameters(r, &inner, n->list.at[i]->a))
            return false;
    if (!analyse_all(r, &inner, &n->body, false))
        return false;
    for (size_t i = 0; i < n->list.n; i++)
        if (!bind(r, &inner, n->list.at[i]->a))
            return false;
    return bind_all(r, &inner, &n->body) && (n->scope = finish(r, &inner)) != NULL;
}

static bool bind_if(struct resolver *r, struct frame *f, struct node *n)
{
    bool soft = f->soft;
    for (size_t i = 0; i < n->list.n; i++) {
        f->soft = soft || i > 0;
        if (!bind(r, f, n->list.at[i]->a))
            return false;
        f->soft = true;
        if (!bind_all(r, f, &n->list.at[i]->body))
            return false;
    }
    f->soft = true;
    bool ok = bind_all(r, f, &n->other);
    f->soft = soft;
    return ok;
}

static bool bind_expression(struct resolver *r, struct frame *f, struct node *n)
{
    bool soft = f->soft;
    f->soft = soft || n->kind == N_CONDITIONAL;
    bool ok = bind(r, f, n->a) && bind(r, f, n->b) && bind(r, f, n->c) && bind_all(r, f, &n->list);
    f->soft = soft;
    return ok;
}

/* Analysis has given every name a symbol. */
static void bind_name(const struct frame *f, struct node *n)
{
    const struct symbol *s = find(f, &n->value, &n->ref);
    assert(s);
    (void)s;
}

static bool bind(struct resolver *r, struct frame *f, struct node *n)
{
    if (!n)
        return true;
    switch (n->kind) {
    case N_NAME:
    case N_NS_TARGET:
        bind_name(f, n);
        return true;
    case N_FOR:
        return bind_for(r, f, n);
    case N_IF:
        return bind_if(r, f, n);
    case N_MACRO:
        bind_name(f, n);
        return bind_function(r, f, n);
    case N_CALL_BLOCK:
        return bind(r, f, n->a) && bind_function(r, f, n);
    case N_WITH:
        return bind_with(r, f, n);
    case N_SET_BLOCK:
    case N_FILTER_BLOCK:
    case N_SCOPED: {
        struct frame inner = frame_inside(f, f->n_slots);
        /* A set block's filters are evaluated inside it. */
        if (n->kind == N_SET_BLOCK && !(bind(r, f, n->a) && analyse(r, &inner, n->b, false)))
            return false;
        if (!(n->scope = bind_body(r, &inner, &n->body)))
            return false;
        return bind(r, n->kind == N_SET_BLOCK ? &inner : f, n->b);
    }
    case N_FILTER:
    case N_TEST:
        if (!n->builtin && !f->soft) {
            error_set(r->error, ERROR_UNSUPPORTED,
                      "chat template line %d: the %s '%.*s' is not known", n->line,
                      n->kind == N_FILTER ? "filter" : "test", (int)n->value.len, n->value.text);
            return false;
        }
        return bind_expression(r, f, n);
    default:
        return bind_expression(r, f, n);
    }
}

enum status template_resolve(struct arena *arena, struct ast *ast, struct error *error)
{
    struct error local = {0};
    struct resolver r = {.arena = arena, .error = error ? error : &local};
    struct frame root = {.n_slots = &ast->n_slots};
    ast->scope = bind_body(&r, &root, &ast->body);
    return ast->scope ? OK : r.error->status;
}
