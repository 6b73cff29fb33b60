/* A thread of the library's own, in a process that uses a card. It runs no code of the program and no signal handlers.
 *
 * start and join are called by one thread at a time. end may be called at any time: in a signal handler that has interrupted
 * any of them. So it takes no lock, and gives up after a while: the thread may wait for a lock whose owner was interrupted. */
#ifndef SH_DEVICE_CUDA_THREAD_H
#define SH_DEVICE_CUDA_THREAD_H

#include "sync/atomic.h"

#include <pthread.h>
#include <stdbool.h>

typedef struct sh_cuda_thread {
    const char *name;
    void (*run)(uint64_t argument); /* returns soon once stopping is not 0 */
    uint64_t argument;
    pthread_t thread;
    sh_a32 exists;   /* 1: it was started, and nobody joins it */
    sh_a32 tid;      /* stored by itself; 0 until then */
    sh_a32 stopping; /* stored by the owner of the thread, before join or end */
} sh_cuda_thread;

/* Starts it, if it does not exist. Returns false if the system has no memory for it. */
bool sh_cuda_thread_start(sh_cuda_thread *t, uint64_t argument);

/* Waits until the kernel has removed it. Cheap if it does not exist. */
void sh_cuda_thread_join(sh_cuda_thread *t);

/* The same at the end of the process, for at most half a second. */
void sh_cuda_thread_end(sh_cuda_thread *t);

#endif
