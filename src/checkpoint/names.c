/* The prefixes that wrappers of a language model put before its names. */
#include "checkpoint/checkpoint_struct.h"

#include <string.h>

struct prefix_row {
    const char *prefix, *instead;
};

static const struct prefix_row prefixes[] = {
    {"model.language_model.", "model."},     /* Hugging Face, vision-language models */
    {"language_model.model.", "model."},     /* MLX */
    {"language_model.lm_head.", "lm_head."}, /* MLX */
};

static const char *const dropped_prefixes[] = {"model.visual.", "visual.", "vision_tower.", "mtp."};
static const char dropped_suffix[] = ".rotary_emb.inv_freq";

bool name_normalise(const char *name, const char **prefix, const char **rest)
{
    for (size_t i = 0; i < sizeof dropped_prefixes / sizeof dropped_prefixes[0]; i++)
        if (strncmp(name, dropped_prefixes[i], strlen(dropped_prefixes[i])) == 0)
            return false;
    size_t len = strlen(name), suffix_len = sizeof dropped_suffix - 1;
    if (len >= suffix_len && strcmp(name + len - suffix_len, dropped_suffix) == 0)
        return false;
    *prefix = "";
    *rest = name;
    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++) {
        if (strncmp(name, prefixes[i].prefix, strlen(prefixes[i].prefix)) == 0) {
            *prefix = prefixes[i].instead;
            *rest = name + strlen(prefixes[i].prefix);
        }
    }
    return true;
}
