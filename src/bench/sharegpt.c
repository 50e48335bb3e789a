#include "bench/sharegpt.h"

#include "base/file.h"
#include "base/json.h"
#include "bench/rng.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Conversations outside these limits are passed over, as SGLang's benchmark does. */
enum { MIN_TOKENS = 4, MAX_PROMPT = 1024, MAX_TOTAL = 2048, BYTES_A_TOKEN = 4 };

struct sampler_state {
    struct dataset *dataset;
    const struct dataset_options *options;
    uint64_t random;
    int64_t n_seen;
    struct str message, reply; /* of the conversation being read */
    int n_messages;
    int32_t ids[MAX_TOTAL + 1];
};

static int32_t count_tokens(struct sampler_state *s, const struct str *text)
{
    const struct dataset_options *o = s->options;
    if (!o->encode)
        return (int32_t)(text->len / BYTES_A_TOKEN < MAX_TOTAL ? text->len / BYTES_A_TOKEN
                                                               : MAX_TOTAL + 1);
    return o->encode(o->encode_context, str_z(text), text->len, s->ids, MAX_TOTAL + 1);
}

/* Reservoir sampling: each conversation so far is kept with equal chance (Vitter's algorithm R). */
static enum status take(struct sampler_state *s, struct error *error)
{
    struct dataset *d = s->dataset;
    int32_t n_reply = s->n_messages >= 2 ? count_tokens(s, &s->reply) : 0;
    int32_t n_prompt = s->n_messages >= 2 ? count_tokens(s, &s->message) : 0; /* s->ids: its own */
    if (n_prompt < MIN_TOKENS || n_reply < MIN_TOKENS || n_prompt > MAX_PROMPT ||
        n_prompt + n_reply > MAX_TOTAL)
        return OK;
    int64_t place = s->n_seen++;
    if (place >= s->options->n_prompts) {
        place = (int64_t)(rng_bits(&s->random) % (uint64_t)s->n_seen);
        if (place >= s->options->n_prompts)
            return OK;
    }
    struct bench_prompt *p = &d->prompts[place];
    *p = (struct bench_prompt){.output_len = n_reply};
    if (s->options->encode) {
        p->ids = arena_alloc_array(&d->arena, (size_t)n_prompt, sizeof *p->ids);
        p->n_ids = n_prompt;
        if (p->ids)
            memcpy(p->ids, s->ids, (size_t)n_prompt * sizeof *p->ids);
    } else {
        p->text = arena_copy(&d->arena, str_z(&s->message), s->message.len);
        p->text_len = s->message.len;
    }
    if (!p->ids && !p->text)
        return error_memory(error, s->message.len);
    if (d->n < s->options->n_prompts)
        d->n++;
    return OK;
}

/* One message: only its "value" matters. */
static enum status read_message(struct sampler_state *s, struct json_reader *r, struct error *error)
{
    struct str *into = s->n_messages == 0 ? &s->message : s->n_messages == 1 ? &s->reply : NULL;
    enum json_event event;
    s->n_messages++;
    while ((event = json_next(r, error)) != JSON_OBJECT_END) {
        if (event == JSON_FAILED)
            return error->status;
        bool is_value = json_text_is(r, "value");
        event = json_next(r, error);
        if (event == JSON_FAILED)
            return error->status;
        if (is_value && event == JSON_STRING && into)
            str_append(into, r->text, r->len);
        else if (json_skip(r, event, error) != OK)
            return error->status;
    }
    return OK;
}

static enum status read_messages(struct sampler_state *s, struct json_reader *r,
                                 struct error *error)
{
    enum json_event event;
    while ((event = json_next(r, error)) != JSON_ARRAY_END) {
        enum status status =
            event == JSON_OBJECT ? read_message(s, r, error)
            : event == JSON_FAILED
                ? error->status
                : error_set(error, ERROR_INVALID, "a message of a conversation is not an object");
        if (status != OK)
            return status;
    }
    return OK;
}

static enum status read_conversation(struct sampler_state *s, struct json_reader *r,
                                     struct error *error)
{
    enum json_event event;
    enum status status = OK;
    str_clear(&s->message);
    str_clear(&s->reply);
    s->n_messages = 0;
    while (status == OK && (event = json_next(r, error)) != JSON_OBJECT_END) {
        if (event == JSON_FAILED)
            return error->status;
        bool is_wanted = json_text_is(r, "conversations") || json_text_is(r, "conversation");
        event = json_next(r, error);
        if (event == JSON_FAILED)
            return error->status;
        status = is_wanted && event == JSON_ARRAY ? read_messages(s, r, error)
                                                  : json_skip(r, event, error);
    }
    if (status == OK && (s->message.failed || s->reply.failed))
        status = error_memory(error, s->message.len);
    return status == OK ? take(s, error) : status;
}

static enum status read_all(struct sampler_state *s, struct json_reader *r, struct error *error)
{
    enum json_event event = json_next(r, error);
    if (event == JSON_FAILED)
        return error->status;
    if (event != JSON_ARRAY)
        return error_set(error, ERROR_INVALID, "it does not hold a JSON array of conversations");
    while ((event = json_next(r, error)) != JSON_ARRAY_END) {
        enum status status =
            event == JSON_OBJECT ? read_conversation(s, r, error)
            : event == JSON_FAILED
                ? error->status
                : error_set(error, ERROR_INVALID, "an entry of the array is not an object");
        if (status != OK)
            return status;
    }
    if (s->dataset->n == 0)
        return error_set(error, ERROR_INVALID,
                         "it has no conversation whose first message has %d to %d tokens",
                         MIN_TOKENS, MAX_PROMPT);
    return OK;
}

enum status sharegpt_parse(struct dataset *out, const struct dataset_options *options,
                           const char *text, size_t bytes, struct error *error)
{
    struct json_reader reader;
    struct error local; /* the reader says only there what failed */
    struct sampler_state *s = calloc(1, sizeof *s);
    if (!s)
        return error_memory(error, sizeof *s);
    s->dataset = out;
    s->options = options;
    s->random = options->seed;
    json_reader_init(&reader, text, bytes);
    enum status status = read_all(s, &reader, error ? error : &local);
    json_reader_done(&reader);
    str_done(&s->message);
    str_done(&s->reply);
    free(s);
    return status;
}

enum status sharegpt_read(struct dataset *out, const struct dataset_options *options,
                          struct error *error)
{
    struct file_map map;
    enum status status = file_map_open(&map, options->path, error);
    if (status != OK)
        return status;
    status = sharegpt_parse(out, options, (const char *)map.data, (size_t)map.bytes, error);
    if (status != OK)
        error_prefix(error, "%s", options->path);
    file_map_done(&map);
    return status;
}
