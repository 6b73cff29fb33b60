#include "sync/rlock.h"

#include "base/error.h"
#include "sync/peers_test.h"

typedef struct object {
    sh_rlock_shm rlock;
    int64_t count; /* written under the lock */
} object;

/* What a thread sees that does not hold the lock while another one does. */
static void stay_out(void *arg)
{
    object *o = arg;
    must(!sh_rlock_held(&o->rlock));
    must(sh_rlock_unlock(&o->rlock) == SHOAL_EPERM);
    must(shoal_last_error() == SHOAL_EPERM);
    must(sh_rlock_unlock_all(&o->rlock) == 0);
    must(sh_rlock_lock(&o->rlock, SHOAL_NOW) == SHOAL_ETIMEDOUT);
    must(sh_rlock_lock(&o->rlock, SHOAL_MS(1)) == SHOAL_ETIMEDOUT);
    must(sh_rlock_lock_depth(&o->rlock, 2, SHOAL_NOW) == SHOAL_ETIMEDOUT);
    must(sh_rlock_valid(&o->rlock));
}

static void *stay_out_thread(void *arg)
{
    stay_out(arg);
    return NULL;
}

static void check_others_stay_out(object *o)
{
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, stay_out_thread, o), 0);
    pthread_join(thread, NULL);
    fake_join(fake_fork(stay_out, o));
}

START_TEST(rules)
{
    object *o = fake_begin(sizeof *o);
    sh_rlock_format(&o->rlock);
    ck_assert_int_eq(sh_rlock_unlock(&o->rlock), SHOAL_EPERM); /* nobody holds it */
    ck_assert(!sh_rlock_held(&o->rlock));
    for (int depth = 1; depth <= 3; depth++) {
        ck_assert_int_eq(sh_rlock_lock(&o->rlock, SHOAL_NOW), SHOAL_OK);
        ck_assert(sh_rlock_held(&o->rlock));
        ck_assert(sh_rlock_valid(&o->rlock));
    }
    for (int depth = 3; depth >= 1; depth--) {
        check_others_stay_out(o);
        ck_assert_int_eq(sh_rlock_unlock(&o->rlock), SHOAL_OK);
    }
    ck_assert(!sh_rlock_held(&o->rlock));
    ck_assert_uint_eq(sh_rlock_owner(&o->rlock), 0);
    ck_assert_int_eq(sh_rlock_unlock(&o->rlock), SHOAL_EPERM);
}
END_TEST

START_TEST(released_completely_and_taken_back)
{
    object *o = fake_begin(sizeof *o);
    ck_assert_uint_eq(sh_rlock_unlock_all(&o->rlock), 0);
    ck_assert_int_eq(sh_rlock_lock_depth(&o->rlock, 0, SHOAL_NOW), SHOAL_EINVAL);
    ck_assert_int_eq(sh_rlock_lock(&o->rlock, SHOAL_NOW), SHOAL_OK);
    ck_assert_int_eq(sh_rlock_lock(&o->rlock, SHOAL_NOW), SHOAL_OK);
    ck_assert_int_eq(sh_rlock_lock_depth(&o->rlock, 1, SHOAL_NOW), SHOAL_ESTATE);
    ck_assert_uint_eq(sh_rlock_unlock_all(&o->rlock), 2);
    ck_assert(!sh_rlock_held(&o->rlock));
    ck_assert_uint_eq(sh_rlock_owner(&o->rlock), 0);
    ck_assert_int_eq(sh_rlock_lock_depth(&o->rlock, 2, SHOAL_NOW), SHOAL_OK);
    ck_assert_int_eq(sh_rlock_unlock(&o->rlock), SHOAL_OK);
    ck_assert(sh_rlock_held(&o->rlock));
    ck_assert_int_eq(sh_rlock_unlock(&o->rlock), SHOAL_OK);
    ck_assert(!sh_rlock_held(&o->rlock));
    ck_assert_int_eq(sh_rlock_lock_depth(&o->rlock, UINT32_MAX, SHOAL_NOW), SHOAL_OK);
    ck_assert_int_eq(sh_rlock_lock(&o->rlock, SHOAL_NOW), SHOAL_ESTATE);
    ck_assert_uint_eq(sh_rlock_unlock_all(&o->rlock), UINT32_MAX);
}
END_TEST

