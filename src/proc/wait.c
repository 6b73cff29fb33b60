/* shoal_wait. If all things are processes, it polls their pidfds. No system call waits for pidfds and futexes at once,
 * so if there are also queues, pipes, events or semaphores, it waits for a process by its end word (sleep.h). */
#include "base/interrupt.h"
#include "ipc/queue.h"
#include "proc/sentinel.h"
#include "proc/sleep.h"
#include "shm/waits.h"
#include "sync/event.h"
#include "sync/semaphore.h"

#include <stdlib.h>

#define SLICE_WITHOUT SHOAL_MS(1) /* for things beyond the number that the kernel waits for in one call */

static shoal_queue *queue_of(const shoal_waitable *thing)
{
    return thing->queue != NULL ? thing->queue : thing->pipe != NULL ? sh_pipe_read_queue(thing->pipe) : NULL;
}

/* Returns the gate of a thing that is not a process. */
static sh_gate *gate_of(const shoal_waitable *thing)
{
    return thing->event != NULL       ? &((sh_event_shm *)((shoal_block *)thing->event)->data)->gate
           : thing->semaphore != NULL ? &((sh_semaphore_shm *)((shoal_block *)thing->semaphore)->data)->gate
                                      : sh_queue_gate(queue_of(thing));
}

static bool is_ready(const shoal_waitable *thing)
{
    return thing->process != NULL     ? sh_process_has_ended(thing->process)
           : thing->event != NULL     ? shoal_event_is_set(thing->event)
           : thing->semaphore != NULL ? shoal_semaphore_value(thing->semaphore) > 0
                                      : sh_queue_ready(queue_of(thing));
}

static shoal_err check(const shoal_waitable *things, size_t count, bool *out_only_processes)
{
    *out_only_processes = true;
    for (size_t i = 0; i < count; i++) {
        const shoal_waitable *t = &things[i];
        if ((t->queue != NULL) + (t->pipe != NULL) + (t->process != NULL) + (t->event != NULL) +
                (t->semaphore != NULL) !=
            1) {
            return sh_fail(SHOAL_EINVAL,
                           "shoal_wait: thing %zu must be one of queue, pipe, process, event and semaphore", i);
        }
        if (t->process != NULL && t->process->pidfd < 0) {
            return sh_fail(SHOAL_ESTATE, "shoal_wait: process %d was not started by this process", t->process->pid);
        }
        const shoal_block *object = t->queue != NULL       ? (const shoal_block *)t->queue
                                    : t->pipe != NULL      ? (const shoal_block *)t->pipe
                                    : t->event != NULL     ? (const shoal_block *)t->event
                                    : t->semaphore != NULL ? (const shoal_block *)t->semaphore
                                                           : t->process->record;
        sh_kind kind = t->queue != NULL       ? SH_KIND_QUEUE
                       : t->pipe != NULL      ? SH_KIND_PIPE
                       : t->event != NULL     ? SH_KIND_EVENT
                       : t->semaphore != NULL ? SH_KIND_SEMAPHORE
                                              : SH_KIND_TASK;
        SH_TRY(sh_block_require(object, kind, "shoal_wait"));
        if (t->pipe != NULL && queue_of(t) == NULL) {
            return sh_fail(SHOAL_EINVAL, "shoal_wait: thing %zu is a send-only end of a pipe", i);
        }
        *out_only_processes = *out_only_processes && t->process != NULL;
    }
    return SHOAL_OK;
}

/* Sets `ready` of all things. Returns whether one is ready. */
static bool update_ready(shoal_waitable *things, size_t count)
{
    bool any = false;
    for (size_t i = 0; i < count; i++) {
        shoal_waitable *t = &things[i];
        t->ready = is_ready(t);
        any = any || t->ready;
    }
    return any;
}

