/* The device of tensors whose world this process has left. Their bytes may belong to another object now, so every call
 * that would touch them fails. */
#include "device/device.h"

#include "base/error.h"

static shoal_err refuse(void)
{
    return sh_fail(SHOAL_ESTATE, "this process has left the tensor's world");
}

static void *refuse_alloc(size_t size)
{
    (void)size;
    (void)refuse();
    return NULL;
}

static void free_nothing(void *data, size_t size)
{
    (void)data;
    (void)size;
}

static shoal_err refuse_copy(void *to, const void *from, size_t size)
{
    (void)to;
    (void)from;
    (void)size;
    return refuse();
}

static sh_exec *refuse_exec(void)
{
    (void)refuse();
    return NULL;
}

const sh_device sh_device_left = {
    .kind = SHOAL_CPU,
    .name = "a world that was left",
    .host_readable = false,
    .kernels = sh_kernels_cpu, /* never run: there is no exec */
    .alloc = refuse_alloc,
    .free = free_nothing,
    .write = refuse_copy,
    .read = refuse_copy,
    .exec = refuse_exec,
    .wait = refuse,
};
