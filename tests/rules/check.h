/* One call of a row: its arguments, the call, and the checks of its result (check.c). */
#ifndef SH_TESTS_RULES_CHECK_H
#define SH_TESTS_RULES_CHECK_H

#include "rules.h"

#define RULES_FAULTS 2000

/* In memory that the parent of the tested process sees, too. */
typedef struct rules_progress {
    size_t row, checks, faults;
    int step;
    char fault[RULES_FAULTS][240];
} rules_progress;

extern rules_progress *rules_now;

/* Tensors, and objects made from them, are moved into the heap. */
extern bool rules_shares;

typedef struct rules_arguments {
    void *made[RULES_POINTERS]; /* outputs: NULL */
    void *given[RULES_POINTERS];
} rules_arguments;

/* Records a fault of a row. argument: the name of the argument that the check is about, or "". */
__attribute__((format(printf, 3, 4))) void rules_fault(const rules_row *row, const char *argument, const char *format,
                                                       ...);

/* Make the arguments of a row; call it; destroy what it returned, and the arguments that the test still owns. */
void rules_make(const rules_row *row, rules_arguments *a);
void rules_call(const rules_row *row, rules_arguments *a, rules_result *r);
void rules_drop_results(const rules_row *row, const rules_arguments *a, const rules_result *r);
void rules_drop_arguments(const rules_row *row, const rules_arguments *a, bool succeeded);
bool rules_has_succeeded(const rules_row *row, const rules_result *r);

/* For N2: whether a pointer is a tensor, or an array of one; releases that tensor, which the test does not own any
 * more; and checks that the call reported it. */
bool rules_is_tensor(const rules_row *row, int n);
void rules_release(const rules_row *row, rules_arguments *a, int n);
void rules_check_released(const rules_row *row, const rules_result *r, const char *argument);

/* Counts of blocks, references and allocations. Waits until the workers of pools are parked, because what they do
 * looks like damage for a moment. */
typedef struct rules_measure {
    uint64_t blocks, references;
    int64_t allocated;
} rules_measure;

rules_measure rules_take_measure(const rules_row *row);
bool rules_has_grown(const rules_measure *before, const rules_measure *after);

/* Checks the result against the wanted one (rules.h). The last error was SHOAL_OK before the call. */
void rules_check_answer(const rules_row *row, const rules_result *r, int wanted, const char *argument);

/* Checks the result of a call whose n-th pointer was NULL. earlier: a failure came before it. */
void rules_check_null(const rules_row *row, const rules_result *r, int n, bool earlier);

/* A log hook that prints nothing. */
void rules_log_nothing(const char *line, void *context);

/* Return whether the outputs are as they were before the call, and a result in words; and set the last error to
 * SHOAL_OK. */
bool rules_out_is_clean(void);
const char *rules_name_of(const rules_row *row, const rules_result *r);
void rules_clear_error(void);

#endif
