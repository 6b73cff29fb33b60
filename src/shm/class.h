/* Size classes, and the geometry of their spans. Class 0 is for objects that recovery must find by walking (locks and
 * the like); the others grow in steps of at most a quarter. Pure arithmetic: nothing here is read from shared
 * memory. */
#ifndef SH_SHM_CLASS_H
#define SH_SHM_CLASS_H

#include "shm/layout.h"

#include <stdbool.h>
#include <stdint.h>

#define SH_CLASS_SYNC 0
#define SH_SYNC_SIZE 128u
#define SH_SIZE_MAX (UINT64_C(1) << 40)

/* Returns the class for a size of 0 to SH_SIZE_MAX. */
static inline uint32_t sh_class_of(uint64_t size)
{
    if (size <= 256) {
        return size <= 64 ? 1 : (uint32_t)((size + 63) / 64);
    }
    /* 2^k < size <= 2^(k+1), divided into four: (size - 1) >> (k - 2) is 4 to 7. */
    uint32_t k = 63u - (uint32_t)__builtin_clzll(size - 1);
    uint32_t quarter = (uint32_t)((size - 1) >> (k - 2)) & 3u;
    return 5 + (k - 8) * 4 + quarter;
}

static inline uint64_t sh_class_size(uint32_t klass)
{
    if (klass == SH_CLASS_SYNC) {
        return SH_SYNC_SIZE;
    }
    if (klass <= 4) {
        return klass * UINT64_C(64);
    }
    return (UINT64_C(64) << ((klass - 5) / 4)) * (5 + (klass - 5) % 4);
}

static inline uint32_t sh_class_blocks(uint32_t klass)
{
    uint64_t size = sh_class_size(klass);
    return size <= 4096 ? (uint32_t)(65536 / size) : size <= 65536 ? 16 : size <= (1u << 20) ? 4 : 1;
}

/* In these classes, memory is committed for each block separately, by its requested size. */
static inline bool sh_class_is_large(uint32_t klass)
{
    return klass >= SH_CLASSES_SMALL - 4; /* above 32 KiB */
}

static inline uint32_t sh_class_map_words(uint32_t klass)
{
    return (sh_class_blocks(klass) + 63) / 64;
}

/* The metas of larger blocks have a cache line each: different processes may use neighbours. Those of small blocks are
 * packed: a process claims them by the line. */
static inline uint64_t sh_class_meta_stride(uint32_t klass)
{
    return sh_class_size(klass) > 4096 ? SH_CACHE_LINE : sizeof(sh_meta_shm);
}

/* Offsets in a span: map | metas | (large: committed bytes of each block) | blocks. */
static inline uint64_t sh_span_meta_at(uint32_t klass)
{
    return (sh_class_map_words(klass) * UINT64_C(8) + 63) / 64 * 64;
}

static inline uint64_t sh_span_committed_at(uint32_t klass)
{
    return sh_span_meta_at(klass) + sh_class_blocks(klass) * sh_class_meta_stride(klass);
}

static inline uint64_t sh_span_data_at(uint32_t klass)
{
    uint64_t end = sh_span_committed_at(klass) + (sh_class_is_large(klass) ? sh_class_blocks(klass) * UINT64_C(8) : 0);
    uint64_t align = sh_class_size(klass) >= 16384 ? SH_PAGE : 64;
    return (end + align - 1) / align * align;
}

static inline uint64_t sh_span_bytes(uint32_t klass)
{
    uint64_t end = sh_span_data_at(klass) + sh_class_blocks(klass) * sh_class_size(klass);
    return (end + SH_UNIT - 1) / SH_UNIT * SH_UNIT;
}

/* Returns how many bytes are committed when a span of the class is made: all of it, or only the head. */
static inline uint64_t sh_span_head_bytes(uint32_t klass)
{
    uint64_t end = sh_class_is_large(klass) ? sh_span_data_at(klass)
                                            : sh_span_data_at(klass) + sh_class_blocks(klass) * sh_class_size(klass);
    return (end + SH_PAGE - 1) / SH_PAGE * SH_PAGE;
}

#endif
