#include "base/map.h"

#include <stdlib.h>
#include <string.h>

/* Eight bytes at a time, each folded by a 64x64->128 multiply (the idea of wyhash). */
uint64_t hash_bytes(const void *data, size_t len)
{
    const unsigned char *p = data;
    uint64_t h = 0x9E3779B97F4A7C15u ^ len;
    while (len >= 8) {
        uint64_t word;
        memcpy(&word, p, 8);
        unsigned __int128 m = (unsigned __int128)(h ^ word) * 0xD6E8FEB86659FD93u;
        h = (uint64_t)m ^ (uint64_t)(m >> 64);
        p += 8;
        len -= 8;
    }
    uint64_t word = 0;
    memcpy(&word, p, len);
    unsigned __int128 m = (unsigned __int128)(h ^ word ^ 0xA0761D6478BD642Fu) * 0xE7037ED1A0B428DBu;
    return (uint64_t)m ^ (uint64_t)(m >> 64);
}

static struct map_entry *find(struct map_entry *entries, size_t cap, const char *key, size_t len,
                              uint64_t hash)
{
    size_t i = hash & (cap - 1);
    while (entries[i].key && !(entries[i].hash == hash && entries[i].len == len &&
                               memcmp(entries[i].key, key, len) == 0))
        i = (i + 1) & (cap - 1);
    return &entries[i];
}

static bool grow(struct map *map)
{
    size_t cap = map->cap ? map->cap * 2 : 16;
    struct map_entry *entries = calloc(cap, sizeof *entries);
    if (!entries)
        return false;
    for (size_t i = 0; i < map->cap; i++) {
        const struct map_entry *e = &map->entries[i];
        if (e->key)
            *find(entries, cap, e->key, e->len, e->hash) = *e;
    }
    free(map->entries);
    map->entries = entries;
    map->cap = cap;
    return true;
}

bool map_put(struct map *map, const char *key, size_t len, uint64_t value)
{
    if (map->n + 1 > map->cap / 4 * 3 && !grow(map))
        return false;
    uint64_t hash = hash_bytes(key, len);
    struct map_entry *e = find(map->entries, map->cap, key, len, hash);
    if (!e->key) {
        *e = (struct map_entry){.key = key, .len = len, .hash = hash};
        map->n++;
    }
    e->value = value;
    return true;
}

bool map_get(const struct map *map, const char *key, size_t len, uint64_t *value)
{
    if (!map->cap)
        return false;
    const struct map_entry *e = find(map->entries, map->cap, key, len, hash_bytes(key, len));
    if (!e->key)
        return false;
    *value = e->value;
    return true;
}

void map_done(struct map *map)
{
    free(map->entries);
    *map = (struct map){0};
}
