/* Any bytes are either refused as a frame or read to their end without harm; what was read and is
 * written again reads the same. */
#include "message/message.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct arena arena = {.limit = 64 << 20}, again_arena = {.limit = 64 << 20};
    struct frame_reader reader;
    struct message message, again;
    enum status status;
    struct str frame = {0}, second = {0};
    if (frame_open(&reader, data, size, &arena, NULL) == OK)
        while (frame_next(&reader, &message, &status, NULL)) {
            struct frame_reader copy;
            frame_begin(&frame, reader.epoch);
            if (!frame_add(&frame, &message) ||
                frame_open(&copy, frame.data, frame.len, &again_arena, NULL) != OK ||
                !frame_next(&copy, &again, &status, NULL))
                abort();
            frame_begin(&second, reader.epoch);
            if (!frame_add(&second, &again) || second.len != frame.len ||
                memcmp(second.data, frame.data, frame.len) != 0)
                abort();
        }
    str_done(&frame);
    str_done(&second);
    arena_done(&arena);
    arena_done(&again_arena);
    return 0;
}
