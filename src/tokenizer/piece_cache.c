#include "tokenizer/piece_cache.h"

#include <stdlib.h>
#include <string.h>

enum { LEN_SHIFT = 48, COUNT_SHIFT = 56 };

bool piece_cache_init(struct piece_cache *cache, size_t bytes)
{
    *cache = (struct piece_cache){0};
    size_t set_bytes = 2 * sizeof(struct piece_entry);
    if (bytes < set_bytes)
        return true;
    size_t n_sets = 1;
    while (n_sets * 2 <= bytes / set_bytes)
        n_sets *= 2;
    /* calloc's zero pages cost nothing until they are used. */
    cache->memory = calloc(n_sets * set_bytes + sizeof(struct piece_entry), 1);
    if (!cache->memory)
        return false;
    uintptr_t at = (uintptr_t)cache->memory;
    size_t skip =
        (sizeof(struct piece_entry) - at % sizeof(struct piece_entry)) % sizeof(struct piece_entry);
    cache->entries = (struct piece_entry *)(void *)((char *)cache->memory + skip);
    cache->n_sets = n_sets;
    return true;
}

void piece_cache_done(struct piece_cache *cache)
{
    free(cache->memory);
    *cache = (struct piece_cache){0};
}

static uint64_t load8(const char *p)
{
    uint64_t word;
    memcpy(&word, p, sizeof word);
    return word;
}

/* 1 to 7 bytes as a word with zeros above, by loads that may overlap but stay inside. */
static uint64_t load_part(const char *piece, size_t n)
{
    const unsigned char *p = (const unsigned char *)piece;
    if (n >= 4) {
        uint32_t low, high;
        memcpy(&low, p, 4);
        memcpy(&high, p + n - 4, 4);
        return low | (uint64_t)high << (8 * (n - 4));
    }
    return p[0] | (uint64_t)p[n >> 1] << (8 * (n >> 1)) | (uint64_t)p[n - 1] << (8 * (n - 1));
}

bool piece_key_make(struct piece_key *key, const char *piece, size_t len)
{
    if (len > PIECE_CACHE_MAX_BYTES)
        return false;
    *key = (struct piece_key){{0}};
    size_t whole = len / 8, rest = len % 8;
    for (size_t i = 0; i < whole; i++)
        key->words[i] = load8(piece + 8 * i);
    if (rest)
        key->words[whole] = load_part(piece + 8 * whole, rest);
    key->words[3] |= (uint64_t)len << LEN_SHIFT;
    return true;
}

static uint64_t fold(uint64_t a, uint64_t b)
{
    unsigned __int128 m = (unsigned __int128)a * b;
    return (uint64_t)m ^ (uint64_t)(m >> 64);
}

static struct piece_entry *set_of(const struct piece_cache *cache, const struct piece_key *key)
{
    uint64_t hash = fold(key->words[0] ^ 0x9E3779B97F4A7C15u, key->words[3] ^ 0xD6E8FEB86659FD93u) ^
                    fold(key->words[1] ^ 0xA0761D6478BD642Fu, key->words[2] ^ 0xE7037ED1A0B428DBu);
    return &cache->entries[2 * (hash & (cache->n_sets - 1))];
}

static bool is_key(const struct piece_entry *entry, const struct piece_key *key)
{
    const uint64_t *a = entry->key.words, *b = key->words;
    uint64_t last = (a[3] ^ b[3]) << (64 - COUNT_SHIFT);
    return ((a[0] ^ b[0]) | (a[1] ^ b[1]) | (a[2] ^ b[2]) | last) == 0;
}

bool piece_cache_get(struct piece_cache *cache, const struct piece_key *key,
                     int32_t ids[PIECE_CACHE_MAX_IDS], size_t *n_ids)
{
    struct piece_entry *set = set_of(cache, key);
    if (!is_key(&set[0], key)) {
        if (!is_key(&set[1], key))
            return false;
        struct piece_entry used = set[1];
        set[1] = set[0];
        set[0] = used;
    }
    memcpy(ids, set[0].ids, sizeof set[0].ids);
    *n_ids = (size_t)(set[0].key.words[3] >> COUNT_SHIFT);
    return true;
}

void piece_cache_put(struct piece_cache *cache, const struct piece_key *key, const int32_t *ids,
                     size_t n_ids)
{
    if (n_ids > PIECE_CACHE_MAX_IDS)
        return;
    struct piece_entry *set = set_of(cache, key);
    set[1] = set[0];
    set[0].key = *key;
    set[0].key.words[3] |= (uint64_t)n_ids << COUNT_SHIFT;
    memcpy(set[0].ids, ids, n_ids * sizeof *ids);
}
