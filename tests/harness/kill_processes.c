/* The steps that fork, start and join processes. */
#include "tests/harness/kill_steps.h"

#include "base/random.h"
#include "shm/block.h"
#include "shm/slot.h"
#include "shm/world.h"

#include <shoal/binding.h>

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

/* If an armed point killed the victim's child, the victim's turn is over too. */
static void end_with(int status)
{
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) {
        kill_exit(KILL_CHILD_DIED);
    }
}

static void await(pid_t pid)
{
    int status = 0;
    while (waitpid(pid, &status, 0) != pid) {
    }
    end_with(status);
}

void kill_fork_step(kill_stage *stage, uint64_t *random)
{
    pid_t pid = kill_fork("grandchild");
    if (pid == 0) {
        kill_put(stage, KILL_WORDS, random);
        kill_get(stage, KILL_BLOCKS);
        kill_exit(0);
    }
    if (pid < 0) {
        kill_must(stage, shoal_last_error(), "fork");
        return;
    }
    await(pid);
}

/* Starts a process that joins by itself: it takes a slot, works, and leaves. */
void kill_join_step(kill_stage *stage, uint64_t *random)
{
    pid_t pid = fork();
    if (pid == 0) {
        int fd = dup(sh_the_world.fd);
        shoal_world_leave();
        if (sh_world_attach(fd, SH_SLOT_NEW, "joined") != SHOAL_OK) {
            _exit(1);
        }
        kill_hold_blocks(stage, random, 200, 70);
        kill_exit(0);
    }
    if (pid > 0) {
        await(pid);
    }
}

/* Reserves a slot, gives it something, and cancels it. */
void kill_cancel_step(kill_stage *stage, uint64_t *random)
{
    shoal_block *b = kill_make_block(stage, 16 + sh_splitmix_below(random, 100), 1);
    sh_ctx *c = b != NULL ? sh_enter() : NULL;
    uint32_t slot = 0;
    if (c == NULL) {
        return;
    }
    shoal_err err = sh_slot_reserve(c, "nobody", &slot);
    if (err == SHOAL_OK) {
        err = sh_slot_give(c, slot, b->cell, 0);
        sh_slot_cancel(slot, sh_slot_state_generation(sh_load_relaxed(&sh_slot_at(slot)->state)));
    }
    sh_leave();
    kill_must(stage, err, "reserve");
    shoal_release(b);
}

static shoal_err child_target(int rank, const shoal_value *args)
{
    shoal_queue *q = shoal_arg_queue(args, "queue");
    shoal_err err = q == NULL ? shoal_last_error() : shoal_queue_put(q, shoal_value_int(rank), SHOAL_NOW);
    return err == SHOAL_OK ? shoal_return(shoal_map("rank", rank, "queue", q)) : err;
}

static void start_by(kill_stage *stage, shoal_start start)
{
    shoal_queue *q;
    shoal_process *p;
    shoal_status status;
    kill_must(stage, shoal_queue_create(0, &q), "queue_create");
    shoal_err err = shoal_process_start(child_target, shoal_map("queue", q, "text", "a process"),
                                        &(shoal_process_options){.start = start, .rank = 3}, &p);
    if (err != SHOAL_OK) {
        shoal_release(q);
        kill_exit(KILL_CHILD_DIED); /* the fork server was killed; any other error fails the dry run */
    }
    if (err == SHOAL_OK) {
        kill_must(stage, shoal_process_join(p, SH_PATIENCE, &status), "join");
        shoal_process_destroy(p);
        if (status.end == SHOAL_PROCESS_KILLED) {
            shoal_release(q);
            kill_exit(KILL_CHILD_DIED);
        }
    }
    shoal_release(q);
}

void kill_start_fork_step(kill_stage *stage, uint64_t *random)
{
    (void)random;
    start_by(stage, SHOAL_START_FORK);
}

void kill_start_spawn_step(kill_stage *stage, uint64_t *random)
{
    (void)random;
    start_by(stage, SHOAL_START_SPAWN);
}

void kill_start_server_step(kill_stage *stage, uint64_t *random)
{
    (void)random;
    start_by(stage, SHOAL_START_FORKSERVER);
}

/* Starts another program as a child, or as the fork server of one: this program, which main turns into either
 * (kill_be_program). */
static void start_program_by(kill_stage *stage, shoal_start start)
{
    char *const argv[] = {"program", NULL};
    shoal_process *p = NULL;
    shoal_status status;
    shoal_err err = shoal_process_start_program("/proc/self/exe", argv, shoal_value_int(7),
                                                &(shoal_process_options){.start = start}, &p);
    if (err != SHOAL_OK && start == SHOAL_START_FORKSERVER) {
        kill_exit(KILL_CHILD_DIED); /* the server was killed; any other error fails the dry run */
    }
    if (err == SHOAL_OK) {
        err = shoal_process_join(p, SH_PATIENCE, &status);
    }
    kill_must(stage, err, "a program");
    bool killed = err == SHOAL_OK && status.end == SHOAL_PROCESS_KILLED;
    if (err == SHOAL_OK && !killed && status.end != SHOAL_PROCESS_RETURNED) {
        kill_fail(stage, "a program %s", status.text);
    }
    shoal_process_destroy(p);
    if (killed) {
        kill_exit(KILL_CHILD_DIED);
    }
}

