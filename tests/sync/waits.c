/* `shoal ps` shows what each process waits for, for every kind of wait. Uses the call that the program uses; tests/cli
 * reads the program's output. */
#include "base/clock.h"
#include "shm/block.h"
#include "tests/harness/children.h"

#include <shoal/binding.h>
#include <shoal/data.h>
#include <shoal/share.h>

#include <ctype.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>

#define ID(object) (((shoal_block *)(object))->id)

/* ---- what the list shows ---- */

typedef struct row {
    int32_t pid;        /* the process to find; 0 for the first whose text begins so */
    const char *begins; /* the beginning of the text */
    bool found;
    char name[SHOAL_NAME_MAX + 1], state[16], doing[128];
} row;

static bool find_row(const shoal_ps_entry *e, void *context)
{
    row *r = context;
    if (r->pid != 0 ? e->pid != r->pid : strncmp(e->doing, r->begins, strlen(r->begins)) != 0) {
        return true;
    }
    r->found = true;
    r->pid = e->pid;
    snprintf(r->name, sizeof r->name, "%s", e->name);
    snprintf(r->state, sizeof r->state, "%s", e->state);
    snprintf(r->doing, sizeof r->doing, "%s", e->doing);
    return false;
}

static row row_of(int32_t pid)
{
    row r = {.pid = pid};
    ck_assert_ok(shoal_world_list(find_row, &r));
    return r;
}

static void pause_a_little(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
}

/* Waits until the process shows the wanted text: exactly that, or, if it ends with a space,
 * that followed by a number. */
static void until_doing(int32_t pid, const char *wanted)
{
    size_t n = strlen(wanted);
    int64_t deadline = clock_ns() + LIMIT;
    for (;;) {
        row r = row_of(pid);
        if (wanted[n - 1] == ' ' ? strncmp(r.doing, wanted, n) == 0 && isdigit((unsigned char)r.doing[n]) != 0
                                 : strcmp(r.doing, wanted) == 0) {
            ck_assert_str_eq(r.state, "waiting");
            return;
        }
        ck_assert_msg(clock_ns() < deadline, "process %d shows '%s', not '%s'", (int)pid, r.doing, wanted);
        pause_a_little();
    }
}

/* Waits for a process whose text begins so. Returns its pid. */
static int32_t until_somebody(const char *begins)
{
    int64_t deadline = clock_ns() + LIMIT;
    for (;;) {
        row r = {.begins = begins};
        ck_assert_ok(shoal_world_list(find_row, &r));
        if (r.found) {
            return r.pid;
        }
        ck_assert_msg(clock_ns() < deadline, "no process shows '%s'", begins);
        pause_a_little();
    }
}

/* ---- one child for each kind of wait ---- */

static shoal_err wait_for_ever(int rank, const shoal_value *args)
{
    (void)rank;
    return shoal_event_wait(ARG(event, "never"), SHOAL_FOREVER);
}

static shoal_value *never(const shoal_value *args)
{
    return shoal_map("never", ARG(event, "never"));
}

static shoal_err get(const shoal_value *args)
{
    shoal_value *v;
    return shoal_queue_get(ARG(queue, "empty"), SHOAL_FOREVER, &v);
}

static shoal_err get_tensor(const shoal_value *args)
{
    shoal_tensor *t;
    return shoal_queue_get_tensor(ARG(queue, "empty"), SHOAL_FOREVER, &t);
}

static shoal_err get_delivery(const shoal_value *args)
{
    shoal_value *v;
    shoal_delivery d;
    return shoal_queue_get_delivery(ARG(queue, "acknowledged"), SHOAL_FOREVER, &v, &d);
}

static shoal_err put(const shoal_value *args)
{
    return shoal_queue_put(ARG(queue, "full"), shoal_value_int(1), SHOAL_FOREVER);
}

/* A message that was reserved and filled waits for room like any other. */
static shoal_err give_message(const shoal_value *args)
{
    shoal_message *m;
    must_ok(shoal_message_create(100, &m));
    return shoal_queue_give_message(ARG(queue, "full"), m, SHOAL_FOREVER);
}

static shoal_err join_queue(const shoal_value *args)
{
    return shoal_queue_join(ARG(queue, "full"), SHOAL_FOREVER);
}

