/* Where the formats put what they find: the events of one push, and running text with the rules for
 * blanks that all formats share. */
#ifndef CSGL_PARSER_EMITTER_H
#define CSGL_PARSER_EMITTER_H

#include "parser/parser.h"

struct emitter {
    struct parser_event *events;
    size_t n, cap;
    struct str text; /* of all events, one behind the other */
    size_t n_calls, n_ended;
    bool is_muted; /* while the prompt's tail is read */
    bool failed;   /* memory is exhausted; checked at the end of a push */
};

void emitter_clear(struct emitter *e);
void emitter_done(struct emitter *e);

/* Text deltas; of length 0 they are nothing. */
void emit_reasoning(struct emitter *e, const char *text, size_t len);
void emit_content(struct emitter *e, const char *text, size_t len);

/* A call: begin, arguments, end. Arguments and end belong to the call begun last. */
void emit_call_begin(struct emitter *e, const char *name, size_t len);
void emit_arguments(struct emitter *e, const char *text, size_t len);
void emit_call_end(struct emitter *e, bool is_valid);

/* Running reasoning or content: blanks at its end are held until other text follows. */
struct prose {
    bool is_reasoning;
    bool has_text;       /* something that is not blank was emitted */
    bool skip_lines;     /* leading line breaks are formatting: a tag stood before them */
    bool is_behind_call; /* blanks held stand behind a tool call */
    struct str pending;
};

void prose_push(struct prose *p, struct emitter *e, const char *text, size_t len);

/* A tool call begins: the blanks around it are formatting. */
void prose_at_call(struct prose *p);

/* At the end of the output inside this text: its held blanks are text unless a tag made them
 * formatting. */
void prose_finish(struct prose *p, struct emitter *e);

/* ASCII blanks: space, tab, line feed, vertical tab, form feed, carriage return. */
bool is_blank(char c);
/* Length of the blank prefix of `text`. */
size_t blank_prefix(const char *text, size_t len);

/* The first complete one of `markers`, or where a suffix of the text could be the start of one.
 * Every marker begins with '<'. */
struct marker_hit {
    size_t at; /* text before it contains no part of a marker */
    int which; /* index, or -1 if none is complete */
};

struct marker_hit marker_find(const char *text, size_t len, const char *const *markers, int n,
                              bool is_end);

/* Whether `text` begins with `marker`: MARKER_MAYBE if the text ends too early to say. */
enum marker_match { MARKER_NO, MARKER_MAYBE, MARKER_YES };
enum marker_match marker_at(const char *text, size_t len, const char *marker, bool is_end);

#endif
