/* What names a repository of the hub, which of its files are wanted, and listings that lie. */
#include "checkpoint/hub_listing.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COMMIT "0123456789abcdef0123456789abcdef01234567"

/* --- references --------------------------------------------------------------------------------
 */

static void check_reference(const char *text, const char *repo, const char *revision,
                            const char *file)
{
    struct hub_reference reference;
    struct error error = {0};
    if (hub_reference_parse(&reference, HUB_HUGGING_FACE, text, &error) != OK)
        fail_msg("%s: %s", text, error.message);
    assert_string_equal(reference.repo, repo);
    assert_string_equal(reference.revision, revision);
    assert_string_equal(reference.file, file);
}

static void a_reference_has_a_revision_and_a_file_if_it_names_them(void **state)
{
    (void)state;
    check_reference("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B", "main", "");
    check_reference("a/b.c_d@v1.0", "a/b.c_d", "v1.0", "");
    check_reference("a/b@refs/pr/7:x.gguf", "a/b", "refs/pr/7", "x.gguf");
    check_reference("a/b-GGUF:Q4_K_M", "a/b-GGUF", "main", "Q4_K_M");
    check_reference("a/b:Q8_0/model-00001-of-00002.gguf", "a/b", "main",
                    "Q8_0/model-00001-of-00002.gguf");
}

static void paths_and_damaged_references_are_refused(void **state)
{
    (void)state;
    static const char *const wrong[] = {"",          "a",          "a/",       "/a",
                                        "/a/b",      "./a/b",      "../b",     "a/..",
                                        "a/b/c",     "a b/c",      "a/b.gguf", "a/b@",
                                        "a/b@..",    "a/b@x/../y", "a/b:",     "a/b:../x.gguf",
                                        "a/b:/x",    "a/b@/x",     "a--b/c",   "a/b\n",
                                        "a/b@main:", "-a/b",       "a/b:x//y", "a/b@x y"};
    struct hub_reference reference;
    struct error error;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        error = (struct error){0};
        if (hub_reference_parse(&reference, HUB_HUGGING_FACE, wrong[i], &error) != ERROR_INVALID)
            fail_msg("\"%s\" was accepted", wrong[i]);
        assert_true(error.message[0] != 0);
    }
}

static void parts_longer_than_their_limits_are_refused(void **state)
{
    (void)state;
    struct hub_reference reference;
    char text[HUB_FILE_MAX + 64], part[HUB_FILE_MAX + 2];
    memset(part, 'x', sizeof part);
    part[sizeof part - 1] = '\0';
    snprintf(text, sizeof text, "%.*s/b", HUB_NAME_MAX, part);
    assert_int_equal(hub_reference_parse(&reference, HUB_HUGGING_FACE, text, NULL), OK);
    snprintf(text, sizeof text, "%.*s/b", HUB_NAME_MAX + 1, part);
    assert_int_equal(hub_reference_parse(&reference, HUB_HUGGING_FACE, text, NULL), ERROR_INVALID);
    snprintf(text, sizeof text, "a/b@%.*s", HUB_REVISION_MAX, part);
    assert_int_equal(hub_reference_parse(&reference, HUB_HUGGING_FACE, text, NULL), OK);
    snprintf(text, sizeof text, "a/b@%.*s", HUB_REVISION_MAX + 1, part);
    assert_int_equal(hub_reference_parse(&reference, HUB_HUGGING_FACE, text, NULL), ERROR_INVALID);
    snprintf(text, sizeof text, "a/b:%.*s", HUB_FILE_MAX, part);
    assert_int_equal(hub_reference_parse(&reference, HUB_HUGGING_FACE, text, NULL), OK);
    snprintf(text, sizeof text, "a/b:%.*s", HUB_FILE_MAX + 1, part);
    assert_int_equal(hub_reference_parse(&reference, HUB_HUGGING_FACE, text, NULL), ERROR_INVALID);
}

/* --- choosing ----------------------------------------------------------------------------------
 */

