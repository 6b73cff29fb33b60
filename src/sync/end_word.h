/* A word in shared memory that reports the end of a thread, however it ends, even by SIGKILL: others sleep on it, and
 * the kernel wakes one of them.
 *
 * No other futex does that. When a thread ends, Linux changes and wakes the words on its list of robust mutexes, and
 * the C library keeps that list. So the word is that of a robust mutex, which its holder locks once and never unlocks.
 *
 *   0                     not held yet, or it could not be held: ends are detected in another way
 *   tid | WAITERS         held. The holder sets WAITERS at once, because without it the kernel wakes nobody
 *   OWNER_DIED | WAITERS  the thread has ended (set by the kernel); if it was the main thread, the process ends shortly
 *
 * The word only ends a sleep early. SH_END_SEEN does not prove an end: exec sets it, too, and the main thread may end
 * before the process. SH_END_HELD does not prove life: the kernel stops at a list that the program has destroyed. So a
 * sleeper checks the process itself afterwards, and also from time to time without a wake-up.
 *
 * The kernel wakes one sleeper, which wakes the others (sh_end_word_pass).
 * death: of the holder before it holds the word: it stays 0. Of the woken sleeper: the others notice when their slices
 * end.
 * fork: the child's C library starts with an empty list, so the word stays with the parent. */
#ifndef SH_SYNC_END_WORD_H
#define SH_SYNC_END_WORD_H

#include "sync/atomic.h"

#include <pthread.h>
#include <stdbool.h>

typedef struct sh_end_word_shm {
    pthread_mutex_t mutex; /* its first four bytes are the word; zeros before it is held */
} sh_end_word_shm;

typedef enum sh_end_state { SH_END_UNKNOWN, SH_END_HELD, SH_END_SEEN } sh_end_state;

/* Holds the word at that offset of a memory file until the calling thread ends. Once per process. Maps the word a
 * second time: another thread, which cannot unlock the mutex, may leave the world, and then the list must still lead to
 * memory. Nothing else may use the word's memory while it is held. Returns false if it cannot be held. */
bool sh_end_word_hold(int fd, uint64_t offset);

/* For a process that leaves the world: the word is 0 again. In another thread than the holder, it moves the holder's
 * list to a private copy of the word instead, because the word's memory may soon have another use. fd: the same file,
 * or -1 if it is lost. Does nothing in a fork of the holder. */
void sh_end_word_drop(int fd);

/* Returns what the word says, and its value to sleep on. */
sh_end_state sh_end_word_read(const sh_end_word_shm *word, uint32_t *out_value);

/* Wakes the others that sleep on it. */
void sh_end_word_pass(const sh_end_word_shm *word);

#endif
