#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum status file_map_open(struct file_map *map, const char *path, struct error *error)
{
    *map = (struct file_map){0};
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not block */
    if (fd < 0)
        return error_set(error, errno == ENOENT ? ERROR_NOT_FOUND : ERROR_IO,
                         "%s cannot be opened: %s", path, strerror(errno));
    enum status status = OK;
    struct stat info;
    if (fstat(fd, &info) != 0) {
        status = error_set(error, ERROR_IO, "%s cannot be read: %s", path, strerror(errno));
        goto out;
    }
    if (!S_ISREG(info.st_mode)) {
        status = error_set(error, ERROR_INVALID, "%s is not a regular file", path);
        goto out;
    }
    map->bytes = (uint64_t)info.st_size;
    if (map->bytes == 0)
        goto out;
    void *data = mmap(NULL, (size_t)map->bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    if (data == MAP_FAILED) {
        status = error_set(error, ERROR_IO, "%s cannot be mapped: %s", path, strerror(errno));
        map->bytes = 0;
        goto out;
    }
    map->data = data;
out:
    close(fd);
    return status;
}

void file_map_done(struct file_map *map)
{
    if (map->data)
        munmap((void *)(uintptr_t)map->data, (size_t)map->bytes);
    *map = (struct file_map){0};
}

void file_map_release(const struct file_map *map, uint64_t offset, uint64_t bytes)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t start = (offset + page - 1) / page * page, end = (offset + bytes) / page * page;
    if (map->data && start < end && end <= map->bytes)
        madvise((void *)(uintptr_t)(map->data + start), (size_t)(end - start), MADV_DONTNEED);
}

enum status file_read(const char *path, size_t limit, struct str *out, struct error *error)
{
    bool is_stdin = strcmp(path, "-") == 0;
    int fd = is_stdin ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return error_set(error, errno == ENOENT ? ERROR_NOT_FOUND : ERROR_IO,
                         "%s cannot be opened: %s", path, strerror(errno));
    enum status status = OK;
    size_t total = 0;
    for (;;) {
        if (!str_reserve(out, 64 * 1024)) {
            status = error_memory(error, out->len + 64 * 1024);
            break;
        }
        ssize_t n = read(fd, out->data + out->len, 64 * 1024);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            status = error_set(error, ERROR_IO, "%s cannot be read: %s", path, strerror(errno));
        if (n <= 0)
            break;
        total += (size_t)n;
        if (total > limit) {
            status = error_set(error, ERROR_LIMIT, "%s is longer than the limit of %zu bytes", path,
                               limit);
            break;
        }
        out->len += (size_t)n;
        out->data[out->len] = '\0';
    }
    if (!is_stdin)
        close(fd);
    return status;
}

bool file_exists(const char *path)
{
    return access(path, F_OK) == 0;
}

bool file_is_directory(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

void path_join(struct str *out, const char *folder, const char *name)
{
    str_clear(out);
    str_append_z(out, folder);
    if (out->len && out->data[out->len - 1] != '/')
        str_append_char(out, '/');
    str_append_z(out, name);
}
