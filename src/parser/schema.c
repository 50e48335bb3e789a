/* The older response_schema: a JSON schema whose nodes say, with regular expressions, how text is
 * taken apart. It can only be applied to whole output, so everything is reported at the end. */
#include "parser/content.h"
#include "parser/format.h"
#include "parser/query.h"
#include "parser/response.h"
#include "parser/tools.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct schema_run {
    struct arena *arena;
    size_t max_bytes; /* that a text may grow to */
    struct error *error;
};

static enum status apply(struct schema_run *run, const struct json *node, struct json value,
                         struct json *out);

static enum status invalid(struct schema_run *run, const char *what)
{
    return error_set(run->error, ERROR_INVALID, "response_schema: %s", what);
}

/* A match as a dict of its named groups, or else as its only group. */
static enum status match_value(struct schema_run *run, const struct pattern *pattern,
                               const struct pattern_scratch *s, const char *text, struct json *out)
{
    size_t start, end;
    if (!pattern_has_names(pattern)) {
        if (pattern_n_groups(pattern) != 1)
            return invalid(run, "a regular expression must have one group, or named groups");
        *out = (struct json){0};
        if (!pattern_group(s, 1, &start, &end))
            return OK;
        *out = tree_string(run->arena, text + start, end - start);
        return out->type == JT_STRING ? OK : tree_full(run->arena, run->error);
    }
    struct tree_object object = {0};
    for (unsigned i = 1; i <= pattern_n_groups(pattern); i++) {
        const char *name = pattern_group_name(pattern, i);
        if (!name || !pattern_group(s, i, &start, &end))
            continue;
        const char *key = arena_copy(run->arena, name, strlen(name));
        struct json value = tree_string(run->arena, text + start, end - start);
        if (!key || value.type != JT_STRING ||
            !tree_put(run->arena, &object, key, strlen(key), value))
            return tree_full(run->arena, run->error);
    }
    *out = tree_object_value(&object);
    return OK;
}

enum walk_mode { FIRST_MATCH, LIST_OF_MATCHES, KEYS_AND_VALUES };

/* One of the three kinds of regular expressions on `text`; null if nothing matches. */
static enum status match_text(struct schema_run *run, const struct json *source,
                              enum walk_mode mode, const struct json *text, struct json *out)
{
    if (!json_string(source))
        return invalid(run, "a regular expression must be a string");
    struct pattern *pattern;
    enum status status =
        pattern_new(source->text, source->n, "response_schema", &pattern, run->error);
    if (status != OK)
        return status;
    struct pattern_scratch *s = pattern_scratch_new(pattern);
    struct pattern_walk walk = {0};
    struct tree_array list = {0};
    struct tree_object object = {0};
    bool found = true;
    if (!s)
        status = error_memory(run->error, sizeof walk);
    while (status == OK) {
        size_t start, end;
        struct json value;
        status =
            pattern_next(pattern, s, &walk, text->text, text->n, &found, &start, &end, run->error);
        if (status != OK || !found)
            break;
        status = match_value(run, pattern, s, text->text, &value);
        if (status != OK)
            break;
        if (mode == FIRST_MATCH) {
            *out = value;
            break;
        }
        const struct json *key = json_get(&value, "key"), *its = json_get(&value, "value");
        bool ok;
        if (mode == KEYS_AND_VALUES && (!json_string(key) || !its))
            status = invalid(run, "x-regex-key-value needs the groups key and value");
        else if (ok = mode == KEYS_AND_VALUES
                          ? tree_put(run->arena, &object, key->text, key->n, *its)
                          : tree_add(run->arena, &list, value),
                 !ok)
            status = tree_full(run->arena, run->error);
    }
    if (status == OK && mode != FIRST_MATCH)
        *out = mode == LIST_OF_MATCHES ? tree_array_value(&list) : tree_object_value(&object);
    if (status == OK && (mode == FIRST_MATCH ? !found : !out->n))
        *out = (struct json){0};
    pattern_scratch_free(s);
    pattern_free(pattern);
    return status;
}

static enum status substitute(struct schema_run *run, const struct json *list, struct json *value)
{
    enum status status = OK;
    for (size_t i = 0; status == OK && list && list->type == JT_ARRAY && i < list->n; i++) {
        const struct json *pair = &list->items[i];
        if (pair->type != JT_ARRAY || pair->n != 2 || !json_string(&pair->items[0]) ||
            !json_string(&pair->items[1]))
            return invalid(run, "x-regex-substitutions must be pairs of strings");
        struct pattern *pattern;
        struct str text = {0};
        status = pattern_new(pair->items[0].text, pair->items[0].n, "response_schema", &pattern,
                             run->error);
        if (status == OK)
            status = pattern_replace(pattern, pair->items[1].text, value->text, value->n,
                                     run->max_bytes, &text, run->error);
        if (status == OK) {
            *value = tree_string(run->arena, str_z(&text), text.len);
            if (value->type != JT_STRING)
                status = tree_full(run->arena, run->error);
        }
        str_done(&text);
        pattern_free(pattern);
    }
    return status;
}

