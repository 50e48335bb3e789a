/* An arbitrary response_template (or, if the input begins with '!', response_schema) up to the
 * first zero byte, and output behind it. What loads must parse anything, and never depend on the
 * cutting. */
#include "../unit/parser_run.h"

static const char tools_text[] = "[{\"name\":\"f\",\"parameters\":{\"properties\":{\"a\":{\"type\":"
                                 "\"integer\"},\"b\":{\"anyOf\":"
                                 "[{\"type\":\"boolean\"},{\"type\":\"array\"}]}}}}]";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *zero = size ? memchr(data, 0, size) : NULL;
    if (!zero || size > 4096)
        return 0;
    bool is_schema = data[0] == '!';
    const char *source = (const char *)data + is_schema;
    const char *key = is_schema ? "response_schema" : "response_template";
    struct arena arena = {.limit = 16 << 20};
    struct json tools;
    struct json_member member = {.key = key, .key_len = strlen(key)};
    struct json file = {.type = JT_OBJECT, .n = 1, .members = &member};
    struct parser_response *response = NULL;
    struct error error = {0};
    if (json_parse(&arena, tools_text, sizeof tools_text - 1, &tools, NULL) != OK)
        __builtin_trap();
    if (json_parse(&arena, source, (size_t)((const char *)zero - source), &member.value, NULL) ==
        OK) {
        enum status status = parser_response_new(&file, &response, &error);
        if (status != OK && !error.message[0])
            __builtin_trap();
    }
    if (response) {
        struct parser_config config = {.response = response, .max_held_bytes = 1 << 18};
        struct parser_run run = {.config = &config,
                                 .tools = &tools,
                                 .tail = "<think>\n",
                                 .tail_len = 8,
                                 .text = (const char *)zero + 1,
                                 .text_len = size - (size_t)(zero + 1 - data)};
        struct parser_message whole = {0}, cut = {0};
        const char *wrong = run_parser(&run, 0, 0, &whole, &error);
        const char *wrong_cut = run_parser(&run, 7, (uint32_t)size, &cut, &error);
        /* The parser may only fail for want of room, and where it does not, cutting is no matter.
         */
        bool is_limit = error.status == ERROR_LIMIT;
        if ((wrong || wrong_cut) ? !is_limit : !same_message(&whole, &cut))
            __builtin_trap();
        parser_message_done(&whole);
        parser_message_done(&cut);
    }
    parser_response_free(response);
    arena_done(&arena);
    return 0;
}
