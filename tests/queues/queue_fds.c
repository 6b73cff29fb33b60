/* Queues and pipes in an event loop: shoal_queue_fd, shoal_pipe_fd. */
#include "shm/world.h"
#include "tests/harness/children.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>

#define MESSAGES SH_REPEAT(10000)
#if defined(__SANITIZE_THREAD__) /* it supports neither threads after a fork nor the timed lock of a process handle */
#define UNDER_TSAN true
#else
#define UNDER_TSAN false
#endif
#define QUEUES 200 /* more than one system call can wait for */

static int fd_of(shoal_queue *q)
{
    int fd = -1;
    ck_assert_ok(shoal_queue_fd(q, &fd));
    return fd;
}

static bool readable(int fd, int milliseconds)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    int n;
    do {
        n = poll(&p, 1, milliseconds);
    } while (n < 0 && errno == EINTR);
    return n == 1 && (p.revents & POLLIN) != 0;
}

#define SOON_MS 20000 /* nothing takes that long unless it is broken */

static void put(shoal_queue *q, int64_t number)
{
    hot_ok(shoal_queue_put(q, shoal_value_int(number), LIMIT));
}

static int64_t get(shoal_queue *q)
{
    shoal_value *v = NULL;
    hot_ok(shoal_queue_get(q, SHOAL_NOW, &v));
    int64_t number = sh_int_of(v);
    shoal_value_destroy(v);
    return number;
}

static int count_threads(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/task");
    ck_assert_ptr_nonnull(d);
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        n += e->d_name[0] != '.';
    }
    closedir(d);
    return n;
}

/* ---- one process ---- */

START_TEST(is_readable_while_there_is_a_message)
{
    shoal_queue *q;
    ck_assert_ok(shoal_queue_create(_i == 0 ? 0 : 4, &q));
    put(q, 1);
    int fd = fd_of(q);
    ck_assert_int_eq(fd_of(q), fd);
    ck_assert(readable(fd, 0)); /* a message that was there before is seen at once */
    put(q, 2);
    ck_assert_int_eq(get(q), 1);
    ck_assert(readable(fd, 0));
    ck_assert_int_eq(get(q), 2);
    ck_assert(!readable(fd, 0));    /* the get that emptied the queue cleared it */
    for (int i = 0; i < 200; i++) { /* beyond the first ring, and back */
        put(q, i);
        ck_assert(readable(fd, SOON_MS));
        hot(get(q) == i);
        hot(!readable(fd, 0));
    }
    shoal_value *v;
    ck_assert_err(shoal_queue_get(q, SHOAL_NOW, &v), SHOAL_ETIMEDOUT);
    shoal_queue_close(q);
    ck_assert(readable(fd, SOON_MS));
    ck_assert_err(shoal_queue_get(q, SHOAL_NOW, &v), SHOAL_ECLOSED);
    ck_assert(readable(fd, 0)); /* from now on */
    ck_assert_err(shoal_queue_fd(q, NULL), SHOAL_EINVAL);
    ck_assert_err(shoal_queue_fd(NULL, &fd), SHOAL_EINVAL);
    shoal_release(q);
    ck_assert_int_eq(fcntl(fd, F_GETFD), -1); /* it was closed with the handle */
}
END_TEST

START_TEST(acknowledged_messages_come_back)
{
    shoal_queue *q;
    shoal_value *v;
    shoal_delivery d;
    ck_assert_ok(
        shoal_queue_create_with(&(shoal_queue_options){.acknowledge = true, .lease = _i == 0 ? 0 : SHOAL_MS(100)}, &q));
    int fd = fd_of(q);
    ck_assert(!readable(fd, 0));
    put(q, 1);
    ck_assert(readable(fd, SOON_MS));
    ck_assert_ok(shoal_queue_get_delivery(q, SHOAL_NOW, &v, &d));
    shoal_value_destroy(v);
    if (_i == 0) {
        ck_assert(!readable(fd, 0));
        ck_assert_ok(shoal_delivery_return(&d));
    }
    ck_assert(readable(fd, SOON_MS)); /* returned, or its lease expired */
    shoal_delivery again;
    ck_assert_ok(shoal_queue_get_delivery(q, LIMIT, &v, &again));
    shoal_value_destroy(v);
    ck_assert_ok(shoal_delivery_done(&again));
    if (_i != 0) {
        ck_assert_err(shoal_delivery_done(&d), SHOAL_ESTATE);
    }
    shoal_queue_close(q);
    ck_assert(readable(fd, SOON_MS));
    shoal_release(q);
}
END_TEST

