/* Death points: named places in the code where the kill sweep can kill a process.
 *
 *     sh_store_release(&x->word, new);   // death: others see the new word, the cell is stale; recovery finishes the op
 *     SH_DEATH("heap.release.applied");
 *
 * Compiled out unless SHOAL_DEATH_POINTS is defined. Each point is in a linker section, so a sweep can list all of
 * them.
 */
#ifndef SH_BASE_DEATH_H
#define SH_BASE_DEATH_H

#include <stddef.h>

#ifdef SHOAL_DEATH_POINTS

#define SH_DEATH(name)                                                                                                 \
    do {                                                                                                               \
        static const char *const sh_death_point __attribute__((section("sh_death_points"), used)) = name;              \
        sh_death_reached(sh_death_point);                                                                              \
    } while (0)

/* Kills or stops this process if the point is armed and this is the count-th time. */
void sh_death_reached(const char *name);

/* Arms one point of this process: the process dies when it reaches the point for the count-th time (1: the next time).
 * NULL disarms. exec does not inherit it. */
void sh_death_arm(const char *name, int count);

/* The same, but the process stops there once (SIGSTOP). It calls `tell` first, unless that is NULL. */
void sh_death_arm_stop(const char *name, int count, void (*tell)(void));

/* Sets a function that is called with the name of every point that this process reaches, armed or not. NULL removes it.
 * For the sweep's dry run. */
void sh_death_observe(void (*observer)(const char *name));

/* Returns the number of points in the program and a list of their names. A name is listed once for each place where it
 * is compiled in. */
size_t sh_death_points(const char *const **out_names);

#else
#define SH_DEATH(name) ((void)0)
#endif

#endif
