/* What a binding for another language needs beside the rest: children that are other programs, forks that go on in the
 * caller, waits that a signal ends, fds to poll, and messages that are written in place.
 */
#ifndef SHOAL_BINDING_H
#define SHOAL_BINDING_H

#include <shoal/interrupt.h>
#include <shoal/message.h>
#include <shoal/process.h>
#include <shoal/queue.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Starts another program as a child of this process in this world: `python3 -c ...`. path and argv as execvp takes them
 * (argv[0] is the program's name, the last is NULL). args (NULL: null) is consumed, whether or not it succeeds; the
 * program gets it from shoal_child_begin. options may be NULL; its start must be default or spawn, its name is the
 * program's unless given. Needs no shoal_init. Does not wait for the program to join.
 *
 * The handle is like any other: joined, signalled, polled. A program that never joins is watched all the same. It ends
 * with this process, from its first instruction on, unless it may outlive it.
 *
 * The program inherits this process's environment with SHOAL_PROGRAM added, and no fd of the library but the two or three
 * that this variable names. shoal_child_begin removes the variable and makes them close-on-exec. Only the process that
 * was started may join with it, not a child of that one.
 * Errors: SHOAL_ENOENT (no such program), SHOAL_EPERM, SHOAL_EINVAL, SHOAL_ELIMIT, SHOAL_ENOMEM, SHOAL_EOS, SHOAL_EFORK.
 */
SHOAL_MUST_USE shoal_err shoal_process_start_program(const char *path, char *const argv[], shoal_value *args,
                                                     const shoal_process_options *options, shoal_process **out_process);

/* Joins the world, in a program that was started by shoal_process_start_program. Called before any other thread uses the
 * library, and before the process is in a world. The outputs may be NULL; args is borrowed and lives as long as the
 * process. shoal_rank and shoal_return work from now on. A second call gives the same again; so does the first in the
 * child of a shoal_fork. Errors: SHOAL_ENOENT when this process was not started so (the first thing that a binding asks),
 * SHOAL_ESTATE when it was given up or is in a world already, SHOAL_EPERM, SHOAL_ELAYOUT, SHOAL_ECORRUPT. */
SHOAL_MUST_USE shoal_err shoal_child_begin(int *out_rank, const shoal_value **out_args);

/* Reports how a started program ends. Called in such a program, and in the child of a shoal_fork, at its end. err is what a target would have returned, with the
 * text of shoal_last_error_text when that is its code. The process must then end with status 0 for SHOAL_OK and 1
 * otherwise (exit; leaving the world first is allowed): so the parent sees SHOAL_RETURNED or SHOAL_FAILED. A process
 * that ends without this call is SHOAL_EXITED or SHOAL_KILLED. Errors: SHOAL_ESTATE in a process that is neither. */
SHOAL_MUST_USE shoal_err shoal_child_end(shoal_err err);

/* Options of shoal_fork. Zero is the default of each. */
typedef struct shoal_fork_options {
    void (*before)(void *context);        /* in the parent, before anything is done */
    void (*after_parent)(void *context);  /* in the parent, when all is done, also when there is no child */
    void (*after_child)(void *context);   /* in the child, when it is in the world */
    void *context;                        /* what the three are given */
    const shoal_process_options *process; /* rank, name, outlive; NULL: none */
} shoal_fork_options;

/* Forks, as shoal_process_start with SHOAL_START_FORK does, but returns on both sides. In the parent *out_process is the
 * handle of the child, in the child it is NULL. The child holds what the parent held, has its rank, and ends as it
 * likes: by shoal_child_end and exit, or without. A child that cannot take its place in the world ends at once, with
 * status 127. options may be NULL, and any hook; the hooks are called by the thread that forks and hold no lock of the
 * library. Errors: as shoal_process_start. */
SHOAL_MUST_USE shoal_err shoal_fork(const shoal_fork_options *options, shoal_process **out_process);

#ifdef __cplusplus
}
#endif
#endif
