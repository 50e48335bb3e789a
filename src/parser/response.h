/* The two declarative descriptions of a model's output, compiled once a model. */
#ifndef CSGL_PARSER_RESPONSE_H
#define CSGL_PARSER_RESPONSE_H

#include "base/arena.h"
#include "parser/emitter.h"
#include "parser/pattern.h"

/* Where a field of the description goes in an OpenAI message. */
enum response_role { ROLE_NONE, ROLE_CONTENT, ROLE_REASONING, ROLE_CALLS };

/* content, thinking (or reasoning, reasoning_content), tool_calls; other fields have no place. */
enum response_role response_role_of(const char *field_name);

enum { RESPONSE_MAX_FIELDS = 64 };

struct response_field {
    const char *name;
    enum response_role role;
    struct pattern *open, *close; /* NULL: the implicit field; to the end of the stream */
    const char *content;          /* the content parser's name */
    const struct json *args;      /* its arguments, or NULL */
    const struct json *transform; /* or NULL */
    const struct json *join;      /* a string, or NULL */
    bool transform_each;
    bool is_prose; /* text that can be reported as it comes */
    bool strip;    /* for prose: blanks at both ends are dropped */
};

struct parser_response {
    struct arena arena; /* owns the tree and all that is read from it */
    bool is_schema;
    struct json tree; /* the response_template or response_schema */
    struct response_field *fields;
    size_t n_fields;
    int implicit; /* index of the field without an opener, or -1 */
    struct pattern *anchor;
};

/* Checks and compiles response->tree. */
enum status response_template_load(struct parser_response *response, struct error *error);
/* The same for a schema: its regular expressions and transforms. */
enum status response_schema_check(const struct parser_response *response, struct error *error);

/* Reports one value of a field in its role: a string as text, calls as whole calls. False, and
 * nothing reported, if a call does not have the shape {function: {name, arguments}} or {name,
 * arguments}. */
bool response_emit(struct emitter *e, enum response_role role, const struct json *value);

#endif
