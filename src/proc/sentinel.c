#include "proc/sentinel.h"

#include "base/fork.h"
#include "base/interrupt.h"
#include "os/fd.h"
#include "os/pid.h"
#include "os/pidfd.h"
#include "shm/waits.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SLICE_CLOSED SHOAL_MS(1) /* between checks of a process that has closed its end and still runs */

typedef enum support {
    UNKNOWN,
    PIDFDS,
    PIPES,
} support;

static sh_a32 have; /* a support */

/* Held from prepare to watch or cancel where there are no pidfds: a child that another thread forks meanwhile would
 * keep an end that belongs to another child. Forks that the library does not make close it (fork_child). */
static pthread_mutex_t birth = PTHREAD_MUTEX_INITIALIZER;
static int ends[2] = {-1, -1}; /* the read end, and the child's end; under the lock */
static pthread_t maker;        /* the thread that made them */
static int held = -1;          /* in a child: its end */

static void close_and_forget(int *fd)
{
    if (*fd >= 0) {
        close(*fd);
        *fd = -1;
    }
}

/* ---- fork ---- */

static void fork_child(void)
{
    close_and_forget(&held); /* it reports the end of this process's parent, not of this process */
    close_and_forget(&ends[0]);
    if (ends[1] >= 0 && !pthread_equal(maker, pthread_self())) {
        close_and_forget(&ends[1]);
    }
}

__attribute__((constructor)) static void install(void)
{
    static const sh_fork_part part = {
        .lock = &birth, .only_anew = true, .child = fork_child}; /* the maker holds it when it forks */
    sh_fork_register(SH_FORK_BIRTH, &part);
}

/* ---- before and after a birth ---- */

static bool have_pidfds(void)
{
    uint32_t found = sh_load_relaxed(&have);
    if (found == UNKNOWN) {
        int fd = sh_pidfd_open((int32_t)getpid());
        found = fd < 0 && (errno == ENOSYS || errno == EPERM || errno == EACCES || errno == EINVAL) ? PIPES : PIDFDS;
        close_and_forget(&fd);
        sh_store_relaxed(&have, found);
    }
    return found == PIDFDS;
}

shoal_err sh_sentinel_prepare(void)
{
    if (have_pidfds()) {
        return SHOAL_OK;
    }
    pthread_mutex_lock(&birth);
    maker = pthread_self();
    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0 || !sh_fd_keep_both(ends)) {
        ends[0] = ends[1] = -1;
        shoal_err err = sh_fail_os("making a pipe that reports a child's end");
        pthread_mutex_unlock(&birth);
        return err;
    }
    return SHOAL_OK;
}

int sh_sentinel_child_end(void)
{
    return ends[1];
}

void sh_sentinel_cancel(void)
{
    if (!have_pidfds()) {
        close_and_forget(&ends[0]);
        close_and_forget(&ends[1]);
        pthread_mutex_unlock(&birth);
    }
}

void sh_sentinel_hold_forked(void)
{
    held = ends[1];
    ends[1] = -1;
}

void sh_sentinel_hold(int fd)
{
    held = fd;
    if (fd >= 0) {
        fcntl(fd, F_SETFD, FD_CLOEXEC);
    }
}

/* ESRCH means that something else has already reaped the child. */
static const char *not_watched(int why)
{
    switch (why) {
    case EMFILE: return "watching a new process (ulimit -n raises the limit)";
    case ENFILE: return "watching a new process (the system is at its limit: sysctl fs.file-max)";
    case ESRCH: return "watching a new process (is SIGCHLD ignored?)";
    default: return "watching a new process";
    }
}

shoal_err sh_born_watch(pid_t pid, sh_born *out_born)
{
    if (!have_pidfds()) {
        *out_born = (sh_born){.pid = (int32_t)pid, .pidfd = ends[0], .by_pipe = true};
        ends[0] = -1;
        sh_sentinel_cancel();
        return SHOAL_OK;
    }
    int pidfd = sh_pidfd_open((int32_t)pid);
    if (pidfd < 0) {
        shoal_err err = sh_fail_os(not_watched(errno));
        kill(pid, SIGKILL);
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
        }
        return err;
    }
    *out_born = (sh_born){.pid = (int32_t)pid, .pidfd = pidfd};
    return SHOAL_OK;
}

/* ---- the end ---- */

/* Checks a process that has a pipe and no pidfd. The system does not reuse its pid until it is reaped, by this process
 * or by the fork server on its request. */
static bool has_ended_by_pipe(const shoal_process *p)
{
    if (p->server != 0) {
        return sh_pid_gone(p->pid, p->start_time);
    }
    siginfo_t info = {.si_pid = 0};
    int r;
    do {
        r = waitid(P_PID, (id_t)p->pid, &info, WEXITED | WNOHANG | WNOWAIT);
    } while (r != 0 && errno == EINTR);
    return r != 0 || info.si_pid != 0; /* ECHILD: something else has reaped it */
}

bool sh_process_has_ended(const shoal_process *process)
{
    if (sh_load_acquire(&process->ended) != 0 || sh_load_acquire(&process->reaped) != 0) {
        return true;
    }
    return process->pidfd >= 0 && (process->by_pipe ? has_ended_by_pipe(process) : sh_pidfd_ended(process->pidfd));
}

int sh_sentinels_poll(shoal_process *const *processes, struct pollfd *fds, size_t count, int64_t deadline)
{
    bool pipes = false;
    for (size_t i = 0; i < count; i++) {
        pipes = pipes || (fds[i].fd >= 0 && processes[i]->by_pipe);
    }
    if (!pipes) {
        return sh_poll(fds, (nfds_t)count, deadline);
    }
    int64_t until = sh_now() + SH_SENTINEL_SLICE;
    int n = sh_poll(fds, (nfds_t)count, until < deadline ? until : deadline);
    int ended = 0;
    for (size_t i = 0; i < count; i++) {
        bool over = fds[i].fd >= 0 && sh_process_has_ended(processes[i]);
        fds[i].revents = over ? POLLIN : 0;
        ended += over;
    }
    if (n > 0 && ended == 0) { /* the pipe is closed but the process runs: it is just ending, or has closed its end */
        nanosleep(&(struct timespec){.tv_nsec = SLICE_CLOSED}, NULL);
    }
    return ended;
}

bool sh_process_wait_end(const shoal_process *process, int64_t deadline)
{
    shoal_process *one = (shoal_process *)(uintptr_t)process;
    struct pollfd p = {.fd = process->pidfd, .events = POLLIN};
    if (sh_process_has_ended(process) || sh_passed(deadline)) {
        return sh_process_has_ended(process);
    }
    sh_interrupt_begin();
    uint32_t entry = sh_waits_begin(sh_waits_name(SH_WAITS_PROCESS, (uint32_t)process->pid), 0);
    bool ended;
    while (!(ended = sh_process_has_ended(process)) && !sh_passed(deadline) && !sh_interrupt_mine.hit) {
        sh_sentinels_poll(&one, &p, 1, deadline);
    }
    sh_waits_end(entry);
    return ended;
}

bool sh_process_send(shoal_process *process, int signal)
{
    if (!process->by_pipe) {
        return sh_pidfd_signal(process->pidfd, signal);
    }
    pthread_mutex_lock(&process->lock); /* so that no thread reaps it meanwhile */
    errno = ESRCH;
    bool sent = sh_load_relaxed(&process->reaped) == 0 && kill(process->pid, signal) == 0;
    int why = errno;
    pthread_mutex_unlock(&process->lock);
    errno = why;
    return sent;
}
