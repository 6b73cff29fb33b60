/* B40, at random: victims are killed at any instruction. SHOAL_SOAK_KILLS sets how often, SHOAL_SEED sets the seed,
 * SHOAL_KILL_STEP in which steps (kill.h).
 *
 * Four ways to die, in turn: by a signal after a random time; by a signal directly after the fork; stopped by ptrace,
 * advanced by a random number of single steps, then killed; by a signal, and its first recoverer is killed as well. */
#include "base/clock.h"
#include "base/random.h"
#include "shm/world.h"
#include "tests/harness/kill.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#define SURVIVORS 2
#define DELAY_MAX SHOAL_MS(2)
#define INSTRUCTIONS_MAX 300
#define SLACK (UINT64_C(512) << 10) /* by which heads of spans and pages of tables may vary */

typedef enum way { BY_TIME, AT_BIRTH, BY_STEPS, TWICE, WAYS } way;

static const char *const way_names[WAYS] = {"after a time", "at birth", "by single steps", "with its recoverer"};

static _Noreturn void be_victim(kill_stage *stage, uint64_t random)
{
    for (;;) {
        uint32_t n = (uint32_t)sh_splitmix_below(&random, (uint64_t)kill_step_count);
        if ((kill_steps[n].flags & KILL_BY_HAND) == 0 && kill_step_is_chosen((int)n)) {
            sh_store_release(&stage->board->doing, n + 1);
            kill_steps[n].run(stage, &random);
        }
    }
}

static void wait_busily(int64_t ns)
{
    int64_t until = sh_now() + ns;
    while (sh_now() < until) {
        sh_pause();
    }
}

/* Waits until the victim has started to work. */
static void await_first_step(kill_stage *stage)
{
    int64_t deadline = sh_deadline(SH_PATIENCE);
    while (sh_load_acquire(&stage->board->doing) == 0) {
        kill_require(!sh_passed(deadline), "the victim does not start");
        sh_pause();
    }
}

/* Stops it wherever it is and advances it by that many instructions.
 * Returns false if the system does not allow this. */
static bool lead_on(pid_t pid, uint64_t instructions)
{
    int status;
    if (ptrace(PTRACE_SEIZE, pid, NULL, NULL) != 0) {
        return false;
    }
    kill_require(ptrace(PTRACE_INTERRUPT, pid, NULL, NULL) == 0, "PTRACE_INTERRUPT: %s", strerror(errno));
    kill_require(waitpid(pid, &status, __WALL) == pid, "waitpid: %s", strerror(errno));
    for (uint64_t i = 0; i < instructions; i++) {
        if (!WIFSTOPPED(status) || ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL) != 0) {
            break;
        }
        kill_require(waitpid(pid, &status, __WALL) == pid, "waitpid: %s", strerror(errno));
    }
    return true;
}

/* Starts a member that recovers, and kills it before it finishes. */
static void kill_recoverer(kill_stage *stage)
{
    uint64_t delay = sh_splitmix_below(&stage->random, SHOAL_MS(1) / 4);
    pid_t pid = kill_fork("recoverer");
    kill_require(pid >= 0, "fork: %s", shoal_last_error_text());
    if (pid == 0) {
        for (;;) {
            (void)!shoal_world_sweep(NULL);
        }
    }
    wait_busily((int64_t)delay);
    kill(pid, SIGKILL);
    kill_reap(stage, pid);
}

/* Kills one victim. Returns how many processes died. */
static int one_kill(kill_stage *stage, way how, int *stepped)
{
    uint64_t seed = sh_splitmix_next(&stage->random);
    int64_t delay = (int64_t)sh_splitmix_below(&stage->random, DELAY_MAX);
    uint64_t instructions = sh_splitmix_below(&stage->random, INSTRUCTIONS_MAX + 1);
    sh_store_release(&stage->board->doing, 0);
    pid_t pid = kill_fork("victim");
    kill_require(pid >= 0, "fork: %s", shoal_last_error_text());
    if (pid == 0) {
        be_victim(stage, seed);
    }
    if (how != AT_BIRTH) {
        await_first_step(stage);
    }
    wait_busily(how == AT_BIRTH ? delay / 8 : delay);
    if (how == BY_STEPS) {
        *stepped += lead_on(pid, instructions);
    }
    kill(pid, SIGKILL);
    int status = kill_reap(stage, pid);
    kill_require(WIFSIGNALED(status), "the victim ended with wait status 0x%x", status);
    if (how == TWICE) {
        kill_recoverer(stage);
    }
    return how == TWICE ? 2 : 1;
}

