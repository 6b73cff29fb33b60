/* shoal_spawn: starts the ranks of one job and waits for them. If one fails, it ends the others. */
#include "base/interrupt.h"

#include "base/error.h"
#include "ipc/value.h"
#include "os/pidfd.h"
#include "proc/sentinel.h"
#include "shm/slot.h"
#include "shm/waits.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define GRACE SHOAL_SECONDS(3)

typedef struct group {
    shoal_process **ranks;
    struct pollfd *fds; /* fd -1: joined */
    int started, running;
    int failed;       /* the rank whose failure is reported; -1: none */
    bool interrupted; /* a signal ended the wait */
    int late;         /* how many still ran when the timeout expired */
    int64_t limit;    /* when the timeout expires */
    int64_t deadline; /* of the other ranks, once one has failed */
} group;

static bool is_failure(const shoal_status *status)
{
    return status->end == SHOAL_FAILED || status->end == SHOAL_KILLED ||
           (status->end == SHOAL_EXITED && status->code != 0);
}

/* Orders ranks that ended between two checks. Killed ranks come before failed ones, because the failures may be
 * consequences; then the rank that failed first. */
static int64_t order_of(const shoal_process *p)
{
    return p->status.end == SHOAL_FAILED ? sh_process_ended_at(p) : 0;
}

static void signal_rest(const group *g, int signal)
{
    for (int i = 0; i < g->started; i++) {
        if (g->fds[i].fd >= 0) {
            sh_process_send(g->ranks[i], signal);
        }
    }
}

/* Joins the ranks that have ended. */
static void gather(group *g)
{
    int first = -1;
    for (int i = 0; i < g->started; i++) {
        shoal_status status;
        if (g->fds[i].fd < 0 || g->fds[i].revents == 0 || !sh_process_is_over(g->ranks[i], &status)) {
            continue;
        }
        g->fds[i].fd = -1;
        g->running--;
        if (is_failure(&status) && (first < 0 || order_of(g->ranks[i]) < order_of(g->ranks[first]))) {
            first = i;
        }
    }
    if (g->failed < 0) {
        g->failed = first;
    }
}

/* Begins to end all ranks that still run: SIGTERM now, SIGKILL after the grace time. */
static void begin_end(group *g, int64_t grace)
{
    signal_rest(g, SIGTERM);
    g->deadline = sh_deadline(grace);
}

static void wait_all(group *g, int64_t grace)
{
    bool ending = g->failed >= 0, killed = false;
    sh_interrupt_begin();
    sh_interrupt asked = sh_interrupt_mine;
    if (ending) {
        sh_interrupt_suspend();
        begin_end(g, grace);
    }
    while (g->running > 0) {
        uint32_t entry = sh_waits_begin(sh_waits_name(SH_WAITS_PROCESSES, (uint32_t)g->running), 0);
        int ended = sh_sentinels_poll(g->ranks, g->fds, (size_t)g->started,
                                      !ending  ? g->limit
                                      : killed ? SH_NO_DEADLINE
                                               : g->deadline);
        sh_waits_end(entry);
        if (ended > 0) {
            gather(g);
        }
        g->interrupted = !ending && sh_interrupt_mine.hit;
        g->late = !ending && !g->interrupted && g->failed < 0 && sh_passed(g->limit) ? g->running : g->late;
        if ((g->failed >= 0 || g->interrupted || g->late > 0) && !ending) {
            ending = true;
            g->failed = g->failed >= 0 ? g->failed : g->started; /* no rank: a signal or the timeout ended it */
            sh_interrupt_suspend();                              /* end the ranks first */
            begin_end(g, grace);
        } else if (ending && !killed && sh_passed(g->deadline)) {
            killed = true;
            signal_rest(g, SIGKILL);
        }
    }
    sh_interrupt_resume(asked);
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

#define STARTS_PER_LOOK 8 /* between checks whether one has failed already */

/* Starts the ranks. Stops early, with SHOAL_OK, if a rank has failed. */
static shoal_err start_all(group *g, shoal_target target, int n, const shoal_value *args,
                           const shoal_process_options *options)
{
    shoal_process_options o = *options;
    for (int i = 0; i < n && g->failed < 0; i++) {
        o.rank = i;
        shoal_err err = sh_process_begin(target, args, &o, &g->ranks[i]);
        if (err != SHOAL_OK) {
            return err;
        }
        g->fds[i] = (struct pollfd){.fd = shoal_process_sentinel(g->ranks[i]), .events = POLLIN};
        g->started++;
        g->running++;
        if (g->started % STARTS_PER_LOOK == 0 && sh_sentinels_poll(g->ranks, g->fds, (size_t)g->started, 0) > 0) {
            gather(g);
        }
    }
    return SHOAL_OK;
}

/* Takes the results out of the handles. */
static void give_results(const group *g, shoal_value **results)
{
    for (int i = 0; i < g->started; i++) {
        results[i] = g->ranks[i]->result;
        g->ranks[i]->result = NULL;
    }
}

static shoal_err run_group(group *g, shoal_target target, int n, const shoal_value *args,
                           const shoal_process_options *options, shoal_value **results)
{
    int64_t grace = options->grace > 0 ? options->grace : GRACE;
    shoal_err err =
        options->timeout < 0 ? sh_fail(SHOAL_EINVAL, "the timeout for %d ranks is negative", n) : check_limits(n);
    if (err != SHOAL_OK) {
        return err;
    }
    g->limit = sh_deadline(options->timeout > 0 ? options->timeout : SHOAL_FOREVER);
    err = start_all(g, target, n, args, options);
    if (err != SHOAL_OK) {
        char text[SH_START_TEXT];
        strncpy(text, shoal_last_error_text(), sizeof text - 1);
        text[sizeof text - 1] = 0;
        g->failed = g->started; /* no rank: the start itself failed */
        wait_all(g, grace);
        return sh_fail(err, "starting rank %d: %s", g->started, text);
    }
    wait_all(g, grace);
    if (g->late > 0) {
        return sh_fail(SHOAL_ETIMEDOUT, "%d of %d ranks still ran when the timeout expired", g->late, n);
    }
    if (g->failed == g->started) {
        return sh_fail(SHOAL_EINTR, "a signal ended the wait");
    }
    if (g->failed >= 0) {
        return sh_fail(SHOAL_ECHILD, "%s", g->ranks[g->failed]->status.text);
    }
    if (results != NULL) {
        give_results(g, results);
    }
    return SHOAL_OK;
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
    shoal_err err = n < 0 ? sh_fail(SHOAL_EINVAL, "%d processes", n) : sh_value_check_free(args);
    if (err == SHOAL_OK && n > 0) {
        group g = {
            .ranks = calloc((size_t)n, sizeof(shoal_process *)), .fds = calloc((size_t)n, sizeof *g.fds), .failed = -1};
        char text[SH_START_TEXT];
        err = g.ranks != NULL && g.fds != NULL
                  ? run_group(&g, target, n, args, options != NULL ? options : &none, results)
                  : sh_fail(SHOAL_ENOMEM, "no memory for %d process handles", n);
        strncpy(text, shoal_last_error_text(), sizeof text - 1);
        text[sizeof text - 1] = 0;
        for (int i = 0; i < g.started; i++) {
            shoal_process_destroy(g.ranks[i]);
        }
        free(g.ranks);
        free(g.fds);
        err = err != SHOAL_OK ? sh_fail(err, "%s", text) : SHOAL_OK;
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