/* The regular expressions of a node, in their order; the value may become null. */
static enum status apply_patterns(struct schema_run *run, const struct json *node,
                                  struct json *value)
{
    const struct json *subs = json_get(node, "x-regex-substitutions");
    static const char *const keys[] = {"x-regex", "x-regex-iterator", "x-regex-key-value"};
    bool any = subs != NULL;
    for (int i = 0; i < 3; i++)
        any |= json_get(node, keys[i]) != NULL;
    if (any && value->type != JT_STRING)
        return invalid(run, "a regular expression is applied to what is not text");
    enum status status = substitute(run, subs, value);
    for (int i = 0; i < 3 && status == OK && value->type != JT_NULL; i++) {
        const struct json *source = json_get(node, keys[i]);
        if (json_is_null(source))
            continue;
        if (value->type != JT_STRING)
            return invalid(run, "a regular expression is applied to what is not text");
        const char *wanted = i == 1 ? "array" : "object";
        if (i > 0 && !json_string_is(json_get(node, "type"), wanted))
            return invalid(run, "the node's type does not go with its regular expression");
        struct json text = *value;
        status = match_text(run, source, (enum walk_mode)i, &text, value);
    }
    return status;
}

static enum status apply_parser(struct schema_run *run, const struct json *node, struct json *value)
{
    const struct json *parser = json_get(node, "x-parser"), *args = json_get(node, "x-parser-args");
    if (!parser)
        return OK;
    bool is_gemma = json_string_is(parser, "gemma4-tool-call");
    if (!is_gemma && !json_string_is(parser, "json"))
        return invalid(run, "the x-parser is not known");
    if (value->type != JT_STRING)
        return invalid(run, "the x-parser is applied to what is not text");
    static const struct json mark = {.type = JT_STRING, .n = 5, .text = "<|\"|>"};
    struct json pair[2] = {mark, mark};
    struct json pairs = {.type = JT_ARRAY, .n = 2, .items = pair};
    struct json delims = {.type = JT_ARRAY, .n = 1, .items = &pairs};
    struct json parsed;
    enum status status = content_lax_json(run->arena, is_gemma ? &delims : NULL, is_gemma,
                                          value->text, value->n, &parsed, run->error);
    if (status == ERROR_INVALID && python_truth(json_get(args, "allow_non_json"))) {
        parsed = *value;
        status = OK;
    }
    const char *transform = json_string(json_get(args, "transform"));
    if (status == OK && transform)
        return query_run(run->arena, transform, &parsed, value, run->error);
    *value = parsed;
    return status;
}

static enum status check_required(struct schema_run *run, const struct json *node,
                                  const struct tree_object *object)
{
    const struct json *required = json_get(node, "required");
    for (size_t i = 0; required && required->type == JT_ARRAY && i < required->n; i++)
        if (json_string(&required->items[i]) &&
            !tree_find(object, required->items[i].text, required->items[i].n))
            return invalid(run, "a required field is missing");
    return OK;
}

/* An object from a dict: its properties by their schemas, others by additionalProperties. */
static enum status from_dict(struct schema_run *run, const struct json *node,
                             const struct json *properties, const struct json *value,
                             struct tree_object *object)
{
    const struct json *additional = json_get(node, "additionalProperties");
    static const struct json any = {.type = JT_OBJECT};
    bool takes_more = !additional || additional->type != JT_BOOL || additional->boolean;
    enum status status = OK;
    for (size_t i = 0; i < properties->n && status == OK; i++) {
        const struct json_member *m = &properties->members[i];
        const struct json *its = tree_get(value, m->key, m->key_len);
        const struct json *fixed = json_get(&m->value, "const");
        struct json result;
        if (!fixed && !its)
            fixed = json_get(&m->value, "default");
        if (fixed)
            result = *fixed;
        else if (its)
            status = apply(run, &m->value, *its, &result);
        else
            continue;
        if (status == OK && !tree_put(run->arena, object, m->key, m->key_len, result))
            status = tree_full(run->arena, run->error);
    }
    for (size_t i = 0; takes_more && i < value->n && status == OK; i++) {
        const struct json_member *m = &value->members[i];
        struct json result;
        if (tree_get(properties, m->key, m->key_len))
            continue;
        status = apply(run, additional && additional->type == JT_OBJECT ? additional : &any,
                       m->value, &result);
        if (status == OK && !tree_put(run->arena, object, m->key, m->key_len, result))
            status = tree_full(run->arena, run->error);
    }
    return status;
}

