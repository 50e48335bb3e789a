/* The variables of the chat template: those of the server, those that fields of the request stand
 * for, and the request's own, each overriding those before. */
#include "server/request.h"

#include <string.h>

enum { N_SOURCES = 3, DEFAULTS = 0, DERIVED = 1, OWN = 2 };

/* What reasoning_effort and enable_thinking say, as a JSON object. */
static enum status derive(struct request *r, struct json *out, struct refusal *refusal)
{
    struct str text = {0};
    const char *effort = r->effort;
    enum tristate thinking = r->thinking;
    if (effort && (strcmp(effort, "none") == 0 || strcmp(effort, "minimal") == 0)) {
        effort = NULL;
        if (thinking == UNSET)
            thinking = NO;
    } else if (effort && thinking == UNSET) {
        thinking = YES;
    }
    /* Templates have one word for the highest effort, and refuse the other. */
    if (effort && (strcmp(effort, "high") == 0 || strcmp(effort, "xhigh") == 0))
        effort = r->setup->knows_xhigh ? "xhigh" : "high";
    str_append_char(&text, '{');
    if (thinking != UNSET)
        str_printf(&text, "\"enable_thinking\": %s", thinking == YES ? "true" : "false");
    if (effort)
        str_printf(&text, "%s\"reasoning_effort\": \"%s\"", thinking != UNSET ? ", " : "", effort);
    str_append_char(&text, '}');
    struct error error;
    bool is_ok = !text.failed && json_parse(&r->arena, text.data, text.len, out, &error) == OK;
    str_done(&text);
    return is_ok ? OK : refuse_memory(refusal);
}

static const struct json *look_up(const struct json *const *sources, int from, const char *key)
{
    const struct json *found = NULL;
    for (int i = from; i < N_SOURCES; i++) {
        const struct json *value = json_get(sources[i], key);
        found = value ? value : found;
    }
    return found;
}

enum status kwargs_build(struct request *r, struct refusal *refusal)
{
    struct json derived;
    struct str *out = &r->kwargs_text;
    enum status status = derive(r, &derived, refusal);
    if (status != OK)
        return status;
    const struct json *sources[N_SOURCES] = {r->setup->default_kwargs, &derived, r->kwargs};
    bool is_off = !json_bool(look_up(sources, DEFAULTS, "enable_thinking"), true);
    for (int i = 0; i < N_SOURCES; i++) {
        for (size_t k = 0; sources[i] && k < sources[i]->n; k++) {
            const struct json_member *m = &sources[i]->members[k];
            bool is_overridden =
                look_up(sources, i + 1, m->key) || json_get(sources[i], m->key) != &m->value;
            bool is_idle = is_off && i != OWN && strcmp(m->key, "reasoning_effort") == 0;
            if (is_overridden || is_idle || strcmp(m->key, "tools") == 0)
                continue;
            str_append_z(out, out->len ? ", " : "{");
            json_write_string(out, m->key, m->key_len);
            str_append_z(out, ": ");
            json_write(out, &m->value);
        }
    }
    if (out->len)
        str_append_char(out, '}');
    r->settings.kwargs = bytes_of(out);
    return out->failed ? refuse_memory(refusal) : OK;
}
