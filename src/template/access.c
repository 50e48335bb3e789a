/* Attributes, subscripts and slices, with jinja2's order: ".name" asks for a method first and then
 * for the key, "['name']" the other way round. What is not there is undefined. */
#include "template/eval.h"
#include "template/text.h"

#include <stdlib.h>
#include <string.h>

static bool make_undefined(struct eval *e, struct undefined content, struct value *out)
{
    struct undefined *u = arena_alloc(&e->arena, sizeof *u);
    if (!u)
        return eval_fail_memory(e);
    *u = content;
    *out = (struct value){.kind = V_UNDEFINED, .undefined = u};
    return true;
}

bool undefined_hint(struct eval *e, const char *hint, struct value *out)
{
    return make_undefined(e, (struct undefined){.hint = hint, .line = e->line}, out);
}

bool undefined_name(struct eval *e, const struct value *name, struct value *out)
{
    return make_undefined(e, (struct undefined){.name = *name}, out);
}

static bool undefined_in(struct eval *e, const struct value *of, const struct value *name,
                         struct value *out)
{
    return make_undefined(e, (struct undefined){.object_type = value_type(of), .name = *name}, out);
}

/* The method as a value, bound to its object. */
static bool bind_method(struct eval *e, const struct value *of, const struct builtin *method,
                        struct value *out)
{
    struct method_object *m = arena_alloc(&e->arena, sizeof *m);
    if (!m)
        return eval_fail_memory(e);
    *m = (struct method_object){*of, method};
    *out = (struct value){.kind = V_METHOD, .method = m};
    return true;
}

static bool group_attribute(const struct value *of, const struct value *name, struct value *out)
{
    bool is_key = value_is_text(name, "grouper");
    if (of->kind != V_TUPLE || !of->flag || (!is_key && !value_is_text(name, "list")))
        return false;
    *out = of->list->items[is_key ? 0 : 1];
    return true;
}

bool get_attribute(struct eval *e, const struct value *of, const struct value *name, int method,
                   struct value *out)
{
    const struct builtin *found = method >= 0 ? method_of(method, of) : NULL;
    if (found)
        return bind_method(e, of, found, out);
    switch ((enum value_kind)of->kind) {
    case V_UNDEFINED:
        return eval_fail_undefined(e, of);
    case V_DICT:
    case V_NAMESPACE: {
        const struct value *v = dict_get(of->dict, name);
        if (v) {
            *out = *v;
            return true;
        }
        break;
    }
    case V_LOOP:
        return loop_attribute(e, of->loop, name, out);
    case V_MACRO:
        if (value_is_text(name, "name")) {
            *out = of->macro->definition->value;
            return true;
        }
        break;
    case V_TUPLE:
        if (group_attribute(of, name, out))
            return true;
        break;
    default:
        break;
    }
    return undefined_in(e, of, name, out);
}

/* Item `i` of something ordered, counting from the end if negative; false if it is not there. */
static bool item_at(const struct value *of, int64_t i, struct value *out)
{
    size_t n;
    if (!value_len(of, &n))
        return false;
    if (i < 0)
        i += (int64_t)n;
    if (i < 0 || (uint64_t)i >= n)
        return false;
    if (of->kind != V_STRING) {
        *out = value_at(of, (size_t)i);
        return true;
    }
    size_t start = text_offset(of->text, of->len, (size_t)i), bytes;
    text_decode(of->text + start, of->len - start, &bytes);
    *out = value_text(of->text + start, bytes);
    out->flag = of->flag;
    return true;
}

bool get_item(struct eval *e, const struct value *of, const struct value *index, struct value *out)
{
    int64_t i;
    switch ((enum value_kind)of->kind) {
    case V_UNDEFINED:
        return eval_fail_undefined(e, of);
    case V_DICT: {
        const struct value *v = value_hashable(index) ? dict_get(of->dict, index) : NULL;
        if (v) {
            *out = *v;
            return true;
        }
        break;
    }
    case V_STRING:
        if (!eval_step(e, of->len / 64))
            return false;
        /* fall through */
    case V_LIST:
    case V_TUPLE:
    case V_RANGE:
        if (value_integer(index, &i) && item_at(of, i, out))
            return true;
        break;
    default:
        break;
    }
    if (index->kind != V_STRING)
        return undefined_in(e, of, index, out);
    if (of->kind == V_DICT) { /* its keys have been searched */
        const struct builtin *method = method_of(method_find(index), of);
        return method ? bind_method(e, of, method, out) : undefined_in(e, of, index, out);
    }
    return get_attribute(e, of, index, method_find(index), out);
}

/* One bound of a slice in [low, high]. */
static bool slice_bound(struct eval *e, const struct value *v, int64_t otherwise, int64_t n,
                        int64_t low, int64_t high, int64_t *out)
{
    if (v->kind == V_NONE) {
        *out = otherwise;
        return true;
    }
    if (v->kind == V_UNDEFINED)
        return eval_fail_undefined(e, v);
    if (!value_integer(v, out))
        return eval_fail(e, ERROR_INVALID, "a slice needs integers, not a %s", value_type(v));
    if (*out < 0)
        *out += n;
    *out = *out < low ? low : *out > high ? high : *out;
    return true;
}

