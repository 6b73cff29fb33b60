#include "train/engines/cuda/mps.h"

#include "base/clock.h"
#include "base/error.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define PROGRAM "nvidia-cuda-mps-control"
#define DEFAULT_FOLDER "/tmp/nvidia-mps"
#define FOLDER_BEGIN "shoal-mps."
#define NEEDED "a worker's share of the GPU needs MPS, but "
#define UP_MS 10000
#define ONE_EVENT SHOAL_SECONDS(2) /* within this time, workers that lose their GPU lost it together */

extern char **environ;

const char *sh_mps_seconds = "5"; /* less than UP_MS */
const char *sh_mps_folders = "/tmp";

/* $1 is the folder, $2 how many seconds a command may take; fd 9 holds the folder's lock, which the daemon must not
 * keep. A daemon that does not obey is killed: its clients have ended. Its pid may belong to another process by then,
 * which was born later, or else does not have this folder in its environment. So are its servers: one whose client was
 * killed at a bad moment may wait for it for ever; and a daemon that still starts. The word "now" spares a daemon that
 * does not answer the question. */
#define OBEYED "timeout -s KILL \"$2\" " PROGRAM
#define FIRST                                                                                                          \
    "export CUDA_MPS_PIPE_DIRECTORY=\"$1\" CUDA_MPS_LOG_DIRECTORY=\"$1\"\n"                                            \
    "folder=$1\n"                                                                                                      \
    "birth() { cut -d ' ' -f 22 \"/proc/$pid/stat\"; }\n"                                                              \
    "of_folder() { tr '\\0' '\\n' <\"/proc/$1/environ\" | grep -qxF \"CUDA_MPS_PIPE_DIRECTORY=$folder\"; }\n"          \
    "same() { if [ -n \"$born\" ]; then [ \"$(birth)\" = \"$born\" ]; else of_folder \"$pid\"; fi; }\n"                \
    "runs() { [ -n \"$pid\" ] && same &&\n"                                                                            \
    "    grep '^State:' \"/proc/$pid/status\" | grep -qv Z; }\n" /* an ended one may wait long for its parent */
#define READ_PID "pid=$(cat \"$1/" PROGRAM ".pid\")\n"
#define OWN                                                                                                            \
    OBEYED " -d </dev/null >/dev/null 2>&1 9>&-; failed=$?\n" READ_PID "born=$(birth)\n"                               \
           "trap '' PIPE\n" /* the job may have been killed meanwhile */                                               \
           "[ $failed -eq 0 ] && echo up || echo no\n"                                                                 \
           "exec >/dev/null 2>&1\n"                                                                                    \
           "read -r end\n"
#define END                                                                                                            \
    "children=; runs && children=$(cat /proc/\"$pid\"/task/*/children)\n"                                              \
    "[ \"$end\" = now ] || echo quit | " OBEYED "\n"                                                                   \
    "n=0; while [ \"$end\" != now ] && runs && [ $n -lt 50 ]; do sleep 0.05; n=$((n + 1)); done\n"                     \
    "runs && kill -9 \"$pid\"\n"                                                                                       \
    "for file in $(grep -l '^nvidia-cuda-mps' /proc/[0-9]*/comm); do\n"                                                \
    "    server=${file#/proc/}; server=${server%/comm}\n"                                                              \
    "    case \" $children \" in *\" $server \"*) kill -9 \"$server\" ;; esac\n"                                       \
    "    of_folder \"$server\" && kill -9 \"$server\"\n"                                                               \
    "done\n"                                                                                                           \
    "rm -rf \"$1\"\n"

static const char owner_script[] = FIRST OWN END;
static const char ending_script[] = FIRST READ_PID "born=; end=\n" END; /* for a daemon whose owner is dead */

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

/* Runs a script with that argument and the limit, in a session of its own. Standard input and output are the socket, or
 * /dev/null if it is negative. It gets the lock as fd 9, unless it is negative. Returns the pid, or -1 with errno. */
