/* For bindings to other languages: children that run another program, forks that return in both processes, and blocks
 * by address and by number.
 *
 * Bindings also use interrupt.h (waits that a signal ends), message.h (messages that are written in place), packed
 * values (value.h), and the file descriptors of queue.h.
 */
#ifndef SHOAL_BINDING_H
#define SHOAL_BINDING_H

#include <shoal/block.h>
#include <shoal/interrupt.h>
#include <shoal/message.h>
#include <shoal/process.h>
#include <shoal/queue.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Starts another program as a child of this process in this world. It could be `python3 -c ...`. path and argv are
 * those of execvp: argv[0] is the name of the program, and the last is NULL. Consumes args, on success and on
 * failure; NULL is an error, as for shoal_process_start. The program gets args from shoal_child_begin. options may be
 * NULL; its start must be default, spawn or forkserver. The caller owns the handle. Needs no shoal_init. Does not wait
 * for the program to join the world. Thread-safe.
 *
 * The handle works like any other: the process can be joined, signalled and polled, even if it never joins the world.
 * The program ends with this process, from its first instruction on, unless it was started with `outlive`, or handles
 * its `death_signal`.
 *
 * The program inherits this process's environment, with SHOAL_PROGRAM added, the two or three fds of the library that
 * this variable names, and the `fds` of the options. These may be close-on-exec: no other program that this process
 * starts meanwhile inherits them. shoal_child_begin removes the variable and makes the fds of the library
 * close-on-exec. Only the started process itself can join, not one of its children.
 *
 * With SHOAL_START_FORKSERVER, path and argv name a server program, which calls shoal_fork_server_begin and forks the
 * children. The first call starts it, and waits until it serves, for at most two minutes; no signal ends this wait.
 * Later calls use the same server, which alone inherits the fds. A call with another path or argv, and the first call
 * after the server died, start another server; the children of the old one go on, but exit codes other than those of
 * shoal_child_end are lost. The server has the environment of this process at its start. It ends with this process, or
 * by shoal_fork_server_stop.
 *
 * Errors: SHOAL_ENOENT if there is no such program; SHOAL_EPERM; SHOAL_EINVAL; SHOAL_ELIMIT; SHOAL_ENOMEM; SHOAL_EOS,
 * also if the server ends instead of serving; SHOAL_ETIMEDOUT if the server does not answer; SHOAL_EFORK. */
SHOAL_MUST_USE shoal_err shoal_process_start_program(const char *path, char *const argv[], shoal_value *args,
                                                     const shoal_process_options *options, shoal_process **out_process);

/* Joins the world of the parent, in a program that shoal_process_start_program started. Call it before any other
 * thread uses the library, and before the process is in a world. out_rank and out_args may be NULL. The library owns
 * the args, which exist as long as the process. From now on shoal_rank and shoal_return work. A second call returns
 * the same again; so does the first call in a child of shoal_fork. Does not block. Errors: SHOAL_ENOENT if this
 * process was not started in this way (a binding asks this first); SHOAL_ESTATE if the parent gave it up, or it is
 * already in a world; SHOAL_EPERM; SHOAL_ELAYOUT; SHOAL_ECORRUPT. */
SHOAL_MUST_USE shoal_err shoal_child_begin(int *out_rank, const shoal_value **out_args);

/* Reports the result of this process to its parent, at its end. It is for programs that shoal_process_start_program
 * started and for children of shoal_fork. err is what a target would return; if it is the code of the last error, the
 * text of shoal_last_error_text is reported too. The process must then exit with status 0 if err is SHOAL_OK, and 1
 * otherwise; it may leave the world first. Then the parent sees SHOAL_PROCESS_RETURNED or SHOAL_PROCESS_FAILED. A
 * process that ends without this call is SHOAL_PROCESS_EXITED or SHOAL_PROCESS_KILLED. Does not block. Errors:
 * SHOAL_ESTATE in any other process. */
SHOAL_MUST_USE shoal_err shoal_child_end(shoal_err err);

/* Options of shoal_fork and shoal_fork_server_begin. Zero is the default of each. */
typedef struct shoal_fork_options {
    void (*before)(void *context);        /* in the parent, before the fork */
    void (*after_parent)(void *context);  /* in the parent, after the fork, even if it failed */
    void (*after_child)(void *context);   /* in the child, once it is in the world */
    void *context;                        /* for the three functions */
    const shoal_process_options *process; /* rank, name, outlive and death_signal; may be NULL */
} shoal_fork_options;

/* Forks like shoal_process_start with SHOAL_START_FORK, but returns in both processes. In the parent *out_process is
 * the handle of the child, which the caller owns; in the child it is NULL. The child holds what the parent holds, has
 * the rank of the options, and may end with shoal_child_end and exit, or without. If a child cannot take its place in
 * the world, it exits at once with status 127. options and each of its functions may be NULL. The thread that forks
 * calls the functions, without a lock of the library. Does not warn of threads: a binding has its own way to do that.
 * Does not block. Errors: those of shoal_process_start. */
SHOAL_MUST_USE shoal_err shoal_fork(const shoal_fork_options *options, shoal_process **out_process);

/* Serves as a fork server, in a program that shoal_process_start_program started as one. Joins the world of the process
 * that started it (the requester), forks a child for each of its requests, and returns SHOAL_OK in each child. There it
 * is as after shoal_fork, except that the child is one of the requester, and holds nothing but its args: the library
 * owns them. It has the rank, the death_signal and the lifeline of the requester, which joins it. out_rank and out_args
 * may be NULL. Call it with no other thread running, and before the process is in a world.
 *
 * In the server it returns SHOAL_END when the requester has ended or stopped it; then the server has left the world and
 * should exit. The hooks are called around each fork, in the thread that called this; hooks and each of its functions
 * may be NULL, and its process is ignored. While it serves, SIGINT is ignored; the children have the action from
 * before. shoal_set_interrupt has no effect here.
 *
 * Errors: SHOAL_ENOENT if this process was not started as a fork server; SHOAL_ESTATE if the requester gave it up, or
 * it is already in a world; SHOAL_EPERM; SHOAL_ELAYOUT; SHOAL_ECORRUPT. */
SHOAL_MUST_USE shoal_err shoal_fork_server_begin(const shoal_fork_options *hooks, int *out_rank,
                                                 const shoal_value **out_args);

/* Returns the process ID of the server program that this process started last; 0 if it has none. It may have died
 * since. Does not block. Thread-safe. */
int32_t shoal_fork_server_pid(void);

/* Ends the fork servers of this process. Their children go on, as after a server's death. The next start that needs a
 * server starts another. Blocks until they have ended, usually some milliseconds; SIGKILL ends one that has not after 5
 * seconds. Thread-safe. Never changes the last error. */
void shoal_fork_server_stop(void);

#ifdef __cplusplus
}
#endif
#endif
