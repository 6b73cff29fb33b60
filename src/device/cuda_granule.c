#include "device/cuda_memory.h"

#include "base/error.h"
#include "shm/block.h"

#include <stdlib.h>

static sh_cu_location here(void)
{
    return (sh_cu_location){SH_CU_LOCATION_DEVICE, sh_cuda_the_card()->device};
}

/* Rounds up to the driver's granularity, which is asked for once. Under SH_CARD_LOCK_DRIVER. */
static shoal_err round_to_granularity(size_t *size, const sh_cu_memory_kind *kind)
{
    static size_t granularity;
    if (granularity == 0) {
        SH_TRY(sh_cuda_result("cannot ask for the granularity of GPU memory",
                              sh_cu.cuMemGetAllocationGranularity(&granularity, kind, SH_CU_GRANULARITY_MINIMUM)));
    }
    *size = (*size + granularity - 1) / granularity * granularity;
    return SHOAL_OK;
}

static void unmap(const sh_cuda_granule *g)
{
    (void)sh_cu.cuMemUnmap(g->address, g->size);
    (void)sh_cu.cuMemAddressFree(g->address, g->size);
}

static shoal_err map(sh_cuda_granule *g)
{
    sh_cu_access access = {.location = here(), .flags = SH_CU_ACCESS_READ_WRITE};
    SH_TRY(sh_cuda_result("cannot reserve addresses for GPU memory",
                          sh_cu.cuMemAddressReserve(&g->address, g->size, 0, 0, 0)));
    shoal_err err = sh_cuda_result("cannot map GPU memory", sh_cu.cuMemMap(g->address, g->size, 0, g->memory, 0));
    if (err != SHOAL_OK) {
        (void)sh_cu.cuMemAddressFree(g->address, g->size);
        return err;
    }
    err = sh_cuda_result("cannot open GPU memory for access", sh_cu.cuMemSetAccess(g->address, g->size, &access, 1));
    if (err != SHOAL_OK) {
        unmap(g);
    }
    return err;
}

/* Gets the memory, from an fd unless it is -1. */
static shoal_err get_memory(sh_cuda_granule *g, int fd)
{
    if (fd >= 0) {
        return sh_cuda_result("cannot open GPU memory of another process",
                              sh_cu.cuMemImportFromShareableHandle(&g->memory, (void *)(intptr_t)fd, SH_CU_HANDLE_FD));
    }
    sh_cu_memory_kind kind = {.type = SH_CU_MEMORY_PINNED, .handles = SH_CU_HANDLE_FD, .location = here()};
    SH_TRY(round_to_granularity(&g->size, &kind));
    return sh_cuda_result("cannot allocate GPU memory", sh_cu.cuMemCreate(&g->memory, g->size, &kind, 0));
}

static shoal_err get_and_map(sh_cuda_granule *g, int fd)
{
    SH_TRY(get_memory(g, fd));
    shoal_err err = map(g);
    if (err != SHOAL_OK) {
        (void)sh_cu.cuMemRelease(g->memory);
    }
    return err;
}

static shoal_err make(size_t size, int fd, sh_cuda_granule **out_granule)
{
    sh_cuda_granule *fresh = calloc(1, sizeof *fresh);
    if (!fresh) {
        return sh_fail(SHOAL_ENOMEM, "no memory to describe %zu bytes of GPU memory", size);
    }
    fresh->size = size;
    int mode = sh_cuda_relax();
    shoal_err err = get_and_map(fresh, fd);
    sh_cuda_restrict(mode);
    if (err != SHOAL_OK) {
        free(fresh);
        return err;
    }
    *out_granule = fresh;
    return SHOAL_OK;
}

shoal_err sh_cuda_granule_make(size_t size, sh_cuda_granule **out_granule)
{
    return make(size, -1, out_granule);
}

shoal_err sh_cuda_granule_import(int fd, size_t size, sh_cuda_granule **out_granule)
{
    return make(size, fd, out_granule);
}

size_t sh_cuda_granules_drop(sh_cuda_granule *list)
{
    size_t bytes = 0;
    for (sh_cuda_granule *g = list, *next; g; g = next) {
        next = g->next;
        bytes += g->size;
        sh_block_release(g->ledger);
        int mode = sh_cuda_relax();
        unmap(g);
        (void)sh_cu.cuMemRelease(g->memory);
        sh_cuda_restrict(mode);
        free(g);
    }
    return bytes;
}

void sh_cuda_pinned_drop(void *data)
{
    int mode = sh_cuda_relax();
    (void)sh_cuda_result("cannot free pinned memory", sh_cu.cuMemFreeHost(data));
    sh_cuda_restrict(mode);
}