static bool wait_processes(shoal_waitable *things, size_t count, struct pollfd *fds, shoal_process **processes,
                           int64_t deadline)
{
    for (size_t i = 0; i < count; i++) {
        fds[i] = (struct pollfd){.fd = things[i].process->pidfd, .events = POLLIN};
        processes[i] = things[i].process;
    }
    while (!update_ready(things, count)) {
        if (sh_passed(deadline) || sh_interrupt_mine.hit) {
            return false;
        }
        sh_sentinels_poll(processes, fds, count, deadline);
    }
    return true;
}

/* Collects what to sleep on, before the last check. */
static void prepare(const shoal_waitable *things, size_t count, sh_sleep *sleep)
{
    sh_sleep_begin(sleep);
    for (size_t i = 0; i < count; i++) {
        if (things[i].process != NULL) {
            sh_sleep_add_process(sleep, things[i].process, SLICE_WITHOUT);
        } else {
            sh_gate *gate = gate_of(&things[i]);
            sh_sleep_add(sleep, &gate->word, sh_gate_prepare(gate), SLICE_WITHOUT);
        }
    }
}

/* Returns until when to sleep at most: nobody is woken when the lease of a message ends. */
static int64_t wait_until(const shoal_waitable *things, size_t count, int64_t deadline)
{
    for (size_t i = 0; i < count; i++) {
        deadline = things[i].queue != NULL ? sh_queue_wait_until(things[i].queue, deadline) : deadline;
    }
    return deadline;
}

/* Passes wake-ups on: this thread may have consumed the single wake-up of one that takes, or that waits for the same
 * process. */
static void pass_wakes(const shoal_waitable *things, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (things[i].ready && things[i].process != NULL) {
            sh_end_word_pass(&sh_start_of(things[i].process->record)->end);
        } else if (things[i].ready) {
            sh_gate_wake(gate_of(&things[i]), 1);
        }
    }
}

static bool wait_mixed(shoal_waitable *things, size_t count, int64_t deadline)
{
    bool parked = false;
    while (!update_ready(things, count)) {
        sh_sleep sleep;
        prepare(things, count, &sleep);
        if (update_ready(things, count)) {
            break;
        }
        parked = true;
        if (sh_passed(deadline)) {
            return false;
        }
        sh_sleep_until(&sleep, wait_until(things, count, deadline));
        if (sh_interrupted()) {
            return update_ready(things, count);
        }
    }
    if (parked) {
        pass_wakes(things, count);
    }
    return true;
}

shoal_err shoal_wait(shoal_waitable *things, size_t count, int64_t timeout)
{
    int64_t deadline = sh_deadline(timeout);
    sh_interrupt_begin();
    bool only_processes;
    if (things == NULL && count > 0) {
        return sh_null_error("shoal_wait", "things");
    }
    SH_TRY(check(things, count, &only_processes));
    if (update_ready(things, count)) {
        return SHOAL_OK;
    }
    if (timeout <= SHOAL_NOW) {
        return sh_fail_waiting(timeout, "none of %zu things is ready", count);
    }
    uint64_t name = only_processes && count == 1 ? sh_waits_name(SH_WAITS_PROCESS, (uint32_t)things[0].process->pid)
                                                 : sh_waits_name(SH_WAITS_ANY, count);
    uint32_t entry = sh_waits_begin(name, 0);
    bool ready;
    if (only_processes) {
        struct pollfd *fds = calloc(count + 1, sizeof *fds);
        shoal_process **processes = calloc(count + 1, sizeof *processes);
        if (fds == NULL || processes == NULL) {
            free(fds);
            free(processes);
            sh_waits_end(entry);
            return sh_fail(SHOAL_ENOMEM, "no memory for %zu fds", count);
        }
        ready = wait_processes(things, count, fds, processes, deadline);
        free(fds);
        free(processes);
    } else {
        ready = wait_mixed(things, count, deadline);
    }
    sh_waits_end(entry);
    return ready ? SHOAL_OK : sh_fail_waiting(timeout, "none of %zu things is ready", count);
}
