/* Only the caller's thread, worker 0 of the pool, speaks to the driver: it copies the piece before
 * and then helps with the present one. */
#include "device/gpu/gpu_upload.h"

#include "base/size.h"
#include "base/thread_pool.h"

#include <stdlib.h>

enum {
    ALIGN = 64,
    PIECE_BYTES = 4 << 20, /* two of them and what the items are made of stay in the cache */
    TASK_BYTES = 32 << 10  /* below, taking a task costs as much as doing it */
};

struct piece {
    int64_t first, n; /* items; 0: nothing is to be copied */
    uint8_t *sections[GPU_UPLOAD_SECTIONS];
};

struct run {
    struct gpu_device *gpu;
    const struct gpu_upload *upload;
    uint8_t *scratch;
    size_t scratch_bytes; /* a thread's */
    int64_t task_items;
    struct piece made, making;
    enum status status;
    struct error *error;
};

static void copy_made(struct run *run)
{
    const struct gpu_upload *u = run->upload;
    for (int s = 0; s < GPU_UPLOAD_SECTIONS && run->made.n && run->status == OK; s++) {
        const struct gpu_section *section = &u->sections[s];
        size_t offset = u->to.offset + section->at + (size_t)run->made.first * section->item_bytes;
        if (section->item_bytes)
            run->status = run->gpu->driver->write(
                run->gpu->gpu, &(struct gpu_range){u->to.memory, offset}, run->made.sections[s],
                (size_t)run->made.n * section->item_bytes, run->error);
    }
    run->made.n = 0;
}

static void make_task(void *context, int task, int worker)
{
    struct run *run = context;
    const struct piece *piece = &run->making;
    if (worker == 0)
        copy_made(run);
    int64_t first = task * run->task_items, end = first + run->task_items;
    for (int64_t i = first; i < end && i < piece->n; i++) {
        uint8_t *to[GPU_UPLOAD_SECTIONS];
        for (int s = 0; s < GPU_UPLOAD_SECTIONS; s++)
            to[s] = piece->sections[s] + (size_t)i * run->upload->sections[s].item_bytes;
        run->upload->make(run->upload->context, piece->first + i,
                          run->scratch + (size_t)worker * run->scratch_bytes, to);
    }
}

static void run_pieces(struct run *run, uint8_t *memory, size_t piece_bytes, int64_t piece_items)
{
    const struct gpu_upload *u = run->upload;
    for (int64_t first = 0, k = 0; first < u->n_items && run->status == OK; k++) {
        int64_t n = u->n_items - first < piece_items ? u->n_items - first : piece_items;
        uint8_t *at = memory + (size_t)(k % 2) * piece_bytes;
        run->making = (struct piece){.first = first, .n = n};
        for (int s = 0; s < GPU_UPLOAD_SECTIONS; s++) {
            run->making.sections[s] = at;
            at += size_round_up((size_t)piece_items * u->sections[s].item_bytes, ALIGN);
        }
        thread_pool_run(run->gpu->loaders, make_task, run, (int)ceil_div(n, run->task_items));
        copy_made(run); /* if the others have left no task for the caller */
        run->made = run->making;
        first += n;
    }
    copy_made(run);
}

enum status gpu_upload(struct gpu_device *gpu, const struct gpu_upload *u, struct error *error)
{
    struct run run = {.gpu = gpu, .upload = u, .error = error};
    size_t item_bytes = 0, piece_bytes = 0;
    for (int s = 0; s < GPU_UPLOAD_SECTIONS; s++)
        item_bytes += u->sections[s].item_bytes;
    if (!gpu->loaders)
        run.status = thread_pool_new(&gpu->loaders, thread_pool_default_size(), error);
    if (run.status != OK)
        return run.status;
    int64_t piece_items = PIECE_BYTES / (int64_t)item_bytes;
    piece_items = piece_items < u->n_items ? piece_items : u->n_items;
    piece_items = piece_items > 1 ? piece_items : 1;
    run.task_items = TASK_BYTES / (int64_t)item_bytes + 1;
    for (int s = 0; s < GPU_UPLOAD_SECTIONS; s++)
        piece_bytes += size_round_up((size_t)piece_items * u->sections[s].item_bytes, ALIGN);
    run.scratch_bytes = size_round_up(u->scratch_bytes, ALIGN);
    size_t scratch_bytes = (size_t)thread_pool_size(gpu->loaders) * run.scratch_bytes;
    uint8_t *memory = aligned_alloc(ALIGN, scratch_bytes + 2 * piece_bytes);
    if (!memory)
        return error_memory(error, scratch_bytes + 2 * piece_bytes);
    run.scratch = memory;
    run_pieces(&run, memory + scratch_bytes, piece_bytes, piece_items);
    free(memory);
    return run.status;
}

void gpu_upload_done(struct gpu_device *gpu)
{
    thread_pool_free(gpu->loaders);
    gpu->loaders = NULL;
}
