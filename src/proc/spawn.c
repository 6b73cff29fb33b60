/* The spawn start method: runs this program again, by /proc/self/exe, which names it even if its file was replaced.
 * shoal_init in the new process sees SHOAL_CHILD and continues in child.c. */
#include "proc/child.h"
#include "proc/registry.h"
#include "proc/sentinel.h"
#include "shm/card_store.h"
#include "shm/world.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

static sh_a32 allowed; /* 1: shoal_init was called, so a child will find its function */

void sh_spawn_allow(void)
{
    sh_store_release(&allowed, 1);
}

/* Returns the arguments of this program, one after the other, each with its NUL, or NULL if they cannot be read. */
static char *read_arguments(size_t *out_size)
{
    int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    char *text = NULL;
    size_t size = 0, room = 0;
    ssize_t n = 1;
    while (fd >= 0 && n > 0) {
        if (room - size < 1024) {
            char *fresh = realloc(text, room = room * 2 + 4096);
            if (fresh == NULL) {
                break;
            }
            text = fresh;
        }
        do {
            n = read(fd, text + size, room - size - 1);
        } while (n < 0 && errno == EINTR);
        size += n > 0 ? (size_t)n : 0;
    }
    if (fd >= 0) {
        close(fd);
    }
    if (text != NULL) {
        text[size] = 0;
    }
    *out_size = size;
    return text;
}

/* Makes argv for the child. The caller frees both. */
static char **make_arguments(char **out_text)
{
    static char fallback[] = "shoal-child";
    size_t size, count = 1;
    char *text = read_arguments(&size);
    for (size_t i = 0; i < size; i++) {
        count += text[i] == 0;
    }
    char **arguments = calloc(count + 1, sizeof *arguments);
    if (arguments != NULL) {
        size_t n = 0;
        for (size_t i = 0; i < size; i += strlen(text + i) + 1) {
            arguments[n++] = text + i;
        }
        if (n == 0) {
            arguments[0] = fallback;
        }
    }
    *out_text = text;
    return arguments;
}

/* Returns this process's environment plus the variable. */
static char **make_environment(char *variable)
{
    size_t count = 0;
    while (environ != NULL && environ[count] != NULL) {
        count++;
    }
    char **fresh = calloc(count + 2, sizeof *fresh);
    if (fresh != NULL) {
        if (count > 0) {
            memcpy(fresh, environ, count * sizeof *fresh);
        }
        fresh[count] = variable;
    }
    return fresh;
}

/* Passes an fd to the child under the same number. It loses close-on-exec in the child only. */
static int pass(posix_spawn_file_actions_t *actions, int fd)
{
    return fd < 0 ? 0 : posix_spawn_file_actions_adddup2(actions, fd, fd);
}

static shoal_err run_program(char **arguments, char **environment, const int *fds, size_t count, sh_born *out_born)
{
    posix_spawn_file_actions_t actions;
    pid_t pid = -1;
    int failed = posix_spawn_file_actions_init(&actions);
    if (failed == 0) {
        for (size_t i = 0; i < count && failed == 0; i++) {
            failed = pass(&actions, fds[i]);
        }
        if (failed == 0) {
            failed = posix_spawn(&pid, "/proc/self/exe", &actions, NULL, arguments, environment);
        }
        posix_spawn_file_actions_destroy(&actions);
    }
    if (failed != 0) {
        sh_sentinel_cancel();
        errno = failed;
        return sh_fail_os("starting this program again");
    }
    return sh_born_watch(pid, out_born);
}

shoal_err sh_spawn_program(const sh_launch *launch, int socket, sh_born *out_born)
{
    char variable[SH_VARIABLE_ROOM];
    int store[2];
    if (sh_load_acquire(&allowed) == 0) {
        return sh_fail(SHOAL_ESTATE,
                       "main must call shoal_init first: without it a child started by spawn or forkserver does not "
                       "find its function");
    }
    if (sh_world_file() < 0) {
        return sh_world_file_lost();
    }
    shoal_err err = sh_role_check();
    if (err == SHOAL_OK) {
        err = sh_sentinel_prepare();
    }
    if (err != SHOAL_OK) {
        return err;
    }
    sh_cardstore_ends(store);
    const int fds[] = {sh_world_file(), launch->lifeline, socket, sh_sentinel_child_end(), store[0], store[1]};
    snprintf(variable, sizeof variable, SH_CHILD_VARIABLE "=%d:%u:%d:%d:%d:%d:%d:%d", fds[0], launch->slot, fds[1],
             fds[2], fds[3], launch->death_signal, fds[4], fds[5]);
    char *text, **arguments = make_arguments(&text), **environment = make_environment(variable);
    if (arguments != NULL && environment != NULL) {
        err = run_program(arguments, environment, fds, sizeof fds / sizeof fds[0], out_born);
    } else {
        sh_sentinel_cancel();
        err = sh_fail(SHOAL_ENOMEM, "no memory for a child's environment");
    }
    free(environment);
    free(arguments);
    free(text);
    return err;
}

shoal_err sh_spawn_start(const sh_launch *launch, sh_born *out_born)
{
    return sh_spawn_program(launch, -1, out_born);
}
