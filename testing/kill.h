/* The kill harness: processes that work on common objects, one of which is killed, and the checks that must hold then.
 *
 *   the parent      the test: makes the stage, forks the others, kills, recovers, checks
 *   survivors       run steps chosen at random, all the time, and are never killed
 *   the victim      runs steps until it dies
 *
 * A step is one shared operation, or a few that belong together. What must be true of the steps (how many messages were
 * put and got, who is inside a lock) is kept on the board: plain shared memory outside of the world, so that a broken
 * world cannot hide that it is broken. A process has one call under way when it dies, so what the world and the board
 * say may differ by that one call, and never by more: kill_check demands it to the message.
 */
#ifndef TESTING_KILL_H
#define TESTING_KILL_H

#include "sync/atomic.h"
#include "testing/runner.h"

#include <shoal/shoal.h>

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define KILL_SURVIVORS_MAX 4
#define KILL_STEPS_MAX 48
#define KILL_POINTS_MAX 160
#define KILL_SEMAPHORE 4    /* the value of the stage's semaphore when nobody has any of it */
#define KILL_IDS (1u << 14) /* more than messages are ever under way in one channel */

/* Queues that all work on. Every message in one carries an id of its own. */
typedef enum kill_channel {
    KILL_WORDS,      /* 8 raw bytes, inside the ring */
    KILL_BYTES,      /* up to 6,000 raw bytes: a message block */
    KILL_BLOCKS,     /* a block of 64 bytes to 1 MiB */
    KILL_VALUES,     /* a map with several objects */
    KILL_BOUNDED,    /* integers; at most 8; put and get wait a little */
    KILL_OBJECTS,    /* a queue or an end of a pipe, with the id in it */
    KILL_TASKS,      /* integers; got with task_done */
    KILL_TENSORS,    /* a tensor, or a map with several of them */
    KILL_DELIVERIES, /* integers, acknowledged: got is what was said to be done */
    KILL_CHANNELS,
} kill_channel;

/* Synchronisation: all words by anyone, counted up after the call returned. seen[id % KILL_IDS]: 2 * id when the id is
 * given out, 2 * id + 1 when it was got. */
typedef struct kill_count {
    sh_a64 ids;
    sh_a64 put, got, done;
    sh_a64 seen[KILL_IDS];
} kill_count;

/* What a lock protects: who is inside. */
typedef struct kill_guard {
    sh_a32 inside; /* pid */
    sh_a32 deaths; /* times that EOWNERDEAD was told */
} kill_guard;

typedef struct kill_board {
    sh_a32 pause; /* odd: survivors rest; a futex word */
    sh_a32 stop;
    sh_a32 failed;
    char failure[400];
    sh_a32 resting[KILL_SURVIVORS_MAX]; /* the pause that the survivor rests for */
    sh_a64 worked[KILL_SURVIVORS_MAX];  /* steps that it has finished */
    sh_a32 busy[KILL_SURVIVORS_MAX];    /* the step that it is at */
    sh_a32 doing;                       /* the victim's step + 1, 0 before the first */
    sh_a32 favour;                      /* a step + 1 that survivors run half of the time; 0: none */
    sh_a32 go;                          /* the victim may begin */
    sh_a32 workers;                     /* that the victim's pool has started */
    sh_a32 stopped; /* the process that is about to stop at a point: the victim, its child, its helper */
    sh_a64 refused; /* calls that a tight heap had no memory for */
    kill_guard lock, rlock, condition;
    kill_count channels[KILL_CHANNELS];
    sh_a64 reached[KILL_STEPS_MAX][KILL_POINTS_MAX]; /* dry run: how often a step came to a point */
} kill_board;

typedef struct kill_stage {
    kill_board *board;
    shoal_queue *queues[KILL_CHANNELS];
    shoal_lock *lock;
    shoal_rlock *rlock;
    shoal_semaphore *semaphore;
    shoal_event *event;
    shoal_condition *condition;
    shoal_barrier *barrier;
    bool in_order; /* who ends recovers itself: nobody else need do so */
    bool tight;    /* the heap is too small for all of them: SHOAL_ENOMEM is no failure */
    int survivors;
    pid_t pids[KILL_SURVIVORS_MAX];
    uint64_t random;
    uint64_t lost_puts[KILL_CHANNELS], lost_gets[KILL_CHANNELS], lost_done; /* calls that the killed did not tell of */
    uint64_t recovered;                                                     /* of the world, at the last check */
} kill_stage;

