/* The CPU as a device. */
#include "device/device.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* A thread's scratch memory is freed when the thread ends. */
static _Thread_local sh_exec mine __attribute__((tls_model("initial-exec")));
static _Thread_local bool watched __attribute__((tls_model("initial-exec")));
static pthread_key_t end_key;
static pthread_once_t end_once = PTHREAD_ONCE_INIT;

static void thread_ended(void *exec)
{
    sh_exec *e = exec;
    free(e->scratch);
    *e = (sh_exec){0};
    watched = false;
}

static void make_key(void)
{
    (void)pthread_key_create(&end_key, thread_ended);
}

static sh_exec *cpu_exec(void)
{
    if (__builtin_expect(!watched, 0)) {
        (void)pthread_once(&end_once, make_key);
        watched = pthread_setspecific(end_key, &mine) == 0;
    }
    return &mine;
}

static shoal_err cpu_copy(void *to, const void *from, size_t size)
{
    if (size > 0) {
        memcpy(to, from, size);
    }
    return SHOAL_OK;
}

static shoal_err cpu_wait(void)
{
    return SHOAL_OK;
}

const sh_device sh_device_cpu = {
    .kind = SHOAL_CPU,
    .name = "cpu",
    .host_readable = true,
    .kernels = sh_kernels_cpu,
    .alloc = sh_cpu_cache_alloc,
    .free = sh_cpu_cache_free,
    .write = cpu_copy,
    .read = cpu_copy,
    .exec = cpu_exec,
    .wait = cpu_wait,
};
