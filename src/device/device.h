/* What a device offers: memory, a place to run, kernels. Nothing above this layer may assume that the CPU can read a
 * device's memory; what has to, asks host_readable or copies with read.
 *
 * cpu.c is always there. Another device fills the same struct and is found by sh_device_get when it can be had. */
#ifndef SH_DEVICE_DEVICE_H
#define SH_DEVICE_DEVICE_H

#include "kernels/kernels.h"

#include <shoal/device.h>

typedef struct sh_device {
    shoal_device kind;
    const char *name;
    bool host_readable;
    const sh_kernels *(*kernels)(void);

    /* Memory aligned to 64 bytes, its content undefined; size 0 gives a pointer that can be freed. alloc records
     * SHOAL_ENOMEM and returns NULL. free needs the size that was asked for. Both keep what was freed for the next to
     * come, so a loop in steady state makes no system call. */
    void *(*alloc)(size_t size);
    void (*free)(void *data, size_t size);

    /* Between this device and the host; both return when the bytes are there. */
    shoal_err (*write)(void *to, const void *from_host, size_t size);
    shoal_err (*read)(void *to_host, const void *from, size_t size);

    /* The calling thread's place to run on this device; NULL with an error. */
    sh_exec *(*exec)(void);

    /* Waits until all that the calling thread started here is done. */
    shoal_err (*wait)(void);
} sh_device;

extern const sh_device sh_device_cpu;
extern const sh_device
    sh_device_left; /* of tensors whose world this process has left: all is refused with SHOAL_ESTATE */

/* The failure of a call that has tensors of both devices. */
shoal_err sh_device_mixed(const char *call, const sh_device *a, const sh_device *b);

/* The device, or NULL and an error that says why it cannot be had. */
const sh_device *sh_device_get(shoal_device kind);

/* Gives back to the system what the calling thread's CPU cache keeps. */
void sh_cpu_cache_trim(void);

void *sh_cpu_cache_alloc(size_t size);
void sh_cpu_cache_free(void *data, size_t size);

#endif
