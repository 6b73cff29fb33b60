/* Joining a world by name: from an unrelated process, from a process of another user, and from files that are not a
 * world: B62.
 *
 * The joiner is this program, started again with JOIN as its first argument; it communicates through stdin and
 * stdout. */
#include "shm/world.h"
#include "tests/harness/children.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define JOIN "--join-world"
#define STRANGER 65534u /* the user nobody */

extern char **environ;

/* ---- the joiner ---- */

/* Joins, makes three blocks, prints what it sees, and stays until its input ends. */
static int join_main(const char *name)
{
    shoal_err err = shoal_world_join(name);
    shoal_world_info info = {.processes = 0};
    shoal_block *blocks[3];
    shoal_queue *queue;
    char byte;
    if (err == SHOAL_OK) {
        err = shoal_world_info_get(&info);
    }
    for (int i = 0; i < 3 && err == SHOAL_OK; i++) {
        err = shoal_block_create_zeroed(1000, &blocks[i]);
    }
    if (err == SHOAL_OK) {
        err = shoal_queue_create(0, &queue);
    }
    if (err == SHOAL_OK) {
        err = shoal_queue_put_block(queue, blocks[0], SHOAL_NOW);
    }
    printf("%s %u %s\n", shoal_err_name(err), info.processes, info.name);
    fflush(stdout);
    return read(STDIN_FILENO, &byte, 1) == 0 && err == SHOAL_OK ? 0 : 1;
}

typedef struct joiner {
    pid_t pid;
    int in; /* closing it ends the joiner */
    char error[32], name[SHOAL_NAME_MAX + 1];
    unsigned processes;
} joiner;

