#include "parser/content.h"

#include "parser/tools.h"

#include <string.h>
#include <strings.h>

/* Stand for a string that was taken out of lax JSON: between them is its index. */
enum { MARK_OPEN = 1, MARK_CLOSE = 2 };

static const char *const names[] = {"text", "int",        "float",   "bool",
                                    "json", "xml-inline", "kv-lines"};

bool content_is_known(const char *name)
{
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return false;
}

static bool has_strip(const struct json *args)
{
    const struct json *strip = json_get(args, "strip");
    return !strip || python_truth(strip);
}

static const char *arg_string(const struct json *args, const char *key, const char *otherwise)
{
    const char *text = json_string(json_get(args, key));
    return text ? text : otherwise;
}

/* Takes the strings between `open` and `close` out of `text`. */
static bool take_strings(struct arena *arena, const char *text, size_t len, const char *open,
                         const char *close, struct tree_array *strings, struct str *out)
{
    size_t n_open = strlen(open), n_close = strlen(close), at = 0;
    while (n_open && n_close) {
        const char *from = len - at ? memmem(text + at, len - at, open, n_open) : NULL;
        if (!from)
            break;
        const char *body = from + n_open;
        const char *end = memmem(body, len - (size_t)(body - text), close, n_close);
        if (!end)
            break;
        str_append(out, text + at, (size_t)(from - text) - at);
        str_printf(out, "%c%zu%c", MARK_OPEN, strings->n, MARK_CLOSE);
        if (!tree_add(arena, strings, tree_string(arena, body, (size_t)(end - body))))
            return false;
        at = (size_t)(end - text) + n_close;
    }
    str_append(out, text + at, len - at);
    return true;
}

/* The index in a mark at `at`, and the offset of its end; false if delimiters have cut through it.
 */
static bool read_mark(const struct str *text, size_t at, size_t n, size_t *index, size_t *end)
{
    *index = 0;
    for (size_t i = at + 1; i < text->len && *index < n; i++) {
        char c = text->data[i];
        if (c == MARK_CLOSE) {
            *end = i;
            return i > at + 1;
        }
        if (c < '0' || c > '9')
            return false;
        *index = *index * 10 + (size_t)(c - '0');
    }
    return false;
}

/* Puts them back as JSON strings. */
static void restore_strings(const struct str *text, const struct tree_array *strings,
                            struct str *out)
{
    for (size_t i = 0; i < text->len; i++) {
        size_t index, end;
        if (text->data[i] == MARK_OPEN && read_mark(text, i, strings->n, &index, &end)) {
            json_write_string(out, strings->items[index].text, strings->items[index].n);
            i = end;
        } else {
            str_append_char(out, text->data[i]);
        }
    }
}

/* Quotes bare keys, as Python's re.sub(r"(?<=[{,])(\w+):", r'"\1":') does. */
static enum status quote_keys(const struct str *text, size_t max, struct str *out,
                              struct error *error)
{
    static const char source[] = "(?<=[{,])(\\w+):";
    struct pattern *pattern;
    enum status status = pattern_new(source, strlen(source), "unquoted_keys", &pattern, error);
    if (status == OK)
        status = pattern_replace(pattern, "\"\\1\":", str_z(text), text->len, max, out, error);
    pattern_free(pattern);
    return status;
}

static enum status take_all_strings(struct arena *arena, const struct json *delims,
                                    struct tree_array *strings, struct str *work,
                                    struct error *error)
{
    for (size_t i = 0; delims && delims->type == JT_ARRAY && i < delims->n; i++) {
        const struct json *pair = &delims->items[i];
        if (pair->type != JT_ARRAY || pair->n != 2 || !json_string(&pair->items[0]) ||
            !json_string(&pair->items[1]))
            return error_set(error, ERROR_INVALID, "string_delims must be pairs of strings");
        struct str next = {0};
        bool ok = take_strings(arena, str_z(work), work->len, pair->items[0].text,
                               pair->items[1].text, strings, &next);
        str_done(work);
        *work = next;
        if (!ok)
            return tree_full(arena, error);
    }
    return OK;
}

