/* The forkserver start method: a fresh image of this program that does nothing but fork on request. Its children are as
 * clean as spawned ones and cost less.
 *
 * Each process has at most one server and starts it at the first use. The server has its own slot in the world and
 * holds nothing, so its children inherit nothing. The requester reserves the slot that a child takes.
 *
 * Request and reply go over a socket, one at a time. The server is the parent of its children. It opens the pidfd of
 * each before anything could reap the child, and passes it to the requester. It reaps only on request, after the status
 * has arrived, so neither pid nor status can be lost or confused. When the requester closes the socket or dies, the
 * server leaves the world and ends.
 *
 * If the server is stopped, its requester gets neither the exit status of its children nor new children. So every wait
 * for a reply has a timeout. The requester recognises a late reply by its number, discards it, and asks again.
 *
 * death: of the server: the requester sees the socket close and starts another. A child that the server had just forked
 * finds its slot cancelled, unless the requester had the reply. The status of the server's other children is lost;
 * their records still say what they can.
 */
#include "base/fork.h"
#include "os/fd.h"
#include "os/pid.h"
#include "os/pidfd.h"
#include "proc/child.h"
#include "proc/registry.h"
#include "proc/sentinel.h"
#include "shm/intent.h"
#include "shm/slot.h"
#include "shm/waits.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

typedef enum ask {
    ASK_FORK = 1, /* slot, death_signal; the reply carries pid and pidfd */
    ASK_FATE,     /* pid; the reply carries its fate. It can be repeated, because the reply may come too late */
    ASK_DROP,     /* pid; no reply. The server reaps the child, now or when it ends */
} ask;

typedef struct request {
    uint64_t number; /* the reply has the same */
    uint32_t ask;
    uint32_t slot;
    int32_t pid;
    int32_t death_signal; /* 0: the child may outlive the requester */
} request;

typedef struct reply {
    uint64_t number;
    int32_t error; /* an errno; 0: done */
    int32_t pid;
    uint32_t by_pipe; /* which sort of sentinel comes with it */
    sh_fate fate;
} reply;

#define NOTICE_LIMIT SHOAL_MS(100)
#define STOP_LIMIT SHOAL_SECONDS(5)
#define START_LIMIT SHOAL_SECONDS(20) /* a server that has not answered by then is stopped, or the machine hangs */

/* ---- messages with an fd ---- */

typedef union control {
    struct cmsghdr head;
    char room[CMSG_SPACE(sizeof(int))];
} control;

static bool send_all(int socket, const void *bytes, size_t size, int fd)
{
    control c = {.room = {0}};
    struct iovec part = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = size};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (fd >= 0) {
        message.msg_control = &c;
        message.msg_controllen = sizeof c;
        c.head = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof fd), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
        memcpy(CMSG_DATA(&c.head), &fd, sizeof fd);
    }
    ssize_t n;
    do {
        n = sendmsg(socket, &message,
                    MSG_NOSIGNAL | MSG_DONTWAIT); /* if the socket is full, the server has not read for long */
    } while (n < 0 && errno == EINTR);
    return n == (ssize_t)size;
}

/* Receives a message. Returns false if the socket is closed or the deadline passed. *out_fd is -1 if no fd came. */
static bool receive_all(int socket, void *bytes, size_t size, int *out_fd, int64_t deadline)
{
    control c = {.room = {0}};
    struct iovec part = {.iov_base = bytes, .iov_len = size};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &c, .msg_controllen = sizeof c};
    struct pollfd p = {.fd = socket, .events = POLLIN};
    *out_fd = -1;
    while (sh_poll(&p, 1, deadline) == 0) {
        if (sh_passed(deadline)) {
            errno = ETIMEDOUT;
            return false;
        }
    }
    ssize_t n;
    do {
        n = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    } while (n < 0 && errno == EINTR);
    struct cmsghdr *head = n > 0 ? CMSG_FIRSTHDR(&message) : NULL;
    if (head != NULL && head->cmsg_type == SCM_RIGHTS && head->cmsg_len == CMSG_LEN(sizeof *out_fd)) {
        memcpy(out_fd, CMSG_DATA(head), sizeof *out_fd);
        *out_fd = sh_fd_keep(*out_fd);
    }
    errno = n == (ssize_t)size ? 0 : EPIPE;
    return n == (ssize_t)size;
}

