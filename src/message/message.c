/* The codec, made from message.def. Frame: magic u32, version u32, epoch u32, then messages:
 * type u32, bytes u32, fields. */
#include "message/message.h"

#include <string.h>

enum { FRAME_MAGIC = 0x4C475343 /* "CSGL" */, FRAME_HEADER = 12, MESSAGE_HEADER = 8 };

/* --- writing ---------------------------------------------------------------------------------- */

static void put_u32(struct str *out, uint32_t value)
{
    unsigned char b[4] = {(unsigned char)value, (unsigned char)(value >> 8),
                          (unsigned char)(value >> 16), (unsigned char)(value >> 24)};
    str_append(out, (const char *)b, sizeof b);
}

static void put_u64(struct str *out, uint64_t value)
{
    put_u32(out, (uint32_t)value);
    put_u32(out, (uint32_t)(value >> 32));
}

static void put_U8(struct str *out, uint8_t value)
{
    str_append_char(out, (char)value);
}

static void put_U32(struct str *out, uint32_t value)
{
    put_u32(out, value);
}

static void put_I32(struct str *out, int32_t value)
{
    put_u32(out, (uint32_t)value);
}

static void put_U64(struct str *out, uint64_t value)
{
    put_u64(out, value);
}

static void put_F64(struct str *out, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_u64(out, bits);
}

static void put_STR(struct str *out, struct bytes value)
{
    put_u32(out, value.n);
    str_append(out, value.data, value.n);
}

static void put_I32S(struct str *out, struct i32s value)
{
    put_u32(out, value.n);
    for (uint32_t i = 0; i < value.n; i++)
        put_u32(out, (uint32_t)value.items[i]);
}

static void put_F32S(struct str *out, struct f32s value)
{
    put_u32(out, value.n);
    for (uint32_t i = 0; i < value.n; i++) {
        uint32_t bits;
        memcpy(&bits, &value.items[i], sizeof bits);
        put_u32(out, bits);
    }
}

static void put_STRS(struct str *out, struct byte_strings value)
{
    put_u32(out, value.n);
    for (uint32_t i = 0; i < value.n; i++)
        put_STR(out, value.items[i]);
}

#define PUT_FIELD(kind, field) put_##kind(out, m->field);
#define PUT_MESSAGE(name, fields)                                                                  \
    static void put_##name(struct str *out, const struct name##_message *m)                        \
    {                                                                                              \
        fields(PUT_FIELD)                                                                          \
    }
MESSAGES(PUT_MESSAGE)

void frame_begin(struct str *frame, uint32_t epoch)
{
    str_clear(frame);
    put_u32(frame, FRAME_MAGIC);
    put_u32(frame, MESSAGE_VERSION);
    put_u32(frame, epoch);
}

bool frame_add(struct str *frame, const struct message *message)
{
    size_t start = frame->len;
    put_u32(frame, (uint32_t)message->type);
    put_u32(frame, 0);
    switch (message->type) {
#define PUT_CASE(name, fields)                                                                     \
    case MESSAGE_##name:                                                                           \
        put_##name(frame, &message->name);                                                         \
        break;
        MESSAGES(PUT_CASE)
    default:
        break;
    }
    if (frame->failed || frame->len > FRAME_MAX_BYTES) {
        frame->len = start;
        return false;
    }
    uint32_t n = (uint32_t)(frame->len - start - MESSAGE_HEADER);
    for (int i = 0; i < 4; i++)
        frame->data[start + 4 + (size_t)i] = (char)(n >> (8 * i));
    return true;
}

/* --- reading ---------------------------------------------------------------------------------- */

/* The bytes of one message that are left. A getter returns false when they do not suffice. */
struct cursor {
    const uint8_t *at, *end;
    struct arena *arena;
};

static size_t left(const struct cursor *c)
{
    return (size_t)(c->end - c->at);
}

static uint32_t load_u32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static bool get_U8(struct cursor *c, uint8_t *out)
{
    if (left(c) < 1)
        return false;
    *out = *c->at++;
    return true;
}

static bool get_U32(struct cursor *c, uint32_t *out)
{
    if (left(c) < 4)
        return false;
    *out = load_u32(c->at);
    c->at += 4;
    return true;
}