static pid_t run(const char *script, const char *argument, int socket, int lock)
{
    char *arguments[] = {
        "sh", "-c", (char *)(uintptr_t)script, "sh", (char *)(uintptr_t)argument, (char *)(uintptr_t)sh_mps_seconds,
        NULL};
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
    if (lock >= 0 && failed == 0) {
        failed = posix_spawn_file_actions_adddup2(&actions, lock, 9);
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

static bool has_control(const char *folder)
{
    char control[4096];
    snprintf(control, sizeof control, "%s/control", folder);
    return access(control, F_OK) == 0;
}

/* Checks whether a daemon answers in that folder. Without the control program, checks only that its file exists. */
static bool answers(const char *folder)
{
    if (!has_control(folder)) {
        return false;
    }
    if (!in_path()) {
        return true;
    }
    pid_t pid = run("export CUDA_MPS_PIPE_DIRECTORY=\"$1\"; echo get_server_list | " OBEYED, folder, -1, -1);
    return pid > 0 && wait_for(pid) == 0;
}

/* Returns the folder of the daemon that this process's environment names. */
static const char *folder_here(void)
{
    const char *folder = getenv("CUDA_MPS_PIPE_DIRECTORY");
    return folder != NULL && folder[0] != 0 ? folder : DEFAULT_FOLDER;
}

shoal_err sh_mps_check(const shoal_train_options *o)
{
    return o->cuda_share == 0 || in_path() || has_control(folder_here())
               ? SHOAL_OK
               : sh_fail(SHOAL_ENOENT, NEEDED PROGRAM " is not installed, and no daemon runs in %s", folder_here());
}

/* Sets note: the workers run without MPS. */
static void note_turns(sh_mps *mps, const char *why)
{
    snprintf(mps->note, sizeof mps->note, "the %d workers take turns on the GPU%s: %s", mps->workers,
             mps->share > 0 ? ", each with all of it" : "", why);
}

/* Waits until the owner says whether the daemon is up. */
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

/* ---- the folder
 *
 * Its lock (flock) says that somebody looks after the daemon: the job and its owner hold it, through one description of
 * the open folder, so the kernel drops it when both have ended. Whoever gets the lock of a folder that is there may end
 * the daemon and remove the folder. */

/* Opens and locks a folder. Returns the fd, at least 10: the script has its own use for 0, 1, 2 and 9; or -1 if the
 * folder is somebody else's, or gone. */
static int lock_folder(const char *folder)
{
    struct stat opened, named;
    int low = open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int fd = low >= 0 ? fcntl(low, F_DUPFD_CLOEXEC, 10) : -1;
    if (low >= 0) {
        (void)close(low);
    }
    if (fd >= 0 && fstat(fd, &opened) == 0 && opened.st_uid == geteuid() && flock(fd, LOCK_EX | LOCK_NB) == 0 &&
        lstat(folder, &named) == 0 && named.st_ino == opened.st_ino && named.st_dev == opened.st_dev) {
        return fd;
    }
    if (fd >= 0) {
        (void)close(fd);
    }
    return -1;
}

/* Makes and locks a new folder. Another job may tidy it up between the two steps. */
static shoal_err make_folder(sh_mps *mps)
{
    for (int i = 0; i < 10; i++) {
        snprintf(mps->folder, sizeof mps->folder, "%s/" FOLDER_BEGIN "XXXXXX", sh_mps_folders);
        if (mkdtemp(mps->folder) == NULL) {
            break;
        }
        mps->lock = lock_folder(mps->folder);
        if (mps->lock >= 0) {
            return SHOAL_OK;
        }
    }
    mps->folder[0] = 0;
    return sh_fail_os("making a folder for MPS");
}

static void end_without_owner(const char *folder, int lock)
{
    pid_t pid = run(ending_script, folder, -1, lock);
    if (pid > 0) {
        (void)wait_for(pid);
    }
}

/* Ends the daemons of jobs that were killed together with their owners. */
static void tidy_up(void)
{
    char folder[PATH_MAX];
    DIR *all = opendir(sh_mps_folders);
    for (struct dirent *e; all != NULL && (e = readdir(all)) != NULL;) {
        if (strncmp(e->d_name, FOLDER_BEGIN, strlen(FOLDER_BEGIN)) != 0) {
            continue;
        }
        snprintf(folder, sizeof folder, "%s/%s", sh_mps_folders, e->d_name);
        int lock = lock_folder(folder);
        if (lock >= 0) {
            end_without_owner(folder, lock);
            (void)close(lock);
        }
    }
    if (all != NULL) {
        (void)closedir(all);
    }
}

/* ---- the daemon ---- */

/* Ends the daemon; `how` is sent to the owner. death: of the owner: its status says so. */
static void end_daemon(sh_mps *mps, const char *how)
{
    if (mps->owner > 0) {
        (void)!send(mps->socket, how, strlen(how), MSG_NOSIGNAL); /* a child of fork may hold the socket too */
        (void)close(mps->socket);
        (void)kill(-mps->owner, SIGCONT); /* somebody may have stopped it */
        if (wait_for(mps->owner) != 0) {
            end_without_owner(mps->folder, mps->lock);
        }
        (void)close(mps->lock);
        mps->owner = 0;
    }
    mps->folder[0] = 0;
}

static shoal_err start_owner(sh_mps *mps)
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
        return sh_fail_os("making a socket to the owner of MPS");
    }
    mps->socket = ends[0];
    mps->owner = run(owner_script, mps->folder, ends[1], mps->lock);
    (void)close(ends[1]);
    if (mps->owner < 0) {
        (void)close(ends[0]);
        return sh_fail_os("starting the owner of MPS");
    }
    mps->used = is_up(mps->socket);
    if (!mps->used) {
        end_daemon(mps, "\n");
        note_turns(mps, PROGRAM " -d failed");
    }
    return SHOAL_OK;
}

