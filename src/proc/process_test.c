#include "proc/process_test.h"

#include "base/clock.h"
#include "os/pid.h"
#include "proc/sentinel.h"
#include "shm/slot.h"
#include "shm/waits.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- B30: arguments, results, endings ---- */

static shoal_err answer(int rank, const shoal_value *args)
{
    shoal_block *data = shoal_arg_block(args, "data");
    must(rank == 7 && shoal_rank() == 7 && data != NULL);
    must(strcmp(shoal_arg_string(args, "word"), "grüße") == 0);
    memset(shoal_block_data(data), 'c', shoal_block_size(data));
    must(shoal_return(shoal_value_int(1)) == SHOAL_OK); /* the last one counts */
    return shoal_return(shoal_map("rank", rank, "data", data));
}

START_TEST(arguments_arrive_and_results_return)
{
    shoal_block *data;
    shoal_process *p;
    ck_assert_ok(shoal_block_create_zeroed(100000, &data));
    ck_assert_ok(shoal_process_start(answer, shoal_map("word", "grüße", "data", data),
                                     &(shoal_process_options){.start = (shoal_start)_i, .rank = 7}, &p));
    ck_assert_ptr_null(shoal_process_result(p));
    ck_assert_int_gt(shoal_process_pid(p), 0);
    shoal_status status = finish(p);
    ck_assert_int_eq(status.end, SHOAL_PROCESS_RETURNED);
    ck_assert_str_eq(status.text, "rank 7 returned");
    const shoal_value *result = shoal_process_result(p);
    ck_assert_int_eq(sh_int_of(shoal_value_find(result, "rank")), 7);
    ck_assert_ptr_eq(shoal_arg_block(result, "data"), data); /* this handle, not a copy */
    ck_assert_int_eq(((char *)shoal_block_data(data))[99999], 'c');
    shoal_process_destroy(p);
    shoal_release(data);
}
END_TEST

typedef enum ending {
    RETURN,
    FAIL,
    FAIL_WITHOUT_TEXT,
    ABORT,
    EXIT_123,
    EXIT_0,
    KILL,
    RT_SIGNAL,
    RETURN_THEN_KILL,
    ENDINGS
} ending;

static void kill_self(void)
{
    kill(getpid(), SIGKILL);
}

static shoal_err end_so(int rank, const shoal_value *args)
{
    (void)rank;
    switch ((ending)sh_int_of(args)) {
    case FAIL: return shoal_fail(SHOAL_EINVAL, "no file %s", "a.txt");
    case FAIL_WITHOUT_TEXT: return SHOAL_EBROKEN;
    case ABORT: abort();
    case EXIT_123: exit(123);
    case EXIT_0: exit(0);
    case KILL: kill_self(); break;
    case RT_SIGNAL: raise(SIGRTMIN + 3); break;
    case RETURN_THEN_KILL: must(atexit(kill_self) == 0); break;
    default: break;
    }
    return SHOAL_OK;
}