static shoal_err receive(const shoal_value *args)
{
    shoal_value *v;
    return shoal_pipe_recv(ARG(pipe, "pipe"), SHOAL_FOREVER, &v);
}

static shoal_err poll_pipe(const shoal_value *args)
{
    return shoal_pipe_poll(ARG(pipe, "pipe"), SHOAL_FOREVER);
}

static shoal_err lock(const shoal_value *args)
{
    return shoal_lock_lock(ARG(lock, "lock"), SHOAL_FOREVER);
}

static shoal_err lock_recursive(const shoal_value *args)
{
    return shoal_rlock_lock(ARG(rlock, "rlock"), SHOAL_FOREVER);
}

static shoal_err wait_semaphore(const shoal_value *args)
{
    return shoal_semaphore_wait(ARG(semaphore, "semaphore"), SHOAL_FOREVER);
}

static shoal_err wait_condition(const shoal_value *args)
{
    must_ok(shoal_condition_lock(ARG(condition, "condition"), LIMIT));
    return shoal_condition_wait(ARG(condition, "condition"), SHOAL_FOREVER);
}

static shoal_err lock_condition(const shoal_value *args)
{
    return shoal_condition_lock(ARG(condition, "held condition"), SHOAL_FOREVER);
}

static shoal_err wait_event(const shoal_value *args)
{
    return shoal_event_wait(ARG(event, "never"), SHOAL_FOREVER);
}

static shoal_err wait_barrier(const shoal_value *args)
{
    return shoal_barrier_wait(ARG(barrier, "barrier"), SHOAL_FOREVER, NULL);
}

static shoal_err start_one(const shoal_value *args, shoal_process **out_process)
{
    return shoal_process_start(wait_for_ever, never(args), &(shoal_process_options){.start = SHOAL_START_FORK},
                               out_process);
}

static shoal_err join_process(const shoal_value *args)
{
    shoal_process *p;
    must_ok(start_one(args, &p));
    return shoal_process_join(p, SHOAL_FOREVER, NULL);
}

static shoal_err join_group(const shoal_value *args)
{
    return shoal_spawn_with(wait_for_ever, 3, never(args), &(shoal_process_options){.start = SHOAL_START_FORK}, NULL);
}

static shoal_err wait_for_several(const shoal_value *args)
{
    shoal_waitable things[] = {{.event = ARG(event, "never")}, {.queue = ARG(queue, "empty")}};
    return shoal_wait(things, 2, SHOAL_FOREVER);
}

static shoal_err wait_for_a_process(const shoal_value *args)
{
    shoal_waitable thing = {.ready = false};
    must_ok(start_one(args, &thing.process));
    return shoal_wait(&thing, 1, SHOAL_FOREVER);
}

static shoal_err never_done(const shoal_value *args, shoal_value **out_result)
{
    (void)out_result;
    return wait_for_ever(0, args);
}

static shoal_err wait_for_pool(const shoal_value *args)
{
    shoal_pool *pool;
    shoal_future *future;
    shoal_value *v;
    must_ok(shoal_pool_create(&(shoal_pool_options){.workers = 1, .start = SHOAL_START_FORK}, &pool));
    must_ok(shoal_pool_apply_async(pool, never_done, never(args), &future));
    return shoal_future_get(future, SHOAL_FOREVER, &v);
}

typedef struct wait_kind {
    const char *name;
    shoal_err (*go)(const shoal_value *args);
    const char *doing;
    const char *object; /* the key of the argument; NULL for any number */
    bool held;          /* by the test */
} wait_kind;

