/* Atomics, one name per memory order. The only file of the library that uses the compiler's builtins.
 *
 * The types wrap their word in a struct, so that code cannot access it without an atomic by accident. Words in shared
 * memory are always of these types; zeroed memory is a valid zero of each.
 *
 * sh_racy_load and sh_racy_store are relaxed, too. They mark the places where a lost update is intended and harmless
 * (hints, statistics, Hogwild), so that a reader can find them.
 */
#ifndef SH_SYNC_ATOMIC_H
#define SH_SYNC_ATOMIC_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/single_threaded.h>
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

typedef struct sh_a32 {
    uint32_t v;
} sh_a32;

typedef struct sh_a64 {
    uint64_t v;
} sh_a64;

/* Two words for one compare-and-swap; each half can be loaded alone. */
typedef struct sh_a128 {
    sh_a64 lo;
    sh_a64 hi;
} __attribute__((aligned(16))) sh_a128;

#define sh_load_relaxed(p) __atomic_load_n(&(p)->v, __ATOMIC_RELAXED)
#define sh_load_acquire(p) __atomic_load_n(&(p)->v, __ATOMIC_ACQUIRE)
#define sh_load_seq_cst(p) __atomic_load_n(&(p)->v, __ATOMIC_SEQ_CST)
#define sh_store_relaxed(p, x) __atomic_store_n(&(p)->v, (x), __ATOMIC_RELAXED)
#define sh_store_release(p, x) __atomic_store_n(&(p)->v, (x), __ATOMIC_RELEASE)
#define sh_store_seq_cst(p, x) __atomic_store_n(&(p)->v, (x), __ATOMIC_SEQ_CST)

/* Read-modify-write. acq_rel unless the name says otherwise; on x86-64 each is a full barrier anyway. */
#define sh_swap_acq_rel(p, x) __atomic_exchange_n(&(p)->v, (x), __ATOMIC_ACQ_REL)
#define sh_add_relaxed(p, x) __atomic_fetch_add(&(p)->v, (x), __ATOMIC_RELAXED)
#define sh_add_acq_rel(p, x) __atomic_fetch_add(&(p)->v, (x), __ATOMIC_ACQ_REL)
#define sh_sub_acq_rel(p, x) __atomic_fetch_sub(&(p)->v, (x), __ATOMIC_ACQ_REL)
#define sh_or_seq_cst(p, x) __atomic_fetch_or(&(p)->v, (x), __ATOMIC_SEQ_CST)
#define sh_and_seq_cst(p, x) __atomic_fetch_and(&(p)->v, (x), __ATOMIC_SEQ_CST)

/* Compare-and-swap. Returns true if *p was *expected and is now desired; otherwise stores the value found in
 * *expected. */
#define sh_cas_acq_rel(p, expected, desired)                                                                           \
    __atomic_compare_exchange_n(&(p)->v, (expected), (desired), false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)
#define sh_cas_seq_cst(p, expected, desired)                                                                           \
    __atomic_compare_exchange_n(&(p)->v, (expected), (desired), false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)

#define sh_racy_load(p) sh_load_relaxed(p)
#define sh_racy_store(p, x) sh_store_relaxed(p, x)

/* Orders every access before it before every access after it, including loads after stores. */
static inline void sh_fence_seq_cst(void)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

/* Compare-and-swap of both halves, sequentially consistent.
 *
 * ThreadSanitizer replaces the builtin by a lock of its own, which other processes do not take. So under it this is the
 * instruction, and ThreadSanitizer is told what it orders: for each half, because each can be loaded alone. */
static inline bool sh_cas128(sh_a128 *p, uint64_t lo, uint64_t hi, uint64_t new_lo, uint64_t new_hi)
{
#if defined(__SANITIZE_THREAD__) && defined(__x86_64__)
    bool swapped;
    __tsan_release(&p->lo);
    __tsan_release(&p->hi);
    __asm__ volatile("lock cmpxchg16b %1"
                     : "=@ccz"(swapped), "+m"(*p), "+a"(lo), "+d"(hi)
                     : "b"(new_lo), "c"(new_hi)
                     : "memory");
    __tsan_acquire(&p->lo);
    __tsan_acquire(&p->hi);
    return swapped;
#else
    unsigned __int128 expected = ((unsigned __int128)hi << 64) | lo;
    unsigned __int128 desired = ((unsigned __int128)new_hi << 64) | new_lo;
    return __sync_bool_compare_and_swap((unsigned __int128 *)(void *)p, expected, desired);
#endif
}

/* Counts of holders that only threads of this process change. While the process has one thread, which the C library
 * knows, they need no locked instruction; the count is correct when a second thread starts. sh_count_down returns true
 * if the caller was the last holder. */
static inline void sh_count_up(sh_a64 *count)
{
    if (__libc_single_threaded) {
        sh_store_relaxed(count, sh_load_relaxed(count) + 1);
    } else {
        (void)sh_add_relaxed(count, 1);
    }
}

static inline bool sh_count_down(sh_a64 *count)
{
    if (__libc_single_threaded) {
        uint64_t before = sh_load_relaxed(count);
        sh_store_relaxed(count, before - 1);
        return before == 1;
    }
    return sh_sub_acq_rel(count, 1) == 1;
}

/* Orders private stores for a signal handler that interrupts this thread. Compiles to no instruction. */
static inline void sh_signal_fence(void)
{
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
}

/* For spin loops: tells the core that it is waiting for another one. */
static inline void sh_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb");
#endif
}

/* Requests exclusive ownership of a cache line that is about to be written. The compiler's builtin prefetches for
 * reading only, unless the target has the instruction; every x86-64 CPU accepts it, at worst as a no-op. */
static inline void sh_prefetch_write(const void *p)
{
#if defined(__x86_64__)
    __asm__ volatile("prefetchw %0" : : "m"(*(const char *)p));
#else
    __builtin_prefetch(p, 1);
#endif
}

#define SH_CACHE_LINE 64

#endif
