/* The rules of the interface (shoal.h), for every exported name: NULL for each pointer, calls after shoal_world_leave, after the end
 * of the process began, in a child of a plain fork, and with each allocation failing in turn. Nothing may crash, hang or write an
 * output that failed.
 *
 * Each part runs in a child of its own. What it is doing stands in shared memory; after a crash the parent notes the call and
 * starts another child behind it. */
#include "rules.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define OUT_SIZE 4096
#define PATTERN 0x5a
#define FAULTS 2000
#define LIMIT_S 20 /* a call that takes longer hangs */

typedef struct progress {
    size_t row, checks, faults;
    int step;
    char fault[FAULTS][240];
} progress;

static progress *now;

static void fault(const rules_row *row, const char *argument, const char *format, const char *detail)
{
    if (now->faults < FAULTS) {
        char *to = now->fault[now->faults++];
        int n = snprintf(to, sizeof now->fault[0], "%s(%s): ", row->name, argument);
        snprintf(to + n, sizeof now->fault[0] - (size_t)n, format, detail);
    }
}

/* ---- allocations that fail ---- */

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *p, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *p, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);

static int fails_at; /* 0: none fails; n: the n-th from now */
static bool has_failed;
static pthread_t armed;

static bool is_refused(void)
{
    if (fails_at == 0 || !pthread_equal(armed, pthread_self()) || --fails_at > 0) {
        return false;
    }
    has_failed = true;
    return true;
}

void *__wrap_malloc(size_t size)
{
    return is_refused() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size)
{
    return is_refused() ? NULL : __real_calloc(count, size);
}

void *__wrap_realloc(void *p, size_t size)
{
    return is_refused() ? NULL : __real_realloc(p, size);
}

void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
    return is_refused() ? NULL : __real_aligned_alloc(alignment, size);
}

/* ---- arguments ---- */

static _Alignas(64) char out_room[OUT_SIZE], zeros[OUT_SIZE];
static shoal_err nothing(int rank, const shoal_value *args)
{
    (void)rank;
    (void)args;
    return SHOAL_OK;
}

void *rules_out(void)
{
    return out_room;
}

void *rules_numbers(void)
{
    return zeros;
}

void *rules_text(void)
{
    static char text[] = "x";
    return text;
}

void *rules_function(void)
{
    return (void *)nothing;
}

void *rules_make_value(void)
{
    return shoal_value_int(1);
}

static shoal_err task(const shoal_value *arg, shoal_value **out_result)
{
    (void)arg;
    *out_result = NULL;
    return SHOAL_OK;
}

static bool made; /* all that there will be: what a call took away stays away */

#define KEPT(type, ...)                                                                                                \
    static shoal_##type *kept_##type;                                                                                  \
    void *rules_make_shoal_##type(void)                                                                                \
    {                                                                                                                  \
        if (kept_##type == NULL && !made) {                                                                            \
            __VA_ARGS__;                                                                                               \
        }                                                                                                              \
        return kept_##type;                                                                                            \
    }

KEPT(barrier, (void)!shoal_barrier_create(1, &kept_barrier))
KEPT(block, (void)!shoal_block_create(64, &kept_block))
KEPT(condition, (void)!shoal_condition_create(&kept_condition))
KEPT(message, (void)!shoal_message_create(64, &kept_message))
KEPT(event, (void)!shoal_event_create(&kept_event))
KEPT(lock, (void)!shoal_lock_create(&kept_lock))
KEPT(rlock, (void)!shoal_rlock_create(&kept_rlock))
KEPT(semaphore, (void)!shoal_semaphore_create(1, 10, &kept_semaphore))
KEPT(queue, (void)!shoal_queue_create(4, &kept_queue))
KEPT(tensor, kept_tensor = shoal_ones(SHOAL_F32, SHOAL_SHAPE(2, 2)))
KEPT(tensors, kept_tensors = shoal_tensors_create())
KEPT(module, kept_module = shoal_linear_create(2, 2, true))
KEPT(optimizer, kept_optimizer = shoal_sgd_create(rules_make_shoal_module(), .lr = 0.1))
KEPT(dataset, kept_dataset = shoal_tensor_dataset(rules_make_shoal_tensor(), rules_make_shoal_tensor()))
KEPT(loader, kept_loader = shoal_loader_create(rules_make_shoal_dataset(), .batch = 1))
KEPT(env, kept_env = shoal_env_create("cartpole", 1))
KEPT(sparse, kept_sparse = shoal_sparse_from_dense(rules_make_shoal_tensor(), SHOAL_COO))
KEPT(value, kept_value = shoal_value_int(1))
KEPT(dlpack, (void)!shoal_tensor_to_dlpack(rules_make_shoal_tensor(), 0, &kept_dlpack))
KEPT(process,
     (void)!shoal_process_start(nothing, NULL, &(shoal_process_options){.start = SHOAL_START_FORK}, &kept_process))
