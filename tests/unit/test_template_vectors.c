/* What Python's jinja2 printed for the same template and input, byte for byte. The vectors are made
 * by tools/make_template_vectors.py; those of published templates need these templates in the data
 * folder. */
#include "base/file.h"
#include "base/json.h"
#include "template/chat_template.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#define VECTORS SOURCE_DIR "/tests/data/templates/"

/* A file of JSON lines; the first line is its header. */
struct vectors {
    struct arena arena;
    struct str text;
    struct json *lines;
    size_t n;
};

static void vectors_read(struct vectors *v, const char *name)
{
    struct error error = {0};
    struct str path = {0};
    *v = (struct vectors){0};
    path_join(&path, VECTORS, name);
    if (file_read(str_z(&path), 64 << 20, &v->text, &error) != OK)
        fail_msg("%s", error.message);
    str_done(&path);
    size_t most = 1;
    for (size_t i = 0; i < v->text.len; i++)
        most += v->text.data[i] == '\n';
    v->lines = arena_alloc_array(&v->arena, most, sizeof *v->lines);
    for (const char *at = v->text.data, *end = at + v->text.len; at < end;) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        stop = stop ? stop : end;
        if (json_parse(&v->arena, at, (size_t)(stop - at), &v->lines[v->n++], &error) != OK)
            fail_msg("%s line %zu: %s", name, v->n, error.message);
        at = stop + 1;
    }
    assert_true(v->n > 1);
}

static void vectors_done(struct vectors *v)
{
    arena_done(&v->arena);
    str_done(&v->text);
}

static uint64_t fnv1a(const char *data, size_t n)
{
    uint64_t h = 0xCBF29CE484222325u;
    for (size_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)data[i]) * 0x100000001B3u;
    return h;
}

/* True if what happened is what the vector says. */
static bool agrees(const struct json *vector, enum status status, const struct chat_output *out,
                   const struct error *error)
{
    const struct json *text = json_get(vector, "text"), *bytes = json_get(vector, "bytes");
    const char *message = json_string(json_get(vector, "message"));
    if (text)
        return status == OK && out->text.len == text->n &&
               memcmp(str_z(&out->text), text->text, text->n) == 0;
    if (bytes) {
        char hash[17];
        snprintf(hash, sizeof hash, "%016llx",
                 (unsigned long long)fnv1a(str_z(&out->text), out->text.len));
        return status == OK && (double)out->text.len == json_number(bytes, -1) &&
               json_string_is(json_get(vector, "hash"), hash);
    }
    if (status == OK)
        return false;
    if (json_string_is(json_get(vector, "error"), "template")) /* raise_exception, perhaps cut */
        return strncmp(error->message, message, strlen(error->message)) == 0;
    if (json_string_is(json_get(vector, "error"), "undefined") && strstr(message, " is undefined"))
        return strstr(error->message, message) != NULL;
    return true;
}

static void show(const char *what, const struct json *vector, enum status status,
                 const struct chat_output *out, const struct error *error)
{
    const char *expected = json_string(json_get(vector, "text"));
    print_error("%s\n  expected: %s\n  got:      %s\n", what,
                expected                      ? expected
                : json_get(vector, "message") ? json_string(json_get(vector, "message"))
                : json_get(vector, "bytes")   ? "(a hash)"
                                              : "an error",
                status == OK ? str_z(&out->text) : error->message);
}

static void test_expressions(void **state)
{
    (void)state;
    struct vectors v;
    struct json messages = {.type = JT_ARRAY};
    size_t failed = 0;
    vectors_read(&v, "expressions.jsonl");
    for (size_t i = 1; i < v.n; i++) {
        const struct json *source = json_get(&v.lines[i], "source");
        struct chat_template *t = NULL;
        struct chat_output out = {0};
        struct error error = {0};
        struct chat_input input = {
            .messages = &messages, .kwargs = json_get(&v.lines[0], "variables"), .now = 1753531200};
        enum status status = chat_template_new(&t, source->text, source->n, &error);
        if (status == OK)
            status = chat_template_render(t, &input, &out, &error);
        assert_true(status == OK || error.message[0]);
        if (!agrees(&v.lines[i], status, &out, &error)) {
            show(source->text, &v.lines[i], status, &out, &error);
            failed++;
        }
        chat_output_done(&out);
        chat_template_free(t);
    }
    print_message("%zu expressions and statements, %zu differ from jinja2\n", v.n - 1, failed);
    vectors_done(&v);
    assert_int_equal(failed, 0);
}

