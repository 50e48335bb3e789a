#include "message/socket.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

enum { MAX_INBOXES = 4, MAX_ENDPOINT = 104 /* sun_path of the smallest system (macOS) */ };

_Static_assert(sizeof(zmq_msg_t) <= 64, "an inbox_frame holds a zmq_msg_t");

enum status socket_context_new(void **out, struct error *error)
{
    *out = zmq_ctx_new();
    return *out ? OK : error_set(error, ERROR_IO, "ZeroMQ cannot start: %s", zmq_strerror(errno));
}

void socket_context_free(void *context)
{
    if (context)
        zmq_ctx_term(context);
}

static enum status make_endpoint(char *endpoint, const char *folder, const char *name,
                                 struct error *error)
{
    int n = snprintf(endpoint, MAX_ENDPOINT, "ipc://%s/%s", folder, name);
    if (n < 0 || n >= MAX_ENDPOINT)
        return error_set(error, ERROR_LIMIT,
                         "the run directory %s has too long a path for a socket; choose a shorter "
                         "TMPDIR or XDG_RUNTIME_DIR",
                         folder);
    return OK;
}

static enum status make_socket(void **out, void *context, int type, int high_water,
                               struct error *error)
{
    int no_linger = 0;
    int64_t max_bytes = FRAME_MAX_BYTES;
    *out = zmq_socket(context, type);
    if (!*out || zmq_setsockopt(*out, ZMQ_LINGER, &no_linger, sizeof no_linger) != 0 ||
        zmq_setsockopt(*out, ZMQ_SNDHWM, &high_water, sizeof high_water) != 0 ||
        zmq_setsockopt(*out, ZMQ_RCVHWM, &high_water, sizeof high_water) != 0 ||
        zmq_setsockopt(*out, ZMQ_MAXMSGSIZE, &max_bytes, sizeof max_bytes) != 0)
        return error_set(error, ERROR_IO, "a socket cannot be made: %s", zmq_strerror(errno));
    return OK;
}

enum status inbox_open(struct inbox *inbox, void *context, const char *folder, const char *name,
                       struct error *error)
{
    char endpoint[MAX_ENDPOINT];
    size_t size = sizeof inbox->fd;
    *inbox = (struct inbox){.fd = -1};
    enum status status = make_endpoint(endpoint, folder, name, error);
    if (status == OK)
        status = make_socket(&inbox->socket, context, ZMQ_PULL, 4096, error);
    if (status == OK && (zmq_bind(inbox->socket, endpoint) != 0 ||
                         zmq_getsockopt(inbox->socket, ZMQ_FD, &inbox->fd, &size) != 0))
        status =
            error_set(error, ERROR_IO, "%s cannot be bound: %s", endpoint, zmq_strerror(errno));
    if (status != OK)
        inbox_close(inbox);
    return status;
}

void inbox_close(struct inbox *inbox)
{
    if (inbox->socket)
        zmq_close(inbox->socket);
    *inbox = (struct inbox){.fd = -1};
}

bool inbox_receive(struct inbox *inbox, struct inbox_frame *frame)
{
    inbox_frame_done(frame);
    zmq_msg_t *message = (zmq_msg_t *)(void *)frame->message;
    zmq_msg_init(message);
    int n;
    do
        n = zmq_msg_recv(message, inbox->socket, ZMQ_DONTWAIT);
    while (n < 0 && errno == EINTR);
    if (n < 0) {
        zmq_msg_close(message);
        return false;
    }
    frame->is_open = true;
    frame->data = zmq_msg_data(message);
    frame->bytes = zmq_msg_size(message);
    return true;
}

void inbox_frame_done(struct inbox_frame *frame)
{
    if (frame->is_open)
        zmq_msg_close((zmq_msg_t *)(void *)frame->message);
    frame->is_open = false;
}

enum status outbox_open(struct outbox *outbox, void *context, const char *folder, const char *name,
                        int high_water, size_t max_waiting_bytes, struct error *error)
{
    char endpoint[MAX_ENDPOINT];
    *outbox = (struct outbox){.max_waiting_bytes = max_waiting_bytes};
    enum status status = make_endpoint(endpoint, folder, name, error);
    if (status == OK)
        status = make_socket(&outbox->socket, context, ZMQ_PUSH, high_water, error);
    if (status == OK && zmq_connect(outbox->socket, endpoint) != 0)
        status =
            error_set(error, ERROR_IO, "%s cannot be reached: %s", endpoint, zmq_strerror(errno));
    if (status != OK)
        outbox_close(outbox);
    return status;
}

