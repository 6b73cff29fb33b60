/* Programs that gain privileges when they are executed, or give them up. The program is a copy of this one in a folder
 * of its own, started with PLAY as its first argument: with file capabilities, setuid or setgid, as another user.
 *
 * A program whose children do not know that they are children starts children without end. So each run of main takes a
 * token from a pipe first, and ends if there is none. */
#include "tests/harness/children.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <stdlib.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>

#define PLAY "--play"
#define TOKENS 5 /* runs of main that a test allows */
#define TOKEN_FD 60
#define STRANGER 65534u /* the user nobody */
#define OWNER 65533u    /* of a setuid program */

enum { GOOD = 0, UNPRIVILEGED = 80, NO_TOKEN = 81, CANNOT_START = 90 };

/* ---- the program ---- */

#define play(condition)                                                                                                \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "line %d: %s (%s)\n", __LINE__, #condition, shoal_last_error_text());                      \
            _exit(1);                                                                                                  \
        }                                                                                                              \
    } while (0)

static shoal_err answer(int rank, const shoal_value *args)
{
    (void)args;
    return shoal_return(shoal_value_int(rank + 40));
}

static void play_start(shoal_start method)
{
    shoal_process *p = NULL;
    shoal_status status;
    shoal_process_options options = {.start = method, .rank = 2};
    play(shoal_process_start(answer, shoal_value_null(), &options, &p) == SHOAL_OK);
    play(shoal_process_join(p, LIMIT, &status) == SHOAL_OK);
    play(status.end == SHOAL_PROCESS_RETURNED || (fprintf(stderr, "%s\n", status.text), false));
    play(sh_int_of(shoal_process_result(p)) == 42);
    shoal_process_destroy(p);
}

/* It cannot spawn, and says so in one sentence. It can fork. */
static void play_privileged(void)
{
    for (shoal_start m = SHOAL_START_SPAWN; m <= SHOAL_START_FORKSERVER; m++) {
        shoal_process *p = NULL;
        shoal_process_options options = {.start = m};
        if (m == SHOAL_START_FORK) {
            play_start(m);
        } else {
            play(shoal_process_start(answer, shoal_value_null(), &options, &p) == SHOAL_EPERM);
            play(strstr(shoal_last_error_text(), "privileges") && strstr(shoal_last_error_text(), "fork"));
        }
    }
}

/* Root has nothing to gain, but its children have. Only they can know. */
static void play_dropped(void)
{
    shoal_process *p = NULL;
    shoal_status status;
    shoal_process_options options = {.start = SHOAL_START_SPAWN};
    play_start(SHOAL_START_SPAWN);
    play(setgid(STRANGER) == 0 && setuid(STRANGER) == 0);
    play(shoal_process_start(answer, shoal_value_null(), &options, &p) == SHOAL_OK);
    play(shoal_process_join(p, LIMIT, &status) == SHOAL_OK);
    play(status.end == SHOAL_PROCESS_EXITED && strstr(status.text, "privileges"));
    shoal_process_destroy(p);
}

/* The world was made as root, and so was the first child. */
static void play_gave_up(void)
{
    shoal_process *held = NULL;
    play(shoal_world_create(NULL) == SHOAL_OK);
    play(shoal_process_start(answer, shoal_value_null(), NULL, &held) == SHOAL_OK);
    play(setgid(STRANGER) == 0 && setuid(STRANGER) == 0);
    for (shoal_start m = SHOAL_START_SPAWN; m <= SHOAL_START_FORKSERVER; m++) {
        play_start(m);
    }
    shoal_process_destroy(held);
    shoal_fork_server_stop();
}

static int play_main(const char *what)
{
    char token;
    if (read(TOKEN_FD, &token, 1) != 1) {
        return NO_TOKEN;
    }
    if (strcmp(what, "cleared") == 0) {
        play(clearenv() == 0);
    }
    play(shoal_init(NULL, NULL) == SHOAL_OK);
    if (strcmp(what, "privileged") == 0) {
        if (getauxval(AT_SECURE) == 0) {
            return UNPRIVILEGED;
        }
        play_privileged();
    } else if (strcmp(what, "ordinary again") == 0) {
        if (getauxval(AT_SECURE) == 0) {
            return UNPRIVILEGED;
        }
        play(setresuid(getuid(), getuid(), getuid()) == 0);
        play_start(SHOAL_START_SPAWN);
    } else if (strcmp(what, "dropped") == 0) {
        play_dropped();
    } else if (strcmp(what, "gave up") == 0) {
        play_gave_up();
    } else {
        play_start(SHOAL_START_SPAWN);
    }
    return GOOD;
}

/* ---- the tests ---- */

static char folder[] = "/tmp/shoal-privileges-XXXXXX";
static char program[64];

static void make_program(void)
{
    char bytes[1 << 16];
    ssize_t n;
    ck_assert_ptr_nonnull(mkdtemp(folder));
    ck_assert_int_eq(chmod(folder, 0755), 0);
    snprintf(program, sizeof program, "%s/program", folder);
    int from = open("/proc/self/exe", O_RDONLY | O_CLOEXEC), to = open(program, O_WRONLY | O_CREAT | O_CLOEXEC, 0755);
    ck_assert(from >= 0 && to >= 0);
    while ((n = read(from, bytes, sizeof bytes)) > 0) {
        ck_assert_int_eq(write(to, bytes, (size_t)n), n);
    }
    close(from);
    close(to);
}

