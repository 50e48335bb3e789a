/* Statements: output, scopes, loops, macros. */
#include "template/eval.h"

#include "template/text.h"

#include <string.h>

enum flow { FLOW_FAILED, FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE };

static enum flow run_all(struct eval *e, const struct nodes *nodes);

static bool emit(struct eval *e, const char *text, size_t n)
{
    if (n > EVAL_MAX_TEXT || e->out->len > EVAL_MAX_TEXT - n)
        return eval_fail(e, ERROR_LIMIT, "the output is longer than its limit of %d MiB",
                         EVAL_MAX_TEXT >> 20);
    str_append(e->out, text, n);
    return !e->out->failed || eval_fail_memory(e);
}

static bool emit_value(struct eval *e, const struct value *v)
{
    if (v->kind == V_STRING)
        return emit(e, v->text, v->len);
    return write_value(e, e->out, v);
}

/* Text goes to a buffer of its own until capture_end. */
static bool capture_begin(struct eval *e)
{
    size_t most = sizeof e->captures / sizeof e->captures[0];
    if ((size_t)e->n_captures == most)
        return eval_fail(e, ERROR_LIMIT, "more than %zu blocks and macros are nested", most);
    e->out = &e->captures[e->n_captures++];
    str_clear(e->out);
    return true;
}

static bool capture_end(struct eval *e, struct str *outer, struct value *out)
{
    struct str *captured = e->out;
    e->n_captures--;
    e->out = outer;
    char *copy = arena_copy(&e->arena, str_z(captured), captured->len);
    if (!copy)
        return eval_fail_memory(e);
    *out = value_text(copy, captured->len);
    return eval_step(e, captured->len / 64);
}

static struct value *slot_of(struct eval *e, const struct ref *ref)
{
    struct activation *a = e->activation;
    for (int up = ref->up; up > 0; up--)
        a = a->up;
    return &a->slots[ref->slot];
}

void scope_enter(struct eval *e, const struct scope *scope)
{
    for (size_t i = 0; i < scope->n_loads; i++) {
        const struct load *load = &scope->loads[i];
        struct value v = {.kind = V_MISSING};
        if (load->kind == LOAD_OUTER) {
            v = *slot_of(e, &load->from);
        } else if (load->kind == LOAD_CONTEXT) {
            const struct value *found = dict_get(e->context, &load->name);
            if (found)
                v = *found;
        }
        e->activation->slots[load->slot] = v;
    }
}

static bool assign_tuple(struct eval *e, const struct node *target, const struct value *v)
{
    struct list *items;
    if (v->kind == V_UNDEFINED)
        return eval_fail_undefined(e, v);
    if (!to_list(e, v, &items))
        return false;
    if (items->n != target->list.n)
        return eval_fail(e, ERROR_INVALID, "%zu values cannot be unpacked into %zu names", items->n,
                         target->list.n);
    for (size_t i = 0; i < items->n; i++)
        if (!assign(e, target->list.at[i], &items->items[i]))
            return false;
    return true;
}

bool assign(struct eval *e, const struct node *target, const struct value *v)
{
    e->line = target->line;
    if (target->kind == N_TUPLE)
        return assign_tuple(e, target, v);
    struct value *slot = slot_of(e, &target->ref);
    if (target->kind == N_NAME) {
        *slot = *v;
        return true;
    }
    if (slot->kind != V_NAMESPACE)
        return eval_fail(e, ERROR_INVALID, "'%.*s' is no namespace, so '%s' cannot be set in it",
                         (int)target->value.len, target->value.text, target->attribute);
    return put(e, slot->dict, value_z(target->attribute), *v);
}

static enum flow run_if(struct eval *e, const struct node *n)
{
    for (size_t i = 0; i < n->list.n; i++) {
        struct value test;
        if (!eval_expression(e, n->list.at[i]->a, &test))
            return FLOW_FAILED;
        if (value_truth(&test))
            return run_all(e, &n->list.at[i]->body);
    }
    return run_all(e, &n->other);
}

/* Notes where the output of a chat message began: at the first iteration over it that printed
 * anything but white space to the output itself. */
static void mark_message(struct eval *e, const struct value *item, size_t start)
{
    if (!e->message_starts || e->out != &e->text || item->kind != V_DICT || !item->dict->message)
        return;
    size_t *known = &e->message_starts[item->dict->message - 1];
    size_t n = e->text.len - start;
    if (n > 0 && start < *known && text_leading_space(e->text.data + start, n) < n)
        *known = start;
}

static enum flow run_loop(struct eval *e, const struct node *n, struct loop *loop, bool *any)
{
    for (;;) {
        struct value item;
        int got = loop_next(e, loop, &item);
        if (got <= 0)
            return got == 0 ? FLOW_NEXT : FLOW_FAILED;
        *any = true;
        size_t start = e->out->len;
        if (!assign(e, n->a, &item) || !eval_step(e, 1))
            return FLOW_FAILED;
        scope_enter(e, n->scope);
        enum flow flow = run_all(e, &n->body);
        if (flow == FLOW_FAILED)
            return flow;
        mark_message(e, &item, start);
        if (flow == FLOW_BREAK)
            return FLOW_NEXT;
    }
}

