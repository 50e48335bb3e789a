/* Runs two requests at once and prints both answers as they come. Build it against libcsgl:
 *
 *     cc examples/generate.c -Iinclude -Lbuild/release -lcsgl -lpcre2-8 -lzmq -levent_core -lm
 * -lpthread
 *     ./a.out model.gguf
 */
#include <csgl.h>

#include <stdio.h>

struct answer {
    const char *name;
    struct csgl_result result;
};

static int on_text(void *context, const char *text, size_t bytes)
{
    struct answer *answer = context;
    printf("%s: %.*s\n", answer->name, (int)bytes, text);
    return 0;
}

static void on_finish(void *context, const struct csgl_result *result)
{
    struct answer *answer = context;
    answer->result = *result;
}

int main(int argc, char **argv)
{
    struct csgl_config config;
    struct csgl_engine *engine;
    struct csgl_error error;
    struct answer answers[] = {{.name = "first"}, {.name = "second"}};
    const char *const questions[] = {
        "[{\"role\": \"user\", \"content\": \"What is gravity?\"}]",
        "[{\"role\": \"user\", \"content\": \"Name three colours.\"}]"};
    if (argc != 2) {
        fprintf(stderr, "usage: %s MODEL\n", argv[0]);
        return 2;
    }
    csgl_config_init(&config);
    config.model_path = argv[1];
    config.max_running = 2;
    if (csgl_open(&engine, &config, &error) != CSGL_OK) {
        fprintf(stderr, "%s\n", error.message);
        return 1;
    }
    int status = CSGL_OK;
    for (int i = 0; i < 2 && status == CSGL_OK; i++) {
        struct csgl_request request;
        csgl_id id;
        csgl_request_init(&request);
        request.messages_json = questions[i];
        request.max_tokens = 40;
        request.temperature = 0;
        request.on_text = on_text;
        request.on_finish = on_finish;
        request.context = &answers[i];
        status = csgl_submit(engine, &request, &id, &error);
    }
    while (status == CSGL_OK && csgl_has_work(engine))
        status = csgl_step(engine, &error);
    if (status != CSGL_OK)
        fprintf(stderr, "%s\n", error.message);
    for (int i = 0; i < 2; i++)
        printf("%s: %d tokens\n", answers[i].name, answers[i].result.output_tokens);
    csgl_close(engine);
    return status == CSGL_OK ? 0 : 1;
}
