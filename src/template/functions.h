/* The tables of names that templates can call. */
#ifndef CSGL_TEMPLATE_FUNCTIONS_H
#define CSGL_TEMPLATE_FUNCTIONS_H

#include "template/value.h"

/* NULL if there is none of that name. */
const struct builtin *filter_find(const struct value *name);
const struct builtin *test_find(const struct value *name);

/* The name's row among the methods of str, list, tuple and dict, or -1. */
int method_find(const struct value *name);
/* The method of row `row` for this object, or NULL if its type has none of that name. */
const struct builtin *method_of(int row, const struct value *object);

/* range, namespace, dict, joiner, raise_exception, strftime_now, ...: put into `context`. */
bool globals_add(struct arena *arena, struct dict *context);

/* Parts of the filter table, each with its end marked by a NULL name. */
extern const struct builtin text_filters[];
extern const struct builtin list_filters[];
extern const struct builtin pick_filters[];

#endif
