/* Loading response_template and response_schema, and reporting their values. */
#include "parser/response.h"

#include "parser/content.h"
#include "parser/json_scan.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_LITERALS = 64, MAX_TREE_BYTES = 4 << 20 };

enum response_role response_role_of(const char *name)
{
    if (strcmp(name, "content") == 0)
        return ROLE_CONTENT;
    if (strcmp(name, "thinking") == 0 || strcmp(name, "reasoning") == 0 ||
        strcmp(name, "reasoning_content") == 0)
        return ROLE_REASONING;
    return strcmp(name, "tool_calls") == 0 ? ROLE_CALLS : ROLE_NONE;
}

/* The function of a call, {function: {name, arguments}} or itself; NULL if it is not one. */
static const struct json *call_function(const struct json *call, const struct json **arguments)
{
    const struct json *function = json_get(call, "function");
    if (!function)
        function = call;
    *arguments = json_get(function, "arguments");
    if (!*arguments)
        *arguments = json_get(function, "parameters");
    const struct json *a = *arguments;
    bool is_fit = json_is_null(a) || a->type == JT_OBJECT || a->type == JT_STRING;
    const struct json *name = json_get(function, "name");
    return json_string(name) && name->n && is_fit ? function : NULL;
}

static void emit_call(struct emitter *e, const struct json *function, const struct json *arguments)
{
    const struct json *name = json_get(function, "name");
    struct str text = {0};
    bool is_valid = true;
    if (json_is_null(arguments)) {
        str_append(&text, "{}", 2);
    } else if (arguments->type == JT_STRING) {
        str_append(&text, arguments->text, arguments->n);
        is_valid = json_is_valid_object(arguments->text, arguments->n);
    } else {
        json_write(&text, arguments);
    }
    emit_call_begin(e, name->text, name->n);
    emit_arguments(e, str_z(&text), text.len);
    emit_call_end(e, is_valid);
    e->failed |= text.failed;
    str_done(&text);
}

bool response_emit(struct emitter *e, enum response_role role, const struct json *value)
{
    if (role == ROLE_CALLS) {
        const struct json *arguments;
        size_t n = value->type == JT_ARRAY ? value->n : 1;
        const struct json *calls = value->type == JT_ARRAY ? value->items : value;
        for (size_t i = 0; i < n; i++)
            if (!call_function(&calls[i], &arguments))
                return false;
        for (size_t i = 0; i < n; i++) {
            const struct json *function = call_function(&calls[i], &arguments);
            emit_call(e, function, arguments);
        }
        return true;
    }
    void (*emit)(struct emitter *, const char *, size_t) =
        role == ROLE_REASONING ? emit_reasoning : emit_content;
    if (role == ROLE_NONE || json_is_null(value))
        return true;
    if (value->type == JT_STRING) {
        emit(e, value->text, value->n);
        return true;
    }
    struct str text = {0};
    json_write(&text, value);
    emit(e, str_z(&text), text.len);
    e->failed |= text.failed;
    str_done(&text);
    return true;
}

static enum status invalid(struct error *error, const char *where, const char *what)
{
    return error_set(error, ERROR_INVALID, "response_template: %.64s: %s", where, what);
}

static int by_length(const void *a, const void *b)
{
    const struct json *x = *(const struct json *const *)a, *y = *(const struct json *const *)b;
    return x->n < y->n ? 1 : x->n > y->n ? -1 : 0;
}

/* The pattern for literal delimiters: the longer ones first, so that they win. */
static enum status literals(const struct json *value, const char *where, struct pattern **out,
                            struct error *error)
{
    const struct json *list[MAX_LITERALS];
    size_t n = value->type == JT_ARRAY ? value->n : 1;
    if (n == 0 || n > MAX_LITERALS)
        return invalid(error, where, "a list of delimiters must have 1 to 64 strings");
    for (size_t i = 0; i < n; i++) {
        list[i] = value->type == JT_ARRAY ? &value->items[i] : value;
        if (!json_string(list[i]) || !list[i]->n)
            return invalid(error, where, "a delimiter must be a string that is not empty");
    }
    qsort(list, n, sizeof *list, by_length);
    struct str source = {0};
    for (size_t i = 0; i < n; i++) {
        if (i)
            str_append_char(&source, '|');
        pattern_escape(&source, list[i]->text, list[i]->n);
    }
    enum status status = source.failed ? error_memory(error, source.len)
                                       : pattern_new(str_z(&source), source.len, where, out, error);
    str_done(&source);
    return status;
}

/* KEY (literals) or KEY_pattern; `*out` is NULL if the object has neither. */
static enum status delimiter(const struct json *object, const char *key, const char *pattern_key,
                             const char *where, struct pattern **out, struct error *error)
{
    *out = NULL;
    const struct json *plain = json_get(object, key), *source = json_get(object, pattern_key);
    if (plain && source)
        return invalid(error, where, "a delimiter is given both as text and as a pattern");
    if (plain)
        return literals(plain, where, out, error);
    if (!source)
        return OK;
    if (!json_string(source))
        return invalid(error, where, "a delimiter pattern must be a string");
    return pattern_new(source->text, source->n, where, out, error);
}

static enum status check_keys(const struct json *object, const char *const *known,
                              const char *where, struct error *error)
{
    for (size_t i = 0; i < object->n; i++) {
        bool is_known = false;
        for (const char *const *k = known; *k && !is_known; k++)
            is_known = strcmp(object->members[i].key, *k) == 0;
        if (!is_known)
            return error_set(error, ERROR_UNSUPPORTED,
                             "response_template: %.64s: the key \"%.64s\" is not known", where,
                             object->members[i].key);
    }
    return OK;
}

