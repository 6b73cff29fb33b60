#include "check.h"

#include "shm/heap.h"
#include "shm/kind.h"
#include "shm/world.h"

#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define OUT_SIZE 1024 /* bytes for one output */
#define PATTERN 0x5a
#define LIMIT_S 20 /* a call that takes longer hangs */

rules_progress *rules_now;

void rules_fault(const rules_row *row, const char *argument, const char *format, ...)
{
    if (rules_now->faults < RULES_FAULTS) {
        char *to = rules_now->fault[rules_now->faults++];
        int n = snprintf(to, sizeof rules_now->fault[0], "%s(%s): ", row->name, argument);
        va_list arguments;
        va_start(arguments, format);
        (void)vsnprintf(to + n, sizeof rules_now->fault[0] - (size_t)n, format, arguments);
        va_end(arguments);
    }
}

/* ---- calls ---- */

static _Alignas(64) char out_room[RULES_POINTERS][OUT_SIZE];

void rules_log_nothing(const char *line, void *context)
{
    (void)line;
    (void)context;
}

bool rules_shares; /* tensors, and objects made from them, are in the heap */

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

void rules_make(const rules_row *row, rules_arguments *a)
{
    *a = (rules_arguments){0};
    for (int i = 0; i < row->pointers; i++) {
        a->made[i] = row->pointer[i].maker != NULL ? row->pointer[i].maker->make() : NULL;
        a->given[i] = row->pointer[i].maker != NULL ? a->made[i] : out_room[i];
        if (rules_shares && row->pointer[i].maker != NULL) {
            share(row->pointer[i].maker, a->made[i]);
        }
    }
}

static bool is_array(const rules_row *row, int n)
{
    return strcmp(row->pointer[n].name, "parts") == 0;
}

bool rules_is_tensor(const rules_row *row, int n)
{
    return row->pointer[n].maker != NULL && (row->pointer[n].maker->drop == rules_drop_tensor || is_array(row, n));
}

void rules_release(const rules_row *row, rules_arguments *a, int n)
{
    static shoal_tensor *array[1];
    if (is_array(row, n)) {
        array[0] = shoal_tensor_retain(*(shoal_tensor **)a->made[n]);
        row->pointer[n].maker->drop(a->made[n]);
        a->given[n] = array;
    }
    rules_drop_tensor(is_array(row, n) ? array[0] : a->made[n]);
    a->made[n] = NULL;
}

void rules_check_released(const rules_row *row, const rules_result *r, const char *argument)
{
    static const char reason[] = ": the tensor was released, ";
    const char *text = shoal_last_error_text();
    size_t n = strlen(row->name);
    bool failed = row->returns == RULES_ERR ? r->err == SHOAL_ESTATE : r->pointer == NULL;
    bool told = shoal_last_error() == SHOAL_ESTATE && strncmp(text, row->name, n) == 0 &&
                strncmp(text + n, reason, sizeof reason - 1) == 0;
    /* It never changes the last error, but writes a log line. */
    bool clears = strcmp(row->name, "shoal_tensor_release") == 0;
    if (!failed || told == clears) {
        rules_fault(row, argument, "released, gave %s (%s: '%s')", rules_name_of(row, r),
                    shoal_err_name(shoal_last_error()), text);
    }
}

bool rules_has_succeeded(const rules_row *row, const rules_result *r)
{
    return row->returns == RULES_ERR ? r->err == SHOAL_OK : row->returns != RULES_POINTER || r->pointer != NULL;
}

void rules_call(const rules_row *row, rules_arguments *a, rules_result *r)
{
    memset(out_room, PATTERN, sizeof out_room);
    *r = (rules_result){0};
    alarm(LIMIT_S);
    row->call(a->given, r);
    alarm(0);
    rules_now->checks++;
}

void rules_drop_results(const rules_row *row, const rules_arguments *a, const rules_result *r)
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

void rules_drop_arguments(const rules_row *row, const rules_arguments *a, bool succeeded)
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
    shoal_set_log(rules_log_nothing, NULL);
}

/* ---- counts of blocks, references and allocations ---- */

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

rules_measure rules_take_measure(const rules_row *row)
{
    shoal_audit audit;
    for (int i = 0; shoal_world_audit(&audit) == SHOAL_ECORRUPT; i++) {
        if (i == 1000) {
            rules_fault(row, "", "the audit is not clean: %s", audit.first);
            break;
        }
        (void)poll(NULL, 0, 1);
    }
    uint64_t chunks = count_chunks();
    return (rules_measure){audit.blocks - chunks, audit.references - chunks, rules_allocated()};
}