/* ---- the server ---- */

static struct sigaction interrupt; /* the action before the server ignored SIGINT */

static void serve_fork(int socket, const request *r)
{
    bool prepared = sh_sentinel_prepare() == SHOAL_OK;
    pid_t pid = prepared ? sh_world_fork_bare() : -1;
    if (pid == 0) {
        close(socket);
        sigaction(SIGINT, &interrupt, NULL);
        sh_child_forked(r->slot, NULL, r->death_signal);
    }
    SH_DEATH("proc.server.forked");
    reply answer = {.number = r->number, .error = pid < 0 ? errno : 0, .pid = (int32_t)pid};
    sh_born born = {.pidfd = -1};
    if (pid > 0 && sh_born_watch(pid, &born) != SHOAL_OK) {
        answer.error = EMFILE;
    } else if (pid < 0 && prepared) {
        sh_sentinel_cancel();
    }
    answer.by_pipe = born.by_pipe;
    send_all(socket, &answer, sizeof answer, born.pidfd); /* if it fails, the next receive sees the closed socket */
    if (born.pidfd >= 0) {
        close(born.pidfd);
    }
}

static void serve_fate(int socket, const request *r)
{
    reply answer = {.number = r->number, .pid = r->pid};
    siginfo_t info = {.si_pid = 0};
    if (waitid(P_PID, (id_t)r->pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0) {
        answer.error = errno;
    } else if (info.si_pid == 0) {
        answer.error = EBUSY;
    } else {
        answer.fate = sh_fate_of(&info);
    }
    send_all(socket, &answer, sizeof answer, -1);
}

static bool next_request(int socket, request *out_request)
{
    int none;
    uint32_t entry = sh_waits_begin(sh_waits_name(SH_WAITS_REQUEST, (uint32_t)getppid()), 0);
    bool received = receive_all(socket, out_request, sizeof *out_request, &none, SH_NO_DEADLINE);
    sh_waits_end(entry);
    return received;
}

_Noreturn void sh_forkserver_serve(int socket)
{
    request r;
    sigaction(SIGINT, &(struct sigaction){.sa_handler = SIG_IGN},
              &interrupt); /* Ctrl-C at the terminal is for the requester */
    while (next_request(socket, &r)) {
        switch ((ask)r.ask) {
        case ASK_FORK: serve_fork(socket, &r); break;
        case ASK_FATE: serve_fate(socket, &r); break;
        case ASK_DROP: sh_orphans_add(r.pid); break;
        }
        sh_orphans_reap();
    }
    exit(EXIT_SUCCESS); /* leaves the world too */
}

/* ---- the requester ---- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* around every use of the server, request and reply */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static struct {
    int socket; /* -1: there is no server */
    sh_born born;
    uint32_t slot;
    uint64_t generation;
    ino_t world; /* the world that it serves */
} server = {.socket = -1};

static void fork_child(void)
{
    if (server.socket >= 0) {
        close(server.socket);
        close(server.born.pidfd);
        server.socket = -1;
    }
}

__attribute__((constructor)) static void register_lock(void)
{
    static const sh_fork_part part = {.lock = &lock, .only_anew = true, .child = fork_child};
    sh_fork_register(SH_FORK_SERVER, &part);
}

static void install(void)
{
    atexit(sh_forkserver_leave);
}

/* Closes the socket, which ends the server, and waits for its end. */
static void see_out(void)
{
    close(server.socket);
    server.socket = -1;
    struct pollfd p = {.fd = server.born.pidfd, .events = POLLIN};
    if (sh_poll(&p, 1, sh_deadline(NOTICE_LIMIT)) == 0) { /* a stopped server does not notice it */
        sh_pid_kill_stopped(server.born.pid, sh_pid_start_time(server.born.pid), false);
    }
    if (sh_poll(&p, 1, sh_deadline(STOP_LIMIT)) == 0) {
        kill(server.born.pid, SIGKILL); /* it is a child of this process, and not reaped yet */
        sh_poll(&p, 1, sh_deadline(STOP_LIMIT));
    }
    /* A pipe reports the end a moment before the process is a zombie. */
    while (waitpid(server.born.pid, NULL, server.born.by_pipe ? 0 : WNOHANG) < 0 && errno == EINTR) {
    }
    close(server.born.pidfd);
}

static void stop_server(void)
{
    see_out();
    sh_lifeline_drop();
    if (sh_attached() && sh_the_world.file.inode == server.world && sh_enter() != NULL) {
        sh_slot_bury(server.slot, server.generation);
        sh_leave();
    }
}

/* Reserves the server's slot, then starts its process. */
static shoal_err run_server(int lifeline, int socket)
{
    sh_ctx *c = sh_enter();
    if (c == NULL) {
        return shoal_last_error();
    }
    shoal_err err = sh_slot_reserve(c, "forkserver", &server.slot);
    if (err == SHOAL_OK) {
        server.generation = sh_slot_state_generation(sh_load_relaxed(&sh_slot_at(server.slot)->state));
    }
    sh_leave();
    if (err != SHOAL_OK) {
        return err;
    }
    SH_DEATH("proc.server.reserved");
    err = sh_spawn_program(&(sh_launch){.slot = server.slot, .lifeline = lifeline}, socket, &server.born);
    if (err == SHOAL_OK) {
        sh_slot_expect(server.slot, server.born.pid);
    } else if (sh_enter() != NULL) {
        sh_slot_cancel(server.slot, server.generation);
        sh_leave();
    }
    return err;
}

static shoal_err start_server(void)
{
    int lifeline, pair[2];
    shoal_err err = sh_lifeline_hold(&lifeline);
    if (err != SHOAL_OK) {
        return err;
    }
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0 || !sh_fd_keep_both(pair)) {
        err = sh_fail_os("making a socket for the fork server");
        sh_lifeline_drop();
        return err;
    }
    err = run_server(lifeline, pair[1]);
    close(pair[1]);
    if (err != SHOAL_OK) {
        close(pair[0]);
        sh_lifeline_drop();
        return err;
    }
    pthread_once(&once, install);
    server.world = sh_the_world.file.inode;
    server.socket = pair[0];
    return SHOAL_OK;
}

