/* The safetensors container: an 8-byte header length, a JSON header, then the tensors' bytes. */
#ifndef CSGL_CHECKPOINT_SAFETENSORS_H
#define CSGL_CHECKPOINT_SAFETENSORS_H

#include "checkpoint/tensors.h"

/* Adds every tensor of the file `data` (borrowed while the list is used) as one of file number
 * `file`. As the reference crate does, it requires that the tensors lie back to back and fill the
 * file, and that each size is that of its dtype and shape. Sentences do not name the file. */
enum status safetensors_parse(struct tensor_list *list, const uint8_t *data, uint64_t bytes,
                              int32_t file, struct error *error);

#endif
