/* What the machine and its container give this process. */
#ifndef CSGL_BASE_SYSTEM_H
#define CSGL_BASE_SYSTEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes that can be allocated without swapping: what the kernel calls available, or what is left of
 * the cgroup's limit if that is less. 0 if nothing can be found out. */
uint64_t system_available_memory(void);

/* The most memory this process has held so far, in bytes. */
uint64_t system_peak_memory(void);

/* Seconds on a clock that only moves forward. */
double system_seconds(void);

/* Bits from the kernel's random source, for seeds. */
uint64_t system_random(void);

/* The path of the program that runs; false where it is not known or longer than `size` - 1. */
bool system_program(char *path, size_t size);

#endif
