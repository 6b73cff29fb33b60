/* The physical limits for two processes: a bare word in a shared page, with and without sleeping. */
#include "bench/bench.h"

#include <errno.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* The two words are in separate cache lines. */
typedef struct page {
    _Alignas(128) _Atomic uint64_t line;
    _Alignas(128) _Atomic uint32_t futex;
} page;

#define LOOKS 100000u /* spins between two reads of the clock */

#define PAGE_BYTES 16384 /* the smallest block that starts at a page, so that nothing else is next to the words */

shoal_err bench_page(shoal_block **out_page)
{
    return shoal_block_create_zeroed(PAGE_BYTES, out_page);
}

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static shoal_err spin_until(_Atomic uint64_t *word, uint64_t wanted)
{
    double begun = 0;
    for (unsigned looks = 1; atomic_load_explicit(word, memory_order_acquire) != wanted; looks++) {
        relax();
        if (looks % LOOKS == 0) {
            begun = begun == 0 ? bench_now() : begun;
            if (bench_now() - begun > (double)BENCH_PATIENCE * 1e-9) {
                return shoal_fail(SHOAL_ETIMEDOUT, "the other side of the ping-pong does not answer");
            }
        }
    }
    return SHOAL_OK;
}

/* Rank 0 makes the word odd, rank 1 even. It continues to count where the last call ended. */
shoal_err bench_limit_cache_line(void *shared, int rank, uint64_t count)
{
    page *p = shared;
    shoal_err err = SHOAL_OK;
    for (uint64_t i = 0; i < count && err == SHOAL_OK; i++) {
        static uint64_t now; /* what this process knows to be in the word */
        if (rank == 0) {
            atomic_store_explicit(&p->line, now + 1, memory_order_release);
            err = spin_until(&p->line, now + 2);
        } else {
            err = spin_until(&p->line, now + 1);
            atomic_store_explicit(&p->line, now + 2, memory_order_release);
        }
        now += 2;
    }
    return err;
}

static shoal_err sleep_while(_Atomic uint32_t *word, uint32_t held)
{
    const struct timespec patience = {.tv_sec = BENCH_PATIENCE / SHOAL_SECONDS(1)};
    while (atomic_load_explicit(word, memory_order_acquire) == held) {
        if (syscall(SYS_futex, word, FUTEX_WAIT, held, &patience, NULL, 0) != 0 && errno != EAGAIN && errno != EINTR) {
            return shoal_fail(SHOAL_EOS, "the other side of the futex ping-pong: %s", strerror(errno));
        }
    }
    return SHOAL_OK;
}

static void hand_over(_Atomic uint32_t *word, uint32_t value)
{
    atomic_store_explicit(word, value, memory_order_release);
    syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0);
}

/* The word is 1 when it is rank 1's turn and 0 when it is rank 0's. */
shoal_err bench_limit_futex(void *shared, int rank, uint64_t count)
{
    page *p = shared;
    shoal_err err = SHOAL_OK;
    for (uint64_t i = 0; i < count && err == SHOAL_OK; i++) {
        if (rank == 0) {
            hand_over(&p->futex, 1);
            err = sleep_while(&p->futex, 1);
        } else {
            err = sleep_while(&p->futex, 0);
            hand_over(&p->futex, 0);
        }
    }
    return err;
}
