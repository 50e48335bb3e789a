/* Every configuration that is corrupt or contradicts itself is refused in one sentence, of every
 * model type that there is: the configurations of the recorded models, with one value or two
 * replaced by others of all kinds. */
#include "models/model.h"

#include "base/file.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_CONFIGS = 256, MAX_VALUES = 1024, N_PAIRS = 400 };

static struct json configs[MAX_CONFIGS];
static int n_configs;
static struct arena arena;

static const char *const replacement_texts[] = {
    "null",    "true",        "false", "0",          "1",
    "2",       "3",           "7",     "-1",         "0.5",
    "1e9",     "-1e300",      "\"\"",  "\"?\"",      "[]",
    "[0, -1]", "[\"?\", {}]", "{}",    "2147483647", "9223372036854775808",
    "1048576"};
enum { N_REPLACEMENTS = sizeof replacement_texts / sizeof *replacement_texts };
static struct json replacements[N_REPLACEMENTS];

static void parse(const char *text, size_t n, struct json *out)
{
    struct error error = {0};
    if (json_parse(&arena, text, n, out, &error) != OK)
        fail_msg("%.60s: %s", text, error.message);
}

static int read_all(void **state)
{
    (void)state;
    DIR *dir = opendir(SOURCE_DIR "/tests/models");
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir)) && n_configs < MAX_CONFIGS;) {
        struct str text = {0};
        char path[512];
        snprintf(path, sizeof path, SOURCE_DIR "/tests/models/%s/config.json", entry->d_name);
        if (entry->d_name[0] != '.' && file_exists(path)) {
            assert_int_equal(file_read(path, 1 << 20, &text, NULL), OK);
            parse(text.data, text.len, &configs[n_configs++]);
        }
        str_done(&text);
    }
    closedir(dir);
    for (int i = 0; i < N_REPLACEMENTS; i++)
        parse(replacement_texts[i], strlen(replacement_texts[i]), &replacements[i]);
    assert_true(n_configs > 50);
    return 0;
}

static int free_all(void **state)
{
    (void)state;
    arena_done(&arena);
    return 0;
}

/* Nothing that a step or the memory plan multiplies may be out of its bounds. */
static void check_model(const struct model *m)
{
    assert_in_range(m->n_layers, 1, 512);
    assert_true(m->hidden > 0 && m->vocab_size > 0 && m->max_positions > 0);
    assert_true(m->n_heads > 0 && m->n_kv_heads > 0 && m->head_dim > 0);
    assert_int_equal(m->n_heads % m->n_kv_heads, 0);
    assert_in_range(m->n_kv_groups, 0, KV_MAX_GROUPS);
    int32_t n_layers = m->states.n_layers;
    for (int32_t g = 0; g < m->n_kv_groups; g++) {
        assert_true(m->kv_groups[g].window >= 0 && m->kv_groups[g].n_layers > 0);
        n_layers += m->kv_groups[g].n_layers;
    }
    assert_in_range(n_layers, 1, m->n_layers);
    if (m->states.n_layers > 0)
        assert_true(m->states.n_v_heads > 0 && m->states.k_dim > 0 && m->states.v_dim > 0 &&
                    m->states.conv_channels > 0 && m->states.conv_rows > 0);
    size_t bytes = m->family->scratch_bytes(m, 512, 4);
    assert_true(bytes > 0 && bytes < (size_t)1 << 48);
}

/* Configures for one rank and for two; true if one rank can. */
static bool configure(const struct json *config)
{
    bool fits = false;
    for (int n_ranks = 1; n_ranks <= 2; n_ranks++) {
        struct comm comm = {.n_ranks = n_ranks};
        struct error error = {0};
        struct model *model;
        enum status status = model_configure_from(config, &comm, &model, &error);
        if (status == OK) {
            check_model(model);
            model->family->free(model);
            fits |= n_ranks == 1;
            continue;
        }
        assert_null(model);
        assert_int_equal(error.status, status);
        assert_true(status == ERROR_INVALID || status == ERROR_UNSUPPORTED);
        size_t n = strlen(error.message);
        assert_in_range(n, 20, sizeof error.message - 2); /* not cut */
        assert_null(strpbrk(error.message, "\n\r"));
        assert_true(error.message[n - 1] != '.');
    }
    return fits;
}

/* The values below `json`, which are the arena's and this test's to change. */
static int list_values(const struct json *json, struct json **values, int n)
{
    for (size_t i = 0; (json->type == JT_OBJECT || json->type == JT_ARRAY) && i < json->n; i++) {
        const struct json *value =
            json->type == JT_OBJECT ? &json->members[i].value : &json->items[i];
        assert_true(n < MAX_VALUES);
        values[n++] = (struct json *)(uintptr_t)value;
        n = list_values(value, values, n);
    }
    return n;
}

