/* What this machine's processors and memory can do at most: reading, arithmetic, and how long two
 * processors take to answer each other. The measure of every kernel. */
#ifndef CSGL_DEVICE_CPU_MEASURE_H
#define CSGL_DEVICE_CPU_MEASURE_H

#include "base/error.h"
#include "device/cpu/cpu.h"

enum arithmetic { ARITHMETIC_F32, ARITHMETIC_BF16, ARITHMETIC_INT8, N_ARITHMETICS };
enum page_kind { PAGES_4K, PAGES_HUGE, N_PAGE_KINDS };

/* Index [0]: one thread, [1]: all of them. */
struct cpu_limits {
    int n_threads;
    double bytes_per_s[N_PAGE_KINDS][2]; /* read from memory, beyond the caches */
    /* Multiplications and additions in registers; 0: there are no instructions for it. */
    double operations_per_s[N_ARITHMETICS][2];
    double round_trip_s; /* of a cache line between two threads; 0: there is one thread */
};

/* Takes about a second. `n_threads` 0: all processors. */
enum status cpu_measure(struct cpu_limits *out, int n_threads, enum cpu_isa isa,
                        struct error *error);

/* The kernels of one instruction set. `run` works through `rounds` rounds in registers and leaves
 * something in `sink` that depends on all of them. */
struct measure_kernels {
    struct {
        void (*run)(long rounds, float *sink); /* NULL: none */
        double operations;                     /* a round */
    } arithmetic[N_ARITHMETICS];
    /* The sum of n (a multiple of 64) aligned words: reads as fast as it can. */
    uint64_t (*read)(const uint64_t *words, size_t n);
};

const struct measure_kernels *cpu_measure_kernels(enum cpu_isa isa);

#endif
