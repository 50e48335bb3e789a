/* The methods of str that templates can call, for the table in methods.c. */
#ifndef CSGL_TEMPLATE_METHODS_TEXT_H
#define CSGL_TEMPLATE_METHODS_TEXT_H

#include "template/eval.h"

#define TEXT_METHODS(X)                                                                            \
    X(capitalize)                                                                                  \
    X(casefold)                                                                                    \
    X(center)                                                                                      \
    X(count)                                                                                       \
    X(endswith)                                                                                    \
    X(find)                                                                                        \
    X(format)                                                                                      \
    X(index)                                                                                       \
    X(isalnum)                                                                                     \
    X(isalpha)                                                                                     \
    X(isascii)                                                                                     \
    X(isdecimal)                                                                                   \
    X(isdigit)                                                                                     \
    X(islower)                                                                                     \
    X(isnumeric)                                                                                   \
    X(isspace)                                                                                     \
    X(isupper)                                                                                     \
    X(join)                                                                                        \
    X(ljust)                                                                                       \
    X(lower)                                                                                       \
    X(lstrip)                                                                                      \
    X(partition)                                                                                   \
    X(removeprefix)                                                                                \
    X(removesuffix)                                                                                \
    X(replace)                                                                                     \
    X(rfind)                                                                                       \
    X(rindex)                                                                                      \
    X(rjust)                                                                                       \
    X(rpartition)                                                                                  \
    X(rsplit)                                                                                      \
    X(rstrip) X(split) X(splitlines) X(startswith) X(strip) X(swapcase) X(title) X(upper) X(zfill)

#define DECLARE(name)                                                                              \
    bool text_method_##name(struct eval *e, const struct args *args, struct value *out);
TEXT_METHODS(DECLARE)
#undef DECLARE

#endif
