#include "proc/supervisor.h"

#include "base/error.h"
#include "base/fork.h"
#include "base/interrupt.h"
#include "ipc/value.h"
#include "os/futex.h"
#include "proc/sentinel.h"
#include "proc/sleep.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#define SURE_INTERVAL SHOAL_SECONDS(1) /* between checks of members that seem to run (sleep.h) */
#define RETRY SHOAL_MS(20)             /* between starts that the system refuses */
#define KILL_LIMIT SHOAL_SECONDS(10)   /* a killed process that is not gone by then hangs in the kernel */
#define RETIRE_LIMIT SHOAL_SECONDS(10) /* for the exit handlers of a process that retires; then SIGTERM */
#define RETIRE_GRACE SHOAL_SECONDS(3)  /* from there to SIGKILL */

typedef struct member {
    shoal_process *process; /* NULL: none was started */
    bool over;              /* it has ended, and `ended` was called */
    bool vacant;            /* to be started */
    bool resigned;          /* it does no more work; it retires when the one before it has ended */
    shoal_process *retiring;
    int64_t retired_at;
    int told; /* the last signal that the retiring process got; 0: none */
} member;

struct sh_supervisor {
    sh_supervisor_rules rules;
    uint64_t maker; /* sh_fork_generation */
    int count;
    member *members;
    shoal_process **processes; /* for poll: the running and the retiring processes */
    struct pollfd *fds;
    sh_a32 changed; /* counts starts, and the close; a futex word of this process */
    sh_a64 deaths;
    int failed_starts; /* in a row */
    int64_t sure_at;   /* when all members are checked next */
    bool closed, ending;
};

bool sh_supervisor_is_ours(const sh_supervisor *s)
{
    return sh_fork_is_ours(s->maker);
}

shoal_process *sh_supervisor_process(const sh_supervisor *s, int rank)
{
    return s->members[rank].process;
}

bool sh_supervisor_runs(const sh_supervisor *s, int rank)
{
    return s->members[rank].process != NULL && !s->members[rank].over;
}

int sh_supervisor_running(const sh_supervisor *s)
{
    int n = 0;
    for (int i = 0; i < s->count; i++) {
        n += sh_supervisor_runs(s, i);
    }
    return n;
}

uint64_t sh_supervisor_deaths(const sh_supervisor *s)
{
    return sh_load_relaxed(&s->deaths);
}

/* ---- starting ---- */

shoal_err sh_supervisor_create(const sh_supervisor_rules *rules, int count, sh_supervisor **out_supervisor)
{
    sh_supervisor *s = calloc(1, sizeof *s);
    if (s != NULL) {
        *s = (sh_supervisor){.rules = *rules, .maker = sh_fork_generation(), .count = count};
        s->members = calloc((size_t)count, sizeof *s->members);
        s->processes = calloc((size_t)count * 2, sizeof(shoal_process *));
        s->fds = calloc((size_t)count * 2, sizeof *s->fds);
    }
    if (s == NULL || s->members == NULL || s->processes == NULL || s->fds == NULL) {
        sh_supervisor_destroy(s);
        return sh_fail(SHOAL_ENOMEM, "no memory for %d process handles", count);
    }
    *out_supervisor = s;
    return SHOAL_OK;
}

/* Wakes the sleeper, because what it sleeps on is no longer complete. */
static void wake_sleeper(sh_supervisor *s)
{
    sh_add_acq_rel(&s->changed, 1); /* pairs with the load in prepare */
    sh_futex_wake(&s->changed, INT_MAX);
}

