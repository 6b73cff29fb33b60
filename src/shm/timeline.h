/* Timelines: how far the stream of each process has come, for the others.
 *
 * A process that uses a card claims one timeline: a cache line in the world, which it registers with the driver. It
 * numbers the marks in its stream 1, 2, 3, …: first it stores the next number in `issued` (sh_timeline_issue), then it
 * enqueues the write of that number to `done`. So "timeline 7, number 40" names all work before that mark, in one
 * 64-bit word (sh_work), which lies in a piece of card memory. It is done when `done` has reached the number. A stream
 * of another process waits for that on the GPU; no host waits.
 *
 * When the owner dies, what its GPU has not done by then may be half done: those numbers are lost, for ever, whatever
 * the GPU still does. Recovery stores the first lost number in lost_from, then raises `done` to `issued`, so that no
 * stream waits for ever. A GPU that is still ending the dead process may write `done` once more, a smaller number than
 * that, at any later time. So lost_from decides as soon as it is set, and a process whose stream waits for a lost
 * number calls sh_timeline_free_waiters again. A timeline with lost numbers is never used again. One whose work was all
 * done gets a new owner, which goes on counting: no process is left that could write an old number.
 *
 * Work that comes after lost work is lost, too: a process whose stream waits for another one computes with the results
 * of that one. Before its stream waits, a process stores in its slot what it waits for, and the number that its next
 * mark will have (sh_timeline_depend). Before releasing streams that wait for lost numbers, a process records in each
 * of those timelines from which number on it is poisoned (poisoned_from), and in those that wait for these. None of
 * these numbers is done yet, so no process can have taken one for done. The owner of a poisoned timeline learns of the
 * loss when it next waits on the host, and claims another timeline for its later work.
 *
 * An owner that lives may lose its GPU: what the GPU has not done by then will never be done, so the owner itself
 * records what is lost (sh_timelines_lose). It may live on for long, and others wait for it.
 *
 * An owner that ends normally should wait for its stream first (sh_world_before_end): what is not done when it ends is
 * lost as if it had died. */
#ifndef SH_SHM_TIMELINE_H
#define SH_SHM_TIMELINE_H

#include "shm/world.h"

/* A place in a timeline: timeline 16 | number 48. 0 is no work. */
typedef uint64_t sh_work;

#define SH_WORK_NUMBER_BITS 48

static inline sh_work sh_work_make(uint32_t timeline, uint64_t number)
{
    return (uint64_t)timeline << SH_WORK_NUMBER_BITS | number;
}

static inline uint32_t sh_work_timeline(sh_work work)
{
    return (uint32_t)(work >> SH_WORK_NUMBER_BITS);
}

static inline uint64_t sh_work_number(sh_work work)
{
    return work & ((UINT64_C(1) << SH_WORK_NUMBER_BITS) - 1);
}

typedef enum sh_work_state {
    SH_WORK_DONE,
    SH_WORK_PENDING, /* its owner lives, or nobody has recovered it yet */
    SH_WORK_LOST, /* its owner died, ended or lost its card first, or it comes after such work; also for a work that no
                      * timeline has ever had */
} sh_work_state;

/* Returns the state of a work, which may come from a message and be nonsense. Costs three loads of one cache line. What
 * is DONE or LOST stays so. A host that waits for PENDING work to change calls sh_peers_now->sweep between two looks,
 * which recovers dead owners. Needs an attached process. */
sh_work_state sh_work_look(sh_work work);

/* Claims a timeline for this process, whose stream waits for nothing. Not called inside. Errors: SHOAL_ENOMEM,
 * SHOAL_ELIMIT if there is none left. */
shoal_err sh_timeline_claim(uint32_t *out_index);

/* Returns the next number of this process's timeline. Called before the write of that number is enqueued, by one thread
 * at a time. */
uint64_t sh_timeline_issue(uint32_t index);

/* Says that all numbers that this process has not issued yet come after that work of another process. Called before the
 * stream is told to wait for the work, by one thread at a time. If the work is lost, so are these numbers. Returns
 * false, and does nothing, if the stream waits for SH_SLOT_AWAITS works of different processes, none of which is
 * done. */
bool sh_timeline_depend(uint32_t index, sh_work work);

/* Checks whether this process's stream was told to wait for that work, or for later work of the same process. */
bool sh_timeline_awaits(sh_work work);

/* Returns how many works of other processes this process's stream waits for, or are lost. Releases the streams that
 * wait for a lost one, and sets *out_lost. forget_lost: the caller reports the lost ones, so they do not count from now
 * on. Does not wait, and any thread may call it. Needs a claimed timeline. */
size_t sh_timeline_look(bool forget_lost, bool *out_lost);

/* Checks whether numbers of the timeline are lost because they come after lost work. */
bool sh_timeline_is_poisoned(uint32_t index);

/* Returns the last place that was issued; on a timeline that was just claimed, it is done. */
sh_work sh_timeline_last(uint32_t index);

/* Returns the word that the owner's stream writes and other streams wait for, or NULL if there is no such timeline. */
sh_a64 *sh_timeline_done_word(uint32_t index);

/* Releases streams that wait for lost numbers of the timeline, and records before that what they do then as lost. Does
 * nothing if it has no lost numbers, or only poisoned ones. Any process may call it. */
void sh_timeline_free_waiters(uint32_t index);

/* Gives the timeline back: this process will issue no more numbers. Ending the process does the same. */
void sh_timeline_release(uint32_t index);

/* Records that all that this process's GPU has not done yet is lost, and all that it will issue, and releases the
 * streams that wait for it. The process keeps its timelines until it ends. May be called inside or not, by any
 * thread. */
void sh_timelines_lose(void);

/* Returns the pages that contain the words of all timelines, now and later, to register with the driver. Valid after
 * this process has claimed one, until it leaves the world. */
void sh_timelines_range(void **out_start, size_t *out_size);

/* For recovery, and the end of a process: settles the timelines of `dead`. May be repeated. */
void sh_timelines_settle(sh_owner dead);

#endif
