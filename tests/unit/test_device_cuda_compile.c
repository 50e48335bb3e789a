/* Kernels compiled when csgl starts, and the machine code that is kept. Needs NVRTC, not a GPU. */
#include "device/gpu/nvrtc/cuda_compile.h"

#include "base/cache_file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[] = "/tmp/csgl-test-XXXXXX";

static struct cuda_compiler *open_compiler(int driver_version)
{
    struct cuda_compiler *c;
    struct error error;
    if (cuda_compiler_open(&c, 90, driver_version, &error) != OK)
        fail_msg("%s", error.message);
    return c;
}

static bool comes_from_the_cache(const struct cuda_compiler *c, const struct cuda_module *m)
{
    struct str cubin = {0};
    struct error error;
    bool is_cached;
    if (cuda_compile(c, m, true, &cubin, &is_cached, &error) != OK)
        fail_msg("%s", error.message);
    assert_memory_equal(cubin.data, "\177ELF", 4);
    str_done(&cubin);
    return is_cached;
}

static const char small[] = "extern \"C\" __global__ void k(int *p) { *p = 1; }";
static const size_t small_bytes = sizeof small - 1;
static const struct cuda_module small_module = {"small", (const unsigned char *)small,
                                                &small_bytes};

/* Compiling these takes long; nvcc reads them in tests/kernels.cmake. */
static bool is_slow(const char *name)
{
    static const char *const slow[] = {"attention_", "linear_f", "linear_m", "sample"};
    for (size_t i = 0; i < sizeof slow / sizeof slow[0]; i++)
        if (strncmp(name, slow[i], strlen(slow[i])) == 0)
            return true;
    return false;
}

static void kernels_compile_and_keep_their_marks(void **state)
{
    (void)state;
    struct cuda_compiler *c = open_compiler(13000);
    assert_true(cuda_n_sources > 5);
    for (int i = 0; i < cuda_n_sources; i++) {
        struct str cubin = {0};
        struct error error;
        bool is_cached;
        if (is_slow(cuda_sources[i].name))
            continue;
        if (cuda_compile(c, &cuda_sources[i], true, &cubin, &is_cached, &error) != OK)
            fail_msg("%s", error.message);
        /* By this name the driver knows that a kernel may be started early. */
        assert_non_null(memmem(cubin.data, cubin.len, "kd_waits_", 9));
        str_done(&cubin);
    }
    cuda_compiler_close(c);
}

static void code_is_kept_for_one_source_and_driver(void **state)
{
    (void)state;
    static const char other[] = "extern \"C\" __global__ void k(int *p) { *p = 2; }";
    const struct cuda_module changed = {"small", (const unsigned char *)other, &small_bytes};
    struct cuda_compiler *c = open_compiler(13000), *later = open_compiler(13010);
    assert_false(comes_from_the_cache(c, &small_module));
    assert_true(comes_from_the_cache(c, &small_module));
    assert_false(comes_from_the_cache(c, &changed));
    assert_true(comes_from_the_cache(c, &changed));
    assert_false(comes_from_the_cache(later, &changed));
    cuda_compiler_close(c);
    cuda_compiler_close(later);
}

static void code_that_others_could_write_is_not_run(void **state)
{
    (void)state;
    struct cuda_compiler *c = open_compiler(13000);
    struct str path = {0};
    struct error error;
    comes_from_the_cache(c, &small_module);
    assert_true(comes_from_the_cache(c, &small_module));
    assert_int_equal(cache_file_path(&path, "small-sm_90a.cubin", &error), OK);
    assert_int_equal(chmod(str_z(&path), 0620), 0);
    assert_false(comes_from_the_cache(c, &small_module));
    assert_true(comes_from_the_cache(c, &small_module)); /* its own file again */
    str_done(&path);
    cuda_compiler_close(c);
}

static void a_source_that_does_not_compile_is_refused_with_the_compilers_words(void **state)
{
    (void)state;
    static const char bad[] = "extern \"C\" __global__ void k() { nonsense; }";
    static const size_t bytes = sizeof bad - 1;
    const struct cuda_module module = {"bad", (const unsigned char *)bad, &bytes};
    struct cuda_compiler *c = open_compiler(13000);
    struct str cubin = {0};
    struct error error;
    bool is_cached;
    assert_int_equal(cuda_compile(c, &module, true, &cubin, &is_cached, &error),
                     ERROR_UNSUPPORTED);
    assert_non_null(strstr(error.message, "nonsense"));
    str_done(&cubin);
    cuda_compiler_close(c);
}

static int remove_folder(void)
{
    char command[sizeof folder + 16];
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command);
}

int main(void)
{
    struct cuda_compiler *c;
    struct error error;
    if (cuda_compiler_open(&c, 90, 0, &error) != OK) {
        printf("skipped: %s\n", error.message);
        return 77;
    }
    cuda_compiler_close(c);
    if (!mkdtemp(folder) || setenv("XDG_CACHE_HOME", folder, 1) != 0)
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels_compile_and_keep_their_marks),
        cmocka_unit_test(code_is_kept_for_one_source_and_driver),
        cmocka_unit_test(code_that_others_could_write_is_not_run),
        cmocka_unit_test(a_source_that_does_not_compile_is_refused_with_the_compilers_words),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    return remove_folder() == 0 ? failed : 1;
}