START_TEST(endings_are_distinguished)
{
    static const struct {
        shoal_end end;
        int code;
        shoal_err err;
        const char *text;
    } wanted[ENDINGS] = {
        [RETURN] = {SHOAL_PROCESS_RETURNED, 0, SHOAL_OK, "rank 0 returned"},
        [FAIL] = {SHOAL_PROCESS_FAILED, 1, SHOAL_EINVAL, "rank 0 failed: SHOAL_EINVAL: no file a.txt"},
        [FAIL_WITHOUT_TEXT] = {SHOAL_PROCESS_FAILED, 1, SHOAL_EBROKEN, "rank 0 failed: SHOAL_EBROKEN"},
        [ABORT] = {SHOAL_PROCESS_KILLED, SIGABRT, SHOAL_OK, "rank 0 ended by SIGABRT"},
        [EXIT_123] = {SHOAL_PROCESS_EXITED, 123, SHOAL_OK, "rank 0 exited with 123"},
        [EXIT_0] = {SHOAL_PROCESS_EXITED, 0, SHOAL_OK, "rank 0 exited with 0"},
        [KILL] = {SHOAL_PROCESS_KILLED, SIGKILL, SHOAL_OK, "rank 0 ended by SIGKILL"},
        [RT_SIGNAL] = {SHOAL_PROCESS_KILLED, 37, SHOAL_OK, "rank 0 ended by signal 37"},
        [RETURN_THEN_KILL] = {SHOAL_PROCESS_KILLED, SIGKILL, SHOAL_OK, "rank 0 ended by SIGKILL"},
    };
    for (int how = 0; how < ENDINGS; how++) {
        if (how == RETURN_THEN_KILL && _i != SHOAL_START_SPAWN) {
            continue; /* only a fresh image runs exit handlers */
        }
        shoal_process *p = start(_i, end_so, shoal_value_int(how));
        shoal_status status = finish(p);
        ck_assert_str_eq(status.text, wanted[how].text);
        ck_assert_int_eq(status.end, wanted[how].end);
        ck_assert_int_eq(status.code, wanted[how].code);
        ck_assert_int_eq(status.err, wanted[how].err);
        shoal_status again = finish(p);
        ck_assert_str_eq(again.text, status.text);
        ck_assert_err(shoal_process_terminate(p), SHOAL_ESTATE);
        ck_assert(sh_process_has_ended(p));
        shoal_process_destroy(p);
    }
}
END_TEST

/* If something else reaps the children, the record still gives their status. */
START_TEST(a_stolen_exit_status)
{
    struct sigaction ignore = {.sa_handler = SIG_IGN}, before;
    ck_assert_int_eq(sigaction(SIGCHLD, &ignore, &before), 0);
    shoal_process *p = start(_i, end_so, shoal_value_int(FAIL));
    ck_assert_str_eq(finish(p).text, "rank 0 failed: SHOAL_EINVAL: no file a.txt");
    shoal_process_destroy(p);
    p = start(_i, end_so, shoal_value_int(EXIT_123));
    shoal_status status = finish(p);
    ck_assert_int_eq(status.end, SHOAL_PROCESS_EXITED);
    ck_assert_int_eq(status.code, -1);
    ck_assert_str_eq(status.text, "rank 0 ended, but something else collected its exit status");
    shoal_process_destroy(p);
    ck_assert_int_eq(sigaction(SIGCHLD, &before, NULL), 0);
}
END_TEST

/* With fewer and fewer fds available, one start fails when it opens the child's sentinel: the text says how to get more
 * fds. */
START_TEST(no_fd_to_watch_with)
{
    struct rlimit before;
    bool watched = false;
    shoal_process *p = NULL;
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &before), 0);
    for (rlim_t most = 3; p == NULL && most < 100; most++) {
        ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &(struct rlimit){most, before.rlim_max}), 0);
        if (shoal_process_start(no_op, shoal_value_null(), &(shoal_process_options){.start = (shoal_start)_i}, &p) !=
            SHOAL_OK) {
            const char *text = shoal_last_error_text();
            ck_assert_msg(strstr(text, "SIGCHLD") == NULL, "%s", text);
            watched = watched || strstr(text, "watching a new process (ulimit -n raises the limit): Too many");
        }
    }
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &before), 0);
    ck_assert(p != NULL && watched);
    (void)finish(p);
    shoal_process_destroy(p);
}
END_TEST

