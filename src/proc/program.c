/* Starts another program as a child, for example `python3 -c ...`. The program learns its role from SHOAL_PROGRAM and
 * joins the world with shoal_child_begin (child.c). If it never does, it is watched, joined and ended like any process,
 * and its end frees its slot. With forkserver, the program is a server that forks the children (forkserver.c).
 *
 * The program must die with its parent from the start, whether it joins or not. So the lifeline is armed between vfork
 * and exec: the fd stays open across exec, and its owner is the pid, which does not change either. posix_spawn has no
 * step for that.
 *
 * The program inherits the fds that the variable names, and those that its starter has chosen: they lose close-on-exec
 * in it, and never in this process. shoal_child_begin removes the variable and sets close-on-exec again on the fds that
 * it names, so that the program's own children inherit neither.
 */
#include "ipc/value.h"

#include "base/error.h"
#include "proc/child.h"
#include "proc/registry.h"
#include "proc/sentinel.h"
#include "shm/card_store.h"
#include "shm/world.h"

#include <shoal/binding.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define EXIT_NOT_RUN 127

extern char **environ;

/* Returns this process's environment plus the variable, which replaces an inherited one. */
static char **make_environment(char *variable)
{
    size_t count = 0, n = 0, length = strlen(SH_PROGRAM_VARIABLE "=");
    while (environ != NULL && environ[count] != NULL) {
        count++;
    }
    char **fresh = calloc(count + 2, sizeof *fresh);
    for (size_t i = 0; fresh != NULL && i < count; i++) {
        if (strncmp(environ[i], variable, length) != 0) {
            fresh[n++] = environ[i];
        }
    }
    if (fresh != NULL) {
        fresh[n] = variable;
    }
    return fresh;
}

static bool keep_open(const int *fds, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (fds[i] >= 0 && fcntl(fds[i], F_SETFD, 0) != 0) {
            return false;
        }
    }
    return true;
}

/* Runs in the child of vfork, which shares its parent's memory: system calls only. Returns the errno if the program
 * cannot run. */
static int become_program(const sh_launch *launch, char *const *environment, int armed, const int *fds, size_t count,
                          const sigset_t *mask)
{
    struct sigaction action;
    for (int s = 1; s < NSIG; s++) { /* no handler may run here once signals are unblocked */
        if (sigaction(s, NULL, &action) == 0 && action.sa_handler != SIG_IGN && action.sa_handler != SIG_DFL) {
            action = (struct sigaction){.sa_handler = SIG_DFL};
            sigaction(s, &action, NULL);
        }
    }
    if (armed >= 0 && !sh_lifeline_arm_here(armed, launch->death_signal)) {
        return errno;
    }
    if (!keep_open(fds, count) || !keep_open(launch->program->fds, launch->program->fd_count)) {
        return errno;
    }
    pthread_sigmask(SIG_SETMASK, mask, NULL);
    execvpe(launch->program->path, launch->program->argv, environment);
    return errno;
}

static shoal_err run(const sh_launch *launch, char **environment, int armed, const int *fds, size_t count,
                     sh_born *out_born)
{
    const sh_program *program = launch->program;
    sigset_t all, before;
    sh_a32 failed = {0}; /* written by the child, which shares this memory */
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    pid_t pid = vfork();
    if (pid == 0) {
        sh_store_relaxed(&failed, (uint32_t)become_program(launch, environment, armed, fds, count, &before));
        _exit(EXIT_NOT_RUN);
    }
    int why = pid < 0 ? errno : (int)sh_load_relaxed(&failed);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (pid < 0 || why != 0) {
        while (pid > 0 && waitpid(pid, NULL, 0) < 0 && errno == EINTR) { /* it has called _exit */
        }
        sh_sentinel_cancel();
        char words[128];
        return why == ENOENT || why == ENOTDIR ? sh_fail(SHOAL_ENOENT, "program %s does not exist", program->path)
                                               : sh_fail(why == EACCES ? SHOAL_EPERM : SHOAL_EOS, "starting %s: %s",
                                                         program->path, strerror_r(why, words, sizeof words));
    }
    return sh_born_watch(pid, out_born);
}

shoal_err sh_program_run(const sh_launch *launch, int socket, sh_born *out_born)
{
    char variable[SH_VARIABLE_ROOM];
    int store[2];
    int armed = launch->lifeline >= 0 ? sh_lifeline_reopen(launch->lifeline) : -1;
    if (launch->lifeline >= 0 && armed < 0) {
        return sh_fail_os("opening a lifeline for a program");
    }
    shoal_err err = sh_world_file() < 0 ? sh_world_file_lost() : sh_sentinel_prepare();
    if (err == SHOAL_OK) {
        sh_cardstore_ends(store);
        const int fds[] = {sh_world_file(), armed, socket, sh_sentinel_child_end(), store[0], store[1]};
        snprintf(variable, sizeof variable, SH_PROGRAM_VARIABLE "=%d:%u:%d:%d:%d:%d:%d", fds[0], launch->slot, armed,
                 socket, fds[3], fds[4], fds[5]);
        char **environment = make_environment(variable);
        if (environment != NULL) {
            err = run(launch, environment, armed, fds, sizeof fds / sizeof fds[0], out_born);
        } else {
            sh_sentinel_cancel();
            err = sh_fail(SHOAL_ENOMEM, "no memory for a program's environment");
        }
        free(environment);
    }
    if (armed >= 0) {
        close(armed);
    }
    return err;
}

shoal_err sh_program_start(const sh_launch *launch, sh_born *out_born)
{
    return sh_program_run(launch, -1, out_born);
}

static shoal_err check(const char *path, char *const argv[], const shoal_process_options *options)
{
    if (path == NULL || path[0] == 0) {
        return sh_fail(SHOAL_EINVAL, "shoal_process_start_program: path is %s", path == NULL ? "NULL" : "empty");
    }
    if (argv == NULL || argv[0] == NULL) {
        return sh_fail(SHOAL_EINVAL, "shoal_process_start_program: argv is empty; argv[0] must be the program's name");
    }
    if (options != NULL && options->start != SHOAL_START_DEFAULT && options->start != SHOAL_START_SPAWN &&
        options->start != SHOAL_START_FORKSERVER) {
        return sh_fail(SHOAL_EINVAL,
                       "shoal_process_start_program: a program can only be started by spawn or forkserver");
    }
    return sh_process_check_options("shoal_process_start_program", options, SH_OPTIONS_OF_PROGRAM);
}

shoal_err shoal_process_start_program(const char *path, char *const argv[], shoal_value *args,
                                      const shoal_process_options *options, shoal_process **out_process)
{
    SH_NEED_OR_CONSUME(path, args);
    SH_NEED_OR_CONSUME(argv, args);
    SH_NEED_OR_CONSUME(out_process, args);
    SH_NEED(args);
    static const shoal_process_options none;
    shoal_err err = check(path, argv, options);
    if (err == SHOAL_OK) {
        err = sh_value_check_free(args);
    }
    if (err == SHOAL_OK) {
        const char *slash = strrchr(path, '/');
        options = options != NULL ? options : &none;
        const sh_program program = {.path = path, .argv = argv, .fds = options->fds, .fd_count = options->fd_count};
        const sh_target nothing = {.path = ""};
        bool served = options->start == SHOAL_START_FORKSERVER;
        err = sh_process_make(served ? sh_forkserver_start : sh_program_start, &(sh_launch){.program = &program},
                              &nothing, args, options, slash != NULL ? slash + 1 : path, out_process);
    }
    sh_value_consume(args);
    return err;
}
