/* What this process knows about its GPU, except the card itself (cuda.h), in one place. docs/cuda.md ("States, orders
 * and deaths") describes the locks. */
#ifndef SH_DEVICE_CUDA_STATE_H
#define SH_DEVICE_CUDA_STATE_H

#include "device/cuda_memory.h"
#include "shm/card_lock.h"
#include "shm/timeline.h"

#define SH_CUDA_BINS 224      /* of free pieces, by size: four a doubling, from 256 bytes on */
#define SH_CUDA_BUCKETS 16384 /* of pieces, by address */
#define SH_CUDA_WAITS 8       /* works of different processes that the next work may have to wait for */

/* A block that this process gives back when the GPU has done the work before a mark. */
typedef struct sh_cuda_release {
    struct sh_cuda_release *next;
    shoal_block *block;
    uint64_t after; /* the number of the mark, which may be the next one */
} sh_cuda_release;

typedef struct sh_cuda_state {
    /* Under SH_CARD_LOCK_STATE. */
    sh_cuda_granule *granules; /* all that are mapped, made here or by others; the last one found is the first */
    unsigned made;             /* how many were made here */
    size_t asked, used, held;  /* bytes: cuda_memory.h */
    sh_cuda_piece *bins[SH_CUDA_BINS];
    sh_cuda_piece *table[SH_CUDA_BUCKETS];
    sh_cuda_piece *lent_first, *lent_last; /* freed while others held them; the oldest first */
    sh_a64 died;                           /* sh_granules_died when imports were last checked */

    /* Under SH_CARD_LOCK_DRIVER. */
    bool begun;                    /* ready for this world */
    bool host_only;                /* the driver cannot write and wait for the world's words: a put waits on the host */
    void *pages;                   /* registered with the driver */
    uint64_t to_card;              /* added to a host address of these pages */
    uint64_t marked;               /* `enqueued` up to here lies before the last mark, or is done */
    sh_work waits[SH_CUDA_WAITS];  /* the last of each process that the stream must wait for before its next work */
    sh_cuda_release *first, **end; /* the blocks to give back, by number */
    unsigned unmarked;             /* how many wait for a mark that is not made yet */
    sh_cu_event event;             /* orders two streams; used again: a wait keeps what was recorded before it */

    /* Read by any thread at any time; the first four are changed under SH_CARD_LOCK_DRIVER. */
    sh_a32 wait_count;               /* of `waits` */
    sh_a32 timeline;                 /* of this process in this world; 0: none */
    sh_a64 last;                     /* the last mark, a sh_work; 0 without a timeline */
    sh_a32 uncounted;                /* 1: another library has the stream, and may enqueue work that is not counted */
    sh_a64 enqueued;                 /* counts work that was enqueued */
    sh_a32 imports;                  /* how many granules of others are mapped; the end of the process may look at it */
    sh_a32 trims_begun, trims_ended; /* how often a thread has begun to give granules back, and has done so */
    sh_a64 worlds_left;              /* how many worlds this process has left */
} sh_cuda_state;

extern sh_cuda_state sh_gpu;

#endif
