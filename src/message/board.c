#include "message/board.h"

#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static enum status map_board(struct board **out, const char *folder, int flags, struct error *error)
{
    struct str path = {0};
    *out = NULL;
    path_join(&path, folder, "board");
    int fd = open(str_z(&path), flags | O_RDWR | O_CLOEXEC, 0600);
    enum status status = OK;
    if (fd < 0 || ((flags & O_CREAT) && ftruncate(fd, sizeof **out) != 0)) {
        status =
            error_set(error, ERROR_IO, "%s cannot be opened: %s", str_z(&path), strerror(errno));
    } else {
        void *p = mmap(NULL, sizeof **out, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (p == MAP_FAILED)
            status = error_set(error, ERROR_IO, "%s cannot be mapped: %s", str_z(&path),
                               strerror(errno));
        else
            *out = p;
    }
    if (fd >= 0)
        close(fd);
    str_done(&path);
    return status;
}

enum status board_create(struct board **out, const char *folder, struct error *error)
{
    return map_board(out, folder, O_CREAT | O_EXCL, error);
}

enum status board_open(struct board **out, const char *folder, struct error *error)
{
    return map_board(out, folder, 0, error);
}

void board_close(struct board *board)
{
    if (board)
        munmap(board, sizeof *board);
}

uint32_t board_youngest_start(const struct board *board)
{
    uint32_t youngest = 0;
    for (int role = 0; role < N_ROLES; role++) {
        uint32_t start = atomic_load(&board->started_at[role]);
        if (start > youngest)
            youngest = start;
    }
    return youngest;
}

bool board_is_ready(const struct board *board)
{
    for (int role = 0; role < N_ROLES; role++) {
        uint32_t state = atomic_load(&board->state[role]);
        if (state != PROCESS_ABSENT && state != PROCESS_READY)
            return false;
    }
    return true;
}
