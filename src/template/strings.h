/* Operations on strings that both filters and methods are made of. A result keeps the safe mark. */
#ifndef CSGL_TEMPLATE_STRINGS_H
#define CSGL_TEMPLATE_STRINGS_H

#include "template/eval.h"

enum case_change { CASE_UPPER, CASE_LOWER, CASE_CAPITALIZE, CASE_TITLE, CASE_SWAP };

bool string_change_case(struct eval *e, const struct value *v, enum case_change change,
                        struct value *out);
/* `chars` NULL is white space. Costs no copy. */
bool string_strip(struct eval *e, const struct value *v, const struct value *chars, bool left,
                  bool right, struct value *out);
/* count < 0: all. */
bool string_replace(struct eval *e, const struct value *v, const struct value *old,
                    const struct value *new_text, int64_t count, struct value *out);
/* str.center, ljust, rjust by align '^', '<', '>'. */
bool string_justify(struct eval *e, const struct value *v, int64_t width, const struct value *fill,
                    char align, struct value *out);
/* str.splitlines without the ends. */
bool string_lines(struct eval *e, const struct value *v, bool keep_ends, struct list **out);

/* Python's int(text, base) and float(text); false if the text is no number. A decimal integer
 * beyond 64 bits is V_BIG. */
bool string_to_integer(struct eval *e, const struct value *v, int base, struct value *out);
bool string_to_float(struct eval *e, const struct value *v, double *out);

#endif