/* A step: one turn of it. flags say who may run it. */
typedef enum kill_flags {
    KILL_BY_ALL = 0,
    KILL_BY_VICTIM = 1, /* too slow for survivors, or it starts processes */
    KILL_BY_HAND = 2,   /* only where the sweep names it */
} kill_flags;

typedef struct kill_step {
    const char *name;
    void (*run)(kill_stage *stage, uint64_t *random);
    unsigned flags;
} kill_step;

extern const kill_step kill_steps[];
extern const int kill_step_count;

/* Makes the world and the objects; starts so many survivors. Ends them and gives everything back. heap_limit: 0 for
 * enough; less makes it tight. */
void kill_stage_begin(kill_stage *stage, int survivors, uint64_t heap_limit);
void kill_stage_end(kill_stage *stage);

/* Forks a member of the world that holds what this process holds. 0 in the child. Fails the test otherwise. */
pid_t kill_fork(const char *name);

/* Ends a member of the world other than the parent, in good order. */
_Noreturn void kill_exit(int status);
#define KILL_CHILD_DIED 33 /* the status of a victim that did not die itself: its child did */

/* Survivors stop between two steps, and go on. */
void kill_pause(kill_stage *stage);
void kill_resume(kill_stage *stage);

/* Every survivor finishes so many more steps, although others are stopped. */
void kill_let_work(kill_stage *stage, uint64_t steps);

/* Reaps a child that was killed or is about to end; returns its wait status. */
int kill_reap(kill_stage *stage, pid_t pid);

/* Reaps what the victim had started, until only the survivors are left. */
void kill_reap_orphans(kill_stage *stage);

/* Recovers until nobody dead is left. */
void kill_recover(kill_stage *stage);

/* After deaths (at most `deaths`), recovery and pause: counts, locks, audit. what: words for the failure. */
void kill_check(kill_stage *stage, int deaths, const char *what);

/* Paused: takes every message out. Afterwards only the objects of the stage and what survivors keep are left. */
void kill_drain(kill_stage *stage);

/* Is the error one that a tight heap gives? Counts it. */
bool kill_is_tight(kill_stage *stage, shoal_err err);

/* Any process: records the failure, for the parent to report. */
__attribute__((format(printf, 2, 3))) void kill_fail(kill_stage *stage, const char *format, ...);

/* Parent: what must hold. Unlike ck_assert it costs nothing when it does: a kill test asks millions of times, and each ck_assert
 * writes to a file. */
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

/* Parent: fails the test if somebody recorded a failure. */
void kill_report(kill_stage *stage, const char *what);

/* SHOAL_SEED, or the fixed one; printed once. */
uint64_t kill_seed(void);

/* Channels, for tests that use them by themselves. put: false when it was full; get: false when it was empty. */
bool kill_put(kill_stage *stage, kill_channel channel, uint64_t *random);
bool kill_get(kill_stage *stage, kill_channel channel);

/* The same of tensors: kill_tensors.c. And a step that shares one and lets go of it. */
shoal_err kill_put_tensor(shoal_queue *q, kill_count *count, uint64_t id, uint64_t *random);
shoal_err kill_get_tensor(shoal_queue *q, kill_count *count, uint64_t *out_id);
void kill_tensor_step(kill_stage *stage, uint64_t *random);

/* The number of the point in sh_death_points, each name counted once; -1 when there is none. */
int kill_point_find(const char *name);
int kill_point_count(void);
const char *kill_point_name(int point);

/* This process dies at no point any more. */
void kill_disarm(void);

/* In a child that was started by exec: arms what SHOAL_KILL_AT=point:count says. First in main. */
void kill_arm_from_environment(void);

/* In main, next: is the child when this process is what the step start_program started, and ends as such. */
void kill_be_program(void);

#endif
