/* The rules of the interface (shoal.h), for every exported name. Each column calls every function of the table in one
 * situation:
 *
 *   works              all is well: this proves that the arguments are good, so that the other columns mean something
 *   NULL               NULL for one pointer after another, with and without an earlier failure
 *   no memory          each allocation of the call fails in turn
 *   heap at its limit  the world's heap cannot grow, and has no free block
 *   after leave        the handles belong to a world that the process has left; a second time with tensors that were
 * shared: calls that
 *                      need their elements fail, the others work
 *   after the end      the process has begun to end
 *   plain fork         in a child of fork()
 *
 * After each call the test releases the call's results and arguments. Then the world must have as many blocks and
 * references as before, and the process as many allocations.
 *
 * Each column runs in a separate child. Shared memory records its current call; after a crash the parent reports that
 * call and starts another child after it. */
#include "rules.h"

#include "shm/heap.h"
#include "shm/kind.h"
#include "shm/world.h"

#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/lsan_interface.h>
#endif

#define OUT_SIZE 1024 /* bytes for one output */
#define PATTERN 0x5a
#define FAULTS 2000
#define ROWS 600
#define LIMIT_S 20 /* a call that takes longer hangs */
#define REPEATS 40 /* growth in every cycle is a leak; growth in a few cycles is a cache */

typedef struct progress {
    size_t row, checks, faults;
    int step;
    char fault[FAULTS][240];
} progress;

static progress *now;

__attribute__((format(printf, 3, 4))) static void fault(const rules_row *row, const char *argument, const char *format,
                                                        ...)
{
    if (now->faults < FAULTS) {
        char *to = now->fault[now->faults++];
        int n = snprintf(to, sizeof now->fault[0], "%s(%s): ", row->name, argument);
        va_list arguments;
        va_start(arguments, format);
        (void)vsnprintf(to + n, sizeof now->fault[0] - (size_t)n, format, arguments);
        va_end(arguments);
    }
}

/* ---- calls ---- */

typedef struct arguments {
    void *made[RULES_POINTERS]; /* outputs: NULL */
    void *given[RULES_POINTERS];
} arguments;

static _Alignas(64) char out_room[RULES_POINTERS][OUT_SIZE];

static void log_nothing(const char *line, void *context)
{
    (void)line;
    (void)context;
}

static bool shares; /* tensors, and objects made from them, are in the heap */

static void share(const rules_maker *maker, void *made)
{
    if (maker->drop == rules_drop_tensor) {
        (void)!shoal_tensor_share(made);
    } else if (maker->drop == rules_drop_module) {
        (void)!shoal_module_share(made);
    } else if (maker->drop == rules_drop_sparse) {
        (void)!shoal_sparse_share(made);
    }
}

static void make(const rules_row *row, arguments *a)
{
    *a = (arguments){0};
    for (int i = 0; i < row->pointers; i++) {
        a->made[i] = row->pointer[i].maker != NULL ? row->pointer[i].maker->make() : NULL;
        a->given[i] = row->pointer[i].maker != NULL ? a->made[i] : out_room[i];
        if (shares && row->pointer[i].maker != NULL) {
            share(row->pointer[i].maker, a->made[i]);
        }
    }
}

static bool has_succeeded(const rules_row *row, const rules_result *r)
{
    return row->returns == RULES_ERR ? r->err == SHOAL_OK : row->returns != RULES_POINTER || r->pointer != NULL;
}

static void call(const rules_row *row, arguments *a, rules_result *r)
{
    memset(out_room, PATTERN, sizeof out_room);
    *r = (rules_result){0};
    alarm(LIMIT_S);
    row->call(a->given, r);
    alarm(0);
    now->checks++;
}

/* Destroys the results of the call. */
static void drop_results(const rules_row *row, const arguments *a, const rules_result *r)
{
    if (row->drop_result != NULL && r->pointer != NULL) {
        row->drop_result((void *)(uintptr_t)r->pointer);
    }
    for (int i = 0; i < row->pointers && row->returns == RULES_ERR && r->err == SHOAL_OK; i++) {
        if (row->pointer[i].drop_out != NULL && a->given[i] != NULL) {
            bool delivery = strcmp(row->pointer[i].name, "out_delivery") == 0;
            row->pointer[i].drop_out(delivery ? (void *)out_room[i] : *(void **)(void *)out_room[i]);
        }
    }
}

