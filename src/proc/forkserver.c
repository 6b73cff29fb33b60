/* The forkserver start method: a fresh image that does nothing but fork on request. Its children are as clean as
 * spawned ones and cost less. The image is this program, or a server program that a binding wrote
 * (shoal_process_start_program); serve.c is what runs in it, the same for both.
 *
 * Each process has at most one server of each kind and starts it at the first use. A server has its own slot in the
 * world and holds nothing, so its children inherit nothing. The requester reserves the slot that a child takes.
 *
 * Request and reply go over a socket, one at a time. The server is the parent of its children. It opens the pidfd of
 * each before anything could reap the child, and passes it to the requester. It reaps only on request, after the status
 * has arrived, so neither pid nor status can be lost or confused. When the requester closes the socket or dies, the
 * server leaves the world and ends. Until a server program serves, it hangs on the requester's lifeline.
 *
 * If the server is stopped, its requester gets neither the exit status of its children nor new children. So every wait
 * for a reply has a timeout. The requester recognises a late reply by its number, discards it, and asks again.
 *
 * death: of the server: the requester sees the socket close and starts another. A child that the server had just forked
 * finds its slot cancelled, unless the requester had the reply. The status of the server's other children is lost;
 * their records still say what they can. The same holds for a server program that another one replaces.
 */
#include "base/fork.h"
#include "os/fd.h"
#include "os/pid.h"
#include "os/pidfd.h"
#include "proc/child.h"
#include "proc/fork_request.h"
#include "proc/registry.h"
#include "proc/sentinel.h"
#include "shm/intent.h"
#include "shm/slot.h"
#include "shm/waits.h"

#include <shoal/binding.h>

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define NOTICE_LIMIT SHOAL_MS(100)
#define STOP_LIMIT SHOAL_SECONDS(5)
#define SLICE SHOAL_MS(1)                /* between attempts to reap a server */
#define START_LIMIT SHOAL_SECONDS(20)    /* a server that has not answered by then is stopped, or the machine hangs */
#define PROGRAM_LIMIT SHOAL_SECONDS(120) /* for the first answer of a server program, which may have much to load */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* around every use of a server, request and reply */
static pthread_once_t once = PTHREAD_ONCE_INIT;

typedef enum image {
    OWN,     /* this program */
    PROGRAM, /* another one */
    IMAGES,
} image;

typedef struct server {
    int socket;      /* -1: there is no server */
    uint64_t number; /* of all servers of this process: their children's handles have it */
    sh_born born;
    uint32_t slot;
    uint64_t generation;
    ino_t world;   /* the world that it serves */
    bool answered; /* it has begun to serve */
    char **argv;   /* of a server program: its path, then its arguments; NULL: this program */
} server;

static server servers[IMAGES] = {{.socket = -1}, {.socket = -1}};
static sh_a32 program_pid; /* of the server program; for shoal_fork_server_pid, which takes no lock */

