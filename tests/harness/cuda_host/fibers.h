/* Runs the blocks of a grid one after another. The threads of a block are fibers of the thread that launches. A fiber
 * runs until it waits for others or ends. The order of the fibers changes from one wait to the next, so a race between
 * threads gives a result that differs from the CPU's.
 *
 * These faults end the process with a sentence:
 * - threads of a block, or lanes of a warp, wait for a thread that has ended or that waits for something else
 * - a copy into shared memory is not aligned to its size
 *
 * A read or write behind dynamic shared memory ends the process by SIGSEGV. Dynamic shared memory that no thread has
 * written is NaN. A grid that no card would take is an error of its launch. */
#ifndef TESTING_CUDA_HOST_FIBERS_H
#define TESTING_CUDA_HOST_FIBERS_H

#include <stddef.h>
#include <stdint.h>

#define SH_FIBER_LANES 32u
#define SH_FIBER_MOST_SHARED 232448u /* bytes that a block may have */

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z)
    {
    }
};

/* The thread that runs, and its grid. */
extern dim3 threadIdx, blockIdx, blockDim, gridDim;

/* Returns the number of this thread in its warp. */
unsigned sh_fiber_lane(void);

/* Returns whether a card would take this grid. */
bool sh_fiber_grid_fits(dim3 blocks, dim3 threads, size_t shared);

/* Calls call(arg) for each thread of each block. One grid at a time: other threads of the process wait. */
void sh_fiber_run(dim3 blocks, dim3 threads, size_t shared, void (*call)(const void *arg), const void *arg);

/* The block's dynamic shared memory. */
void *sh_fiber_shared(void);

/* Waits for all threads of the block. Returns whether one of them gave a value other than 0. */
bool sh_fiber_sync_block(bool value);

/* Wait for those lanes of the warp. Return a bit for each lane that gave true, and what the lane `from` gave. */
uint32_t sh_fiber_vote(uint32_t lanes, bool value);
uint64_t sh_fiber_exchange(uint32_t lanes, uint64_t value, unsigned from);

/* For values of any form: what each lane writes into the warp's room of SH_FIBER_ROOM bytes, all lanes can read after
 * sh_fiber_sync_room, until their next wait. */
#define SH_FIBER_ROOM 2048u
void *sh_fiber_room(void);
void sh_fiber_sync_room(void);

/* Ends the process with a sentence that begins with the block and the thread. */
[[noreturn]] __attribute__((format(printf, 1, 2))) void sh_fiber_fail(const char *format, ...);

/* Copies that are made later: see cuda_pipeline.h. */
void sh_fiber_copy_later(void *to, const void *from, size_t size);
void sh_fiber_copies_end(void);
void sh_fiber_copy_now(size_t groups_left);

#endif
