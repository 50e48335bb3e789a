/* The slots of recurrent states: sizes, addresses, copies. */
#include "device/cpu/states.h"

#include "base/size.h"
#include "device/cpu/cpu_device.h"

#include <assert.h>
#include <string.h>

enum { ALIGN = 64 };

static size_t head_bytes(const struct state_layout *layout)
{
    return (size_t)layout->k_dim * (size_t)layout->v_dim * dtype_bytes(layout->dtype);
}

static size_t state_bytes(const struct state_layout *layout)
{
    return size_round_up((size_t)layout->n_v_heads * head_bytes(layout), ALIGN);
}

size_t cpu_state_slot_bytes(const struct device *device, const struct state_layout *layout)
{
    (void)device;
    size_t rows = (size_t)layout->conv_rows * (size_t)layout->conv_channels * sizeof(float);
    return state_bytes(layout) + size_round_up(rows, ALIGN);
}

static char *slot_at(const struct state_slots *slots, int32_t slot)
{
    assert(slot >= 0 && slot < slots->n_slots);
    return (char *)slots->buffer->host + slots->offset + (size_t)slot * slots->slot_bytes;
}

void *state_head(const struct state_slots *slots, int32_t slot, int32_t head)
{
    return slot_at(slots, slot) + (size_t)head * head_bytes(&slots->layout);
}

float *state_rows(const struct state_slots *slots, int32_t slot)
{
    return (float *)(void *)(slot_at(slots, slot) + state_bytes(&slots->layout));
}

void cpu_state_copy(struct device *device, const struct state_copy_args *args)
{
    (void)device;
    if (args->from != args->to)
        memcpy(slot_at(&args->slots, args->to), slot_at(&args->slots, args->from),
               args->slots.slot_bytes);
}
