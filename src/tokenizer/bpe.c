#include "tokenizer/bpe.h"

#include <stdlib.h>
#include <string.h>

/* Up to this many bytes the lowest rank is found by looking at all of them; above, by a heap. */
enum { SCAN_MAX = 96 };

/* The heap starts with less than one entry a byte; each of the merges, fewer than bytes, takes one
 * entry out and puts at most two in. */
enum { HEAP_PER_BYTE = 2 };

/* One bit in twelve or so is set: that is how often a pair that is no merge is looked up all the
 * same. */
enum { FILTER_BITS_PER_SLOT = 8 };

/* Of a pair without a merge. */
static const bpe_value NO_VALUE = UINT64_MAX;
static const uint32_t NO_NODE = UINT32_MAX;

/* A symbol of a long piece. `value` is that of the pair it makes with the next one. */
struct bpe_node {
    bpe_value value;
    int32_t id;
    uint32_t next, previous;
};

static const size_t byte_pairs_bytes = sizeof(bpe_value) << 16;

enum status bpe_init(struct bpe *bpe, const struct vocabulary *vocabulary, struct error *error)
{
    *bpe = (struct bpe){
        .vocabulary = vocabulary, .unknown_id = -1, .last_result = -1, .has_all_bytes = true};
    for (int i = 0; i < 256; i++) {
        char byte = (char)i;
        bpe->byte_id[i] = vocabulary_find(vocabulary, &byte, 1, false);
        bpe->has_all_bytes = bpe->has_all_bytes && bpe->byte_id[i] >= 0;
    }
    bpe->byte_pairs = malloc(byte_pairs_bytes);
    if (!bpe->byte_pairs)
        return error_memory(error, byte_pairs_bytes);
    memset(bpe->byte_pairs, 0xFF, byte_pairs_bytes);
    return OK;
}

void bpe_done(struct bpe *bpe)
{
    free(bpe->slots);
    free(bpe->filter);
    free(bpe->byte_pairs);
    *bpe = (struct bpe){0};
}

static uint64_t hash_pair(int32_t left, int32_t right)
{
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    key *= 0x9E3779B97F4A7C15u;
    key ^= key >> 32;
    return key * 0xD6E8FEB86659FD93u;
}

/* The high bits of a hash choose its filter bit, the low ones its slot. */
static uint64_t filter_bit(const struct bpe *bpe, uint64_t hash)
{
    return (hash >> 32) & (bpe->n_slots * FILTER_BITS_PER_SLOT - 1);
}

/* The slot of a pair: its own, or the free one where it would go. */
static struct bpe_merge *find_slot(const struct bpe *bpe, int32_t left, int32_t right,
                                   uint64_t hash)
{
    for (size_t i = hash & (bpe->n_slots - 1);; i = (i + 1) & (bpe->n_slots - 1)) {
        struct bpe_merge *m = &bpe->slots[i];
        if ((m->left == left && m->right == right) || m->left < 0)
            return m;
    }
}

static bpe_value pair_value(const struct bpe *bpe, int32_t left, int32_t right)
{
    if (!bpe->n_slots)
        return NO_VALUE;
    uint64_t hash = hash_pair(left, right), bit = filter_bit(bpe, hash);
    if (!(bpe->filter[bit / 64] >> (bit % 64) & 1))
        return NO_VALUE;
    return find_slot(bpe, left, right, hash)->value;
}

static void enter(struct bpe *bpe, const struct bpe_merge *merge)
{
    uint64_t hash = hash_pair(merge->left, merge->right), bit = filter_bit(bpe, hash);
    struct bpe_merge *slot = find_slot(bpe, merge->left, merge->right, hash);
    bpe->n_used += slot->left < 0;
    *slot = *merge;
    bpe->filter[bit / 64] |= (uint64_t)1 << (bit % 64);
}

