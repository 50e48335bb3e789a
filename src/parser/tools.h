/* The request's tools as far as parsing needs them: names, and the types of their parameters. */
#ifndef CSGL_PARSER_TOOLS_H
#define CSGL_PARSER_TOOLS_H

#include "base/json.h"
#include "base/str.h"

/* The function object {name, parameters} called `name`, or NULL. `tools` is OpenAI's array
 * ({type, function: {...}} or bare functions) or NULL. */
const struct json *tool_find(const struct json *tools, const char *name, size_t len);

/* The schema of parameter `key`. `is_declared`: the function lists its parameters, so that a NULL
 * result means a parameter it does not know. */
const struct json *tool_param(const struct json *function, const char *key, size_t len,
                              bool *is_declared);

enum { TOOL_MAX_TYPES = 8 };

/* The types that a schema allows, in its order: type (a name or a list), anyOf, oneOf, nullable;
 * an enum of strings without type is a string. Names are JSON schema's; "int", "float", "str",
 * "bool", "dict", "list" and the like mean what they seem to. */
enum param_type {
    PARAM_STRING,
    PARAM_INTEGER,
    PARAM_NUMBER,
    PARAM_BOOLEAN,
    PARAM_NULL,
    PARAM_OBJECT,
    PARAM_ARRAY
};
int tool_types(const struct json *schema, enum param_type types[TOOL_MAX_TYPES]);

/* Appends `raw` as JSON text of the first type that it fits, strings passed over, and true; false,
 * and nothing appended, if nothing fits: it is then a string. As transformers does it. */
bool tool_coerce(const enum param_type *types, int n, const char *raw, size_t len, struct str *out);

/* Python's int() and float() of `raw` as JSON numbers; false if they refuse it, or if it is not
 * finite. */
bool python_int(const char *raw, size_t len, struct str *out);
bool python_float(const char *raw, size_t len, struct str *out);

#endif
