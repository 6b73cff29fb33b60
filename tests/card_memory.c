/* Card memory between processes: makers that are killed, receivers that come later, joiners, limits. The end of a pipe
 * takes the place of the card's memory: the other end tells when nobody has it any more. */
#include "base/death.h"
#include "ipc/queue_core.h"
#include "shm/card_store.h"
#include "shm/granule.h"
#include "shm/slot.h"
#include "tests/children.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>

#define NOBODY 65534u
#define PAGE UINT64_C(4096)

static const sh_granule_info card = {.uuid = {5}, .size = 100 * PAGE};

/* ---- memory that tells when it is freed ---- */

typedef struct memory {
    int told; /* our end */
    int fd;   /* what is shared */
} memory;

static memory make_memory(void)
{
    int ends[2];
    ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
    return (memory){.told = ends[0], .fd = ends[1]};
}

static bool is_freed(const memory *m)
{
    struct pollfd p = {.fd = m->told};
    return poll(&p, 1, 0) == 1 && (p.revents & POLLHUP) != 0;
}

/* The system frees what a process had a moment after its end is seen. */
static void until_freed(const memory *m)
{
    struct pollfd p = {.fd = m->told};
    ck_assert_msg(poll(&p, 1, (int)(LIMIT / SHOAL_MS(1))) == 1, "the memory is not freed");
}

/* Makes a granule and forgets the fd: only the store has it. */
static shoal_err make_granule(memory *m, shoal_block **out_granule)
{
    shoal_err err = sh_granule_create(&card, m->fd, out_granule);
    close(m->fd);
    m->fd = -1;
    return err;
}

static shoal_err receive(shoal_queue *q, shoal_block **out_piece)
{
    sh_taken taken;
    size_t unused;
    shoal_err err = sh_queue_get_word((shoal_block *)q, SHOAL_KIND_NONE, 0, LIMIT, &taken, &unused);
    if (err == SHOAL_OK) {
        *out_piece = taken.block;
    }
    return err;
}

/* Checks that the piece's memory is there, by a byte that goes through it. */
static shoal_err write_through(const shoal_block *piece, char byte)
{
    sh_piece seen;
    int fd = -1;
    must_ok(sh_piece_read(piece, &seen));
    must_ok(sh_granule_fd(seen.granule, &fd));
    must((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
    bool written = write(fd, &byte, 1) == 1;
    close(fd);
    must(written);
    return SHOAL_OK;
}

static void expect_byte(const memory *m, char wanted)
{
    char byte = 0;
    ck_assert_int_eq(read(m->told, &byte, 1), 1);
    ck_assert_int_eq(byte, wanted);
}

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
    snprintf(name, sizeof name, "cards-%d-%d", (int)getpid(), forbidden);
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
    holds(strstr(shoal_last_error_text(), "cannot share card memory") != NULL);
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
    ck_assert_ptr_nonnull(strstr(shoal_last_error_text(), "is it stopped?"));
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
    suite_add_tcase(s, tc);
    tc = children_case("limits");
    tcase_add_test(tc, there_are_at_most_253_granules);
    tcase_add_test(tc, a_user_with_1024_fds_has_room_for_all);
    tcase_add_test(tc, a_user_with_64_fds_is_told);
    tcase_add_test(tc, the_worlds_of_a_user_share_the_limit);
    tcase_add_test(tc, files_with_the_numbers_of_the_store_are_left_alone);
    tcase_add_test(tc, a_world_without_a_store_works);
    tcase_add_test(tc, b62_a_forged_set_is_refused);
    tcase_add_test(tc, the_lock_of_the_stopped_and_of_the_dead);
#ifdef SHOAL_DEATH_POINTS
    tcase_add_test(tc, who_has_the_lock_sweeps_for_the_others);
#endif
    tcase_add_test(tc, threads_and_processes_leave_nothing_behind);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