typedef struct measure {
    uint64_t used, blocks;
} measure;

/* During a pause: measures what the world needs when it contains only the stage and what the survivors keep. */
static measure measure_now(kill_stage *stage)
{
    shoal_world_info info;
    kill_drain(stage);
    kill_require_ok(shoal_world_trim());
    kill_require_ok(shoal_world_info_get(&info));
    return (measure){.used = info.heap_used, .blocks = info.blocks_live};
}

static uint64_t how_many(void)
{
    const char *text = getenv("SHOAL_SOAK_KILLS");
    return text != NULL ? strtoull(text, NULL, 10) : (uint64_t)SH_REPEAT(500);
}

static void report(const kill_stage *stage, uint64_t kills, double seconds, int stepped, measure warm, measure end)
{
    uint64_t worked = 0;
    for (int i = 0; i < stage->survivors; i++) {
        worked += sh_load_relaxed(&stage->board->worked[i]);
    }
    printf("%llu kills in %.1f s (%.0f/s), %d of them led by ptrace; %llu recovered; survivors' steps %llu\n",
           (unsigned long long)kills, seconds, (double)kills / seconds, stepped, (unsigned long long)stage->recovered,
           (unsigned long long)worked);
    if (stage->tight) {
        printf("%llu calls found no memory\n", (unsigned long long)sh_load_relaxed(&stage->board->refused));
    }
    printf("heap used %llu KiB in %llu blocks after the warm-up, %llu KiB in %llu blocks at the end\n",
           (unsigned long long)warm.used / 1024, (unsigned long long)warm.blocks, (unsigned long long)end.used / 1024,
           (unsigned long long)end.blocks);
    fflush(stdout);
}

static void kill_many(uint64_t kills, uint64_t heap_limit)
{
    kill_stage stage;
    measure warm = {0}, end = {0};
    uint64_t warm_up = kills / 4 + 1;
    int stepped = 0;
    kill_stage_begin(&stage, SURVIVORS, heap_limit);
    int64_t begin = sh_now();
    for (uint64_t n = 0; n < kills; n++) {
        char what[160];
        way how = (way)sh_splitmix_below(&stage.random, WAYS);
        int deaths = one_kill(&stage, how, &stepped);
        uint32_t doing = sh_load_acquire(&stage.board->doing);
        snprintf(what, sizeof what, "kill %llu (%s) in step %s", (unsigned long long)n, way_names[how],
                 doing == 0 ? "none" : kill_steps[doing - 1].name);
        kill_recover(&stage);
        kill_reap_orphans(&stage);
        kill_recover(&stage);
        kill_pause(&stage);
        kill_check(&stage, deaths, what);
        if (n + 1 == warm_up) {
            warm = measure_now(&stage);
        }
        if (n + 1 == kills) {
            end = measure_now(&stage);
        }
        kill_resume(&stage);
    }
    report(&stage, kills, (double)(sh_now() - begin) / 1e9, stepped, warm, end);
    ck_assert_uint_eq(warm.blocks, end.blocks);
    ck_assert_uint_le(end.used, warm.used + SLACK);
    kill_stage_end(&stage);
}

START_TEST(random_kills)
{
    kill_many(how_many(), 0);
}
END_TEST

/* A heap so small that allocations sometimes fail, and every process searches for what the others do not need. */
START_TEST(random_kills_in_a_tight_heap)
{
    kill_many(how_many() / 4 + 10, UINT64_C(3) << 20);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("kill_random");
    TCase *c = tcase_create("random");
    tcase_set_timeout(c, getenv("SHOAL_SOAK_KILLS") != NULL ? 86400 : SH_TEST_SECONDS);
    tcase_add_checked_fixture(c, sh_leaks_begin, sh_leaks_end);
    tcase_add_test(c, random_kills);
    tcase_add_test(c, random_kills_in_a_tight_heap);
    suite_add_tcase(s, c);
    return s;
}

SH_TEST_MAIN(suite)