KEPT(pool, (void)!shoal_pool_create(&(shoal_pool_options){.workers = 1, .start = SHOAL_START_FORK}, &kept_pool))
KEPT(future, (void)!shoal_pool_apply_async(rules_make_shoal_pool(), task, shoal_value_int(1), &kept_future))
KEPT(iterator, (void)!shoal_pool_imap(rules_make_shoal_pool(), task,
                                      shoal_list_add(shoal_value_list(), shoal_value_int(1)), true, &kept_iterator))

static shoal_pipe *kept_pipe, *kept_end;
void *rules_make_shoal_pipe(void)
{
    if (kept_pipe == NULL && !made) {
        (void)!shoal_pipe_create(true, &kept_pipe, &kept_end);
    }
    return kept_pipe;
}

static void make_all(void)
{
#define MAKE(type) (void)rules_make_shoal_##type();
    RULES_TYPES(MAKE)
#undef MAKE
    made = true;
}

/* ---- rows ---- */

static bool ends_with(const char *name, const char *end)
{
    size_t n = strlen(name), m = strlen(end);
    return n >= m && strcmp(name + n - m, end) == 0;
}

/* Takes a handle away, so it comes after the others. */
static bool takes_away(const rules_row *row)
{
    return strstr(row->name, "destroy") || strstr(row->name, "release") || strstr(row->name, "_give_") ||
           strstr(row->name, "_from_dlpack") || ends_with(row->name, "_add_child") ||
           ends_with(row->name, "_add_parameter") || ends_with(row->name, "_add_buffer") ||
           ends_with(row->name, "shoal_scoped") || ends_with(row->name, "_leave");
}

