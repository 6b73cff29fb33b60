/* Card memory: granules from the driver, and a caching allocator over them. */
#include "device/cuda.h"

#include "base/error.h"

#include <pthread.h>
#include <stdlib.h>

/* One granule a piece, freed pieces by power of two. */
typedef struct piece {
    struct piece *next;
    sh_cu_address address;
} piece;

static struct {
    pthread_mutex_t lock;
    piece *lists[64];
    piece *shells; /* list nodes without a piece */
} memory = {.lock = PTHREAD_MUTEX_INITIALIZER};

static size_t round_up(size_t size)
{
    return size <= 512 ? 512 : (size_t)1 << (64 - __builtin_clzll(size - 1));
}

static shoal_err map_granule(size_t size, sh_cu_address *out)
{
    sh_cuda_card *card = sh_cuda_get();
    sh_cu_location here = {SH_CU_LOCATION_DEVICE, card->device};
    sh_cu_memory_kind kind = {.type = SH_CU_MEMORY_PINNED, .handles = SH_CU_HANDLE_FD, .location = here};
    sh_cu_access access = {.location = here, .flags = SH_CU_ACCESS_READ_WRITE};
    sh_cu_memory granule;
    shoal_err err = sh_cuda_result("allocate card memory", sh_cu.cuMemCreate(&granule, size, &kind, 0));
    if (err != SHOAL_OK) {
        return err;
    }
    sh_cu_address address = 0;
    err = sh_cuda_result("reserve addresses for card memory", sh_cu.cuMemAddressReserve(&address, size, 0, 0, 0));
    if (err == SHOAL_OK) {
        err = sh_cuda_result("map card memory", sh_cu.cuMemMap(address, size, 0, granule, 0));
    }
    if (err == SHOAL_OK) {
        err = sh_cuda_result("open card memory for access", sh_cu.cuMemSetAccess(address, size, &access, 1));
    }
    (void)sh_cu.cuMemRelease(granule); /* the mapping keeps it */
    *out = address;
    return err;
}

void *sh_cuda_alloc(size_t size)
{
    if (sh_cuda_check() != SHOAL_OK) {
        return NULL;
    }
    size = round_up(size);
    pthread_mutex_lock(&memory.lock);
    piece **list = &memory.lists[63 - __builtin_clzll(size)], *p = *list;
    static sh_cu_address open_slab, open_end;
    sh_cu_address got = 0;
    if (p) {
        *list = p->next;
        got = p->address;
        p->next = memory.shells;
        memory.shells = p;
    } else if (size <= (4u << 20)) {
        if (open_end - open_slab < size && map_granule(32u << 20, &open_slab) == SHOAL_OK) {
            open_end = open_slab + (32u << 20);
        }
        if (open_end - open_slab >= size) {
            got = open_slab;
            open_slab += size;
        }
    } else {
        (void)!map_granule((size + (2u << 20) - 1) & ~(size_t)((2u << 20) - 1), &got);
    }
    pthread_mutex_unlock(&memory.lock);
    return (void *)(uintptr_t)got;
}

void sh_cuda_free(void *data, size_t size)
{
    if (!data) {
        return;
    }
    pthread_mutex_lock(&memory.lock);
    piece *p = memory.shells ? memory.shells : malloc(sizeof *p);
    if (p) {
        memory.shells = p == memory.shells ? p->next : memory.shells;
        p->address = (sh_cu_address)(uintptr_t)data;
        piece **list = &memory.lists[63 - __builtin_clzll(round_up(size))];
        p->next = *list;
        *list = p;
    }
    pthread_mutex_unlock(&memory.lock);
}
