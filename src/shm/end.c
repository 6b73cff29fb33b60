/* The end of a process: exit, exit in a signal handler, return from main, quick_exit, a forked target that returned.
 *
 * It has two steps, because code of the program still runs after the first:
 *
 *   begin    an atexit handler: every later call is refused with SHOAL_ESTATE. The process still holds all that it
 *            held: atexit handlers and C++ statics that run later may follow their pointers.
 *   finish   the library's destructor, after all atexit handlers and statics: releases everything, and the slot.
 *
 * A signal handler may call exit, in the middle of any call of the library: then this process has an operation open,
 * and may hold the lock of sh_enter. So neither step takes that lock, and finish does what recovery would do after
 * SIGKILL (sh_slot_end), which needs nothing but shared memory. death: in between, or with other threads or a card,
 * which may still use what this process holds: other processes recover the slot when this one is dead; `leaving` says
 * not to report a death.
 *
 * exit may also interrupt shoal_world_leave. That has begun to release everything, and its slot may belong to another
 * process already: exit leaves all that to it (SH_LEAVING). What it had not released, others recover when this process
 * is gone.
 */
#include "os/pid.h"
#include "shm/slot.h"
#include "shm/world.h"

#include <stdlib.h>

void (*sh_world_before_end)(bool ends);
bool (*sh_world_is_at_rest)(void);
void (*sh_world_after_attach)(void);
void (*sh_world_after_leave)(void);
bool (*sh_world_uses_card)(void);
sh_a32 sh_world_has_ended;

/* Decides, between threads and between a call and a signal handler, who ends: the one whose swap succeeds. The others
 * touch neither slot nor mapping, which may vanish at any time from now on. Until then the mapping stays, so `leaving`
 * can be stored in the slot. death: after the swap, this process is dead like any other; before `leaving` is stored,
 * its death is reported. */
bool sh_world_refuse(sh_attachment next)
{
    uint32_t no = 0;
    if (sh_attachment_now() != SH_ATTACHED || !sh_cas_acq_rel(&sh_world_has_ended, &no, 1u)) {
        return false;
    }
    if (sh_attachment_now() != SH_ATTACHED) { /* another thread has left since the first check */
        sh_store_release(&sh_world_has_ended, 0u);
        return false;
    }
    sh_store_release(&sh_the_world.self.slot->leaving, 1);
    sh_attachment_set(next);
    sh_signal_fence(); /* before the slot is free: a handler that interrupts us and exits leaves it alone */
    return true;
}

void sh_world_end_begin(void)
{
    if (sh_attachment_now() == SH_ATTACHED) {
        if (sh_world_before_end != NULL) {
            sh_world_before_end(true);
        }
        sh_world_refuse(SH_ENDED);
    }
}

static void finish(void)
{
    static bool done;
    if (sh_attachment_now() == SH_ENDED && !done && sh_thread_is_only() &&
        (sh_world_is_at_rest == NULL || sh_world_is_at_rest())) {
        done = true;
        sh_forks_await(); /* otherwise they would find their reservations undone */
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
                   "%s: this process was forked, but there was no room for it in the world, so it holds nothing there; "
                   "call shoal_world_leave to start anew",
                   what);
}

shoal_err sh_world_ending(const char *what)
{
    return sh_fail(SHOAL_ESTATE, "%s: this process is ending", what);
}
