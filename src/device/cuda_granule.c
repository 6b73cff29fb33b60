#include "device/cuda_memory.h"

#include "base/error.h"

#include <stdlib.h>

static sh_cu_location here(void)
{
    return (sh_cu_location){SH_CU_LOCATION_DEVICE, sh_cuda_the_card()->device};
}

static sh_cu_memory_kind shareable(void)
{
    return (sh_cu_memory_kind){.type = SH_CU_MEMORY_PINNED, .handles = SH_CU_HANDLE_FD, .location = here()};
}

/* Rounds up to the driver's granularity, which is asked for once. Under the lock of the allocator. */
static shoal_err round_to_granularity(size_t *size)
{
    static size_t granularity;
    if (granularity == 0) {
        sh_cu_memory_kind kind = shareable();
        shoal_err err =
            sh_cuda_result("cannot ask for the granularity of GPU memory",
                           sh_cu.cuMemGetAllocationGranularity(&granularity, &kind, SH_CU_GRANULARITY_MINIMUM));
        if (err != SHOAL_OK) {
            return err;
        }
    }
    *size = (*size + granularity - 1) / granularity * granularity;
    return SHOAL_OK;
}

shoal_err sh_cuda_map(sh_cu_memory memory, size_t size, sh_cu_address *out_address)
{
    sh_cu_access access = {.location = here(), .flags = SH_CU_ACCESS_READ_WRITE};
    sh_cu_address address = 0;
    shoal_err err =
        sh_cuda_result("cannot reserve addresses for GPU memory", sh_cu.cuMemAddressReserve(&address, size, 0, 0, 0));
    if (err != SHOAL_OK) {
        return err;
    }
    err = sh_cuda_result("cannot map GPU memory", sh_cu.cuMemMap(address, size, 0, memory, 0));
    if (err == SHOAL_OK) {
        err = sh_cuda_result("cannot open GPU memory for access", sh_cu.cuMemSetAccess(address, size, &access, 1));
        if (err == SHOAL_OK) {
            *out_address = address;
            return SHOAL_OK;
        }
        (void)sh_cu.cuMemUnmap(address, size);
    }
    (void)sh_cu.cuMemAddressFree(address, size);
    return err;
}

void sh_cuda_unmap(sh_cu_address address, size_t size)
{
    (void)sh_cu.cuMemUnmap(address, size);
    (void)sh_cu.cuMemAddressFree(address, size);
}

shoal_err sh_cuda_granule_make(size_t size, sh_cuda_granule **out_granule)
{
    shoal_err err = round_to_granularity(&size);
    if (err != SHOAL_OK) {
        return err;
    }
    sh_cuda_granule *fresh = calloc(1, sizeof *fresh);
    if (!fresh) {
        return sh_fail(SHOAL_ENOMEM, "no memory to describe %zu bytes of GPU memory", size);
    }
    fresh->size = size;
    sh_cu_memory_kind kind = shareable();
    int mode = sh_cuda_relax();
    err = sh_cuda_result("cannot allocate GPU memory", sh_cu.cuMemCreate(&fresh->memory, size, &kind, 0));
    if (err == SHOAL_OK) {
        err = sh_cuda_map(fresh->memory, size, &fresh->address);
        if (err != SHOAL_OK) {
            (void)sh_cu.cuMemRelease(fresh->memory);
        }
    }
    sh_cuda_restrict(mode);
    if (err == SHOAL_OK) {
        *out_granule = fresh;
    } else {
        free(fresh);
    }
    return err;
}

void sh_cuda_granule_drop(sh_cuda_granule *granule)
{
    int mode = sh_cuda_relax();
    sh_cuda_unmap(granule->address, granule->size);
    (void)sh_cu.cuMemRelease(granule->memory);
    sh_cuda_restrict(mode);
    free(granule);
}
