/* The kill harness: processes work on common objects, one of them is killed, and checks verify what must then hold.
 *
 *   the parent      the test: makes the stage, forks the others, kills, recovers, checks
 *   survivors       run random steps all the time, and are never killed
 *   the victim      runs steps until it dies
 *
 * A step is one shared operation, or a few that belong together. The board records what the steps did (how many
 * messages were put and got, which process holds a lock). It is plain shared memory outside the world, so a broken
 * world cannot hide that it is broken. A process has one call in progress when it dies, so the world and the board may
 * differ by that one call and never by more; kill_check verifies this to the message.
 */
#ifndef TESTING_KILL_H
#define TESTING_KILL_H

#include "sync/atomic.h"
#include "tests/harness/runner.h"

#include <shoal/shoal.h>

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define KILL_SURVIVORS_MAX 4
#define KILL_STEPS_MAX 64
#define KILL_POINTS_MAX 200
#define KILL_SEMAPHORE 4    /* the value of the stage's semaphore when nobody has taken any of it */
#define KILL_IDS (1u << 14) /* more than the messages that are ever on their way in one channel, or lost there */

/* The queues that all processes use. Every message in a queue carries a unique id. */
typedef enum kill_channel {
    KILL_WORDS,      /* 8 raw bytes, inside the ring */
    KILL_BYTES,      /* up to 6,000 raw bytes: a message block */
    KILL_BLOCKS,     /* a block of 64 bytes to 1 MiB */
    KILL_VALUES,     /* a map with several objects */
    KILL_BOUNDED,    /* integers; at most 8; put and get wait for a short time */
    KILL_OBJECTS,    /* a queue or an end of a pipe, with the id in it */
    KILL_TASKS,      /* integers; got with task_done */
    KILL_TENSORS,    /* a tensor, or a map with several of them */
    KILL_DELIVERIES, /* integers, acknowledged: `got` counts the messages that were marked as done */
    KILL_LEASES,     /* maps as in VALUES, acknowledged, with a lease of 1 ms and a limit of two deliveries */
    KILL_REJECTS,    /* what was delivered too often from LEASES; at most 4 */
    KILL_PIECES,     /* a piece of card memory, with the id in the granule's memory */
    KILL_CHANNELS,
} kill_channel;

/* Synchronisation: every process writes all words; counts are incremented after the call returned. seen[id % KILL_IDS]
 * is 2 * id while the message is on its way, and 2 * id + 1 once it was got or could not be put: then another id may
 * have the word. */
typedef struct kill_count {
    sh_a64 ids;
    sh_a64 put, got, done;
    sh_a64 seen[KILL_IDS];
} kill_count;

/* What a lock protects: the pid of the process that holds it. */
typedef struct kill_guard {
    sh_a32 inside; /* pid, or 0 */
} kill_guard;

typedef struct kill_board {
    sh_a32 pause; /* futex word; odd while survivors pause */
    sh_a32 stop;
    sh_a32 failed;
    char failure[400];
    sh_a32 resting[KILL_SURVIVORS_MAX]; /* the pause for which the survivor rests */
    sh_a64 worked[KILL_SURVIVORS_MAX];  /* the number of steps that it has finished */
    sh_a32 busy[KILL_SURVIVORS_MAX];    /* its current step */
    sh_a32 doing;                       /* the victim's step + 1; 0 before the first */
    sh_a32 favour;                      /* a step + 1 that survivors run half of the time; 0 for none */
    sh_a32 go;                          /* the victim may begin */
    sh_a32 workers;                     /* how many workers the victim's pool has started */
    sh_a32 stopped; /* the process that is about to stop at a point: the victim, its child or its helper */
    sh_a64 refused; /* calls that failed because a tight heap had no memory */
    kill_guard lock, unmarked, rlock, condition;
    kill_count channels[KILL_CHANNELS];
    sh_a64 reached[KILL_STEPS_MAX][KILL_POINTS_MAX]; /* dry run: how often a step reached a point */
} kill_board;

typedef struct kill_stage {
    kill_board *board;
    shoal_queue *queues[KILL_CHANNELS];
    shoal_lock *lock;
    shoal_lock *unmarked; /* an owner has died with it; nobody marks it consistent */
    shoal_rlock *rlock;
    shoal_semaphore *semaphore;
    shoal_event *event;
    shoal_condition *condition;
    shoal_barrier *barrier;
    bool in_order; /* a process that ends recovers itself, so nobody else needs to */
    bool tight;    /* the heap is too small for all of them, so SHOAL_ENOMEM is not a failure */
    int survivors;
    pid_t pids[KILL_SURVIVORS_MAX];
    uint64_t random;
    uint64_t lost_puts[KILL_CHANNELS], lost_gets[KILL_CHANNELS], lost_done; /* calls that the killed did not count */
    uint64_t recovered;                                                     /* the world's count at the last check */
} kill_stage;