/* Destroys the arguments that the test still owns. */
static void drop_arguments(const rules_row *row, const arguments *a, bool succeeded)
{
    for (int i = 0; i < row->pointers; i++) {
        bool taken = a->given[i] != NULL && (row->pointer[i].takes == RULES_ALWAYS ||
                                             (row->pointer[i].takes == RULES_ON_SUCCESS && succeeded));
        if (taken) {
            rules_drop_companions(a->made[i]);
        } else if (row->pointer[i].maker != NULL && row->pointer[i].maker->drop != NULL) {
            row->pointer[i].maker->drop(a->made[i]);
        }
    }
    shoal_scope_release(0);
    shoal_set_interrupt(NULL, NULL);
    shoal_set_log(log_nothing, NULL);
}

/* ---- counts of blocks, references and allocations ---- */

typedef struct measure {
    uint64_t blocks, references;
    int64_t allocated;
} measure;

/* Returns how many blocks this process keeps for its references: as many as it ever needed. */
static uint64_t count_chunks(void)
{
    uint64_t count = 0;
    sh_found f;
    for (sh_ref r = sh_load_acquire(&sh_the_world.self.slot->chunks); r != 0 && sh_heap_find(sh_ref_id(r), &f);
         count++) {
        r = sh_load_acquire(&((const sh_cells_shm *)f.data)->next);
    }
    return count;
}

/* Waits until the workers of pools are parked, because what they do looks like damage for a moment. */
static measure take_measure(const rules_row *row)
{
    shoal_audit audit;
    for (int i = 0; shoal_world_audit(&audit) == SHOAL_ECORRUPT; i++) {
        if (i == 1000) {
            fault(row, "", "the audit is not clean: %s", audit.first);
            break;
        }
        (void)poll(NULL, 0, 1);
    }
    uint64_t chunks = count_chunks();
    return (measure){audit.blocks - chunks, audit.references - chunks, rules_allocated()};
}

static bool has_grown(const measure *before, const measure *after)
{
    return after->blocks > before->blocks || after->references > before->references ||
           after->allocated > before->allocated;
}

/* ---- checks ---- */

static bool out_is_clean(void)
{
    static char pattern[sizeof out_room];
    memset(pattern, PATTERN, sizeof pattern);
    return memcmp(out_room, pattern, sizeof pattern) == 0;
}

static const char *name_of(const rules_row *row, const rules_result *r)
{
    return row->returns == RULES_ERR       ? shoal_err_name(r->err)
           : row->returns == RULES_POINTER ? (r->pointer != NULL ? "a pointer" : "NULL")
           : row->returns == RULES_PLAIN   ? (r->nonzero ? "a number" : "0")
                                           : "nothing";
}

/* Checks the result. The last error was SHOAL_OK before the call. */
static void check_answer(const rules_row *row, const rules_result *r, int wanted, const char *argument)
{
    wanted = wanted == RULES_WORKS ? row->works : wanted;
    shoal_err last = shoal_last_error();
    const char *wanted_name = wanted == RULES_NULL ? "NULL" : shoal_err_name((shoal_err)wanted);
    bool failed = wanted != SHOAL_OK && wanted != RULES_NULL, good = true;
    switch (row->returns) {
    case RULES_ERR:
        good = (int)r->err == wanted || (wanted == SHOAL_OK && r->err == SHOAL_END);
        if (good && failed && last != r->err) {
            fault(row, argument, "returned %s and recorded %s", shoal_err_name(r->err), shoal_err_name(last));
        } else if (failed && r->err != SHOAL_OK && !row->writes_and_fails && !out_is_clean()) {
            fault(row, argument, "wrote its output and failed: '%s'", shoal_last_error_text());
        }
        break;
    case RULES_POINTER:
        good = !row->expression ? !failed || r->pointer == NULL
               : failed         ? r->pointer == NULL && (int)last == wanted
                                : (r->pointer == NULL) == (wanted == RULES_NULL);
        break;
    case RULES_PLAIN: good = !failed || !r->nonzero; break;
    case RULES_VOID: break;
    }
    if (!good) {
        fault(row, argument, "wanted %s, gave %s (%s: '%s')", wanted_name, name_of(row, r), shoal_err_name(last),
              last != SHOAL_OK ? shoal_last_error_text() : "");
    } else if ((row->returns == RULES_VOID || row->returns == RULES_PLAIN) && last != SHOAL_OK) {
        fault(row, argument, "cannot fail, but set the last error: '%s'", shoal_last_error_text());
    }
}