static enum flow run_for(struct eval *e, const struct node *n)
{
    struct value of;
    bool any = false;
    if (!eval_expression(e, n->b, &of))
        return FLOW_FAILED;
    e->line = n->line;
    struct loop *loop = arena_alloc(&e->arena, sizeof *loop);
    if (!loop) {
        eval_fail_memory(e);
        return FLOW_FAILED;
    }
    *loop = (struct loop){.node = n, .activation = e->activation};
    if (!iterator_init(&loop->it, &of)) {
        eval_fail(e, ERROR_INVALID, "a value of type %s cannot be iterated", value_type(&of));
        return FLOW_FAILED;
    }
    if (n->scope->loop_slot >= 0)
        e->activation->slots[n->scope->loop_slot] = (struct value){.kind = V_LOOP, .loop = loop};
    enum flow flow = run_loop(e, n, loop, &any);
    if (flow != FLOW_NEXT || any)
        return flow;
    scope_enter(e, n->other_scope);
    return run_all(e, &n->other);
}

static enum flow run_set_block(struct eval *e, const struct node *n)
{
    struct str *outer = e->out;
    struct value v;
    if (!capture_begin(e))
        return FLOW_FAILED;
    scope_enter(e, n->scope);
    enum flow flow = run_all(e, &n->body);
    if (flow == FLOW_FAILED || !capture_end(e, outer, &v))
        return FLOW_FAILED;
    if (flow != FLOW_NEXT)
        return flow; /* a break out of the block throws its text away */
    if (n->b && !eval_filters(e, n->b, &v, &v))
        return FLOW_FAILED;
    if (n->kind == N_SET_BLOCK)
        return assign(e, n->a, &v) ? FLOW_NEXT : FLOW_FAILED;
    return emit_value(e, &v) ? FLOW_NEXT : FLOW_FAILED;
}

static bool macro_value(struct eval *e, const struct node *definition, struct value *out)
{
    struct macro *macro = arena_alloc(&e->arena, sizeof *macro);
    if (!macro)
        return eval_fail_memory(e);
    *macro = (struct macro){definition, e->activation};
    *out = (struct value){.kind = V_MACRO, .macro = macro};
    return true;
}

static enum flow run_call_block(struct eval *e, const struct node *n)
{
    struct value caller, v;
    if (!macro_value(e, n, &caller) || !eval_call_node(e, n->a, &caller, &v) || !emit_value(e, &v))
        return FLOW_FAILED;
    return FLOW_NEXT;
}

static enum flow run_with(struct eval *e, const struct node *n)
{
    for (size_t i = 0; i < n->list.n; i++) {
        struct value v;
        if (!eval_expression(e, n->list.at[i]->b, &v) || !assign(e, n->list.at[i]->a, &v))
            return FLOW_FAILED;
    }
    scope_enter(e, n->scope);
    return run_all(e, &n->body);
}

static enum flow run_kind(struct eval *e, const struct node *n)
{
    struct value v;
    switch (n->kind) {
    case N_DATA:
        return emit(e, n->value.text, n->value.len) ? FLOW_NEXT : FLOW_FAILED;
    case N_PRINT:
        return eval_expression(e, n->a, &v) && emit_value(e, &v) ? FLOW_NEXT : FLOW_FAILED;
    case N_IF:
        return run_if(e, n);
    case N_FOR:
        return run_for(e, n);
    case N_SET:
        return eval_expression(e, n->b, &v) && assign(e, n->a, &v) ? FLOW_NEXT : FLOW_FAILED;
    case N_SET_BLOCK:
    case N_FILTER_BLOCK:
        return run_set_block(e, n);
    case N_MACRO:
        if (!macro_value(e, n, &v))
            return FLOW_FAILED;
        *slot_of(e, &n->ref) = v;
        return FLOW_NEXT;
    case N_CALL_BLOCK:
        return run_call_block(e, n);
    case N_WITH:
        return run_with(e, n);
    case N_SCOPED:
        scope_enter(e, n->scope);
        return run_all(e, &n->body);
    case N_BREAK:
        return FLOW_BREAK;
    case N_CONTINUE:
        return FLOW_CONTINUE;
    default:
        eval_fail(e, ERROR_INVALID, "this is not a statement");
        return FLOW_FAILED;
    }
}

static enum flow run_all(struct eval *e, const struct nodes *nodes)
{
    if (++e->depth > EVAL_MAX_DEPTH) {
        eval_fail(e, ERROR_LIMIT, "evaluation is nested more than %d deep", EVAL_MAX_DEPTH);
        return FLOW_FAILED;
    }
    enum flow flow = FLOW_NEXT;
    for (size_t i = 0; i < nodes->n && flow == FLOW_NEXT; i++) {
        e->line = nodes->at[i]->line;
        flow = eval_step(e, 1) ? run_kind(e, nodes->at[i]) : FLOW_FAILED;
    }
    e->depth--;
    return flow;
}

