/* Card memory between processes: makers that are killed, receivers that come later, joiners, locks. */
#include "tests/cuda/card_memory.h"
#include "base/death.h"
#include "shm/slot.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>

/* ---- deaths ---- */

/* Forks a member that makes a granule, puts a piece of it, and is killed. */
static void put_and_die(shoal_queue *q, memory *m)
{
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        shoal_block *granule, *piece;
        if (make_granule(m, &granule) == SHOAL_OK && sh_piece_create(granule, PAGE, 10, &piece) == SHOAL_OK &&
            shoal_queue_put_block(q, piece, SHOAL_NOW) == SHOAL_OK) {
            raise(SIGKILL);
        }
        _exit(1);
    }
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_msg(WIFSIGNALED(status), "the maker ended with %x", (unsigned)status);
    close(m->fd);
}

static shoal_err receive_and_write(int rank, const shoal_value *args)
{
    shoal_block *piece = NULL;
    must_ok(receive(ARG(queue, "q"), &piece));
    must_ok(write_through(piece, (char)('a' + rank)));
    sh_block_release(piece);
    return SHOAL_OK;
}

/* B15, B16, B53: the maker is dead, and so are all fds of the memory but the store's, when the receiver starts. */
START_TEST(b53_memory_outlives_its_maker)
{
    shoal_queue *q;
    ck_assert_ok(shoal_queue_create(0, &q));
    for (int i = 0; i < 3; i++) {
        memory m = make_memory();
        put_and_die(q, &m);
        ck_assert_ok(shoal_world_sweep(NULL));
        ck_assert(!is_freed(&m));
        finish(start(_i, i, receive_and_write, shoal_map("q", q)));
        expect_byte(&m, (char)('a' + i));
        until_freed(&m); /* it was the last holder */
        close(m.told);
    }
    shoal_release(q);
}
END_TEST

/* B53: a consumer is killed while it holds a piece; the maker gets its bytes back, and the memory is freed. */
START_TEST(b53_a_dead_consumer_gives_back)
{
    shoal_queue *q;
    shoal_block *granule, *piece, *got;
    memory m = make_memory();
    ck_assert_ok(shoal_queue_create(0, &q));
    ck_assert_ok(make_granule(&m, &granule));
    ck_assert_ok(sh_piece_create(granule, 0, PAGE, &piece));
    ck_assert_ok(shoal_queue_put_block(q, piece, SHOAL_NOW));
    int ready[2];
    ck_assert_int_eq(pipe2(ready, O_CLOEXEC), 0);
    pid_t pid = fork();
    if (pid == 0) {
        if (receive(q, &got) == SHOAL_OK && write(ready[1], "x", 1) == 1) {
            pause();
        }
        _exit(1);
    }
    char byte;
    ck_assert_int_eq(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    close(ready[1]);
    ck_assert(!sh_block_is_sole_holder(piece));
    kill(pid, SIGKILL);
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
    ck_assert_ok(shoal_world_sweep(NULL));
    ck_assert(sh_block_is_sole_holder(piece));
    sh_block_release(piece);
    ck_assert(!is_freed(&m));
    sh_block_release(granule);
    ck_assert(is_freed(&m));
    close(m.told);
    shoal_release(q);
}
END_TEST

/* The last process of a world ends, by SIGKILL: nobody sweeps, and the memory is freed. */
START_TEST(the_last_process_takes_the_store_along)
{
    memory m = make_memory();
    pid_t pid = fork(); /* in no world */
    if (pid == 0) {
        shoal_block *granule;
        _exit(make_granule(&m, &granule) == SHOAL_OK ? raise(SIGKILL) : 1);
    }
    close(m.fd);
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFSIGNALED(status));
    until_freed(&m);
    close(m.told);
}
END_TEST

static shoal_err make_and_return(int rank, const shoal_value *args)
{
    int ends[2];
    shoal_block *granule, *piece;
    (void)rank;
    must(pipe2(ends, O_CLOEXEC) == 0);
    must_ok(sh_granule_create(&card, ends[1], &granule));
    must_ok(sh_piece_create(granule, 0, PAGE, &piece));
    must_ok(write_through(piece, 'x'));
    must_ok(shoal_queue_put_block(ARG(queue, "q"), piece, SHOAL_NOW));
    sh_block_release(piece);
    sh_block_release(granule);
    close(ends[0]);
    close(ends[1]);
    return SHOAL_OK;
}

/* Children have the store, too, whichever way they were started, and how many fds a process has does not change. */
START_TEST(children_make_granules)
{
    shoal_queue *q;
    shoal_block *piece = NULL;
    ck_assert_ok(shoal_queue_create(0, &q));
    int fds = 0;
    for (int i = 0; i < 3; i++) {
        finish(start(_i, 0, make_and_return, shoal_map("q", q)));
        ck_assert_ok(receive(q, &piece));
        sh_piece seen;
        ck_assert_ok(sh_piece_read(piece, &seen));
        sh_block_release(piece);
        ck_assert(i == 0 || sh_count_fds() == fds); /* the first may have started a fork server */
        fds = sh_count_fds();
    }
    shoal_release(q);
}
END_TEST

