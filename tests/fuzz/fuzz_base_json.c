/* Any bytes: the tree either fails with a sentence, or what it writes reads back as the same text.
 */
#include "base/json.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void require(int truth)
{
    if (!truth)
        __builtin_trap();
}

static void write_tree(struct str *out, const char *text, size_t bytes, int must_parse)
{
    struct arena arena = {.limit = 16 << 20};
    struct json tree;
    struct error error = {0};
    enum status status = json_parse(&arena, text, bytes, &tree, &error);
    require(status == error.status && (status == OK) == (error.message[0] == 0));
    require(status == OK || !must_parse);
    if (status == OK)
        json_write(out, &tree);
    arena_done(&arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct str once = {0}, twice = {0};
    write_tree(&once, (const char *)data, bytes, 0);
    if (once.len) {
        write_tree(&twice, once.data, once.len, 1);
        require(once.len == twice.len && memcmp(once.data, twice.data, once.len) == 0);
    }
    str_done(&once);
    str_done(&twice);
    return 0;
}
