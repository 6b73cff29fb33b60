#include "sync/end_word.h"

#include "os/futex.h"
#include "os/memory.h"

#include <limits.h>
#include <linux/futex.h>
#include <stddef.h>

_Static_assert(offsetof(pthread_mutex_t, __data.__lock) == 0, "the futex word of a mutex is its first");

static sh_end_word_shm *mine; /* what this process holds, or its parent did */
static uint64_t mine_at;      /* its offset in the file */

static sh_a32 *word_of(const sh_end_word_shm *word)
{
    return (sh_a32 *)(uintptr_t)word;
}

bool sh_end_word_hold(int fd, uint64_t offset)
{
    sh_end_word_shm *word = sh_memory_map_part(fd, offset, sizeof *word);
    pthread_mutexattr_t robust;
    if (word == NULL) {
        return false;
    }
    pthread_mutexattr_init(&robust);
    pthread_mutexattr_setpshared(&robust, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&robust, PTHREAD_MUTEX_ROBUST);
    bool held = pthread_mutex_init(&word->mutex, &robust) == 0 && pthread_mutex_trylock(&word->mutex) == 0;
    pthread_mutexattr_destroy(&robust);
    if (held) {
        sh_or_seq_cst(word_of(word), FUTEX_WAITERS);
        mine = word;
        mine_at = offset;
    } else {
        sh_memory_unmap_part(word, sizeof *word);
    }
    return held;
}

void sh_end_word_drop(int fd)
{
    if (mine != NULL && pthread_mutex_unlock(&mine->mutex) == 0) {
        sh_memory_unmap_part(mine, sizeof *mine);
        mine = NULL;
    } else if (mine != NULL &&
               sh_memory_part_go_private(fd, mine_at, mine, sizeof *mine)) { /* another thread holds it */
        sh_or_seq_cst(word_of(mine), 0); /* a write to each page that it lies in, which copies the page */
        sh_or_seq_cst((sh_a32 *)(mine + 1) - 1, 0);
        mine = NULL; /* the copy stays until the process ends */
    }
}

sh_end_state sh_end_word_read(const sh_end_word_shm *word, uint32_t *out_value)
{
    uint32_t value = sh_load_acquire(word_of(word));
    *out_value = value;
    return (value & FUTEX_OWNER_DIED) != 0                                 ? SH_END_SEEN
           : (value & FUTEX_WAITERS) != 0 && (value & FUTEX_TID_MASK) != 0 ? SH_END_HELD
                                                                           : SH_END_UNKNOWN;
}

void sh_end_word_pass(const sh_end_word_shm *word)
{
    sh_futex_wake(word_of(word), INT_MAX);
}
