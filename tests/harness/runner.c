#include "tests/harness/runner.h"

#include "device/cuda_share.h"
#include "proc/registry.h"
#include "shm/world.h"
#include "tests/harness/cuda_mirror.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int fds_before, mappings_before;

void sh_mark_point(const char *file, int line)
{
    /* Two lines of a large file may share a count; that loses marks, not assertions. */
    enum { LINES = 1024, MARKS = 64 };
    static unsigned marks[LINES];
    unsigned *count = &marks[line % LINES];
    if (__atomic_load_n(count, __ATOMIC_RELAXED) < MARKS) { /* atomic, because threads assert too */
        __atomic_fetch_add(count, 1, __ATOMIC_RELAXED);
        (_mark_point)(file, line);
    }
}

/* Returns whether the fd is one of the CUDA driver, which opens them when it likes. */
static bool is_of_driver(const char *fd)
{
    char path[64], target[64];
    snprintf(path, sizeof path, "/proc/self/fd/%.20s", fd);
    ssize_t length = readlink(path, target, sizeof target);
    return length > 11 && memcmp(target, "/dev/nvidia", 11) == 0;
}

int sh_count_fds(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    ck_assert_ptr_nonnull(d);
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        n += !is_of_driver(e->d_name);
    }
    closedir(d);
    return n - 3; /* ".", "..", and the directory itself */
}

/* Counts only named files: the C library and the sanitizers map anonymous memory at will. */
int sh_count_mappings(void)
{
    int n = 0;
    char line[512];
    FILE *f = fopen("/proc/self/maps", "re");
    ck_assert_ptr_nonnull(f);
    while (fgets(line, sizeof line, f) != NULL) {
        n += strstr(line, "memfd:shoal") != NULL;
    }
    fclose(f);
    return n;
}

int sh_count_children(void)
{
    char path[64], text[4096];
    int n = 0;
    snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
    FILE *f = fopen(path, "re");
    if (f == NULL) { /* not every kernel has the file; then count only a child that can be waited for */
        return waitpid(-1, NULL, WNOHANG | WNOWAIT) >= 0;
    }
    size_t length = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    for (size_t i = 0; i < length; i++) {
        n += text[i] == ' ';
    }
    return n;
}

void sh_assert_audit(const char *where)
{
    shoal_audit audit;
    shoal_err err = sh_world_audit(false, &audit);
    ck_assert_msg(err == SHOAL_OK, "audit %s: %s", where, shoal_last_error_text());
}

int64_t sh_quiet_now(void)
{
    unsigned long long waited = 0; /* in microseconds; 0 on a kernel that does not count it */
    FILE *f = fopen("/proc/pressure/cpu", "re");
    if (f != NULL) {
        if (fscanf(f, "some %*[^t]total=%llu", &waited) != 1) {
            waited = 0;
        }
        fclose(f);
    }
    return sh_now() - (int64_t)waited * 1000;
}

void sh_leaks_begin(void)
{
    (void)sh_mirror_device(); /* a card that is asked for opens its files once */
    fds_before = sh_count_fds();
    mappings_before = sh_count_mappings();
}

void sh_await_alone(void)
{
    shoal_world_info info = {.processes = 2};
    int64_t limit = sh_now() + SH_PATIENCE;
    while (info.processes > 1) {
        ck_assert_msg(sh_now() < limit, "%u processes left in the world", info.processes);
        ck_assert_ok(shoal_world_sweep(NULL));
        ck_assert_ok(shoal_world_info_get(&info));
        usleep(200);
    }
}

void sh_leaks_end(void)
{
    shoal_world_info info;
    int64_t limit = sh_now() + SH_PATIENCE;
    while (sh_count_children() > 0 && sh_now() < limit) { /* on a busy machine a child may be reaped a moment later */
        sh_orphans_reap();
        usleep(1000);
    }
    ck_assert_int_eq(sh_count_children(), 0);
    if (sh_cuda_is_ours()) { /* granules are blocks too, and a lent piece may wait for its stream */
        ck_assert_ok(sh_device_cuda.wait());
        sh_cuda_order_poll();
        (void)shoal_cuda_trim();
    }
    ck_assert_ok(shoal_world_sweep(NULL));
    sh_assert_audit("at the end of the test");
    ck_assert_ok(shoal_world_info_get(&info));
    ck_assert_msg(info.blocks_live == 0, "%llu blocks left", (unsigned long long)info.blocks_live);
    ck_assert_msg(info.processes == 1, "%u processes left in the world", info.processes);
    shoal_world_leave();
    if (sh_cuda_is_ours()) {
        (void)sh_cuda_memory_trim(); /* what the world's end gave back */
    }
    ck_assert_int_eq(sh_count_mappings(), mappings_before);
    ck_assert_int_eq(sh_count_fds(), fds_before);
}

bool sh_is_short(void)
{
    return SH_SLOW || getenv("SHOAL_TEST_SHORT") != NULL;
}

int sh_repeats(int n)
{
    int few = n / 50 > 2 ? n / 50 : 2;
    return getenv("SHOAL_TEST_SHORT") == NULL ? SH_REPEAT(n) : n < few ? n : few;
}

int sh_every(int n)
{
    return getenv("SHOAL_TEST_SHORT") == NULL ? 1 : n;
}

enum {
    SKIPPED = 77, /* the exit status that ctest counts as skipped */
};

/* Returns whether SHOAL_TEST_CARD asks for a card that is not there, and says why. Looks in another process, because
 * the tests are forked from this one, and a process that has opened the card cannot be. */
static bool card_is_missing(void)
{
    const char *wish = getenv("SHOAL_TEST_CARD");
    if (!wish || strcmp(wish, "1") != 0) {
        return false;
    }
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        bool found = sh_device_get(SHOAL_CUDA) != NULL;
        if (!found) {
            fprintf(stderr, "skipped: %s\n", shoal_last_error_text());
        }
        _exit(found ? EXIT_SUCCESS : SKIPPED);
    }
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == SKIPPED;
}

shoal_world_info sh_test_world(void)
{
    shoal_world_info info;
    ck_assert_ok(shoal_world_info_get(&info));
    return info;
}

Suite *sh_test_suite(const char *name, const TTest *const *tests, size_t count)
{
    Suite *suite = suite_create(name);
    TCase *group = tcase_create(name);
    tcase_add_checked_fixture(group, sh_leaks_begin, sh_leaks_end);
    for (size_t i = 0; i < count; i++) {
        tcase_add_test(group, tests[i]);
    }
    suite_add_tcase(suite, group);
    return suite;
}

int sh_test_main(int argc, char **argv, Suite *(*suite)(void))
{
    if (shoal_init(&argc, &argv) != SHOAL_OK) {
        fprintf(stderr, "%s\n", shoal_last_error_text());
        return EXIT_FAILURE;
    }
    if (card_is_missing()) {
        return SKIPPED;
    }
    char seconds[16];
    snprintf(seconds, sizeof seconds, "%d", SH_TEST_SECONDS);
    setenv("CK_DEFAULT_TIMEOUT", seconds, true); /* libcheck's default of four seconds is too short on a busy machine */
    SRunner *runner = srunner_create(suite());
    srunner_run(runner, NULL, argc > 1 ? argv[1] : NULL, CK_NORMAL);
    int failed = srunner_ntests_failed(runner), run = srunner_ntests_run(runner);
    srunner_free(runner);
    return failed == 0 && run > 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
