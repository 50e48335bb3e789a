#include "device/gpu/nvrtc/cuda_compile.h"

#include "base/cache_file.h"
#include "base/file.h"
#include "base/log.h"
#include "base/sha256.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NVRTC_OK = 0, MAX_CACHED = 64 << 20, KEY_BYTES = SHA256_HEX - 1 };

typedef void *nvrtc_program;

#define NVRTC_CALLS(X)                                                                             \
    X(nvrtcVersion, (int *, int *))                                                                \
    X(nvrtcCreateProgram, (nvrtc_program *, const char *, const char *, int, const char *const *,  \
                           const char *const *))                                                   \
    X(nvrtcCompileProgram, (nvrtc_program, int, const char *const *))                              \
    X(nvrtcGetProgramLogSize, (nvrtc_program, size_t *))                                           \
    X(nvrtcGetProgramLog, (nvrtc_program, char *))                                                 \
    X(nvrtcGetCUBINSize, (nvrtc_program, size_t *))                                                \
    X(nvrtcGetCUBIN, (nvrtc_program, char *))                                                      \
    X(nvrtcDestroyProgram, (nvrtc_program *))

struct cuda_compiler {
#define NVRTC_POINTER(name, parameters) int(*name) parameters;
    NVRTC_CALLS(NVRTC_POINTER)
#undef NVRTC_POINTER
    void *library;
    char architecture[40];
    char versions[64]; /* of compiler and driver */
};

static const char *const options[] = {"-std=c++17"};
enum { N_OPTIONS = sizeof options / sizeof options[0] };

