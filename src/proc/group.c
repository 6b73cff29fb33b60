/* shoal_spawn: starts the ranks of one job and waits for them. If one fails, it ends the others. */
#include "base/error.h"
#include "base/interrupt.h"
#include "ipc/value.h"
#include "proc/supervisor.h"
#include "shm/slot.h"

#include <sys/resource.h>
#include <unistd.h>

#define GRACE SHOAL_SECONDS(3)
#define STARTS_PER_LOOK 8 /* between checks whether one has failed already */

typedef struct group {
    sh_supervisor *ranks;
    const shoal_process *failed; /* the rank whose failure is reported; NULL: none */
} group;

/* Orders ranks that ended between two checks. Killed ranks come before failed ones, because the failures may be
 * consequences; then the rank that failed first. */
static int64_t order_of(const shoal_process *p)
{
    return p->status.end == SHOAL_PROCESS_FAILED ? sh_process_ended_at(p) : 0;
}

static sh_verdict ended(void *owner, int rank, const shoal_process *process)
{
    (void)rank;
    group *g = owner;
    const shoal_status *status = &process->status;
    bool failed = status->end == SHOAL_PROCESS_FAILED || status->end == SHOAL_PROCESS_KILLED ||
                  (status->end == SHOAL_PROCESS_EXITED && status->code != 0);
    if (failed && (g->failed == NULL || order_of(process) < order_of(g->failed))) {
        g->failed = process;
    }
    return SH_VERDICT_DONE;
}

/* Checks the limits that are known before a start: slots of the world, fds, and processes of an ordinary user. */
static shoal_err check_limits(int n)
{
    struct rlimit fds, processes;
    uint32_t room = sh_slots_free();
    if ((uint32_t)n > room) {
        return sh_fail(SHOAL_ELIMIT, "%d processes: the world has room for %u more, and for %u in all", n, room,
                       SH_SLOTS);
    }
    if (getrlimit(RLIMIT_NOFILE, &fds) == 0 && fds.rlim_cur != RLIM_INFINITY && (rlim_t)n >= fds.rlim_cur) {
        return sh_fail(SHOAL_ELIMIT, "%d processes need as many fds: ulimit -n allows %llu", n,
                       (unsigned long long)fds.rlim_cur);
    }
    if (geteuid() != 0 && getrlimit(RLIMIT_NPROC, &processes) == 0 && processes.rlim_cur != RLIM_INFINITY &&
        (rlim_t)n >= processes.rlim_cur) {
        return sh_fail(SHOAL_ELIMIT, "%d processes: ulimit -u allows %llu", n, (unsigned long long)processes.rlim_cur);
    }
    return SHOAL_OK;
}

/* Starts the ranks. Stops early, with SHOAL_OK, if a rank has failed. */
static shoal_err start_all(group *g, int n)
{
    for (int i = 0; i < n && g->failed == NULL; i++) {
        shoal_err err = sh_supervisor_start_member(g->ranks, i);
        if (err != SHOAL_OK) {
            return sh_fail(err, "starting rank %d: %s", i, shoal_last_error_text());
        }
        if ((i + 1) % STARTS_PER_LOOK == 0) {
            err = sh_supervisor_tend(g->ranks);
        }
        if (err != SHOAL_OK) {
            return err;
        }
    }
    return SHOAL_OK;
}

/* Waits until all ranks have ended, or one has failed, a signal has ended the wait, or the limit has passed. */
static shoal_err wait_all(group *g, int n, int64_t limit)
{
    while (g->failed == NULL && sh_supervisor_running(g->ranks) > 0) {
        sh_supervisor_wait(g->ranks, NULL, NULL, limit);
        bool interrupted = sh_interrupt_mine.hit;
        SH_TRY(sh_supervisor_tend(g->ranks));
        int late = sh_supervisor_running(g->ranks);
        if (g->failed == NULL && interrupted) {
            return sh_fail(SHOAL_EINTR, "a signal ended the wait");
        }
        if (g->failed == NULL && late > 0 && sh_passed(limit)) {
            return sh_fail(SHOAL_ETIMEDOUT, "%d of %d ranks still ran when the timeout expired", late, n);
        }
    }
    return g->failed == NULL ? SHOAL_OK : sh_fail(SHOAL_ECHILD, "%s", g->failed->status.text);
}

/* Takes the results out of the handles. */
static void give_results(const group *g, int n, shoal_value **results)
{
    for (int i = 0; i < n; i++) {
        shoal_process *p = sh_supervisor_process(g->ranks, i);
        results[i] = p->result;
        p->result = NULL;
    }
}

static shoal_err run_group(shoal_target target, int n, const shoal_value *args, const shoal_process_options *options,
                           shoal_value **results)
{
    group g = {.failed = NULL};
    sh_supervisor_rules rules = {.target = target, .options = *options, .args = args, .owner = &g, .ended = ended};
    SH_TRY(check_limits(n));
    SH_TRY(sh_supervisor_create(&rules, n, &g.ranks));
    int64_t limit = sh_deadline(options->timeout > 0 ? options->timeout : SHOAL_FOREVER);
    shoal_err err = start_all(&g, n);
    if (err == SHOAL_OK) {
        err = wait_all(&g, n, limit);
    }
    if (err == SHOAL_OK && results != NULL) {
        give_results(&g, n, results);
    }
    sh_supervisor_end(g.ranks, SHOAL_NOW, options->grace > 0 ? options->grace : GRACE);
    sh_supervisor_destroy(g.ranks);
    return err;
}

shoal_err shoal_spawn_with(shoal_target target, int n, shoal_value *args, const shoal_process_options *options,
                           shoal_value **results)
{
    static const shoal_process_options none;
    for (int i = 0; results != NULL && i < n; i++) {
        results[i] = NULL;
    }
    SH_NEED_OR_CONSUME(target, args);
    SH_NEED(args);
    shoal_err err = n < 0 ? sh_fail(SHOAL_EINVAL, "%d processes", n)
                          : sh_process_check_options("shoal_spawn_with", options, SH_OPTIONS_OF_SPAWN);
    if (err == SHOAL_OK) {
        err = sh_value_check_free(args);
    }
    if (err == SHOAL_OK && n > 0) {
        err = run_group(target, n, args, options != NULL ? options : &none, results);
    }
    sh_value_consume(args);
    return err;
}

shoal_err shoal_spawn(shoal_target target, int n, shoal_value *args)
{
    SH_NEED_OR_CONSUME(target, args);
    SH_NEED(args);
    return shoal_spawn_with(target, n, args, NULL, NULL);
}