bool rules_has_grown(const rules_measure *before, const rules_measure *after)
{
    return after->blocks > before->blocks || after->references > before->references ||
           after->allocated > before->allocated;
}

/* ---- checks ---- */

bool rules_out_is_clean(void)
{
    static char pattern[sizeof out_room];
    memset(pattern, PATTERN, sizeof pattern);
    return memcmp(out_room, pattern, sizeof pattern) == 0;
}

const char *rules_name_of(const rules_row *row, const rules_result *r)
{
    return row->returns == RULES_ERR       ? shoal_err_name(r->err)
           : row->returns == RULES_POINTER ? (r->pointer != NULL ? "a pointer" : "NULL")
           : row->returns == RULES_PLAIN   ? (r->nonzero ? "a number" : "0")
                                           : "nothing";
}

void rules_check_answer(const rules_row *row, const rules_result *r, int wanted, const char *argument)
{
    wanted = wanted == RULES_WORKS ? row->works : wanted;
    shoal_err last = shoal_last_error();
    const char *wanted_name = wanted == RULES_NULL ? "NULL" : shoal_err_name((shoal_err)wanted);
    bool failed = wanted != SHOAL_OK && wanted != RULES_NULL, good = true;
    switch (row->returns) {
    case RULES_ERR:
        good = (int)r->err == wanted || (wanted == SHOAL_OK && r->err == SHOAL_END);
        if (good && failed && last != r->err) {
            rules_fault(row, argument, "returned %s and recorded %s", shoal_err_name(r->err), shoal_err_name(last));
        } else if (failed && r->err != SHOAL_OK && !row->writes_and_fails && !rules_out_is_clean()) {
            rules_fault(row, argument, "wrote its output and failed: '%s'", shoal_last_error_text());
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
        rules_fault(row, argument, "wanted %s, gave %s (%s: '%s')", wanted_name, rules_name_of(row, r),
                    shoal_err_name(last), last != SHOAL_OK ? shoal_last_error_text() : "");
    } else if ((row->returns == RULES_VOID || row->returns == RULES_PLAIN) && last != SHOAL_OK) {
        rules_fault(row, argument, "cannot fail, but set the last error: '%s'", shoal_last_error_text());
    }
}

void rules_clear_error(void)
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
void rules_check_null(const rules_row *row, const rules_result *r, int n, bool earlier)
{
    const char *argument = row->pointer[n].name;
    bool made = row->pointer[n].made;
    static const char first[] = "the first failure";
    bool kept = shoal_last_error() == (earlier ? SHOAL_ELIMIT : SHOAL_OK);
    const char *text = shoal_last_error_text();
    switch (row->returns) {
    case RULES_ERR:
        if (r->err != SHOAL_EINVAL) {
            rules_fault(row, argument, "NULL gave %s", shoal_err_name(r->err));
        } else if (!row->writes_and_fails && !rules_out_is_clean()) {
            rules_fault(row, argument, "wrote its output although it failed");
        } else if (shoal_last_error() != SHOAL_EINVAL || !names_argument(text, row, argument)) {
            rules_fault(row, argument, "the text does not name the call and the argument: '%s'", text);
        } else if (earlier && strstr(text, first) == NULL) {
            rules_fault(row, argument, "the text does not end with the earlier failure: '%s'", text);
        }
        break;
    case RULES_POINTER:
        if (r->pointer != NULL) {
            rules_fault(row, argument, "NULL gave a result");
        } else if (earlier && made && !kept) {
            rules_fault(row, argument, "overwrote the first error: '%s'", text);
        } else if ((!earlier || !made) && row->expression && shoal_last_error() != SHOAL_EINVAL) {
            rules_fault(row, argument, "recorded the wrong error %s", shoal_err_name(shoal_last_error()));
        } else if ((!earlier || !made) && row->expression && !names_argument(text, row, argument)) {
            rules_fault(row, argument, "the text does not name the call and the argument: '%s'", text);
        }
        break;
    case RULES_VOID:
    case RULES_PLAIN:
        if (!kept) {
            rules_fault(row, argument, "changed the last error: '%s'", text);
        }
        break;
    }
}
