#include "base/death.h"

#ifdef SHOAL_DEATH_POINTS

#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

/* Weak: the linker makes them only where there are points, and the stub's library of kernels has none. */
extern const char *const __start_sh_death_points[] __attribute__((weak));
extern const char *const __stop_sh_death_points[] __attribute__((weak));

static const char *armed;
static int left;
static bool stops;
static void (*tell)(void);
static void (*observer)(const char *name);

void sh_death_arm(const char *name, int count)
{
    left = count;
    stops = false;
    armed = name;
}

void sh_death_arm_stop(const char *name, int count, void (*told)(void))
{
    left = count;
    stops = true;
    tell = told;
    armed = name;
}

void sh_death_observe(void (*fresh)(const char *name))
{
    observer = fresh;
}

void sh_death_reached(const char *name)
{
    if (observer != NULL) {
        observer(name);
    }
    if (armed != NULL && strcmp(armed, name) == 0 && --left == 0) {
        if (stops) {
            armed = NULL;
            if (tell != NULL) {
                tell();
            }
            kill(getpid(), SIGSTOP);
            return;
        }
        kill(getpid(), SIGKILL);
        for (;;) {
            pause();
        }
    }
}

size_t sh_death_points(const char *const **out_names)
{
    *out_names = __start_sh_death_points;
    return (size_t)(__stop_sh_death_points - __start_sh_death_points);
}

#else
typedef int sh_death_points_are_compiled_out; /* ISO C wants a declaration in every file */
#endif