/* The named arguments that no parameter took: into kwargs if the macro has it, else an error. */
static bool take_named(struct eval *e, const struct macro *macro, const struct args *args,
                       const bool *used, struct activation *a)
{
    const struct node *d = macro->definition;
    struct dict *rest = dict_new(&e->arena);
    if (!rest)
        return eval_fail_memory(e);
    for (size_t i = 0; i < args->n_named; i++) {
        const struct named *named = &args->named[i];
        if (used[i])
            continue;
        if (d->scope->caller_slot >= 0 && value_is_text(&named->name, "caller"))
            a->slots[d->scope->caller_slot] = named->value;
        else if (d->scope->kwargs_slot < 0)
            return eval_fail(e, ERROR_INVALID, "the macro '%.*s' has no parameter '%.*s'",
                             (int)d->value.len, d->value.text, (int)named->name.len,
                             named->name.text);
        else if (!put(e, rest, named->name, named->value))
            return false;
    }
    if (d->scope->kwargs_slot >= 0)
        a->slots[d->scope->kwargs_slot] = (struct value){.kind = V_DICT, .dict = rest};
    return true;
}

static bool bind_arguments(struct eval *e, const struct macro *macro, const struct args *args,
                           struct activation *a)
{
    const struct node *d = macro->definition;
    bool *used = arena_alloc(&e->arena, args->n_named);
    if (!used)
        return eval_fail_memory(e);
    for (size_t i = 0; i < d->list.n; i++) {
        struct value *slot = &a->slots[d->list.at[i]->ref.slot];
        if (i < args->n) {
            *slot = args->items[i];
            continue;
        }
        const struct value *name = &d->list.at[i]->value;
        for (size_t k = 0; k < args->n_named; k++) {
            const struct named *named = &args->named[k];
            if (named->name.len == name->len &&
                memcmp(named->name.text, name->text, name->len) == 0) {
                *slot = named->value;
                used[k] = true;
            }
        }
    }
    if (args->n > d->list.n && d->scope->varargs_slot < 0)
        return eval_fail(e, ERROR_INVALID, "the macro '%.*s' takes at most %zu arguments, not %zu",
                         (int)d->value.len, d->value.text, d->list.n, args->n);
    if (d->scope->varargs_slot >= 0) {
        struct list *rest = list_new(&e->arena, args->n);
        if (!rest)
            return eval_fail_memory(e);
        for (size_t i = d->list.n; i < args->n; i++)
            if (!push(e, rest, args->items[i]))
                return false;
        a->slots[d->scope->varargs_slot] = (struct value){.kind = V_TUPLE, .list = rest};
    }
    return take_named(e, macro, args, used, a);
}

static bool fill_defaults(struct eval *e, const struct node *d)
{
    for (size_t i = 0; i < d->list.n; i++) {
        const struct node *p = d->list.at[i];
        struct value *slot = &e->activation->slots[p->ref.slot];
        if (slot->kind != V_MISSING)
            continue;
        if (p->a ? !eval_expression(e, p->a, slot)
                 : !undefined_hint(e, "a parameter of a macro was not given", slot))
            return false;
    }
    if (d->scope->caller_slot >= 0 && e->activation->slots[d->scope->caller_slot].kind == V_MISSING)
        return undefined_hint(e, "no caller is defined",
                              &e->activation->slots[d->scope->caller_slot]);
    return true;
}

bool macro_call(struct eval *e, const struct macro *macro, const struct args *args,
                struct value *out)
{
    const struct node *d = macro->definition;
    if (++e->n_calls > EVAL_MAX_CALLS)
        return eval_fail(e, ERROR_LIMIT, "macros call each other more than %d deep",
                         EVAL_MAX_CALLS);
    struct activation *a =
        arena_alloc(&e->arena, sizeof *a + (size_t)d->n_slots * sizeof a->slots[0]);
    if (!a)
        return eval_fail_memory(e);
    a->up = macro->closure;
    struct activation *caller = e->activation;
    struct str *outer = e->out;
    if (!bind_arguments(e, macro, args, a))
        return false;
    e->activation = a;
    scope_enter(e, d->scope);
    if (!fill_defaults(e, d) || !capture_begin(e))
        return false;
    if (run_all(e, &d->body) == FLOW_FAILED)
        return false;
    e->activation = caller;
    e->n_calls--;
    return capture_end(e, outer, out);
}

bool eval_template(struct eval *e, const struct ast *ast)
{
    struct activation *a =
        arena_alloc(&e->arena, sizeof *a + (size_t)ast->n_slots * sizeof a->slots[0]);
    if (!a)
        return eval_fail_memory(e);
    e->activation = a;
    e->out = &e->text;
    scope_enter(e, ast->scope);
    return run_all(e, &ast->body) != FLOW_FAILED;
}