/* ---- joining by name ---- */

static void forbid_copies(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_getfd, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof code / sizeof code[0], .filter = code};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

/* Joins a world that holds granule `id`, and makes another one. The exit status says what failed. */
static int join_and_use(const char *name, uint64_t id, bool forbidden)
{
    memory m = make_memory();
    shoal_block *granule = NULL;
    int fd = -1, before = sh_count_fds();
    if (forbidden) {
        forbid_copies();
    }
    if (shoal_world_join(name) != SHOAL_OK) {
        return 1;
    }
    shoal_err wanted = forbidden ? SHOAL_EPERM : SHOAL_OK;
    if (sh_granule_fd(id, &fd) != wanted || sh_granule_create(&card, m.fd, &granule) != wanted) {
        fprintf(stderr, "%s\n", shoal_last_error_text());
        return 2;
    }
    if (forbidden && strstr(shoal_last_error_text(), "joined the world by name") == NULL) {
        return 3;
    }
    if (!forbidden && (write(fd, "j", 1) != 1 || close(fd) != 0)) {
        return 4;
    }
    sh_block_release(granule);
    shoal_world_leave();
    return sh_count_fds() == before ? 0 : 5;
}

/* Forks a process before the world exists, which joins it by name. */
static void join_as(bool forbidden)
{
    memory m = make_memory();
    shoal_block *granule;
    char name[SHOAL_NAME_MAX];
    int go[2], status;
    uint64_t id;
    snprintf(name, sizeof name, "GPUs-%d-%d", (int)getpid(), forbidden);
    ck_assert_int_eq(pipe2(go, O_CLOEXEC), 0);
    pid_t pid = fork();
    if (pid == 0) {
        close(go[1]);
        close(m.fd);
        close(m.told);
        _exit(read(go[0], &id, sizeof id) == sizeof id ? join_and_use(name, id, forbidden) : 9);
    }
    ck_assert_ok(shoal_world_create(&(shoal_world_options){.name = name}));
    ck_assert_ok(make_granule(&m, &granule));
    id = granule->id;
    ck_assert_int_eq(write(go[1], &id, sizeof id), (ssize_t)sizeof id);
    close(go[0]);
    close(go[1]);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_msg(status == 0, "the joiner: status %x", (unsigned)status);
    if (!forbidden) {
        expect_byte(&m, 'j');
    }
    sh_block_release(granule);
    ck_assert(is_freed(&m));
    close(m.told);
}

START_TEST(a_joiner_gets_the_store)
{
    join_as(false);
}
END_TEST

START_TEST(a_joiner_that_may_not_is_told_so)
{
    join_as(true);
}
END_TEST

static shoal_err make_and_drop(int rank, const shoal_value *args)
{
    int ends[2];
    shoal_block *granule;
    (void)rank;
    (void)args;
    must(pipe2(ends, O_CLOEXEC) == 0);
    must_ok(sh_granule_create(&card, ends[1], &granule));
    sh_block_release(granule);
    close(ends[0]);
    close(ends[1]);
    return SHOAL_OK;
}

