/* Pinned host memory: the card copies from it and to it by itself, so such a copy need not wait. */
#include "device/cuda_capture.h"

#include "base/error.h"
#include "device/cuda_share.h"

void *sh_cuda_alloc_pinned(size_t size)
{
    void *data = NULL;
    shoal_err err = sh_cuda_check();
    if (err == SHOAL_OK) {
        err = sh_cuda_result("cannot pin host memory", sh_cu.cuMemAllocHost(&data, size > 0 ? size : 1));
    }
    return err == SHOAL_OK ? data : NULL;
}

/* A child of fork cannot free what its parent pinned, nor a process whose context is gone: the memory goes with the
 * process. */
void sh_cuda_free_pinned(void *data, size_t size)
{
    (void)size;
    sh_cleanup_begin();
    if (data && sh_cuda_check() == SHOAL_OK) {
        (void)sh_cuda_result("cannot free pinned memory", sh_cu.cuMemFreeHost(data)); /* waits for copies that use it */
    }
    sh_cleanup_end();
}

shoal_err sh_cuda_write_later(void *to, const void *from_pinned, size_t size)
{
    shoal_err err = sh_cuda_check();
    if (err == SHOAL_OK) {
        err = sh_cuda_follow();
    }
    if (err == SHOAL_OK && size > 0) {
        err = sh_cuda_result("cannot copy to the card", sh_cu.cuMemcpyHtoDAsync((sh_cu_address)(uintptr_t)to,
                                                                                from_pinned, size, sh_cuda_stream()));
        sh_cuda_touch();
    }
    return err;
}

shoal_err sh_cuda_read_later(void *to_pinned, const void *from, size_t size)
{
    shoal_err err = sh_cuda_check();
    if (err == SHOAL_OK) {
        err = sh_cuda_follow();
    }
    if (err == SHOAL_OK && size > 0) {
        err =
            sh_cuda_result("cannot copy from the card",
                           sh_cu.cuMemcpyDtoHAsync(to_pinned, (sh_cu_address)(uintptr_t)from, size, sh_cuda_stream()));
        sh_cuda_touch();
    }
    return err;
}