static shoal_err start_daemon(sh_mps *mps)
{
    shoal_err err = make_folder(mps);
    if (err != SHOAL_OK) {
        return err;
    }
    err = start_owner(mps);
    if (err != SHOAL_OK) {
        (void)rmdir(mps->folder);
        (void)close(mps->lock);
        mps->owner = 0;
        mps->folder[0] = 0;
    }
    return err;
}

shoal_err sh_mps_start(sh_mps *mps, const shoal_train_options *o)
{
    *mps = (sh_mps){.workers = o->workers, .share = o->cuda_share};
    bool off = o->mps == SHOAL_MPS_OFF;
    if (o->device == SHOAL_CUDA && off) {
        snprintf(mps->folder, sizeof mps->folder, SH_MPS_NOWHERE);
    }
    if (o->device != SHOAL_CUDA || (o->workers < 2 && o->cuda_share == 0)) {
        return SHOAL_OK;
    }
    bool there = !off && answers(folder_here());
    if (!there && (off || !in_path())) {
        note_turns(mps, off ? "MPS is off" : PROGRAM " is not installed");
        return SHOAL_OK;
    }
    if (o->workers > SH_MPS_CLIENTS) {
        return sh_fail(SHOAL_ELIMIT,
                       "%d workers are too many: MPS allows %d processes on a GPU; use fewer workers, or turn MPS off",
                       o->workers, SH_MPS_CLIENTS);
    }
    mps->used = there;
    if (!there) {
        tidy_up();
        SH_TRY(start_daemon(mps));
    }
    return !mps->used && o->cuda_share > 0 ? sh_fail(SHOAL_EOS, NEEDED PROGRAM " -d failed") : SHOAL_OK;
}

/* Starts another daemon, in another folder. Sets note, which says why. */
static void replace(sh_mps *mps, const char *how, const char *why)
{
    end_daemon(mps, how);
    shoal_err err = start_daemon(mps);
    if (err == SHOAL_OK && mps->used) { /* else the note is that of start_owner */
        snprintf(mps->note, sizeof mps->note, "%s; MPS and the workers start again", why);
    }
    if (err != SHOAL_OK) {
        mps->used = false;
        note_turns(mps, why);
    }
}

void sh_mps_recover(sh_mps *mps)
{
    int64_t now = sh_now();
    if (!mps->used || (mps->lost != 0 && now - mps->lost < ONE_EVENT)) {
        return;
    }
    mps->lost = now;
    if (mps->folder[0] == 0 || answers(mps->folder)) {
        snprintf(mps->note, sizeof mps->note,
                 "the MPS server went down with a worker; the server and the workers that lost the GPU start again");
        return;
    }
    replace(mps, "\n", "the MPS daemon had ended");
}

void sh_mps_replace(sh_mps *mps)
{
    mps->lost = sh_now();
    replace(mps, "now\n", "the MPS server stopped answering after a worker died");
}

void sh_mps_stop(sh_mps *mps)
{
    end_daemon(mps, "\n");
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
