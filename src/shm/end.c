/* The end of a process: exit, exit in a signal handler, return from main, quick_exit, a forked target that returned.
 *
 * It has two steps, because a process goes on after the first:
 *
 *   begin    an atexit handler: every later call is refused with SHOAL_ESTATE. All that the process holds it still holds: atexit handlers
 *            and C++ statics that run later may follow the pointers that they have.
 *   finish   the library's destructor, after all atexit handlers and statics: all is given back, and the slot.
 *
 * exit may be called by a signal handler, anywhere in a call of ours: then this process has an operation open, and may have the lock of
 * sh_enter. So neither step takes that lock, and finish does what recovery would do after SIGKILL (sh_slot_end), which needs nothing
 * but shared memory. death: in between, or with other threads, which may still work on what we hold: the others recover the slot when we
 * are dead; `leaving` says that nobody is to be told of a death.
 *
 * exit may also interrupt shoal_world_leave. That has begun to give everything back, and its slot may be another's already: exit leaves
 * all that to it (SH_LEAVING). What it had not given back the others recover when this process is gone.
 */
#include "os/pid.h"
#include "shm/slot.h"
#include "shm/world.h"

#include <stdlib.h>

void (*sh_world_before_end)(bool ends);
void (*sh_world_after_leave)(void);
sh_a32 sh_world_has_ended;

/* Thread against thread, and call against signal handler: the swap decides who ends it. The others touch neither slot nor mapping,
 * which may go at any time from now on. Until then the mapping stays, so the slot can be told.
 * death: after the swap, we are dead like any other; before `leaving` is stored, the others are told of a death. */
bool sh_world_refuse(sh_attachment next)
{
    uint32_t no = 0;
    if (sh_the_world.attachment != SH_ATTACHED || !sh_cas_acq_rel(&sh_world_has_ended, &no, 1u)) {
        return false;
    }
    if (sh_the_world.attachment != SH_ATTACHED) { /* another thread has left since we looked */
        sh_store_release(&sh_world_has_ended, 0u);
        return false;
    }
    sh_store_release(&sh_the_world.self.slot->leaving, 1);
    sh_the_world.attachment = next;
    sh_signal_fence(); /* before the slot is free: a handler that interrupts us and ends the process leaves it alone */
    return true;
}

void sh_world_end_begin(void)
{
    if (sh_the_world.attachment == SH_ATTACHED) {
        if (sh_world_before_end != NULL) {
            sh_world_before_end(true);
        }
        sh_world_refuse(SH_ENDED);
    }
}

static void finish(void)
{
    static bool done;
    if (sh_the_world.attachment == SH_ENDED && !done && sh_thread_is_only()) {
        done = true;
        sh_forks_await(); /* or they would find their slots given up */
        sh_slot_end(sh_the_world.self.index);
    }
}

void sh_world_end(void)
{
    sh_world_end_begin();
    finish();
}

void sh_world_watch_end(void)
{
    atexit(sh_world_end_begin);
    at_quick_exit(sh_world_end);
}

__attribute__((destructor)) static void end_last(void)
{
    sh_world_end();
}

shoal_err sh_world_not_ours(const char *what)
{
    return sh_fail(SHOAL_EFORK,
                   "%s: this process was forked, and there was no room in the world for it: it holds nothing there; "
                   "shoal_world_leave lets it begin anew",
                   what);
}

shoal_err sh_world_ending(const char *what)
{
    return sh_fail(SHOAL_ESTATE, "%s: this process is ending", what);
}