static const wait_kind kinds[] = {
    {"get", get, "gets from queue ", "empty", false},
    {"get of a tensor", get_tensor, "gets from queue ", "empty", false},
    {"get with acknowledgement", get_delivery, "gets from queue ", "acknowledged", false},
    {"put", put, "puts into queue ", "full", false},
    {"put of a reserved message", give_message, "puts into queue ", "full", false},
    {"join of a queue", join_queue, "joins queue ", "full", false},
    {"pipe", receive, "receives from pipe ", NULL, false},
    {"poll of a pipe", poll_pipe, "receives from pipe ", NULL, false},
    {"lock", lock, "waits for lock ", "lock", true},
    {"recursive lock", lock_recursive, "waits for recursive lock ", "rlock", true},
    {"semaphore", wait_semaphore, "waits for semaphore ", "semaphore", false},
    {"condition", wait_condition, "waits for condition ", "condition", false},
    {"lock of a condition", lock_condition, "waits for the lock of condition ", "held condition", true},
    {"event", wait_event, "waits for event ", "never", false},
    {"barrier", wait_barrier, "waits at barrier ", "barrier", false},
    {"join of a process", join_process, "joins process ", NULL, false},
    {"join of a group", join_group, "joins 3 processes", NULL, false},
    {"several things", wait_for_several, "waits for one of 2", NULL, false},
    {"several things, one process", wait_for_a_process, "joins process ", NULL, false},
    {"pool", wait_for_pool, "waits for its pool (queue ", NULL, false},
};
#define KINDS ((int)(sizeof kinds / sizeof kinds[0]))

static shoal_err wait_so(int rank, const shoal_value *args)
{
    return kinds[rank].go(args);
}

typedef struct stage {
    shoal_queue *empty, *acknowledged, *full;
    shoal_pipe *pipe, *other;
    shoal_lock *lock;
    shoal_rlock *rlock;
    shoal_semaphore *semaphore;
    shoal_condition *condition, *held;
    shoal_event *never;
    shoal_barrier *barrier;
} stage;

static shoal_value *set_up(stage *s)
{
    ck_assert_ok(shoal_queue_create(0, &s->empty));
    ck_assert_ok(shoal_queue_create_with(&(shoal_queue_options){.acknowledge = true}, &s->acknowledged));
    ck_assert_ok(shoal_queue_create(1, &s->full));
    ck_assert_ok(shoal_queue_put(s->full, shoal_value_int(0), LIMIT));
    ck_assert_ok(shoal_pipe_create(true, &s->pipe, &s->other));
    ck_assert_ok(shoal_lock_create(&s->lock));
    ck_assert_ok(shoal_rlock_create(&s->rlock));
    ck_assert_ok(shoal_semaphore_create(0, 0, &s->semaphore));
    ck_assert_ok(shoal_condition_create(&s->condition));
    ck_assert_ok(shoal_condition_create(&s->held));
    ck_assert_ok(shoal_condition_lock(s->held, LIMIT));
    ck_assert_ok(shoal_event_create(&s->never));
    ck_assert_ok(shoal_barrier_create(2, &s->barrier));
    ck_assert_ok(shoal_lock_lock(s->lock, LIMIT));
    ck_assert_ok(shoal_rlock_lock(s->rlock, LIMIT));
    return shoal_map("empty", s->empty, "acknowledged", s->acknowledged, "full", s->full, "pipe", s->pipe, "lock",
                     s->lock, "rlock", s->rlock, "semaphore", s->semaphore, "condition", s->condition, "held condition",
                     s->held, "never", s->never, "barrier", s->barrier);
}

static void tear_down(stage *s)
{
    ck_assert_ok(shoal_lock_unlock(s->lock));
    ck_assert_ok(shoal_rlock_unlock(s->rlock));
    shoal_release(s->empty);
    shoal_release(s->acknowledged);
    shoal_release(s->full);
    shoal_release(s->pipe);
    shoal_release(s->other);
    shoal_release(s->lock);
    shoal_release(s->rlock);
    shoal_release(s->semaphore);
    shoal_release(s->condition);
    ck_assert_ok(shoal_condition_unlock(s->held));
    shoal_release(s->held);
    shoal_release(s->never);
    shoal_release(s->barrier);
}

static uint64_t id_among(const shoal_value *args, const char *key)
{
    const void *objects[] = {ARG(queue, key), ARG(lock, key),      ARG(rlock, key),  ARG(semaphore, key),
                             ARG(event, key), ARG(condition, key), ARG(barrier, key)};
    for (size_t i = 0; i < sizeof objects / sizeof objects[0]; i++) {
        if (objects[i] != NULL) {
            return ID(objects[i]);
        }
    }
    ck_abort_msg("no object %s", key);
}

/* Processes that its children started may end after it. */
static void until_alone(void)
{
    shoal_world_info info;
    int64_t deadline = clock_ns() + LIMIT;
    do {
        ck_assert_ok(shoal_world_sweep(NULL));
        ck_assert_ok(shoal_world_info_get(&info));
        ck_assert_msg(clock_ns() < deadline, "%u processes are left", info.processes);
    } while (info.processes > 1);
}