START_TEST(wrong_calls_are_refused)
{
    shoal_process *p = NULL;
    shoal_target nowhere = (shoal_target)(uintptr_t)&p;
    ck_assert_err(shoal_process_start(NULL, shoal_value_int(1), NULL, &p), SHOAL_EINVAL);
    ck_assert_err(shoal_process_start(nowhere, shoal_value_null(), NULL, &p), SHOAL_EINVAL);
    ck_assert_err(shoal_process_start(no_op, shoal_value_null(), &(shoal_process_options){.start = (shoal_start)9}, &p),
                  SHOAL_EINVAL);
    ck_assert_int_eq(setenv("SHOAL_START", "vfork", 1), 0);
    ck_assert_err(shoal_process_start(no_op, shoal_value_null(), NULL, &p), SHOAL_EINVAL);
    ck_assert_ptr_nonnull(strstr(shoal_last_error_text(), "SHOAL_START=vfork"));
    ck_assert_ptr_null(p);
    ck_assert_int_eq(setenv("SHOAL_START", "forkserver", 1), 0);
    ck_assert_ok(shoal_process_start(no_op, shoal_value_null(), NULL, &p));
    ck_assert_uint_ne(p->server, 0);
    ck_assert_int_eq(finish(p).end, SHOAL_PROCESS_RETURNED);
    shoal_process_destroy(p);
    ck_assert_int_eq(unsetenv("SHOAL_START"), 0);
    ck_assert_err(shoal_return(shoal_value_int(1)), SHOAL_ESTATE);
    ck_assert_int_eq(shoal_rank(), -1);
    ck_assert_err(shoal_process_join(NULL, 0, NULL), SHOAL_EINVAL);
    shoal_process_destroy(NULL);
}
END_TEST

/* ---- B35, B36: waiting ---- */

/* Reports that it is up, and waits until it may end. */
static shoal_err await(int rank, const shoal_value *args)
{
    (void)rank;
    shoal_event_set(shoal_value_as_event(shoal_value_at(args, 0)));
    return shoal_event_wait(shoal_value_as_event(shoal_value_at(args, 1)), LIMIT);
}

typedef struct pair {
    shoal_event *up, *go;
} pair;

static pair make_pair(void)
{
    pair e;
    ck_assert_ok(shoal_event_create(&e.up));
    ck_assert_ok(shoal_event_create(&e.go));
    return e;
}

static void free_pair(pair e)
{
    shoal_release(e.up);
    shoal_release(e.go);
}

START_TEST(join_returns_on_time)
{
    pair e = make_pair();
    shoal_process *p = start(_i, await, shoal_list(e.up, e.go));
    ck_assert_err(shoal_process_join(p, SHOAL_NOW, NULL), SHOAL_ETIMEDOUT);
    int64_t begin = sh_now(), quiet = sh_quiet_now();
    ck_assert_err(shoal_process_join(p, SHOAL_MS(60), NULL), SHOAL_ETIMEDOUT);
    ck_assert_int_ge(sh_now() - begin, SHOAL_MS(60));
    ck_assert_int_lt(sh_quiet_now() - quiet, SHOAL_MS(500));
    ck_assert_err(shoal_process_signal(p, 12345), SHOAL_EINVAL);
    shoal_event_set(e.go);
    ck_assert_int_eq(finish(p).end, SHOAL_PROCESS_RETURNED);
    shoal_process_destroy(p);
    free_pair(e);
}
END_TEST

START_TEST(a_stopped_process_is_not_dead)
{
    pair e = make_pair();
    shoal_process *p = start(_i, await, shoal_list(e.up, e.go));
    uint32_t recovered = 99;
    ck_assert_ok(shoal_event_wait(e.up, LIMIT));
    ck_assert_ok(shoal_process_signal(p, SIGSTOP));
    char state = 0;
    while (state != 'T') { /* until it has stopped */
        char path[64], text[512] = "";
        snprintf(path, sizeof path, "/proc/%d/stat", shoal_process_pid(p));
        FILE *f = fopen(path, "re");
        ck_assert_ptr_nonnull(f);
        ck_assert_ptr_nonnull(fgets(text, sizeof text, f));
        fclose(f);
        state = strrchr(text, ')')[2];
    }
    ck_assert_ok(shoal_world_sweep(&recovered));
    ck_assert_uint_eq(recovered, 0);
    ck_assert_err(shoal_process_join(p, SHOAL_MS(30), NULL), SHOAL_ETIMEDOUT);
    ck_assert_uint_eq(sh_slot_state_phase(sh_load_acquire(&sh_slot_at(p->slot)->state)), SH_PHASE_ALIVE);
    shoal_event_set(e.go);
    ck_assert_ok(shoal_process_signal(p, SIGCONT));
    ck_assert_int_eq(finish(p).end, SHOAL_PROCESS_RETURNED);
    shoal_process_destroy(p);
    free_pair(e);
}
END_TEST

