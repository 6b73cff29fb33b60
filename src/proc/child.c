/* Runs a child process: it takes its slot, finds its record and its function, calls it, records how it ended, and
 * leaves. */
#include "proc/child.h"

#include "base/error.h"

#include "base/log.h"
#include "ipc/message.h"
#include "ipc/value.h"
#include "os/futex.h"
#include "proc/process.h"
#include "proc/registry.h"
#include "proc/sentinel.h"
#include "shm/card_store.h"
#include "shm/slot.h"
#include "shm/world.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

static struct {
    shoal_block *record; /* NULL: the library did not start this process */
    int rank;
    shoal_value *args; /* of a child without a target function: shoal_child_begin, shoal_fork */
} me = {.rank = -1};

int shoal_rank(void)
{
    return me.rank;
}

static shoal_err store_result(const shoal_value *result)
{
    sh_encoding e;
    SH_TRY(sh_encoding_init(&e, result));
    shoal_block *message;
    sh_ctx *c = sh_enter_held();
    shoal_err err = c != NULL ? sh_message_make(c, &e, &message) : shoal_last_error();
    if (err == SHOAL_OK) {
        SH_DEATH("proc.return.made");
        sh_message_store(c, message, sh_offset_of(&sh_start_of(me.record)->result));
        SH_DEATH("proc.return.stored");
    }
    if (c != NULL) {
        sh_leave();
    }
    sh_encoding_fini(&e);
    return err;
}

shoal_err shoal_return(shoal_value *result)
{
    if (result == NULL) {
        return sh_null_error("shoal_return", "the result");
    }
    SH_TRY(sh_value_check_free(result));
    shoal_err err;
    if (me.record == NULL) {
        err = sh_fail(SHOAL_ESTATE, "shoal_return: this process was not started as a target");
    } else if (sh_block_is_lost(me.record)) {
        err = sh_fail(SHOAL_ESTATE, "shoal_return: this process has left its parent's world");
    } else {
        err = store_result(result);
    }
    sh_value_consume(result);
    return err;
}

/* Opens the record that this process's slot holds in its first cell, and reads the arguments. */
static shoal_err open_record(shoal_value **out_args)
{
    sh_ctx *c = sh_enter();
    if (c == NULL) {
        return shoal_last_error();
    }
    shoal_block *record;
    shoal_err err = sh_block_take(c, sh_offset_of(&c->slot->cells[0]), &record);
    if (err == SHOAL_OK && (record->kind != SH_KIND_TASK || record->size <= offsetof(sh_start_shm, target) ||
                            record->size > sizeof(sh_start_shm))) {
        err = sh_fail(SHOAL_ECORRUPT, "slot %u does not hold a start record", c->index);
    } else if (err == SHOAL_OK) {
        me.record = record;
        me.rank = sh_start_of(record)->rank;
        if ((sh_start_of(record)->flags & SH_START_NAMED) != 0) {
            prctl(PR_SET_NAME, c->slot->name); /* the first 15 bytes, as ps and top show it */
        }
        /* If holding the word fails, the parent notices the end a little later. */
        if ((sh_start_of(record)->flags & SH_START_OUTLIVE) == 0) {
            (void)sh_end_word_hold(sh_world_file(), sh_offset_of(&sh_start_of(record)->end));
        }
        sh_store_release(&sh_start_of(record)->phase, SH_START_RUNNING);
        SH_DEATH("proc.child.running");
        err = sh_message_read_at(c, sh_offset_of(&sh_start_of(record)->argument), false, out_args);
    }
    sh_leave();
    return err;
}

/* Records how the target ended, for the parent. If this process dies first, the parent learns it from the wait
 * status. */
static void record_end(shoal_err err)
{
    if (sh_block_is_lost(me.record)) { /* the target left the world: only the exit status can say how it ended */
        return;
    }
    sh_start_shm *record = sh_start_of(me.record);
    const char *text = shoal_last_error() == err ? shoal_last_error_text() : "";
    sh_store_relaxed(&record->err, (uint32_t)err);
    sh_store_relaxed(&record->ended_at, (uint64_t)sh_now());
    snprintf(record->text, sizeof record->text, "%s", err != SHOAL_OK ? text : "");
    SH_DEATH("proc.child.told");
    sh_store_release(&record->phase, SH_START_ENDED); /* pairs with the acquire in process.c: the fields above */
    SH_DEATH("proc.child.ended");
    sh_futex_wake(&record->phase, INT_MAX); /* death: shoal_wait checks the pidfd as well */
}

/* Opens the record, runs the target and records its end. Returns the exit status. */
static int run(shoal_target target)
{
    shoal_value *args = NULL;
    shoal_err err = open_record(&args);
    if (me.record == NULL) {
        sh_log("a child cannot find its record: %s", shoal_last_error_text());
        return SH_EXIT_LOST;
    }
    if (err == SHOAL_OK && target == NULL) {
        sh_function function;
        err = sh_target_find(&sh_start_of(me.record)->target, me.record->size - offsetof(sh_start_shm, target),
                             &function);
        target = err == SHOAL_OK ? (shoal_target)function : NULL;
    }
    if (err == SHOAL_OK) {
        err = target(me.rank, args);
    }
    record_end(err);
    shoal_value_destroy(args);
    return err == SHOAL_OK ? EXIT_SUCCESS : EXIT_FAILURE;
}

