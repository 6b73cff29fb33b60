#include "train/mps.h"

#include "base/clock.h"
#include "base/error.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define PROGRAM "nvidia-cuda-mps-control"
#define DEFAULT_FOLDER "/tmp/nvidia-mps"
#define UP_MS 10000

extern char **environ;

/* $1 is the folder. A daemon that does not obey is killed: its clients have ended. */
static const char keeper[] =
    "export CUDA_MPS_PIPE_DIRECTORY=\"$1\" CUDA_MPS_LOG_DIRECTORY=\"$1\"\n" PROGRAM
    " -d >/dev/null 2>&1 && echo up || echo no\n"
    "exec >/dev/null 2>&1\n"
    "pid=$(cat \"$1/" PROGRAM ".pid\")\n"
    "read -r end\n"
    "echo quit | timeout 5 " PROGRAM "\n"
    "runs() { grep '^State:' \"/proc/$pid/status\" | grep -qv Z; }\n" /* an ended one may wait long for its parent */
    "n=0; while [ -n \"$pid\" ] && runs && [ $n -lt 50 ]; do sleep 0.05; n=$((n + 1)); done\n"
    "[ -n \"$pid\" ] && runs && kill -9 \"$pid\"\n"
    "rm -rf \"$1\"\n";

static bool in_path(void)
{
    const char *path = getenv("PATH");
    char file[4096];
    while (path != NULL && *path != 0) {
        size_t length = strcspn(path, ":");
        snprintf(file, sizeof file, "%.*s/" PROGRAM, (int)length, path);
        if (access(file, X_OK) == 0) {
            return true;
        }
        path += length + (path[length] == ':');
    }
    return false;
}

/* Runs a script with that argument, in a session of its own. Standard input and output are the socket, or /dev/null if
 * it is negative. Returns the pid, or -1 with errno. */
static pid_t run(const char *script, const char *argument, int socket)
{
    char *arguments[] = {"sh", "-c", (char *)(uintptr_t)script, "sh", (char *)(uintptr_t)argument, NULL};
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none;
    pid_t pid = -1;
    (void)sigemptyset(&none);
    (void)posix_spawn_file_actions_init(&actions);
    (void)posix_spawnattr_init(&attributes);
    (void)posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK);
    (void)posix_spawnattr_setsigmask(&attributes, &none);
    int failed = 0;
    for (int fd = 0; fd <= 2 && failed == 0; fd++) {
        failed = socket >= 0 && fd < 2 ? posix_spawn_file_actions_adddup2(&actions, socket, fd)
                                       : posix_spawn_file_actions_addopen(&actions, fd, "/dev/null", O_RDWR, 0);
    }
    failed = failed ? failed : posix_spawn(&pid, "/bin/sh", &actions, &attributes, arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    errno = failed;
    return failed == 0 ? pid : -1;
}

static int wait_for(pid_t pid)
{
    int status = -1;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    return status;
}

/* Checks whether a daemon answers in the folder that this process's environment names. Without the program that could
 * ask, its file counts. */
static bool is_running(void)
{
    const char *folder = getenv("CUDA_MPS_PIPE_DIRECTORY");
    char control[4096];
    snprintf(control, sizeof control, "%s/control", folder != NULL && folder[0] != 0 ? folder : DEFAULT_FOLDER);
    if (access(control, F_OK) != 0) {
        return false;
    }
    if (!in_path()) {
        return true;
    }
    pid_t pid = run("echo get_server_list | timeout 5 " PROGRAM, "", -1);
    return pid > 0 && wait_for(pid) == 0;
}

/* Waits until the keeper says whether the daemon is up. */
static bool is_up(int output)
{
    char word[4] = "";
    struct pollfd ready = {.fd = output, .events = POLLIN};
    int64_t end = sh_now() + SHOAL_MS(UP_MS);
    int got;
    do {
        int64_t left = (end - sh_now()) / SHOAL_MS(1);
        got = poll(&ready, 1, left > 0 ? (int)left : 0);
    } while (got < 0 && errno == EINTR);
    return got > 0 && read(output, word, 3) > 0 && strncmp(word, "up", 2) == 0;
}

static shoal_err start_keeper(sh_mps *mps)
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
        return sh_fail_os("a socket to the keeper of MPS");
    }
    mps->socket = ends[0];
    mps->keeper = run(keeper, mps->folder, ends[1]);
    (void)close(ends[1]);
    if (mps->keeper < 0) {
        (void)close(ends[0]);
        (void)rmdir(mps->folder);
        mps->folder[0] = 0;
        return sh_fail_os("starting the keeper of MPS");
    }
    if (!is_up(mps->socket)) {
        sh_mps_stop(mps);
        snprintf(mps->note, sizeof mps->note, "the %d workers take turns on the card: " PROGRAM " -d failed",
                 mps->workers);
    }
    return SHOAL_OK;
}

shoal_err sh_mps_start(sh_mps *mps, const shoal_train_options *o)
{
    *mps = (sh_mps){.workers = o->workers};
    if (o->device != SHOAL_CUDA || o->workers < 2) {
        return SHOAL_OK;
    }
    bool wanted = o->mps != SHOAL_MPS_OFF, there = wanted && is_running();
    if (!there && (!wanted || !in_path())) {
        snprintf(mps->note, sizeof mps->note, "the %d workers take turns on the card: %s", o->workers,
                 wanted ? PROGRAM " is not installed" : "MPS is off");
        return SHOAL_OK;
    }
    if (o->workers > SH_MPS_CLIENTS) {
        return sh_fail(SHOAL_ELIMIT,
                       "%d workers, but MPS has room for %d processes on a card: use fewer workers, or MPS off",
                       o->workers, SH_MPS_CLIENTS);
    }
    if (there) {
        return SHOAL_OK;
    }
    snprintf(mps->folder, sizeof mps->folder, "/tmp/shoal-mps-XXXXXX");
    if (mkdtemp(mps->folder) == NULL) {
        mps->folder[0] = 0;
        return sh_fail_os("a folder for MPS");
    }
    return start_keeper(mps);
}

void sh_mps_stop(sh_mps *mps)
{
    if (mps->keeper > 0) {
        (void)!send(mps->socket, "\n", 1, MSG_NOSIGNAL); /* a child of fork may hold the socket too */
        (void)close(mps->socket);
        (void)wait_for(mps->keeper);
        mps->keeper = 0;
    }
    mps->folder[0] = 0;
}

void sh_mps_join(const char *folder, int share)
{
    char percent[16];
    if (folder[0] != 0) {
        (void)setenv("CUDA_MPS_PIPE_DIRECTORY", folder, 1);
        (void)setenv("CUDA_MPS_LOG_DIRECTORY", folder, 1);
    }
    if (share > 0) {
        snprintf(percent, sizeof percent, "%d", share);
        (void)setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", percent, 1);
    }
}
