/* Arbitrary output in the built-in formats: the first byte picks the format and switches, the
 * second the cutting. However it is cut, the message is the same and its events follow their rules.
 */
#include "../unit/parser_run.h"

static const char tools_text[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\","
    "\"properties\":{\"a\":{\"type\":\"string\"},\"b\":{\"type\":\"integer\"},\"c\":{\"type\":"
    "\"object\"},\"d\":{\"type\":[\"number\",\"boolean\"]},\"e\":{}}}}},{\"name\":\"g\"}]";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    static const char *const tails[] = {"\n", "<think>\n", "<think>\n\n</think>\n\n",
                                        "<|channel|>analysis<|message|>"};
    static const enum parser_reasoning reasonings[] = {
        PARSER_REASONING_NONE, PARSER_REASONING_QWEN3, PARSER_REASONING_DEEPSEEK_R1,
        PARSER_REASONING_HUNYUAN};
    static const enum parser_tools formats[] = {PARSER_TOOLS_QWEN25,  PARSER_TOOLS_QWEN3_CODER,
                                                PARSER_TOOLS_LLAMA3,  PARSER_TOOLS_GPT_OSS,
                                                PARSER_TOOLS_HUNYUAN, PARSER_TOOLS_DEEPSEEK,
                                                PARSER_TOOLS_GLM,     PARSER_TOOLS_QWEN3_CODER};
    struct arena arena = {0};
    struct json tools;
    if (json_parse(&arena, tools_text, sizeof tools_text - 1, &tools, NULL) != OK)
        __builtin_trap();
    struct parser_config config = {.reasoning = reasonings[data[0] >> 2 & 3],
                                   .tools = formats[(data[0] & 3) | (data[1] >> 3 & 4)],
                                   .keep_control_tokens = data[1] & 64,
                                   .max_held_bytes = 1 << 20};
    const char *tail = tails[data[0] >> 4 & 3];
    struct parser_run run = {.config = &config,
                             .tools = data[0] & 64 ? NULL : &tools,
                             .tail = tail,
                             .tail_len = strlen(tail),
                             .text = (const char *)data + 2,
                             .text_len = size - 2,
                             .reason = data[0] & 128 ? PARSER_LENGTH : PARSER_STOP,
                             .has_control = data[1] & 128};
    struct parser_message whole = {0}, cut = {0};
    struct error error = {0};
    if (run_parser(&run, 0, 0, &whole, &error) ||
        run_parser(&run, 1 + (data[1] & 15), data[1], &cut, &error) || !same_message(&whole, &cut))
        __builtin_trap();
    parser_message_done(&whole);
    parser_message_done(&cut);
    arena_done(&arena);
    return 0;
}