static void clear_error(void)
{
    (void)shoal_fail(SHOAL_OK, "%s", "");
}

/* Accepts "shoal_item: t is NULL" and "shoal_pipe_poll: the end of the pipe is NULL"; for ops also "shoal_add: the
 * first tensor is NULL". */
static bool names_argument(const char *text, const rules_row *row, const char *argument)
{
    size_t n = strlen(row->name), m = strlen(argument);
    const char *end = strstr(text, " is NULL");
    if (strncmp(text, row->name, n) != 0 || strncmp(text + n, ": ", 2) != 0 || end == NULL) {
        return false;
    }
    bool named = row->expression && strncmp(end - 7, " tensor", 7) == 0;
    for (const char *at = text + n + 2; at + m <= end && !named; at++) {
        named = at[-1] == ' ' && strncmp(at, argument, m) == 0 && at[m] == ' ';
    }
    return named;
}

/* NULL for one pointer: SHOAL_EINVAL with the call's name and the earlier failure; or NULL, and the first error is kept
 * if another call makes such a pointer; or no effect. */
static void check_null(const rules_row *row, const rules_result *r, int n, bool earlier)
{
    const char *argument = row->pointer[n].name;
    bool made = row->pointer[n].made;
    static const char first[] = "the first failure";
    bool kept = shoal_last_error() == (earlier ? SHOAL_ELIMIT : SHOAL_OK);
    const char *text = shoal_last_error_text();
    switch (row->returns) {
    case RULES_ERR:
        if (r->err != SHOAL_EINVAL) {
            fault(row, argument, "NULL gave %s", shoal_err_name(r->err));
        } else if (!out_is_clean()) {
            fault(row, argument, "wrote its output although it failed");
        } else if (shoal_last_error() != SHOAL_EINVAL || !names_argument(text, row, argument)) {
            fault(row, argument, "the text does not name the call and the argument: '%s'", text);
        } else if (earlier && strstr(text, first) == NULL) {
            fault(row, argument, "the text does not end with the earlier failure: '%s'", text);
        }
        break;
    case RULES_POINTER:
        if (r->pointer != NULL) {
            fault(row, argument, "NULL gave a result");
        } else if (earlier && made && !kept) {
            fault(row, argument, "overwrote the first error: '%s'", text);
        } else if ((!earlier || !made) && row->expression && shoal_last_error() != SHOAL_EINVAL) {
            fault(row, argument, "recorded the wrong error %s", shoal_err_name(shoal_last_error()));
        } else if ((!earlier || !made) && row->expression && !names_argument(text, row, argument)) {
            fault(row, argument, "the text does not name the call and the argument: '%s'", text);
        }
        break;
    case RULES_VOID:
    case RULES_PLAIN:
        if (!kept) {
            fault(row, argument, "changed the last error: '%s'", text);
        }
        break;
    }
}

/* ---- columns that make arguments, call and clean up, one call after the other ---- */

typedef enum situation {
    WORKS,
    NULL_AFTER_NOTHING,
    NULL_AFTER_A_FAILURE,
    ALLOCATION_FAILS,
} situation;

/* Makes one call with separate arguments. n is the pointer that is NULL, or the allocation that fails. Returns false if
 * there is no n-th. */
