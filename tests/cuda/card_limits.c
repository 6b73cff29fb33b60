/* The limits of the store of card memory: granules, fds of an ordinary user, fds that the program closes, forged
 * messages. */
#include "tests/cuda/card_memory.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>

#define NOBODY 65534u

/* ---- limits ---- */

/* Makes granules of one memory until it fails. Returns how many there are. */
static int make_many(int fd, shoal_block **granules, int most, shoal_err *out_err)
{
    int n = 0;
    *out_err = SHOAL_OK;
    while (n < most && (*out_err = sh_granule_create(&card, fd, &granules[n])) == SHOAL_OK) {
        n++;
    }
    return n;
}

static void release_many(shoal_block **granules, int from, int to)
{
    for (int i = from; i < to; i++) {
        sh_block_release(granules[i]);
    }
}

START_TEST(there_are_at_most_253_granules)
{
    shoal_block *granules[SH_STORE_MAX + 1];
    memory m = make_memory();
    shoal_err err;
    int fd = -1, fds = 0;
    ck_assert_ok(shoal_world_create(NULL));
    fds = sh_count_fds();
    ck_assert_int_eq(make_many(m.fd, granules, SH_STORE_MAX + 1, &err), SH_STORE_MAX);
    ck_assert_int_eq(err, SHOAL_ELIMIT);
    ck_assert_ptr_nonnull(strstr(shoal_last_error_text(), "253 granules"));
    ck_assert_ok(sh_granule_fd(granules[252]->id, &fd));
    close(fd);
    ck_assert_int_eq(sh_count_fds(), fds);
    sh_block_release(granules[100]);
    ck_assert_ok(sh_granule_create(&card, m.fd, &granules[100]));
    close(m.fd);
    release_many(granules, 0, SH_STORE_MAX);
    ck_assert(is_freed(&m));
    ck_assert_int_eq(sh_count_fds(), fds - 1);
    close(m.told);
}
END_TEST

/* Runs the body as an ordinary user who may have that many fds; in this process's stead where it is one. */
static void run_as_user(int (*body)(void), rlim_t fds)
{
    int status;
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        struct rlimit limit = {.rlim_cur = fds, .rlim_max = fds};
        bool user = geteuid() != 0 || (setgid(NOBODY) == 0 && setuid(NOBODY) == 0);
        _exit(user && setrlimit(RLIMIT_NOFILE, &limit) == 0 ? body() : 250);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_msg(status == 0, "as user: status %x: line %d does not hold", (unsigned)status, WEXITSTATUS(status));
}

static int first_line; /* an exit status has 8 bits */
#define holds(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "line %d: %s (%s)\n", __LINE__, #condition, shoal_last_error_text());                      \
            return 1 + __LINE__ - first_line;                                                                          \
        }                                                                                                              \
    } while (0)

static int have_all(void)
{
    first_line = __LINE__;
    shoal_block *granules[SH_STORE_MAX];
    memory m = make_memory();
    shoal_err err;
    int fd = -1;
    holds(make_many(m.fd, granules, SH_STORE_MAX, &err) == SH_STORE_MAX);
    holds(sh_granule_fd(granules[0]->id, &fd) == SHOAL_OK);
    close(fd);
    close(m.fd);
    release_many(granules, 0, SH_STORE_MAX);
    holds(is_freed(&m));
    return 0;
}

/* What an ordinary user has by default. */
START_TEST(a_user_with_1024_fds_has_room_for_all)
{
    run_as_user(have_all, 1024);
}
END_TEST

/* Fewer fds than granules: an error with numbers, and what is there works on. */
static int have_few(void)
{
    first_line = __LINE__;
    shoal_block *granules[SH_STORE_MAX];
    memory m = make_memory();
    shoal_err err;
    int n = make_many(m.fd, granules, SH_STORE_MAX, &err), fd = -1;
    holds(n > 30 && n < 64 && err == SHOAL_ELIMIT);
    holds(strstr(shoal_last_error_text(), "RLIMIT_NOFILE") != NULL && strstr(shoal_last_error_text(), " 64 ") != NULL);
    holds(sh_granule_fd(granules[0]->id, &fd) == SHOAL_OK);
    close(fd);
    release_many(granules, 0, 10);
    holds(make_many(m.fd, granules, 10, &err) == 10);
    close(m.fd);
    release_many(granules, 0, n);
    holds(is_freed(&m));
    return 0;
}

START_TEST(a_user_with_64_fds_is_told)
{
    run_as_user(have_few, 64);
}
END_TEST

static int stored(void)
{
    sh_store_entry entries[SH_STORE_MAX];
    int n = sh_enter() != NULL ? sh_cardstore_table(entries) : -1;
    sh_leave();
    return n;
}

/* Two worlds of one user: what is in their sockets counts together. */
static int have_two_worlds(void)
{
    first_line = __LINE__;
    shoal_block *granules[SH_STORE_MAX];
    memory m = make_memory();
    shoal_err err;
    int ready[2], n = 0, status;
    char byte;
    holds(pipe2(ready, O_CLOEXEC) == 0);
    pid_t pid = fork();
    if (pid == 0) { /* the other world */
        holds(make_many(m.fd, granules, 100, &err) == 100 && write(ready[1], "x", 1) == 1);
        pause();
    }
    holds(read(ready[0], &byte, 1) == 1);
    n = make_many(m.fd, granules, SH_STORE_MAX, &err);
    holds(err == SHOAL_ELIMIT && n > 10 && n < 40);
    holds(strstr(shoal_last_error_text(), "allows this user no more fds") != NULL);
    release_many(granules, 0, 1); /* what is there can still be freed, and made again */
    holds(stored() == n - 1 && sh_granule_create(&card, m.fd, &granules[0]) == SHOAL_OK);
    kill(pid, SIGKILL);
    holds(waitpid(pid, &status, 0) == pid);
    shoal_block *more;
    int64_t limit = clock_ns() + LIMIT;
    while ((err = sh_granule_create(&card, m.fd, &more)) == SHOAL_ELIMIT && clock_ns() < limit) {
        sched_yield(); /* until the system has closed the other's sockets */
    }
    holds(err == SHOAL_OK);
    close(m.fd);
    sh_block_release(more);
    release_many(granules, 0, n);
    holds(is_freed(&m));
    return 0;
}

