/* The kernels of faults.cu, each in a process of its own: those without a fault are right, those with one are
 * noticed. */
#include "tests/harness/cuda_host/faults.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *const names[FAULTS] = {"a race", "a barrier that a warp misses", "a shuffle that a lane misses",
                                          "a copy that nobody waits for", "a write behind shared memory"};

enum { RIGHT, WRONG };

/* In a child: ends with RIGHT or WRONG, or by a signal. */
static int run(fault_kind kind, bool fault)
{
    int numbers[96], out[96] = {}, wrong = 0;
    for (int t = 0; t < 96; t++) {
        numbers[t] = t;
    }
    run_fault(kind, fault, numbers, out);
    for (int t = 0; t < 96; t++) {
        wrong += out[t] != (t + 1) % 96;
    }
    return wrong == 0 ? RIGHT : WRONG;
}

static int status_of(fault_kind kind, bool fault)
{
    int status = -1;
    fflush(stdout);
    const pid_t pid = fork();
    if (pid == 0) {
        const struct rlimit none = {0, 0};
        setrlimit(RLIMIT_CORE, &none);
        _exit(run(kind, fault));
    }
    return pid > 0 && waitpid(pid, &status, 0) == pid ? status : -1;
}

int main(void)
{
    int failures = 0;
    for (int kind = 0; kind < FAULTS; kind++) {
        const int well = status_of((fault_kind)kind, false), ill = status_of((fault_kind)kind, true);
        const bool noticed = WIFSIGNALED(ill) || (WIFEXITED(ill) && WEXITSTATUS(ill) == WRONG);
        printf("%s: without it status %d, with it status %d: %s\n", names[kind], well, ill,
               well != 0 ? "NOT RIGHT"
               : noticed ? "noticed"
                         : "NOT NOTICED");
        failures += well != 0 || !noticed;
    }
    return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
