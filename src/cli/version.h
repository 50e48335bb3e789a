/* What csgl --version prints. */
#ifndef CSGL_CLI_VERSION_H
#define CSGL_CLI_VERSION_H

#include <stdio.h>

/* The commit that csgl was built from, with "-dirty" for changes on top, or "unknown"; made by
 * cmake/commit.cmake at build time. */
extern const char csgl_commit[];

void version_print(FILE *out);

#endif