static void remove_program(void)
{
    unlink(program);
    rmdir(folder);
}

/* Gives the program any capability that this system lets it have. */
static bool add_capability(void)
{
    uint32_t which = 0;
    while (which <= CAP_LAST_CAP && prctl(PR_CAPBSET_READ, which) != 1) {
        which++;
    }
    struct vfs_cap_data data = {.magic_etc = VFS_CAP_REVISION_2 | VFS_CAP_FLAGS_EFFECTIVE};
    data.data[which / 32].permitted = UINT32_C(1) << which % 32;
    return which <= CAP_LAST_CAP && setxattr(program, "security.capability", &data, sizeof data, 0) == 0;
}

typedef struct person {
    uid_t real, effective;
    gid_t group, effective_group;
} person;

/* Runs the program and returns its exit status. *out_runs: how often main ran. */
static int run(const char *what, person as, int *out_runs)
{
    int tokens[2], status;
    ck_assert_int_eq(pipe2(tokens, O_NONBLOCK | O_CLOEXEC), 0);
    ck_assert_int_eq(write(tokens[1], "tokens", TOKENS), TOKENS);
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        bool ready = dup2(tokens[0], TOKEN_FD) == TOKEN_FD &&
                     setresgid(as.group, as.effective_group, as.effective_group) == 0 &&
                     setresuid(as.real, as.effective, as.effective) == 0;
        if (ready) {
            execl(program, "program", PLAY, what, (char *)NULL);
        }
        _exit(CANNOT_START);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    char left[TOKENS];
    ssize_t n = read(tokens[0], left, sizeof left);
    *out_runs = TOKENS - (n > 0 ? (int)n : 0);
    close(tokens[0]);
    close(tokens[1]);
    ck_assert_msg(WIFEXITED(status), "ended by signal %d", WTERMSIG(status));
    return WEXITSTATUS(status);
}

static bool is_root(void)
{
    if (geteuid() != 0) {
        printf("skipped: only root can give a program privileges\n");
        return false;
    }
    return true;
}

static const person stranger = {STRANGER, STRANGER, STRANGER, STRANGER}, root = {0, 0, 0, 0};

static void plays(const char *what, person as, int wanted_runs)
{
    int runs, status = run(what, as, &runs);
    if (status == UNPRIVILEGED) {
        printf("skipped: this system gives programs in %s no privileges\n", folder);
        return;
    }
    ck_assert_int_eq(status, GOOD);
    ck_assert_int_eq(runs, wanted_runs); /* no child ran main */
}

START_TEST(f3_a_program_with_file_capabilities)
{
    if (is_root() && add_capability()) {
        plays("privileged", stranger, 1);
    }
}
END_TEST

START_TEST(f3_a_setuid_program)
{
    if (is_root()) {
        ck_assert_int_eq(chown(program, OWNER, OWNER), 0);
        ck_assert_int_eq(chmod(program, 04755), 0);
        plays("privileged", stranger, 1);
    }
}
END_TEST

START_TEST(f3_a_setgid_program)
{
    if (is_root()) {
        ck_assert_int_eq(chown(program, 0, OWNER), 0);
        ck_assert_int_eq(chmod(program, 02755), 0);
        plays("privileged", stranger, 1);
    }
}
END_TEST

START_TEST(f3_a_program_whose_ids_differ)
{
    if (is_root()) {
        plays("privileged", (person){STRANGER, OWNER, STRANGER, STRANGER}, 1);
    }
}
END_TEST

/* It was executed while its ids differed, which is over. Its children are like any others. */
START_TEST(f3_a_program_that_is_ordinary_again)
{
    if (is_root()) {
        plays("ordinary again", (person){STRANGER, OWNER, STRANGER, STRANGER}, 2);
    }
}
END_TEST

/* The children take a token each before they know. */
START_TEST(f3_a_program_that_gives_up_being_root)
{
    if (is_root() && add_capability()) {
        plays("dropped", root, 3);
    }
}
END_TEST

START_TEST(f3_a_program_that_clears_its_environment)
{
    int runs;
    ck_assert_int_eq(run("cleared", (person){getuid(), geteuid(), getgid(), getegid()}, &runs), GOOD);
    ck_assert_int_eq(runs, 2);
}
END_TEST

START_TEST(f13_a_world_made_as_root_and_used_as_another)
{
    if (is_root()) {
        plays("gave up", root, 4); /* two spawned children and a fork server */
    }
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("privileges");
    TCase *tc = children_case("privileges");
    tcase_add_checked_fixture(tc, make_program, remove_program);
    tcase_add_test(tc, f3_a_program_with_file_capabilities);
    tcase_add_test(tc, f3_a_setuid_program);
    tcase_add_test(tc, f3_a_setgid_program);
    tcase_add_test(tc, f3_a_program_whose_ids_differ);
    tcase_add_test(tc, f3_a_program_that_is_ordinary_again);
    tcase_add_test(tc, f3_a_program_that_gives_up_being_root);
    tcase_add_test(tc, f3_a_program_that_clears_its_environment);
    tcase_add_test(tc, f13_a_world_made_as_root_and_used_as_another);
    suite_add_tcase(s, tc);
    return s;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], PLAY) == 0) {
        _exit(play_main(argv[2])); /* no check for leaks: a sanitizer cannot make one in a privileged process */
    }
    return sh_test_main(argc, argv, suite);
}