enum status content_lax_json(struct arena *arena, const struct json *delims, bool unquoted_keys,
                             const char *text, size_t len, struct json *out, struct error *error)
{
    bool has_delims = delims && delims->type == JT_ARRAY && delims->n;
    if (!has_delims && !unquoted_keys)
        return json_parse(arena, text, len, out, error);
    if (has_delims && (memchr(text, MARK_OPEN, len) || memchr(text, MARK_CLOSE, len)))
        return error_set(error, ERROR_INVALID, "the text contains the control characters 1 or 2");
    struct str work = {0}, quoted = {0}, whole = {0};
    struct tree_array strings = {0};
    str_append(&work, text, len);
    enum status status = take_all_strings(arena, delims, &strings, &work, error);
    if (status == OK && unquoted_keys) {
        status = quote_keys(&work, arena->limit, &quoted, error);
        struct str swap = work;
        work = quoted;
        quoted = swap;
    }
    if (status == OK && has_delims) {
        restore_strings(&work, &strings, &whole);
        struct str swap = work;
        work = whole;
        whole = swap;
    }
    if (status == OK && work.failed)
        status = error_memory(error, work.len);
    if (status == OK)
        status = json_parse(arena, str_z(&work), work.len, out, error);
    str_done(&work);
    str_done(&quoted);
    str_done(&whole);
    return status;
}

static enum status parse_json(struct arena *arena, const struct json *args, const char *text,
                              size_t len, struct json *out, struct error *error)
{
    enum status status =
        content_lax_json(arena, json_get(args, "string_delims"),
                         python_truth(json_get(args, "unquoted_keys")), text, len, out, error);
    if (status != ERROR_INVALID || !python_truth(json_get(args, "allow_non_json")))
        return status;
    if (has_strip(args))
        python_strip(&text, &len);
    *out = tree_string(arena, text, len);
    return out->type == JT_STRING ? OK : tree_full(arena, error);
}

static enum status sub_parse(struct arena *arena, const struct json *parser, const char *text,
                             size_t len, struct json *out, struct error *error)
{
    if (json_is_null(parser)) {
        *out = tree_string(arena, text, len);
        return out->type == JT_STRING ? OK : tree_full(arena, error);
    }
    return content_parse(arena, arg_string(parser, "name", "text"), json_get(parser, "args"), text,
                         len, out, error);
}

/* A key seen again replaces, or joins a list of, its values. */
static bool put_value(struct arena *arena, struct tree_object *object, const char *key, size_t len,
                      struct json value, bool merge)
{
    struct json *old = merge ? tree_find(object, key, len) : NULL;
    if (!old)
        return tree_put(arena, object, key, len, value);
    struct tree_array list = {0};
    if (old->type == JT_ARRAY) {
        for (size_t i = 0; i < old->n; i++)
            if (!tree_add(arena, &list, old->items[i]))
                return false;
    } else if (!tree_add(arena, &list, *old)) {
        return false;
    }
    if (!tree_add(arena, &list, value))
        return false;
    *old = tree_array_value(&list);
    return true;
}

static enum status add_tag(struct arena *arena, const struct pattern *pattern,
                           const struct pattern_scratch *s, const struct json *args,
                           const char *text, struct tree_object *object, struct error *error)
{
    size_t start, end, value_start = 0, value_end = 0;
    if (!pattern_group(s, pattern_group_number(pattern, "key"), &start, &end) ||
        !pattern_group_number(pattern, "key"))
        return error_set(error, ERROR_INVALID, "the tag_pattern did not capture a key");
    unsigned value_group = pattern_group_number(pattern, "value");
    bool has_value = value_group && pattern_group(s, value_group, &value_start, &value_end);
    if (value_group && !has_value)
        return error_set(error, ERROR_INVALID, "the tag_pattern did not capture a value");
    struct json value;
    enum status status = sub_parse(arena, json_get(args, "value_parser"), text + value_start,
                                   value_end - value_start, &value, error);
    if (status != OK)
        return status;
    const char *key = arena_copy(arena, text + start, end - start);
    if (!key || !put_value(arena, object, key, end - start, value,
                           python_truth(json_get(args, "merge_duplicates"))))
        return tree_full(arena, error);
    return OK;
}