/* Forks the creator of a world, which does nothing else. */
static pid_t create_elsewhere(const char *name)
{
    int ready[2];
    char byte;
    ck_assert_int_eq(pipe2(ready, O_CLOEXEC), 0);
    pid_t pid = fork();
    if (pid == 0) {
        if (shoal_world_create(&(shoal_world_options){.name = name}) == SHOAL_OK && write(ready[1], "x", 1) == 1) {
            pause();
        }
        _exit(1);
    }
    ck_assert_int_eq(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    close(ready[1]);
    return pid;
}

/* The only process that had the store has ended. A joiner had copied it, and goes on (0); or it may not (1): it is
 * told. */
START_TEST(a_joiner_survives_the_creator)
{
    memory m = make_memory();
    shoal_block *granule = NULL;
    char name[SHOAL_NAME_MAX];
    snprintf(name, sizeof name, "survived-%d", (int)getpid());
    pid_t pid = create_elsewhere(name);
    if (_i == 1) {
        forbid_copies();
    }
    ck_assert_ok(shoal_world_join(name));
    kill(pid, SIGKILL);
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
    ck_assert_ok(shoal_world_sweep(NULL));
    shoal_err err = sh_granule_create(&card, m.fd, &granule);
    close(m.fd);
    if (_i == 0) {
        ck_assert_ok(err);
        finish(start(SHOAL_START_SPAWN, 0, make_and_drop, shoal_value_null()));
        sh_block_release(granule);
    } else {
        ck_assert_err(err, SHOAL_EOS);
        ck_assert_msg(strstr(shoal_last_error_text(), "have ended") != NULL, "%s", shoal_last_error_text());
    }
    ck_assert(is_freed(&m));
    close(m.told);
}
END_TEST

/* ---- locks ---- */

/* A stopped process has the store's lock: the others are told, and a dead one is no obstacle. */
START_TEST(the_lock_of_the_stopped_and_of_the_dead)
{
    memory m = make_memory();
    shoal_block *granule;
    int status;
    ck_assert_ok(shoal_world_create(NULL));
    sh_cardstore_limit = SOON;
    pid_t pid = fork();
    if (pid == 0) {
        _exit(sh_lock_lock(&sh_the_world.header->store.lock, SHOAL_NOW) == SHOAL_OK ? raise(SIGSTOP) : 1);
    }
    ck_assert_int_eq(waitpid(pid, &status, WUNTRACED), pid);
    ck_assert(WIFSTOPPED(status));
    ck_assert_err(sh_granule_create(&card, m.fd, &granule), SHOAL_ETIMEDOUT);
    char wanted[64];
    snprintf(wanted, sizeof wanted, "by process %d: is it stopped?", (int)pid);
    ck_assert_msg(strstr(shoal_last_error_text(), wanted) != NULL, "%s", shoal_last_error_text());
    kill(pid, SIGKILL);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_ok(make_granule(&m, &granule));
    sh_block_release(granule);
    ck_assert(is_freed(&m));
    close(m.told);
}
END_TEST

#ifdef SHOAL_DEATH_POINTS

/* A granule dies while another process has the lock, and is stopped: that one takes its fd out when it continues. */
START_TEST(who_has_the_lock_sweeps_for_the_others)
{
    memory m = make_memory(), other = make_memory();
    shoal_block *granule;
    int go[2], done[2], status;
    char byte;
    ck_assert_ok(shoal_world_create(NULL));
    ck_assert_int_eq(pipe2(go, O_CLOEXEC), 0);
    ck_assert_int_eq(pipe2(done, O_CLOEXEC), 0);
    pid_t pid = fork(); /* before there is a granule that it would hold, too */
    if (pid == 0) {
        close(m.fd);
        sh_death_arm_stop("store.set.dropped", 1, NULL);
        if (read(go[0], &byte, 1) == 1 && make_granule(&other, &granule) == SHOAL_OK && write(done[1], "x", 1) == 1) {
            pause(); /* it does not sweep again */
        }
        _exit(1);
    }
    ck_assert_ok(make_granule(&m, &granule));
    ck_assert_int_eq(write(go[1], "x", 1), 1);
    ck_assert_int_eq(waitpid(pid, &status, WUNTRACED), pid);
    ck_assert(WIFSTOPPED(status));
    sh_block_release(granule);
    ck_assert(!is_freed(&m));
    kill(pid, SIGCONT);
    ck_assert_int_eq(read(done[0], &byte, 1), 1);
    ck_assert(is_freed(&m));
    kill(pid, SIGKILL);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    const int fds[] = {go[0], go[1], done[0], done[1], other.fd, other.told, m.told};
    for (size_t i = 0; i < sizeof fds / sizeof fds[0]; i++) {
        close(fds[i]);
    }
}
END_TEST

#endif

enum { THREADS = 4 };

static void *make_and_release(void *argument)
{
    memory *m = argument;
    for (int i = 0; i < SH_REPEAT(100); i++) {
        shoal_block *granule = NULL, *piece = NULL;
        hot_ok(sh_granule_create(&card, m->fd, &granule));
        hot_ok(sh_piece_create(granule, 0, PAGE, &piece));
        sh_block_release(granule);
        int fd = -1;
        sh_piece seen;
        hot_ok(sh_piece_read(piece, &seen));
        hot_ok(sh_granule_fd(seen.granule, &fd));
        close(fd);
        sh_block_release(piece);
    }
    return NULL;
}

/* Whoever finds the lock taken leaves the sweep to its holder: when all are done, nothing is left in the store. */
START_TEST(threads_and_processes_leave_nothing_behind)
{
    memory m = make_memory();
    pthread_t threads[THREADS];
    int status;
    ck_assert_ok(shoal_world_create(NULL));
    pid_t pid = fork();
    if (pid == 0) {
        make_and_release(&m);
        shoal_world_leave();
        _exit(0);
    }
    for (int i = 0; i < THREADS; i++) {
        ck_assert_int_eq(pthread_create(&threads[i], NULL, make_and_release, &m), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
    close(m.fd);
    ck_assert(is_freed(&m));
    close(m.told);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("card_memory");
    TCase *tc = children_case("processes");
    add_for_methods(tc, b53_memory_outlives_its_maker);
    add_for_methods(tc, children_make_granules);
    tcase_add_test(tc, b53_a_dead_consumer_gives_back);
    tcase_add_test(tc, the_last_process_takes_the_store_along);
    tcase_add_test(tc, a_joiner_gets_the_store);
    tcase_add_test(tc, a_joiner_that_may_not_is_told_so);
    tcase_add_loop_test(tc, a_joiner_survives_the_creator, 0, 2);
    suite_add_tcase(s, tc);
    tc = children_case("locks");
    tcase_add_test(tc, the_lock_of_the_stopped_and_of_the_dead);
#ifdef SHOAL_DEATH_POINTS
    tcase_add_test(tc, who_has_the_lock_sweeps_for_the_others);
#endif
    tcase_add_test(tc, threads_and_processes_leave_nothing_behind);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
