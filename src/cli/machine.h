/* What csgl check_env says of the hardware and the system: one file a system. */
#ifndef CSGL_CLI_MACHINE_H
#define CSGL_CLI_MACHINE_H

#include "bench/report.h"

/* Processor, instruction sets, caches, memory, limits and accelerators. */
void machine_report(struct report *r);

#endif
