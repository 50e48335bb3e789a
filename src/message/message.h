/* Messages between csgl's processes. A frame holds several, each with its fields one by one, little
 * endian; structs are never written raw. */
#ifndef CSGL_MESSAGE_MESSAGE_H
#define CSGL_MESSAGE_MESSAGE_H

#include "base/arena.h"
#include "base/error.h"
#include "base/str.h"
#include "message/message.def"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MESSAGE_VERSION = 3, FRAME_MAX_BYTES = 64 << 20 };

enum prompt_kind { PROMPT_TEXT, PROMPT_CHAT, PROMPT_IDS, N_PROMPT_KINDS };

enum prompt_flag {
    PROMPT_ADD_SPECIAL = 1,          /* TEXT: put BOS before it where the tokenizer does */
    PROMPT_CONTINUE_FINAL = 2,       /* CHAT: the answer continues the last message */
    PROMPT_NO_GENERATION_PROMPT = 4, /* CHAT */
};

enum finish_reason { FINISH_NONE, FINISH_STOP, FINISH_LENGTH, FINISH_CANCELLED, FINISH_ERROR };

struct bytes {
    const char *data; /* not NUL-terminated */
    uint32_t n;
};

struct i32s {
    const int32_t *items;
    uint32_t n;
};

struct f32s {
    const float *items;
    uint32_t n;
};

struct byte_strings {
    const struct bytes *items;
    uint32_t n;
};

#define FIELD_TYPE_U8 uint8_t
#define FIELD_TYPE_U32 uint32_t
#define FIELD_TYPE_I32 int32_t
#define FIELD_TYPE_U64 uint64_t
#define FIELD_TYPE_F64 double
#define FIELD_TYPE_STR struct bytes
#define FIELD_TYPE_I32S struct i32s
#define FIELD_TYPE_F32S struct f32s
#define FIELD_TYPE_STRS struct byte_strings
#define FIELD_MEMBER(kind, field) FIELD_TYPE_##kind field;

/* struct prompt_message, struct submit_message, ... */
#define MESSAGE_STRUCT(name, fields)                                                               \
    struct name##_message {                                                                        \
        fields(FIELD_MEMBER)                                                                       \
    };
MESSAGES(MESSAGE_STRUCT)
#undef MESSAGE_STRUCT

/* MESSAGE_prompt, MESSAGE_submit, ... */
#define MESSAGE_TYPE(name, fields) MESSAGE_##name,
enum message_type { MESSAGES(MESSAGE_TYPE) N_MESSAGE_TYPES };
#undef MESSAGE_TYPE

struct message {
    enum message_type type;
    union {
#define MESSAGE_MEMBER(name, fields) struct name##_message name;
        MESSAGES(MESSAGE_MEMBER)
#undef MESSAGE_MEMBER
    };
};

/* --- writing ---------------------------------------------------------------------------------- */

/* Starts a frame in `frame` (cleared). `epoch` is the generation of the requests it concerns. */
void frame_begin(struct str *frame, uint32_t epoch);

/* Appends one message. False if the frame would pass FRAME_MAX_BYTES (the frame is then as before)
 * or memory is exhausted. */
bool frame_add(struct str *frame, const struct message *message);

/* --- reading ---------------------------------------------------------------------------------- */

/* Walks through a frame. Strings point into it; arrays are copied into the arena. */
struct frame_reader {
    uint32_t epoch;
    /* private */
    const uint8_t *at, *end;
    struct arena *arena;
};

/* ERROR_INVALID if it is no frame of this version. */
enum status frame_open(struct frame_reader *reader, const void *data, size_t bytes,
                       struct arena *arena, struct error *error);

/* True with the next message, false at the end (status OK) or at damage (ERROR_INVALID). */
bool frame_next(struct frame_reader *reader, struct message *out, enum status *status,
                struct error *error);

/* The epoch in which a request began. */
static inline uint32_t uid_epoch(uint64_t uid)
{
    return (uint32_t)(uid >> 32);
}

static inline struct bytes bytes_of(const struct str *s)
{
    return (struct bytes){s->data, (uint32_t)s->len};
}

#endif
