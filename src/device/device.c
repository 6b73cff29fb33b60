/* Finding a device. */
#include "device/cuda.h"

#include "base/error.h"

shoal_err sh_device_mixed(const char *call, const sh_device *a, const sh_device *b)
{
    return a == &sh_device_left || b == &sh_device_left
               ? sh_device_left.wait()
               : sh_fail(SHOAL_EINVAL, "%s: the tensors are on different devices, %s and %s", call, a->name, b->name);
}

shoal_err sh_device_find(shoal_device kind)
{
    const sh_cuda_library *library;
    if (kind != SHOAL_CUDA) {
        return sh_device_get(kind) ? SHOAL_OK : shoal_last_error();
    }
    SH_TRY(sh_cuda_library_load(&library));
    return sh_cuda_driver_find();
}

shoal_err sh_device_look(shoal_device kind)
{
    return kind == SHOAL_CUDA ? sh_cuda_look() : sh_device_find(kind);
}

const sh_device *sh_device_get(shoal_device kind)
{
    switch (kind) {
    case SHOAL_CPU: return &sh_device_cpu;
    case SHOAL_CUDA: return sh_cuda_get() ? &sh_device_cuda : NULL;
    }
    (void)sh_fail(SHOAL_EINVAL, "%d is not a device", (int)kind);
    return NULL;
}
