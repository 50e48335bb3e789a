/* A model's tensors into safetensors files, in the order in which they are listed. */
#ifndef CSGL_CHECKPOINT_SHARD_WRITER_H
#define CSGL_CHECKPOINT_SHARD_WRITER_H

#include "base/error.h"
#include "checkpoint/tensors.h"

#include <stdio.h>

struct shard_tensor {
    const char *name; /* borrowed, as is `dtype` */
    const char *dtype;
    int n_dims;
    int64_t dims[TENSOR_DIMS_MAX];
    uint64_t bytes;
    int shard; /* filled */
};

/* Zero-initialise with a folder and the most bytes of a file; list all tensors with
 * shard_writer_add; then write the bytes of each in the same order, in pieces; finish. */
struct shard_writer {
    const char *folder;
    uint64_t shard_bytes;
    struct shard_tensor *tensors;
    size_t n, cap;
    int n_shards;
    uint64_t filled;       /* of the last shard, while tensors are listed */
    size_t current;        /* the tensor that is written */
    uint64_t current_done; /* its bytes that were */
    FILE *file;
    uint64_t written, total; /* bytes of all tensors */
};

enum status shard_writer_add(struct shard_writer *writer, const struct shard_tensor *tensor,
                             struct error *error);
enum status shard_writer_write(struct shard_writer *writer, const void *data, size_t bytes,
                               struct error *error);

/* Closes the last file; several get an index. All bytes must have been written. */
enum status shard_writer_finish(struct shard_writer *writer, struct error *error);

void shard_writer_done(struct shard_writer *writer);

/* A whole small file into the folder, on the disk when it returns. */
enum status folder_write_file(const char *folder, const char *name, const char *data, size_t bytes,
                              struct error *error);

#endif