static enum status render_chat(const struct chat_template *t, const struct json *header,
                               const struct json *vector, struct chat_output *out,
                               struct error *error)
{
    const struct json *shape =
        json_get(json_get(header, "shapes"), json_string(json_get(vector, "shape")));
    const struct json *flags =
        json_get(json_get(header, "flags"), json_string(json_get(vector, "flags")));
    const struct json *given = json_get(header, "tokens");
    struct chat_token tokens[CHAT_MAX_TOKENS];
    struct chat_input input = {
        .messages = json_get(shape, "messages"),
        .tools = json_get(shape, "tools"),
        .kwargs = json_get(flags, "kwargs"),
        .tokens = tokens,
        .add_generation_prompt = json_bool(json_get(flags, "add_generation_prompt"), false),
        .continue_final_message = json_bool(json_get(flags, "continue_final_message"), false),
        .now = (int64_t)json_number(json_get(header, "now"), 0),
    };
    assert_non_null(shape);
    assert_non_null(flags);
    for (size_t i = 0; i < given->n && i < CHAT_MAX_TOKENS; i++)
        tokens[input.n_tokens++] =
            (struct chat_token){given->members[i].key, given->members[i].value.text};
    return chat_template_render(t, &input, out, error);
}

/* Marks point into the text, in order for the templates at hand, at something printed. */
static void check_marks(const struct chat_output *out)
{
    for (size_t i = 0; i < out->n_messages; i++) {
        assert_true(out->message_starts[i] <= out->text.len);
        if (i)
            assert_true(out->message_starts[i] >= out->message_starts[i - 1]);
    }
    assert_true(out->header_end <= out->text.len);
}

/* Renders every line of `name` whose template is found in `folder`. */
static size_t run_chats(const char *name, const char *folder, size_t *differ)
{
    struct vectors v;
    struct chat_template *t = NULL;
    struct str path = {0}, source = {0};
    const char *loaded = "";
    size_t n = 0;
    vectors_read(&v, name);
    for (size_t i = 1; i < v.n; i++) {
        const struct json *vector = &v.lines[i];
        const char *wanted = json_string(json_get(vector, "template"));
        struct error error = {0};
        if (strcmp(wanted, loaded) != 0) {
            loaded = wanted;
            chat_template_free(t);
            t = NULL;
            path_join(&path, folder, wanted);
            str_append_z(&path, ".jinja");
            str_clear(&source);
            if (!file_exists(str_z(&path))) {
                print_message("%s is absent; its vectors are skipped\n", str_z(&path));
                continue;
            }
            assert_int_equal(file_read(str_z(&path), 1 << 20, &source, &error), OK);
            if (chat_template_new(&t, str_z(&source), source.len, &error) != OK)
                fail_msg("%s: %s", wanted, error.message);
        }
        if (!t)
            continue;
        struct chat_output out = {0};
        enum status status = render_chat(t, &v.lines[0], vector, &out, &error);
        char what[200];
        snprintf(what, sizeof what, "%s, %s, %s", wanted, json_string(json_get(vector, "shape")),
                 json_string(json_get(vector, "flags")));
        n++;
        if (!agrees(vector, status, &out, &error)) {
            show(what, vector, status, &out, &error);
            ++*differ;
        }
        if (status == OK)
            check_marks(&out);
        chat_output_done(&out);
    }
    chat_template_free(t);
    str_done(&path);
    str_done(&source);
    vectors_done(&v);
    return n;
}

static void test_own_chats(void **state)
{
    (void)state;
    size_t differ = 0, n = run_chats("chats.jsonl", SOURCE_DIR "/tests/data/templates", &differ);
    print_message("%zu renderings of the repository's templates, %zu differ\n", n, differ);
    assert_true(n > 0);
    assert_int_equal(differ, 0);
}

static void test_published_chats(void **state)
{
    (void)state;
    const char *data = getenv("CSGL_TEST_DATA");
    struct str folder = {0};
    size_t differ = 0;
    path_join(&folder, data ? data : SOURCE_DIR "/../shared/data", "templates");
    if (!file_is_directory(str_z(&folder))) {
        print_message("no published templates at %s; skipped\n", str_z(&folder));
        str_done(&folder);
        skip();
    }
    size_t n = run_chats("real.jsonl", str_z(&folder), &differ);
    print_message("%zu renderings of published templates, %zu differ\n", n, differ);
    str_done(&folder);
    assert_int_equal(differ, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_expressions),
        cmocka_unit_test(test_own_chats),
        cmocka_unit_test(test_published_chats),
    };
    setenv("TZ", "UTC", 1); /* the vectors' dates */
    tzset();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