static bool cycle(const rules_row *row, situation what, int n, const char *argument)
{
    arguments a;
    rules_result r;
    make(row, &a);
    (void)shoal_fail(what == NULL_AFTER_A_FAILURE ? SHOAL_ELIMIT : SHOAL_OK, "%s",
                     what == NULL_AFTER_A_FAILURE ? "the first failure" : "");
    if (what == NULL_AFTER_NOTHING || what == NULL_AFTER_A_FAILURE) {
        a.given[n] = NULL;
    }
    rules_fail_at(what == ALLOCATION_FAILS ? n : 0);
    call(row, &a, &r);
    rules_fail_at(0);
    bool there_was = what != ALLOCATION_FAILS || rules_has_failed();
    if (what == WORKS) {
        check_answer(row, &r, RULES_WORKS, "");
    } else if (what != ALLOCATION_FAILS) {
        if (row->pointer[n].null == RULES_REFUSED) {
            check_null(row, &r, n, what == NULL_AFTER_A_FAILURE);
        } else if (what == NULL_AFTER_NOTHING) {
            check_answer(row, &r, row->pointer[n].null == RULES_ALLOWED ? RULES_WORKS : RULES_NULL, argument);
        }
    } else if (there_was) {
        bool failed = row->returns == RULES_ERR ? r.err != SHOAL_OK && r.err != SHOAL_END
                                                : row->returns == RULES_POINTER && row->expression && r.pointer == NULL;
        if (failed && row->works == SHOAL_OK && shoal_last_error() != SHOAL_ENOMEM) {
            fault(row, argument, "gave %s (%s: '%s') when an allocation failed", name_of(row, &r),
                  shoal_err_name(shoal_last_error()), shoal_last_error_text());
        }
        if (failed && row->returns == RULES_ERR && !out_is_clean()) {
            fault(row, argument, "wrote its output although an allocation failed");
        }
    }
    drop_results(row, &a, &r);
    drop_arguments(row, &a, has_succeeded(row, &r));
    return there_was;
}

/* Repeats until a cycle leaves nothing behind. */
static bool cycles(const rules_row *row, situation what, int n, const char *argument)
{
    static measure last; /* after the last cycle; nothing happens between two cycles */
    static bool measured;
    bool there_was = true, grows = true;
    measure before = last;
    for (int i = 0; i < REPEATS && grows && there_was; i++) {
        size_t faults = now->faults;
        before = measured ? last : take_measure(row);
        there_was = cycle(row, what, n, argument);
        last = take_measure(row);
        measured = true;
        grows = has_grown(&before, &last) && now->faults == faults;
    }
    if (grows && there_was) {
        fault(row, argument, "leaves %lld blocks, %lld references, %lld allocations",
              (long long)(last.blocks - before.blocks), (long long)(last.references - before.references),
              (long long)(last.allocated - before.allocated));
    }
    return there_was;
}

typedef void part(const rules_row *row);

static void works_rows(const rules_row *row)
{
    if (!row->heavy) {
        (void)cycles(row, WORKS, 0, "");
    }
}

static void null_rows(const rules_row *row)
{
    for (int i = now->step; i < 2 * row->pointers; now->step = ++i) {
        if (!row->heavy || row->pointer[i / 2].null == RULES_REFUSED) {
            (void)cycles(row, i % 2 == 1 ? NULL_AFTER_A_FAILURE : NULL_AFTER_NOTHING, i / 2, row->pointer[i / 2].name);
        }
    }
}

static void failing_allocations(const rules_row *row)
{
    char which[32] = "";
    for (int n = 1; n < 200 && !row->heavy && !row->starts; n++) {
        (void)snprintf(which, sizeof which, "allocation %d", n);
        if (!cycles(row, ALLOCATION_FAILS, n, which)) {
            break;
        }
    }
}

/* ---- columns that make all arguments first ---- */

static arguments all[ROWS];
static bool failed_full[ROWS], succeeded_full[ROWS]; /* in the column "heap at its limit" */
static part *the_part;

static void walk(void)
{
    for (size_t i = now->row; i < rules_count; now->row = ++i, now->step = 0) {
        if (rules_table[i].skipped == NULL) {
            the_part(&rules_table[i]);
        }
    }
}

static bool needs_process(const rules_row *row)
{
    static const char *const with[] = {"pool", "process", "future", "iterator"};
    bool needs = false;
    for (int i = 0; i < 4 * row->pointers; i++) {
        needs = needs || (row->pointer[i / 4].maker != NULL && strcmp(row->pointer[i / 4].name, with[i % 4]) == 0);
    }
    return needs;
}

/* Makes those with processes first, because their workers hold everything that exists when they are forked. */
static void make_all(void)
{
    for (size_t i = now->row; i < 2 * rules_count; i++) {
        const rules_row *row = &rules_table[i % rules_count];
        if (i % rules_count >= now->row && row->skipped == NULL && needs_process(row) == (i < rules_count)) {
            make(row, &all[i % rules_count]);
        }
    }
}

