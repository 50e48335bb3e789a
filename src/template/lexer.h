/* Cuts a template's source into tokens, with Jinja's white-space control as Hugging Face sets it:
 * trim_blocks and lstrip_blocks on, the trailing newline dropped. */
#ifndef CSGL_TEMPLATE_LEXER_H
#define CSGL_TEMPLATE_LEXER_H

#include "base/arena.h"
#include "base/error.h"
#include "template/value.h"

enum token_kind {
    TOKEN_END,
    TOKEN_DATA, /* text outside of tags */
    TOKEN_VARIABLE_BEGIN,
    TOKEN_VARIABLE_END,
    TOKEN_BLOCK_BEGIN,
    TOKEN_BLOCK_END,
    TOKEN_NAME,
    TOKEN_STRING,
    TOKEN_INTEGER,
    TOKEN_FLOAT,
    TOKEN_OPERATOR
};

/* An operator is its character, or its two characters in one number. */
#define OPERATOR2(a, b) ((a) << 8 | (b))
enum {
    OP_FLOOR_DIVIDE = OPERATOR2('/', '/'),
    OP_POWER = OPERATOR2('*', '*'),
    OP_EQUAL = OPERATOR2('=', '='),
    OP_NOT_EQUAL = OPERATOR2('!', '='),
    OP_LESS_EQUAL = OPERATOR2('<', '='),
    OP_GREATER_EQUAL = OPERATOR2('>', '=')
};

struct token {
    enum token_kind kind;
    int line; /* 1-based */
    int op;
    struct value value; /* text of data and names, the value of literals */
};

struct tokens {
    struct token *at; /* ends with TOKEN_END */
    size_t n;
};

enum { TEMPLATE_MAX_BYTES = 1 << 20 };

/* The tokens belong to `arena`, as does the text they refer to. ERROR_INVALID names the line,
 * ERROR_LIMIT a source longer than TEMPLATE_MAX_BYTES. */
enum status template_lex(struct arena *arena, const char *source, size_t len, struct tokens *out,
                         struct error *error);

#endif