static bool slice_text(struct eval *e, const struct value *of, int64_t start, int64_t stop,
                       int64_t step, struct value *out)
{
    if (step == 1) {
        size_t from = text_offset(of->text, of->len, (size_t)start);
        size_t n =
            stop > start ? text_offset(of->text + from, of->len - from, (size_t)(stop - start)) : 0;
        *out = value_text(of->text + from, n);
        out->flag = of->flag;
        return true;
    }
    /* Where each character begins, then the wanted ones one by one. */
    struct str built = {0};
    size_t n = text_count(of->text, of->len), bytes;
    uint32_t *at = arena_alloc_array(&e->arena, n + 1, sizeof *at);
    if (!at)
        return eval_fail_memory(e);
    for (size_t i = 0, k = 0; i < of->len && k < n; i += bytes, k++) {
        at[k] = (uint32_t)i;
        text_decode(of->text + i, of->len - i, &bytes);
    }
    at[n] = of->len;
    for (int64_t i = start; step > 0 ? i < stop : i > stop; i += step)
        str_append(&built, of->text + at[i], at[i + 1] - at[i]);
    if (!take_text(e, &built, out))
        return false;
    out->flag = of->flag;
    return true;
}

/* A slice of a range is a range. */
static bool slice_range(struct eval *e, const struct range *of, int64_t start, int64_t stop,
                        int64_t step, struct value *out)
{
    struct range *range = arena_alloc(&e->arena, sizeof *range);
    int64_t span = step > 0 ? stop - start : start - stop, stride = step > 0 ? step : -step;
    int64_t a, b;
    if (!range)
        return eval_fail_memory(e);
    if (__builtin_mul_overflow(start, of->step, &a) || __builtin_add_overflow(a, of->start, &a) ||
        __builtin_mul_overflow(stop, of->step, &b) || __builtin_add_overflow(b, of->start, &b) ||
        __builtin_mul_overflow(step, of->step, &step))
        return eval_fail(e, ERROR_UNSUPPORTED, "the bounds of a range do not fit 64 bits");
    *range = (struct range){a, b, step, span > 0 ? (size_t)((span + stride - 1) / stride) : 0};
    *out = (struct value){.kind = V_RANGE, .range = range};
    return true;
}

bool get_slice(struct eval *e, const struct value *of, const struct value part[3],
               struct value *out)
{
    size_t n;
    int64_t start, stop, step = 1;
    if (of->kind == V_UNDEFINED)
        return eval_fail_undefined(e, of);
    if ((of->kind != V_STRING && of->kind != V_LIST && of->kind != V_TUPLE &&
         of->kind != V_RANGE) ||
        !value_len(of, &n))
        return eval_fail(e, ERROR_INVALID, "a value of type %s cannot be sliced", value_type(of));
    if (part[2].kind != V_NONE && !value_integer(&part[2], &step))
        return part[2].kind == V_UNDEFINED
                   ? eval_fail_undefined(e, &part[2])
                   : eval_fail(e, ERROR_INVALID, "a slice needs integers, not a %s",
                               value_type(&part[2]));
    if (step == 0)
        return eval_fail(e, ERROR_INVALID, "the step of a slice is 0");
    int64_t count = (int64_t)n, low = step > 0 ? 0 : -1, high = step > 0 ? count : count - 1;
    /* No step reaches further than the value is long, and no sum of them overflows. */
    step = step > count + 1 ? count + 1 : step < -(count + 1) ? -(count + 1) : step;
    if (!slice_bound(e, &part[0], step > 0 ? low : high, count, low, high, &start) ||
        !slice_bound(e, &part[1], step > 0 ? high : low, count, low, high, &stop) ||
        !eval_step(e, n / 8 + 1))
        return false;
    if (of->kind == V_STRING)
        return slice_text(e, of, start, stop, step, out);
    if (of->kind == V_RANGE)
        return slice_range(e, of->range, start, stop, step, out);
    int64_t span = step > 0 ? stop - start : start - stop, stride = step > 0 ? step : -step;
    struct list *list = list_new(&e->arena, span > 0 ? (size_t)((span + stride - 1) / stride) : 0);
    if (!list)
        return eval_fail_memory(e);
    for (int64_t i = start; step > 0 ? i < stop : i > stop; i += step)
        if (!push(e, list, value_at(of, (size_t)i)))
            return false;
    *out = (struct value){.kind = of->kind == V_TUPLE ? V_TUPLE : V_LIST, .list = list};
    return true;
}

bool get_path(struct eval *e, const struct value *of, const struct value *path,
              const struct value *otherwise, struct value *out)
{
    *out = *of;
    if (path->kind != V_STRING)
        return get_item(e, of, path, out);
    for (size_t i = 0; i <= path->len;) {
        size_t end = i;
        bool digits = true;
        for (; end < path->len && path->text[end] != '.'; end++)
            digits &= path->text[end] >= '0' && path->text[end] <= '9';
        struct value part = value_text(path->text + i, end - i), from = *out;
        if (digits && end > i)
            part = value_from_digits(path->text + i, end - i);
        if (!get_item(e, &from, &part, out))
            return false;
        if (otherwise && out->kind == V_UNDEFINED)
            *out = *otherwise;
        i = end + 1;
    }
    return true;
}
