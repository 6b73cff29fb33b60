/* Kills a process at each death point of this layer in turn: the parent, the child, the fork server, a pool's worker.
 * After each kill the world is as if they had never existed. */
#include "proc/process_test.h"

#include "base/clock.h"
#include "base/death.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define VARIABLE "SHOAL_TEST_DEATH" /* count and name of a point: arms it in the programs that the victim starts */

typedef enum prey { SELF, DESCENDANTS, PREYS } prey;

static shoal_err grandchild(int rank, const shoal_value *args)
{
    shoal_block *block;
    (void)rank;
    must(shoal_value_as_block(shoal_value_at(args, 0)) != NULL);
    must(shoal_block_create(5000, &block) == SHOAL_OK);
    must(shoal_return(shoal_list(block, args != NULL)) == SHOAL_OK);
    return shoal_return(shoal_list(block, "the last one counts"));
}

/* Arms a point, for this process and its forks, or for the programs that it starts. args: point, prey. */
static void arm(const shoal_value *args, int count)
{
    static char text[80];
    snprintf(text, sizeof text, "%d %s", count, shoal_value_as_string(shoal_value_at(args, 0)));
    if (sh_int_of(shoal_value_at(args, 1)) == SELF) {
        sh_death_arm(strchr(text, ' ') + 1, count);
    } else {
        must(setenv(VARIABLE, text, 1) == 0);
    }
}

/* args: point, prey, method, block. Sets word 0 of the block if a descendant was killed. */
static shoal_err victim(int rank, const shoal_value *args)
{
    shoal_start method = (shoal_start)sh_int_of(shoal_value_at(args, 2));
    shoal_block *block = shoal_value_as_block(shoal_value_at(args, 3));
    shoal_process *p;
    shoal_status status;
    (void)rank;
    arm(args, 1);
    for (int i = 0; i < 2; i++) {
        shoal_err err =
            shoal_process_start(grandchild, shoal_list(block), &(shoal_process_options){.start = method}, &p);
        if (err == SHOAL_OK) {
            must(shoal_process_join(p, LIMIT, &status) == SHOAL_OK);
            *(int *)shoal_block_data(block) |= status.end == SHOAL_PROCESS_KILLED;
            must(status.end == SHOAL_PROCESS_KILLED || status.end == SHOAL_PROCESS_RETURNED);
            must(status.end == SHOAL_PROCESS_KILLED || shoal_value_count(shoal_process_result(p)) == 2);
            shoal_process_destroy(p);
        } else {
            *(int *)shoal_block_data(block) |= err == SHOAL_EOS; /* the server died twice */
        }
    }
    return SHOAL_OK;
}

static shoal_err double_it(const shoal_value *arg, shoal_value **out_result)
{
    int64_t x = sh_int_of(shoal_value_at(arg, 0));
    sh_a32 *died = (sh_a32 *)shoal_block_data(shoal_value_as_block(shoal_value_at(arg, 1))) + 1 + x;
    if (x % 5 == 3 && sh_add_relaxed(died, 1) == 0) {
        kill(getpid(), SIGKILL); /* so that the owner has something to repair */
    }
    /* A shared object needs a message; what has none stays inside the task. */
    *out_result = x % 4 != 1 ? shoal_list(2 * x, shoal_value_copy(shoal_value_at(arg, 1))) : shoal_list(2 * x, true);
    return SHOAL_OK;
}

