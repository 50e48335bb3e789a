/* Methods of str. items[0] is the string. */
#include "template/methods_text.h"

#include "template/strings.h"
#include "template/text.h"

#include <string.h>

static bool no_arguments(struct eval *e, const struct args *args)
{
    return (args->n == 1 && args->n_named == 0) ||
           eval_fail(e, ERROR_INVALID, "this method of str takes no argument");
}

#define CASE_METHOD(name, change)                                                                  \
    bool text_method_##name(struct eval *e, const struct args *args, struct value *out)            \
    {                                                                                              \
        return no_arguments(e, args) && string_change_case(e, &args->items[0], change, out);       \
    }

CASE_METHOD(upper, CASE_UPPER)
CASE_METHOD(lower, CASE_LOWER)
CASE_METHOD(casefold, CASE_LOWER)
CASE_METHOD(capitalize, CASE_CAPITALIZE)
CASE_METHOD(title, CASE_TITLE)
CASE_METHOD(swapcase, CASE_SWAP)

static bool is_numeric(uint32_t c)
{
    return text_is_digit(c);
}

static bool is_alnum(uint32_t c)
{
    return text_is_alpha(c) || text_is_digit(c);
}

/* True if there are characters and all of them are of the class. */
static bool all_are(const struct value *v, bool (*is)(uint32_t c))
{
    for (size_t i = 0, bytes; i < v->len; i += bytes)
        if (!is(text_decode(v->text + i, v->len - i, &bytes)))
            return false;
    return v->len > 0;
}

#define CLASS_METHOD(name, class)                                                                  \
    bool text_method_##name(struct eval *e, const struct args *args, struct value *out)            \
    {                                                                                              \
        *out = value_bool(all_are(&args->items[0], class));                                        \
        return no_arguments(e, args);                                                              \
    }

CLASS_METHOD(isalpha, text_is_alpha)
CLASS_METHOD(isalnum, is_alnum)
CLASS_METHOD(isdigit, text_is_digit)
CLASS_METHOD(isdecimal, text_is_digit)
CLASS_METHOD(isnumeric, is_numeric)
CLASS_METHOD(isspace, text_is_space)

bool text_method_isascii(struct eval *e, const struct args *args, struct value *out)
{
    const struct value *v = &args->items[0];
    *out = value_bool(text_count(v->text, v->len) == v->len && !memchr(v->text, 0x80, v->len));
    for (size_t i = 0; i < v->len; i++)
        if ((unsigned char)v->text[i] >= 0x80)
            *out = value_bool(false);
    return no_arguments(e, args);
}

static bool case_test(struct eval *e, const struct args *args, const char *test, struct value *out)
{
    struct value name = value_z(test);
    return no_arguments(e, args) && test_find(&name)->call(e, args, out);
}

bool text_method_islower(struct eval *e, const struct args *args, struct value *out)
{
    return case_test(e, args, "lower", out);
}

bool text_method_isupper(struct eval *e, const struct args *args, struct value *out)
{
    return case_test(e, args, "upper", out);
}

static bool strip(struct eval *e, const struct args *args, bool left, bool right, struct value *out)
{
    static const char *const names[] = {"self", "chars"};
    const struct value *v[2];
    struct value chars;
    if (!args_take(e, args, "strip", names, 1, 2, v))
        return false;
    bool by_chars = v[1] && v[1]->kind != V_NONE;
    return arg_text(e, by_chars ? v[1] : NULL, "strip", "", &chars) &&
           string_strip(e, v[0], by_chars ? &chars : NULL, left, right, out);
}

bool text_method_strip(struct eval *e, const struct args *args, struct value *out)
{
    return strip(e, args, true, true, out);
}

bool text_method_lstrip(struct eval *e, const struct args *args, struct value *out)
{
    return strip(e, args, true, false, out);
}

bool text_method_rstrip(struct eval *e, const struct args *args, struct value *out)
{
    return strip(e, args, false, true, out);
}

