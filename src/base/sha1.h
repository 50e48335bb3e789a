/* SHA-1 (FIPS 180-4), for the names that git gives to files. Not for anything that an attacker must
 * not be able to forge. */
#ifndef CSGL_BASE_SHA1_H
#define CSGL_BASE_SHA1_H

#include <stddef.h>
#include <stdint.h>

enum { SHA1_BLOCK = 64, SHA1_HEX = 41 /* with the NUL */ };

struct sha1 {
    /* private */
    uint32_t state[5];
    uint64_t bytes;
    uint8_t block[SHA1_BLOCK]; /* the bytes % SHA1_BLOCK that no whole block holds yet */
};

void sha1_init(struct sha1 *hash);
void sha1_update(struct sha1 *hash, const void *data, size_t bytes);

/* The digest in lower-case hexadecimal. The hash is used up: sha1_init starts another. */
void sha1_hex(struct sha1 *hash, char out[SHA1_HEX]);

#endif