/* Without a world all processes have the same life, so only the tid tells the child from the thread that forked it. */
START_TEST(a_forked_child_does_not_hold_it)
{
    object *o = fake_begin(sizeof *o);
    sh_peers_set(NULL, 0);
    ck_assert_int_eq(sh_rlock_lock(&o->rlock, SHOAL_NOW), SHOAL_OK);
    pid_t pid = fork();
    if (pid == 0) {
        stay_out(o);
        _exit(0);
    }
    fake_join(pid);
    ck_assert(sh_rlock_held(&o->rlock));
}
END_TEST

/* The kernel may reuse the tid of a dead holder for a thread of another process. */
START_TEST(a_reused_tid_does_not_hold_it)
{
    object *o = fake_begin(sizeof *o);
    ck_assert_int_eq(sh_rlock_lock(&o->rlock, SHOAL_NOW), SHOAL_OK);
    uint64_t me = sh_load_relaxed(&o->rlock.holder);
    ck_assert_uint_eq(me, ((uint64_t)fake_self() << 32) | (uint32_t)gettid());
    sh_store_relaxed(&o->rlock.holder, me + (UINT64_C(1) << 32));
    ck_assert(!sh_rlock_held(&o->rlock));
    ck_assert_int_eq(sh_rlock_lock(&o->rlock, SHOAL_NOW), SHOAL_ETIMEDOUT);
}
END_TEST

static void count_up(void *arg)
{
    object *o = arg;
    for (int i = 0; i < 50000; i++) {
        must(sh_rlock_lock(&o->rlock, SHOAL_FOREVER) == SHOAL_OK);
        must(sh_rlock_lock(&o->rlock, SHOAL_FOREVER) == SHOAL_OK);
        o->count++;
        must(sh_rlock_valid(&o->rlock));
        must(sh_rlock_unlock(&o->rlock) == SHOAL_OK);
        o->count++;
        must(sh_rlock_unlock(&o->rlock) == SHOAL_OK);
        must(!sh_rlock_held(&o->rlock));
    }
}

static void *count_up_thread(void *arg)
{
    count_up(arg);
    return NULL;
}

static void count_up_by_threads(void *arg)
{
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        must(pthread_create(&threads[i], NULL, count_up_thread, arg) == 0);
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
    }
}

START_TEST(threads_of_processes_exclude_each_other)
{
    object *o = fake_begin(sizeof *o);
    pid_t first = fake_fork(count_up_by_threads, o), second = fake_fork(count_up_by_threads, o);
    fake_join(first);
    fake_join(second);
    ck_assert_int_eq(o->count, 400000);
    ck_assert_uint_eq(sh_rlock_owner(&o->rlock), 0);
}
END_TEST

static void take_deep_and_stay(void *arg)
{
    object *o = arg;
    for (int i = 0; i < 3; i++) {
        must(sh_rlock_lock(&o->rlock, SHOAL_FOREVER) == SHOAL_OK);
    }
    fake_step(1);
    fake_await_step(2);
    must(sh_rlock_unlock_all(&o->rlock) == 3);
}

static void mark_is_refused(void *arg)
{
    object *o = arg;
    must(sh_rlock_mark_consistent(&o->rlock) == SHOAL_EPERM);
    must(sh_rlock_owner_died(&o->rlock));
}

static void *mark_is_refused_thread(void *arg)
{
    mark_is_refused(arg);
    return NULL;
}

START_TEST(a_death_is_remembered_until_it_is_marked)
{
    object *o = fake_begin(sizeof *o);
    pid_t pid = fake_fork(take_deep_and_stay, o);
    fake_await_step(1);
    fake_kill(pid);
    ck_assert(!sh_rlock_held(&o->rlock));
    ck_assert_int_eq(sh_rlock_lock_consistent(&o->rlock, SHOAL_FOREVER), SHOAL_EOWNERDEAD);
    ck_assert(!sh_rlock_held(&o->rlock));
    ck_assert_int_eq(sh_rlock_lock(&o->rlock, SHOAL_FOREVER), SHOAL_OK);
    ck_assert(sh_rlock_valid(&o->rlock));
    ck_assert_int_eq(sh_rlock_unlock(&o->rlock), SHOAL_OK); /* once: the dead holder's depth is not kept */
    ck_assert_uint_eq(sh_rlock_owner(&o->rlock), 0);
    mark_is_refused(o); /* nobody holds it */
    ck_assert_int_eq(sh_rlock_lock(&o->rlock, SHOAL_FOREVER), SHOAL_OK);
    ck_assert_int_eq(sh_rlock_lock_consistent(&o->rlock, SHOAL_NOW), SHOAL_OK); /* its holder may go deeper */
    ck_assert_uint_eq(sh_rlock_depth(&o->rlock), 2);
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, mark_is_refused_thread, o), 0);
    pthread_join(thread, NULL);
    fake_join(fake_fork(mark_is_refused, o));
    ck_assert_int_eq(sh_rlock_mark_consistent(&o->rlock), SHOAL_OK);
    ck_assert(!sh_rlock_owner_died(&o->rlock) && sh_rlock_valid(&o->rlock));
    ck_assert_uint_eq(sh_rlock_unlock_all(&o->rlock), 2);
    ck_assert_int_eq(sh_rlock_lock_consistent(&o->rlock, SHOAL_NOW), SHOAL_OK);
    ck_assert_uint_eq(sh_rlock_depth(&o->rlock), 1);
}
END_TEST

