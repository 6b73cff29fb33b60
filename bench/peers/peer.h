/* Shared by the peers in C: two processes, one asks and one answers with 64 bytes, measured as Shoal is. */
#ifndef BENCH_PEERS_PEER_H
#define BENCH_PEERS_PEER_H

#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PEER_SIZE 64
#define PEER_ROUNDS 101

typedef struct peer_message {
    uint64_t words[PEER_SIZE / sizeof(uint64_t)];
} peer_message;

static inline double peer_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

_Noreturn static inline void peer_fail(const char *what)
{
    perror(what);
    exit(1);
}

static inline void peer_fill(peer_message *message, uint64_t number)
{
    for (size_t i = 0; i < sizeof message->words / sizeof *message->words; i++) {
        message->words[i] = number + i;
    }
}

static inline bool peer_is(const peer_message *message, uint64_t number)
{
    bool same = true;
    for (size_t i = 0; i < sizeof message->words / sizeof *message->words; i++) {
        same = same && message->words[i] == number + i;
    }
    return same;
}

/* Binds the caller to the first or the second CPU that it may use. */
static inline void peer_stay_on(int which)
{
    cpu_set_t all, one;
    if (sched_getaffinity(0, sizeof all, &all) != 0) {
        peer_fail("sched_getaffinity");
    }
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET(cpu, &all) && which-- == 0) {
            CPU_SET(cpu, &one);
        }
    }
    if (sched_setaffinity(0, sizeof one, &one) != 0) {
        peer_fail("needs two CPUs");
    }
}

static inline int peer_by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static inline double peer_median(double seconds[PEER_ROUNDS])
{
    qsort(seconds, PEER_ROUNDS, sizeof *seconds, peer_by_value);
    return seconds[PEER_ROUNDS / 2];
}

static inline void peer_print(const char *name, double seconds)
{
    printf("{\"name\": \"%s\", \"value\": %.6g, \"unit\": \"us\"}\n", name, seconds * 1e6);
    fflush(stdout);
}

/* Asks count times a round, and prints the median of a round trip as one JSON line. */
static inline void peer_measure(const char *name, void (*ask)(uint64_t number), uint64_t count)
{
    double seconds[PEER_ROUNDS];
    uint64_t number = 0;
    for (int round = -1; round < PEER_ROUNDS; round++) {
        double begun = peer_now();
        for (uint64_t i = 0; i < count; i++) {
            ask(number++);
        }
        if (round >= 0) {
            seconds[round] = (peer_now() - begun) / (double)count;
        }
    }
    peer_print(name, peer_median(seconds));
}

/* Passes one word of a shared page back and forth: it measures the current distance between the two CPUs. Each side
 * keeps `now`, from 0. */
static inline void peer_ping_pong(_Atomic uint64_t *word, bool asks, uint64_t count, uint64_t *now)
{
    for (uint64_t i = 0; i < count; i++, *now += 2) {
        if (asks) {
            atomic_store_explicit(word, *now + 1, memory_order_release);
        }
        while (atomic_load_explicit(word, memory_order_acquire) != *now + (asks ? 2 : 1)) {
#if defined(__x86_64__)
            __builtin_ia32_pause();
#endif
        }
        if (!asks) {
            atomic_store_explicit(word, *now + 2, memory_order_release);
        }
    }
}

/* Returns how often the other side has to answer. */
static inline uint64_t peer_answers(uint64_t count)
{
    return count * (PEER_ROUNDS + 1);
}

#endif
