#include "bench/sse.h"

#include "base/json.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { EVENT_TREE_LIMIT = 64 << 20 };

static void end_line(struct sse *s, sse_event on_event, void *context)
{
    const char *line = str_z(&s->line);
    size_t n = s->line.len;
    if (n > 0 && line[n - 1] == '\r')
        s->line.data[--n] = '\0';
    if (n >= 5 && memcmp(line, "data:", 5) == 0) {
        size_t skip = 5 + (line[5] == ' ');
        on_event(context, line + skip, n - skip);
    }
    str_clear(&s->line);
}

void sse_feed(struct sse *s, const char *bytes, size_t n, sse_event on_event, void *context)
{
    while (n > 0 && !s->failed) {
        const char *end = memchr(bytes, '\n', n);
        size_t part = end ? (size_t)(end - bytes) : n;
        if (s->line.len + part > SSE_MAX_LINE) {
            s->failed = true;
            return;
        }
        str_append(&s->line, bytes, part);
        if (s->line.failed)
            s->failed = true;
        else if (end)
            end_line(s, on_event, context);
        bytes += part + (end != NULL);
        n -= part + (end != NULL);
    }
}

void sse_done(struct sse *s)
{
    str_done(&s->line);
}

static bool is_text(const struct json *value)
{
    return value && value->type == JT_STRING && value->n > 0;
}

static bool choice_has_text(const struct json *choice)
{
    const struct json *delta = json_get(choice, "delta");
    const struct json *calls = json_get(delta, "tool_calls");
    return is_text(json_get(choice, "text")) || is_text(json_get(delta, "content")) ||
           is_text(json_get(delta, "reasoning_content")) || is_text(json_get(delta, "reasoning")) ||
           (calls && calls->type == JT_ARRAY && calls->n > 0);
}

static void read_error(struct stream_event *out, const struct json *error)
{
    const char *message = json_string(error);
    if (!message)
        message = json_string(json_get(error, "message"));
    snprintf(out->error, sizeof out->error, "%s", message ? message : "an error without a message");
}

static int count_of(const struct json *usage, const char *key)
{
    int64_t n;
    return json_int(json_get(usage, key), 0, INT32_MAX, &n) ? (int)n : -1;
}

bool stream_event_read(struct stream_event *out, const char *data, size_t len)
{
    *out = (struct stream_event){.n_prompt = -1, .n_output = -1};
    if (len == 6 && memcmp(data, "[DONE]", 6) == 0) {
        out->is_end = true;
        return true;
    }
    struct arena arena = {.limit = EVENT_TREE_LIMIT};
    struct json event;
    bool is_good = json_parse(&arena, data, len, &event, NULL) == OK;
    if (is_good) {
        const struct json *choices = json_get(&event, "choices"),
                          *usage = json_get(&event, "usage");
        const struct json *error = json_get(&event, "error");
        for (size_t i = 0; choices && choices->type == JT_ARRAY && i < choices->n; i++)
            out->has_text |= choice_has_text(&choices->items[i]);
        out->n_prompt = count_of(usage, "prompt_tokens");
        out->n_output = count_of(usage, "completion_tokens");
        if (!json_is_null(error))
            read_error(out, error);
    }
    arena_done(&arena);
    return is_good;
}
