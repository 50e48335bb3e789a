#include "cli/version.h"

#include "device/cpu/cpu.h"

void version_print(FILE *out)
{
    fprintf(out, "csgl %s\ncommit: %s\ncompiler: %s\nkernels: ", CSGL_VERSION, csgl_commit,
            CSGL_COMPILER);
    for (enum cpu_isa isa = CPU_ISA_SCALAR; isa <= cpu_isa_built(); isa++)
        fprintf(out, "%s%s", isa == CPU_ISA_SCALAR ? "" : "; ", cpu_isa_name(isa));
    fprintf(out, "\nthis machine: %s\n", cpu_isa_name(cpu_isa_best()));
}
