/* The supervisor: starts csgl's other processes, notices at once when one dies, starts it again
 * with back-off, and ends them all. Knows no model and no message. */
#ifndef CSGL_MESSAGE_SUPERVISOR_H
#define CSGL_MESSAGE_SUPERVISOR_H

#include "message/board.h"

/* Descriptors that a child finds open. */
enum {
    CHILD_LIFE_FD = 3,  /* reads end of file when the supervisor is gone */
    CHILD_LISTEN_FD = 4 /* the listening socket, for the frontend */
};

struct child_spec {
    enum board_role role;
    char *const *argv; /* argv[0] is the program's path; NULL at the end */
    bool needs_listen_fd;
};

struct supervisor_options {
    struct board *board;
    const struct child_spec *children;
    int n_children;
    int listen_fd; /* above CHILD_LISTEN_FD, close-on-exec */
    int drain_seconds;
    /* Called once, when every child is ready. */
    void (*on_ready)(void *context);
    void *context;
};

/* Runs until SIGINT or SIGTERM: then lets the running requests end for drain_seconds (a second
 * signal ends the wait) and returns OK. A child that dies before all were ready once ends the
 * start: its own message has said why, and ERROR_IO is returned. */
enum status supervisor_run(const struct supervisor_options *options, struct error *error);

#endif