/* Chooses among `names` (separated by spaces) and compares the wanted ones; "" if refused. */
static void check_choice(const char *names, const char *reference_text, const char *expected)
{
    struct hub_listing listing = {0};
    struct hub_reference reference;
    struct hub_file *file;
    struct error error = {0};
    const char *main_file;
    char *copy = strdup(names), wanted[512] = "";
    assert_int_equal(hub_reference_parse(&reference, HUB_HUGGING_FACE, reference_text, &error), OK);
    for (char *name = strtok(copy, " "); name; name = strtok(NULL, " "))
        assert_int_equal(hub_listing_add(&listing, name, &file, &error), OK);
    enum status status = hub_listing_choose(&listing, &reference, &main_file, &error);
    for (int i = 0; status == OK && i < listing.n; i++)
        if (listing.files[i].is_wanted) {
            strcat(wanted, *wanted ? " " : "");
            strcat(wanted, listing.files[i].name);
        }
    assert_string_equal(wanted, expected);
    assert_true((status == OK) != (error.message[0] != 0));
    if (status == OK && main_file && strstr(wanted, "-of-"))
        assert_non_null(strstr(main_file, "-00001-of-"));
    hub_listing_done(&listing);
    free(copy);
}

static void of_a_folder_only_what_csgl_reads_is_wanted(void **state)
{
    (void)state;
    check_choice(
        "README.md config.json generation_config.json tokenizer.json tokenizer_config.json "
        "chat_template.jinja model.safetensors pytorch_model.bin onnx/model.onnx "
        "consolidated.safetensors original/model.safetensors x.gguf",
        "a/b",
        "config.json generation_config.json tokenizer.json tokenizer_config.json "
        "chat_template.jinja model.safetensors");
    check_choice("config.json model.safetensors.index.json model-00001-of-00002.safetensors "
                 "model-00002-of-00002.safetensors",
                 "a/b",
                 "config.json model.safetensors.index.json model-00001-of-00002.safetensors "
                 "model-00002-of-00002.safetensors");
    check_choice("config.json pytorch_model.bin", "a/b", "");
}

static void a_gguf_is_chosen_by_name_or_quantization(void **state)
{
    (void)state;
    static const char names[] = "README.md m-Q4_K_M.gguf m-Q4_K.gguf m-IQ4_NL.gguf m-Q4_K_S.gguf "
                                "mmproj-Q4_K.gguf";
    check_choice("only.gguf config.json", "a/b", "only.gguf");
    check_choice(names, "a/b:Q4_K_M", "m-Q4_K_M.gguf");
    check_choice(names, "a/b:q4_k", "m-Q4_K.gguf");
    check_choice(names, "a/b:m-IQ4_NL.gguf", "m-IQ4_NL.gguf");
    check_choice(names, "a/b", "");
    check_choice(names, "a/b:Q4", "");
    check_choice(names, "a/b:none.gguf", "");
    check_choice("a-Q8_0.gguf b-Q8_0.gguf", "a/b:Q8_0", "");
    check_choice("README.md", "a/b:Q8_0", "");
}

static void a_split_gguf_needs_all_its_parts(void **state)
{
    (void)state;
    check_choice("Q8_0/m-00002-of-00002.gguf Q8_0/m-00001-of-00002.gguf m-00001-of-00002.gguf",
                 "a/b:Q8_0/m-00001-of-00002.gguf",
                 "Q8_0/m-00002-of-00002.gguf Q8_0/m-00001-of-00002.gguf");
    check_choice("m-Q8_0-00001-of-00003.gguf m-Q8_0-00003-of-00003.gguf", "a/b:Q8_0", "");
    check_choice("m-00001-of-00002.gguf m-00002-of-00002.gguf", "a/b:m-00002-of-00002.gguf",
                 "m-00001-of-00002.gguf m-00002-of-00002.gguf");
}

/* --- listings ----------------------------------------------------------------------------------
 */

static enum status parse(enum hub_source source, const char *text, struct hub_listing *listing,
                         struct error *error)
{
    *listing = (struct hub_listing){0};
    *error = (struct error){0};
    return hub_listing_parse(listing, source, text, strlen(text), error);
}

