/* What a template expects of its messages, read off its syntax tree. */
#ifndef CSGL_TEMPLATE_CHAT_TRAITS_H
#define CSGL_TEMPLATE_CHAT_TRAITS_H

#include "template/ast.h"
#include "template/eval.h"

struct chat_traits {
    bool knows_developer;
    bool walks_content;       /* a for over message.content */
    bool asks_content_string; /* content is string */
    bool asks_content_none;   /* content is none */
    bool arguments_as_text;   /* arguments are only printed or added to strings */
    bool wants_thinking;      /* reads thinking and not reasoning_content */
    bool mentions_content;
};

struct chat_traits chat_traits_of(const struct ast *ast, const char *source, size_t len);

/* The list of messages as the template wants them; see chat_template.h. Message i's dict carries i
 * + 1. */
bool chat_messages(struct eval *e, const struct chat_traits *traits, const struct json *messages,
                   struct value *out);

#endif
