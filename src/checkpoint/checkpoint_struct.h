/* The checkpoint's own struct, shared by the files of this room and by its fuzzers. */
#ifndef CSGL_CHECKPOINT_CHECKPOINT_STRUCT_H
#define CSGL_CHECKPOINT_CHECKPOINT_STRUCT_H

#include "base/file.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/mlx.h"
#include "checkpoint/quantized.h"
#include "checkpoint/random.h"
#include "checkpoint/tensors.h"

enum { CONFIG_BYTES_MAX = 8 << 20, CONFIG_TREE_MAX = 64 << 20, CHECKPOINT_FILES_MAX = 4096 };

struct checkpoint {
    char *path;
    bool is_gguf;
    struct arena arena;        /* names, vocabulary, reordered biases */
    struct arena config_arena; /* both configurations, limited */
    struct file_map *files;    /* [n_files] */
    size_t n_files;
    struct tensor_list tensors;
    struct map names; /* Hugging Face's names, normalised -> index in tensors */
    uint64_t bytes;
    struct random_weights *random; /* in place of files and tensors; NULL: there are files */
    struct json config, generation_config;
    struct mlx_quantization mlx;
    struct quantization quantization; /* by another method */
    bool is_mxfp4;                    /* config.json's quant_method */
    struct mlx_format made;           /* bits > 0: checkpoint_quantize was asked for this */
    struct vocab vocab;               /* tokens == NULL: none */
};

/* An empty checkpoint of this path (copied); NULL when memory is exhausted. */
struct checkpoint *checkpoint_new(const char *path);

/* Reads the files of a folder: configurations, shards, tensors (not yet indexed). */
enum status folder_open(struct checkpoint *checkpoint, struct error *error);

/* A model of random weights: the configuration in the file `path`, or of the folder `path`. */
enum status folder_open_config(struct checkpoint *checkpoint, const char *path,
                               struct error *error);

/* Parses `text`, the file `name`, which must be an object, into `out`. */
enum status config_parse(struct checkpoint *checkpoint, const char *name, const char *text,
                         size_t bytes, struct json *out, struct error *error);

/* Fills checkpoint->mlx or ->quantization from config.json; ERROR_UNSUPPORTED with the method's
 * name if it says that the weights are quantized in another way. */
enum status config_read_quantization(struct checkpoint *checkpoint, struct error *error);

/* Everything of a GGUF that is one file, whose bytes are `data` (borrowed). Sentences do not name
 * the file. */
enum status checkpoint_read_gguf(struct checkpoint *checkpoint, const uint8_t *data, uint64_t bytes,
                                 struct error *error);

/* Maps and reads the file checkpoint->path, or, if it is one of the files of a split GGUF
 * (NAME-00001-of-00003.gguf), all of them. Sentences name the file. */
enum status gguf_open(struct checkpoint *checkpoint, struct error *error);

/* Fills checkpoint->names and ->bytes from the tensors. */
enum status checkpoint_index(struct checkpoint *checkpoint, struct error *error);

/* The normalised form of a safetensors name, a part of `name` or behind `prefix`; false if the
 * tensor belongs to a part that no model here reads (vision, multi-token prediction, inv_freq). */
bool name_normalise(const char *name, const char **prefix, const char **rest);

#endif