static void fork_child(void)
{
    for (size_t i = 0; i < IMAGES; i++) {
        if (servers[i].socket >= 0) {
            close(servers[i].socket);
            close(servers[i].born.pidfd);
            servers[i].socket = -1;
        }
    }
    sh_store_relaxed(&program_pid, 0);
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

/* ---- the program of a server ---- */

static void free_strings(char **strings)
{
    for (size_t i = 0; strings != NULL && strings[i] != NULL; i++) {
        free(strings[i]);
    }
    free(strings);
}

/* Copies path and argv into one array. Returns NULL if there is no memory. */
static char **copy_program(const sh_program *program)
{
    size_t count = 0;
    while (program->argv[count] != NULL) {
        count++;
    }
    char **copy = calloc(count + 2, sizeof *copy);
    bool good = copy != NULL && (copy[0] = strdup(program->path)) != NULL;
    for (size_t i = 0; good && i < count; i++) {
        good = (copy[i + 1] = strdup(program->argv[i])) != NULL;
    }
    if (!good) {
        free_strings(copy);
        return NULL;
    }
    return copy;
}

/* Checks whether the server is an image of the program; NULL: of this one. */
static bool is_image_of(const server *s, const sh_program *program)
{
    if (program == NULL || s->argv == NULL) {
        return program == NULL && s->argv == NULL;
    }
    size_t i = 0;
    bool same = strcmp(s->argv[0], program->path) == 0;
    for (; same && program->argv[i] != NULL; i++) {
        same = s->argv[i + 1] != NULL && strcmp(s->argv[i + 1], program->argv[i]) == 0;
    }
    return same && s->argv[i + 1] == NULL;
}

/* ---- starting and stopping a server ---- */

/* Reaps a server that has ended. A pipe reports the end a moment before the process is a zombie. And if another process
 * traces the server (a debugger, or LeakSanitizer at its end), this one cannot reap it before the tracer lets go. If
 * that takes long, a later call of the library reaps it. */
static void reap(pid_t pid)
{
    int64_t deadline = sh_deadline(NOTICE_LIMIT);
    pid_t r;
    while ((r = waitpid(pid, NULL, WNOHANG)) == 0 || (r < 0 && errno == EINTR)) {
        if (sh_passed(deadline)) {
            sh_orphans_add(pid);
            return;
        }
        nanosleep(&(struct timespec){.tv_nsec = SLICE}, NULL);
    }
}

/* Closes the socket, which ends the server, and waits for its end. */
static void stop_and_reap(server *s)
{
    close(s->socket);
    s->socket = -1;
    if (s->argv != NULL) {
        sh_store_relaxed(&program_pid, 0);
        if (!s->answered) {
            kill(s->born.pid, SIGKILL); /* it does not look at its socket yet, and perhaps never will */
        }
    }
    struct pollfd p = {.fd = s->born.pidfd, .events = POLLIN};
    if (sh_poll(&p, 1, sh_deadline(NOTICE_LIMIT)) == 0) { /* a stopped server does not notice it */
        sh_pid_kill_stopped(s->born.pid, sh_pid_start_time(s->born.pid), false);
    }
    if (sh_poll(&p, 1, sh_deadline(STOP_LIMIT)) == 0) {
        kill(s->born.pid, SIGKILL); /* it is a child of this process, and not reaped yet */
        sh_poll(&p, 1, sh_deadline(STOP_LIMIT));
    }
    reap(s->born.pid);
    close(s->born.pidfd);
}

static void stop_server(server *s)
{
    stop_and_reap(s);
    sh_lifeline_drop();
    if (sh_attached() && sh_the_world.file.inode == s->world && sh_enter() != NULL) {
        sh_slot_bury(s->slot, s->generation);
        sh_leave();
    }
}

/* Reserves the server's slot, then starts its process. */
static shoal_err run_server(server *s, const sh_program *program, int lifeline, int socket)
{
    sh_ctx *c = sh_enter();
    if (c == NULL) {
        return shoal_last_error();
    }
    shoal_err err = sh_slot_reserve(c, "forkserver", &s->slot);
    if (err == SHOAL_OK) {
        s->generation = sh_slot_state_generation(sh_load_relaxed(&sh_slot_at(s->slot)->state));
    }
    sh_leave();
    if (err != SHOAL_OK) {
        return err;
    }
    SH_DEATH("proc.server.reserved");
    const sh_launch launch = {.program = program, .slot = s->slot, .lifeline = lifeline, .death_signal = SIGKILL};
    err = program != NULL ? sh_program_run(&launch, socket, &s->born) : sh_spawn_program(&launch, socket, &s->born);
    SH_DEATH(
        "proc.server.started"); /* death: the server waits for the next step, sees that its maker is dead, and ends */
    if (err == SHOAL_OK) {
        sh_slot_expect(s->slot, s->born.pid);
    } else if (sh_enter() != NULL) {
        sh_slot_cancel(s->slot, s->generation);
        sh_leave();
    }
    return err;
}

static shoal_err run_with_socket(server *s, const sh_program *program)
{
    int lifeline, pair[2];
    SH_TRY(sh_lifeline_hold(&lifeline));
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0 || !sh_fd_keep_both(pair)) {
        shoal_err err = sh_fail_os("making a socket for the fork server");
        sh_lifeline_drop();
        return err;
    }
    shoal_err err = run_server(s, program, lifeline, pair[1]);
    close(pair[1]);
    if (err != SHOAL_OK) {
        close(pair[0]);
        sh_lifeline_drop();
        return err;
    }
    s->socket = pair[0];
    return SHOAL_OK;
}

static shoal_err start_server(server *s, const sh_program *program)
{
    static uint64_t number;
    free_strings(s->argv);
    s->argv = program != NULL ? copy_program(program) : NULL;
    if (program != NULL && s->argv == NULL) {
        return sh_fail(SHOAL_ENOMEM, "no memory for the arguments of a fork server");
    }
    SH_TRY(run_with_socket(s, program));
    pthread_once(&once, install);
    s->world = sh_the_world.file.inode;
    s->number = ++number;
    s->answered = false;
    if (program != NULL) {
        sh_store_relaxed(&program_pid, (uint32_t)s->born.pid);
    }
    return SHOAL_OK;
}

/* ---- requests ---- */

typedef enum talked { TALKED, TIMED_OUT, ENDED } talked;

/* Sends one request and receives its reply. Returns ENDED if the server is dead, and cleans up after it. */
static talked talk(server *s, sh_request r, sh_reply *out_reply, int *out_fd, int64_t deadline)
{
    static uint64_t number;
    r.number = ++number;
    if (!sh_request_send(s->socket, &r, sizeof r, -1)) {
        if (errno == EAGAIN) {
            return TIMED_OUT;
        }
        stop_server(s);
        return ENDED;
    }
    uint32_t entry = sh_waits_begin(sh_waits_name(SH_WAITS_SERVER, (uint32_t)s->born.pid), 0);
    bool received;
    while ((received = sh_request_receive(s->socket, out_reply, sizeof *out_reply, out_fd, deadline)) &&
           out_reply->number != r.number) {
        if (*out_fd >= 0) { /* of an abandoned request; its child finds its slot cancelled */
            close(*out_fd);
        }
    }
    bool late = !received && errno == ETIMEDOUT;
    sh_waits_end(entry);
    s->answered = s->answered || received;
    if (!received && !late) {
        stop_server(s);
    }
    return received ? TALKED : late ? TIMED_OUT : ENDED;
}