static bool justify(struct eval *e, const struct args *args, char align, struct value *out)
{
    static const char *const names[] = {"self", "width", "fillchar"};
    const struct value *v[3];
    struct value fill;
    int64_t width;
    return args_take(e, args, "justify", names, 2, 3, v) &&
           arg_int(e, v[1], "justify", 0, &width) && arg_text(e, v[2], "justify", " ", &fill) &&
           string_justify(e, v[0], width, &fill, align, out);
}

bool text_method_center(struct eval *e, const struct args *args, struct value *out)
{
    return justify(e, args, '^', out);
}

bool text_method_ljust(struct eval *e, const struct args *args, struct value *out)
{
    return justify(e, args, '<', out);
}

bool text_method_rjust(struct eval *e, const struct args *args, struct value *out)
{
    return justify(e, args, '>', out);
}

bool text_method_zfill(struct eval *e, const struct args *args, struct value *out)
{
    static const char *const names[] = {"self", "width"};
    const struct value *v[2];
    struct value digits, sign, zero = value_text("0", 1);
    int64_t width;
    if (!args_take(e, args, "zfill", names, 2, 2, v) || !arg_int(e, v[1], "zfill", 0, &width))
        return false;
    size_t signs = v[0]->len && (v[0]->text[0] == '-' || v[0]->text[0] == '+');
    sign = value_text(v[0]->text, signs);
    digits = value_text(v[0]->text + signs, v[0]->len - signs);
    return string_justify(e, &digits, width - (int64_t)signs, &zero, '>', &digits) &&
           concatenate(e, &sign, &digits, out);
}

bool text_method_replace(struct eval *e, const struct args *args, struct value *out)
{
    static const char *const names[] = {"self", "old", "new", "count"};
    const struct value *v[4];
    struct value old, new_text;
    int64_t count;
    return args_take(e, args, "replace", names, 3, 4, v) &&
           arg_text(e, v[1], "replace", "", &old) && arg_text(e, v[2], "replace", "", &new_text) &&
           arg_int(e, v[3], "replace", -1, &count) &&
           string_replace(e, v[0], &old, &new_text, count, out);
}

/* The part of the string between the code points `start` and `end`, as find and startswith take
 * them;
 * `*begin` is its byte offset. False if start lies behind the end of the string. */
static bool window(struct eval *e, const struct value *v, const struct value *start,
                   const struct value *end, struct value *out, size_t *begin, bool *ok)
{
    int64_t from, to, n = (int64_t)text_count(v->text, v->len);
    *ok = false;
    if (!arg_int(e, start && start->kind != V_NONE ? start : NULL, "start", 0, &from) ||
        !arg_int(e, end && end->kind != V_NONE ? end : NULL, "end", n, &to))
        return false;
    *ok = true;
    from = from < 0 ? (from + n < 0 ? 0 : from + n) : from;
    to = to < 0 ? (to + n < 0 ? 0 : to + n) : to > n ? n : to;
    if (from > n || to < from)
        return false;
    *begin = text_offset(v->text, v->len, (size_t)from);
    *out = value_text(v->text + *begin,
                      text_offset(v->text + *begin, v->len - *begin, (size_t)(to - from)));
    return true;
}

static bool has_affix(const struct value *v, const struct value *affix, bool at_end)
{
    return affix->len <= v->len &&
           memcmp(at_end ? v->text + v->len - affix->len : v->text, affix->text, affix->len) == 0;
}

