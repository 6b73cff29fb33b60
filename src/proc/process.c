#include "proc/process.h"

#include "base/error.h"

#include "base/interrupt.h"
#include "base/log.h"
#include "ipc/message.h"
#include "ipc/value.h"
#include "os/pid.h"
#include "os/pidfd.h"
#include "proc/child.h"
#include "proc/registry.h"
#include "proc/sentinel.h"
#include "shm/intent.h"
#include "shm/slot.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define GRACE SHOAL_SECONDS(3)
#define REPLY_LIMIT SHOAL_MS(200)    /* for the fork server, even if the caller does not wait */
#define KILL_LIMIT SHOAL_SECONDS(10) /* a killed process that is not gone by then hangs in the kernel */

/* ---- starting ---- */

static shoal_err choose_method(shoal_start asked, shoal_start *out_start)
{
    static const char *const names[] = {
        [SHOAL_START_SPAWN] = "spawn", [SHOAL_START_FORK] = "fork", [SHOAL_START_FORKSERVER] = "forkserver"};
    const char *text = getenv("SHOAL_START");
    if (asked == SHOAL_START_DEFAULT && text != NULL && text[0] != 0) {
        for (shoal_start s = SHOAL_START_SPAWN; s <= SHOAL_START_FORKSERVER; s++) {
            if (strcmp(text, names[s]) == 0) {
                *out_start = s;
                return SHOAL_OK;
            }
        }
        return sh_fail(SHOAL_EINVAL, "SHOAL_START=%s: expected spawn, fork or forkserver", text);
    }
    if (asked < SHOAL_START_DEFAULT || asked > SHOAL_START_FORKSERVER) {
        return sh_fail(SHOAL_EINVAL, "unknown start method %d", (int)asked);
    }
    *out_start = asked == SHOAL_START_DEFAULT ? SHOAL_START_SPAWN : asked;
    return SHOAL_OK;
}

/* Makes a record with the arguments in it. Called inside the world. */
static shoal_err make_record(sh_ctx *c, const shoal_process *p, const sh_target *target, const sh_encoding *args,
                             shoal_block **out_record)
{
    uint64_t size = offsetof(sh_start_shm, target) + sh_target_size(target);
    shoal_block *b, *message;
    SH_TRY(sh_block_new(c, sh_class_of(size), size, &b));
    sh_block_become(b, SH_KIND_TASK);
    sh_start_shm *record = sh_start_of(b);
    record->rank = p->rank;
    record->flags = (p->outlive ? SH_START_OUTLIVE : 0) | (p->named ? SH_START_NAMED : 0);
    memcpy(&record->target, target, sh_target_size(target));
    if (args != NULL) {
        shoal_err err = sh_message_make(c, args, &message);
        if (err != SHOAL_OK) {
            sh_block_unref(c, b);
            return err;
        }
        sh_message_store(c, message, sh_offset_of(&record->argument));
    }
    SH_DEATH("proc.start.recorded"); /* death: recovery frees the record like any block of this process */
    *out_record = b;
    return SHOAL_OK;
}

/* Makes the record, reserves the slot and gives the slot a reference to the record. From here on the record has a
 * holder even if one of the two processes dies. */
static shoal_err reserve(shoal_process *p, const sh_target *target, const sh_encoding *args)
{
    sh_ctx *c = sh_enter();
    if (c == NULL) {
        return shoal_last_error();
    }
    /* Without the file a forked child could not take its slot, and would try for a while. */
    shoal_err err = sh_world_file() < 0 ? sh_world_file_lost() : make_record(c, p, target, args, &p->record);
    if (err == SHOAL_OK) {
        err = sh_slot_reserve(c, p->name, &p->slot);
    }
    if (err == SHOAL_OK) {
        p->generation = sh_slot_state_generation(sh_load_relaxed(&sh_slot_at(p->slot)->state));
        SH_DEATH("proc.start.reserved"); /* death: recovery of this process recovers the slots that it reserved */
        err = sh_slot_give(c, p->slot, p->record->cell, 0);
        SH_DEATH("proc.start.given");
        if (err != SHOAL_OK) {
            sh_slot_cancel(p->slot, p->generation);
        }
    }
    sh_leave();
    return err;
}

