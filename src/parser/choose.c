/* Which format: by the user's word, or by what the chat template shows. */
#include "parser/parser.h"

#include <string.h>

struct named {
    const char *name;
    int value;
};

static const struct named reasonings[] = {{"auto", PARSER_REASONING_AUTO},
                                          {"none", PARSER_REASONING_NONE},
                                          {"qwen3", PARSER_REASONING_QWEN3},
                                          {"deepseek-r1", PARSER_REASONING_DEEPSEEK_R1},
                                          {"hunyuan", PARSER_REASONING_HUNYUAN},
                                          {"gpt-oss", PARSER_REASONING_GPT_OSS},
                                          {NULL, 0}};

static const struct named tool_formats[] = {
    {"auto", PARSER_TOOLS_AUTO},           {"none", PARSER_TOOLS_NONE},
    {"qwen25", PARSER_TOOLS_QWEN25},       {"qwen", PARSER_TOOLS_QWEN25},
    {"hermes", PARSER_TOOLS_QWEN25},       {"qwen3_coder", PARSER_TOOLS_QWEN3_CODER},
    {"llama3", PARSER_TOOLS_LLAMA3},       {"hunyuan", PARSER_TOOLS_HUNYUAN},
    {"deepseekv3", PARSER_TOOLS_DEEPSEEK}, {"deepseekv31", PARSER_TOOLS_DEEPSEEK},
    {"glm45", PARSER_TOOLS_GLM},           {"glm47", PARSER_TOOLS_GLM},
    {"gpt-oss", PARSER_TOOLS_GPT_OSS},     {NULL, 0}};

static bool is_same_name(const char *a, const char *b)
{
    for (; *a && *b; a++, b++)
        if (*a != *b && !((*a == '-' || *a == '_') && (*b == '-' || *b == '_')))
            return false;
    return *a == *b;
}

static enum status find_named(const struct named *table, const char *option, const char *name,
                              int *out, struct error *error)
{
    char list[256];
    size_t n = 0;
    for (const struct named *row = table; row->name; row++) {
        if (is_same_name(row->name, name)) {
            *out = row->value;
            return OK;
        }
        size_t len = strlen(row->name);
        if (n + len + 3 < sizeof list) {
            if (n) {
                memcpy(list + n, ", ", 2);
                n += 2;
            }
            memcpy(list + n, row->name, len);
            n += len;
        }
    }
    return error_set(error, ERROR_INVALID, "%s \"%.64s\" is not known; it can be %.*s", option,
                     name, (int)n, list);
}

enum status parser_reasoning_named(const char *name, enum parser_reasoning *out,
                                   struct error *error)
{
    int value = 0;
    enum status status = find_named(reasonings, "--reasoning-parser", name, &value, error);
    *out = (enum parser_reasoning)value;
    return status;
}

enum status parser_tools_named(const char *name, enum parser_tools *out, struct error *error)
{
    int value = 0;
    enum status status = find_named(tool_formats, "--tool-call-parser", name, &value, error);
    *out = (enum parser_tools)value;
    return status;
}

/* A template writes what the model is to write, as source text: "\n" there is a backslash and an n,
 * or a line break. */
static enum parser_tools tools_of(const char *t)
{
    if (strstr(t, "<|channel|>") && strstr(t, "<|message|>"))
        return PARSER_TOOLS_GPT_OSS;
    if (strstr(t, "<tool_call>")) {
        if (strstr(t, "<tool_call>\\n<function=") || strstr(t, "<tool_call>\n<function="))
            return PARSER_TOOLS_QWEN3_CODER;
        if (strstr(t, "<arg_key>"))
            return PARSER_TOOLS_GLM;
        if (strstr(t, "tool_call.name") || strstr(t, "{\"name\":") || strstr(t, "{\\\"name\\\":"))
            return PARSER_TOOLS_QWEN25;
        return PARSER_TOOLS_NONE;
    }
    if (strstr(t, "<｜tool▁calls▁begin｜>"))
        return PARSER_TOOLS_DEEPSEEK;
    if (strstr(t, "<tool_calls>"))
        return PARSER_TOOLS_HUNYUAN;
    if (strstr(t, "{\"name\": function name, \"parameters\":") ||
        (strstr(t, "<|python_tag|>") && strstr(t, "\"parameters\"")))
        return PARSER_TOOLS_LLAMA3;
    return PARSER_TOOLS_NONE;
}

static enum parser_reasoning reasoning_of(const char *t)
{
    if (strstr(t, "<|channel|>") && strstr(t, "<|message|>"))
        return PARSER_REASONING_GPT_OSS;
    /* Whether the model starts inside reasoning is seen in each prompt. */
    if (strstr(t, "</think>"))
        return strstr(t, "<answer>") ? PARSER_REASONING_HUNYUAN : PARSER_REASONING_QWEN3;
    return PARSER_REASONING_NONE;
}

void parser_choose(struct parser_config *config, const char *chat_template)
{
    const char *text = chat_template ? chat_template : "";
    if (config->reasoning != PARSER_REASONING_AUTO || config->tools != PARSER_TOOLS_AUTO)
        config->response = NULL;
    if (config->reasoning == PARSER_REASONING_AUTO)
        config->reasoning = reasoning_of(text);
    if (config->tools == PARSER_TOOLS_AUTO)
        config->tools = tools_of(text);
}
