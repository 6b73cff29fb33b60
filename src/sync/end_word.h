/* A word in shared memory that tells of a thread's end, however it ends, SIGKILL included: others sleep on it, and the kernel wakes one.
 *
 * No other futex does that. Linux changes and wakes the words on a thread's list of robust mutexes when the thread ends, and the C
 * library keeps that list. So the word is the one of a robust mutex, which its holder locks once and never unlocks.
 *
 *   0                     not held yet, or it could not be: ends are looked for in another way
 *   tid | WAITERS         held. WAITERS is set by the holder at once, because without it the kernel wakes nobody
 *   OWNER_DIED | WAITERS  the thread has ended (kernel); the process follows within a moment, if it was the main thread
 *
 * The word only ends a sleep early. ENDED is no proof: exec ends it too, and the main thread may end before the process. HELD is no
 * proof of life: the kernel stops at a list that the program has destroyed. Whoever sleeps on it asks the process itself afterwards,
 * and once in a while without being woken.
 *
 * The kernel wakes one sleeper: it passes the wake on (sh_end_word_pass).
 * death: of the holder before it holds: the word stays 0. Of the sleeper that was woken: the others find out by their slices.
 * fork: the child's C library begins with an empty list, so the word stays the parent's. */
#ifndef SH_SYNC_END_WORD_H
#define SH_SYNC_END_WORD_H

#include "sync/atomic.h"

#include <pthread.h>
#include <stdbool.h>

typedef struct sh_end_word_shm {
    pthread_mutex_t mutex; /* its first four bytes are the word; zeros before it is held */
} sh_end_word_shm;

typedef enum sh_end_state { SH_END_UNKNOWN, SH_END_HELD, SH_END_SEEN } sh_end_state;

/* Holds the word at that place of a memory file until the calling thread ends. Once a process. The place is mapped a second time and
 * stays mapped, so it does not matter whether the process leaves the world. Its memory must not become anything else while the thread
 * lives. False when it cannot be held. */
bool sh_end_word_hold(int fd, uint64_t offset);

/* What the word says, and its value to sleep on. */
sh_end_state sh_end_word_look(const sh_end_word_shm *word, uint32_t *out_value);

/* Wakes the others that sleep on it. */
void sh_end_word_pass(const sh_end_word_shm *word);

#endif