size_t bpe_memory(const struct bpe *bpe)
{
    return bpe->n_slots * (sizeof *bpe->slots + FILTER_BITS_PER_SLOT / 8) + byte_pairs_bytes;
}

static bool grow(struct bpe *bpe)
{
    struct bpe old = *bpe;
    bpe->n_slots = old.n_slots ? old.n_slots * 2 : 1024;
    bpe->n_used = 0;
    bpe->slots = malloc(bpe->n_slots * sizeof *bpe->slots);
    bpe->filter = calloc(bpe->n_slots * FILTER_BITS_PER_SLOT / 64, sizeof *bpe->filter);
    if (!bpe->slots || !bpe->filter) {
        free(bpe->slots);
        free(bpe->filter);
        *bpe = old;
        return false;
    }
    for (size_t i = 0; i < bpe->n_slots; i++)
        bpe->slots[i] = (struct bpe_merge){-1, -1, NO_VALUE};
    for (size_t i = 0; i < old.n_slots; i++)
        if (old.slots[i].left >= 0)
            enter(bpe, &old.slots[i]);
    free(old.slots);
    free(old.filter);
    return true;
}

static void note_byte_pair(struct bpe *bpe, const struct bpe_merge *merge)
{
    size_t left_len, right_len;
    const char *left = vocabulary_bytes(bpe->vocabulary, merge->left, &left_len);
    const char *right = vocabulary_bytes(bpe->vocabulary, merge->right, &right_len);
    if (left && right && left_len == 1 && right_len == 1)
        bpe->byte_pairs[(unsigned char)left[0] << 8 | (unsigned char)right[0]] = merge->value;
}

/* The token that a merge makes. Most vocabularies list them in the order of merges, so the one
 * behind the last is tried first. */
static int32_t find_result(const struct bpe *bpe, const char *bytes, size_t len)
{
    int32_t guess = bpe->last_result + 1;
    size_t guess_len;
    const char *guess_bytes = vocabulary_bytes(bpe->vocabulary, guess, &guess_len);
    if (guess_bytes && guess_len == len && memcmp(guess_bytes, bytes, len) == 0 &&
        !vocabulary_is_verbatim(bpe->vocabulary, guess))
        return guess;
    return vocabulary_find(bpe->vocabulary, bytes, len, false);
}

/* Looks up the three tokens of a merge; out->left stays -1 if one has a character outside the
 * byte-level alphabet, for then no text can ever lead to this merge. */
static enum status resolve_merge(const struct bpe *bpe, const char *left, size_t left_len,
                                 const char *right, size_t right_len, struct str *scratch,
                                 struct bpe_merge *out, struct error *error)
{
    *out = (struct bpe_merge){-1, -1, NO_VALUE};
    str_clear(scratch);
    bool is_written = vocabulary_decode_written(scratch, left, left_len);
    size_t left_bytes = scratch->len;
    is_written = is_written && vocabulary_decode_written(scratch, right, right_len);
    if (scratch->failed)
        return error_memory(error, scratch->len);
    if (!is_written)
        return OK;
    const char *both = str_z(scratch);
    out->left = vocabulary_find(bpe->vocabulary, both, left_bytes, false);
    out->right =
        vocabulary_find(bpe->vocabulary, both + left_bytes, scratch->len - left_bytes, false);
    int32_t result = find_result(bpe, both, scratch->len);
    if (out->left < 0 || out->right < 0 || result < 0)
        return error_set(error, ERROR_INVALID,
                         "merge %zu, \"%.*s\" with \"%.*s\", makes or needs a token that is not in "
                         "the vocabulary",
                         bpe->n_merges, left_len > 64 ? 64 : (int)left_len, left,
                         right_len > 64 ? 64 : (int)right_len, right);
    out->value = (bpe_value)bpe->n_merges << 32 | (uint32_t)result;
    return OK;
}

