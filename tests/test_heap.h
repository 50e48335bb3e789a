/* Bytes that malloc has handed out, for tests of what code says that it takes. */
#ifndef CSGL_TEST_HEAP_H
#define CSGL_TEST_HEAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>

#if defined(__GLIBC__) && (__GLIBC__ > 2 || __GLIBC_MINOR__ >= 33)
#include <malloc.h>

static inline size_t heap_bytes(void)
{
    struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
}
#else
static inline size_t heap_bytes(void)
{
    return 0;
}
#endif

/* False where nothing counts: other C libraries, sanitizers. */
static inline bool heap_is_counted(void)
{
    size_t before = heap_bytes();
    void *volatile some = malloc(1 << 20);
    bool is_counted = heap_bytes() >= before + (1 << 20);
    free(some);
    return is_counted;
}

#endif
