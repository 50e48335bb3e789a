#include "checkpoint/hub_listing.h"

#include "base/size.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MAX_NAME_PART = 255, MAX_PARTS = 99999 };

bool hub_is_hex(const char *text, size_t n)
{
    return strlen(text) == n && strspn(text, "0123456789abcdef") == n;
}

bool hub_is_commit(const char *text)
{
    return hub_is_hex(text, 40) || hub_is_hex(text, 64);
}

/* --- names ------------------------------------------------------------------------------------ */

static bool is_part(const char *part, size_t n)
{
    if (n == 0 || n > MAX_NAME_PART || (n == 1 && part[0] == '.') ||
        (n == 2 && part[0] == '.' && part[1] == '.'))
        return false;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)part[i] < ' ' || part[i] == 127 || part[i] == '\\')
            return false;
    return true;
}

/* Relative, without "..", empty parts, backslashes and control characters. */
static bool is_file_name(const char *name)
{
    if (strlen(name) > HUB_FILE_MAX)
        return false;
    for (;;) {
        size_t n = strcspn(name, "/");
        if (!is_part(name, n))
            return false;
        if (!name[n])
            return true;
        name += n + 1;
    }
}

static bool ends_with(const char *name, const char *suffix)
{
    size_t n = strlen(name), m = strlen(suffix);
    return n >= m && strcasecmp(name + n - m, suffix) == 0;
}

static bool starts_with(const char *name, const char *prefix)
{
    return strncmp(name, prefix, strlen(prefix)) == 0;
}

/* --- building --------------------------------------------------------------------------------- */

enum status hub_listing_add(struct hub_listing *listing, const char *name, struct hub_file **out,
                            struct error *error)
{
    listing->arena.limit = HUB_LISTING_ARENA_MAX;
    if (!is_file_name(name))
        return error_set(error, ERROR_INVALID,
                         "the file name \"%.100s\" would not stay inside its folder", name);
    if (listing->n == HUB_MAX_FILES)
        return error_set(error, ERROR_LIMIT, "more than %d files in one repository", HUB_MAX_FILES);
    if (listing->n == listing->cap) {
        int cap = listing->cap ? 2 * listing->cap : 64;
        struct hub_file *files = realloc(listing->files, (size_t)cap * sizeof *files);
        if (!files)
            return error_memory(error, (size_t)cap * sizeof *files);
        listing->files = files;
        listing->cap = cap;
    }
    struct hub_file file = {.name = arena_copy(&listing->arena, name, strlen(name))};
    if (!file.name)
        return error_memory(error, strlen(name));
    listing->files[listing->n] = file;
    *out = &listing->files[listing->n++];
    return OK;
}

void hub_listing_done(struct hub_listing *listing)
{
    arena_done(&listing->arena);
    free(listing->files);
    *listing = (struct hub_listing){0};
}

/* --- choosing --------------------------------------------------------------------------------- */

/* "NAME-00002-of-00003.gguf": the number of the part and of all; 1 of 1 for a whole file. `stem` is
 * the length of NAME. */
static void split_part(const char *name, size_t *stem, int *part, int *n_parts)
{
    static const char pattern[] = "-ddddd-of-ddddd.gguf";
    size_t n = strlen(name), m = sizeof pattern - 1;
    *stem = n;
    *part = *n_parts = 1;
    if (n <= m)
        return;
    const char *tail = name + n - m;
    for (size_t i = 0; i < m; i++)
        if (pattern[i] == 'd' && i < m - 5 ? !isdigit((unsigned char)tail[i])
                                           : tolower((unsigned char)tail[i]) != pattern[i])
            return;
    *stem = n - m;
    *part = atoi(tail + 1);
    *n_parts = atoi(tail + 10);
}

/* Q4_K in "model-Q4_K.gguf" but not in "model-Q4_K_M.gguf" or "model-IQ4_K.gguf". */
static bool has_quantization(const char *name, const char *word)
{
    size_t n = strlen(word);
    for (const char *at = name; *at; at++) {
        bool starts = at == name || strchr("-._/", at[-1]);
        if (starts && strncasecmp(at, word, n) == 0 &&
            (at[n] == '.' || at[n] == '-' || at[n] == '/'))
            return true;
    }
    return false;
}

/* A model that stands for itself: projectors of multimodal models and later parts do not. */
static bool is_gguf_model(const char *name)
{
    size_t stem;
    int part, n_parts;
    const char *slash = strrchr(name, '/');
    split_part(name, &stem, &part, &n_parts);
    return ends_with(name, ".gguf") && part == 1 &&
           !starts_with(slash ? slash + 1 : name, "mmproj");
}

