/* The fork start method. The child starts with a slot that holds everything that its parent holds (shm/world.c,
 * sh_world_fork). */
#include "base/log.h"
#include "os/pidfd.h"
#include "proc/child.h"
#include "proc/registry.h"
#include "proc/sentinel.h"
#include "shm/world.h"

#include <stdio.h>

static sh_a32 warned;

static void warn_of_threads(int threads)
{
    uint32_t no = 0;
    if (sh_cas_acq_rel(&warned, &no, 1)) {
        sh_log("fork in a process with %d threads: locks that other threads hold stay locked in the child, and "
               "buffered output may be written twice; use spawn or forkserver instead",
               threads);
    }
}

/* Forks. Sets *out_child in the child, which is not in the world yet. warns: of threads, if there are any. */
static shoal_err fork_here(const sh_launch *launch, bool warns, sh_born *out_born, bool *out_child)
{
    int threads = sh_thread_count();
    if (threads > 1 && warns) {
        warn_of_threads(threads); /* no flush: it could wait for a stream that another thread reads */
    } else if (threads == 1) {
        fflush(NULL); /* otherwise the child would write it again */
    }
    int32_t pid;
    SH_TRY(sh_sentinel_prepare());
    shoal_err err = sh_world_fork(launch->slot, &pid);
    if (err != SHOAL_OK) {
        sh_sentinel_cancel();
        return err;
    }
    *out_child = pid == 0;
    return pid == 0 ? SHOAL_OK : sh_born_watch(pid, out_born);
}

shoal_err sh_start_by_fork(const sh_launch *launch, sh_born *out_born)
{
    bool child = false;
    shoal_err err = fork_here(launch, true, out_born, &child);
    if (child) {
        sh_child_forked(launch->slot, launch->target, launch->death_signal);
    }
    return err;
}

shoal_err sh_start_resume_fork(const sh_launch *launch, sh_born *out_born)
{
    bool child = false;
    shoal_err err = fork_here(launch, false, out_born, &child);
    if (child) {
        sh_child_resume(launch->slot, launch->death_signal);
        *out_born = (sh_born){.pid = 0, .pidfd = -1};
    }
    return err;
}