static void a_listing_gives_names_sizes_and_digests(void **state)
{
    (void)state;
    struct hub_listing listing;
    struct error error;
    static const char digest[] = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    char text[512];
    snprintf(text, sizeof text,
             "{\"sha\": \"" COMMIT "\", \"siblings\": [{\"rfilename\": \"a\", \"size\": 3, "
             "\"blobId\": \"" COMMIT "\"}, "
             "{\"rfilename\": \"b\", \"size\": 1, \"lfs\": {\"size\": 9000000000, \"sha256\": "
             "\"%s\"}, \"blobId\": \"" COMMIT "\"}, {\"rfilename\": \"c\"}]}",
             digest);
    assert_int_equal(parse(HUB_HUGGING_FACE, text, &listing, &error), OK);
    assert_string_equal(listing.commit, COMMIT);
    assert_int_equal(listing.n, 3);
    assert_true(listing.files[0].has_size && listing.files[0].bytes == 3 &&
                !listing.files[0].sha256);
    assert_string_equal(listing.files[0].sha1, COMMIT);
    assert_true(listing.files[1].bytes == 9000000000u && !listing.files[1].sha1);
    assert_string_equal(listing.files[1].sha256, digest);
    assert_false(listing.files[2].has_size);
    hub_listing_done(&listing);
}

static void hostile_listings_are_refused_with_a_sentence(void **state)
{
    (void)state;
    static const char *const wrong[] = {
        "",
        "[]",
        "{\"sha\": \"" COMMIT "\"}",
        "{\"sha\": \"../../x\", \"siblings\": []}",
        "{\"sha\": \"" COMMIT "0\", \"siblings\": []}",
        "{\"sha\": \"" COMMIT "\", \"siblings\": [1]}",
        "{\"sha\": \"" COMMIT "\", \"siblings\": [{\"rfilename\": \"../x\"}]}",
        "{\"sha\": \"" COMMIT "\", \"siblings\": [{\"rfilename\": \"/x\"}]}",
        "{\"sha\": \"" COMMIT "\", \"siblings\": [{\"rfilename\": \"a/../../x\"}]}",
        "{\"sha\": \"" COMMIT "\", \"siblings\": [{\"rfilename\": \"a/./x\"}]}",
        "{\"sha\": \"" COMMIT "\", \"siblings\": [{\"rfilename\": \"a//x\"}]}",
        "{\"sha\": \"" COMMIT "\", \"siblings\": [{\"rfilename\": \"a/\"}]}",
        "{\"sha\": \"" COMMIT "\", \"siblings\": [{\"rfilename\": \"\"}]}",
        "{\"sha\": \"" COMMIT "\", \"siblings\": [{\"rfilename\": \"a\\n\"}]}",
        "{\"sha\": \"" COMMIT "\", \"siblings\": [{\"rfilename\": \"a\\\\b\"}]}",
        "{\"sha\": \"" COMMIT "\", \"siblings\": [{\"rfilename\": \"a\", \"size\": -1}]}",
        "{\"sha\": \"" COMMIT "\", \"siblings\": [{\"rfilename\": \"a\", \"size\": 1e30}]}",
        "{\"sha\": \"" COMMIT "\", \"siblings\": [{\"rfilename\": \"a\", \"size\": \"3\"}]}",
        "{\"sha\": \"" COMMIT "\", \"siblings\": [{\"rfilename\": \"a\", \"lfs\": {\"sha256\": "
        "\"../x\"}}]}",
    };
    struct hub_listing listing;
    struct error error;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        if (parse(HUB_HUGGING_FACE, wrong[i], &listing, &error) == OK)
            fail_msg("%s was accepted", wrong[i]);
        assert_true(error.message[0] != 0);
        hub_listing_done(&listing);
    }
}

#define DIGEST "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