shoal_err sh_supervisor_start_member(sh_supervisor *s, int rank)
{
    const sh_supervisor_rules *r = &s->rules;
    member *m = &s->members[rank];
    shoal_process_options options = r->options;
    char name[SHOAL_NAME_MAX + 1];
    options.rank = rank;
    if (r->numbered) {
        snprintf(name, sizeof name, "%s-%d", options.name, rank);
        options.name = name;
    }
    shoal_process_destroy(m->process);
    *m = (member){.vacant = true, .retiring = m->retiring, .retired_at = m->retired_at, .told = m->told};
    shoal_value *fresh = r->arguments != NULL ? r->arguments(r->owner, rank) : NULL;
    if (r->arguments != NULL && fresh == NULL) {
        return shoal_last_error();
    }
    shoal_err err = sh_process_begin(r->target, fresh != NULL ? fresh : r->args, &options, &m->process);
    m->vacant = err != SHOAL_OK;
    sh_value_consume(fresh);
    wake_sleeper(s);
    return err;
}

shoal_err sh_supervisor_start(sh_supervisor *s)
{
    for (int i = 0; i < s->count; i++) {
        SH_TRY(sh_supervisor_start_member(s, i));
    }
    return SHOAL_OK;
}

/* ---- the end of a member ---- */

static shoal_err count_failed_start(sh_supervisor *s, bool ready, const char *text)
{
    s->failed_starts = ready ? 0 : s->failed_starts + 1;
    return s->failed_starts <= s->rules.failed_starts
               ? SHOAL_OK
               : sh_fail(SHOAL_ECHILD, "workers keep dying before they are ready: %s", text);
}

/* Joins a member that has ended, and does what the owner decides. */
static shoal_err handle_end(sh_supervisor *s, int rank)
{
    const sh_supervisor_rules *r = &s->rules;
    member *m = &s->members[rank];
    shoal_status status;
    if (!sh_process_is_over(m->process, &status)) {
        return SHOAL_OK; /* only its fork server, which is stopped, knows how it ended: try again later */
    }
    m->over = true;
    if (s->ending) {
        return SHOAL_OK;
    }
    bool ready = r->is_ready == NULL || r->is_ready(r->owner, rank), died = status.end != SHOAL_PROCESS_RETURNED;
    sh_verdict verdict = r->ended(r->owner, rank, m->process);
    if (verdict == SH_VERDICT_FAIL) {
        return shoal_last_error();
    }
    m->vacant = verdict == SH_VERDICT_REPLACE;
    if (died) {
        sh_add_relaxed(&s->deaths, 1);
    }
    return died && r->is_ready != NULL ? count_failed_start(s, ready, status.text) : SHOAL_OK;
}

static void drop(shoal_process **process)
{
    shoal_process_destroy(*process);
    *process = NULL;
}

/* A process that retires runs its exit handlers, and is not cut short in them, unless they take too long. So that no
 * more and more processes retire when the work is quicker than the exits, a rank has one of them at a time: the next
 * one to resign keeps its place until that one has ended. */
static void retire_if_possible(member *m)
{
    if (m->resigned && m->retiring == NULL) {
        *m = (member){.vacant = true, .retiring = m->process, .retired_at = sh_now()};
    }
}

static int64_t retire_limit(const sh_supervisor *s)
{
    return s->rules.retire_limit != 0 ? s->rules.retire_limit : RETIRE_LIMIT;
}

static void tend_retiring(const sh_supervisor *s, member *m)
{
    if (m->retiring == NULL) {
        return;
    }
    int64_t since = sh_now() - m->retired_at, limit = retire_limit(s);
    int signal = since >= limit + RETIRE_GRACE ? SIGKILL : since >= limit ? SIGTERM : 0;
    if (sh_process_has_ended(m->retiring)) {
        drop(&m->retiring);
        retire_if_possible(m);
    } else if (signal != m->told) {
        sh_process_send(m->retiring, signal);
        m->told = signal;
    }
}

static shoal_err tend_member(sh_supervisor *s, int rank, bool sure)
{
    member *m = &s->members[rank];
    tend_retiring(s, m);
    if (sh_supervisor_runs(s, rank) && (sure || sh_process_may_have_ended(m->process)) &&
        sh_process_has_ended(m->process)) {
        SH_TRY(handle_end(s, rank));
    }
    if (m->vacant && !s->closed) {
        shoal_err err = sh_supervisor_start_member(s, rank);
        return s->rules.patient ? SHOAL_OK : err;
    }
    return SHOAL_OK;
}

