#include "template/chat_traits.h"

#include "template/lexer.h"

#include <string.h>

/* What the walk over the tree collects. */
struct findings {
    struct chat_traits traits;
    bool arguments_printed, arguments_used, reads_thinking;
};

/* x.name, x['name'], x.get('name') or a variable called `name`. */
static bool is_field(const struct node *n, const char *name)
{
    if (!n)
        return false;
    if (n->kind == N_ATTRIBUTE || n->kind == N_NAME)
        return value_is_text(&n->value, name);
    if (n->kind == N_ITEM)
        return n->b->kind == N_CONST && value_is_text(&n->b->value, name);
    return n->kind == N_CALL && n->a->kind == N_ATTRIBUTE && value_is_text(&n->a->value, "get") &&
           n->list.n > 0 && n->list.at[0]->kind == N_CONST &&
           value_is_text(&n->list.at[0]->value, name);
}

/* What a for walks over, behind filters, "or []" and "if ... else []". */
static const struct node *walked(const struct node *n)
{
    for (;;) {
        if (n && (n->kind == N_FILTER || n->kind == N_OR) && n->a)
            n = n->a;
        else if (n && n->kind == N_CONDITIONAL)
            n = n->b;
        else
            return n;
    }
}

static void look_at_test(struct findings *f, const struct node *n)
{
    if (is_field(n->a, "content")) {
        f->traits.asks_content_string |= value_is_text(&n->value, "string");
        f->traits.asks_content_none |= value_is_text(&n->value, "none");
    }
    f->arguments_used |= is_field(n->a, "arguments");
}

/* content == none */
static void look_at_compare(struct findings *f, const struct node *n)
{
    for (size_t i = 0; i < n->list.n; i++)
        if (is_field(n->a, "content") && n->list.at[i]->a->kind == N_CONST &&
            n->list.at[i]->a->value.kind == V_NONE)
            f->traits.asks_content_none = true;
    if (n->a->kind == N_CONST && value_is_text(&n->a->value, "thinking"))
        f->reads_thinking = true;
}

static void look_at(struct findings *f, const struct node *n)
{
    switch (n->kind) {
    case N_FOR:
        f->traits.walks_content |= is_field(walked(n->b), "content");
        f->arguments_used |= is_field(walked(n->b), "arguments");
        break;
    case N_TEST:
        look_at_test(f, n);
        break;
    case N_COMPARE:
        look_at_compare(f, n);
        break;
    case N_FILTER:
        f->arguments_used |= is_field(n->a, "arguments") && !value_is_text(&n->value, "trim") &&
                             !value_is_text(&n->value, "string");
        break;
    case N_BINARY:
        if (n->op == '+')
            f->arguments_printed |= is_field(n->a, "arguments") || is_field(n->b, "arguments");
        break;
    case N_CONCAT:
        for (size_t i = 0; i < n->list.n; i++)
            f->arguments_printed |= is_field(n->list.at[i], "arguments");
        break;
    case N_PRINT:
        f->arguments_printed |= is_field(n->a, "arguments");
        break;
    case N_CALL: /* arguments.items() */
        f->arguments_used |= n->a->kind == N_ATTRIBUTE && is_field(n->a->a, "arguments");
        break;
    default:
        break;
    }
    f->reads_thinking |= n->kind != N_NAME && is_field(n, "thinking");
}

static void walk(struct findings *f, const struct node *n);

static void walk_all(struct findings *f, const struct nodes *nodes)
{
    for (size_t i = 0; i < nodes->n; i++)
        walk(f, nodes->at[i]);
}

static void walk(struct findings *f, const struct node *n)
{
    if (!n)
        return;
    look_at(f, n);
    walk(f, n->a);
    walk(f, n->b);
    walk(f, n->c);
    walk_all(f, &n->list);
    walk_all(f, &n->body);
    walk_all(f, &n->other);
}

static bool mentions(const char *source, size_t len, const char *word)
{
    return memmem(source, len, word, strlen(word)) != NULL;
}

struct chat_traits chat_traits_of(const struct ast *ast, const char *source, size_t len)
{
    struct findings f = {0};
    walk_all(&f, &ast->body);
    f.traits.knows_developer = mentions(source, len, "developer");
    f.traits.mentions_content = mentions(source, len, "content");
    f.traits.arguments_as_text = f.arguments_printed && !f.arguments_used;
    f.traits.wants_thinking = f.reads_thinking && !mentions(source, len, "reasoning_content");
    return f.traits;
}