static void exit_7(int number)
{
    (void)number;
    _exit(7);
}

static shoal_err handle_term(int rank, const shoal_value *args)
{
    signal(SIGTERM, exit_7);
    return await(rank, args);
}

START_TEST(terminate_runs_the_handler_and_destroy_ends_it)
{
    pair e = make_pair();
    shoal_process *p = start(_i, handle_term, shoal_list(e.up, e.go));
    ck_assert_ok(shoal_event_wait(e.up, LIMIT));
    ck_assert_ok(shoal_process_terminate(p));
    ck_assert_str_eq(finish(p).text, "rank 0 exited with 7");
    shoal_process_destroy(p);

    shoal_event_clear(e.up);
    p = start(_i, await, shoal_list(e.up, e.go));
    ck_assert_ok(shoal_event_wait(e.up, LIMIT));
    int pidfd = fcntl(shoal_process_sentinel(p), F_DUPFD_CLOEXEC, 0);
    shoal_process_destroy(p); /* SIGTERM suffices */
    siginfo_t info;
    ck_assert_int_eq(waitid(P_PIDFD, (id_t)pidfd, &info, WEXITED | WNOHANG), -1); /* ended and reaped */
    close(pidfd);
    free_pair(e);
}
END_TEST

static shoal_err ignore_term(int rank, const shoal_value *args)
{
    signal(SIGTERM, SIG_IGN);
    return await(rank, args);
}

START_TEST(destroy_kills_a_process_that_ignores_sigterm)
{
    pair e = make_pair();
    shoal_process *p = start(SHOAL_START_SPAWN, ignore_term, shoal_list(e.up, e.go));
    ck_assert_ok(shoal_event_wait(e.up, LIMIT));
    int64_t begin = sh_now(), quiet = sh_quiet_now();
    shoal_process_destroy(p);
    ck_assert_int_ge(sh_now() - begin, SHOAL_SECONDS(2.9));
    ck_assert_int_lt(sh_quiet_now() - quiet, SHOAL_SECONDS(4.5));
    free_pair(e);
}
END_TEST

/* ---- B15: what was put arrives, however the sender ended ---- */

static shoal_err put_and_end(int rank, const shoal_value *args)
{
    shoal_queue *queue = shoal_value_as_queue(shoal_value_at(args, 0));
    shoal_block *block;
    must(shoal_block_create(70000, &block) == SHOAL_OK);
    memset(shoal_block_data(block), 'a' + rank, 70000);
    must(shoal_queue_put(queue, shoal_map("rank", rank, "block", block), LIMIT) == SHOAL_OK);
    if (rank == 1) {
        _exit(0);
    }
    if (rank == 2) {
        kill_self();
    }
    shoal_release(block);
    return SHOAL_OK;
}

START_TEST(a_message_outlives_its_sender)
{
    shoal_queue *queue;
    ck_assert_ok(shoal_queue_create(0, &queue));
    for (int i = 0; i < SH_REPEAT(30); i++) {
        shoal_process_options options = {.start = (shoal_start)_i, .rank = i % 3};
        shoal_process *p;
        shoal_value *message;
        ck_assert_ok(shoal_process_start(put_and_end, shoal_list(queue), &options, &p));
        finish(p);
        shoal_process_destroy(p);
        ck_assert_ok(shoal_queue_get(queue, SHOAL_NOW, &message));
        ck_assert_int_eq(sh_int_of(shoal_value_find(message, "rank")), i % 3);
        const char *bytes = shoal_block_data(shoal_arg_block(message, "block"));
        ck_assert_int_eq(bytes[0], 'a' + i % 3);
        ck_assert_mem_eq(bytes, bytes + 1, 69999); /* all are the same */
        shoal_value_destroy(message);
    }
    shoal_release(queue);
}
END_TEST