/* Called after a fork: forgets the parent's state, and takes the slot that is reserved for this process. */
static shoal_err take_forked_place(uint32_t slot, int death_signal)
{
    int lifeline = sh_lifeline_inherited();
    sh_sentinel_hold_forked();
    (void)sh_fail(SHOAL_OK, "%s", ""); /* the last error is the parent's */
    me.record = NULL;                  /* and so is this, if the parent is a child itself */
    me.rank = -1;
    me.args = NULL;
    shoal_err err = SHOAL_OK;
    if (death_signal != 0) {
        err = sh_lifeline_arm(lifeline, death_signal);
    }
    if (lifeline >= 0) {
        close(lifeline);
    }
    SH_TRY(err);
    SH_DEATH("proc.forked.armed");
    return sh_world_become(slot);
}

void sh_child_resume(uint32_t slot, int death_signal)
{
    if (take_forked_place(slot, death_signal) != SHOAL_OK || open_record(&me.args) != SHOAL_OK) {
        sh_log("a forked child cannot start: %s", shoal_last_error_text());
        _exit(SH_EXIT_LOST);
    }
}

_Noreturn void sh_child_forked(uint32_t slot, shoal_target target, int death_signal)
{
    int status = SH_EXIT_LOST;
    if (take_forked_place(slot, death_signal) == SHOAL_OK) {
        status = run(target);
    } else {
        sh_log("a forked child cannot start: %s", shoal_last_error_text());
    }
    fflush(NULL);
    sh_forkserver_leave(); /* the target may have started one */
    sh_world_end();        /* the mapping stays: another thread may be using a block */
    _exit(status);         /* exit would run the parent's exit handlers */
}

/* The fields of SHOAL_CHILD. */
typedef struct assignment {
    int world;
    int lifeline;
    int socket;
    int sentinel;
    int death_signal;
    int store[2];
    uint32_t slot;
} assignment;

static void keep_from_exec(int fd)
{
    if (fd >= 0) {
        fcntl(fd, F_SETFD, FD_CLOEXEC);
    }
}

static shoal_err enter_world(const assignment *a)
{
    SH_TRY(sh_world_attach(a->world, a->slot, NULL));
    sh_cardstore_adopt(a->store);
    return SHOAL_OK;
}

static shoal_err take_place(const assignment *a)
{
    if (a->socket >= 0) {
        sh_lifeline_pass_on(a->lifeline); /* a fork server ends by itself when its socket is closed */
    } else if (a->lifeline >= 0) {
        shoal_err err = sh_lifeline_arm(a->lifeline, a->death_signal);
        close(a->lifeline);
        if (err != SHOAL_OK) {
            return err;
        }
    }
    SH_DEATH("proc.spawned.armed");
    return enter_world(a);
}

/* Ends the server with exit, which leaves the world too, and the children with their targets. */
static _Noreturn void be_server(int socket)
{
    static const shoal_fork_options no_hooks;
    sh_request r;
    if (sh_forkserver_serve(socket, &no_hooks, &r)) {
        sh_child_forked(r.slot, NULL, r.death_signal);
    }
    exit(EXIT_SUCCESS);
}

static bool is_privileged(void)
{
    return getauxval(AT_SECURE) != 0;
}

/* Checks whether the file of this program gives privileges. AT_SECURE alone does not tell: this process also has it if
 * its ids differed when it was executed, which may be over, or if it entered another domain of SELinux or AppArmor, in
 * which its children are from the beginning. */
static bool file_gives_privileges(void)
{
    struct stat status;
    return stat("/proc/self/exe", &status) != 0 || (status.st_mode & (S_ISUID | S_ISGID)) != 0 ||
           getxattr("/proc/self/exe", "security.capability", NULL, 0) > 0;
}

/* The kernel sets AT_SECURE in whatever is executed while the ids differ. A program that gained privileges by its file
 * gains them again, unless it is root by now, which has nothing to gain. */
shoal_err sh_role_check(void)
{
    bool differ = getuid() != geteuid() || getgid() != getegid();
    return differ || (is_privileged() && getuid() != 0 && file_gives_privileges())
               ? sh_fail(SHOAL_EPERM, "cannot run this program again: " SH_PRIVILEGED_TEXT)
               : SHOAL_OK;
}

/* SHOAL_CHILD when this process began. Empty: it was not set, or shoal_init has used it. */
static char role[SH_VARIABLE_ROOM];

/* A program may clear its environment before shoal_init, and must not run as its own parent for that. */
__attribute__((constructor)) static void note_role(void)
{
    const char *text = getenv(SH_CHILD_VARIABLE);
    snprintf(role, sizeof role, "%s", text != NULL ? text : "");
}

