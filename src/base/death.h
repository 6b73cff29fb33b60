/* Death points: named places in the code where a process may be killed by the kill sweep.
 *
 *     sh_store_release(&x->word, new);   // death: others see the new word, the cell is stale; recovery finishes the op
 *     SH_DEATH("heap.release.applied");
 *
 * Compiled out unless SHOAL_DEATH_POINTS is defined. Each point stands in a linker section, so a sweep can list them
 * all.
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

/* Kills or stops this process when the point is armed and its count is used up. */
void sh_death_reached(const char *name);

/* Arms one point for this process: it dies at the count-th time (1: the next) that it gets there. NULL disarms. Not
 * inherited by exec. */
void sh_death_arm(const char *name, int count);

/* The same, but the process stops there (SIGSTOP), once. Before, it calls `tell` if that is not NULL. */
void sh_death_arm_stop(const char *name, int count, void (*tell)(void));

/* Called with the name of every point that this process comes to, armed or not. NULL: nobody is. For the sweep's dry run. */
void sh_death_observe(void (*observer)(const char *name));

/* The list of all points of the program; a name stands in it as often as it is compiled in. */
size_t sh_death_points(const char *const **out_names);

#else
#define SH_DEATH(name) ((void)0)
#endif

#endif