static shoal_err prepare(shoal_process *p, const sh_target *target, const shoal_value *args)
{
    sh_encoding e;
    if (args == NULL) {
        return reserve(p, target, NULL);
    }
    SH_TRY(sh_encoding_init(&e, args));
    shoal_err err = reserve(p, target, &e);
    sh_encoding_fini(&e);
    return err;
}

static shoal_err launch(shoal_process *p, sh_start_method method, const sh_launch *wanted)
{
    sh_launch l = *wanted;
    sh_born born;
    l.slot = p->slot;
    l.lifeline = -1;
    l.death_signal = p->death_signal;
    shoal_err err = p->outlive ? SHOAL_OK : sh_lifeline_hold(&l.lifeline);
    p->hangs = l.lifeline >= 0;
    if (err == SHOAL_OK) {
        err = method(&l, &born);
    }
    if (err == SHOAL_OK && born.pid == 0) { /* this is the child */
        return SHOAL_OK;
    }
    /* death: the child waits for the next step, sees that its parent is dead, and ends. */
    SH_DEATH("proc.start.started");
    if (err == SHOAL_OK) {
        sh_slot_expect(p->slot, born.pid);
        p->pid = born.pid;
        p->pidfd = born.pidfd;
        p->by_pipe = born.by_pipe;
        p->server = born.server;
        p->start_time = p->by_pipe ? sh_pid_start_time(born.pid) : 0;
        SH_DEATH("proc.start.expected");
    } else if (sh_enter() != NULL) {
        sh_slot_cancel(p->slot, p->generation);
        sh_leave();
    }
    return err;
}

