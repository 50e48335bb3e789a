/* Follows one JSON value byte by byte, to know where it ends and whether it is valid so far. */
#ifndef CSGL_PARSER_JSON_SCAN_H
#define CSGL_PARSER_JSON_SCAN_H

#include "base/json.h"

/* Zero-initialise to expect a value. */
struct json_scan {
    unsigned char state;
    unsigned char literal;  /* which of true, false, null */
    unsigned char progress; /* bytes of the literal, or hexadecimal digits, seen */
    int depth;
    bool in_object[JSON_MAX_DEPTH];
};

enum scan_result {
    SCAN_MORE,   /* the byte belongs to the value, which goes on */
    SCAN_DONE,   /* the byte is the value's last */
    SCAN_BEHIND, /* the value ended before this byte: a number */
    SCAN_ERROR   /* not JSON, or deeper than JSON_MAX_DEPTH */
};

/* The text is UTF-8; the caller has skipped blanks before the value. Not to be called again after
 * anything but SCAN_MORE. */
enum scan_result json_scan_byte(struct json_scan *scan, char byte);

/* Feeds bytes while the value goes on; `used` are those that belong to it. */
enum scan_result json_scan_text(struct json_scan *scan, const char *text, size_t len, size_t *used);

/* True if `text` is one JSON value with nothing but blanks around it. */
bool json_is_valid(const char *text, size_t len);
/* The same, and the value is an object. */
bool json_is_valid_object(const char *text, size_t len);

#endif
