#include "base/options.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Length of the option's name in "--name=value". */
static size_t name_length(const char *argument)
{
    return strcspn(argument, "=");
}

static bool is_named(const struct option *option, const char *name, size_t n)
{
    return (strlen(option->name) == n && memcmp(option->name, name, n) == 0) ||
           (option->alias && strlen(option->alias) == n && memcmp(option->alias, name, n) == 0);
}

static enum status find_option(const struct command_line *line, const char *argument,
                               const struct option **out, struct error *error)
{
    size_t n = name_length(argument);
    int n_found = 0;
    for (int i = 0; i < line->n_options; i++) {
        const struct option *option = &line->options[i];
        if (is_named(option, argument, n)) {
            *out = option;
            return OK;
        }
        if (n > 2 && strncmp(option->name, argument, n) == 0) {
            *out = option;
            n_found++;
        }
    }
    if (n_found == 1)
        return OK;
    return error_set(error, ERROR_INVALID, "%s option %.*s; see --help",
                     n_found ? "ambiguous" : "unknown", (int)n, argument);
}

static enum status parse_number(const struct option *option, const char *text, double *out,
                                struct error *error)
{
    char *end;
    errno = 0;
    *out = strtod(text, &end);
    bool is_whole = option->type != OPTION_INT || *out == floor(*out);
    if (end == text || *end || errno || !is_whole || !(*out >= option->min && *out <= option->max))
        return error_set(error, ERROR_INVALID, "%s takes %s from %.10g to %.10g, not \"%s\"",
                         option->name, option->type == OPTION_INT ? "a whole number" : "a number",
                         option->min, option->max, text);
    return OK;
}

static enum status parse_choice(const struct option *option, const char *text, struct error *error)
{
    size_t n = strlen(text);
    int index = 0;
    for (const char *word = option->argument; *word; index++) {
        size_t length = strcspn(word, "|");
        if (length == n && memcmp(word, text, n) == 0) {
            *(int *)option->value = index;
            return OK;
        }
        word += length + (word[length] == '|');
    }
    return error_set(error, ERROR_INVALID, "%s takes one of %s, not \"%s\"", option->name,
                     option->argument, text);
}

static enum status add_string(struct option_strings *strings, int max, const char *text,
                              const char *what, struct error *error)
{
    if (strings->n == max)
        return error_set(error, ERROR_LIMIT, "%s: at most %d, and \"%s\" is one more", what, max,
                         text);
    strings->items[strings->n++] = text;
    return OK;
}

static enum status set_value(const struct option *option, const char *text, struct error *error)
{
    double number;
    enum status status;
    switch (option->type) {
    case OPTION_STRING:
        *(const char **)option->value = text;
        return OK;
    case OPTION_STRINGS:
        return add_string(option->value, OPTION_MAX_STRINGS, text, option->name, error);
    case OPTION_CHOICE:
        return parse_choice(option, text, error);
    case OPTION_REFUSED:
        return strcmp(text, option->argument) == 0
                   ? OK
                   : error_set(error, ERROR_UNSUPPORTED, "%s %s is not supported: %s", option->name,
                               text, option->help);
    default:
        status = parse_number(option, text, &number, error);
        if (status != OK)
            return status;
        if (option->type == OPTION_INT)
            *(int *)option->value = (int)number;
        else
            *(double *)option->value = number;
        return OK;
    }
}

/* The option at argv[*i]; moves *i over its value. */
static enum status parse_option(struct command_line *line, int argc, char **argv, int *i,
                                struct error *error)
{
    const struct option *option = NULL;
    const char *argument = argv[*i];
    enum status status = find_option(line, argument, &option, error);
    if (status != OK)
        return status;
    bool has_value = argument[name_length(argument)] == '=';
    if (option->type == OPTION_REFUSED && !option->argument)
        return error_set(error, ERROR_UNSUPPORTED, "%s is not supported: %s", option->name,
                         option->help);
    if (option->type == OPTION_FLAG) {
        if (has_value)
            return error_set(error, ERROR_INVALID, "%s takes no value", option->name);
        *(bool *)option->value = true;
        return OK;
    }
    if (!has_value && *i + 1 >= argc)
        return error_set(error, ERROR_INVALID, "%s needs a value: %s", option->name,
                         option->argument);
    return set_value(option, has_value ? argument + name_length(argument) + 1 : argv[++*i], error);
}

enum status options_parse(struct command_line *line, int argc, char **argv, struct error *error)
{
    bool only_positionals = false;
    line->positionals.n = 0;
    line->wants_help = false;
    for (int i = 0; i < argc; i++) {
        enum status status;
        if (!only_positionals && strcmp(argv[i], "--") == 0) {
            only_positionals = true;
            continue;
        }
        if (!only_positionals && (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)) {
            line->wants_help = true;
            return OK;
        }
        if (only_positionals || argv[i][0] != '-' || argv[i][1] == '\0')
            status = add_string(&line->positionals, line->max_positionals, argv[i],
                                "positional arguments", error);
        else
            status = parse_option(line, argc, argv, &i, error);
        if (status != OK)
            return status;
    }
    return OK;
}

static void print_default(const struct option *option, FILE *out)
{
    const char *text = NULL;
    switch (option->type) {
    case OPTION_STRING:
        text = *(const char **)option->value;
        if (text)
            fprintf(out, " (default %s)", text);
        break;
    case OPTION_INT:
        fprintf(out, " (default %d)", *(int *)option->value);
        break;
    case OPTION_NUMBER:
        if (!isnan(*(double *)option->value))
            fprintf(out, " (default %g)", *(double *)option->value);
        break;
    case OPTION_CHOICE:
        text = option->argument;
        for (int i = 0; i < *(int *)option->value; i++)
            text += strcspn(text, "|") + 1;
        fprintf(out, " (default %.*s)", (int)strcspn(text, "|"), text);
        break;
    default:
        break;
    }
}

void options_print_help(const struct command_line *line, FILE *out)
{
    fprintf(out, "Usage: %s\n%s\n\nOptions:\n", line->usage, line->about);
    for (int i = 0; i < line->n_options; i++) {
        const struct option *option = &line->options[i];
        char head[96];
        if (!option->help || option->type == OPTION_REFUSED)
            continue;
        snprintf(head, sizeof head, "%s%s%s%s%s", option->name, option->alias ? ", " : "",
                 option->alias ? option->alias : "", option->argument ? " " : "",
                 option->argument ? option->argument : "");
        fprintf(out, "  %-36s %s", head, option->help);
        print_default(option, out);
        fputc('\n', out);
    }
    fprintf(out, "  %-36s %s\n", "--help, -h", "print this text");
}

const char *options_environment(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}
