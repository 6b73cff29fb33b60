#include "proc/registry.h"

#include "base/fork.h"
#include "base/grow.h"
#include "os/fd.h"
#include "os/pidfd.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* A leaf lock: nothing called under it takes another lock, because fork waits for it (prepare). */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct {
    int lifeline[2]; /* read end, write end; -1: not made */
    size_t holds;    /* of the lifeline */
    int armed;       /* the lifeline that this process itself hangs on */
    int inherited;   /* after a fork: the read end of the parent's lifeline */
    int passed_on;   /* in a fork server: the read end of its requester's lifeline */
    shoal_process *handles;
    int32_t *orphans;
    size_t orphan_count, orphan_room;
} mine = {.lifeline = {-1, -1}, .armed = -1, .inherited = -1, .passed_on = -1};

static void close_and_forget(int *fd)
{
    if (*fd >= 0) {
        close(*fd);
        *fd = -1;
    }
}

/* ---- fork: the child is not the parent of these ---- */

static void fork_child(void)
{
    close_and_forget(&mine.lifeline[1]); /* otherwise the parent's death would go unnoticed while this process lives */
    close_and_forget(&mine.armed);
    close_and_forget(&mine.inherited);
    mine.inherited = mine.passed_on >= 0 ? mine.passed_on : mine.lifeline[0];
    mine.lifeline[0] = mine.passed_on = -1;
    for (shoal_process *p = mine.handles; p != NULL; p = p->next) {
        close_and_forget(&p->pidfd);
        p->link = NULL;
        p->hangs = false;
    }
    mine.handles = NULL;
    mine.holds = 0;
    mine.orphan_count = 0;
}

__attribute__((constructor)) static void install(void)
{
    static const sh_fork_part part = {.lock = &lock, .child = fork_child};
    sh_fork_register(SH_FORK_CHILDREN, &part);
}

/* ---- the lifeline ---- */

shoal_err sh_lifeline_hold(int *out_fd)
{
    shoal_err err = SHOAL_OK;
    sh_fork_lock(&lock);
    if (mine.lifeline[0] < 0) {
        close_and_forget(&mine.inherited);
        if (pipe2(mine.lifeline, O_CLOEXEC) != 0 || !sh_fd_keep_both(mine.lifeline)) {
            mine.lifeline[0] = mine.lifeline[1] = -1;
            err = sh_fail_os("making the lifeline pipe");
        } else {
            (void)fchmod(mine.lifeline[0],
                         0444); /* children reopen it, also if this process changes its user before they start */
        }
    }
    if (err == SHOAL_OK) {
        mine.holds++;
        *out_fd = mine.lifeline[0];
    }
    sh_fork_unlock(&lock);
    return err;
}

void sh_lifeline_drop(void)
{
    sh_fork_lock(&lock);
    if (mine.holds > 0 && --mine.holds == 0) {
        close_and_forget(&mine.lifeline[1]);
        close_and_forget(&mine.lifeline[0]);
    }
    sh_fork_unlock(&lock);
}

int sh_lifeline_reopen(int fd)
{
    char path[32];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    /* A separate file description: owner and signal belong to the description, and all children share the one behind
     * fd. */
    return sh_fd_keep(open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC));
}

bool sh_lifeline_arm_here(int fd, int signal)
{
    if (fcntl(fd, F_SETOWN, getpid()) != 0 || fcntl(fd, F_SETSIG, signal) != 0 ||
        fcntl(fd, F_SETFL, O_NONBLOCK | O_ASYNC) != 0) {
        return false;
    }
    /* The kernel signals events from now on only; this poll sees an earlier one. */
    struct pollfd p = {.fd = fd};
    if (sh_poll(&p, 1, 0) > 0) {
        kill(getpid(), signal);
    }
    return true;
}

void sh_lifeline_adopt(int fd)
{
    close_and_forget(&mine.armed);
    mine.armed = fd;
    if (fd >= 0) {
        fcntl(fd, F_SETFD, FD_CLOEXEC);
    }
}

shoal_err sh_lifeline_arm(int fd, int signal)
{
    int own = sh_lifeline_reopen(fd);
    if (own < 0 || !sh_lifeline_arm_here(own, signal)) {
        shoal_err err = sh_fail_os("arming the lifeline to the parent");
        close_and_forget(&own);
        return err;
    }
    close_and_forget(&mine.armed);
    mine.armed = own;
    return SHOAL_OK;
}

int sh_lifeline_inherited(void)
{
    int fd = mine.inherited;
    mine.inherited = -1;
    return fd;
}

void sh_lifeline_pass_on(int fd)
{
    fcntl(fd, F_SETFL, O_NONBLOCK);
    mine.passed_on = fd;
}

/* ---- handles ---- */

void sh_registry_add(shoal_process *process)
{
    sh_fork_lock(&lock);
    process->next = mine.handles;
    process->link = &mine.handles;
    if (process->next != NULL) {
        process->next->link = &process->next;
    }
    mine.handles = process;
    sh_fork_unlock(&lock);
}

void sh_registry_remove(shoal_process *process)
{
    sh_fork_lock(&lock);
    if (process->link != NULL) {
        *process->link = process->next;
        if (process->next != NULL) {
            process->next->link = process->link;
        }
    }
    sh_fork_unlock(&lock);
}

/* ---- orphans ---- */

void sh_orphans_add(int32_t pid)
{
    sh_fork_lock(&lock);
    /* Without memory it stays a zombie until this process ends. */
    if (sh_grow(&mine.orphans, mine.orphan_count, &mine.orphan_room, sizeof *mine.orphans)) {
        mine.orphans[mine.orphan_count++] = pid;
    }
    sh_fork_unlock(&lock);
}

void sh_orphans_reap(void)
{
    sh_fork_lock(&lock);
    for (size_t i = 0; i < mine.orphan_count;) {
        int status;
        pid_t r = waitpid(mine.orphans[i], &status, WNOHANG);
        if (r > 0 || (r < 0 && errno == ECHILD)) {
            mine.orphans[i] = mine.orphans[--mine.orphan_count];
        } else {
            i++;
        }
    }
    sh_fork_unlock(&lock);
}