enum status bpe_add_merge(struct bpe *bpe, const char *left, size_t left_len, const char *right,
                          size_t right_len, struct str *scratch, struct error *error)
{
    if (bpe->n_merges == BPE_MAX_MERGES)
        return error_set(error, ERROR_LIMIT, "the tokenizer has more than %d merges",
                         BPE_MAX_MERGES);
    struct bpe_merge merge;
    enum status status =
        resolve_merge(bpe, left, left_len, right, right_len, scratch, &merge, error);
    if (status != OK)
        return status;
    bpe->n_merges++;
    if (merge.left < 0)
        return OK;
    if (bpe->n_used + 1 > bpe->n_slots / 4 * 3 && !grow(bpe))
        return error_memory(error, bpe->n_slots * 2 * sizeof merge);
    enter(bpe, &merge);
    note_byte_pair(bpe, &merge);
    bpe->last_result = (int32_t)(uint32_t)merge.value;
    return OK;
}

static bool reserve(struct bpe_scratch *s, size_t n)
{
    if (n <= s->cap)
        return true;
    bpe_scratch_done(s);
    size_t cap = n < 4096 ? 4096 : n;
    s->nodes = malloc(cap * sizeof *s->nodes);
    s->heap = malloc(cap * HEAP_PER_BYTE * sizeof *s->heap);
    s->ids = malloc(cap * sizeof *s->ids);
    if (!s->nodes || !s->heap || !s->ids) {
        bpe_scratch_done(s);
        return false;
    }
    s->cap = cap;
    return true;
}

void bpe_scratch_done(struct bpe_scratch *s)
{
    free(s->nodes);
    free(s->heap);
    free(s->ids);
    *s = (struct bpe_scratch){0};
}

/* One symbol a byte into ids; bytes without a token become the unknown token, or nothing. */
static size_t first_symbols(const struct bpe *bpe, const unsigned char *piece, size_t len,
                            int32_t *ids)
{
    size_t n = 0;
    bool after_unknown = false;
    for (size_t i = 0; i < len; i++) {
        int32_t id = bpe->byte_id[piece[i]];
        bool is_unknown = id < 0;
        if (is_unknown)
            id = after_unknown && bpe->fuse_unknown ? -1 : bpe->unknown_id;
        if (id >= 0)
            ids[n++] = id;
        after_unknown = is_unknown;
    }
    return n;
}

/* Short pieces: values[i] belongs to the pair (i, i + 1); both arrays close up after each merge. */
static size_t merge_by_scan(const struct bpe *bpe, int32_t *ids, bpe_value *values, size_t n)
{
    while (n > 1) {
        size_t best = 0;
        bpe_value least = values[0];
        for (size_t i = 1; i + 1 < n; i++) {
            best = values[i] < least ? i : best;
            least = values[i] < least ? values[i] : least;
        }
        if (least == NO_VALUE)
            break;
        ids[best] = (int32_t)(uint32_t)least;
        n--;
        for (size_t i = best + 1; i < n; i++)
            ids[i] = ids[i + 1];
        for (size_t i = best; i + 1 < n; i++)
            values[i] = values[i + 1];
        if (best + 1 < n)
            values[best] = pair_value(bpe, ids[best], ids[best + 1]);
        if (best > 0)
            values[best - 1] = pair_value(bpe, ids[best - 1], ids[best]);
    }
    return n;
}

static void sift_down(uint64_t *heap, size_t n, size_t i)
{
    uint64_t value = heap[i];
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && heap[child + 1] < heap[child])
            child++;
        if (heap[child] >= value)
            break;
        heap[i] = heap[child];
    }
    heap[i] = value;
}

