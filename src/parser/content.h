/* The content parsers and transforms of a response_template: text of a region -> value. */
#ifndef CSGL_PARSER_CONTENT_H
#define CSGL_PARSER_CONTENT_H

#include "parser/response.h"
#include "parser/tree.h"

bool content_is_known(const char *name);

/* Parses `text` (valid UTF-8) with the parser `name`: text, int, float, bool, json, xml-inline,
 * kv-lines. The value is the arena's. ERROR_INVALID if the text does not have that form. */
enum status content_parse(struct arena *arena, const char *name, const struct json *args,
                          const char *text, size_t len, struct json *out, struct error *error);

/* The same for a field: parsed, then transformed. `captures` are the opener's named groups. */
enum status content_field(struct arena *arena, const struct response_field *field,
                          const struct json *captures, const char *text, size_t len,
                          struct json *out, struct error *error);

/* Casts the string arguments of calls in `value` to the types of the tool's schema. */
enum status content_coerce(struct arena *arena, const struct json *tools, struct json *value,
                           struct error *error);

/* ERROR_INVALID if a string of the transform mixes a {placeholder} with other text. */
enum status content_check_transform(const struct json *transform, const char *field,
                                    struct error *error);

/* One JSON document with the dialects that models write: keys without quotes; strings between other
 * marks, pairs [open, close] in `delims` (or NULL). */
enum status content_lax_json(struct arena *arena, const struct json *delims, bool unquoted_keys,
                             const char *text, size_t len, struct json *out, struct error *error);

#endif