/* A waiter that is killed is shown as dead and does nothing. */
static void kill_waiter(shoal_process *p)
{
    struct pollfd fd = {.fd = shoal_process_sentinel(p), .events = POLLIN};
    ck_assert_ok(shoal_process_kill(p));
    ck_assert_int_eq(poll(&fd, 1, SH_TEST_SECONDS * 500), 1);
    row r = row_of(shoal_process_pid(p));
    if (r.found) { /* otherwise a child of it was faster and swept */
        ck_assert_str_eq(r.state, "dead");
        ck_assert_str_eq(r.doing, "");
    }
    finish_as(p, SHOAL_PROCESS_KILLED, SIGKILL);
}

START_TEST(every_wait_is_shown)
{
    const wait_kind *k = &kinds[_i];
    stage s;
    shoal_value *args = shoal_value_keep(set_up(&s));
    char wanted[96], held[32] = "";
    if (k->held) {
        snprintf(held, sizeof held, ", held by %d", (int)getpid());
    }
    snprintf(wanted, sizeof wanted, "%s", k->doing);
    if (k->object != NULL) {
        snprintf(wanted, sizeof wanted, "%s%llu%s", k->doing, (unsigned long long)id_among(args, k->object), held);
    }
    shoal_process *p = start(SHOAL_START_FORK, _i, wait_so, args);
    until_doing(shoal_process_pid(p), wanted);
    kill(shoal_process_pid(p), SIGSTOP); /* while stopped it still waits */
    until_doing(shoal_process_pid(p), wanted);
    kill(shoal_process_pid(p), SIGCONT);
    kill_waiter(p);
    until_alone();
    shoal_value_destroy(args);
    tear_down(&s);
}
END_TEST

/* ---- waits that need a third process ---- */

/* The loader's worker is stopped once it has nothing to do; then the batches that it had fetched run out. */
static shoal_err load_for_ever(int rank, const shoal_value *args)
{
    (void)rank;
    shoal_dataset *set =
        shoal_tensor_dataset(shoal_zeros(SHOAL_F32, SHOAL_SHAPE(4096, 1)), shoal_zeros(SHOAL_I64, SHOAL_SHAPE(4096)));
    shoal_loader *loader = shoal_loader_create(set, .batch = 1, .workers = 1, .start = SHOAL_START_FORK);
    shoal_batch batch;
    must(loader != NULL);
    must_ok(shoal_event_wait(ARG(event, "go"), LIMIT));
    while (shoal_loader_next(loader, &batch) == SHOAL_OK) {
    }
    return shoal_last_error();
}

START_TEST(a_loader_and_its_worker)
{
    shoal_event *go;
    ck_assert_ok(shoal_event_create(&go));
    shoal_process *p = start(SHOAL_START_FORK, 0, load_for_ever, shoal_map("go", go));
    int32_t worker = until_somebody("waits for a task (queue ");
    ck_assert_int_ne(worker, shoal_process_pid(p));
    kill(worker, SIGSTOP);
    shoal_event_set(go);
    until_doing(shoal_process_pid(p), "waits for a batch (queue ");
    kill_waiter(p);
    until_alone();
    shoal_release(go);
}
END_TEST

static shoal_err start_by_server(int rank, const shoal_value *args)
{
    (void)rank;
    shoal_process_options o = {.start = SHOAL_START_FORKSERVER};
    shoal_process *p;
    must_ok(shoal_process_start(wait_for_ever, never(args), &o, &p));
    must_ok(shoal_event_wait(ARG(event, "go"), LIMIT));
    return shoal_process_start(wait_for_ever, never(args), &o, &p);
}

