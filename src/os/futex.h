/* Futexes on words of shared memory, across processes. */
#ifndef SH_OS_FUTEX_H
#define SH_OS_FUTEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Sleeps while *word == value, until a wake-up or until the deadline (sh_now time, SH_NO_DEADLINE for none). Returns
 * false only if the deadline passed. May return early for any reason: the caller re-checks its predicate. */
bool sh_futex_wait(const void *word, uint32_t value, int64_t deadline);

/* Wakes at most count sleepers. Returns the number woken. */
int sh_futex_wake(const void *word, int count);

/* Sleeps until one of the words differs from its value or is woken; the same rules. At most SH_FUTEX_MANY words.
 * Returns false if the deadline passed. Also returns false, at once, if the kernel lacks or refuses the call;
 * sh_futex_can_wait_many checks that. */
#define SH_FUTEX_MANY 128
typedef struct sh_futex_pair {
    const void *word;
    uint32_t value;
} sh_futex_pair;
bool sh_futex_wait_many(const sh_futex_pair *pairs, size_t count, int64_t deadline);
bool sh_futex_can_wait_many(void);

#endif