static void *open_library(void)
{
    static const char *const names[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so",
                                        "/usr/local/cuda/lib64/libnvrtc.so"};
    void *library = NULL;
    for (size_t i = 0; i < sizeof names / sizeof names[0] && !library; i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    return library;
}

static enum status load(struct cuda_compiler *c, int capability, int driver_version,
                        struct error *error)
{
    int major = 0, minor = 0;
    c->library = open_library();
    if (!c->library)
        return error_set(error, ERROR_UNSUPPORTED,
                         "this csgl was built without nvcc and compiles its kernels when it starts, "
                         "but libnvrtc is not found; install it (CUDA 12 or later), or use --device "
                         "cpu");
#define LOAD(name, parameters)                                                                     \
    *(void **)&c->name = dlsym(c->library, #name);                                                 \
    if (!c->name)                                                                                  \
        return error_set(error, ERROR_UNSUPPORTED, "libnvrtc lacks %s; a newer one is needed",     \
                         #name);
    NVRTC_CALLS(LOAD)
#undef LOAD
    c->nvrtcVersion(&major, &minor);
    /* Hopper's own instructions are those of sm_90a. */
    snprintf(c->architecture, sizeof c->architecture, "--gpu-architecture=sm_%d%s", capability,
             capability == 90 ? "a" : "");
    snprintf(c->versions, sizeof c->versions, "nvrtc %d.%d driver %d", major, minor,
             driver_version);
    return OK;
}

enum status cuda_compiler_open(struct cuda_compiler **out, int capability, int driver_version,
                               struct error *error)
{
    *out = NULL;
    struct cuda_compiler *c = calloc(1, sizeof *c);
    if (!c)
        return error_memory(error, sizeof *c);
    enum status status = load(c, capability, driver_version, error);
    if (status != OK) {
        cuda_compiler_close(c);
        return status;
    }
    *out = c;
    return OK;
}

void cuda_compiler_close(struct cuda_compiler *c)
{
    if (!c)
        return;
    if (c->library)
        dlclose(c->library);
    free(c);
}

/* --- the cache -------------------------------------------------------------------------------- */

/* A file is its key and the machine code. One file a module and architecture, so that a new version
 * of csgl takes the old one's place. */
static enum status find_file(const struct cuda_compiler *c, const struct cuda_module *module,
                             struct str *path, struct error *error)
{
    char name[128];
    snprintf(name, sizeof name, "%s-%s.cubin", module->name, strchr(c->architecture, '=') + 1);
    return cache_file_path(path, name, error);
}

static void make_key(const struct cuda_compiler *c, const struct cuda_module *module,
                     char key[SHA256_HEX])
{
    struct sha256 hash;
    sha256_init(&hash);
    sha256_update(&hash, c->versions, sizeof c->versions);
    sha256_update(&hash, c->architecture, sizeof c->architecture);
    for (int i = 0; i < N_OPTIONS; i++)
        sha256_update(&hash, options[i], strlen(options[i]) + 1);
    sha256_update(&hash, module->data, *module->bytes);
    sha256_hex(&hash, key);
}

/* False where there is no such file, or none to be trusted. */
static bool read_cached(const char *path, const char *key, struct str *out)
{
    struct error error;
    enum status status = cache_file_check(path, &error);
    if (status == OK)
        status = file_read(path, MAX_CACHED, out, &error);
    if (status != OK && status != ERROR_NOT_FOUND)
        log_warn("%s", error.message);
    if (status != OK || out->len <= KEY_BYTES || memcmp(out->data, key, KEY_BYTES) != 0) {
        str_clear(out);
        return false;
    }
    memmove(out->data, out->data + KEY_BYTES, out->len - KEY_BYTES);
    out->len -= KEY_BYTES;
    return true;
}

static bool write_all(int fd, const char *data, size_t n)
{
    while (n > 0) {
        ssize_t written = write(fd, data, n);
        if (written < 0 && errno != EINTR)
            return false;
        data += written > 0 ? written : 0;
        n -= written > 0 ? (size_t)written : 0;
    }
    return true;
}

/* A reader sees all of the file or none of it. */
static void write_cached(const char *path, const char *key, const struct str *cubin)
{
    struct str temporary = {0};
    str_printf(&temporary, "%s.%ld", path, (long)getpid());
    int fd = open(str_z(&temporary), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    bool is_written = fd >= 0 && write_all(fd, key, KEY_BYTES) &&
                      write_all(fd, cubin->data, cubin->len);
    if (fd >= 0 && close(fd) != 0)
        is_written = false;
    if (is_written && rename(str_z(&temporary), path) != 0)
        is_written = false;
    if (!is_written)
        log_warn("%s cannot be written: %s; the kernels are compiled at each start", path,
                    strerror(errno));
    if (fd >= 0 && !is_written)
        unlink(str_z(&temporary));
    str_done(&temporary);
}

/* --- compiling -------------------------------------------------------------------------------- */

static enum status fail(const struct cuda_compiler *c, const struct cuda_module *module,
                        nvrtc_program program, struct error *error)
{
    size_t n = 0;
    char *text = NULL;
    if (program && c->nvrtcGetProgramLogSize(program, &n) == NVRTC_OK && (text = calloc(1, n + 1)))
        c->nvrtcGetProgramLog(program, text);
    enum status status = error_set(error, ERROR_UNSUPPORTED,
                                   "the kernels of %s cannot be compiled for %s (%s): %.200s",
                                   module->name, c->architecture, c->versions, text ? text : "");
    free(text);
    return status;
}

static enum status compile(const struct cuda_compiler *c, const struct cuda_module *module,
                           struct str *out, struct error *error)
{
    const char *all[N_OPTIONS + 1] = {c->architecture};
    memcpy(all + 1, options, N_OPTIONS * sizeof *options);
    nvrtc_program program = NULL;
    size_t bytes = 0;
    enum status status = OK;
    str_clear(out);
    if (c->nvrtcCreateProgram(&program, (const char *)module->data, module->name, 0, NULL, NULL) !=
            NVRTC_OK ||
        c->nvrtcCompileProgram(program, N_OPTIONS + 1, all) != NVRTC_OK ||
        c->nvrtcGetCUBINSize(program, &bytes) != NVRTC_OK)
        status = fail(c, module, program, error);
    else if (!str_reserve(out, bytes))
        status = error_memory(error, bytes);
    else if (c->nvrtcGetCUBIN(program, out->data) != NVRTC_OK)
        status = fail(c, module, program, error);
    else
        out->len = bytes;
    if (program)
        c->nvrtcDestroyProgram(&program);
    return status;
}

enum status cuda_compile(const struct cuda_compiler *c, const struct cuda_module *module,
                         bool may_be_cached, struct str *out, bool *is_cached,
                         struct error *error)
{
    struct str path = {0};
    struct error cache_error;
    char key[SHA256_HEX];
    bool has_cache = find_file(c, module, &path, &cache_error) == OK;
    if (!has_cache)
        log_warn("%s", cache_error.message);
    make_key(c, module, key);
    str_clear(out);
    *is_cached = has_cache && may_be_cached && read_cached(str_z(&path), key, out);
    enum status status = *is_cached ? OK : compile(c, module, out, error);
    if (status == OK && !*is_cached && has_cache)
        write_cached(str_z(&path), key, out);
    str_done(&path);
    return status;
}
