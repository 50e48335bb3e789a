/* ZeroMQ sockets as csgl uses them: PUSH to one reader, PULL from any number of writers, over
 * ipc:// in the run directory. No send blocks. */
#ifndef CSGL_MESSAGE_SOCKET_H
#define CSGL_MESSAGE_SOCKET_H

#include "base/error.h"
#include "message/message.h"

#include <stdbool.h>

/* The process's ZeroMQ context; sockets are ended before it. */
enum status socket_context_new(void **out, struct error *error);
void socket_context_free(void *context);

/* A PULL socket bound to ipc://FOLDER/NAME. */
struct inbox {
    void *socket;
    int fd; /* readable when there may be mail; edge-triggered: drain until inbox_receive says no */
};

enum status inbox_open(struct inbox *inbox, void *context, const char *folder, const char *name,
                       struct error *error);
void inbox_close(struct inbox *inbox);

/* One frame, or false when there is none. `*data` is borrowed until the next call or close. */
struct inbox_frame {
    void *data;
    size_t bytes;
    _Alignas(16) unsigned char message[64]; /* zmq_msg_t */
    bool is_open;
};
bool inbox_receive(struct inbox *inbox, struct inbox_frame *frame);
void inbox_frame_done(struct inbox_frame *frame);

/* A PUSH socket connected to a peer's inbox, and the frame being filled for it. */
struct outbox {
    void *socket;
    struct str frame;
    uint32_t epoch;
    size_t n_messages;
    /* Frames that the socket did not take; sent first, in order. */
    struct str *waiting;
    size_t n_waiting, cap_waiting, waiting_bytes, max_waiting_bytes;
};

/* `high_water` frames wait in ZeroMQ, `max_waiting_bytes` more in the outbox. */
enum status outbox_open(struct outbox *outbox, void *context, const char *folder, const char *name,
                        int high_water, size_t max_waiting_bytes, struct error *error);
void outbox_close(struct outbox *outbox);

/* Adds a message to the frame; messages of another epoch begin a new one. False if it is too large
 * or memory is exhausted. */
bool outbox_add(struct outbox *outbox, uint32_t epoch, const struct message *message);

/* Sends what was added. False if the peer has not drained for so long that max_waiting_bytes are
 * passed: nothing more is accepted then and what waits is kept. Never blocks. */
bool outbox_flush(struct outbox *outbox);

/* Forgets what waits: the peer died, and its successor must not read old mail. */
void outbox_reset(struct outbox *outbox);

/* Waits until an inbox has mail, `extra_fd` (-1: none) is readable, or `milliseconds` have passed
 * (-1: no limit). Returns true if extra_fd is readable. */
bool socket_wait(struct inbox *inboxes, int n_inboxes, int extra_fd, long milliseconds);

#endif
