/* Devices: each offers memory, an exec to run on, and kernels. Code above this layer must not assume that the CPU can
 * read a device's memory: it checks host_readable or copies with read.
 *
 * The CPU (cpu.c) is always there. Another device fills in the same struct; sh_device_get returns it if it is
 * available. */
#ifndef SH_DEVICE_DEVICE_H
#define SH_DEVICE_DEVICE_H

#include "kernels/kernels.h"

#include <shoal/device.h>

typedef struct sh_device {
    shoal_device kind;
    const char *name;
    bool host_readable;
    const sh_kernels *(*kernels)(void);

    /* Memory aligned to 64 bytes, with undefined content; size 0 gives a pointer that can be freed. alloc returns NULL
     * and sets SHOAL_ENOMEM if there is no memory. free needs the size that alloc got. Both cache freed memory, so a
     * loop in steady state makes no system calls. */
    void *(*alloc)(size_t size);
    void (*free)(void *data, size_t size);

    /* Copy between this device and the host. Both return when the bytes have arrived. */
    shoal_err (*write)(void *to, const void *from_host, size_t size);
    shoal_err (*read)(void *to_host, const void *from, size_t size);

    /* Returns the calling thread's exec on this device; NULL with the error set if there is none. */
    sh_exec *(*exec)(void);

    /* Waits until everything that the calling thread started here is done. */
    shoal_err (*wait)(void);

    /* For a device whose memory the host cannot read; NULL otherwise. alloc_pinned and free_pinned give host memory,
     * aligned to 64 bytes, that the device copies by itself: write_later and read_later return before the bytes have
     * arrived, in order with the other work of the thread. wait waits for them too. */
    void *(*alloc_pinned)(size_t size);
    void (*free_pinned)(void *data, size_t size);
    shoal_err (*write_later)(void *to, const void *from_pinned, size_t size);
    shoal_err (*read_later)(void *to_pinned, const void *from, size_t size);
} sh_device;

extern const sh_device sh_device_cpu;
extern const sh_device
    sh_device_left; /* of tensors whose world this process has left: every call fails with SHOAL_ESTATE */

/* Fails for a call that was given tensors of both devices. */
shoal_err sh_device_mixed(const char *call, const sh_device *a, const sh_device *b);

/* Returns the device, or NULL and an error that says why it is not available. */
const sh_device *sh_device_get(shoal_device kind);

/* Checks what can be known about a device without opening it, for a process that only starts those that will: the
 * build, and that the driver is installed. Errors: as for sh_device_get. */
shoal_err sh_device_find(shoal_device kind);

/* The same, and whether there is a card that sh_device_get would open. Starts the driver, so this process cannot fork
 * afterwards; it opens no card. */
shoal_err sh_device_look(shoal_device kind);

/* Frees what the calling thread's CPU cache keeps. */
void sh_cpu_cache_trim(void);

void *sh_cpu_cache_alloc(size_t size);
void sh_cpu_cache_free(void *data, size_t size);

#endif
