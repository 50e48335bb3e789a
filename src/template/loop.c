/* The "loop" variable: where a for stands, and a look at its neighbours. */
#include "template/eval.h"

#include <string.h>

/* True if loop_length has replaced the iterable by a list of the items that passed the filter. */
static bool is_drained(const struct loop *loop)
{
    return loop->it.of.kind == V_LIST && loop->it.of.flag;
}

/* The next item of the iterable that passes the filter. */
static int pull(struct eval *e, struct loop *loop, struct value *out)
{
    const struct node *n = loop->node;
    bool has_filter = n->c && !is_drained(loop);
    for (;;) {
        int got = iterator_next(&e->arena, &loop->it, out);
        if (got < 0)
            eval_fail_memory(e);
        if (got <= 0 || !has_filter)
            return got;
        /* loop.last of an outer loop may be asked inside a macro: the filter has its own variables.
         */
        struct activation *inside = e->activation;
        struct value pass;
        e->activation = loop->activation;
        bool ok = assign(e, n->test_target, out);
        if (ok) {
            scope_enter(e, n->test_scope);
            ok = eval_expression(e, n->c, &pass);
        }
        e->activation = inside;
        if (!ok)
            return -1;
        if (value_truth(&pass))
            return 1;
    }
}

/* 1 if there is a next item (then loop->next is it). */
static int peek(struct eval *e, struct loop *loop)
{
    if (loop->has_next)
        return 1;
    int got = pull(e, loop, &loop->next);
    loop->has_next = got == 1;
    return got;
}

int loop_next(struct eval *e, struct loop *loop, struct value *out)
{
    int got = peek(e, loop);
    if (got <= 0)
        return got;
    bool started = loop->current.kind != V_MISSING;
    if (started) {
        loop->previous = loop->current;
        loop->has_previous = true;
        loop->index0++;
    }
    loop->current = loop->next;
    loop->has_next = false;
    *out = loop->current;
    return 1;
}

/* Items in all. What cannot be counted is walked to its end first, and the rest of the loop then
 * walks that list. */
static bool loop_length(struct eval *e, struct loop *loop, size_t *out)
{
    size_t n;
    if (is_drained(loop)) {
        *out = loop->it.of.list->n - loop->it.at + loop->index0 + 1 + loop->has_next;
        return true;
    }
    if (!loop->node->c && value_len(&loop->it.of, &n)) {
        *out = n;
        return true;
    }
    struct list *rest = list_new(&e->arena, 8);
    if (!rest)
        return eval_fail_memory(e);
    for (;;) {
        struct value v;
        int got = pull(e, loop, &v);
        if (got < 0 || (got == 1 && !push(e, rest, v)))
            return false;
        if (got == 0)
            break;
    }
    loop->it = (struct iterator){.of = list_value(rest)};
    loop->it.of.flag = 1;
    *out = rest->n + loop->index0 + 1 + loop->has_next;
    return true;
}

static bool loop_cycle(struct eval *e, const struct args *args, struct value *out)
{
    if (args->n < 2)
        return eval_fail(e, ERROR_INVALID, "loop.cycle needs at least one value");
    *out = args->items[1 + args->items[0].loop->index0 % (args->n - 1)];
    return true;
}

static bool loop_changed(struct eval *e, const struct args *args, struct value *out)
{
    struct loop *loop = args->items[0].loop;
    struct list *now = list_new(&e->arena, args->n);
    bool same = false;
    if (!now)
        return eval_fail_memory(e);
    for (size_t i = 1; i < args->n; i++)
        if (!push(e, now, args->items[i]))
            return false;
    if (loop->changed) {
        struct value a = list_value(now), b = list_value(loop->changed);
        if (!value_equal(e, &a, &b, &same))
            return false;
    }
    loop->changed = now;
    *out = value_bool(!same);
    return true;
}

static bool bound(struct eval *e, const struct builtin *method, struct loop *loop,
                  struct value *out)
{
    struct method_object *m = arena_alloc(&e->arena, sizeof *m);
    if (!m)
        return eval_fail_memory(e);
    *m = (struct method_object){{.kind = V_LOOP, .loop = loop}, method};
    *out = (struct value){.kind = V_METHOD, .method = m};
    return true;
}

bool loop_attribute(struct eval *e, struct loop *loop, const struct value *name, struct value *out)
{
    static const struct builtin cycle = {"cycle", loop_cycle}, changed = {"changed", loop_changed};
    int64_t index0 = (int64_t)loop->index0;
    size_t length = 0;
    if (value_is_text(name, "index0")) {
        *out = value_int(index0);
    } else if (value_is_text(name, "index")) {
        *out = value_int(index0 + 1);
    } else if (value_is_text(name, "first")) {
        *out = value_bool(index0 == 0);
    } else if (value_is_text(name, "last")) {
        int got = peek(e, loop);
        *out = value_bool(got == 0);
        return got >= 0;
    } else if (value_is_text(name, "length") || value_is_text(name, "revindex") ||
               value_is_text(name, "revindex0")) {
        if (!loop_length(e, loop, &length))
            return false;
        int64_t left = (int64_t)length - index0;
        *out = value_int(name->len == 6 ? (int64_t)length : name->len == 8 ? left : left - 1);
    } else if (value_is_text(name, "previtem")) {
        if (!loop->has_previous)
            return undefined_hint(e, "there is no previous item", out);
        *out = loop->previous;
    } else if (value_is_text(name, "nextitem")) {
        int got = peek(e, loop);
        if (got == 0)
            return undefined_hint(e, "there is no next item", out);
        *out = loop->next;
        return got == 1;
    } else if (value_is_text(name, "depth")) {
        *out = value_int(1);
    } else if (value_is_text(name, "depth0")) {
        *out = value_int(0);
    } else if (value_is_text(name, "cycle")) {
        return bound(e, &cycle, loop, out);
    } else if (value_is_text(name, "changed")) {
        return bound(e, &changed, loop, out);
    } else {
        return undefined_name(e, name, out);
    }
    return true;
}
