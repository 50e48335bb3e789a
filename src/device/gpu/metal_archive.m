#include "device/gpu/metal_archive.h"
#include "device/gpu/metal_kernels.h"
#include "device/gpu/metal_text.h"

#include "base/cache_file.h"
#include "base/log.h"
#include "base/sha256.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The archive's name says what its kernels were made of and for. */
static void name_archive(id<MTLDevice> device, char out[96])
{
    struct sha256 hash;
    char hex[SHA256_HEX];
    const char *gpu = device.name.UTF8String;
    const char *system = [NSProcessInfo processInfo].operatingSystemVersionString.UTF8String;
    sha256_init(&hash);
    for (int i = 0; i < metal_n_sources; i++)
        sha256_update(&hash, metal_sources[i].text, *metal_sources[i].bytes);
    sha256_update(&hash, gpu, strlen(gpu));
    sha256_update(&hash, system, strlen(system));
    sha256_hex(&hash, hex);
    snprintf(out, 96, "metal-%.32s.archive", hex);
}

void metal_archive_open(struct metal_archive *a, id<MTLDevice> device)
{
    struct error error;
    char name[96];
    NSError *cause = nil;
    name_archive(device, name);
    if (cache_file_path(&a->path, name, &error) != OK) {
        log_debug("compiled kernels are not kept: %s", error.message);
        return;
    }
    MTLBinaryArchiveDescriptor *wanted = [MTLBinaryArchiveDescriptor new];
    if (cache_file_check(str_z(&a->path), &error) == OK) {
        wanted.url = metal_url(str_z(&a->path));
        a->archive = [device newBinaryArchiveWithDescriptor:wanted error:&cause];
    }
    if (a->archive)
        return;
    wanted.url = nil;
    a->archive = [device newBinaryArchiveWithDescriptor:wanted error:&cause];
    a->is_new = a->archive != nil;
}

void metal_archive_use(struct metal_archive *a, MTLComputePipelineDescriptor *pipeline)
{
    NSError *ignored = nil;
    if (!a->archive)
        return;
    if (a->is_new)
        [a->archive addComputePipelineFunctionsWithDescriptor:pipeline error:&ignored];
    pipeline.binaryArchives = @[ a->archive ];
}

/* Written beside its place and moved there, so that no other process reads half of it. */
void metal_archive_keep(struct metal_archive *a)
{
    struct str aside = {0};
    NSError *cause = nil;
    if (!a->is_new)
        return;
    a->is_new = false;
    str_printf(&aside, "%s.%ld", str_z(&a->path), (long)getpid());
    if (![a->archive serializeToURL:metal_url(str_z(&aside)) error:&cause] ||
        rename(str_z(&aside), str_z(&a->path)) != 0) {
        char text[256];
        metal_text(cause, text, sizeof text);
        log_debug("compiled kernels are not kept: %s", text);
        unlink(str_z(&aside));
    }
    str_done(&aside);
}

/* An object is let go by its pointer's last value. */
void metal_archive_close(struct metal_archive *a)
{
    a->archive = nil;
    str_done(&a->path);
}