shoal_err sh_supervisor_tend(sh_supervisor *s)
{
    if (!sh_supervisor_is_ours(s)) {
        return sh_fail(SHOAL_EFORK, "the workers belong to the process that this one was forked from");
    }
    int64_t now = sh_now();
    bool sure = now >= s->sure_at;
    s->sure_at = sure ? now + SURE_INTERVAL : s->sure_at;
    for (int i = 0; i < s->count; i++) {
        SH_TRY(tend_member(s, i, sure));
    }
    return SHOAL_OK;
}

void sh_supervisor_retire(sh_supervisor *s, int rank)
{
    s->members[rank].resigned = true;
    tend_retiring(s, &s->members[rank]);
    retire_if_possible(&s->members[rank]);
}

void sh_supervisor_succeeded(sh_supervisor *s)
{
    s->failed_starts = 0;
}

/* ---- waiting ---- */

/* Lists all processes that have to be joined. Returns how many. */
static size_t list_running(sh_supervisor *s)
{
    size_t n = 0;
    for (int i = 0; i < s->count; i++) {
        const member *m = &s->members[i];
        shoal_process *both[] = {m->over ? NULL : m->process, m->retiring};
        for (int k = 0; k < 2; k++) {
            if (both[k] != NULL) {
                s->processes[n] = both[k];
                s->fds[n++] = (struct pollfd){.fd = both[k]->pidfd, .events = POLLIN};
            }
        }
    }
    return n;
}

/* Returns when the next process that retires is to get a signal, or the deadline. */
static int64_t next_signal(const sh_supervisor *s, int64_t deadline)
{
    for (int i = 0; i < s->count; i++) {
        const member *m = &s->members[i];
        int64_t at = m->retired_at + retire_limit(s) + (m->told != 0 ? RETIRE_GRACE : 0);
        deadline = m->retiring != NULL && m->told != SIGKILL && at < deadline ? at : deadline;
    }
    return deadline;
}

static int wait_for_ends(sh_supervisor *s, size_t n, int64_t deadline)
{
    uint32_t entry = sh_waits_begin(sh_waits_name(SH_WAITS_PROCESSES, n), 0);
    int ended = sh_sentinels_poll(s->processes, s->fds, n, next_signal(s, deadline));
    sh_waits_end(entry);
    return ended;
}

static bool any_may_have_ended(const sh_supervisor *s)
{
    for (int i = 0; i < s->count; i++) {
        if (sh_supervisor_runs(s, i) && sh_process_may_have_ended(s->members[i].process)) {
            return true;
        }
    }
    return false;
}

/* Collects what to sleep on, before the last check of the queue. */
static void prepare(const sh_supervisor *s, shoal_queue *queue, sh_sleep *sleep)
{
    sh_gate *gate = sh_queue_gate(queue);
    sh_sleep_begin(sleep);
    sh_sleep_add(sleep, &gate->word, sh_gate_prepare(gate), SH_SLEEP_UNSEEN);
    sh_sleep_add(sleep, &s->changed, sh_load_acquire(&s->changed), SH_SLEEP_UNSEEN);
    for (int i = 0; i < s->count; i++) {
        if (s->members[i].resigned) { /* a replacement can start when this one has ended */
            sh_sleep_add_process(sleep, s->members[i].retiring, SH_SLEEP_UNSEEN);
        }
        if (sh_supervisor_runs(s, i)) {
            sh_sleep_add_process(sleep, s->members[i].process, SH_SLEEP_UNSEEN);
        } else if (s->members[i].vacant && !s->closed && sleep->longest > RETRY) {
            sleep->longest = RETRY;
        }
    }
}

static void give_back(pthread_mutex_t *lock)
{
    if (lock != NULL) {
        pthread_mutex_unlock(lock);
    }
}

static void lock_if_given(pthread_mutex_t *lock)
{
    if (lock != NULL) {
        pthread_mutex_lock(lock);
    }
}

