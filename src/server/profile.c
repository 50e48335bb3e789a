/* POST /start_profile and /stop_profile: one trace of all processes, written where the server's own
 * command line says. */
#include "base/log.h"
#include "server/frontend.h"
#include "server/reply.h"

#include <stdio.h>
#include <string.h>

/* FILE.json of the first profile, FILE-2.json of the second. */
static void make_path(const struct frontend *f, uint32_t session, struct str *out)
{
    const char *path = f->options->profile_path, *dot = strrchr(path, '.');
    const char *slash = strrchr(path, '/');
    size_t n = dot && (!slash || dot > slash) ? (size_t)(dot - path) : strlen(path);
    str_append(out, path, n);
    if (session > 1)
        str_printf(out, "-%u", session);
    str_append_z(out, path + n);
}

static enum status write_profile(struct frontend *f, uint32_t session, struct str *path,
                                 struct error *error)
{
    make_path(f, session, path);
    enum status status = profile_write(f->options->folder, session, str_z(path), error);
    if (status == OK)
        log_info("the profile is in %s", str_z(path));
    else
        log_error("%s", error->message);
    return status;
}

/* The session that has ended without being written: stopped by the scheduler after its steps. */
void frontend_follow_profile(struct frontend *f)
{
    struct str path = {0};
    struct error error;
    uint32_t session = f->trace.session;
    if (process_trace_follow(&f->trace) && session)
        write_profile(f, session, &path, &error);
    str_done(&path);
}

void frontend_end_profile(struct frontend *f)
{
    profile_stop(f->board);
    frontend_follow_profile(f);
    process_trace_done(&f->trace);
}

static enum status read_steps(const struct json *body, const char *name, uint32_t *out,
                              struct refusal *refusal)
{
    const struct json *value = json_get(body, name);
    int64_t steps = 0;
    if (!json_is_null(value) && !json_int(value, 0, 1 << 30, &steps))
        return refuse_value(refusal, name, value, "a number of steps");
    *out = (uint32_t)steps;
    return OK;
}

static enum status read_body(struct http_request *request, struct arena *arena, uint32_t steps[2],
                             struct refusal *refusal)
{
    struct json body = {.type = JT_OBJECT};
    struct error error;
    size_t bytes;
    const char *text = http_body(request, &bytes);
    if (bytes && json_parse(arena, text, bytes, &body, &error) != OK)
        return refuse(refusal, 400, "invalid_json", NULL, "The body is not valid JSON: %s.",
                      error.message);
    if (body.type != JT_OBJECT)
        return refuse(refusal, 400, "invalid_json", NULL, "The body must be a JSON object.");
    for (size_t i = 0; i < body.n; i++)
        if (strcmp(body.members[i].key, "start_step") != 0 &&
            strcmp(body.members[i].key, "num_steps") != 0)
            return refuse(refusal, 400, "unsupported_parameter", body.members[i].key,
                          "'%.60s' is not supported; start_step and num_steps are, and the file "
                          "is the server's --profile-output.",
                          body.members[i].key);
    enum status status = read_steps(&body, "start_step", &steps[0], refusal);
    return status == OK ? read_steps(&body, "num_steps", &steps[1], refusal) : status;
}

void start_profile_handle(struct frontend *f, struct http_request *request)
{
    static const char body[] = "{\"success\":true}\n";
    struct refusal refusal;
    struct arena arena = {.limit = 1 << 20};
    uint32_t steps[2] = {0, 0};
    enum status status = frontend_check_ready(f, &refusal);
    if (status == OK)
        status = read_body(request, &arena, steps, &refusal);
    if (status == OK)
        frontend_follow_profile(f); /* one that has just ended is written first */
    if (status == OK && !profile_start(f->board, steps[0], steps[1]))
        status = refuse(&refusal, 409, "profile_running", NULL,
                        "A profile is being made; /stop_profile ends it.");
    if (status == OK) {
        frontend_follow_profile(f);
        http_reply(request, 200, "application/json", body, sizeof body - 1);
    } else {
        refusal_send(&refusal, request);
    }
    arena_done(&arena);
}

void stop_profile_handle(struct frontend *f, struct http_request *request)
{
    struct refusal refusal;
    struct error error;
    struct str path = {0}, out = {0};
    uint32_t session = f->trace.session;
    enum status status = OK;
    if (!session)
        status = refuse(&refusal, 409, "no_profile", NULL,
                        "No profile is being made; /start_profile begins one.");
    if (status == OK) {
        profile_stop(f->board);
        process_trace_follow(&f->trace);
        status = write_profile(f, session, &path, &error);
        if (status != OK)
            refuse(&refusal, 500, "not_written", NULL, "%s", error.message);
    }
    if (status == OK) {
        str_append_z(&out, "{\"success\":true,\"file\":");
        reply_string(&out, str_z(&path), path.len);
        str_append_z(&out, "}\n");
        http_reply(request, 200, "application/json", str_z(&out), out.len);
    } else {
        refusal_send(&refusal, request);
    }
    str_done(&path);
    str_done(&out);
}
