#include "tests/harness/far_device.h"

#include "tests/harness/optim_all.h"
#include "tests/harness/passage_free.h"

/* A far address is a near one with this bit set, which no address of a process has. */
#define FAR (UINT64_C(1) << 62)

static void *near(const void *data)
{
    return data ? (void *)((uintptr_t)data & ~FAR) : NULL;
}

static void *passage_at(const passage *p, const void *data)
{
    (void)p;
    return near(data);
}

static shoal_err passage_close(passage *p, shoal_err err)
{
    (void)p;
    return err;
}

static const sh_kernels *passage_kernels(void)
{
    return reference_with_all();
}

static sh_exec *passage_exec(sh_exec *exec)
{
    return exec;
}

#include "tests/harness/passed_kernels.h"

static const sh_kernels *far_kernels(void)
{
    return &passed_kernels;
}

static void *far_alloc(size_t size)
{
    void *data = sh_cpu_cache_alloc(size);
    return data ? (void *)((uintptr_t)data | FAR) : NULL;
}

static void far_free(void *data, size_t size)
{
    sh_cpu_cache_free(near(data), size);
}

static shoal_err far_write(void *to, const void *from_host, size_t size)
{
    return sh_device_cpu.write(near(to), from_host, size);
}

static shoal_err far_read(void *to_host, const void *from, size_t size)
{
    return sh_device_cpu.read(to_host, near(from), size);
}

const sh_device *sh_far_device(void)
{
    static sh_device far;
    far = sh_device_cpu;
    far.kind = SHOAL_CUDA;
    far.name = "far";
    far.host_readable = false;
    far.kernels = far_kernels;
    far.alloc = far_alloc;
    far.free = far_free;
    far.write = far_write;
    far.read = far_read;
    far.alloc_pinned = sh_cpu_cache_alloc;
    far.free_pinned = sh_cpu_cache_free;
    far.write_later = far_write;
    far.read_later = far_read;
    return &far;
}