static void refused_rows(const rules_row *row, rules_state state)
{
    arguments *a = &all[row - rules_table];
    rules_result r = {0};
    clear_error();
    if (!row->heavy || (state == RULES_ENDED && row->answer[state] != RULES_WORKS)) {
        call(row, a, &r);
        bool lost = shares && shoal_last_error() == SHOAL_ESTATE;
        if (lost && row->returns == RULES_PLAIN) {
            clear_error(); /* shoal_tensor_equal and shoal_tensor_close report why they are false */
        }
        check_answer(row, &r, lost ? SHOAL_ESTATE : row->answer[state], "");
        drop_results(row, a, &r);
    }
    drop_arguments(row, a, has_succeeded(row, &r) && !row->heavy);
}

static void left_rows(const rules_row *row)
{
    refused_rows(row, RULES_LEFT);
    shoal_world_leave(); /* some calls make another world */
}

static void ended_rows(const rules_row *row)
{
    refused_rows(row, RULES_ENDED);
}

static void forked_rows(const rules_row *row)
{
    refused_rows(row, RULES_FORKED);
}

static void finish(void)
{
#if defined(__SANITIZE_ADDRESS__)
    if (__lsan_do_recoverable_leak_check() != 0) {
        fault(&rules_table[0], "", "LeakSanitizer found leaks in this column");
    }
#endif
    _exit(0);
}

/* ---- the heap at its limit ---- */

#define FILL (1u << 17)
static shoal_block *fill[FILL];
static size_t filled;

static void fill_heap(void)
{
    for (size_t size = (size_t)1 << 20; size > 0; size -= size > 64 ? size / 5 : size) {
        while (filled < FILL && shoal_block_create(size, &fill[filled]) == SHOAL_OK) {
            filled++;
        }
    }
}

static void free_heap(void)
{
    while (filled > 0) {
        shoal_block_release(fill[--filled]);
    }
}

/* The call has what it needs, or reports that there is no memory and has changed nothing. Its arguments stay, to be
 * passed again. */
static void full_rows(const rules_row *row)
{
    size_t i = (size_t)(row - rules_table);
    rules_result r = {0};
    if (row->heavy || strcmp(row->name, "shoal_world_leave") == 0) {
        return;
    }
    measure before = take_measure(row);
    clear_error();
    call(row, &all[i], &r);
    bool failed = row->returns == RULES_ERR ? r.err != SHOAL_OK && r.err != SHOAL_END
                                            : row->returns == RULES_POINTER && row->expression && r.pointer == NULL;
    failed_full[i] = failed && shoal_last_error() == SHOAL_ENOMEM;
    succeeded_full[i] = !failed;
    check_answer(row, &r, failed_full[i] ? SHOAL_ENOMEM : RULES_WORKS, "");
    drop_results(row, &all[i], &r);
    shoal_scope_release(0);
    measure after = take_measure(row);
    if (failed && after.blocks > before.blocks) {
        fault(row, "", "had no memory and left %lld blocks", (long long)(after.blocks - before.blocks));
    }
    if (after.blocks < before.blocks) {
        fill_heap();
    }
}

/* Calls again with memory: the same arguments are still good, except those that the call consumed. */
static void again(const rules_row *row)
{
    arguments *a = &all[row - rules_table];
    rules_result r;
    for (int i = 0; i < row->pointers; i++) {
        if (row->pointer[i].takes == RULES_ALWAYS) {
            rules_drop_companions(a->made[i]);
            a->made[i] = a->given[i] = row->pointer[i].maker->make();
        }
    }
    clear_error();
    call(row, a, &r);
    check_answer(row, &r, RULES_WORKS, "with memory again");
    drop_results(row, a, &r);
    drop_arguments(row, a, has_succeeded(row, &r));
}

static void at_the_limit(void)
{
    const rules_row *none = &rules_table[0];
    measure before = take_measure(none), after = before;
    make_all();
    uint64_t limit = sh_load_relaxed(&sh_the_world.header->heap_limit);
    sh_store_relaxed(&sh_the_world.header->heap_limit, 1);
    fill_heap();
    walk();
    sh_store_relaxed(&sh_the_world.header->heap_limit, limit);
    free_heap();
    size_t refused = 0;
    for (size_t i = 0; i < rules_count; i++) {
        refused += failed_full[i];
        if (failed_full[i]) {
            again(&rules_table[i]);
        } else if (rules_table[i].skipped == NULL) {
            drop_arguments(&rules_table[i], &all[i], succeeded_full[i]);
        }
    }
    rules_drop_kept();
    after = take_measure(none);
    if (after.blocks != before.blocks || after.references != before.references) {
        fault(none, "all calls", "%lld blocks and %lld references are left", (long long)(after.blocks - before.blocks),
              (long long)(after.references - before.references));
    }
    if (refused < 20) {
        fault(none, "all calls", "only %zu calls had no memory: the heap is not full", refused);
    }
    printf("  %zu calls had no memory, and worked again when there was some\n", refused);
    fflush(stdout);
    finish();
}