static void ask_to_drop(const server *s, int32_t pid)
{
    sh_request_send(s->socket, &(sh_request){.ask = SH_ASK_DROP, .pid = pid}, sizeof(sh_request), -1);
}

static shoal_err accept_child(const server *s, const sh_reply *answer, int pidfd, sh_born *out_born)
{
    if (answer->error == 0 && pidfd >= 0) {
        *out_born = (sh_born){.pid = answer->pid, .pidfd = pidfd, .by_pipe = answer->by_pipe != 0, .server = s->number};
        return SHOAL_OK;
    }
    if (answer->error ==
        0) { /* this process has no fd left for the pidfd: the child finds its slot cancelled, and ends */
        ask_to_drop(s, answer->pid);
    }
    errno = answer->error != 0 ? answer->error : EMFILE;
    return sh_fail_os("forking in the fork server");
}

/* Makes sure that a server for this image and this world runs. */
static shoal_err ensure_server(server *s, const sh_program *program)
{
    if (s->socket >= 0 &&
        (s->world != sh_the_world.file.inode || sh_pidfd_ended(s->born.pidfd) || !is_image_of(s, program))) {
        stop_server(s);
    }
    return s->socket >= 0 ? SHOAL_OK : start_server(s, program);
}

static shoal_err ask_for_fork(const sh_launch *launch, sh_born *out_born)
{
    const sh_request r = {.ask = SH_ASK_FORK, .slot = launch->slot, .death_signal = launch->death_signal};
    server *s = &servers[launch->program != NULL ? PROGRAM : OWN];
    sh_reply answer;
    int pidfd;
    /* A server that died since its last use is replaced, once. A child of the dead server that still waits for its slot
     * does not get it, because the slot is for the child named in the reply. */
    for (int attempt = 0; attempt < 2; attempt++) {
        SH_TRY(ensure_server(s, launch->program));
        int64_t limit = s->argv != NULL && !s->answered ? PROGRAM_LIMIT : START_LIMIT;
        switch (talk(s, r, &answer, &pidfd, sh_deadline(limit))) {
        case TALKED: return accept_child(s, &answer, pidfd, out_born);
        case TIMED_OUT:
            return sh_fail(SHOAL_ETIMEDOUT, "the fork server (process %d) does not answer: is it stopped?",
                           s->born.pid);
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

/* Returns the server with that number, or NULL if it has ended. */
static server *find_server(uint64_t number)
{
    for (size_t i = 0; i < IMAGES; i++) {
        if (servers[i].socket >= 0 && servers[i].number == number) {
            return &servers[i];
        }
    }
    return NULL;
}

shoal_err sh_forkserver_reap(uint64_t number, int32_t pid, int64_t deadline, sh_fate *out_fate)
{
    sh_reply answer = {.error = ECHILD};
    int none;
    if (!sh_mutex_lock_until(&lock, deadline)) { /* another thread is waiting for the server */
        return sh_fail(SHOAL_ETIMEDOUT, "the fork server does not answer");
    }
    server *s = find_server(number);
    int32_t asked = s != NULL ? s->born.pid : 0;
    talked t = s != NULL ? talk(s, (sh_request){.ask = SH_ASK_FATE, .pid = pid}, &answer, &none, deadline) : ENDED;
    if (t == TALKED && answer.error == 0) {
        ask_to_drop(s, pid);
    }
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

void sh_forkserver_drop(uint64_t number, int32_t pid)
{
    if (!sh_mutex_lock_until(&lock, sh_deadline(NOTICE_LIMIT))) {
        return; /* another thread is waiting for a stopped server; the child stays a zombie until the server ends */
    }
    const server *s = find_server(number);
    if (s != NULL) {
        ask_to_drop(s, pid);
    }
    pthread_mutex_unlock(&lock);
}

/* ---- the end ---- */

void shoal_fork_server_stop(void)
{
    sh_cleanup_begin();
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < IMAGES; i++) {
        if (servers[i].socket >= 0) {
            stop_server(&servers[i]);
        }
        free_strings(servers[i].argv);
        servers[i].argv = NULL;
    }
    pthread_mutex_unlock(&lock);
    sh_cleanup_end();
}

int32_t shoal_fork_server_pid(void)
{
    return (int32_t)sh_load_relaxed(&program_pid);
}

/* The servers' slots need not be buried: the servers leave the world by themselves. */
void sh_forkserver_leave(void)
{
    if (pthread_mutex_trylock(&lock) ==
        0) { /* else a thread is in a request; the sockets are closed when this process ends */
        for (size_t i = 0; i < IMAGES; i++) {
            if (servers[i].socket >= 0) {
                stop_and_reap(&servers[i]);
            }
        }
        pthread_mutex_unlock(&lock);
    }
}