static bool affix_test(struct eval *e, const struct args *args, bool at_end, struct value *out)
{
    static const char *const names[] = {"self", "prefix", "start", "end"};
    const char *what = at_end ? "endswith" : "startswith";
    const struct value *v[4];
    struct value part;
    size_t begin;
    bool ok, found = false;
    if (!args_take(e, args, what, names, 2, 4, v))
        return false;
    bool inside = window(e, v[0], v[2], v[3], &part, &begin, &ok);
    if (!ok)
        return false;
    bool is_tuple = v[1]->kind == V_TUPLE;
    size_t n = is_tuple ? v[1]->list->n : 1;
    for (size_t i = 0; i < n; i++) {
        struct value affix;
        if (!arg_text(e, is_tuple ? &v[1]->list->items[i] : v[1], what, "", &affix))
            return false;
        found |= inside && has_affix(&part, &affix, at_end);
    }
    *out = value_bool(found);
    return true;
}

bool text_method_startswith(struct eval *e, const struct args *args, struct value *out)
{
    return affix_test(e, args, false, out);
}

bool text_method_endswith(struct eval *e, const struct args *args, struct value *out)
{
    return affix_test(e, args, true, out);
}

static bool remove_affix(struct eval *e, const struct args *args, bool at_end, struct value *out)
{
    static const char *const names[] = {"self", "affix"};
    const struct value *v[2];
    struct value affix;
    if (!args_take(e, args, "removeprefix", names, 2, 2, v) ||
        !arg_text(e, v[1], "removeprefix", "", &affix))
        return false;
    size_t n = has_affix(v[0], &affix, at_end) ? affix.len : 0;
    *out = value_text(v[0]->text + (at_end ? 0 : n), v[0]->len - n);
    return true;
}

bool text_method_removeprefix(struct eval *e, const struct args *args, struct value *out)
{
    return remove_affix(e, args, false, out);
}

bool text_method_removesuffix(struct eval *e, const struct args *args, struct value *out)
{
    return remove_affix(e, args, true, out);
}

/* The last occurrence, or NULL. */
static const char *find_last(const char *s, size_t n, const char *what, size_t k)
{
    for (size_t i = n >= k ? n - k + 1 : 0; i-- > 0;)
        if (memcmp(s + i, what, k) == 0)
            return s + i;
    return NULL;
}

/* The code point index of the first or last occurrence, or -1. */
static bool find(struct eval *e, const struct args *args, bool last, int64_t *out)
{
    static const char *const names[] = {"self", "sub", "start", "end"};
    const struct value *v[4];
    struct value part, sub;
    size_t begin;
    bool ok;
    *out = -1;
    if (!args_take(e, args, "find", names, 2, 4, v) || !arg_text(e, v[1], "find", "", &sub) ||
        !eval_step(e, v[0]->len / 16 + 1))
        return false;
    if (!window(e, v[0], v[2], v[3], &part, &begin, &ok))
        return ok;
    const char *found;
    if (last)
        found = find_last(part.text, part.len, sub.text, sub.len);
    else
        found = sub.len ? memmem(part.text, part.len, sub.text, sub.len) : part.text;
    if (found)
        *out = (int64_t)text_count(v[0]->text, (size_t)(found - v[0]->text));
    return true;
}

static bool find_or_fail(struct eval *e, const struct args *args, bool last, struct value *out)
{
    int64_t i;
    if (!find(e, args, last, &i))
        return false;
    *out = value_int(i);
    return i >= 0 || eval_fail(e, ERROR_INVALID, "index: the substring is not there");
}

bool text_method_find(struct eval *e, const struct args *args, struct value *out)
{
    *out = (struct value){.kind = V_INT};
    return find(e, args, false, &out->integer);
}

bool text_method_rfind(struct eval *e, const struct args *args, struct value *out)
{
    *out = (struct value){.kind = V_INT};
    return find(e, args, true, &out->integer);
}

bool text_method_index(struct eval *e, const struct args *args, struct value *out)
{
    return find_or_fail(e, args, false, out);
}

bool text_method_rindex(struct eval *e, const struct args *args, struct value *out)
{
    return find_or_fail(e, args, true, out);
}