static enum status to_object(struct schema_run *run, const struct json *node,
                             const struct json *value, struct json *out)
{
    static const struct json none = {.type = JT_OBJECT};
    const struct json *properties = json_get(node, "properties");
    struct tree_object object = {0};
    enum status status = OK;
    if (properties && properties->type != JT_OBJECT)
        return invalid(run, "properties must be an object");
    if (value->type == JT_STRING) {
        if (!properties)
            return invalid(run, "an object node has text but neither properties nor a parser");
        for (size_t i = 0; i < properties->n && status == OK; i++) {
            const struct json_member *m = &properties->members[i];
            struct json result;
            status = apply(run, &m->value, *value, &result);
            if (status == OK && result.type != JT_NULL &&
                !tree_put(run->arena, &object, m->key, m->key_len, result))
                status = tree_full(run->arena, run->error);
        }
    } else if (value->type == JT_OBJECT) {
        status = from_dict(run, node, properties ? properties : &none, value, &object);
    } else {
        return invalid(run, "an object node has neither text nor an object");
    }
    *out = tree_object_value(&object);
    return status == OK ? check_required(run, node, &object) : status;
}

static enum status to_array(struct schema_run *run, const struct json *node, struct json value,
                            struct json *out)
{
    const struct json *items = json_get(node, "items"), *prefix = json_get(node, "prefixItems");
    struct tree_array list = {0};
    *out = tree_array_value(&list);
    if (!python_truth(&value))
        return OK;
    bool is_prefix = !items && prefix && prefix->type == JT_ARRAY;
    if (!items && !is_prefix)
        return invalid(run, "an array node has neither items nor prefixItems");
    struct json single = value;
    if (value.type != JT_ARRAY && is_prefix && prefix->n == 1)
        value = (struct json){.type = JT_ARRAY, .n = 1, .items = &single};
    if (value.type != JT_ARRAY || (is_prefix && value.n != prefix->n))
        return invalid(run, "an array node has no list, or one of another length");
    for (size_t i = 0; i < value.n; i++) {
        struct json item;
        enum status status =
            apply(run, is_prefix ? &prefix->items[i] : items, value.items[i], &item);
        if (status != OK)
            return status;
        if (!tree_add(run->arena, &list, item))
            return tree_full(run->arena, run->error);
    }
    *out = tree_array_value(&list);
    return OK;
}

static enum status to_number(struct schema_run *run, bool is_int, const struct json *value,
                             struct json *out)
{
    *out = *value;
    int64_t whole;
    if (value->type == JT_NUMBER && (!is_int || json_int(value, INT64_MIN, INT64_MAX, &whole)))
        return OK;
    struct str text = {0};
    enum status status = OK;
    if (value->type != JT_STRING ||
        !(is_int ? python_int : python_float)(value->text, value->n, &text))
        status = invalid(run, "a value is no number");
    else
        status = json_parse(run->arena, str_z(&text), text.len, out, run->error);
    str_done(&text);
    return status;
}

static enum status to_scalar(struct schema_run *run, const char *type, const struct json *value,
                             struct json *out)
{
    *out = *value;
    if (strcmp(type, "integer") == 0 || strcmp(type, "number") == 0)
        return to_number(run, *type == 'i', value, out);
    if (strcmp(type, "string") == 0)
        return value->type == JT_STRING ? OK : invalid(run, "a value is no string");
    if (strcmp(type, "boolean") != 0)
        return strcmp(type, "any") == 0 ? OK : invalid(run, "a type is not known");
    if (value->type == JT_BOOL)
        return OK;
    const char *text = json_string(value);
    bool is_true = text && (strcasecmp(text, "true") == 0 || strcmp(text, "1") == 0);
    if (!is_true && !(text && (strcasecmp(text, "false") == 0 || strcmp(text, "0") == 0)))
        return invalid(run, "a value is no boolean");
    *out = tree_bool(is_true);
    return OK;
}

/* One node; its nesting is that of the schema's JSON. */
static enum status apply(struct schema_run *run, const struct json *node, struct json value,
                         struct json *out)
{
    *out = (struct json){0};
    const struct json *fixed = json_get(node, "const");
    if (fixed) {
        *out = *fixed;
        return OK;
    }
    if (value.type == JT_NULL)
        return OK;
    const struct json *type = json_get(node, "type");
    bool had_pattern = json_get(node, "x-regex") || json_get(node, "x-regex-iterator") ||
                       json_get(node, "x-regex-key-value");
    enum status status = apply_patterns(run, node, &value);
    if (status != OK || (had_pattern && value.type == JT_NULL))
        return status;
    status = apply_parser(run, node, &value);
    if (status != OK)
        return status;
    if (json_string_is(type, "object"))
        return to_object(run, node, &value, out);
    if (json_string_is(type, "array"))
        return to_array(run, node, value, out);
    if (json_string(type))
        return to_scalar(run, type->text, &value, out);
    *out = value;
    return OK;
}

