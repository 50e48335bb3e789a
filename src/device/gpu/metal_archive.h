/* What the kernels were compiled to for this GPU, kept in the user's caches from run to run. An
 * archive that cannot be read, kept or trusted costs a second at every start and nothing else. */
#ifndef CSGL_DEVICE_GPU_METAL_ARCHIVE_H
#define CSGL_DEVICE_GPU_METAL_ARCHIVE_H

#include "base/str.h"

#include <stdbool.h>

#import <Metal/Metal.h>

struct metal_archive {
    id<MTLBinaryArchive> archive; /* nil: nothing is kept */
    struct str path;
    bool is_new; /* it has what the file lacks */
};

/* `archive` is all zeros. */
void metal_archive_open(struct metal_archive *archive, id<MTLDevice> device);
/* The pipeline that is to be made is taken from the archive, or added to a new one. */
void metal_archive_use(struct metal_archive *archive, MTLComputePipelineDescriptor *pipeline);
/* Writes the file where it lacks something. */
void metal_archive_keep(struct metal_archive *archive);
void metal_archive_close(struct metal_archive *archive);

#endif
