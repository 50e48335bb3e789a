/* Any bytes as the listing of either hub, and as a repository's name. The first byte chooses. */
#include "checkpoint/hub_listing.h"
#include "checkpoint_walk.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void check_listing(const struct hub_listing *listing)
{
    require(hub_is_commit(listing->commit));
    for (int i = 0; i < listing->n; i++) {
        const struct hub_file *file = &listing->files[i];
        require(file->name[0] && file->name[0] != '/' && strlen(file->name) <= HUB_FILE_MAX);
        require(strncmp(file->name, "../", 3) != 0 && !strstr(file->name, "/../"));
        require(!file->sha256 || hub_is_hex(file->sha256, 64));
        require(!file->sha1 || hub_is_hex(file->sha1, 40));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct hub_listing listing = {0};
    struct hub_reference reference;
    struct error error = {0};
    const char *main_file;
    if (!bytes)
        return 0;
    enum hub_source source = data[0] == 'm' ? HUB_MODELSCOPE : HUB_HUGGING_FACE;
    enum status status =
        hub_listing_parse(&listing, source, (const char *)data + 1, bytes - 1, &error);
    require_sentence(status, &error);
    if (status == OK) {
        check_listing(&listing);
        require(hub_reference_parse(&reference, source, "a/b:Q4_K_M", &error) == OK);
        require_sentence(hub_listing_choose(&listing, &reference, &main_file, &error), &error);
        reference.file[0] = '\0';
        require_sentence(hub_listing_choose(&listing, &reference, &main_file, &error), &error);
    }
    hub_listing_done(&listing);

    char *text = malloc(bytes);
    require(text != NULL);
    memcpy(text, data + 1, bytes - 1);
    text[bytes - 1] = '\0';
    status = hub_reference_parse(&reference, source, text, &error);
    require_sentence(status, &error);
    require(status != OK || strchr(reference.repo, '/'));
    free(text);
    return 0;
}