START_TEST(many_queues)
{
    shoal_queue *queues[QUEUES];
    int fds[QUEUES];
    for (int i = 0; i < QUEUES; i++) {
        ck_assert_ok(shoal_queue_create(0, &queues[i]));
        fds[i] = fd_of(queues[i]);
    }
    for (int i = 0; i < QUEUES; i++) {
        put(queues[i], i);
        hot(readable(fds[i], SOON_MS));
        hot(!readable(fds[(i + 1) % QUEUES], 0));
        hot(get(queues[i]) == i);
    }
    for (int i = 0; i < QUEUES; i += 2) { /* the others keep their fds */
        shoal_release(queues[i]);
    }
    for (int i = 1; i < QUEUES; i += 2) {
        put(queues[i], i);
        hot(readable(fds[i], SOON_MS));
        shoal_release(queues[i]);
    }
}
END_TEST

START_TEST(ends_with_the_stay_in_a_world)
{
    for (int i = 0; i < 3; i++) {
        shoal_queue *q;
        ck_assert_ok(shoal_queue_create(0, &q));
        int before = count_threads(), fd = fd_of(q);
        ck_assert_int_gt(count_threads(), before); /* a sanitizer may start a thread, too */
        put(q, 1);
        shoal_world_leave();
        ck_assert(UNDER_TSAN || count_threads() == before);
        ck_assert_int_eq(fcntl(fd, F_GETFD), -1);
        ck_assert_err(shoal_queue_fd(q, &fd), SHOAL_ESTATE);
        shoal_release(q);
    }
}
END_TEST

static int ends_of_others;

static void count_end(bool ends)
{
    ends_of_others += ends ? 100 : 1;
}

START_TEST(others_are_called_at_the_end_too)
{
    sh_world_before_end = count_end;
    for (int i = 1; i <= 2; i++) {
        shoal_queue *q;
        ck_assert_ok(shoal_queue_create(0, &q));
        (void)fd_of(q);
        shoal_world_leave();
        ck_assert_int_eq(ends_of_others, i);
        shoal_release(q);
    }
}
END_TEST

/* ---- several processes ---- */

static shoal_err send_to_all(int rank, const shoal_value *args)
{
    shoal_value *v;
    for (int64_t i = 0; i < ARG_INT("count"); i++) {
        must_ok(shoal_queue_put(ARG(queue, i % 3 == 0 ? "a" : "b"), shoal_value_int(i), LIMIT));
        if (i % 3 == 2) {
            must_ok(shoal_pipe_send(ARG(pipe, "end"), shoal_value_int(rank), LIMIT));
        }
        if (ARG_INT("turns") != 0 || i % 7 == 0) { /* the other side finds mostly empty queues */
            must_ok(shoal_queue_get(ARG(queue, "turn"), LIMIT, &v));
            shoal_value_destroy(v);
        }
    }
    return SHOAL_OK;
}

/* A lost wake-up would cost a second until the watcher looks by itself; the limit per message is far below that. _i: 1
 * to take turns. */
