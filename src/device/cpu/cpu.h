/* The CPU device: what the rest of csgl may know of it. */
#ifndef CSGL_DEVICE_CPU_CPU_H
#define CSGL_DEVICE_CPU_CPU_H

#include "base/error.h"
#include "device/ops.h"

/* Each level includes the ones before. SCALAR is the twin that judges all others. */
enum cpu_isa {
    CPU_ISA_SCALAR,
    CPU_ISA_AVX2,   /* AVX2, FMA, F16C */
    CPU_ISA_AVX512, /* F, BW, VL, DQ, VBMI, VNNI, BF16 */
    CPU_ISA_AMX,    /* AMX-TILE, AMX-INT8, AMX-BF16 and the kernel's permission */
    N_CPU_ISAS
};

enum activations {
    ACTIVATIONS_AUTO, /* INT8 where the machine has VNNI (AVX512 and up), FLOAT elsewhere */
    ACTIVATIONS_FLOAT,
    ACTIVATIONS_INT8 /* quantized weights: int8 per token and group of 32; bf16 weights: bf16 */
};

struct cpu_options {
    int n_threads;    /* 0: all processors available */
    enum cpu_isa isa; /* at most cpu_isa_best() */
    enum activations activations;
};

/* The best level that this machine and its kernel allow, and its name for people. */
enum cpu_isa cpu_isa_best(void);
const char *cpu_isa_name(enum cpu_isa isa);

/* A device of its own with its own threads; ends with device->table->close. */
enum status cpu_device_open(struct device **out, const struct cpu_options *options,
                            struct error *error);

/* The mode in force (never AUTO). */
enum activations cpu_device_activations(const struct device *device);

#endif
