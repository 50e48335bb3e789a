/* Command-line options: a table that parses, checks and prints --help. Also the only reader of
 * environment variables. */
#ifndef CSGL_BASE_OPTIONS_H
#define CSGL_BASE_OPTIONS_H

#include "base/error.h"

#include <stdbool.h>
#include <stdio.h>

enum option_type {
    OPTION_FLAG,    /* bool *: present or not */
    OPTION_STRING,  /* const char ** */
    OPTION_STRINGS, /* struct option_strings *: may be repeated */
    OPTION_INT,     /* int * */
    OPTION_NUMBER,  /* double * */
    OPTION_CHOICE,  /* int *: index into the words of `argument`, "auto|float|int8" */
    OPTION_REFUSED  /* known elsewhere and not here: `help` says why. `argument` is the one value
                       that asks  for nothing and is accepted, or NULL. Not listed by --help. */
};

enum { OPTION_MAX_STRINGS = 16 };

struct option_strings {
    int n;
    const char *items[OPTION_MAX_STRINGS]; /* borrowed from argv */
};

struct option {
    const char *name;  /* "--model-path" */
    const char *alias; /* another spelling, or NULL */
    enum option_type type;
    void *value;          /* written when the option is given; holds the default before */
    const char *argument; /* for --help: "PATH", or a CHOICE's words */
    double min, max;      /* INT and NUMBER */
    const char *help;     /* NULL: not listed */
};

/* What a command takes. */
struct command_line {
    const char *usage; /* "csgl generate [options] [PROMPT]" */
    const char *about;
    const struct option *options;
    int n_options;
    int max_positionals;
    struct option_strings positionals; /* filled */
    bool wants_help;                   /* filled: --help or -h was given */
};

/* Parses argv[0 .. argc). "--name value" and "--name=value"; "--" ends options; an unambiguous
 * prefix of a long name will do. ERROR_INVALID names the argument and what would be right. */
enum status options_parse(struct command_line *line, int argc, char **argv, struct error *error);

void options_print_help(const struct command_line *line, FILE *out);

/* The environment variable's value, or NULL when unset or empty. */
const char *options_environment(const char *name);

#endif