/* ---- B43: slots are reused, and each process starts clean ---- */

static shoal_err hold_and_die(int rank, const shoal_value *args)
{
    shoal_block *block;
    (void)rank;
    for (int i = 0; i < 40; i++) {
        must(shoal_block_create(100 << i % 12, &block) == SHOAL_OK);
    }
    must(shoal_lock_lock(shoal_value_as_lock(shoal_value_at(args, 0)), LIMIT) != SHOAL_ETIMEDOUT);
    kill_self();
    return SHOAL_OK;
}

START_TEST(join_recovers_a_killed_child_at_once)
{
    shoal_lock *lock;
    shoal_world_info before, info;
    uint32_t slot = 0;
    uint64_t generation = 0;
    ck_assert_ok(shoal_lock_create(&lock));
    ck_assert_ok(shoal_world_info_get(&before));
    for (int i = 0; i < 30; i++) {
        shoal_process *p = start(_i, hold_and_die, shoal_list(lock));
        ck_assert_msg(i == 0 || (p->slot == slot && p->generation == generation + 1),
                      "slot %u life %llu after slot %u life %llu", p->slot, (unsigned long long)p->generation, slot,
                      (unsigned long long)generation);
        slot = p->slot;
        generation = p->generation;
        ck_assert_str_eq(finish(p).text, "rank 0 ended by SIGKILL");
        shoal_process_destroy(p);
        ck_assert_ok(shoal_world_info_get(&info));
        ck_assert_uint_eq(info.blocks_live, before.blocks_live);
        ck_assert_uint_eq(info.recovered, before.recovered + (uint64_t)i + 1);
        ck_assert_ok(shoal_lock_lock(lock, SHOAL_NOW));
        ck_assert(shoal_lock_owner_died(lock));
        ck_assert_ok(shoal_lock_mark_consistent(lock));
        ck_assert_ok(shoal_lock_unlock(lock));
    }
    shoal_release(lock);
}
END_TEST

/* ---- what a child inherits ---- */

/* Returns how many of this process's fds refer to something of that name. */
static int count_links(const char *name)
{
    int n = 0;
    for (int fd = 0; fd < 256; fd++) {
        char path[32], link[256] = "";
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        if (readlink(path, link, sizeof link - 1) > 0 && strstr(link, name) != NULL) {
            n++;
        }
    }
    return n;
}

static shoal_err look_around(int rank, const shoal_value *args)
{
    (void)rank;
    must(getenv("SHOAL_CHILD") == NULL);
    must(count_links("memfd:shoal") == 1);
    must(count_links("pidfd") == 0);
    must(count_links(shoal_value_as_string(shoal_value_at(args, 0))) == 1); /* the lifeline: once, and read-only */
    must(count_links(shoal_value_as_string(shoal_value_at(args, 1))) == 0);
    char name[32] = "";
    FILE *f = fopen("/proc/self/comm", "re");
    must(f != NULL && fgets(name, sizeof name, f) != NULL && strncmp(name, "proc_process_te", 15) == 0);
    fclose(f);
    return SHOAL_OK;
}

/* Returns the name of what the only fd of its kind refers to. */
static void find_link(const char *kind, char *out_link, size_t size)
{
    for (int fd = 255; fd >= 0; fd--) {
        char path[32];
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        memset(out_link, 0, size);
        if (readlink(path, out_link, size - 1) > 0 && strstr(out_link, kind) != NULL) {
            return;
        }
    }
    ck_abort_msg("no fd of kind %s", kind);
}