/* A step. run does it once; flags say which processes may run it. */
typedef enum kill_flags {
    KILL_BY_ALL = 0,
    KILL_BY_VICTIM = 1, /* too slow for survivors, or it starts processes */
    KILL_BY_HAND = 2,   /* only if the sweep names it */
} kill_flags;

typedef struct kill_step {
    const char *name;
    void (*run)(kill_stage *stage, uint64_t *random);
    unsigned flags;
} kill_step;

extern const kill_step kill_steps[];
extern const int kill_step_count;

/* SHOAL_KILL_STEP=text chooses the steps with that text in their names, for debugging and for a soak of a part. A step
 * of -1 asks whether all are chosen. */
bool kill_step_is_chosen(int step);

/* begin makes the world and the objects, and starts the survivors; end ends them and releases everything. heap_limit 0
 * means enough memory; a smaller limit makes the heap tight. */
void kill_stage_begin(kill_stage *stage, int survivors, uint64_t heap_limit);
void kill_stage_end(kill_stage *stage);

/* Forks a member of the world that holds what this process holds. Returns 0 in the child.
 * Fails the test if it cannot fork. */
pid_t kill_fork(const char *name);

/* Ends a member of the world other than the parent, after it has left the world properly. */
_Noreturn void kill_exit(int status);
#define KILL_CHILD_DIED 33 /* the exit status of a victim whose child died instead */

/* Make survivors stop between two steps, and continue. */
void kill_pause(kill_stage *stage);
void kill_resume(kill_stage *stage);

/* Waits until every survivor has finished `steps` more steps, although other processes are stopped. */
void kill_let_work(kill_stage *stage, uint64_t steps);

/* Reaps a child that was killed or is about to end. Returns its wait status. */
int kill_reap(kill_stage *stage, pid_t pid);

/* Reaps the processes that the victim had started, until only the survivors are left. */
void kill_reap_orphans(kill_stage *stage);

/* Recovers until no dead process is left. */
void kill_recover(kill_stage *stage);

/* What shoal_lock_owner_died and shoal_lock_mark_consistent do for the lock of a guard. Never marks the unmarked
 * lock. */
bool kill_guard_died(kill_stage *stage, const kill_guard *guard);
SHOAL_MUST_USE shoal_err kill_guard_mark(kill_stage *stage, const kill_guard *guard);

/* Checks counts, locks and audit, after at most `deaths` deaths, recovery and pause. what is for the failure text. */
void kill_check(kill_stage *stage, int deaths, const char *what);

/* During a pause: takes out every message. Only the objects of the stage and those that survivors keep remain. */
void kill_drain(kill_stage *stage);

/* Checks whether a tight heap explains the error. If so, counts it. */
bool kill_is_tight(kill_stage *stage, shoal_err err);

/* Records a failure, which the parent reports. May be called in any process. */
__attribute__((format(printf, 2, 3))) void kill_fail(kill_stage *stage, const char *format, ...);

/* For the parent: fails the test unless the condition holds. Unlike ck_assert it costs nothing if it holds: a kill test
 * checks millions of times, and each ck_assert writes to a file. */
#define kill_require(condition, ...)                                                                                   \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            ck_abort_msg(__VA_ARGS__);                                                                                 \
        }                                                                                                              \
    } while (0)
#define kill_require_ok(expression)                                                                                    \
    do {                                                                                                               \
        shoal_err err_ = (expression);                                                                                 \
        kill_require(err_ == SHOAL_OK, "%s: %s: %s", #expression, shoal_err_name(err_), shoal_last_error_text());      \
    } while (0)

/* For the parent: fails the test if a process recorded a failure. */
void kill_report(kill_stage *stage, const char *what);

/* Returns SHOAL_SEED, or the fixed seed; prints it once. */
uint64_t kill_seed(void);

/* Put and get on a channel, for tests that use channels directly.
 * put returns false if it was full, get if it was empty. */
bool kill_put(kill_stage *stage, kill_channel channel, uint64_t *random);
bool kill_get(kill_stage *stage, kill_channel channel);

/* The same for tensors (kill_tensors.c). */
shoal_err kill_put_tensor(shoal_queue *q, kill_count *count, uint64_t id, uint64_t *random);
shoal_err kill_get_tensor(shoal_queue *q, kill_count *count, uint64_t *out_id);

/* And for pieces of card memory (kill_cards.c). */
shoal_err kill_put_piece(shoal_queue *q, kill_count *count, uint64_t id, uint64_t *random);
shoal_err kill_get_piece(shoal_queue *q, kill_count *count, uint64_t *out_id);

/* Returns the index of the point in sh_death_points, counting each name once; -1 if it does not exist. */
int kill_point_find(const char *name);
int kill_point_count(void);
const char *kill_point_name(int point);

/* After this call no point kills this process. */
void kill_disarm(void);

/* In a child that was started by exec: arms the point that SHOAL_KILL_AT=point:count names. Call it first in main. */
void kill_arm_from_environment(void);

/* Call it next in main: if the steps start_program or start_served started this process, runs as child or server, and
 * exits. */
void kill_be_program(void);

#endif