static void modelscopes_listing_has_files_and_makes_a_commit(void **state)
{
    (void)state;
    static const char *const same[] = {
        "{\"Code\": 200, \"Data\": {\"Files\": [{\"Path\": \"a\", \"Type\": \"tree\"}, "
        "{\"Path\": \"a/b\", \"Type\": \"blob\", \"Size\": 9000000000, \"Sha256\": \"" DIGEST
        "\"}, "
        "{\"Path\": \"c\", \"Size\": 3, \"Sha256\": \"\"}]}}",
        "{\"Data\": {\"Files\": [{\"Path\": \"a/b\", \"Size\": 9000000000, \"Sha256\": "
        "\"E3B0C44298FC1C149AFBF4C8996FB92427AE41E4649B934CA495991B7852B855\"}, "
        "{\"Path\": \"c\"}]}}"};
    struct hub_listing listing, other;
    struct error error;
    assert_int_equal(parse(HUB_MODELSCOPE, same[0], &listing, &error), OK);
    assert_int_equal(listing.n, 2);
    assert_string_equal(listing.files[0].name, "a/b");
    assert_string_equal(listing.files[0].sha256, DIGEST);
    assert_true(listing.files[0].has_size && listing.files[0].bytes == 9000000000u);
    assert_true(listing.files[1].has_size && !listing.files[1].sha256);
    assert_true(hub_is_commit(listing.commit));
    assert_int_equal(parse(HUB_MODELSCOPE, same[1], &other, &error), OK);
    assert_string_equal(other.commit, listing.commit);
    hub_listing_done(&other);
    assert_int_equal(
        parse(HUB_MODELSCOPE, "{\"Data\": {\"Files\": [{\"Path\": \"c\"}]}}", &other, &error), OK);
    assert_string_not_equal(other.commit, listing.commit);
    hub_listing_done(&other);
    hub_listing_done(&listing);
}

static void hostile_listings_of_modelscope_are_refused_with_a_sentence(void **state)
{
    (void)state;
    static const char *const wrong[] = {
        "{}",
        "{\"Data\": []}",
        "{\"Data\": {\"Files\": {}}}",
        "{\"Data\": {\"Files\": [7]}}",
        "{\"Data\": {\"Files\": [{\"Path\": \"../x\"}]}}",
        "{\"Data\": {\"Files\": [{\"Path\": \"x\", \"Size\": -1}]}}",
        "{\"Data\": {\"Files\": [{\"Path\": \"x\", \"Sha256\": \"../../x\"}]}}",
        "{\"Data\": {\"Files\": [{\"Path\": \"x\", \"Sha256\": \"" COMMIT "\"}]}}",
    };
    struct hub_listing listing;
    struct error error;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        if (parse(HUB_MODELSCOPE, wrong[i], &listing, &error) == OK)
            fail_msg("%s was accepted", wrong[i]);
        assert_true(error.message[0] != 0);
        hub_listing_done(&listing);
    }
    struct str text = {0};
    str_append_z(&text, "{\"Data\": {\"Files\": [{\"Path\": \"0\"}");
    for (int i = 1; i < MODELSCOPE_MAX_FILES; i++)
        str_printf(&text, ", {\"Path\": \"%d\"}", i);
    str_append_z(&text, "]}}");
    assert_int_equal(parse(HUB_MODELSCOPE, str_z(&text), &listing, &error), ERROR_LIMIT);
    hub_listing_done(&listing);
    str_done(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_reference_has_a_revision_and_a_file_if_it_names_them),
        cmocka_unit_test(paths_and_damaged_references_are_refused),
        cmocka_unit_test(parts_longer_than_their_limits_are_refused),
        cmocka_unit_test(of_a_folder_only_what_csgl_reads_is_wanted),
        cmocka_unit_test(a_gguf_is_chosen_by_name_or_quantization),
        cmocka_unit_test(a_split_gguf_needs_all_its_parts),
        cmocka_unit_test(a_listing_gives_names_sizes_and_digests),
        cmocka_unit_test(hostile_listings_are_refused_with_a_sentence),
        cmocka_unit_test(modelscopes_listing_has_files_and_makes_a_commit),
        cmocka_unit_test(hostile_listings_of_modelscope_are_refused_with_a_sentence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