static bool fits(const char *name, const char *wanted)
{
    if (!*wanted)
        return is_gguf_model(name);
    if (ends_with(wanted, ".gguf"))
        return strcmp(name, wanted) == 0;
    return is_gguf_model(name) && has_quantization(name, wanted);
}

static enum status refuse_choice(const struct hub_listing *listing,
                                 const struct hub_reference *reference, int n_fitting,
                                 struct error *error)
{
    enum { MAX_LISTED = 260 };
    struct str names = {0};
    int n = 0, n_left_out = 0;
    for (int i = 0; i < listing->n; i++) {
        const char *name = listing->files[i].name;
        if (!is_gguf_model(name) || (n_fitting && !fits(name, reference->file)))
            continue;
        n++;
        if (names.len + strlen(name) > MAX_LISTED)
            n_left_out++;
        else
            str_printf(&names, "%s%s", names.len ? ", " : "", name);
    }
    if (n_left_out)
        str_printf(&names, " and %d more", n_left_out);
    enum status status;
    if (n == 0)
        status = error_set(error, ERROR_NOT_FOUND, "%s has no GGUF file", reference->repo);
    else if (n_fitting == 0)
        status = error_set(error, ERROR_NOT_FOUND, "%s has no GGUF file \"%.100s\", but %s",
                           reference->repo, reference->file, str_z(&names));
    else
        status = error_set(error, ERROR_INVALID,
                           "%s has %d fitting GGUF files; name one behind a colon: %s",
                           reference->repo, n, str_z(&names));
    str_done(&names);
    return status;
}

static enum status want_gguf(struct hub_listing *listing, const struct hub_reference *reference,
                             const char **main_file, struct error *error)
{
    size_t stem, other_stem;
    int n_fitting = 0, part, n_parts, n_others, n_found = 0;
    const char *first = NULL;
    for (int i = 0; i < listing->n; i++)
        if (fits(listing->files[i].name, reference->file)) {
            n_fitting++;
            *main_file = listing->files[i].name;
        }
    if (n_fitting != 1)
        return refuse_choice(listing, reference, n_fitting, error);
    split_part(*main_file, &stem, &part, &n_parts);
    for (int i = 0; i < listing->n; i++) {
        struct hub_file *file = &listing->files[i];
        split_part(file->name, &other_stem, &part, &n_others);
        file->is_wanted = n_parts == 1
                              ? file->name == *main_file
                              : other_stem == stem && n_others == n_parts &&
                                    memcmp(file->name, *main_file, stem) == 0 && part <= n_parts;
        n_found += file->is_wanted;
        if (file->is_wanted && part == 1)
            first = file->name;
    }
    if (n_found != n_parts)
        return error_set(error, ERROR_NOT_FOUND, "%s has %d of the %d parts of %s", reference->repo,
                         n_found, n_parts, *main_file);
    *main_file = first;
    return OK;
}

static bool is_weights(const char *name)
{
    return !strchr(name, '/') && ends_with(name, ".safetensors") &&
           !starts_with(name, "consolidated"); /* Mistral's second copy of the same weights */
}

static bool is_model_text(const char *name)
{
    return strcmp(name, "config.json") == 0 || strcmp(name, "generation_config.json") == 0 ||
           strcmp(name, "chat_template.jinja") == 0 ||
           strcmp(name, "model.safetensors.index.json") == 0 ||
           (starts_with(name, "tokenizer") && ends_with(name, ".json") && !strchr(name, '/'));
}

enum status hub_listing_choose(struct hub_listing *listing, const struct hub_reference *reference,
                               const char **main_file, struct error *error)
{
    bool has_gguf = false, has_weights = false;
    *main_file = NULL;
    for (int i = 0; i < listing->n; i++) {
        has_gguf = has_gguf || is_gguf_model(listing->files[i].name);
        has_weights = has_weights || is_weights(listing->files[i].name);
    }
    if (reference->file[0] || (has_gguf && !has_weights))
        return want_gguf(listing, reference, main_file, error);
    if (!has_weights)
        return error_set(error, ERROR_UNSUPPORTED,
                         "%s has neither safetensors nor GGUF files; csgl reads no other weights",
                         reference->repo);
    for (int i = 0; i < listing->n; i++) {
        struct hub_file *file = &listing->files[i];
        file->is_wanted = is_weights(file->name) || is_model_text(file->name);
    }
    return OK;
}