shoal_err shoal_init(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    sh_spawn_allow();
    const char *text = role[0] != 0 ? role : getenv(SH_CHILD_VARIABLE);
    assignment a;
    if (text == NULL) {
        return SHOAL_OK;
    }
    if (is_privileged()) { /* before anything in the text is believed */
        sh_log("a child cannot start: " SH_PRIVILEGED_TEXT);
        _exit(SH_EXIT_PRIVILEGED);
    }
    int fields = sscanf(text, "%d:%u:%d:%d:%d:%d:%d:%d", &a.world, &a.slot, &a.lifeline, &a.socket, &a.sentinel,
                        &a.death_signal, &a.store[0], &a.store[1]);
    unsetenv(SH_CHILD_VARIABLE); /* this process's children must not inherit its role */
    role[0] = 0;
    if (fields != 8 || a.world < 0) {
        return sh_fail(SHOAL_EINVAL,
                       SH_CHILD_VARIABLE " is reserved: the library sets it for the children that it starts");
    }
    keep_from_exec(a.world);
    keep_from_exec(a.lifeline);
    keep_from_exec(a.socket);
    sh_sentinel_hold(a.sentinel);
    prctl(PR_SET_NAME, program_invocation_short_name); /* otherwise it would be "exe" */
    shoal_err err = take_place(&a);
    if (err != SHOAL_OK) {
        sh_log("a child cannot start: %s",
               sh_attached() ? "the program calls the library before shoal_init, which must be the first call of main"
                             : shoal_last_error_text());
        _exit(SH_EXIT_LOST);
    }
    if (a.socket >= 0) {
        be_server(a.socket);
    }
    exit(run(NULL));
}

/* ---- a program that was started as a child, or as a fork server ---- */

/* Reads SHOAL_PROGRAM, in a program of that role, and removes it: this process's children must not inherit the role. */
static shoal_err read_role(bool server, assignment *out_assignment)
{
    const char *text = getenv(SH_PROGRAM_VARIABLE);
    assignment a = {.death_signal = 0};
    if (text != NULL && is_privileged()) {
        return sh_fail(SHOAL_EPERM, "shoal_%s_begin: " SH_PRIVILEGED_TEXT, server ? "fork_server" : "child");
    }
    int fields = text != NULL ? sscanf(text, "%d:%u:%d:%d:%d:%d:%d", &a.world, &a.slot, &a.lifeline, &a.socket,
                                       &a.sentinel, &a.store[0], &a.store[1])
                              : 0;
    bool valid = fields == 7 && a.world >= 0;
    if (text == NULL || (valid && (a.socket >= 0) != server)) {
        return server ? sh_fail(SHOAL_ENOENT, "shoal_fork_server_begin: this process was not started as a fork server")
               : text == NULL
                   ? sh_fail(SHOAL_ENOENT,
                             "shoal_child_begin: this process was not started by shoal_process_start_program")
                   : sh_fail(SHOAL_ENOENT, "shoal_child_begin: this process is a fork server, not a child");
    }
    unsetenv(SH_PROGRAM_VARIABLE);
    if (!valid) {
        return sh_fail(SHOAL_EINVAL,
                       SH_PROGRAM_VARIABLE " is reserved: the library sets it for the programs that it starts");
    }
    *out_assignment = a;
    return SHOAL_OK;
}

/* Joins the world. In a server, children hang on the lifeline from now on, and the closed socket ends the server. */
static shoal_err join_as_program(const assignment *a)
{
    keep_from_exec(a->world);
    sh_sentinel_hold(a->sentinel);
    if (a->socket >= 0) {
        keep_from_exec(a->socket);
        keep_from_exec(a->lifeline);
        sh_lifeline_pass_on(a->lifeline);
    } else {
        sh_lifeline_adopt(a->lifeline);
    }
    SH_DEATH("proc.program.begun");
    return enter_world(a);
}

shoal_err shoal_child_begin(int *out_rank, const shoal_value **out_args)
{
    assignment a;
    if (me.record == NULL) {
        SH_TRY(read_role(false, &a));
        SH_TRY(join_as_program(&a));
        SH_TRY(open_record(&me.args));
    }
    if (out_rank != NULL) {
        *out_rank = me.rank;
    }
    if (out_args != NULL) {
        *out_args = me.args;
    }
    return SHOAL_OK;
}

shoal_err shoal_fork_server_begin(const shoal_fork_options *hooks, int *out_rank, const shoal_value **out_args)
{
    static const shoal_fork_options no_hooks;
    const shoal_fork_options *h = hooks != NULL ? hooks : &no_hooks;
    assignment a;
    sh_request r;
    SH_TRY(read_role(true, &a));
    SH_TRY(join_as_program(&a));
    if (!sh_forkserver_serve(a.socket, h, &r)) {
        shoal_world_leave();
        return SHOAL_END;
    }
    sh_child_resume(r.slot, r.death_signal);
    sh_hook_call(h->after_child, h->context);
    return shoal_child_begin(out_rank, out_args);
}

shoal_err shoal_child_end(shoal_err err)
{
    if (me.record == NULL || sh_block_is_lost(me.record)) {
        return sh_fail(SHOAL_ESTATE, "shoal_child_end: this process is not a child, or has left its world");
    }
    record_end(err);
    return SHOAL_OK;
}