/* Regular expressions and transforms anywhere in the schema. */
static enum status check_node(const struct json *node, struct arena *arena, struct error *error)
{
    static const char *const keys[] = {"x-regex", "x-regex-iterator", "x-regex-key-value"};
    enum status status = OK;
    for (int i = 0; i < 3 && status == OK; i++) {
        const struct json *source = json_get(node, keys[i]);
        struct pattern *pattern;
        if (!json_string(source))
            continue;
        status = pattern_new(source->text, source->n, "response_schema", &pattern, error);
        pattern_free(pattern);
    }
    const char *transform = json_string(json_get(json_get(node, "x-parser-args"), "transform"));
    static const struct json null = {0};
    struct json ignored;
    if (status == OK && transform)
        status = query_run(arena, transform, &null, &ignored, error);
    if (node->type == JT_OBJECT)
        for (size_t i = 0; i < node->n && status == OK; i++)
            status = check_node(&node->members[i].value, arena, error);
    if (node->type == JT_ARRAY)
        for (size_t i = 0; i < node->n && status == OK; i++)
            status = check_node(&node->items[i], arena, error);
    return status;
}

enum status response_schema_check(const struct parser_response *r, struct error *error)
{
    struct arena arena = {.limit = 1 << 20};
    enum status status = check_node(&r->tree, &arena, error);
    arena_done(&arena);
    return status;
}

struct schema_state {
    const struct parser_response *r;
    const struct json *tools;
    size_t max_bytes, seed; /* seed: bytes of `text` that are the prompt's */
    struct str text;
};

/* The reasoning that the prompt has opened belongs to the text that the schema describes. */
static enum status schema_make(const struct format_setup *setup, struct emitter *e, void **state,
                               struct error *error)
{
    (void)e;
    struct schema_state *s = calloc(1, sizeof *s);
    if (!s)
        return error_memory(error, sizeof *s);
    *state = s;
    s->r = setup->config->response;
    s->tools = setup->tools;
    s->max_bytes = setup->max_bytes;
    static const char open[] = "<think>";
    for (size_t at = setup->tail_len; at-- > 0;) {
        const char *rest = setup->tail + at;
        size_t n = setup->tail_len - at;
        if (marker_at(rest, n, "</think>", true) == MARKER_YES)
            break;
        if (marker_at(rest, n, open, true) == MARKER_YES) {
            str_append(&s->text, rest, n);
            s->seed = s->text.len;
            break;
        }
    }
    return OK;
}

static enum status schema_text(void *state, struct emitter *e, const char *text, size_t len,
                               struct error *error)
{
    struct schema_state *s = state;
    str_append(&s->text, text, len);
    e->failed |= s->text.failed;
    return format_check_held(s->text.len, s->max_bytes, error);
}

/* Reports the fields of the result in the order of a message. */
static bool emit_fields(struct schema_state *s, struct emitter *e, const struct json *result)
{
    static const enum response_role order[] = {ROLE_REASONING, ROLE_CONTENT, ROLE_CALLS};
    struct emitter trial = {.is_muted = true};
    bool ok = result->type == JT_OBJECT;
    for (int pass = 0; pass < 2 && ok; pass++)
        for (int k = 0; k < 3 && ok; k++)
            for (size_t i = 0; i < result->n && ok; i++)
                if (response_role_of(result->members[i].key) == order[k] &&
                    !json_is_null(&result->members[i].value))
                    ok = (order[k] != ROLE_CALLS || s->tools) &&
                         response_emit(pass ? e : &trial, order[k], &result->members[i].value);
    emitter_done(&trial);
    return ok;
}

static enum status schema_finish(void *state, struct emitter *e, enum parser_reason reason,
                                 struct error *error)
{
    (void)reason;
    struct schema_state *s = state;
    struct arena arena = {.limit = 4 * s->max_bytes};
    struct schema_run run = {.arena = &arena, .max_bytes = s->max_bytes, .error = error};
    struct json text = {.type = JT_STRING, .n = s->text.len, .text = str_z(&s->text)}, result;
    enum status status = apply(&run, &s->r->tree, text, &result);
    /* Text that the schema does not fit is content. */
    if (status != ERROR_MEMORY) {
        if (status != OK || !emit_fields(s, e, &result))
            emit_content(e, str_z(&s->text) + s->seed, s->text.len - s->seed);
        status = OK;
    }
    arena_done(&arena);
    return status;
}

static void schema_free(void *state)
{
    struct schema_state *s = state;
    str_done(&s->text);
    free(s);
}

const struct format format_schema = {schema_make, schema_text, schema_text, schema_finish,
                                     schema_free};