START_TEST(the_worlds_of_a_user_share_the_limit)
{
    if (geteuid() != 0) {
        printf("not root: another program of this user may have fds in sockets\n");
        return;
    }
    run_as_user(have_two_worlds, 128);
}
END_TEST

/* ---- fds that the program closes ---- */

static int close_store(void)
{
    first_line = __LINE__;
    shoal_block *granule, *other = NULL;
    memory m = make_memory();
    int store[2], pair[2];
    char bytes[8192];
    holds(sh_granule_create(&card, m.fd, &granule) == SHOAL_OK);
    sh_cardstore_ends(store);
    holds(store[0] >= 0 && store[1] >= 0 && socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) == 0);
    holds(dup2(pair[0], store[0]) == store[0] && dup2(pair[1], store[1]) == store[1]);
    holds(sh_granule_create(&card, m.fd, &other) == SHOAL_EOS && strstr(shoal_last_error_text(), "closed") != NULL);
    int fd = -1;
    holds(sh_granule_fd(granule->id, &fd) == SHOAL_EOS);
    sh_block_release(granule);
    holds(recv(pair[1], bytes, sizeof bytes, MSG_DONTWAIT) == -1 && errno == EAGAIN);
    shoal_world_leave();
    holds(fcntl(store[0], F_GETFD) >= 0 && fcntl(store[1], F_GETFD) >= 0); /* they are the program's now */
    return 0;
}

START_TEST(files_with_the_numbers_of_the_store_are_left_alone)
{
    run_as_user(close_store, 1024);
}
END_TEST

/* There was room for the world's file, but not for the sockets: all but card memory works. */
static int have_no_store(void)
{
    first_line = __LINE__;
    memory m = make_memory();
    shoal_block *block, *granule;
    int next = dup(0);
    close(next);
    struct rlimit limit, few;
    holds(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    few = (struct rlimit){.rlim_cur = (rlim_t)next + 1, .rlim_max = limit.rlim_max};
    holds(setrlimit(RLIMIT_NOFILE, &few) == 0);
    holds(shoal_block_create(100, &block) == SHOAL_OK);
    holds(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    holds(sh_granule_create(&card, m.fd, &granule) == SHOAL_EOS);
    holds(strstr(shoal_last_error_text(), "cannot share GPU memory") != NULL);
    shoal_release(block);
    shoal_world_leave();
    holds(dup(0) == next);
    return 0;
}

START_TEST(a_world_without_a_store_works)
{
    run_as_user(have_no_store, 1024);
}
END_TEST

/* Sends what the library never would. Returns false if the socket does not take it. */
static bool send_junk(int into, const void *bytes, size_t size, int fd)
{
    char room[CMSG_SPACE(sizeof fd)] __attribute__((aligned(8))) = {0};
    struct iovec v = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = size};
    struct msghdr h = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    struct cmsghdr *c = CMSG_FIRSTHDR(&h);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(c), &fd, sizeof fd);
    return sendmsg(into, &h, MSG_DONTWAIT) == (ssize_t)size;
}

/* B62: a process of the world has sent something else into the sockets: an error, no crash, and no fd stays open. */
START_TEST(b62_a_forged_set_is_refused)
{
    static const uint64_t magic = UINT64_C(0x65726f7473206873);
    static char large[16384];
    uint64_t words[5] = {magic, 1, 1, 77, 88};
    const struct {
        const void *bytes;
        size_t size;
    } junk[] = {{"x", 1}, {words, 24}, {words, 32}, {large, sizeof large}, {&(uint64_t[3]){magic, 1, UINT64_MAX}, 24}};
    for (size_t i = 0; i < sizeof junk / sizeof junk[0]; i++) {
        memory m = make_memory();
        shoal_block *granule;
        int store[2];
        ck_assert_ok(shoal_world_create(NULL));
        sh_cardstore_ends(store);
        ck_assert(send_junk(store[0], junk[i].bytes, junk[i].size, m.fd));
        int fds = sh_count_fds();
        ck_assert_err(sh_granule_create(&card, m.fd, &granule), SHOAL_ECORRUPT);
        ck_assert_int_eq(sh_count_fds(), fds);
        close(m.fd);
        shoal_world_leave();
        ck_assert(is_freed(&m));
        close(m.told);
    }
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("card_limits");
    TCase *tc = children_case("limits");
    tcase_add_test(tc, there_are_at_most_253_granules);
    tcase_add_test(tc, a_user_with_1024_fds_has_room_for_all);
    tcase_add_test(tc, a_user_with_64_fds_is_told);
    tcase_add_test(tc, the_worlds_of_a_user_share_the_limit);
    tcase_add_test(tc, files_with_the_numbers_of_the_store_are_left_alone);
    tcase_add_test(tc, a_world_without_a_store_works);
    tcase_add_test(tc, b62_a_forged_set_is_refused);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