void kill_start_program_step(kill_stage *stage, uint64_t *random)
{
    (void)random;
    start_program_by(stage, SHOAL_START_SPAWN);
}

void kill_start_served_step(kill_stage *stage, uint64_t *random)
{
    (void)random;
    start_program_by(stage, SHOAL_START_FORKSERVER);
}

void kill_be_program(void)
{
    const shoal_value *args = NULL;
    shoal_err err = shoal_child_begin(NULL, &args);
    if (err == SHOAL_ENOENT) {
        err = shoal_fork_server_begin(NULL, NULL, &args);
    }
    if (err == SHOAL_ENOENT) {
        return;
    }
    if (err == SHOAL_END) {
        exit(EXIT_SUCCESS);
    }
    bool good = err == SHOAL_OK && sh_int_of(args) == 7 && shoal_child_end(SHOAL_OK) == SHOAL_OK;
    exit(good ? EXIT_SUCCESS : EXIT_FAILURE); /* on failure its parent was killed, and nobody reads the status */
}

/* The first task kills its worker, so that there is always a worker to replace. */
static shoal_err pool_task(const shoal_value *arg, shoal_value **out_result)
{
    shoal_event *first = shoal_arg_event(arg, "first");
    if (first != NULL && !shoal_event_is_set(first)) {
        shoal_event_set(first);
        kill(getpid(), SIGKILL);
    }
    /* with a shared object, so that the result needs a message */
    *out_result = shoal_list(2 * sh_int_of(shoal_value_find(arg, "n")), first);
    return SHOAL_OK;
}

static kill_board *pool_board;

/* The point that is armed for the victim is armed for its workers too, but only for the first few: a pool replaces
 * workers that die for as long as necessary. */
static shoal_err pool_worker(int rank, const shoal_value *args)
{
    (void)rank;
    (void)args;
    if (sh_add_relaxed(&pool_board->workers, 1) >= 4) {
        kill_disarm();
    }
    return SHOAL_OK;
}

void kill_start_pool_step(kill_stage *stage, uint64_t *random)
{
    enum { TASKS = 6 };
    shoal_pool_options options = {.workers = 2, .start = SHOAL_START_FORK, .initializer = pool_worker};
    shoal_pool *pool = NULL;
    shoal_event *first = NULL;
    shoal_value *list = shoal_value_list(), *results = NULL;
    (void)random;
    kill_must(stage, shoal_event_create(&first), "event_create");
    for (int i = 0; i < TASKS; i++) {
        list = shoal_list_add(list, shoal_map("n", i, "first", first));
    }
    pool_board = stage->board;
    sh_store_relaxed(&pool_board->workers, 0);
    kill_must(stage, shoal_pool_create(&options, &pool), "pool_create");
    shoal_err err = shoal_pool_map(pool, pool_task, list, 1, &results);
    for (int i = 0; err == SHOAL_OK && i < TASKS; i++) {
        if (sh_int_of(shoal_value_at(shoal_value_at(results, (size_t)i), 0)) != 2 * i) {
            kill_fail(stage, "result %d of a pool is wrong", i);
        }
    }
    uint64_t losses = shoal_pool_losses(pool);
    shoal_value_destroy(results);
    shoal_pool_destroy(pool);
    shoal_release(first);
    if (err != SHOAL_OK || losses > 1) {
        kill_exit(KILL_CHILD_DIED);
    }
}

/* Checks for the errors that a barrier gives to a plain child whose parent, a party, was killed: it is broken, or the
 * child has no heap. */
static bool is_orphaned(shoal_err err, pid_t parent)
{
    return getppid() != parent && (err == SHOAL_EBROKEN || err == SHOAL_EFORK);
}

/* Forks without telling the library. The child becomes a party of a barrier that it inherited, and ends properly. */
void kill_fork_plain_step(kill_stage *stage, uint64_t *random)
{
    shoal_barrier *mine;
    int status = 0;
    (void)random;
    shoal_err err = shoal_barrier_create(1, &mine);
    if (err != SHOAL_OK) {
        kill_must(stage, err, "barrier_create");
        return;
    }
    pid_t parent = getpid(), pid = fork();
    if (pid == 0) {
        err = shoal_barrier_wait(mine, SHOAL_NOW, NULL);
        /* In a tight heap there may be no memory for what it inherits. */
        if (!is_orphaned(err, parent) && !kill_is_tight(stage, err == SHOAL_EFORK ? SHOAL_ENOMEM : err)) {
            kill_must(stage, err, "barrier_wait in a plain child");
        }
        shoal_barrier_release(mine);
        sh_world_end();
        _exit(0);
    }
    while (pid > 0 && waitpid(pid, &status, 0) != pid) {
    }
    shoal_barrier_release(mine);
    if (pid < 0 || status != 0) {
        kill_exit(KILL_CHILD_DIED);
    }
}