START_TEST(a_fork_server_and_who_asks_it)
{
    shoal_event *go, *nothing;
    char wanted[64];
    ck_assert_ok(shoal_event_create(&go));
    ck_assert_ok(shoal_event_create(&nothing));
    shoal_process *p = start(SHOAL_START_SPAWN, 0, start_by_server, shoal_map("go", go, "never", nothing));
    snprintf(wanted, sizeof wanted, "waits for event %llu", (unsigned long long)ID(go));
    until_doing(shoal_process_pid(p), wanted);
    snprintf(wanted, sizeof wanted, "serves process %d", (int)shoal_process_pid(p));
    int32_t server = until_somebody(wanted);
    kill(server, SIGSTOP);
    shoal_event_set(go);
    snprintf(wanted, sizeof wanted, "waits for fork server %d", (int)server);
    until_doing(shoal_process_pid(p), wanted);
    kill_waiter(p);
    kill(server, SIGKILL); /* otherwise it would stay stopped */
    until_alone();
    shoal_release(go);
    shoal_release(nothing);
}
END_TEST

/* ---- several threads ---- */

static void *wait_in_thread(void *event)
{
    return (void *)(uintptr_t)shoal_event_wait(event, SHOAL_FOREVER);
}

static shoal_err wait_with_threads(int rank, const shoal_value *args)
{
    (void)rank;
    pthread_t threads[2];
    void *err;
    must(pthread_create(&threads[0], NULL, wait_in_thread, ARG(event, "first")) == 0);
    must(pthread_create(&threads[1], NULL, wait_in_thread, ARG(event, "first")) == 0);
    must_ok(shoal_event_wait(ARG(event, "last"), SHOAL_FOREVER));
    for (int i = 0; i < 2; i++) {
        must(pthread_join(threads[i], &err) == 0 && err == (void *)SHOAL_OK);
    }
    return SHOAL_OK;
}

static int count_waits(int32_t pid)
{
    unsigned more = 0;
    row r = row_of(pid);
    const char *and = strstr(r.doing, " and ");
    return r.doing[0] == 0 || (and != NULL && sscanf(and, " and %u more", &more) != 1) ? 0 : (int)more + 1;
}

/* The first waiting thread is shown, the others are counted. A thread whose wait ends removes only its own wait. */
START_TEST(threads_that_wait_are_counted)
{
    shoal_event *first, *last;
    char wanted[64];
    ck_assert_ok(shoal_event_create(&first));
    ck_assert_ok(shoal_event_create(&last));
    shoal_process *p = start(SHOAL_START_FORK, 0, wait_with_threads, shoal_map("first", first, "last", last));
    int64_t deadline = clock_ns() + LIMIT;
    while (count_waits(shoal_process_pid(p)) != 3) {
        ck_assert_msg(clock_ns() < deadline, "it does '%s'", row_of(shoal_process_pid(p)).doing);
        pause_a_little();
    }
    shoal_event_set(first);
    snprintf(wanted, sizeof wanted, "waits for event %llu", (unsigned long long)ID(last));
    until_doing(shoal_process_pid(p), wanted);
    shoal_event_set(last);
    finish(p);
    ck_assert_str_eq(row_of(getpid()).state, "running"); /* the list itself does not wait */
    shoal_release(first);
    shoal_release(last);
}
END_TEST

/* ---- names ---- */

/* The given name, otherwise the name of the function; in a stripped program its address (proc/target_test.c). */
START_TEST(names_in_the_list)
{
    shoal_event *go;
    shoal_process *p;
    ck_assert_ok(shoal_event_create(&go));
    for (int named = 0; named < 2; named++) {
        ck_assert_ok(shoal_process_start(
            wait_for_ever, shoal_map("never", go),
            &(shoal_process_options){.start = (shoal_start)_i, .name = named ? "reader" : NULL}, &p));
        row r = row_of(shoal_process_pid(p));
        ck_assert(r.found);
        if (named) {
            ck_assert_str_eq(r.name, "reader");
        } else { /* a static function, which dladdr cannot find */
            ck_assert_str_eq(r.name, "wait_for_ever");
        }
        ck_assert_ok(shoal_process_kill(p));
        finish_as(p, SHOAL_PROCESS_KILLED, SIGKILL);
    }
    shoal_release(go);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("waits");
    TCase *tc = children_case("waits");
    tcase_add_loop_test(tc, every_wait_is_shown, 0, KINDS);
    tcase_add_test(tc, a_loader_and_its_worker);
    tcase_add_test(tc, a_fork_server_and_who_asks_it);
    tcase_add_test(tc, threads_that_wait_are_counted);
    add_for_methods(tc, names_in_the_list);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
