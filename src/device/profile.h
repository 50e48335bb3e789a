/* A device that measures another: it forwards every op, and adds up its time, its bytes and its
 * operations. Put in the real one's place while something is to be measured, it costs nothing
 * otherwise. Results of the ops are the real device's. */
#ifndef CSGL_DEVICE_PROFILE_H
#define CSGL_DEVICE_PROFILE_H

#include "base/trace.h"
#include "device/ops.h"

struct profile;

/* Sums over the calls of one op in one phase. Bytes are those of weights, caches and activations
 * that the op has to read or write at least; operations count a multiplication and an addition as
 * two, and those of matrix products and attention alone. */
struct profile_entry {
    const char *name;
    uint64_t calls;
    double seconds, bytes, operations;
};

/* `real` is kept until profile_free. Refused for a device that runs ops after they are called and
 * has no marks. */
enum status profile_new(struct profile **out, struct device *real, struct error *error);
void profile_free(struct profile *profile);

/* The measuring device: to be used in the real one's place for ops alone. */
struct device *profile_device(struct profile *profile);

/* Records each op and what further threads do of it; NULL ends it. Sums are kept in any case. */
void profile_trace(struct profile *profile, struct trace *trace);

/* To be called after each sync of the real device: there it becomes known how long the ops took of a
 * device that runs them after they are called. */
enum status profile_collect(struct profile *profile, struct error *error);

/* What the next ops belong to: TRACE_PREFILL or TRACE_DECODE. */
void profile_phase(struct profile *profile, enum trace_phase phase);

/* One entry for each op of ops.h, in its order; borrowed. */
const struct profile_entry *profile_entries(const struct profile *profile, enum trace_phase phase,
                                            int *n);
void profile_reset(struct profile *profile);

/* Whether the costs of op `i` are known: all are, or a test says which is not. */
bool profile_knows(int op);

/* What one call costs, for benchmarks of single ops. */
struct op_cost {
    double bytes, operations;
};
struct op_cost profile_cost_linear(const struct device *device, const struct linear_args *args);
struct op_cost profile_cost_paged_attention(const struct device *device,
                                            const struct paged_attention_args *args);
struct op_cost profile_cost_moe_ffn(const struct device *device, const struct moe_ffn_args *args);
struct op_cost profile_cost_gated_delta(const struct device *device,
                                        const struct gated_delta_args *args);

#endif