void outbox_reset(struct outbox *outbox)
{
    for (size_t i = 0; i < outbox->n_waiting; i++)
        str_done(&outbox->waiting[i]);
    outbox->n_waiting = 0;
    outbox->waiting_bytes = 0;
    outbox->n_messages = 0;
    str_clear(&outbox->frame);
}

void outbox_close(struct outbox *outbox)
{
    outbox_reset(outbox);
    if (outbox->socket)
        zmq_close(outbox->socket);
    free(outbox->waiting);
    str_done(&outbox->frame);
    *outbox = (struct outbox){0};
}

/* Moves the full frame behind those that wait. */
static bool keep_frame(struct outbox *outbox)
{
    if (outbox->n_messages == 0)
        return true;
    if (outbox->n_waiting == outbox->cap_waiting) {
        size_t cap = outbox->cap_waiting ? outbox->cap_waiting * 2 : 16;
        struct str *grown = realloc(outbox->waiting, cap * sizeof *grown);
        if (!grown)
            return false;
        outbox->waiting = grown;
        outbox->cap_waiting = cap;
    }
    outbox->waiting[outbox->n_waiting++] = outbox->frame;
    outbox->waiting_bytes += outbox->frame.len;
    outbox->frame = (struct str){0};
    outbox->n_messages = 0;
    return true;
}

bool outbox_add(struct outbox *outbox, uint32_t epoch, const struct message *message)
{
    if (outbox->n_messages > 0 && outbox->epoch != epoch && !keep_frame(outbox))
        return false;
    if (outbox->n_messages == 0) {
        outbox->epoch = epoch;
        frame_begin(&outbox->frame, epoch);
    }
    if (!frame_add(&outbox->frame, message)) {
        /* Full of others: it may fit into a frame of its own. */
        if (outbox->n_messages == 0 || !keep_frame(outbox))
            return false;
        frame_begin(&outbox->frame, epoch);
        if (!frame_add(&outbox->frame, message))
            return false;
    }
    outbox->n_messages++;
    return true;
}

static bool send_frame(struct outbox *outbox, const struct str *frame)
{
    int n;
    do
        n = zmq_send(outbox->socket, frame->data, frame->len, ZMQ_DONTWAIT);
    while (n < 0 && errno == EINTR);
    return n >= 0;
}

bool outbox_flush(struct outbox *outbox)
{
    size_t n_sent = 0;
    while (n_sent < outbox->n_waiting && send_frame(outbox, &outbox->waiting[n_sent])) {
        outbox->waiting_bytes -= outbox->waiting[n_sent].len;
        str_done(&outbox->waiting[n_sent++]);
    }
    outbox->n_waiting -= n_sent;
    if (n_sent)
        memmove(outbox->waiting, outbox->waiting + n_sent,
                outbox->n_waiting * sizeof *outbox->waiting);
    if (outbox->n_messages == 0)
        return outbox->waiting_bytes <= outbox->max_waiting_bytes;
    if (outbox->n_waiting == 0 && send_frame(outbox, &outbox->frame)) {
        outbox->n_messages = 0;
        return true;
    }
    return outbox->waiting_bytes + outbox->frame.len <= outbox->max_waiting_bytes &&
           keep_frame(outbox);
}

bool socket_wait(struct inbox *inboxes, int n_inboxes, int extra_fd, long milliseconds)
{
    zmq_pollitem_t items[MAX_INBOXES + 1];
    int n = 0;
    for (; n < n_inboxes && n < MAX_INBOXES; n++)
        items[n] = (zmq_pollitem_t){.socket = inboxes[n].socket, .events = ZMQ_POLLIN};
    int extra = n;
    if (extra_fd >= 0)
        items[n++] = (zmq_pollitem_t){.fd = extra_fd, .events = ZMQ_POLLIN};
    int n_ready = zmq_poll(items, n, milliseconds);
    return n_ready > 0 && extra_fd >= 0 && (items[extra].revents & (ZMQ_POLLIN | ZMQ_POLLERR));
}