/* Takes the same args, and runs a pool: every result is right, whichever descendant dies. */
static shoal_err pool_victim(int rank, const shoal_value *args)
{
    enum { N = 24 };
    shoal_pool_options options = {
        .workers = 2, .start = (shoal_start)sh_int_of(shoal_value_at(args, 2)), .retries = 50};
    shoal_block *block = shoal_value_as_block(shoal_value_at(args, 3));
    shoal_pool *pool;
    shoal_value *list = shoal_value_list(), *results;
    (void)rank;
    arm(args, 3); /* each worker does two tasks */
    must(shoal_pool_create(&options, &pool) == SHOAL_OK);
    for (int i = 0; i < N; i++) {
        list = shoal_list_add(list, shoal_list(i, block));
    }
    must(shoal_pool_map(pool, double_it, list, 1, &results) == SHOAL_OK);
    for (size_t i = 0; i < N; i++) {
        must(sh_int_of(shoal_value_at(shoal_value_at(results, i), 0)) == 2 * (int64_t)i);
    }
    shoal_value_destroy(results);
    *(int *)shoal_block_data(block) = shoal_pool_losses(pool) > 5; /* five would have died anyway */
    shoal_pool_close(pool);
    must(shoal_pool_join(pool, LIMIT) == SHOAL_OK);
    shoal_pool_destroy(pool);
    return SHOAL_OK;
}

/* Waits until all other processes have ended, by lifeline and sockets, and what they held is recovered. */
static void await_alone(const char *point, int method)
{
    shoal_world_info info = {.processes = 2};
    for (int64_t deadline = sh_deadline(SH_PATIENCE); info.processes > 1 || info.blocks_live > 1;) {
        ck_assert_msg(!sh_passed(deadline), "%s, method %d: %u processes, %llu blocks", point, method, info.processes,
                      (unsigned long long)info.blocks_live);
        ck_assert_ok(shoal_world_sweep(NULL));
        ck_assert_ok(shoal_world_info_get(&info));
    }
    sh_assert_audit(point);
}

static bool kill_at(shoal_target target, const char *point, prey who, int method)
{
    shoal_block *block;
    ck_assert_ok(shoal_block_create_zeroed(256, &block));
    shoal_process *p = start(SHOAL_START_SPAWN, target, shoal_list(point, (int)who, method, block));
    shoal_status status = finish(p);
    ck_assert_msg(status.end == SHOAL_PROCESS_RETURNED ||
                      (status.end == SHOAL_PROCESS_KILLED && status.code == SIGKILL),
                  "%s, method %d: %s", point, method, status.text);
    bool hit = status.end == SHOAL_PROCESS_KILLED || *(int *)shoal_block_data(block) != 0;
    shoal_process_destroy(p);
    await_alone(point, method);
    shoal_release(block);
    return hit;
}

static bool is_for(shoal_target target, const char *point)
{
    return target == pool_victim
               ? strncmp(point, "pool.", 5) == 0
               : (strncmp(point, "proc.", 5) == 0 && strncmp(point, "proc.program", 12) != 0) ||
                     strncmp(point, "slot.reserve", 12) == 0 ||
                     strcmp(point, "world.fork.inherited") == 0; /* kill_sweep visits plain forks and programs */
}

static void sweep(shoal_target target, size_t at_least)
{
    const char *const *points;
    size_t count = sh_death_points(&points), tried = 0;
    for (size_t i = 0; i < count; i++) {
        bool hit = false;
        for (int k = 0; is_for(target, points[i]) && k < PREYS * 3; k++) {
            hit = kill_at(target, points[i], (prey)(k % PREYS), SHOAL_START_SPAWN + k / PREYS) || hit;
            tried++;
        }
        ck_assert_msg(!is_for(target, points[i]) || hit, "nobody died at %s", points[i]);
    }
    ck_assert_uint_ge(tried, PREYS * 3 * at_least);
}

START_TEST(every_point_of_a_process)
{
    sweep(victim, 18);
}
END_TEST

START_TEST(every_point_of_a_pool)
{
    sweep(pool_victim, 8);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("death");
    TCase *tc = methods_case("death");
    tcase_set_timeout(tc, 2 * SH_TEST_SECONDS);
    tcase_add_test(tc, every_point_of_a_process);
    tcase_add_test(tc, every_point_of_a_pool);
    suite_add_tcase(s, tc);
    return s;
}

int main(int argc, char **argv)
{
    const char *point = getenv(VARIABLE);
    if (point != NULL) {
        sh_death_arm(strchr(point, ' ') + 1, atoi(point));
    }
    return sh_test_main(argc, argv, suite);
}