bool text_method_count(struct eval *e, const struct args *args, struct value *out)
{
    static const char *const names[] = {"self", "sub", "start", "end"};
    const struct value *v[4];
    struct value part, sub;
    size_t begin, n = 0;
    bool ok;
    *out = value_int(0);
    if (!args_take(e, args, "count", names, 2, 4, v) || !arg_text(e, v[1], "count", "", &sub) ||
        !eval_step(e, v[0]->len / 64 + 1))
        return false;
    if (!window(e, v[0], v[2], v[3], &part, &begin, &ok))
        return ok;
    if (sub.len == 0) {
        *out = value_int((int64_t)text_count(part.text, part.len) + 1);
        return true;
    }
    for (size_t i = 0; i < part.len;) {
        const char *found = memmem(part.text + i, part.len - i, sub.text, sub.len);
        if (!found)
            break;
        n++;
        i = (size_t)(found - part.text) + sub.len;
    }
    *out = value_int((int64_t)n);
    return true;
}

/* ---- splitting ---- */

static bool push_part(struct eval *e, struct list *list, const struct value *v, size_t begin,
                      size_t end)
{
    struct value part = value_text(v->text + begin, end - begin);
    part.flag = v->flag;
    return eval_step(e, 1) && push(e, list, part);
}

/* By runs of white space, of which none stands at either end. */
static bool split_space(struct eval *e, const struct value *v, int64_t most, struct list *list)
{
    size_t at = text_leading_space(v->text, v->len), bytes;
    while (at < v->len) {
        if (most >= 0 && (int64_t)list->n >= most) /* the rest keeps the white space at its end */
            return push_part(e, list, v, at, v->len);
        size_t end = at;
        while (end < v->len && !text_is_space(text_decode(v->text + end, v->len - end, &bytes)))
            end += bytes;
        if (!push_part(e, list, v, at, end))
            return false;
        at = end + text_leading_space(v->text + end, v->len - end);
    }
    return true;
}

static bool rsplit_space(struct eval *e, const struct value *v, int64_t most, struct list *list)
{
    size_t end = v->len - text_trailing_space(v->text, v->len), bytes;
    while (end > 0) {
        if (most >= 0 && (int64_t)list->n >= most)
            return push_part(e, list, v, 0, end);
        size_t begin = end;
        while (begin > 0) {
            size_t k = text_last(v->text, begin);
            if (text_is_space(text_decode(v->text + begin - k, k, &bytes)))
                break;
            begin -= k;
        }
        if (!push_part(e, list, v, begin, end))
            return false;
        end = begin - text_trailing_space(v->text, begin);
    }
    return true;
}

static bool split_by(struct eval *e, const struct value *v, const struct value *separator,
                     int64_t most, struct list *list)
{
    size_t at = 0;
    while (most < 0 || (int64_t)list->n < most) {
        const char *found = memmem(v->text + at, v->len - at, separator->text, separator->len);
        if (!found)
            break;
        size_t end = (size_t)(found - v->text);
        if (!push_part(e, list, v, at, end))
            return false;
        at = end + separator->len;
    }
    return push_part(e, list, v, at, v->len);
}

static bool rsplit_by(struct eval *e, const struct value *v, const struct value *separator,
                      int64_t most, struct list *list)
{
    size_t end = v->len;
    while (most < 0 || (int64_t)list->n < most) {
        const char *found = find_last(v->text, end, separator->text, separator->len);
        if (!found)
            break;
        size_t begin = (size_t)(found - v->text) + separator->len;
        if (!push_part(e, list, v, begin, end))
            return false;
        end = begin - separator->len;
    }
    return push_part(e, list, v, 0, end);
}

