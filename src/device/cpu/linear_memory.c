/* Memory of packed weights. A weight is streamed once a token, and pages of 2 MiB let the
 * processor's prefetchers run on where those of 4 KiB stop them; so small linears lie side by side
 * in slabs of huge pages. A slab ends with the last linear in it. */
#include "base/size.h"
#include "device/cpu/linear.h"

#include <stdlib.h>

#ifdef __linux__
#include <sys/mman.h>
#endif

#ifndef CSGL_WEIGHT_SLAB
#define CSGL_WEIGHT_SLAB (64 << 20)
#endif

enum {
    ALIGN = 64,
    HUGE_PAGE = 2 << 20,
    SLAB = CSGL_WEIGHT_SLAB,
    /* Bigger ones fill a slab of their own, whose last huge page is on average half empty: at most
     * 6 % of them. */
    OWN_SLAB_FROM = SLAB / 4
};

struct weight_slab {
    uint8_t *memory;
    size_t bytes, used;
    int n_users;
};

/* Not cleared: whoever fills it also touches its pages first. */
static struct weight_slab *slab_new(size_t bytes)
{
    struct weight_slab *slab = calloc(1, sizeof *slab);
    void *memory = NULL;
    if (!slab || posix_memalign(&memory, HUGE_PAGE, bytes) != 0) {
        free(slab);
        return NULL;
    }
#ifdef MADV_HUGEPAGE
    (void)madvise(memory, bytes, MADV_HUGEPAGE); /* a wish: refusal changes nothing */
#endif
    *slab = (struct weight_slab){.memory = memory, .bytes = bytes};
    return slab;
}

size_t linear_memory_bytes(size_t bytes)
{
    if (bytes > SIZE_MAX / 2)
        return SIZE_MAX;
    return bytes >= OWN_SLAB_FROM ? size_round_up(bytes, HUGE_PAGE)
                                  : bytes + bytes / (2 * SLAB / HUGE_PAGE);
}

void *linear_memory_alloc(struct cpu_device *cpu, size_t bytes, struct weight_slab **owner)
{
    *owner = NULL;
    if (bytes > SIZE_MAX - HUGE_PAGE)
        return NULL;
    struct weight_slab *slab = cpu->slab;
    bytes = size_round_up(bytes, ALIGN);
    if (bytes >= OWN_SLAB_FROM) {
        slab = slab_new(size_round_up(bytes, HUGE_PAGE));
    } else if (!slab || bytes > slab->bytes - slab->used) {
        /* The old one, nearly full, lives on by its linears alone. */
        slab = cpu->slab = slab_new(SLAB);
    }
    if (!slab)
        return NULL;
    void *memory = slab->memory + slab->used;
    slab->used += bytes;
    slab->n_users++;
    *owner = slab;
    return memory;
}

void linear_memory_free(struct cpu_device *cpu, struct weight_slab *slab)
{
    if (!slab || --slab->n_users > 0)
        return;
    if (cpu->slab == slab)
        cpu->slab = NULL;
    free(slab->memory);
    free(slab);
}
