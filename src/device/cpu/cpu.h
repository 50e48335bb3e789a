/* The CPU device: what the rest of csgl may know of it. */
#ifndef CSGL_DEVICE_CPU_CPU_H
#define CSGL_DEVICE_CPU_CPU_H

#include "base/error.h"
#include "device/ops.h"

/* Each level includes the ones before on its architecture, which alone knows it; the numbers are
 * shared, so that loops from CPU_ISA_VECTOR to cpu_isa_best() serve all. SCALAR is the twin that
 * judges all others. */
enum cpu_isa {
    CPU_ISA_SCALAR,

    CPU_ISA_AVX2,   /* x86-64: AVX2, FMA, F16C */
    CPU_ISA_AVX512, /* F, BW, VL, DQ, VBMI, VNNI, BF16 */
    CPU_ISA_AMX,    /* AMX-TILE, AMX-INT8, AMX-BF16 and the kernel's permission */
    N_CPU_ISAS,

    CPU_ISA_NEON = CPU_ISA_AVX2, /* arm64: what every such processor has */
    CPU_ISA_DOTPROD,             /* sdot */
    CPU_ISA_I8MM,                /* smmla */

    CPU_ISA_VECTOR = CPU_ISA_AVX2, /* the first with vectors */
    CPU_ISA_INT8 = CPU_ISA_AVX512  /* the first with dot products of int8 */
};

struct cpu_options {
    int n_threads;    /* 0: all processors available */
    enum cpu_isa isa; /* at most cpu_isa_best() */
    enum activations activations;
};

/* cpu_isa.c: the best level that this machine and its kernel allow, and that this program was built
 * with; a level's name for people. */
enum cpu_isa cpu_isa_best(void);
enum cpu_isa cpu_isa_built(void);
const char *cpu_isa_name(enum cpu_isa isa);

/* A device of its own with its own threads; ends with device->table->close. */
enum status cpu_device_open(struct device **out, const struct cpu_options *options,
                            struct error *error);

/* The mode in force, never AUTO. */
enum activations cpu_device_activations(const struct device *device);

#endif