static bool split(struct eval *e, const struct args *args, bool from_right, struct value *out)
{
    static const char *const names[] = {"self", "sep", "maxsplit"};
    const struct value *v[3];
    struct value separator;
    int64_t most;
    struct list *list = list_new(&e->arena, 4);
    if (!list)
        return eval_fail_memory(e);
    if (!args_take(e, args, "split", names, 1, 3, v) || !arg_int(e, v[2], "split", -1, &most) ||
        !eval_step(e, v[0]->len / 64))
        return false;
    *out = list_value(list);
    if (!v[1] || v[1]->kind == V_NONE) {
        if (!(from_right ? rsplit_space : split_space)(e, v[0], most, list))
            return false;
    } else {
        if (!arg_text(e, v[1], "split", "", &separator))
            return false;
        if (separator.len == 0)
            return eval_fail(e, ERROR_INVALID, "split: the separator is empty");
        if (!(from_right ? rsplit_by : split_by)(e, v[0], &separator, most, list))
            return false;
    }
    for (size_t i = 0, j = list->n; from_right && i + 1 < j; i++, j--) {
        struct value kept = list->items[i];
        list->items[i] = list->items[j - 1];
        list->items[j - 1] = kept;
    }
    return true;
}

bool text_method_split(struct eval *e, const struct args *args, struct value *out)
{
    return split(e, args, false, out);
}

bool text_method_rsplit(struct eval *e, const struct args *args, struct value *out)
{
    return split(e, args, true, out);
}

bool text_method_splitlines(struct eval *e, const struct args *args, struct value *out)
{
    static const char *const names[] = {"self", "keepends"};
    const struct value *v[2];
    struct list *list;
    if (!args_take(e, args, "splitlines", names, 1, 2, v) ||
        !string_lines(e, v[0], v[1] && value_truth(v[1]), &list))
        return false;
    *out = list_value(list);
    return true;
}

static bool partition(struct eval *e, const struct args *args, bool last, struct value *out)
{
    static const char *const names[] = {"self", "sep"};
    const struct value *v[2];
    struct value sep;
    struct list *list = list_new(&e->arena, 3);
    if (!list)
        return eval_fail_memory(e);
    if (!args_take(e, args, "partition", names, 2, 2, v) ||
        !arg_text(e, v[1], "partition", "", &sep))
        return false;
    if (sep.len == 0)
        return eval_fail(e, ERROR_INVALID, "partition: the separator is empty");
    const char *found = last ? find_last(v[0]->text, v[0]->len, sep.text, sep.len)
                             : memmem(v[0]->text, v[0]->len, sep.text, sep.len);
    size_t at = found ? (size_t)(found - v[0]->text) : last ? 0 : v[0]->len;
    size_t rest = found ? at + sep.len : at;
    *out = (struct value){.kind = V_TUPLE, .list = list};
    return push_part(e, list, v[0], 0, at) && push_part(e, list, v[0], at, rest) &&
           push_part(e, list, v[0], rest, v[0]->len);
}

bool text_method_partition(struct eval *e, const struct args *args, struct value *out)
{
    return partition(e, args, false, out);
}

bool text_method_rpartition(struct eval *e, const struct args *args, struct value *out)
{
    return partition(e, args, true, out);
}

bool text_method_join(struct eval *e, const struct args *args, struct value *out)
{
    static const char *const names[] = {"self", "iterable"};
    const struct value *v[2];
    struct list *list;
    struct str built = {0};
    if (!args_take(e, args, "join", names, 2, 2, v) || !to_list(e, v[1], &list))
        return false;
    for (size_t i = 0; i < list->n && built.len <= EVAL_MAX_TEXT; i++) {
        if (list->items[i].kind != V_STRING) {
            str_done(&built);
            return eval_fail(e, ERROR_INVALID, "join: item %zu is a %s, not a string", i,
                             value_type(&list->items[i]));
        }
        if (i)
            str_append(&built, v[0]->text, v[0]->len);
        str_append(&built, list->items[i].text, list->items[i].len);
    }
    return take_text(e, &built, out);
}

bool text_method_format(struct eval *e, const struct args *args, struct value *out)
{
    return format_braces(e, &args->items[0], args, out);
}