static void joiner_begin(joiner *j, const char *name)
{
    int in[2], out[2];
    posix_spawn_file_actions_t actions;
    char *argv[] = {"joiner", JOIN, (char *)(uintptr_t)name, NULL};
    ck_assert_int_eq(pipe2(in, O_CLOEXEC), 0);
    ck_assert_int_eq(pipe2(out, O_CLOEXEC), 0);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    ck_assert_int_eq(posix_spawn(&j->pid, "/proc/self/exe", &actions, NULL, argv, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(in[0]);
    close(out[1]);
    j->in = in[1];
    j->name[0] = 0;
    FILE *f = fdopen(out[0], "r");
    ck_assert_int_ge(fscanf(f, "%31s %u %63s", j->error, &j->processes, j->name), 2);
    fclose(f);
}

static void joiner_end(joiner *j, bool by_kill, int wanted)
{
    int status;
    if (by_kill) {
        ck_assert_int_eq(kill(j->pid, SIGKILL), 0);
    } else {
        close(j->in);
    }
    ck_assert_int_eq(waitpid(j->pid, &status, 0), j->pid);
    ck_assert(by_kill ? WIFSIGNALED(status) : WIFEXITED(status) && WEXITSTATUS(status) == wanted);
    if (by_kill) {
        close(j->in);
    }
}

static const char *own_name(void)
{
    static char name[SHOAL_NAME_MAX + 1];
    snprintf(name, sizeof name, "join-test.%d_x", (int)getpid());
    return name;
}

/* ---- tests ---- */

START_TEST(an_unrelated_process_of_the_same_user_joins_by_name)
{
    ck_assert_ok(shoal_world_create(&(shoal_world_options){.name = own_name()}));
    ck_assert_str_eq(sh_test_world().name, own_name());
    for (int round = 0; round < 10; round++) {
        joiner j[2];
        bool by_kill = round % 2 == 1;
        for (int i = 0; i < 2; i++) {
            joiner_begin(&j[i], own_name());
            ck_assert_str_eq(j[i].error, "SHOAL_OK");
            ck_assert_str_eq(j[i].name, own_name());
            ck_assert_uint_eq(j[i].processes, 2u + (unsigned)i);
        }
        ck_assert_uint_eq(sh_test_world().processes, 3);
        ck_assert_uint_eq(sh_test_world().blocks_live, 10);
        sh_assert_audit("with two that joined");
        for (int i = 0; i < 2; i++) {
            joiner_end(&j[i], by_kill, 0);
        }
        uint32_t recovered = 9;
        ck_assert_ok(shoal_world_sweep(&recovered));
        ck_assert_uint_eq(recovered, by_kill ? 2 : 0);
        ck_assert_uint_eq(sh_test_world().processes, 1);
        ck_assert_uint_eq(sh_test_world().blocks_live, 0); /* nothing of them remains */
    }
}
END_TEST

START_TEST(a_world_lives_as_long_as_its_last_member)
{
    joiner first, second;
    ck_assert_ok(shoal_world_create(&(shoal_world_options){.name = own_name()}));
    joiner_begin(&first, own_name());
    shoal_world_leave(); /* the process that made the world leaves */
    joiner_begin(&second, own_name());
    ck_assert_str_eq(second.error, "SHOAL_OK");
    ck_assert_uint_eq(second.processes, 2);
    joiner_end(&first, true, 0);
    ck_assert_ok(shoal_world_join(own_name()));
    ck_assert_ok(shoal_world_sweep(NULL));
    ck_assert_uint_eq(sh_test_world().processes, 2);
    ck_assert_uint_eq(sh_test_world().blocks_live, 5);
    joiner_end(&second, false, 0);
    shoal_world_leave();
    ck_assert_err(shoal_world_join(own_name()), SHOAL_ENOENT);
}
END_TEST

START_TEST(names_that_are_none)
{
    char longest[SHOAL_NAME_MAX + 2];
    memset(longest, 'x', sizeof longest);
    longest[SHOAL_NAME_MAX + 1] = 0;
    ck_assert_err(shoal_world_join("no-such-world"), SHOAL_ENOENT);
    ck_assert_ptr_nonnull(strstr(shoal_last_error_text(), "no-such-world"));
    ck_assert_err(shoal_world_join(longest), SHOAL_ENOENT);
    ck_assert_err(shoal_world_join(""), SHOAL_EINVAL);
    ck_assert_err(shoal_world_join(NULL), SHOAL_EINVAL);
    const char *const wrong[] = {"", "a/b", "a b", "ä", "a\n", longest};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        ck_assert_err(shoal_world_create(&(shoal_world_options){.name = wrong[i]}), SHOAL_EINVAL);
    }
    longest[SHOAL_NAME_MAX] = 0;
    ck_assert_ok(shoal_world_create(&(shoal_world_options){.name = longest}));
    ck_assert_str_eq(sh_test_world().name, longest);
    ck_assert_err(shoal_world_create(NULL), SHOAL_ESTATE);
    ck_assert_err(shoal_world_join(longest), SHOAL_ESTATE);
    joiner j;
    joiner_begin(&j, longest);
    ck_assert_str_eq(j.name, longest);
    joiner_end(&j, false, 0);
}
END_TEST

/* ---- B62: another user ---- */

/* Runs the body in a child of another user. The child is forked before the world exists, and is told when it does. */
static pid_t fork_stranger(int (*body)(pid_t parent, const char *name), const char *name, int *out_go)
{
    int go[2];
    pid_t parent = getpid();
    ck_assert_int_eq(pipe2(go, O_CLOEXEC), 0);
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        char byte;
        close(go[1]);
        if (setgid(STRANGER) != 0 || setuid(STRANGER) != 0 || read(go[0], &byte, 1) != 0) {
            _exit(90);
        }
        _exit(body(parent, name));
    }
    close(go[0]);
    *out_go = go[1];
    return pid;
}

static int try_to_get_in(pid_t parent, const char *name)
{
    char path[64];
    shoal_err err = shoal_world_join(name);
    if (err != SHOAL_EPERM && err != SHOAL_ENOENT) {
        return 91;
    }
    for (int fd = 3; fd < 40; fd++) {
        snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)parent, fd);
        if (open(path, O_RDWR) >= 0) {
            return 92;
        }
    }
    return 0;
}

static bool may_be_others(void)
{
    if (geteuid() != 0) {
        printf("not root: joining as another user was not tried\n");
        return false;
    }
    return true;
}