/* ---- states ---- */

static void in_order(void)
{
    walk();
    finish();
}

static void after_leave(void)
{
    make_all();
    shoal_world_leave();
    walk();
    finish();
}

static void after_leave_shared(void)
{
    shares = true;
    after_leave();
}

static void after_plain_fork(void)
{
    make_all();
    pid_t child = fork();
    if (child == 0) {
        walk();
        finish();
    }
    int status = 1;
    (void)!waitpid(child, &status, 0);
    if (WIFSIGNALED(status)) {
        signal(WTERMSIG(status), SIG_DFL);
        raise(WTERMSIG(status));
    }
    _exit(WEXITSTATUS(status));
}

static void at_the_end(void)
{
    walk();
    finish();
}

static void after_the_end(void)
{
    (void)atexit(at_the_end); /* registered before the library's handler, so it runs after it */
    make_all();
    exit(0);
}

static int run(const char *name, void (*state)(void), part *rows)
{
    the_part = rows;
    *now = (progress){0};
    size_t crashes = 0;
    for (bool done = false; !done && crashes < 300;) {
        pid_t pid = fork();
        if (pid == 0) {
            shoal_set_log(log_nothing, NULL);
            state();
        }
        int status = 0;
        (void)!waitpid(pid, &status, 0);
        done = WIFEXITED(status) && WEXITSTATUS(status) == 0;
        if (!done) {
            crashes++;
            if (now->row >= rules_count) {
                fault(&rules_table[0], "", "the column ended by %d", status);
                break;
            }
            const rules_row *row = &rules_table[now->row];
            fault(row, "", "step %d: %s", now->step,
                  WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "ended the process");
            if (rows == null_rows && now->step + 1 < 2 * row->pointers) {
                now->step++;
            } else {
                now->row++;
                now->step = 0;
            }
        }
    }
    printf("%-18s %6zu checks, %zu faults\n", name, now->checks, now->faults);
    for (size_t i = 0; i < now->faults; i++) {
        printf("  %s\n", now->fault[i]);
    }
    fflush(stdout);
    return (int)now->faults;
}

int main(int argc, char **argv)
{
    char data[4096];
    char folder[] = "/tmp/shoal-rules-XXXXXX"; /* calls that write files write them here */
    if (getcwd(data, sizeof data - 8) == NULL || setenv("SHOAL_DATA", strcat(data, "/data"), 1) != 0 ||
        setenv("SHOAL_START", "fork", 1) != 0 || mkdtemp(folder) == NULL || chdir(folder) != 0) {
        return 1;
    }
    const char *only = argc > 1 ? argv[1] : "";
    now = mmap(NULL, sizeof *now, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    size_t skipped = 0;
    for (size_t i = 0; i < rules_count; i++) {
        skipped += rules_table[i].skipped != NULL;
    }
    printf("%zu exported names, %zu of them without rows\n", rules_count, skipped);
    fflush(stdout);
    static const struct {
        const char *name;
        void (*state)(void);
        part *rows;
    } parts[] = {
        {"works", in_order, works_rows},
        {"NULL", in_order, null_rows},
        {"no memory", in_order, failing_allocations},
        {"heap at its limit", at_the_limit, full_rows},
        {"after leave", after_leave, left_rows},
        {"after leave, shared", after_leave_shared, left_rows},
        {"after the end", after_the_end, ended_rows},
        {"plain fork", after_plain_fork, forked_rows},
    };
    int faults = !rules_write_files();
    shoal_world_leave();
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (strstr(parts[i].name, only) != NULL) {
            faults += run(parts[i].name, parts[i].state, parts[i].rows);
        }
    }
    (void)!(remove("x") + remove("made.idx") + remove("made.npy") + remove("made.safetensors"));
    (void)!(chdir("/") + rmdir(folder));
    return faults != 0;
}
