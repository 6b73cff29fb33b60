/* Finding a device. */
#include "device/device.h"

#include "base/error.h"

const sh_device *sh_device_get(shoal_device kind)
{
    switch (kind) {
    case SHOAL_CPU: return &sh_device_cpu;
    case SHOAL_CUDA: (void)sh_fail(SHOAL_ENOENT, "this build of Shoal has no CUDA: use the cpu"); return NULL;
    }
    (void)sh_fail(SHOAL_EINVAL, "%d is no device", (int)kind);
    return NULL;
}
