#include "base/sha1.h"

#include <stdio.h>
#include <string.h>

static uint32_t rotate(uint32_t x, int n)
{
    return (x << n) | (x >> (32 - n));
}

/* FIPS 180-4, 4.1.1 and 4.2.1: the function and the constant of round `i`. */
static uint32_t mix(int i, uint32_t b, uint32_t c, uint32_t d)
{
    if (i < 20)
        return ((b & c) ^ (~b & d)) + 0x5a827999;
    if (i < 40)
        return (b ^ c ^ d) + 0x6ed9eba1;
    if (i < 60)
        return ((b & c) ^ (b & d) ^ (c & d)) + 0x8f1bbcdc;
    return (b ^ c ^ d) + 0xca62c1d6;
}

static void take_block(uint32_t state[5], const uint8_t *p)
{
    uint32_t w[80], s[5];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 |
               (uint32_t)p[4 * i + 2] << 8 | (uint32_t)p[4 * i + 3];
    for (int i = 16; i < 80; i++)
        w[i] = rotate(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
    memcpy(s, state, sizeof s);
    for (int i = 0; i < 80; i++) {
        uint32_t first = rotate(s[0], 5) + mix(i, s[1], s[2], s[3]) + s[4] + w[i];
        memmove(s + 1, s, 4 * sizeof *s);
        s[2] = rotate(s[2], 30);
        s[0] = first;
    }
    for (int i = 0; i < 5; i++)
        state[i] += s[i];
}

void sha1_init(struct sha1 *hash)
{
    *hash = (struct sha1){.state = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0}};
}

void sha1_update(struct sha1 *hash, const void *data, size_t bytes)
{
    const uint8_t *p = data;
    size_t held = (size_t)(hash->bytes % SHA1_BLOCK);
    hash->bytes += bytes;
    while (bytes) {
        size_t n = bytes < SHA1_BLOCK - held ? bytes : SHA1_BLOCK - held;
        memcpy(hash->block + held, p, n);
        p += n;
        bytes -= n;
        held = (held + n) % SHA1_BLOCK;
        if (held == 0)
            take_block(hash->state, hash->block);
    }
}

void sha1_hex(struct sha1 *hash, char out[SHA1_HEX])
{
    static const uint8_t padding[SHA1_BLOCK] = {0x80};
    uint8_t length[8];
    for (int i = 0; i < 8; i++)
        length[i] = (uint8_t)((hash->bytes * 8) >> (56 - 8 * i));
    size_t held = (size_t)(hash->bytes % SHA1_BLOCK);
    sha1_update(hash, padding, (held < 56 ? 56 : 120) - held);
    sha1_update(hash, length, sizeof length);
    for (int i = 0; i < 5; i++)
        snprintf(out + 8 * (size_t)i, 9, "%08x", (unsigned)hash->state[i]);
}