/* What the call took is not the test's any more. */
static void forget(const rules_row *row)
{
#define FORGET(type)                                                                                                   \
    if (strstr(row->name, "shoal_" #type "_destroy") || strstr(row->name, "shoal_" #type "_release") ||                \
        strstr(row->name, "_give_" #type) || strstr(row->name, "_from_" #type)) {                                      \
        kept_##type = NULL;                                                                                            \
    }
    RULES_TYPES(FORGET)
#undef FORGET
    if (ends_with(row->name, "_add_parameter") || ends_with(row->name, "_add_buffer") ||
        ends_with(row->name, "shoal_scoped")) {
        kept_tensor = NULL;
    }
    if (ends_with(row->name, "_add_child")) {
        kept_module = NULL;
    }
}

/* Starts processes, trains, or ends somebody: only its NULL rows are called. */
static bool is_heavy(const rules_row *row)
{
    static const char *const heavy[] = {"shoal_train_run",
                                        "shoal_spawn",
                                        "shoal_spawn_with",
                                        "shoal_pool_create",
                                        "shoal_process_start",
                                        "shoal_world_leave",
                                        "shoal_fashion_mnist",
                                        "shoal_mnist",
                                        "shoal_process_signal",
                                        "shoal_world_join",
                                        "shoal_world_list",
                                        "shoal_pool_apply",
                                        "shoal_pool_map",
                                        "shoal_return",
                                        "shoal_fork",
                                        "shoal_child_begin",
                                        "shoal_process_start_program",
                                        "shoal_retain"};
    for (size_t i = 0; i < sizeof heavy / sizeof *heavy; i++) {
        if (strcmp(row->name, heavy[i]) == 0) {
            return true;
        }
    }
    return strstr(row->name, "_retain") != NULL;
}

static bool out_is_clean(void)
{
    for (size_t i = 0; i < OUT_SIZE; i++) {
        if (out_room[i] != PATTERN) {
            return false;
        }
    }
    return true;
}

static void call(const rules_row *row, int null, rules_result *r)
{
    memset(out_room, PATTERN, OUT_SIZE);
    memset(zeros, 0, OUT_SIZE);
    *r = (rules_result){0};
    alarm(LIMIT_S);
    row->call(null, r);
    alarm(0);
    now->checks++;
}

/* check_null's call. What some calls take over even when they fail is made for them: the others still need the test's own. */
static void call_with_null(const rules_row *row, int i, rules_result *r)
{
    bool child = ends_with(row->name, "_add_child");
    shoal_module *own = kept_module, *spare = child ? shoal_linear_create(1, 1, true) : NULL;
    if (child) {
        kept_module = spare;
    } else if (ends_with(row->name, "_add_parameter") || ends_with(row->name, "_add_buffer")) {
        (void)shoal_tensor_retain(kept_tensor);
    }
    call(row, row->pointer[i].at, r);
    if (child) {
        kept_module = own;
        if (strcmp(row->pointer[i].name, "module") != 0) { /* elsewhere it is the child of itself, and stays */
            shoal_module_destroy(spare);
        }
    }
}

/* NULL for one pointer: SHOAL_EINVAL with the call's name and the earlier failure; or NULL, with the first error kept; or nothing. */
static void check_null(const rules_row *row, int i, bool earlier)
{
    static const char first[] = "the first failure";
    const char *argument = row->pointer[i].name;
    rules_result r;
    (void)shoal_fail(earlier ? SHOAL_ELIMIT : SHOAL_OK, "%s", earlier ? first : "");
    call_with_null(row, i, &r);
    bool kept = shoal_last_error() == (earlier ? SHOAL_ELIMIT : SHOAL_OK);
    const char *text = shoal_last_error_text();
    if (row->pointer[i].optional) {
        return;
    }
    switch (row->returns) {
    case RULES_ERR:
        if (r.err != SHOAL_EINVAL) {
            fault(row, argument, "NULL gave %s", shoal_err_name(r.err));
        } else if (!out_is_clean()) {
            fault(row, argument, "wrote its output and failed%s", "");
        } else if (shoal_last_error() != SHOAL_EINVAL || strstr(text, argument) == NULL) {
            fault(row, argument, "the text does not name the argument: '%s'", text);
        } else if (strstr(text, row->name) == NULL) {
            fault(row, argument, "the text does not name the call: '%s'", text);
        } else if (earlier && strstr(text, first) == NULL) {
            fault(row, argument, "the text does not end with the earlier failure: '%s'", text);
        }
        break;
    case RULES_POINTER:
        if (r.pointer != NULL) {
            fault(row, argument, "NULL gave a result%s", "");
        } else if (earlier && !kept) {
            fault(row, argument, "wrote over the first error: '%s'", text);
        } else if (!earlier && row->expression && shoal_last_error() != SHOAL_EINVAL) {
            fault(row, argument, "no error was recorded, but %s", shoal_err_name(shoal_last_error()));
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

/* A call with arguments that are all there, in a state in which it may be refused: it says so, and writes nothing. */
static void check_refusal(const rules_row *row)
{
    rules_result r;
    (void)shoal_fail(SHOAL_OK, "%s", "");
    call(row, -1, &r);
    if (row->returns == RULES_ERR && r.err != SHOAL_OK && r.err != SHOAL_END) {
        if (!out_is_clean()) {
            fault(row, "", "wrote its output and failed: '%s'", shoal_last_error_text());
        } else if (shoal_last_error() != r.err) {
            fault(row, "", "returned a code that it did not record: %s", shoal_err_name(r.err));
        }
    }
}

typedef void part(const rules_row *row);

static void null_rows(const rules_row *row)
{
    for (int i = now->step; i < 2 * row->pointers; now->step = ++i) {
        if (!(is_heavy(row) && row->pointer[i / 2].optional)) {
            check_null(row, i / 2, i % 2 == 1);
        }
    }
}

static void refusals(const rules_row *row)
{
    if (!is_heavy(row)) {
        check_refusal(row);
    }
    if (takes_away(row)) {
        forget(row);
    }
}

static void failing_allocations(const rules_row *row)
{
    if (is_heavy(row) || takes_away(row)) {
        return;
    }
    for (int n = 1; n < 200; n++) {
        rules_result r;
        (void)shoal_fail(SHOAL_OK, "%s", "");
        armed = pthread_self();
        has_failed = false;
        fails_at = n;
        call(row, -1, &r);
        fails_at = 0;
        if (!has_failed) {
            break;
        }
        bool failed = row->returns == RULES_ERR ? r.err != SHOAL_OK && r.err != SHOAL_END
                                                : row->returns == RULES_POINTER && row->expression && r.pointer == NULL;
        if (failed && shoal_last_error() == SHOAL_OK) {
            fault(row, "", "failed without an error when an allocation failed%s", "");
        }
        if (failed && row->returns == RULES_ERR && !out_is_clean()) {
            fault(row, "", "wrote its output and failed when an allocation failed%s", "");
        }
    }
    shoal_scope_release(0);
}

static part *the_part;
static bool keep_for_last;

static void walk(void)
{
    for (size_t i = now->row; i < 2 * rules_count; now->row = ++i, now->step = 0) {
        const rules_row *row = &rules_table[i % rules_count];
        if (row->skipped == NULL && (!keep_for_last || takes_away(row) == (i >= rules_count)) &&
            (keep_for_last || i < rules_count)) {
            the_part(row);
        }
    }
}

/* ---- states ---- */

static void log_nothing(const char *line, void *context)
{
    (void)line;
    (void)context;
}

static void in_order(void)
{
    make_all();
    walk();
    _exit(0);
}

static void after_leave(void)
{
    make_all();
    shoal_world_leave();
    walk();
    _exit(0);
}

static void after_plain_fork(void)
{
    make_all();
    pid_t child = fork();
    if (child == 0) {
        walk();
        _exit(0);
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
    _exit(0);
}

static void after_the_end(void)
{
    (void)atexit(at_the_end); /* before the library's own: it runs after it */
    make_all();
    exit(0);
}

static int run(const char *name, void (*state)(void), part *rows, bool last)
{
    the_part = rows;
    keep_for_last = last;
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
        done = now->row >= 2 * rules_count || (WIFEXITED(status) && WEXITSTATUS(status) == 0);
        if (!done) {
            crashes++;
            const rules_row *row = &rules_table[now->row % rules_count];
            char how[80];
            snprintf(how, sizeof how, "step %d: %s", now->step,
                     WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "ended the process");
            fault(row, "", "%s", how);
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
    size_t skipped = 0;
    char folder[] = "/tmp/shoal-rules-XXXXXX"; /* what writes files writes them there */
    if (mkdtemp(folder) == NULL || chdir(folder) != 0) {
        return 1;
    }
    const char *only = argc > 1 ? argv[1] : "";
    now = mmap(NULL, sizeof *now, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (size_t i = 0; i < rules_count; i++) {
        skipped += rules_table[i].skipped != NULL;
    }
    printf("%zu exported names, %zu of them without rows\n", rules_count, skipped);
    fflush(stdout);
    static const struct {
        const char *name;
        void (*state)(void);
        part *rows;
        bool last;
    } parts[] = {
        {"NULL", in_order, null_rows, false},
        {"after leave", after_leave, refusals, true},
        {"plain fork", after_plain_fork, refusals, true},
        {"after the end", after_the_end, refusals, true},
        {"no memory", in_order, failing_allocations, false},
    };
    int faults = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (strstr(parts[i].name, only) != NULL) {
            faults += run(parts[i].name, parts[i].state, parts[i].rows, parts[i].last);
        }
    }
    (void)!remove("x");
    (void)!(chdir("/") + rmdir(folder));
    return faults != 0;
}
