/* Why a request is refused, as the client is told. */
#ifndef CSGL_SERVER_REFUSAL_H
#define CSGL_SERVER_REFUSAL_H

#include "base/error.h"
#include "base/json.h"

struct http_request;

struct refusal {
    int http_status;
    const char *code; /* a constant, or NULL */
    char param[96];   /* empty: none */
    char message[512];
    int retry_after; /* seconds; 0: none */
};

/* Fills `refusal` and returns ERROR_INVALID. `param` may be NULL. */
enum status refuse(struct refusal *refusal, int http_status, const char *code, const char *param,
                   const char *format, ...) __attribute__((format(printf, 5, 6)));

/* 400 for a value of the wrong type or outside its limits: "NAME is VALUE; it must be WHAT". */
enum status refuse_value(struct refusal *refusal, const char *param, const struct json *value,
                         const char *what);

/* 500: there is no memory. */
enum status refuse_memory(struct refusal *refusal);

/* Answers with it. */
void refusal_send(const struct refusal *refusal, struct http_request *request);

#endif