START_TEST(b62_another_user_cannot_join)
{
    int go, status;
    if (!may_be_others()) {
        return;
    }
    pid_t pid = fork_stranger(try_to_get_in, own_name(), &go);
    ck_assert_ok(shoal_world_create(&(shoal_world_options){.name = own_name()}));
    close(go);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the stranger: status %x", (unsigned)status);
    ck_assert_uint_eq(sh_test_world().processes, 1);
}
END_TEST

static int be_a_world(pid_t parent, const char *name)
{
    (void)parent;
    if (shoal_world_create(&(shoal_world_options){.name = name}) != SHOAL_OK) {
        return 93;
    }
    raise(SIGSTOP); /* stays stopped until it is killed */
    return 94;
}

/* The superuser may open the file of another user, but the kernel knows its owner. Such a world does not hide root's
 * own of the same name, whichever of them is found first: the stranger is there before and after the joiner's. */
START_TEST(b62_f15_another_users_world_is_refused)
{
    int go, status, own_fd[2];
    if (!may_be_others()) {
        return;
    }
    pid_t pid = fork_stranger(be_a_world, own_name(), &go);
    close(go);
    ck_assert_int_eq(waitpid(pid, &status, WUNTRACED), pid);
    ck_assert_msg(WIFSTOPPED(status), "status %x", (unsigned)status);
    ck_assert_err(shoal_world_join(own_name()), SHOAL_EPERM);
    ck_assert_int_eq(pipe2(own_fd, O_CLOEXEC), 0);
    char name[SHOAL_NAME_MAX + 1];
    snprintf(name, sizeof name, "%s", own_name());
    pid_t own = fork(); /* its pid is higher than the stranger's, so /proc lists it later */
    if (own == 0) {
        (void)!write(own_fd[1], &(char){shoal_world_create(&(shoal_world_options){.name = name}) == SHOAL_OK}, 1);
        pause();
    }
    char made = 0;
    ck_assert_int_eq(read(own_fd[0], &made, 1), 1);
    ck_assert_int_eq(made, 1);
    close(own_fd[0]);
    close(own_fd[1]);
    ck_assert_ok(shoal_world_join(own_name()));
    ck_assert_uint_eq(sh_test_world().processes, 2);
    shoal_world_leave();
    ck_assert_int_eq(kill(own, SIGKILL), 0);
    ck_assert_int_eq(waitpid(own, NULL, 0), own);
    ck_assert_int_eq(kill(pid, SIGKILL), 0);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
}
END_TEST

/* ---- files that are not a world ---- */

/* Makes a memory file with the name of a world and a header that is correct except for what the caller changes. */
static int make_file(uint64_t size, bool sealed, const sh_world_shm *header)
{
    char name[SHOAL_NAME_MAX + 16];
    snprintf(name, sizeof name, "shoal:%s", own_name());
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(ftruncate(fd, (off_t)size), 0);
    if (header != NULL) {
        ck_assert_int_eq(pwrite(fd, header, sizeof *header, 0), (ssize_t)sizeof *header);
    }
    if (sealed) {
        ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
    }
    return fd;
}

static sh_world_shm right_header(uint64_t size)
{
    sh_world_shm h = {.magic = {SH_MAGIC}, .layout = {sh_layout_word()}, .reserved = {size}};
    sh_store_relaxed(&h.heap_limit, UINT64_C(1) << 30);
    return h;
}

static void ck_refused(int fd, shoal_err wanted)
{
    int fds = sh_count_fds();
    ck_assert_err(shoal_world_join(own_name()), wanted);
    ck_assert_int_eq(sh_count_fds(), fds);
    ck_assert_int_eq(sh_count_mappings(), 0);
    close(fd);
}

