/* A hash map from byte strings to 64-bit values. Keys are borrowed: their owner outlives the map.
 */
#ifndef CSGL_BASE_MAP_H
#define CSGL_BASE_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct map_entry {
    const char *key;
    size_t len;
    uint64_t value;
    uint64_t hash;
};

/* Zero-initialise, map_put, map_done. Open addressing, at most 3/4 full. */
struct map {
    struct map_entry *entries;
    size_t n, cap;
};

/* Inserts or replaces; false if memory is exhausted. */
bool map_put(struct map *map, const char *key, size_t len, uint64_t value);
bool map_get(const struct map *map, const char *key, size_t len, uint64_t *value);
void map_done(struct map *map);

uint64_t hash_bytes(const void *data, size_t len);

#endif