START_TEST(recovery_repairs_it)
{
    object *o = fake_begin(sizeof *o);
    pid_t pid = fake_fork(take_deep_and_stay, o);
    fake_await_step(1);
    sh_owner life = sh_rlock_owner(&o->rlock);
    fake_kill(pid);
    ck_assert(!sh_rlock_repair(&o->rlock, fake_self()));
    ck_assert(sh_rlock_repair(&o->rlock, life));
    ck_assert(!sh_rlock_repair(&o->rlock, life));
    ck_assert_int_eq(sh_rlock_lock_depth(&o->rlock, 2, SHOAL_NOW), SHOAL_OK);
    ck_assert(sh_rlock_owner_died(&o->rlock));
    ck_assert_uint_eq(sh_rlock_unlock_all(&o->rlock), 2);
    ck_assert(sh_rlock_owner_died(&o->rlock));
}
END_TEST

START_TEST(stopped_is_not_dead)
{
    object *o = fake_begin(sizeof *o);
    pid_t pid = fake_fork(take_deep_and_stay, o);
    fake_await_step(1);
    fake_stop(pid);
    ck_assert_int_eq(sh_rlock_lock(&o->rlock, 3 * SH_SLICE_SHORT), SHOAL_ETIMEDOUT);
    ck_assert_int_eq(kill(pid, SIGCONT), 0);
    fake_step(2);
    ck_assert_int_eq(sh_rlock_lock(&o->rlock, SHOAL_FOREVER), SHOAL_OK);
    fake_join(pid);
}
END_TEST

#ifdef SHOAL_DEATH_POINTS
static const char *point;

static void die_at_point(void *arg)
{
    object *o = arg;
    sh_death_arm(point, 1);
    must(sh_rlock_lock(&o->rlock, SHOAL_FOREVER) == SHOAL_OK);
    must(sh_rlock_unlock(&o->rlock) == SHOAL_OK);
}

START_TEST(death_points)
{
    static const char *const points[] = {"sync.rlock.taken", "sync.rlock.cleared"};
    object *o = fake_begin(sizeof *o);
    ck_assert_uint_eq(fake_points("sync.rlock."), sizeof points / sizeof points[0]);
    for (size_t i = 0; i < sizeof points / sizeof points[0]; i++) {
        point = points[i];
        fake_join_killed(fake_fork(die_at_point, o));
        ck_assert_int_eq(sh_rlock_lock(&o->rlock, SHOAL_FOREVER), SHOAL_OK);
        ck_assert(sh_rlock_valid(&o->rlock) && sh_rlock_owner_died(&o->rlock));
        ck_assert_int_eq(sh_rlock_mark_consistent(&o->rlock), SHOAL_OK);
        ck_assert_uint_eq(sh_rlock_unlock_all(&o->rlock), 1);
        ck_assert_int_eq(sh_rlock_lock(&o->rlock, SHOAL_FOREVER), SHOAL_OK);
        ck_assert_int_eq(sh_rlock_unlock(&o->rlock), SHOAL_OK);
    }
}
END_TEST
#endif

int main(void)
{
    const TTest *const tests[] = {
        rules,
        released_completely_and_taken_back,
        a_forked_child_does_not_hold_it,
        a_reused_tid_does_not_hold_it,
        threads_of_processes_exclude_each_other,
        a_death_is_remembered_until_it_is_marked,
        recovery_repairs_it,
        stopped_is_not_dead,
#ifdef SHOAL_DEATH_POINTS
        death_points,
#endif
    };
    return fake_run("sync/rlock", tests, sizeof tests / sizeof tests[0]);
}