/* Spins before a sleep, without the lock: an answer that comes at once is noticed at once, and its sender need not wake
 * anyone. */
static bool spin(shoal_queue *queue, int64_t deadline)
{
    sh_wait wait;
    bool ready;
    sh_wait_init(&wait, SHOAL_FOREVER, SH_SLICE_LONG, sh_queue_gate(queue));
    wait.deadline = deadline;
    while (!(ready = sh_queue_ready(queue)) && sh_wait_spin(&wait)) {
    }
    return ready;
}

void sh_supervisor_wait(sh_supervisor *s, shoal_queue *queue, pthread_mutex_t *lock, int64_t deadline)
{
    if (!sh_supervisor_is_ours(s)) {
        return;
    }
    if (queue == NULL) {
        sh_interrupt_begin();
        if (wait_for_ends(s, list_running(s), deadline) > 0 && !any_may_have_ended(s)) {
            s->sure_at = 0; /* it seems to run (sleep.h): the next tend finds it */
        }
        return;
    }
    give_back(lock);
    bool ready = spin(queue, deadline);
    lock_if_given(lock);
    if (ready || sh_passed(deadline)) {
        return;
    }
    sh_sleep sleep;
    prepare(s, queue, &sleep);
    uint64_t number = s->rules.waits_for == SH_WAITS_ANY ? (uint64_t)s->count + 1 : ((shoal_block *)queue)->id;
    give_back(lock);
    if (!sh_queue_ready(queue)) {
        uint32_t entry = sh_waits_begin(sh_waits_name(s->rules.waits_for, number), 0);
        sh_sleep_until(&sleep, deadline);
        sh_waits_end(entry);
        (void)sh_interrupted(); /* called without the lock */
    }
    lock_if_given(lock);
}

/* ---- ending all members ---- */

void sh_supervisor_close(sh_supervisor *s)
{
    if (!s->closed) {
        s->closed = true;
        wake_sleeper(s);
    }
}

bool sh_supervisor_join(sh_supervisor *s, int64_t deadline)
{
    sh_interrupt_begin();
    for (;;) {
        s->sure_at = 0;
        /* A failure concerns a member that has ended, which is all that matters here. */
        shoal_err err = sh_supervisor_tend(s);
        size_t n = list_running(s);
        if (n == 0 || err == SHOAL_EFORK || sh_passed(deadline) || sh_interrupt_mine.hit) {
            return n == 0;
        }
        (void)wait_for_ends(s, n, deadline);
    }
}

static void signal_all(sh_supervisor *s, int signal)
{
    for (size_t i = 0, n = list_running(s); i < n; i++) {
        sh_process_send(s->processes[i], signal);
    }
}

static void drop_all(sh_supervisor *s)
{
    for (int i = 0; s->members != NULL && i < s->count; i++) {
        drop(&s->members[i].process);
        drop(&s->members[i].retiring);
    }
}

void sh_supervisor_end(sh_supervisor *s, int64_t ask, int64_t grace)
{
    sh_interrupt suspended = sh_interrupt_suspend(); /* a signal must not cut clean-up short */
    sh_cleanup_begin();
    s->ending = true;
    sh_supervisor_close(s);
    if (!sh_supervisor_join(s, sh_deadline(ask)) && sh_supervisor_is_ours(s)) {
        if (grace > 0) {
            signal_all(s, SIGTERM);
        }
        if (!sh_supervisor_join(s, sh_deadline(grace))) {
            signal_all(s, SIGKILL);
            (void)sh_supervisor_join(s, sh_deadline(KILL_LIMIT));
        }
    }
    drop_all(s);
    sh_cleanup_end();
    sh_interrupt_resume(suspended);
}

void sh_supervisor_destroy(sh_supervisor *s)
{
    if (s == NULL) {
        return;
    }
    drop_all(s);
    free(s->members);
    free(s->processes);
    free(s->fds);
    free(s);
}
