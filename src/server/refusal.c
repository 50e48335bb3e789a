#include "server/refusal.h"

#include "server/http.h"

#include <stdarg.h>
#include <stdio.h>

enum { SHOWN_BYTES = 80 /* of a value that is quoted to the client */ };

/* Cuts a string that snprintf may have cut inside a character. */
static void trim_utf8(char *text)
{
    size_t at = 0, n = 0;
    while (text[n])
        n++;
    while (at < n) {
        size_t sequence = utf8_sequence(text + at, n - at);
        if (!sequence)
            break;
        at += sequence;
    }
    text[at] = 0;
}

enum status refuse(struct refusal *refusal, int http_status, const char *code, const char *param,
                   const char *format, ...)
{
    va_list args;
    *refusal = (struct refusal){.http_status = http_status, .code = code};
    snprintf(refusal->param, sizeof refusal->param, "%s", param ? param : "");
    va_start(args, format);
    vsnprintf(refusal->message, sizeof refusal->message, format, args);
    va_end(args);
    trim_utf8(refusal->param);
    trim_utf8(refusal->message);
    return ERROR_INVALID;
}

enum status refuse_value(struct refusal *refusal, const char *param, const struct json *value,
                         const char *what)
{
    struct str text = {0};
    char shown[SHOWN_BYTES + 4];
    if (value->type == JT_ARRAY)
        str_printf(&text, "an array of %zu", value->n);
    else if (value->type == JT_OBJECT)
        str_append_z(&text, "an object");
    else
        json_write(&text, value);
    snprintf(shown, sizeof shown, "%.*s%s", SHOWN_BYTES, str_z(&text),
             text.len > SHOWN_BYTES ? "..." : "");
    trim_utf8(shown);
    str_done(&text);
    return refuse(refusal, 400, "invalid_value", param, "'%s' is %s; it must be %s.", param, shown,
                  what);
}

enum status refuse_memory(struct refusal *refusal)
{
    return refuse(refusal, 500, "out_of_memory", NULL,
                  "The server has no memory for this request; send a smaller one or try later.");
}

void refusal_send(const struct refusal *refusal, struct http_request *request)
{
    http_error(request, refusal->http_status, NULL, refusal->param[0] ? refusal->param : NULL,
               refusal->code, refusal->message, refusal->retry_after);
}