START_TEST(no_message_of_another_process_is_missed)
{
    shoal_queue *a, *b, *turn;
    shoal_pipe *here, *there;
    ck_assert_ok(shoal_queue_create(0, &a));
    ck_assert_ok(shoal_queue_create(2, &b));
    ck_assert_ok(shoal_queue_create(0, &turn));
    ck_assert_ok(shoal_pipe_create(true, &here, &there));
    int pipe_fd = -1;
    ck_assert_ok(shoal_pipe_fd(here, &pipe_fd));
    struct pollfd fds[3] = {
        {.fd = fd_of(a), .events = POLLIN}, {.fd = fd_of(b), .events = POLLIN}, {.fd = pipe_fd, .events = POLLIN}};
    shoal_process *p = start(SHOAL_START_SPAWN, 5, send_to_all,
                             shoal_map("count", MESSAGES, "turns", _i, "a", a, "b", b, "turn", turn, "end", there));
    shoal_release(there);
    int64_t got = 0, sent = 0;
    bool over = false;
    while (!over || got < MESSAGES) {
        shoal_value *v;
        shoal_err err;
        hot(poll(fds, 3, SOON_MS) > 0);
        for (int i = 0; i < 2; i++) {
            shoal_queue *q = i == 0 ? a : b;
            while (fds[i].revents != 0 && (err = shoal_queue_get(q, SHOAL_NOW, &v)) != SHOAL_ETIMEDOUT) {
                hot_ok(err);
                int64_t number = sh_int_of(v);
                shoal_value_destroy(v);
                got++;
                if (_i != 0 || number % 7 == 0) {
                    put(turn, number);
                }
            }
        }
        while (fds[2].revents != 0 && !over && (err = shoal_pipe_recv(here, SHOAL_NOW, &v)) != SHOAL_ETIMEDOUT) {
            if (err == SHOAL_ECLOSED) { /* the last holder of the other end has gone */
                over = true;
                fds[2].fd = -1;
                break;
            }
            hot(err == SHOAL_OK && sh_int_of(v) == 5);
            shoal_value_destroy(v);
            sent++;
        }
    }
    ck_assert_int_eq(got, MESSAGES);
    ck_assert_int_eq(sent, MESSAGES / 3);
    finish(p);
    shoal_release(a);
    shoal_release(b);
    shoal_release(turn);
    shoal_release(here);
}
END_TEST

static shoal_err wait_to_be_killed(int rank, const shoal_value *args)
{
    (void)rank;
    shoal_value *v;
    must_ok(shoal_queue_put(ARG(queue, "told"), shoal_value_null(), LIMIT));
    return shoal_pipe_recv(ARG(pipe, "end"), LIMIT, &v);
}

START_TEST(an_end_closes_when_its_holder_is_killed)
{
    shoal_queue *told;
    shoal_pipe *here, *there;
    int fd = -1;
    ck_assert_ok(shoal_queue_create(0, &told));
    ck_assert_ok(shoal_pipe_create(true, &here, &there));
    shoal_process *p = start(SHOAL_START_SPAWN, 0, wait_to_be_killed, shoal_map("told", told, "end", there));
    until_told(told);
    shoal_release(there);
    ck_assert_ok(shoal_pipe_fd(here, &fd));
    ck_assert(!readable(fd, 0));
    ck_assert_ok(shoal_process_kill(p));
    ck_assert(readable(fd, SOON_MS)); /* only the watcher checks */
    shoal_value *v;
    ck_assert_err(shoal_pipe_recv(here, SHOAL_NOW, &v), SHOAL_ECLOSED);
    finish_as(p, SHOAL_PROCESS_KILLED, SIGKILL);
    shoal_release(here);
    shoal_release(told);
}
END_TEST

/* Waits at the queue `in` when it is asked to, and reports what it got there. */
static shoal_err answer_all(int rank, const shoal_value *args)
{
    (void)rank;
    for (;;) {
        shoal_value *v;
        shoal_err err = shoal_queue_get(ARG(queue, "go"), LIMIT, &v);
        if (err == SHOAL_ECLOSED) {
            return SHOAL_OK;
        }
        must_ok(err);
        must_ok(shoal_queue_put(ARG(queue, "out"), v, LIMIT));
        must_ok(shoal_queue_get(ARG(queue, "in"), LIMIT, &v));
        must_ok(shoal_queue_put(ARG(queue, "out"), v, LIMIT));
    }
}

/* Waits until the other thread of this process, the watcher, is parked. */
static void until_watcher_parked(void)
{
    int64_t deadline = clock_ns() + LIMIT;
    for (bool parked = false; !parked;) {
        DIR *d = opendir("/proc/self/task");
        ck_assert_ptr_nonnull(d);
        for (struct dirent *e; (e = readdir(d)) != NULL;) {
            char path[300], text[64] = "";
            snprintf(path, sizeof path, "/proc/self/task/%s/syscall", e->d_name);
            FILE *f = e->d_name[0] != '.' && atoi(e->d_name) != getpid() ? fopen(path, "re") : NULL;
            parked = parked || (f != NULL && fgets(text, sizeof text, f) != NULL && text[0] != 'r');
            if (f != NULL) {
                fclose(f);
            }
        }
        closedir(d);
        hot(clock_ns() < deadline);
    }
}