static bool get_I32(struct cursor *c, int32_t *out)
{
    uint32_t bits;
    if (!get_U32(c, &bits))
        return false;
    *out = (int32_t)bits;
    return true;
}

static bool get_U64(struct cursor *c, uint64_t *out)
{
    uint32_t low, high;
    if (!get_U32(c, &low) || !get_U32(c, &high))
        return false;
    *out = (uint64_t)high << 32 | low;
    return true;
}

static bool get_F64(struct cursor *c, double *out)
{
    uint64_t bits;
    if (!get_U64(c, &bits))
        return false;
    memcpy(out, &bits, sizeof bits);
    return true;
}

static bool get_STR(struct cursor *c, struct bytes *out)
{
    uint32_t n;
    if (!get_U32(c, &n) || n > left(c))
        return false;
    *out = (struct bytes){(const char *)c->at, n};
    c->at += n;
    return true;
}

/* n words of 4 bytes into new memory of the arena; NULL if they are not there. n == 0 gives NULL.
 */
static void *get_words(struct cursor *c, uint32_t *n)
{
    if (!get_U32(c, n) || *n > left(c) / 4)
        return NULL;
    uint32_t *words = arena_alloc_array(c->arena, *n, sizeof *words);
    for (uint32_t i = 0; words && i < *n; i++)
        words[i] = load_u32(c->at + 4 * (size_t)i);
    c->at += 4 * (size_t)*n;
    return words;
}

static bool get_I32S(struct cursor *c, struct i32s *out)
{
    out->items = get_words(c, &out->n);
    return out->items != NULL;
}

static bool get_F32S(struct cursor *c, struct f32s *out)
{
    out->items = get_words(c, &out->n);
    return out->items != NULL;
}

static bool get_STRS(struct cursor *c, struct byte_strings *out)
{
    if (!get_U32(c, &out->n) || out->n > left(c) / 4)
        return false;
    struct bytes *items = arena_alloc_array(c->arena, out->n, sizeof *items);
    for (uint32_t i = 0; items && i < out->n; i++)
        if (!get_STR(c, &items[i]))
            return false;
    out->items = items;
    return items != NULL;
}

#define GET_FIELD(kind, field) &&get_##kind(c, &m->field)
#define GET_MESSAGE(name, fields)                                                                  \
    static bool get_##name(struct cursor *c, struct name##_message *m)                             \
    {                                                                                              \
        return true fields(GET_FIELD);                                                             \
    }
MESSAGES(GET_MESSAGE)

enum status frame_open(struct frame_reader *r, const void *data, size_t bytes, struct arena *arena,
                       struct error *error)
{
    const uint8_t *p = data;
    if (bytes < FRAME_HEADER || bytes > FRAME_MAX_BYTES || load_u32(p) != FRAME_MAGIC)
        return error_set(error, ERROR_INVALID, "a message of %zu bytes is no csgl frame", bytes);
    if (load_u32(p + 4) != MESSAGE_VERSION)
        return error_set(error, ERROR_INVALID, "a frame has version %u; this csgl speaks %d",
                         load_u32(p + 4), MESSAGE_VERSION);
    *r = (struct frame_reader){
        .epoch = load_u32(p + 8), .at = p + FRAME_HEADER, .end = p + bytes, .arena = arena};
    return OK;
}

static bool get_message(struct cursor *c, struct message *out)
{
    switch (out->type) {
#define GET_CASE(name, fields)                                                                     \
    case MESSAGE_##name:                                                                           \
        return get_##name(c, &out->name);
        MESSAGES(GET_CASE)
    default:
        return false;
    }
}

bool frame_next(struct frame_reader *r, struct message *out, enum status *status,
                struct error *error)
{
    *status = OK;
    if (r->at == r->end)
        return false;
    struct cursor c = {.at = r->at, .end = r->end, .arena = r->arena};
    uint32_t type, n;
    memset(out, 0, sizeof *out);
    if (get_U32(&c, &type) && get_U32(&c, &n) && type < N_MESSAGE_TYPES && n <= left(&c)) {
        c.end = c.at + n;
        out->type = (enum message_type)type;
        if (get_message(&c, out) && c.at == c.end) {
            r->at = c.end;
            return true;
        }
    }
    *status = error_set(error, ERROR_INVALID, "a message is damaged");
    return false;
}
