/* A cache from short pieces to their ids: two-way sets of entries that are one cache line each, the
 * more recently used one first. One thread owns it. */
#ifndef CSGL_TOKENIZER_PIECE_CACHE_H
#define CSGL_TOKENIZER_PIECE_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PIECE_CACHE_MAX_BYTES = 30, PIECE_CACHE_MAX_IDS = 8 };

/* A piece as four words: its bytes, zeros, its length in byte 30. Byte 31 is 0. */
struct piece_key {
    uint64_t words[4];
};

/* `key`'s byte 31 holds the number of ids here; a length of 0 marks a free entry. */
struct piece_entry {
    struct piece_key key;
    int32_t ids[PIECE_CACHE_MAX_IDS];
};

struct piece_cache {
    void *memory;
    struct piece_entry *entries; /* [n_sets][2], aligned to the size of an entry */
    size_t n_sets;               /* a power of two, or 0: no cache */
};

/* Uses at most `bytes`, and 64 to align them; false if memory is exhausted. */
bool piece_cache_init(struct piece_cache *cache, size_t bytes);
void piece_cache_done(struct piece_cache *cache);

/* False if the piece (len > 0) is too long for the cache. */
bool piece_key_make(struct piece_key *key, const char *piece, size_t len);

/* Copies PIECE_CACHE_MAX_IDS ids, of which the first *n_ids count. */
bool piece_cache_get(struct piece_cache *cache, const struct piece_key *key,
                     int32_t ids[PIECE_CACHE_MAX_IDS], size_t *n_ids);

/* Keeps the ids of a piece that piece_cache_get did not find, unless they are too many. */
void piece_cache_put(struct piece_cache *cache, const struct piece_key *key, const int32_t *ids,
                     size_t n_ids);

#endif
