/* The rules of the interface (shoal.h), for every exported name. Each column calls every function of the table in one
 * situation:
 *
 *   works              all is well: this proves that the arguments are good, so that the other columns mean something
 *   NULL               NULL for one pointer after another, with and without an earlier failure
 *   released           one tensor after another was released before the call; a second time with tensors that were
 *                      shared, whose memory waits to be used again
 *   no memory          each allocation of the call fails in turn
 *   heap at its limit  the world's heap cannot grow, and has no free block
 *   after leave        the handles belong to a world that the process has left; a second time with tensors that
 *                      were shared: calls that need their elements fail, the others work
 *   after the end      the process has begun to end
 *   plain fork         in a child of fork()
 *
 * After each call the test releases the call's results and arguments. Then the world must have as many blocks and
 * references as before, and the process as many allocations.
 *
 * Each column runs in a separate child. Shared memory records its current call; after a crash the parent reports that
 * call and starts another child after it. */
#include "check.h"

#include "shm/heap.h"
#include "shm/kind.h"
#include "shm/world.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/lsan_interface.h>
#endif

#define ROWS 600
#define REPEATS 40 /* growth in every cycle is a leak; growth in a few cycles is a cache */

/* ---- columns that make arguments, call and clean up, one call after the other ---- */

typedef enum situation {
    WORKS,
    NULL_AFTER_NOTHING,
    NULL_AFTER_A_FAILURE,
    TENSOR_RELEASED,
    ALLOCATION_FAILS,
} situation;

/* Makes one call with separate arguments. n is the pointer that is NULL or released, or the allocation that fails.
 * Returns false if there is no n-th. */
static bool cycle(const rules_row *row, situation what, int n, const char *argument)
{
    rules_arguments a;
    rules_result r;
    rules_make(row, &a);
    (void)shoal_fail(what == NULL_AFTER_A_FAILURE ? SHOAL_ELIMIT : SHOAL_OK, "%s",
                     what == NULL_AFTER_A_FAILURE ? "the first failure" : "");
    if (what == NULL_AFTER_NOTHING || what == NULL_AFTER_A_FAILURE) {
        a.given[n] = NULL;
    }
    if (what == TENSOR_RELEASED) {
        rules_release(row, &a, n);
    }
    rules_fail_at(what == ALLOCATION_FAILS ? n : 0);
    rules_call(row, &a, &r);
    rules_fail_at(0);
    bool there_was = what != ALLOCATION_FAILS || rules_has_failed();
    if (what == WORKS) {
        rules_check_answer(row, &r, RULES_WORKS, "");
    } else if (what == TENSOR_RELEASED) {
        rules_check_released(row, &r, argument);
    } else if (what != ALLOCATION_FAILS) {
        if (row->pointer[n].null == RULES_REFUSED) {
            rules_check_null(row, &r, n, what == NULL_AFTER_A_FAILURE);
        } else if (what == NULL_AFTER_NOTHING) {
            rules_check_answer(row, &r, row->pointer[n].null == RULES_ALLOWED ? RULES_WORKS : RULES_NULL, argument);
        }
    } else if (there_was) {
        bool failed = row->returns == RULES_ERR ? r.err != SHOAL_OK && r.err != SHOAL_END
                                                : row->returns == RULES_POINTER && row->expression && r.pointer == NULL;
        if (failed && row->works == SHOAL_OK && shoal_last_error() != SHOAL_ENOMEM) {
            rules_fault(row, argument, "gave %s (%s: '%s') when an allocation failed", rules_name_of(row, &r),
                        shoal_err_name(shoal_last_error()), shoal_last_error_text());
        }
        if (failed && row->returns == RULES_ERR && !rules_out_is_clean()) {
            rules_fault(row, argument, "wrote its output although an allocation failed");
        }
    }
    rules_drop_results(row, &a, &r);
    rules_drop_arguments(row, &a, rules_has_succeeded(row, &r));
    return there_was;
}