typedef enum talked { TALKED, TIMED_OUT, ENDED } talked;

/* Sends one request and receives its reply. Returns ENDED if the server is dead, and cleans up after it. */
static talked talk(request r, reply *out_reply, int *out_fd, int64_t deadline)
{
    static uint64_t number;
    r.number = ++number;
    if (!send_all(server.socket, &r, sizeof r, -1)) {
        if (errno == EAGAIN) {
            return TIMED_OUT;
        }
        stop_server();
        return ENDED;
    }
    uint32_t entry = sh_waits_begin(sh_waits_name(SH_WAITS_SERVER, (uint32_t)server.born.pid), 0);
    bool received;
    while ((received = receive_all(server.socket, out_reply, sizeof *out_reply, out_fd, deadline)) &&
           out_reply->number != r.number) {
        if (*out_fd >= 0) { /* of an abandoned request; its child finds its slot cancelled */
            close(*out_fd);
        }
    }
    bool late = !received && errno == ETIMEDOUT;
    sh_waits_end(entry);
    if (!received && !late) {
        stop_server();
    }
    return received ? TALKED : late ? TIMED_OUT : ENDED;
}

static shoal_err accept_child(const reply *answer, sh_born *out_born)
{
    if (answer->error == 0 && out_born->pidfd >= 0) {
        out_born->pid = answer->pid;
        out_born->by_pipe = answer->by_pipe != 0;
        return SHOAL_OK;
    }
    if (answer->error ==
        0) { /* this process has no fd left for the pidfd: the child finds its slot cancelled, and ends */
        send_all(server.socket, &(request){.ask = ASK_DROP, .pid = answer->pid}, sizeof(request), -1);
    }
    errno = answer->error != 0 ? answer->error : EMFILE;
    return sh_fail_os("forking in the fork server");
}

