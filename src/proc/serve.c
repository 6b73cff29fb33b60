/* The fork server's side of forkserver.c: serves the requests of one process. The image is either this program, which
 * shoal_init turned into a server, or a server program that called shoal_fork_server_begin. */
#include "base/clock.h"
#include "proc/child.h"
#include "proc/fork_request.h"
#include "proc/registry.h"
#include "proc/sentinel.h"
#include "shm/waits.h"
#include "shm/world.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

static struct sigaction interrupt; /* the action before the server ignored SIGINT */

/* Forks and replies. Returns true in the child. */
static bool serve_fork(int socket, const sh_request *r, const shoal_fork_options *hooks)
{
    sh_hook_call(hooks->before, hooks->context);
    bool prepared = sh_sentinel_prepare() == SHOAL_OK;
    pid_t pid = prepared ? sh_world_fork_bare() : -1;
    if (pid == 0) {
        return true;
    }
    SH_DEATH("proc.server.forked");
    sh_reply answer = {.number = r->number, .error = pid < 0 ? errno : 0, .pid = (int32_t)pid};
    sh_born born = {.pidfd = -1};
    if (pid > 0 && sh_born_watch(pid, &born) != SHOAL_OK) {
        answer.error = EMFILE;
    } else if (pid < 0 && prepared) {
        sh_sentinel_cancel();
    }
    sh_hook_call(hooks->after_parent,
                 hooks->context); /* nothing that it runs can reap the child before it is watched */
    answer.by_pipe = born.by_pipe;
    sh_request_send(socket, &answer, sizeof answer,
                    born.pidfd); /* if it fails, the next receive sees the closed socket */
    if (born.pidfd >= 0) {
        close(born.pidfd);
    }
    return false;
}

static void serve_fate(int socket, const sh_request *r)
{
    sh_reply answer = {.number = r->number, .pid = r->pid};
    siginfo_t info = {.si_pid = 0};
    if (waitid(P_PID, (id_t)r->pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0) {
        answer.error = errno;
    } else if (info.si_pid == 0) {
        answer.error = EBUSY;
    } else {
        answer.fate = sh_fate_of(&info);
    }
    sh_request_send(socket, &answer, sizeof answer, -1);
}

static bool next_request(int socket, sh_request *out_request)
{
    int none;
    uint32_t entry = sh_waits_begin(sh_waits_name(SH_WAITS_REQUEST, (uint32_t)getppid()), 0);
    bool received = sh_request_receive(socket, out_request, sizeof *out_request, &none, SH_NO_DEADLINE);
    sh_waits_end(entry);
    return received;
}

bool sh_forkserver_serve(int socket, const shoal_fork_options *hooks, sh_request *out_request)
{
    bool child = false;
    fflush(NULL); /* otherwise every child would write it again */
    sigaction(SIGINT, &(struct sigaction){.sa_handler = SIG_IGN},
              &interrupt); /* Ctrl-C at the terminal is for the requester */
    while (!child && next_request(socket, out_request)) {
        switch ((sh_ask)out_request->ask) {
        case SH_ASK_FORK: child = serve_fork(socket, out_request, hooks); break;
        case SH_ASK_FATE: serve_fate(socket, out_request); break;
        case SH_ASK_DROP: sh_orphans_add(out_request->pid); break;
        }
        if (!child) {
            sh_orphans_reap();
        }
    }
    close(socket);
    if (child) {
        sigaction(SIGINT, &interrupt, NULL);
    }
    return child;
}