static void free_handle(shoal_process *p)
{
    if (p->hangs) {
        sh_lifeline_drop();
    }
    if (p->pidfd >= 0) {
        close(p->pidfd);
    }
    sh_block_release(p->record);
    shoal_value_destroy(p->result);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

shoal_err sh_process_begin(shoal_target target, const shoal_value *args, const shoal_process_options *options,
                           shoal_process **out_process)
{
    static const sh_start_method methods[] = {
        [SHOAL_START_SPAWN] = sh_spawn_start,
        [SHOAL_START_FORK] = sh_start_by_fork,
        [SHOAL_START_FORKSERVER] = sh_forkserver_start,
    };
    static const shoal_process_options none;
    const shoal_process_options *o = options != NULL ? options : &none;
    shoal_start method = SHOAL_START_SPAWN;
    SH_TRY(choose_method(o->start, &method));
    sh_target named = {.path = ""};
    shoal_err err =
        target == NULL ? sh_fail(SHOAL_EINVAL, "the target is NULL") : sh_target_name((sh_function)target, &named);
    if (err != SHOAL_OK &&
        (target == NULL || method != SHOAL_START_FORK)) { /* a forked child finds its target without a name */
        return err;
    }
    char label[SHOAL_NAME_MAX + 1] = "";
    if (o->name == NULL) {
        sh_target_label((sh_function)target, label, sizeof label);
    }
    return sh_process_make(methods[method], &(sh_launch){.target = target}, &named, args, o, label, out_process);
}

shoal_err sh_process_make(sh_start_method method, const sh_launch *wanted, const sh_target *target,
                          const shoal_value *args, const shoal_process_options *o, const char *name,
                          shoal_process **out_process)
{
    if (o->death_signal < 0 || o->death_signal >= NSIG) {
        return sh_fail(SHOAL_EINVAL, "unknown death signal %d", o->death_signal);
    }
    sh_orphans_reap();
    shoal_process *p = calloc(1, sizeof *p);
    if (p == NULL) {
        return sh_fail(SHOAL_ENOMEM, "no memory for a process handle");
    }
    pthread_mutex_init(&p->lock, NULL);
    p->pidfd = -1;
    p->rank = o->rank;
    p->outlive = o->outlive;
    p->death_signal = o->outlive ? 0 : o->death_signal != 0 ? o->death_signal : SIGKILL;
    snprintf(p->name, sizeof p->name, "%s", o->name != NULL ? o->name : name);
    p->named = o->name != NULL && o->name[0] != 0;
    shoal_err err = prepare(p, target, args);
    if (err == SHOAL_OK) {
        err = launch(p, method, wanted);
    }
    if (err != SHOAL_OK || p->pid == 0) { /* pid 0: this is the child, which has no handle of itself */
        free_handle(p);
        if (err == SHOAL_OK) {
            *out_process = NULL;
        }
        return err;
    }
    sh_registry_add(p);
    *out_process = p;
    return SHOAL_OK;
}

shoal_err sh_process_check_options(const char *call, const shoal_process_options *o, sh_options_of of)
{
    if (o == NULL) {
        return SHOAL_OK;
    }
    if (of != SH_OPTIONS_OF_SPAWN && (o->grace != 0 || o->timeout != 0)) {
        return sh_fail(SHOAL_EINVAL, "%s: %s is an option of shoal_spawn_with only", call,
                       o->grace != 0 ? "grace" : "timeout");
    }
    if (of != SH_OPTIONS_OF_PROGRAM && (o->fds != NULL || o->fd_count != 0)) {
        return sh_fail(SHOAL_EINVAL, "%s: fds is an option of shoal_process_start_program only", call);
    }
    if (o->grace < 0 || o->timeout < 0) {
        return sh_fail(SHOAL_EINVAL, "%s: %s is negative", call, o->grace < 0 ? "grace" : "timeout");
    }
    if ((o->fds == NULL) != (o->fd_count == 0)) {
        return sh_fail(SHOAL_EINVAL, "%s: fd_count is %zu, but fds is %sNULL", call, o->fd_count, o->fds ? "not " : "");
    }
    return SHOAL_OK;
}

shoal_err shoal_process_start(shoal_target target, shoal_value *args, const shoal_process_options *options,
                              shoal_process **out_process)
{
    SH_NEED_OR_CONSUME(target, args);
    SH_NEED_OR_CONSUME(out_process, args);
    SH_NEED(args);
    shoal_err err = sh_process_check_options("shoal_process_start", options, SH_OPTIONS_OF_START);
    if (err == SHOAL_OK) {
        err = sh_value_check_free(args);
    }
    if (err == SHOAL_OK) {
        err = sh_process_begin(target, args, options, out_process);
    }
    sh_value_consume(args);
    return err;
}

/* ---- the end ---- */

int64_t sh_process_ended_at(const shoal_process *process)
{
    const sh_start_shm *record = sh_start_of(process->record);
    return sh_load_acquire(&record->phase) == SH_START_ENDED ? (int64_t)sh_load_relaxed(&record->ended_at) : 0;
}

sh_fate sh_fate_of(const siginfo_t *info)
{
    return (sh_fate){.code = info->si_status, .by_signal = info->si_code == CLD_KILLED || info->si_code == CLD_DUMPED};
}

/* Asks the fork server how its child ended. A server that is stopped does not answer. Its child is then a zombie, and
 * stays one because only the server can reap it, so its status is read from /proc; the server reaps it when it runs
 * again. /proc also shows a 0 to those who may not look, so a 0 counts only if the child has said that its target
 * returned. */
static shoal_err reap_by_server(const shoal_process *p, int64_t deadline, sh_fate *out_fate)
{
    int64_t moment = sh_now() + REPLY_LIMIT;
    shoal_err err = sh_forkserver_reap(p->server, p->pid, deadline < moment ? deadline : moment, out_fate);
    int status;
    if (err == SHOAL_ETIMEDOUT && sh_pid_zombie_status(p->pid, &status) &&
        (status != 0 || sh_process_ended_at(p) != 0)) {
        *out_fate = WIFSIGNALED(status) ? (sh_fate){.code = WTERMSIG(status), .by_signal = true}
                                        : (sh_fate){.code = WEXITSTATUS(status)};
        sh_forkserver_drop(p->server, p->pid);
        return SHOAL_OK;
    }
    return err == SHOAL_ETIMEDOUT && deadline > moment ? sh_forkserver_reap(p->server, p->pid, deadline, out_fate)
                                                       : err;
}

/* Reaps a process that has ended. *out_known is false if something else took its status: an ignored SIGCHLD, another
 * wait call, a dead fork server. Returns SHOAL_ETIMEDOUT if only a stopped fork server knows it. */
static shoal_err reap(const shoal_process *p, int64_t deadline, sh_fate *out_fate, bool *out_known)
{
    if (p->server != 0) {
        shoal_err err = reap_by_server(p, deadline, out_fate);
        *out_known = err == SHOAL_OK;
        return err == SHOAL_ETIMEDOUT ? err : SHOAL_OK;
    }
    siginfo_t info;
    int r;
    do {
        r = waitid(p->by_pipe ? P_PID : P_PIDFD, (id_t)(p->by_pipe ? p->pid : p->pidfd), &info,
                   WEXITED); /* it has ended: does not block */
    } while (r != 0 && errno == EINTR);
    *out_fate = r == 0 ? sh_fate_of(&info) : (sh_fate){.code = 0};
    *out_known = r == 0;
    return SHOAL_OK;
}

/* "rank 2", or "rank 2 (reader)" if the caller gave a name. */
#define WHO_SIZE (SHOAL_NAME_MAX + 24)

static const char *say_who(const shoal_process *p, char *buffer)
{
    if (p->named) {
        snprintf(buffer, WHO_SIZE, "rank %d (%s)", p->rank, p->name);
    } else {
        snprintf(buffer, WHO_SIZE, "rank %d", p->rank);
    }
    return buffer;
}

static void describe_signal(shoal_process *p, int number)
{
    char buffer[WHO_SIZE];
    const char *who = say_who(p, buffer);
    const char *name = sigabbrev_np(number);
    p->status = (shoal_status){.end = SHOAL_PROCESS_KILLED, .code = number};
    if (name != NULL) {
        snprintf(p->status.text, sizeof p->status.text, "%s ended by SIG%s", who, name);
    } else {
        snprintf(p->status.text, sizeof p->status.text, "%s ended by signal %d", who, number);
    }
}

/* Fills in the status from the fate (NULL: unknown) and the record. The record counts only if the process then ended as
 * it does after its target returns. */
static void describe(shoal_process *p, const sh_fate *fate)
{
    char buffer[WHO_SIZE];
    const char *who = say_who(p, buffer);
    static const sh_start_shm unknown; /* this process has left the world */
    const sh_start_shm *record = sh_block_is_lost(p->record) ? &unknown : sh_start_of(p->record);
    bool returned = sh_load_acquire(&record->phase) == SH_START_ENDED;
    shoal_err err = (shoal_err)sh_load_relaxed(&record->err);
    int code = fate != NULL ? fate->code : err == SHOAL_OK ? EXIT_SUCCESS : EXIT_FAILURE;
    if (fate != NULL && fate->by_signal) {
        describe_signal(p, code);
    } else if (returned && err == SHOAL_OK && code == EXIT_SUCCESS) {
        p->status = (shoal_status){.end = SHOAL_PROCESS_RETURNED};
        snprintf(p->status.text, sizeof p->status.text, "%s returned", who);
    } else if (returned && err != SHOAL_OK && code == EXIT_FAILURE) {
        p->status = (shoal_status){.end = SHOAL_PROCESS_FAILED, .code = code, .err = err};
        int n = snprintf(p->status.text, sizeof p->status.text, "%s failed: %s", who, shoal_err_name(err));
        if (record->text[0] != 0) {
            snprintf(p->status.text + n, sizeof p->status.text - (size_t)n, ": %.*s", SH_START_TEXT - 1, record->text);
        }
    } else if (fate != NULL) {
        bool never_began = code == SH_EXIT_PRIVILEGED && sh_load_relaxed(&record->phase) == SH_START_MADE;
        p->status = (shoal_status){.end = SHOAL_PROCESS_EXITED, .code = code};
        snprintf(p->status.text, sizeof p->status.text, "%s exited with %d%s", who, code,
                 never_began ? ": " SH_PRIVILEGED_TEXT : "");
    } else {
        p->status = (shoal_status){.end = SHOAL_PROCESS_EXITED, .code = -1};
        snprintf(p->status.text, sizeof p->status.text, "%s ended, but something else collected its exit status", who);
    }
}

/* Only once: nobody else has the status. */
static shoal_err reap_and_describe(shoal_process *p, int64_t deadline)
{
    sh_fate fate;
    bool known = false;
    SH_TRY(reap(p, deadline, &fate, &known));
    describe(p, known ? &fate : NULL);
    sh_store_release(&p->reaped, 1); /* pairs with the acquires of those who have no lock: status */
    return SHOAL_OK;
}

/* The target returned, but its result is nonsense. */
static void describe_unreadable(shoal_process *p, shoal_err err)
{
    char buffer[WHO_SIZE];
    p->status = (shoal_status){.end = SHOAL_PROCESS_FAILED, .code = p->status.code, .err = err};
    snprintf(p->status.text, sizeof p->status.text, "the result of %s cannot be read: %s", say_who(p, buffer),
             shoal_last_error_text());
}

/* Recovers what the child held, then reads its result: recovery may have to finish the store of the result that a
 * killed child began. If there is no memory for it, the result stays in the record, and the next join reads it. */
static shoal_err take_result(shoal_process *p)
{
    sh_ctx *c = sh_block_is_lost(p->record) ? NULL : sh_enter();
    if (c == NULL) {
        return SHOAL_OK;
    }
    sh_slot_bury(p->slot, p->generation);
    SH_DEATH("proc.join.buried");
    uint64_t reference = sh_offset_of(&sh_start_of(p->record)->result);
    shoal_err err = sh_load_acquire((sh_a64 *)sh_at(reference)) != 0
                        ? sh_message_read_at(c, reference, true, &p->result)
                        : SHOAL_OK;
    if (err == SHOAL_OK && p->result != NULL) {
        sh_heap_release(c, reference);
    }
    sh_leave();
    if (err != SHOAL_OK && err != SHOAL_ENOMEM) {
        describe_unreadable(p, err);
        return SHOAL_OK;
    }
    return err;
}

/* Reaps the child and takes its result. The first thread that sees the end does it, once. */
static shoal_err collect(shoal_process *p, int64_t deadline)
{
    shoal_err err = SHOAL_OK;
    if (!sh_mutex_lock_until(&p->lock, deadline)) { /* another thread waits for a stopped fork server */
        return sh_fail(SHOAL_ETIMEDOUT, "%s (process %d) has ended, but another thread is still collecting its status",
                       p->name, p->pid);
    }
    if (sh_load_relaxed(&p->ended) == 0) {
        err = sh_load_relaxed(&p->reaped) != 0 ? SHOAL_OK : reap_and_describe(p, deadline);
        SH_DEATH("proc.join.reaped"); /* death: the next process that sweeps recovers the child's slot */
        if (err == SHOAL_OK) {
            err = take_result(p);
        }
        if (err == SHOAL_OK) {
            sh_store_release(&p->ended, 1); /* pairs with the acquire in join: status and result */
        }
    }
    pthread_mutex_unlock(&p->lock);
    return err;
}

shoal_err shoal_process_join(shoal_process *process, int64_t timeout, shoal_status *out_status)
{
    if (process == NULL) {
        return sh_null_error("shoal_process_join", "the process");
    }
    if (sh_load_acquire(&process->ended) == 0) {
        if (process->pidfd < 0) {
            return sh_fail(SHOAL_ESTATE, "process %d was not started by this process", process->pid);
        }
        int64_t deadline = sh_deadline(timeout);
        if (!sh_process_wait_end(process, deadline)) {
            return sh_fail_waiting(timeout, "%s (process %d) still runs", process->name, process->pid);
        }
        /* Even without a wait the fork server gets a moment to answer. */
        int64_t moment = sh_now() + REPLY_LIMIT;
        SH_TRY(collect(process, deadline > moment ? deadline : moment));
    }
    if (out_status != NULL) {
        *out_status = process->status;
    }
    return SHOAL_OK;
}

bool sh_process_is_over(shoal_process *process, shoal_status *out_status)
{
    bool over = shoal_process_join(process, SHOAL_NOW, out_status) == SHOAL_OK;
    if (!over && sh_load_acquire(&process->reaped) != 0) { /* only its result is missing, for lack of memory */
        *out_status = process->status;
        over = true;
    }
    return over;
}

/* ---- the rest of the public interface ---- */

shoal_err shoal_process_signal(shoal_process *process, int signal)
{
    if (process == NULL) {
        return sh_null_error("shoal_process_signal", "the process");
    }
    if (process->pidfd < 0) {
        return sh_fail(SHOAL_ESTATE, "process %d was not started by this process", process->pid);
    }
    if (sh_process_has_ended(process)) {
        return sh_fail(SHOAL_ESTATE, "process %d has ended", process->pid);
    }
    if (!sh_process_send(process, signal)) {
        return errno == ESRCH    ? sh_fail(SHOAL_ESTATE, "process %d has ended", process->pid)
               : errno == EINVAL ? sh_fail(SHOAL_EINVAL, "unknown signal %d", signal)
                                 : sh_fail_os("sending a signal");
    }
    return SHOAL_OK;
}

shoal_err shoal_process_terminate(shoal_process *process)
{
    SH_NEED(process);
    return shoal_process_signal(process, SIGTERM);
}

shoal_err shoal_process_kill(shoal_process *process)
{
    SH_NEED(process);
    return shoal_process_signal(process, SIGKILL);
}

int32_t shoal_process_pid(const shoal_process *process)
{
    return process != NULL ? process->pid : 0;
}

int shoal_process_sentinel(const shoal_process *process)
{
    return process != NULL ? process->pidfd : -1;
}

const shoal_value *shoal_process_result(const shoal_process *process)
{
    return process != NULL && sh_load_acquire(&process->ended) != 0 ? process->result : NULL;
}

static void abandon(const shoal_process *p)
{
    if (p->server != 0) {
        sh_forkserver_drop(p->server, p->pid);
    } else {
        sh_orphans_add(p->pid);
    }
}

void shoal_process_destroy(shoal_process *process)
{
    if (process == NULL) {
        return;
    }
    sh_interrupt suspended = sh_interrupt_suspend(); /* clean-up is not cut short */
    sh_cleanup_begin();
    bool ours = process->pidfd >= 0;
    shoal_status status;
    bool over = !ours || sh_process_is_over(process, &status);
    /* A process that has ended but was not joined is the child of a stopped fork server: there is nothing to wait
     * for. */
    if (!over && !process->outlive && !sh_process_has_ended(process)) {
        sh_process_send(process, SIGTERM);
        over = shoal_process_join(process, GRACE, NULL) == SHOAL_OK || sh_process_is_over(process, &status);
        if (!over && !sh_process_has_ended(process)) {
            sh_process_send(process, SIGKILL);
            over = shoal_process_join(process, KILL_LIMIT, NULL) == SHOAL_OK || sh_process_is_over(process, &status);
        }
    }
    if (!over) {
        abandon(process);
    }
    sh_registry_remove(process);
    sh_orphans_reap();
    free_handle(process);
    sh_interrupt_resume(suspended);
    sh_cleanup_end();
}