static enum status parse_xml(struct arena *arena, const struct json *args, const char *text,
                             size_t len, struct json *out, struct error *error)
{
    const struct json *source = json_get(args, "tag_pattern");
    if (!json_string(source))
        return error_set(error, ERROR_INVALID, "xml-inline needs a tag_pattern");
    struct pattern *pattern;
    enum status status = pattern_new(source->text, source->n, "tag_pattern", &pattern, error);
    if (status != OK)
        return status;
    struct pattern_scratch *s = pattern_scratch_new(pattern);
    struct pattern_walk walk = {0};
    struct tree_object object = {0};
    if (!s)
        status = error_memory(error, sizeof walk);
    while (status == OK) {
        bool found;
        size_t start, end;
        status = pattern_next(pattern, s, &walk, text, len, &found, &start, &end, error);
        if (status != OK || !found)
            break;
        status = add_tag(arena, pattern, s, args, text, &object, error);
    }
    *out = tree_object_value(&object);
    pattern_scratch_free(s);
    pattern_free(pattern);
    return status;
}

static enum status add_line(struct arena *arena, const struct json *args, const char *line,
                            size_t len, struct tree_object *object, struct error *error)
{
    const char *separator = arg_string(args, "kv_sep", ":");
    bool strip = has_strip(args);
    if (strip)
        python_strip(&line, &len);
    const char *at = len && *separator ? memmem(line, len, separator, strlen(separator)) : NULL;
    if (!at)
        return OK;
    const char *key = line, *text = at + strlen(separator);
    size_t key_len = (size_t)(at - line), n = len - (size_t)(text - line);
    if (strip) {
        python_strip(&key, &key_len);
        python_strip(&text, &n);
    }
    struct json value;
    enum status status = sub_parse(arena, json_get(args, "value_parser"), text, n, &value, error);
    if (status != OK)
        return status;
    key = arena_copy(arena, key, key_len);
    return key && tree_put(arena, object, key, key_len, value) ? OK : tree_full(arena, error);
}

static enum status parse_lines(struct arena *arena, const struct json *args, const char *text,
                               size_t len, struct json *out, struct error *error)
{
    const char *separator = arg_string(args, "line_sep", "\n");
    size_t n = strlen(separator), at = 0;
    if (!n)
        return error_set(error, ERROR_INVALID, "kv-lines: line_sep is empty");
    struct tree_object object = {0};
    enum status status = OK;
    while (status == OK && at <= len) {
        const char *end = len - at ? memmem(text + at, len - at, separator, n) : NULL;
        size_t stop = end ? (size_t)(end - text) : len;
        status = add_line(arena, args, text + at, stop - at, &object, error);
        at = end ? stop + n : len + 1;
    }
    *out = tree_object_value(&object);
    return status;
}

static enum status parse_number(struct arena *arena, bool is_int, const char *text, size_t len,
                                struct json *out, struct error *error)
{
    struct str number = {0};
    enum status status = OK;
    if (!(is_int ? python_int(text, len, &number) : python_float(text, len, &number)))
        status = error_set(error, ERROR_INVALID, "\"%.*s\" is no number",
                           (int)(len < 80 ? len : 80), text);
    else
        status = json_parse(arena, str_z(&number), number.len, out, error);
    str_done(&number);
    return status;
}

enum status content_parse(struct arena *arena, const char *name, const struct json *args,
                          const char *text, size_t len, struct json *out, struct error *error)
{
    *out = (struct json){0};
    if (strcmp(name, "json") == 0)
        return parse_json(arena, args, text, len, out, error);
    if (strcmp(name, "xml-inline") == 0)
        return parse_xml(arena, args, text, len, out, error);
    if (strcmp(name, "kv-lines") == 0)
        return parse_lines(arena, args, text, len, out, error);
    if (has_strip(args))
        python_strip(&text, &len);
    if (strcmp(name, "int") == 0 || strcmp(name, "float") == 0)
        return parse_number(arena, *name == 'i', text, len, out, error);
    if (strcmp(name, "bool") == 0) {
        *out = tree_bool((len == 4 && strncasecmp(text, "true", 4) == 0) ||
                         (len == 1 && *text == '1'));
        return OK;
    }
    if (strcmp(name, "text") != 0)
        return error_set(error, ERROR_INVALID, "the content parser \"%.40s\" is not known", name);
    *out = tree_string(arena, text, len);
    return out->type == JT_STRING ? OK : tree_full(arena, error);
}
