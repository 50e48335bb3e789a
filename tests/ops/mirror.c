#include "ops/mirror.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

struct mirrored {
    struct buffer real; /* as the device made it */
    void *host;
    bool is_lent; /* the host's memory is somebody else's */
    struct mirrored *next;
};

static struct {
    const struct device_table *real; /* NULL: no device is mirrored */
    struct device_table table;
    struct mirrored *buffers;
} mirror;

static void check(enum status status, const char *what, const struct error *error)
{
    if (status != OK)
        fail_msg("%s: %s", what, error->message);
}

static void copy_all(struct device *device, const char *op, bool is_before)
{
    struct error error;
    for (const struct mirrored *m = mirror.buffers; m; m = m->next)
        check(is_before
                  ? mirror.real->buffer_write(device, &m->real, 0, m->host, m->real.bytes, &error)
                  : mirror.real->buffer_read(device, &m->real, 0, m->host, m->real.bytes, &error),
              op, &error);
}

#define DEFINE_OP(name)                                                                            \
    static void mirrored_##name(struct device *device, const struct name##_args *args)             \
    {                                                                                              \
        struct error error;                                                                        \
        copy_all(device, #name, true);                                                             \
        mirror.real->name(device, args);                                                           \
        check(mirror.real->sync(device, &error), #name, &error);                                   \
        copy_all(device, #name, false);                                                            \
    }
DEVICE_OPS(DEFINE_OP)
#undef DEFINE_OP

/* `host` NULL: memory of the mirror's own. */
static enum status mirrored_add(struct device *device, size_t bytes, void *host, struct buffer *out,
                                struct error *error)
{
    struct mirrored *m = calloc(1, sizeof *m);
    assert_non_null(m);
    enum status status = mirror.real->buffer_alloc(device, bytes, &m->real, error);
    if (status != OK) {
        free(m);
        return status;
    }
    m->is_lent = host != NULL;
    m->host = host ? host : calloc(1, bytes ? bytes : 1);
    assert_non_null(m->host);
    m->next = mirror.buffers;
    mirror.buffers = m;
    *out = (struct buffer){m->host, m->real.handle, bytes};
    return OK;
}

static enum status mirrored_alloc(struct device *device, size_t bytes, struct buffer *out,
                                  struct error *error)
{
    return mirrored_add(device, bytes, NULL, out, error);
}

static void mirrored_free(struct device *device, struct buffer *buffer)
{
    for (struct mirrored **at = &mirror.buffers; *at; at = &(*at)->next)
        if ((*at)->real.handle == buffer->handle) {
            struct mirrored *m = *at;
            *at = m->next;
            mirror.real->buffer_free(device, &m->real);
            if (!m->is_lent)
                free(m->host);
            free(m);
            break;
        }
    *buffer = (struct buffer){0};
}

static void mirrored_close(struct device *device)
{
    const struct device_table *real = mirror.real;
    assert_null(mirror.buffers);
    mirror.real = NULL;
    real->close(device);
}

void mirror_device(struct device *device)
{
    assert_null(mirror.real);
    mirror.real = device->table;
    mirror.table = *device->table;
#define MIRRORED_ENTRY(name) mirror.table.name = mirrored_##name;
    DEVICE_OPS(MIRRORED_ENTRY)
#undef MIRRORED_ENTRY
    mirror.table.buffer_alloc = mirrored_alloc;
    mirror.table.buffer_free = mirrored_free;
    mirror.table.close = mirrored_close;
    device->table = &mirror.table;
}

void mirror_lend(struct device *device, struct buffer *buffer)
{
    struct error error;
    if (device->table == &mirror.table)
        check(mirrored_add(device, buffer->bytes, buffer->host, buffer, &error), "lending", &error);
}

void mirror_give_back(struct device *device, struct buffer *buffer)
{
    struct buffer lent = *buffer;
    if (device->table != &mirror.table)
        return;
    mirrored_free(device, &lent);
    buffer->handle = NULL;
}