START_TEST(a_child_inherits_nothing_else)
{
    pair e = make_pair();
    char lifeline[64], socket[64] = "none";
    /* Now there are a lifeline, a pidfd, and perhaps a fork server. */
    shoal_process *other = start(_i, await, shoal_list(e.up, e.go));
    find_link("pipe:", lifeline, sizeof lifeline);
    if (_i == SHOAL_START_FORKSERVER) {
        find_link("socket:", socket, sizeof socket);
    }
    shoal_process *p = start(_i, look_around, shoal_list(lifeline, socket));
    ck_assert_str_eq(finish(p).text, "rank 0 returned");
    shoal_process_destroy(p);
    shoal_event_set(e.go);
    finish(other);
    shoal_process_destroy(other);
    free_pair(e);
}
END_TEST

START_TEST(a_failed_start_leaves_nothing)
{
    shoal_world_info info;
    ck_assert_ok(shoal_world_info_get(&info)); /* the world exists */
    struct rlimit limit;
    int first = open("/dev/null", O_RDONLY | O_CLOEXEC), highest = first, plugs[64], plug_count = 0;
    for (int fd = 0; fd < 64; fd++) {
        highest = fcntl(fd, F_GETFD) >= 0 ? fd : highest;
    }
    for (int fd = first; fd < highest;) { /* no gaps below the highest */
        plugs[plug_count++] = fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    }
    int used = sh_count_fds();
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    for (int more = 1; more < 9; more++) { /* each time another step fails */
        shoal_process *p = NULL;
        rlim_t was = limit.rlim_cur;
        limit.rlim_cur = (rlim_t)(used + more);
        ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
        shoal_err err =
            shoal_process_start(no_op, shoal_value_string("x"), &(shoal_process_options){.start = (shoal_start)_i}, &p);
        limit.rlim_cur = was;
        ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
        if (err == SHOAL_OK) {
            finish(p);
            shoal_process_destroy(p);
        } else {
            ck_assert_msg(err == SHOAL_EOS, "%s: %s", shoal_err_name(err), shoal_last_error_text());
        }
        shoal_fork_server_stop();
        ck_assert_int_eq(sh_count_fds(), used);
        ck_assert_int_eq(sh_count_children(), 0);
        ck_assert_ok(shoal_world_info_get(&info));
        ck_assert_uint_eq(info.blocks_live, 0);
        ck_assert_uint_eq(info.processes, 1);
        ck_assert_msg(more > 1 || err != SHOAL_OK, "it started without an fd");
        ck_assert_msg(more < 8 || err == SHOAL_OK, "%s", shoal_last_error_text());
    }
    close(first);
    while (plug_count > 0) {
        close(plugs[--plug_count]);
    }
}
END_TEST

/* ---- nesting ---- */

static shoal_err parent_of(int rank, const shoal_value *args)
{
    int64_t depth = sh_int_of(shoal_value_at(args, 0)), method = sh_int_of(shoal_value_at(args, 1)), below = 0;
    must(rank == 0);
    if (depth > 0) {
        shoal_process *p;
        shoal_process_options options = {.start = (shoal_start)method};
        shoal_err err = shoal_process_start(parent_of, shoal_list(depth - 1, method), &options, &p);
        if (err == SHOAL_OK) {
            err = shoal_process_join(p, LIMIT, NULL);
        }
        if (err != SHOAL_OK) {
            return err;
        }
        below = sh_int_of(shoal_process_result(p));
        shoal_process_destroy(p);
    }
    return shoal_return(shoal_value_int(below + 1));
}

START_TEST(children_have_children)
{
    shoal_process *p = start(_i, parent_of, shoal_list(4, _i));
    ck_assert_str_eq(finish(p).text, "rank 0 returned");
    ck_assert_int_eq(sh_int_of(shoal_process_result(p)), 5);
    shoal_process_destroy(p);
}
END_TEST

/* A stopped fork server delays nobody: how its child ended is read from /proc. */
static shoal_err wait_for_a_signal(int rank, const shoal_value *args)
{
    (void)rank;
    (void)args;
    pause();
    return SHOAL_OK;
}