static shoal_err ask_for_fork(const sh_launch *launch, sh_born *out_born)
{
    const request r = {.ask = ASK_FORK, .slot = launch->slot, .death_signal = launch->death_signal};
    reply answer;
    /* A server that died since its last use is replaced, once. A child of the dead server that still waits for its slot
     * does not get it, because the slot is for the child named in the reply. */
    for (int attempt = 0; attempt < 2; attempt++) {
        if (server.socket >= 0 && (server.world != sh_the_world.file.inode || sh_pidfd_ended(server.born.pidfd))) {
            stop_server();
        }
        if (server.socket < 0) {
            shoal_err err = start_server();
            if (err != SHOAL_OK) {
                return err;
            }
        }
        switch (talk(r, &answer, &out_born->pidfd, sh_deadline(START_LIMIT))) {
        case TALKED: return accept_child(&answer, out_born);
        case TIMED_OUT:
            return sh_fail(SHOAL_ETIMEDOUT, "the fork server (process %d) does not answer: is it stopped?",
                           server.born.pid);
        case ENDED: break;
        }
    }
    return sh_fail(SHOAL_EOS, "the fork server ended before it answered");
}

shoal_err sh_forkserver_start(const sh_launch *launch, sh_born *out_born)
{
    pthread_mutex_lock(&lock);
    shoal_err err = ask_for_fork(launch, out_born);
    pthread_mutex_unlock(&lock);
    return err;
}

shoal_err sh_forkserver_reap(int32_t pid, int64_t deadline, sh_fate *out_fate)
{
    reply answer = {.error = ECHILD};
    int none;
    if (!sh_mutex_lock_until(&lock, deadline)) { /* another thread is waiting for the server */
        return sh_fail(SHOAL_ETIMEDOUT, "the fork server does not answer");
    }
    talked t = server.socket >= 0 ? talk((request){.ask = ASK_FATE, .pid = pid}, &answer, &none, deadline) : ENDED;
    if (t == TALKED && answer.error == 0) {
        send_all(server.socket, &(request){.ask = ASK_DROP, .pid = pid}, sizeof(request), -1);
    }
    int32_t asked = server.born.pid;
    pthread_mutex_unlock(&lock);
    if (t == TIMED_OUT) {
        return sh_fail(SHOAL_ETIMEDOUT, "process %d has ended, but the fork server (process %d) does not answer", pid,
                       asked);
    }
    if (t == ENDED || answer.error != 0) {
        return sh_fail(SHOAL_ECHILD, "the fork server does not know how process %d ended", pid);
    }
    *out_fate = answer.fate;
    return SHOAL_OK;
}

void sh_forkserver_drop(int32_t pid)
{
    if (!sh_mutex_lock_until(&lock, sh_deadline(NOTICE_LIMIT))) {
        return; /* another thread is waiting for a stopped server; the child stays a zombie until the server ends */
    }
    if (server.socket >= 0) {
        send_all(server.socket, &(request){.ask = ASK_DROP, .pid = pid}, sizeof(request), -1);
    }
    pthread_mutex_unlock(&lock);
}

void sh_forkserver_stop(void)
{
    pthread_mutex_lock(&lock);
    if (server.socket >= 0) {
        stop_server();
    }
    pthread_mutex_unlock(&lock);
}

/* The server's slot need not be buried: the server leaves the world by itself. */
void sh_forkserver_leave(void)
{
    if (pthread_mutex_trylock(&lock) ==
        0) { /* else a thread is in a request; the socket is closed when this process ends */
        if (server.socket >= 0) {
            see_out();
        }
        pthread_mutex_unlock(&lock);
    }
}