/* A process that waits in a get next to the watcher gets the wake-up of the watcher, which was there first. It would
 * come up to a second later if the watcher kept it. */
START_TEST(a_waiter_beside_the_watcher_is_woken)
{
    const int rounds = 20;
    shoal_queue *in, *out, *go;
    ck_assert_ok(shoal_queue_create(0, &in));
    ck_assert_ok(shoal_queue_create(0, &out));
    ck_assert_ok(shoal_queue_create(0, &go));
    (void)fd_of(in);
    shoal_process *p = start(SHOAL_START_SPAWN, 0, answer_all, shoal_map("in", in, "out", out, "go", go));
    int64_t sum = 0;
    for (int i = 0; i < rounds; i++) {
        shoal_value *v;
        ck_assert_err(shoal_queue_get(in, SHOAL_NOW, &v),
                      SHOAL_ETIMEDOUT); /* clears the fd, if the watcher saw the last message */
        until_watcher_parked();
        put(go, i);
        until_told(out);
        until_parked(p);
        int64_t began = clock_ns();
        put(in, i);
        until_told(out);
        sum += clock_ns() - began;
    }
    ck_assert_int_lt(sum / rounds, SHOAL_MS(15)); /* a slice is at least 40, of which half passes on average */
    shoal_queue_close(go);
    finish(p);
    shoal_release(in);
    shoal_release(out);
    shoal_release(go);
}
END_TEST

/* ---- forks and exits ---- */

START_TEST(a_fork_asks_anew)
{
    shoal_queue *q, *back;
    ck_assert_ok(shoal_queue_create(0, &q));
    ck_assert_ok(shoal_queue_create(0, &back));
    int fd = fd_of(q), inherited = fd;
    pid_t pid = fork();
    if (pid == 0) {
        int own = -1;
        bool closed = fcntl(inherited, F_GETFD) == -1;
        bool fine = closed && count_threads() == 1 && shoal_queue_fd(q, &own) == SHOAL_OK && !readable(own, 0) &&
                    shoal_queue_put(q, shoal_value_int(7), LIMIT) == SHOAL_OK && readable(own, SOON_MS);
        fine = shoal_queue_put(back, shoal_value_null(), LIMIT) == SHOAL_OK && fine; /* the parent takes it only now */
        exit(fine ? 0 : 9);
    }
    until_told(back);
    ck_assert(readable(fd, SOON_MS));
    ck_assert_int_eq(get(q), 7);
    ck_assert(!readable(fd, 0));
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
    put(q, 8);
    ck_assert(readable(fd, SOON_MS));
    shoal_release(q);
    shoal_release(back);
}
END_TEST

/* An exit stops the watcher and then gives everything back as usual: nobody has to recover it. */
START_TEST(exit_leaves_nothing)
{
    shoal_queue *q;
    shoal_world_info info;
    ck_assert_ok(shoal_queue_create(0, &q));
    for (int i = 0; i < 10; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            int fd;
            shoal_err err = shoal_queue_fd(q, &fd);
            exit(err == SHOAL_OK ? 0 : 9);
        }
        int status;
        ck_assert_int_eq(waitpid(pid, &status, 0), pid);
        ck_assert_int_eq(status, 0);
        ck_assert_ok(shoal_world_info_get(&info));
        ck_assert_uint_eq(info.processes, 1);
        ck_assert_uint_eq(info.recovered, 0);
    }
    shoal_release(q);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("queue_fds");
    TCase *tc = children_case("queue_fds");
    tcase_add_loop_test(tc, is_readable_while_there_is_a_message, 0, 2);
    tcase_add_loop_test(tc, acknowledged_messages_come_back, 0, 2);
    tcase_add_test(tc, many_queues);
    tcase_add_test(tc, ends_with_the_stay_in_a_world);
    tcase_add_test(tc, others_are_called_at_the_end_too);
    suite_add_tcase(s, tc);
    if (UNDER_TSAN) {
        return s;
    }
    tcase_add_loop_test(tc, no_message_of_another_process_is_missed, 0, 2);
    tcase_add_test(tc, an_end_closes_when_its_holder_is_killed);
    tcase_add_test(tc, a_waiter_beside_the_watcher_is_woken);
    tcase_add_test(tc, a_fork_asks_anew);
    tcase_add_test(tc, exit_leaves_nothing);
    return s;
}

SH_TEST_MAIN(suite)
