/* Inside the C library: the engine's parts and its live requests. */
#ifndef CSGL_CSGL_LIVE_H
#define CSGL_CSGL_LIVE_H

#include "csgl.h"
#include "engine/executor.h"
#include "scheduler/scheduler.h"
#include "text_model.h"
#include "tokenizer/encoder.h"

#include <stdatomic.h>

/* A request between its submission and its end. Its id is its slot's number and a count of the
 * slot's uses, so that an old id never names a new request. */
struct live {
    csgl_id id; /* 0: free */
    uint64_t n_uses;
    struct csgl_request request; /* callbacks and context; nothing else is read after submission */
    struct detokenizer detokenizer;
    struct str text; /* not handed out yet */
    bool is_done;
    struct csgl_result result;
    _Atomic csgl_id cancelled; /* the id that csgl_cancel was called with */
};

struct csgl_engine {
    struct checkpoint *checkpoint;
    struct text_model text;
    struct device *device;
    struct engine *engine;
    struct engine_executor executor;
    struct encoder *encoder;
    struct scheduler *scheduler;
    struct live *live; /* [n_live] */
    int n_live;
    struct trace *trace; /* NULL: nothing is recorded */
};

/* A prompt's ids, and where other prompts may part from it (see kv_prompt). token_ids_done(&ids).
 */
struct encoded_prompt {
    struct token_ids ids;
    int32_t marks[CHAT_MAX_MARKS], n_marks;
};

/* Encodes a request's prompt, whatever its form. Errors name the field. */
enum status csgl_encode_prompt(struct csgl_engine *engine, const struct csgl_request *request,
                               struct encoded_prompt *out, struct error *error);

#endif
