/* The family that docs/adding-a-model.md adds, compiled from that page, gives the reference's
 * logits for a checkpoint that calls itself by the family's name. */
#include "models/model_case.h"

#include "base/file.h"
#include "base/log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const char fixture[] = SOURCE_DIR "/tests/models/qwen3_gqa8"; /* as the page says */
static const double reference_tolerance = 2e-4;

/* The fixture's weights with a configuration whose model_type is the page's. */
struct folder {
    char path[64], config[96], weights[96];
};

static void write_folder(struct folder *f)
{
    struct str text = {0};
    char path[512];
    snprintf(f->path, sizeof f->path, "/tmp/csgl-page-XXXXXX");
    assert_non_null(mkdtemp(f->path));
    snprintf(path, sizeof path, "%s/config.json", fixture);
    assert_int_equal(file_read(path, 1 << 20, &text, NULL), OK);
    char *type = strstr(str_z(&text), "\"qwen3\"");
    assert_non_null(type);
    snprintf(f->config, sizeof f->config, "%s/config.json", f->path);
    FILE *file = fopen(f->config, "w");
    assert_non_null(file);
    fprintf(file, "%.*s\"lantern\"%s", (int)(type - text.data), text.data,
            type + strlen("\"qwen3\""));
    assert_int_equal(fclose(file), 0);
    snprintf(path, sizeof path, "%s/model.safetensors", fixture);
    snprintf(f->weights, sizeof f->weights, "%s/model.safetensors", f->path);
    assert_int_equal(symlink(path, f->weights), 0);
    str_done(&text);
}

static void remove_folder(const struct folder *f)
{
    unlink(f->config);
    unlink(f->weights);
    rmdir(f->path);
}

/* The case of the fixture, opened as a checkpoint of the page's family. */
static void open_case(struct model_case *c, struct folder *f)
{
    struct error error = {0};
    write_folder(f);
    model_case_open(c, strrchr(fixture, '/') + 1);
    checkpoint_free(c->checkpoint);
    if (checkpoint_open(&c->checkpoint, f->path, &error) != OK)
        fail_msg("%s", error.message);
}

static double difference(const struct model_case *c, const float *logits)
{
    return max_difference(logits, c->logits, (size_t)c->n_tokens * (size_t)c->vocab_size);
}

static void the_pages_family_gives_the_references_logits(void **state)
{
    (void)state;
    static const int32_t chunks[] = {1, 7, 1000};
    struct model_case c;
    struct folder folder;
    open_case(&c, &folder);
    size_t bytes = (size_t)c.n_tokens * (size_t)c.vocab_size * sizeof(float);
    float *out[2] = {malloc(bytes), malloc(bytes)};
    for (int i = 0; i < 3; i++) {
        struct case_options options = case_options_default();
        struct case_engine e;
        case_engine_open(&e, &c, &options, comm_self());
        assert_string_equal(engine_model(e.engine)->family->name, "lantern");
        case_engine_run(&e, &c, chunks[i], out[0]);
        case_engine_done(&e);
        assert_true(difference(&c, out[0]) <= reference_tolerance);
    }
    case_run_two_ranks(&c, 50, out);
    for (int i = 0; i < 2; i++) {
        assert_true(difference(&c, out[i]) <= reference_tolerance);
        free(out[i]);
    }
    model_case_done(&c);
    remove_folder(&folder);
}

/* Only the last row's logits are asked for; they are those of the whole. */
static void rows_nobody_wants_are_dropped(void **state)
{
    (void)state;
    struct model_case c;
    struct folder folder;
    struct case_engine e;
    struct batch batch;
    struct case_options options = case_options_default();
    open_case(&c, &folder);
    case_engine_open(&e, &c, &options, comm_self());
    assert_int_equal(engine_batch_init(e.engine, &batch, NULL), OK);
    batch_clear(&batch);
    struct kv_cache *cache = engine_cache(e.engine);
    int32_t row = kv_cache_open_row(cache), last = c.n_tokens - 1;
    assert_int_equal(batch_add(&batch, cache, row, c.tokens, c.n_tokens, WANT_LAST, NULL), OK);
    assert_int_equal(engine_step(e.engine, &batch, NULL), OK);
    assert_true(max_difference(engine_logits(e.engine, 0),
                               c.logits + (size_t)last * (size_t)c.vocab_size,
                               (size_t)c.vocab_size) <= reference_tolerance);
    batch_done(&batch);
    case_engine_done(&e);
    model_case_done(&c);
    remove_folder(&folder);
}

static void a_contradictory_configuration_is_refused(void **state)
{
    (void)state;
    static const char text[] =
        "{\"model_type\": \"lantern\", \"num_hidden_layers\": 1, \"hidden_size\": 8, "
        "\"vocab_size\": 8, \"num_attention_heads\": 2}";
    struct arena arena = {0};
    struct json config;
    struct error error = {0};
    struct model *model;
    assert_int_equal(json_parse(&arena, text, sizeof text - 1, &config, &error), OK);
    assert_int_equal(model_configure_from(&config, comm_self(), &model, &error), ERROR_INVALID);
    assert_non_null(strstr(error.message, "intermediate_size"));
    arena_done(&arena);
}

int main(void)
{
    log_set_level(LOG_WARN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_pages_family_gives_the_references_logits),
        cmocka_unit_test(rows_nobody_wants_are_dropped),
        cmocka_unit_test(a_contradictory_configuration_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