static void heap_push(uint64_t *heap, size_t *n, uint64_t value)
{
    size_t i = (*n)++;
    while (i > 0 && heap[(i - 1) / 2] > value) {
        heap[i] = heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    heap[i] = value;
}

static uint64_t heap_pop(uint64_t *heap, size_t *n)
{
    uint64_t top = heap[0];
    heap[0] = heap[--*n];
    if (*n)
        sift_down(heap, *n, 0);
    return top;
}

static uint64_t heap_key(bpe_value value, uint32_t at)
{
    return value >> 32 << 32 | at;
}

static size_t build_heap(const struct bpe *bpe, struct bpe_scratch *s, size_t n)
{
    size_t n_heap = 0;
    for (size_t i = 0; i < n; i++) {
        struct bpe_node *node = &s->nodes[i];
        node->id = s->ids[i];
        node->previous = i ? (uint32_t)i - 1 : NO_NODE;
        node->next = i + 1 < n ? (uint32_t)i + 1 : NO_NODE;
        node->value = i + 1 < n ? pair_value(bpe, s->ids[i], s->ids[i + 1]) : NO_VALUE;
        if (node->value != NO_VALUE)
            s->heap[n_heap++] = heap_key(node->value, (uint32_t)i);
    }
    for (size_t i = n_heap / 2; i-- > 0;)
        sift_down(s->heap, n_heap, i);
    return n_heap;
}

static void update_pair(const struct bpe *bpe, struct bpe_scratch *s, size_t *n_heap, uint32_t at)
{
    struct bpe_node *node = &s->nodes[at];
    node->value =
        node->next == NO_NODE ? NO_VALUE : pair_value(bpe, node->id, s->nodes[node->next].id);
    if (node->value != NO_VALUE)
        heap_push(s->heap, n_heap, heap_key(node->value, at));
}

/* Long pieces: a heap of (rank, position). An entry whose pair has changed since no longer has the
 * rank that its node has (a merge only makes pairs longer, so a pair never comes back), and is
 * passed over. */
static size_t merge_by_heap(const struct bpe *bpe, struct bpe_scratch *s, size_t n)
{
    size_t n_heap = build_heap(bpe, s, n);
    while (n_heap) {
        uint64_t top = heap_pop(s->heap, &n_heap);
        uint32_t at = (uint32_t)top;
        struct bpe_node *node = &s->nodes[at];
        if (heap_key(node->value, at) != top)
            continue;
        struct bpe_node *gone = &s->nodes[node->next];
        node->id = (int32_t)(uint32_t)node->value;
        node->next = gone->next;
        gone->value = NO_VALUE;
        if (node->next != NO_NODE)
            s->nodes[node->next].previous = at;
        update_pair(bpe, s, &n_heap, at);
        if (node->previous != NO_NODE)
            update_pair(bpe, s, &n_heap, node->previous);
    }
    size_t n_ids = 0;
    for (uint32_t i = n ? 0 : NO_NODE; i != NO_NODE; i = s->nodes[i].next)
        s->ids[n_ids++] = s->nodes[i].id;
    return n_ids;
}

enum status bpe_encode(const struct bpe *bpe, struct bpe_scratch *s, const char *piece, size_t len,
                       const int32_t **ids, size_t *n_ids, struct error *error)
{
    if (!reserve(s, len))
        return error_memory(error, len * sizeof(uint64_t) * HEAP_PER_BYTE);
    *ids = s->ids;
    if (bpe->ignore_merges) {
        s->ids[0] = vocabulary_find(bpe->vocabulary, piece, len, false);
        *n_ids = 1;
        if (s->ids[0] >= 0)
            return OK;
    }
    const unsigned char *bytes = (const unsigned char *)piece;
    size_t n = first_symbols(bpe, bytes, len, s->ids);
    if (n > SCAN_MAX) {
        *n_ids = merge_by_heap(bpe, s, n);
        return OK;
    }
    bpe_value values[SCAN_MAX];
    for (size_t i = 0; i + 1 < n; i++)
        values[i] = bpe->has_all_bytes ? bpe->byte_pairs[bytes[i] << 8 | bytes[i + 1]]
                                       : pair_value(bpe, s->ids[i], s->ids[i + 1]);
    *n_ids = merge_by_scan(bpe, s->ids, values, n);
    return OK;
}
