/* Arbitrary template source, rendered over fixed messages and variables. */
#include "base/json.h"
#include "template/chat_template.h"

#include <stdint.h>
#include <string.h>

static const char messages_text[] =
    "[{\"role\":\"system\",\"content\":\"Be brief.\"},"
    "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"Gr\xC3\xBC\xC3\x9F"
    "e\"}]},"
    "{\"role\":\"assistant\",\"content\":null,\"reasoning_content\":\"r\",\"tool_calls\":"
    "[{\"id\":\"1\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\": [1, 2.5, null]}\"}}]},"
    "{\"role\":\"tool\",\"tool_call_id\":\"1\",\"content\":\"ok\"},"
    "{\"role\":\"assistant\",\"content\":\"a\\nb\"}]";
static const char tools_text[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\","
    "\"properties\":{\"a\":{\"type\":\"array\",\"maximum\":18446744073709551615}}}}}]";
static const char kwargs_text[] =
    "{\"x\":1,\"y\":2.5,\"s\":\"abc\",\"l\":[3,1,2],\"d\":{\"b\":1,\"a\":{\"c\":[]}},\"t\":true,"
    "\"n\":null,\"big\":123456789012345678901234567890}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct arena arena = {0};
    struct json messages, tools, kwargs;
    struct chat_template *t = NULL;
    struct chat_output out = {0};
    struct error error = {0};
    struct chat_token bos = {"bos_token", "<s>"};
    if (json_parse(&arena, messages_text, sizeof messages_text - 1, &messages, &error) != OK ||
        json_parse(&arena, tools_text, sizeof tools_text - 1, &tools, &error) != OK ||
        json_parse(&arena, kwargs_text, sizeof kwargs_text - 1, &kwargs, &error) != OK)
        __builtin_trap();
    struct chat_input input = {.messages = &messages,
                               .tools = &tools,
                               .kwargs = &kwargs,
                               .tokens = &bos,
                               .n_tokens = 1,
                               .now = 1753531200};
    /* The first byte picks the switches, so that the corpus stays readable. */
    input.continue_final_message = size && data[0] == '+';
    input.add_generation_prompt = size && data[0] == '>';
    enum status status = chat_template_new(&t, (const char *)data, size, &error);
    if (status == OK)
        status = chat_template_render(t, &input, &out, &error);
    if (status != OK && !error.message[0] && !memmem(data, size, "raise_exception", 15))
        __builtin_trap(); /* every failure has its sentence; only a template's own may be empty */
    for (size_t i = 0; i < out.n_messages; i++)
        if (out.message_starts[i] > out.text.len)
            __builtin_trap();
    chat_output_done(&out);
    chat_template_free(t);
    arena_done(&arena);
    return 0;
}