START_TEST(b62_files_that_are_no_world_are_refused)
{
    const uint64_t size = UINT64_C(1) << 32;
    sh_world_shm h = right_header(size);
    ck_refused(make_file(0, true, NULL), SHOAL_ECORRUPT);
    ck_refused(make_file(4096, true, &h), SHOAL_ECORRUPT); /* truncated */
    ck_refused(make_file(size - 4096, true, &h), SHOAL_ECORRUPT);
    ck_refused(make_file(size, false, &h), SHOAL_ECORRUPT); /* could be truncated later */
    ck_refused(make_file(size, true, NULL), SHOAL_ECORRUPT);
    sh_store_relaxed(&h.magic, SH_MAGIC ^ 1);
    ck_refused(make_file(size, true, &h), SHOAL_ECORRUPT);
    h = right_header(size);
    sh_store_relaxed(&h.layout, sh_layout_word() + 1);
    ck_refused(make_file(size, true, &h), SHOAL_ELAYOUT);
    h = right_header(size * 2);
    ck_refused(make_file(size, true, &h), SHOAL_ECORRUPT);
    h = right_header(UINT64_C(1) << 20); /* smaller than its own tables */
    ck_refused(make_file(UINT64_C(1) << 20, true, &h), SHOAL_ECORRUPT);
    if (may_be_others()) { /* right in everything but its owner */
        h = right_header(size);
        int fd = make_file(size, true, &h);
        ck_assert_int_eq(fchown(fd, STRANGER, STRANGER), 0);
        ck_refused(fd, SHOAL_EPERM);
    }
}
END_TEST

/* A correct header, and garbage in all the rest: every call returns. */
START_TEST(b62_a_world_of_nonsense_does_no_harm)
{
    const uint64_t size = UINT64_C(1) << 32;
    sh_world_shm h = right_header(size);
    sh_store_relaxed(&h.slots_used, UINT32_MAX);
    sh_store_relaxed(&h.frontier.hi, UINT64_MAX);
    sh_store_relaxed(&h.frontier.lo, UINT64_MAX / 3);
    int fd = make_file(size, true, &h);
    uint64_t word = UINT64_C(0x9e3779b97f4a7c15);
    for (uint64_t at = SH_TOPS_AT; at < SH_SLOTS_AT; at += 8) { /* every class claims to have free blocks somewhere */
        word ^= word << 13, word ^= word >> 7, word ^= word << 17;
        ck_assert_int_eq(pwrite(fd, &word, 8, (off_t)at), 8);
    }
    for (uint64_t at = SH_SPANS_AT; at < SH_SPANS_AT + 65536; at += 8) { /* and the spans are anywhere */
        word ^= word << 13, word ^= word >> 7, word ^= word << 17;
        uint64_t span = at % 16 == 0 ? word % (2 * size) / SH_UNIT * SH_UNIT : word % (SH_CLASSES + 5);
        ck_assert_int_eq(pwrite(fd, &span, 8, (off_t)at), 8);
    }
    ck_assert_ok(shoal_world_join(own_name()));
    for (size_t n = 1; n < (1u << 24); n *= 2) {
        shoal_block *b = NULL;
        if (shoal_block_create(n, &b) == SHOAL_OK) {
            ck_assert_uint_eq(shoal_block_size(b), n);
            memset(shoal_block_data(b), 1, n);
            shoal_release(b);
        }
    }
    shoal_world_info i;
    shoal_audit audit;
    ck_assert_ok(shoal_world_info_get(&i));
    ck_assert_err(shoal_world_audit(&audit), SHOAL_ECORRUPT);
    ck_assert_ok(shoal_world_trim());
    shoal_world_leave();
    close(fd);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("join_world");
    TCase *tc = children_case("join");
    tcase_add_test(tc, an_unrelated_process_of_the_same_user_joins_by_name);
    tcase_add_test(tc, a_world_lives_as_long_as_its_last_member);
    tcase_add_test(tc, names_that_are_none);
    tcase_add_test(tc, b62_another_user_cannot_join);
    tcase_add_test(tc, b62_f15_another_users_world_is_refused);
    tcase_add_test(tc, b62_files_that_are_no_world_are_refused);
    tcase_add_test(tc, b62_a_world_of_nonsense_does_no_harm);
    suite_add_tcase(s, tc);
    return s;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], JOIN) == 0) {
        return join_main(argv[2]);
    }
    return sh_test_main(argc, argv, suite);
}
