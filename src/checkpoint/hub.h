/* Models from the Hugging Face hub and from ModelScope: what a repository is called, and its files
 * in a cache. That of the Hugging Face hub is huggingface_hub's, so that each finds what the other
 * has fetched; that of ModelScope has the same folders in one of csgl's own. */
#ifndef CSGL_CHECKPOINT_HUB_H
#define CSGL_CHECKPOINT_HUB_H

#include "base/error.h"
#include "base/str.h"

#include <stdbool.h>
#include <stdint.h>

enum { HUB_NAME_MAX = 96, HUB_REVISION_MAX = 128, HUB_FILE_MAX = 512 };

enum hub_source { HUB_HUGGING_FACE, HUB_MODELSCOPE, N_HUB_SOURCES };

/* What the sources call things. */
struct hub_terms {
    const char *name;     /* "the Hugging Face hub" */
    const char *revision; /* when none is asked for */
    const char *endpoint; /* when its variable is unset */
    /* environment variables */
    const char *endpoint_variable, *token_variable, *cache_variable;
};

const struct hub_terms *hub_terms(enum hub_source source);

/* "ORG/NAME", "ORG/NAME@REVISION", "ORG/NAME:FILE.gguf", "ORG/NAME:Q4_K_M". */
struct hub_reference {
    char repo[2 * HUB_NAME_MAX + 2];
    char revision[HUB_REVISION_MAX +
                  1];            /* branch, tag or commit; the source's own when none given */
    char file[HUB_FILE_MAX + 1]; /* a GGUF file or the name of a quantization, or "" */
};

/* ERROR_INVALID with a sentence for text of any other shape: parts of ORG/NAME are letters, digits,
 * '.', '_' and '-'; a NAME that ends in .gguf is a path. */
enum status hub_reference_parse(struct hub_reference *out, enum hub_source source, const char *text,
                                struct error *error);

/* Where the hub and the cache are. */
struct hub_settings {
    enum hub_source source;
    struct str cache;    /* the folder that holds models--ORG--NAME */
    struct str endpoint; /* "https://huggingface.co", without a slash behind */
    const char *token;   /* or NULL; borrowed from the environment */
    bool is_offline;
};

/* From HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME and HOME; HF_ENDPOINT, HF_TOKEN; for ModelScope from
 * MODELSCOPE_CACHE and HOME; MODELSCOPE_DOMAIN (a host or a URL), MODELSCOPE_API_TOKEN.
 * HF_HUB_OFFLINE holds for both. */
enum status hub_settings_init(struct hub_settings *settings, enum hub_source source,
                              struct error *error);
void hub_settings_done(struct hub_settings *settings);

/* Bytes so far and in all, over the files of one pull. `on_bytes` returns false to stop it, and is
 * also asked while nothing arrives; what has arrived then stays for the next pull. */
struct hub_progress {
    bool (*on_bytes)(void *context, const char *file, uint64_t done, uint64_t total);
    void *context;
};

/* The path of the reference's snapshot folder or GGUF file, if all of it is in the cache; asks no
 * server. ERROR_NOT_FOUND otherwise. */
enum status hub_find(const struct hub_settings *settings, const struct hub_reference *reference,
                     struct str *path, struct error *error);

/* Fetches what the cache lacks of the revision's files that csgl reads (configuration, tokenizer,
 * chat template and safetensors, or one GGUF) and gives the same path as hub_find. Connections that
 * break are taken up where they were; names, sizes and the digests that the
 * listing gives are checked; two
 * pulls of one file wait for each other. ERROR_CANCELLED when `progress` said so. */
enum status hub_pull(const struct hub_settings *settings, const struct hub_reference *reference,
                     const struct hub_progress *progress, struct str *path, struct error *error);

/* The text of the revision's config.json, from the hub and into no cache: for looking at a model
 * before fetching it. */
enum status hub_config(const struct hub_settings *settings, const struct hub_reference *reference,
                       struct str *out, struct error *error);

/* One snapshot of the cache. */
struct hub_entry {
    const char *repo;     /* "ORG/NAME" */
    const char *revision; /* a branch or tag that points at it, or "" */
    const char *commit;   /* "" for a repository without a whole file */
    int n_files;
    uint64_t bytes;
    uint64_t partial_bytes; /* of the repository's unfinished downloads */
};

/* Calls `visit` for each snapshot, sorted by repository. A cache that is not there is empty. */
enum status hub_list(const struct hub_settings *settings,
                     void (*visit)(void *context, const struct hub_entry *entry), void *context,
                     struct error *error);

/* Deletes a repository from the cache. ERROR_NOT_FOUND if it is not there. */
enum status hub_remove(const struct hub_settings *settings, const char *repo, struct error *error);

#endif
