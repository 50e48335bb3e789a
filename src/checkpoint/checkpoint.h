/* A model's files: named weights, configuration and the vocabulary that a GGUF carries, whatever
 * the format on disk. Everything handed out is borrowed until checkpoint_free. Knows no model
 * family. */
#ifndef CSGL_CHECKPOINT_CHECKPOINT_H
#define CSGL_CHECKPOINT_CHECKPOINT_H

#include "base/error.h"
#include "base/json.h"
#include "base/vocab.h"
#include "base/weight.h"

#include <stdbool.h>
#include <stdint.h>

struct checkpoint;

/* `path` is a folder (config.json, *.safetensors or model.safetensors.index.json) or a .gguf file,
 * of a split one any of its files (NAME-00001-of-0000N.gguf; the others must lie beside it).
 * Files are mapped, headers are checked whole before anything is handed out. Refused with a
 * sentence that names the file: damaged or incomplete files, checkpoints that are quantized by
 * other methods than MLX's and those of quantized.h (by name), folders without safetensors,
 * big-endian GGUFs, split ones with a file missing. The files must not shrink while open. */
enum status checkpoint_open(struct checkpoint **out, const char *path, struct error *error);
void checkpoint_free(struct checkpoint *checkpoint);

/* A model of random weights: `path` is a config.json, whatever its name, or a folder with one;
 * `encoding` names what its matrices are, "bf16", "Q4_0", "mlx_q4", ... (checkpoint/random.h). */
enum status checkpoint_open_random(struct checkpoint **out, const char *path, const char *encoding,
                                   struct error *error);
/* The same of a configuration's text; `name` is the path that sentences give it. */
enum status checkpoint_parse_random(struct checkpoint **out, const char *name, const char *text,
                                    size_t bytes, const char *encoding, struct error *error);
bool checkpoint_is_random(const struct checkpoint *checkpoint);

const char *checkpoint_path(const struct checkpoint *checkpoint);
bool checkpoint_is_gguf(const struct checkpoint *checkpoint);

/* The configuration under Hugging Face's keys (config.json; for GGUF made from its metadata:
 * model_type, hidden_size, ..., rope_theta, rope_scaling, tie_word_embeddings). Always an object.
 */
const struct json *checkpoint_config(const struct checkpoint *checkpoint);

/* generation_config.json (GGUF: eos_token_id and bos_token_id from its metadata), an object that
 * may be empty. */
const struct json *checkpoint_generation_config(const struct checkpoint *checkpoint);

/* The weight of this name, ERROR_NOT_FOUND, or ERROR_UNSUPPORTED for a type that this version
 * cannot read, each with a sentence. Names are Hugging Face's
 * ("model.layers.0.self_attn.q_proj.weight") for GGUF as well, where names without a counterpart
 * stay ("rope_freqs.weight"); the prefixes of multimodal wrappers are taken off
 * ("model.language_model.", "language_model."). Shapes of more than two dimensions are folded into
 * rows. Weights are never empty; their data may lie at any address. */
enum status checkpoint_weight(const struct checkpoint *checkpoint, const char *name,
                              struct weight *out, struct error *error);

/* The same for a caller who knows the shape, which is checked. With `wants_data` it is unpacked. Of
 * a model of random weights this is the only way to a weight; its data is made when `wants_data` is
 * set, and NULL otherwise. */
enum status checkpoint_weight_of(const struct checkpoint *checkpoint, const char *name,
                                 int64_t rows, int64_t cols, bool wants_data, struct weight *out,
                                 struct error *error);
bool checkpoint_has(const struct checkpoint *checkpoint, const char *name);

/* From now on checkpoint_weight shows matrices of floats as MLX's affine quantization makes them:
 * those named "X.weight" whose rows are whole groups. Stacks under other names are the caller's
 * (checkpoint_quantize_floats). `bits` 2, 3, 4, 5, 6 or 8; `group` 32, 64 or
 * 128. ERROR_INVALID if weights are quantized already. */
enum status checkpoint_quantize(struct checkpoint *checkpoint, int32_t bits, int32_t group,
                                struct error *error);

/* Shows a matrix of floats that the caller has found or put together as checkpoint_weight would one
 * named "X.weight"; it keeps its data. Nothing happens without checkpoint_quantize. */
void checkpoint_quantize_floats(const struct checkpoint *checkpoint, struct weight *weight);

/* checkpoint_quantize for the i-th word of --quantization: none, mlx_q4, mlx_q8 (groups of 64). */
enum status checkpoint_quantize_as(struct checkpoint *checkpoint, int word, struct error *error);
int checkpoint_quantization_word(const char *text); /* its number, -1: none of them */

/* Unpacks a weight that checkpoint_weight has marked as packed, whose bytes are not yet what its
 * decoder reads (GPTQ's and AWQ's lie column by column); memory for it is held until
 * checkpoint_release. Does nothing to others. */
enum status checkpoint_unpack(const struct checkpoint *checkpoint, const char *name,
                              struct weight *weight, struct error *error);

/* Sum of the stored bytes of all weights. */
uint64_t checkpoint_bytes(const struct checkpoint *checkpoint);

/* This weight's bytes will not be read again. */
void checkpoint_release(const struct checkpoint *checkpoint, const struct weight *weight);

/* The vocabulary inside a GGUF; ERROR_NOT_FOUND for a checkpoint without one (a folder). */
enum status checkpoint_vocab(const struct checkpoint *checkpoint, struct vocab *out,
                             struct error *error);

#endif