static enum status load_field(const struct json_member *m, struct response_field *f,
                              struct error *error)
{
    static const char *const known[] = {
        "open",    "open_pattern", "close",    "close_pattern", "content",        "content_args",
        "repeats", "join",         "optional", "transform",     "transform_each", NULL};
    const struct json *v = &m->value;
    f->name = m->key;
    f->role = response_role_of(m->key);
    if (v->type != JT_OBJECT)
        return invalid(error, f->name, "a field must be an object");
    enum status status = check_keys(v, known, f->name, error);
    if (status != OK)
        return status;
    const struct json *content = json_get(v, "content");
    f->content = content ? json_string(content) : "text";
    if (!f->content || !content_is_known(f->content))
        return invalid(error, f->name, "its content parser is not known");
    status = delimiter(v, "open", "open_pattern", f->name, &f->open, error);
    if (status == OK)
        status = delimiter(v, "close", "close_pattern", f->name, &f->close, error);
    if (status != OK)
        return status;
    f->args = json_get(v, "content_args");
    f->join = json_get(v, "join");
    if (json_is_null(f->join))
        f->join = NULL;
    if (f->join && (f->join->type != JT_STRING || !python_truth(json_get(v, "repeats"))))
        return invalid(error, f->name, "join must be a string and needs repeats");
    f->transform = json_get(v, "transform");
    if (json_is_null(f->transform))
        f->transform = NULL;
    f->transform_each = python_truth(json_get(v, "transform_each"));
    if (f->transform_each && !f->transform)
        return invalid(error, f->name, "transform_each needs a transform");
    if (!f->transform &&
        ((f->open && pattern_has_names(f->open)) || (f->close && pattern_has_names(f->close))))
        return invalid(error, f->name, "a pattern's named groups need a transform");
    f->is_prose = strcmp(f->content, "text") == 0 && !f->transform && f->role != ROLE_CALLS;
    const struct json *strip = json_get(f->args, "strip");
    f->strip = !strip || python_truth(strip);
    return f->transform ? content_check_transform(f->transform, f->name, error) : OK;
}

enum status response_template_load(struct parser_response *r, struct error *error)
{
    static const char *const known[] = {
        "version", "defaults", "fields", "start_anchor", "start_anchor_pattern", NULL};
    int64_t version = 1;
    enum status status = check_keys(&r->tree, known, "the template", error);
    if (status != OK)
        return status;
    const struct json *v = json_get(&r->tree, "version");
    if (v && (!json_int(v, INT64_MIN, INT64_MAX, &version) || version != 1))
        return error_set(error, ERROR_UNSUPPORTED,
                         "response_template: version %lld is not supported; 1 is",
                         (long long)version);
    const struct json *fields = json_get(&r->tree, "fields");
    if (!fields || fields->type != JT_OBJECT || !fields->n || fields->n > RESPONSE_MAX_FIELDS)
        return invalid(error, "fields", "there must be 1 to 64 of them");
    r->fields = arena_alloc_array(&r->arena, fields->n, sizeof *r->fields);
    if (!r->fields)
        return tree_full(&r->arena, error);
    for (size_t i = 0; i < fields->n; i++) {
        r->n_fields = i + 1;
        status = load_field(&fields->members[i], &r->fields[i], error);
        if (status != OK)
            return status;
        if (r->fields[i].open)
            continue;
        if (r->implicit >= 0)
            return invalid(error, r->fields[i].name, "a second field has no opener");
        r->implicit = (int)i;
    }
    status = delimiter(&r->tree, "start_anchor", "start_anchor_pattern", "start_anchor", &r->anchor,
                       error);
    if (status == OK && !r->anchor)
        return invalid(error, "the template", "start_anchor or start_anchor_pattern is missing");
    return status;
}

void parser_response_free(struct parser_response *r)
{
    if (!r)
        return;
    for (size_t i = 0; i < r->n_fields; i++) {
        pattern_free(r->fields[i].open);
        pattern_free(r->fields[i].close);
    }
    pattern_free(r->anchor);
    arena_done(&r->arena);
    free(r);
}

enum status parser_response_new(const struct json *config, struct parser_response **out,
                                struct error *error)
{
    *out = NULL;
    const struct json *template = json_get(config, "response_template");
    const struct json *schema = json_get(config, "response_schema");
    const struct json *source = !json_is_null(template) ? template : schema;
    if (json_is_null(source))
        return OK;
    if (source->type != JT_OBJECT)
        return error_set(error, ERROR_INVALID, "%s must be an object",
                         source == template ? "response_template" : "response_schema");
    struct parser_response *r = calloc(1, sizeof *r);
    if (!r)
        return error_memory(error, sizeof *r);
    r->arena.limit = MAX_TREE_BYTES;
    r->implicit = -1;
    r->is_schema = source != template;
    struct str text = {0};
    json_write(&text, source);
    enum status status = text.failed
                             ? error_memory(error, text.len)
                             : json_parse(&r->arena, str_z(&text), text.len, &r->tree, error);
    str_done(&text);
    if (status == OK)
        status = r->is_schema ? response_schema_check(r, error) : response_template_load(r, error);
    if (status != OK) {
        parser_response_free(r);
        return status;
    }
    *out = r;
    return OK;
}