static pid_t server_pid(void)
{
    for (uint32_t i = 0; i < sh_load_acquire(&sh_the_world.header->slots_used); i++) {
        if (strcmp(sh_slot_at(i)->name, "forkserver") == 0 && sh_load_acquire(&sh_slot_at(i)->pid) != 0) {
            return (pid_t)sh_load_acquire(&sh_slot_at(i)->pid);
        }
    }
    ck_abort_msg("there is no fork server");
    return 0;
}

START_TEST(join_returns_on_time_with_a_stopped_fork_server)
{
    shoal_process *p = start(SHOAL_START_FORKSERVER, wait_for_a_signal, NULL);
    shoal_process *forgotten = start(SHOAL_START_FORKSERVER, wait_for_a_signal, NULL);
    shoal_status status;
    pid_t server = server_pid();
    kill(server, SIGSTOP);
    ck_assert_int_eq(waitpid(server, NULL, WUNTRACED), server);
    ck_assert_ok(shoal_process_kill(p));
    ck_assert_ok(shoal_process_kill(forgotten));
    int64_t begin = sh_quiet_now();
    ck_assert_ok(shoal_process_join(p, LIMIT, &status));
    ck_assert_str_eq(status.text, "rank 0 ended by SIGKILL");
    shoal_process_destroy(p);
    shoal_process_destroy(forgotten);
    ck_assert_int_lt(sh_quiet_now() - begin, SHOAL_SECONDS(3));
    kill(server, SIGCONT);
    p = start(SHOAL_START_FORKSERVER, wait_for_a_signal, NULL); /* late replies are not mistaken for its own */
    ck_assert_ok(shoal_process_kill(p));
    ck_assert_str_eq(finish(p).text, "rank 0 ended by SIGKILL");
    shoal_process_destroy(p);
    kill(server, SIGSTOP); /* a stopped server is killed at the end */
    ck_assert_int_eq(waitpid(server, NULL, WUNTRACED), server);
    begin = sh_quiet_now();
    shoal_fork_server_stop();
    ck_assert_int_lt(sh_quiet_now() - begin, SHOAL_SECONDS(3));
}
END_TEST

/* ps, top and status texts show the name that the caller gave. */
static shoal_err named_child(int rank, const shoal_value *args)
{
    char comm[32] = "";
    (void)args;
    FILE *f = fopen("/proc/self/comm", "re");
    must(f != NULL && fgets(comm, sizeof comm, f) != NULL && strcmp(comm, "reader\n") == 0);
    fclose(f);
    return rank == 0 ? shoal_fail(SHOAL_EINVAL, "words") : (kill(getpid(), SIGKILL), SHOAL_OK);
}

START_TEST(names_in_texts_and_comm)
{
    for (int rank = 0; rank < 2; rank++) {
        shoal_process *p;
        ck_assert_ok(shoal_process_start(
            named_child, shoal_value_null(),
            &(shoal_process_options){.start = (shoal_start)_i, .rank = rank, .name = "reader"}, &p));
        ck_assert_str_eq(finish(p).text, rank == 0 ? "rank 0 (reader) failed: SHOAL_EINVAL: words"
                                                   : "rank 1 (reader) ended by SIGKILL");
        shoal_process_destroy(p);
    }
}
END_TEST

/* A result of so many objects that the parent needs memory of the heap for it. */
#define OBJECTS 3000

static shoal_err return_many(int rank, const shoal_value *args)
{
    (void)args;
    (void)rank;
    shoal_value *list = shoal_value_list();
    for (int i = 0; i < OBJECTS; i++) {
        shoal_block *b;
        must(shoal_block_create_zeroed(16, &b) == SHOAL_OK);
        list = shoal_list_add(list, shoal_value_of(b));
        shoal_release(b);
    }
    return shoal_return(list);
}

/* Takes all memory of the heap, in blocks of many sizes. */
static size_t fill_heap(shoal_block **blocks, size_t room)
{
    size_t n = 0;
    for (size_t size = 1 << 20; size >= 16; size /= 2) {
        while (n < room && shoal_block_create(size, &blocks[n]) == SHOAL_OK) {
            n++;
        }
    }
    return n;
}