/* Repeats until a cycle leaves nothing behind. */
static bool cycles(const rules_row *row, situation what, int n, const char *argument)
{
    static rules_measure last; /* after the last cycle; nothing happens between two cycles */
    static bool measured;
    bool there_was = true, grows = true;
    rules_measure before = last;
    for (int i = 0; i < REPEATS && grows && there_was; i++) {
        size_t faults = rules_now->faults;
        before = measured ? last : rules_take_measure(row);
        there_was = cycle(row, what, n, argument);
        last = rules_take_measure(row);
        measured = true;
        grows = rules_has_grown(&before, &last) && rules_now->faults == faults;
    }
    if (grows && there_was) {
        rules_fault(row, argument, "leaves %lld blocks, %lld references, %lld allocations",
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
    for (int i = rules_now->step; i < 2 * row->pointers; rules_now->step = ++i) {
        if (!row->heavy || row->pointer[i / 2].null == RULES_REFUSED) {
            (void)cycles(row, i % 2 == 1 ? NULL_AFTER_A_FAILURE : NULL_AFTER_NOTHING, i / 2, row->pointer[i / 2].name);
        }
    }
}

#if !defined(__SANITIZE_ADDRESS__) /* it reports every use of a released tensor itself */
static void released_rows(const rules_row *row)
{
    for (int i = 0; i < row->pointers && !row->heavy; i++) {
        if (rules_is_tensor(row, i)) {
            (void)cycles(row, TENSOR_RELEASED, i, row->pointer[i].name);
        }
    }
}
#endif

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

static rules_arguments all[ROWS];
static bool failed_full[ROWS], succeeded_full[ROWS]; /* in the column "heap at its limit" */
static part *the_part;

static void walk(void)
{
    for (size_t i = rules_now->row; i < rules_count; rules_now->row = ++i, rules_now->step = 0) {
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
    for (size_t i = rules_now->row; i < 2 * rules_count; i++) {
        const rules_row *row = &rules_table[i % rules_count];
        if (i % rules_count >= rules_now->row && row->skipped == NULL && needs_process(row) == (i < rules_count)) {
            rules_make(row, &all[i % rules_count]);
        }
    }
}

static void refused_rows(const rules_row *row, rules_state state)
{
    rules_arguments *a = &all[row - rules_table];
    rules_result r = {0};
    rules_clear_error();
    if (!row->heavy || (state == RULES_ENDED && row->answer[state] != RULES_WORKS)) {
        rules_call(row, a, &r);
        bool lost = rules_shares && shoal_last_error() == SHOAL_ESTATE;
        if (lost && row->returns == RULES_PLAIN) {
            rules_clear_error(); /* shoal_tensor_equal and shoal_tensor_close report why they are false */
        }
        rules_check_answer(row, &r, lost ? SHOAL_ESTATE : row->answer[state], "");
        rules_drop_results(row, a, &r);
    }
    rules_drop_arguments(row, a, rules_has_succeeded(row, &r) && !row->heavy);
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
        rules_fault(&rules_table[0], "", "LeakSanitizer found leaks in this column");
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
    rules_measure before = rules_take_measure(row);
    rules_clear_error();
    rules_call(row, &all[i], &r);
    bool failed = row->returns == RULES_ERR ? r.err != SHOAL_OK && r.err != SHOAL_END
                                            : row->returns == RULES_POINTER && row->expression && r.pointer == NULL;
    failed_full[i] = failed && shoal_last_error() == SHOAL_ENOMEM;
    succeeded_full[i] = !failed;
    rules_check_answer(row, &r, failed_full[i] ? SHOAL_ENOMEM : RULES_WORKS, "");
    rules_drop_results(row, &all[i], &r);
    shoal_scope_release(0);
    rules_measure after = rules_take_measure(row);
    if (failed && after.blocks > before.blocks) {
        rules_fault(row, "", "had no memory and left %lld blocks", (long long)(after.blocks - before.blocks));
    }
    if (after.blocks < before.blocks) {
        fill_heap();
    }
}

/* Calls again with memory: the same arguments are still good, except those that the call consumed. */
static void again(const rules_row *row)
{
    rules_arguments *a = &all[row - rules_table];
    rules_result r;
    for (int i = 0; i < row->pointers; i++) {
        if (row->pointer[i].takes == RULES_ALWAYS) {
            rules_drop_companions(a->made[i]);
            a->made[i] = a->given[i] = row->pointer[i].maker->make();
        }
    }
    rules_clear_error();
    rules_call(row, a, &r);
    rules_check_answer(row, &r, RULES_WORKS, "with memory again");
    rules_drop_results(row, a, &r);
    rules_drop_arguments(row, a, rules_has_succeeded(row, &r));
}

static void at_the_limit(void)
{
    const rules_row *none = &rules_table[0];
    rules_measure before = rules_take_measure(none), after = before;
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
            rules_drop_arguments(&rules_table[i], &all[i], succeeded_full[i]);
        }
    }
    rules_drop_kept();
    after = rules_take_measure(none);
    if (after.blocks != before.blocks || after.references != before.references) {
        rules_fault(none, "all calls", "%lld blocks and %lld references are left",
                    (long long)(after.blocks - before.blocks), (long long)(after.references - before.references));
    }
    if (refused < 20) {
        rules_fault(none, "all calls", "only %zu calls had no memory: the heap is not full", refused);
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

#if !defined(__SANITIZE_ADDRESS__)
static void in_order_shared(void)
{
    rules_shares = true;
    in_order();
}
#endif

static void after_leave(void)
{
    make_all();
    shoal_world_leave();
    walk();
    finish();
}

static void after_leave_shared(void)
{
    rules_shares = true;
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
    *rules_now = (rules_progress){0};
    size_t crashes = 0;
    for (bool done = false; !done && crashes < 300;) {
        pid_t pid = fork();
        if (pid == 0) {
            shoal_set_log(rules_log_nothing, NULL);
            state();
        }
        int status = 0;
        (void)!waitpid(pid, &status, 0);
        done = WIFEXITED(status) && WEXITSTATUS(status) == 0;
        if (!done) {
            crashes++;
            if (rules_now->row >= rules_count) {
                rules_fault(&rules_table[0], "", "the column ended by %d", status);
                break;
            }
            const rules_row *row = &rules_table[rules_now->row];
            rules_fault(row, "", "step %d: %s", rules_now->step,
                        WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "ended the process");
            if (rows == null_rows && rules_now->step + 1 < 2 * row->pointers) {
                rules_now->step++;
            } else {
                rules_now->row++;
                rules_now->step = 0;
            }
        }
    }
    printf("%-18s %6zu checks, %zu faults\n", name, rules_now->checks, rules_now->faults);
    for (size_t i = 0; i < rules_now->faults; i++) {
        printf("  %s\n", rules_now->fault[i]);
    }
    fflush(stdout);
    return (int)rules_now->faults;
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
    rules_now = mmap(NULL, sizeof *rules_now, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
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
#if !defined(__SANITIZE_ADDRESS__)
        {"released", in_order, released_rows},
        {"released, shared", in_order_shared, released_rows},
#endif
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
