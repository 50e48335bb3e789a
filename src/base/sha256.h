/* SHA-256 (FIPS 180-4), for the digests of downloaded files. */
#ifndef CSGL_BASE_SHA256_H
#define CSGL_BASE_SHA256_H

#include <stddef.h>
#include <stdint.h>

enum { SHA256_BLOCK = 64, SHA256_HEX = 65 /* with the NUL */ };

struct sha256 {
    /* private */
    uint32_t state[8];
    uint64_t bytes;
    uint8_t block[SHA256_BLOCK]; /* the bytes % SHA256_BLOCK that no whole block holds yet */
};

void sha256_init(struct sha256 *hash);
void sha256_update(struct sha256 *hash, const void *data, size_t bytes);

/* The digest in lower-case hexadecimal. The hash is used up: sha256_init starts another. */
void sha256_hex(struct sha256 *hash, char out[SHA256_HEX]);

#endif
