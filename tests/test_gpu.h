/* Which GPU the tests of a device run on. */
#ifndef CSGL_TESTS_TEST_GPU_H
#define CSGL_TESTS_TEST_GPU_H

#include <stdlib.h>

/* What CSGL_TEST_GPU names ("cuda", "metal"), or the emulator where it is built; NULL: none. */
static inline const char *test_gpu(void)
{
    const char *name = getenv("CSGL_TEST_GPU");
#ifdef CSGL_EMULATOR
    return name ? name : "emulator";
#else
    return name;
#endif
}

#endif