static void break_values(const struct json *config)
{
    struct json *values[MAX_VALUES];
    int n = list_values(config, values, 0);
    for (int i = 0; i < n; i++) {
        struct json kept = *values[i];
        for (int k = 0; k < N_REPLACEMENTS; k++) {
            *values[i] = replacements[k];
            configure(config);
        }
        *values[i] = kept;
    }
    uint32_t random = 1;
    for (int pair = 0; pair < N_PAIRS; pair++) {
        struct json *changed[2], kept[2];
        for (int i = 0; i < 2; i++) {
            random = random * 1664525u + 1013904223u; /* Numerical Recipes' generator */
            changed[i] = values[(random >> 8) % (uint32_t)n];
            kept[i] = *changed[i];
            *changed[i] = replacements[(random >> 16) % N_REPLACEMENTS];
        }
        configure(config);
        for (int i = 1; i >= 0; i--)
            *changed[i] = kept[i];
    }
    configure(config);
}

static struct json *model_type_of(const struct json *config)
{
    const struct json *value = json_get(config, "model_type");
    return (struct json *)(uintptr_t)value;
}

/* Breaks a configuration of this type: one that is recorded, or one of another type that the family
 * takes too. */
static void break_type(const char *type, size_t len)
{
    int n_own = 0;
    for (int own = 1; own >= 0 && n_own == 0; own--)
        for (int i = 0; i < n_configs && (own || n_own == 0); i++) {
            struct json *value = model_type_of(&configs[i]), kept = *value;
            bool is_own = kept.n == len && memcmp(kept.text, type, len) == 0;
            if (is_own != own)
                continue;
            value->text = type;
            value->n = len;
            if (configure(&configs[i])) {
                n_own++;
                break_values(&configs[i]);
            }
            *value = kept;
        }
    if (n_own == 0)
        fail_msg("no recorded configuration can be one of %.*s", (int)len, type);
}

static void whatever_a_value_is_the_refusal_is_one_sentence(void **state)
{
    (void)state;
    /* The types that there are, as the refusal of another lists them. */
    struct json config;
    struct error error = {0};
    struct model *model;
    struct comm comm = {.n_ranks = 1};
    parse("{\"model_type\": \"?\"}", 19, &config);
    assert_int_equal(model_configure_from(&config, &comm, &model, &error), ERROR_UNSUPPORTED);
    const char *at = strstr(error.message, ": ");
    assert_non_null(at);
    int n_types = 0;
    for (at += 2; *at; n_types++) {
        char *type = arena_alloc(&arena, 64);
        size_t n = strcspn(at, ",");
        assert_in_range(n, 1, 63);
        snprintf(type, 64, "%.*s", (int)n, at);
        break_type(type, n);
        at += n + strspn(at + n, ", ");
    }
    assert_true(n_types >= 11);
}

/* The value of a key, at the top or in what a family reads too. */
static const struct json *find_key(const struct json *config, const char *key)
{
    static const char *const nested[] = {"text_config", "rope_parameters", "rope_scaling"};
    const struct json *value = json_get(config, key);
    for (int i = 0; i < 3 && !value; i++) {
        const struct json *inner = json_get(config, nested[i]);
        if (inner && inner->type == JT_OBJECT)
            value = find_key(inner, key);
    }
    return value;
}

/* A value of the wrong type is not taken for one that is absent. */
static void a_value_of_another_type_is_refused(void **state)
{
    (void)state;
    static const char *const keys[] = {
        "attention_bias",     "tie_word_embeddings", "rope_theta", "rope_type",
        "beta_fast",          "norm_topk_prob",      "use_cla",    "hidden_act",
        "use_sliding_window", "rope_scaling"};
    enum { N_KEYS = sizeof keys / sizeof *keys };
    bool is_seen[N_KEYS] = {false};
    for (int i = 0; i < n_configs; i++) {
        for (int k = 0; k < N_KEYS; k++) {
            struct json *value = (struct json *)(uintptr_t)find_key(&configs[i], keys[k]);
            if (!value || value->type == JT_NULL)
                continue;
            struct json kept = *value;
            parse("[]", 2, value);
            assert_false(configure(&configs[i]));
            *value = kept;
            is_seen[k] = true;
        }
    }
    for (int k = 0; k < N_KEYS; k++)
        if (!is_seen[k])
            fail_msg("no recorded configuration has \"%s\"", keys[k]);
}

static void what_is_no_object_is_refused(void **state)
{
    (void)state;
    for (int i = 0; i < N_REPLACEMENTS; i++)
        assert_false(configure(&replacements[i]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whatever_a_value_is_the_refusal_is_one_sentence),
        cmocka_unit_test(a_value_of_another_type_is_refused),
        cmocka_unit_test(what_is_no_object_is_refused),
    };
    return cmocka_run_group_tests(tests, read_all, free_all);
}