/* The first join has reaped the process. Where there are no pidfds, another child may have its pid by now. */
static void check_reused_pid(shoal_process *p)
{
    int32_t pid = p->pid;
    bool by_pipe = p->by_pipe;
    siginfo_t end = {.si_pid = 0};
    pid_t heir = fork();
    ck_assert_int_ge(heir, 0);
    if (heir == 0) {
        for (;;) {
            pause();
        }
    }
    p->pid = heir;
    p->by_pipe = true;
    ck_assert_err(shoal_process_join(p, SHOAL_NOW, NULL), SHOAL_ENOMEM);
    ck_assert_err(shoal_process_kill(p), SHOAL_ESTATE);
    ck_assert(!sh_process_send(p, SIGKILL));
    ck_assert_int_eq(waitid(P_PID, (id_t)heir, &end, WEXITED | WNOHANG | WNOWAIT), 0);
    ck_assert_int_eq(end.si_pid, 0);
    p->pid = pid;
    p->by_pipe = by_pipe;
    ck_assert_int_eq(kill(heir, SIGKILL), 0);
    ck_assert_int_eq(waitpid(heir, NULL, 0), heir);
}

START_TEST(f12_a_full_heap_loses_no_result)
{
    enum { ROOM = 1 << 20 };
    shoal_block **blocks = calloc(ROOM, sizeof(shoal_block *));
    ck_assert_ok(shoal_world_create(&(shoal_world_options){.heap_limit = 16 << 20}));
    shoal_process *p = start(_i, return_many, NULL);
    struct pollfd ended = {.fd = shoal_process_sentinel(p), .events = POLLIN};
    ck_assert_int_eq(poll(&ended, 1, 20000), 1);
    ck_assert_ok(shoal_world_sweep(NULL));
    size_t n = fill_heap(blocks, ROOM);
    ck_assert_uint_lt(n, ROOM);
    shoal_status status = {.text = "untouched"};
    for (int i = 0; i < 3; i++) {
        ck_assert_err(shoal_process_join(p, LIMIT, &status), SHOAL_ENOMEM);
        ck_assert_str_eq(status.text, "untouched");
        ck_assert_ptr_null(shoal_process_result(p));
    }
    check_reused_pid(p);
    while (n > 0) {
        shoal_release(blocks[--n]);
    }
    free(blocks);
    ck_assert_str_eq(finish(p).text, "rank 0 returned");
    ck_assert_uint_eq(shoal_value_count(shoal_process_result(p)), OBJECTS);
    shoal_process_destroy(p);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("process");
    TCase *tc = methods_case("process");
    add_for_methods(tc, names_in_texts_and_comm);
    add_for_methods(tc, f12_a_full_heap_loses_no_result);
    add_for_methods(tc, arguments_arrive_and_results_return);
    add_for_methods(tc, endings_are_distinguished);
    tcase_add_loop_test(tc, no_fd_to_watch_with, SHOAL_START_SPAWN, SHOAL_START_FORK + 1);
    tcase_add_loop_test(tc, a_stolen_exit_status, SHOAL_START_SPAWN, SHOAL_START_FORK + 1);
    tcase_add_test(tc, wrong_calls_are_refused);
    add_for_methods(tc, join_returns_on_time);
    add_for_methods(tc, a_stopped_process_is_not_dead);
    add_for_methods(tc, terminate_runs_the_handler_and_destroy_ends_it);
    tcase_add_test(tc, destroy_kills_a_process_that_ignores_sigterm);
    add_for_methods(tc, a_message_outlives_its_sender);
    add_for_methods(tc, join_recovers_a_killed_child_at_once);
    add_for_methods(tc, a_child_inherits_nothing_else);
    add_for_methods(tc, a_failed_start_leaves_nothing);
    add_for_methods(tc, children_have_children);
    tcase_add_test(tc, join_returns_on_time_with_a_stopped_fork_server);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
