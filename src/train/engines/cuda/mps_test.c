/* The daemon of MPS, played by a script: it is started, used and ended, also when the job is killed. */
#include "tests/harness/cuda_stub/stub.h"
#include "train/engines/cuda/mps.h"
#include "train/job/crew.h"
#include "train/train_test.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[64];

/* "-d" starts a process that sleeps, and writes its pid as the real one does. Commands come on standard input. */
static const char script[] =
    "#!/bin/sh\n"
    "d=${CUDA_MPS_PIPE_DIRECTORY:?}\n"
    "[ -e \"$FAKE/hangs\" ] && { trap '' TERM; while :; do sleep 100; done; }\n"
    "if [ \"$1\" = -d ]; then\n"
    "    [ -e \"$FAKE/broken\" ] && exit 1\n"
    "    [ -e \"$FAKE/slow\" ] && { echo \"$d $$ $PPID\" >\"$FAKE/begun\"; read -r go <\"$FAKE/slow\"; }\n"
    "    sleep 100 </dev/null >/dev/null 2>&1 & echo $! >\"$d/nvidia-cuda-mps-control.pid\"\n"
    "    [ -e \"$FAKE/nvidia-cuda-mps-server\" ] && { \"$FAKE/nvidia-cuda-mps-server\" </dev/null >/dev/null 2>&1 & }\n"
    "    : >\"$d/control\"; echo \"$d\" >\"$FAKE/folder\"; exit 0\n"
    "fi\n"
    "read -r command; echo \"$command\" >>\"$FAKE/commands\"\n"
    "[ -e \"$FAKE/silent\" ] && exit 1\n"
    "[ \"$command\" = quit ] && kill $(cat \"$d/nvidia-cuda-mps-control.pid\")\n"
    "exit 0\n";

static void write_file(const char *name, const char *text, mode_t mode)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "w");
    ck_assert_ptr_nonnull(f);
    fputs(text, f);
    ck_assert_int_eq(fclose(f), 0);
    ck_assert_int_eq(chmod(path, mode), 0);
}

static const char *read_file(const char *name)
{
    static char text[256];
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "r");
    size_t n = f != NULL ? fread(text, 1, sizeof text - 1, f) : 0;
    text[n] = 0;
    if (f != NULL) {
        (void)fclose(f);
    }
    return text;
}

static void set_up(void)
{
    char path[4096];
    snprintf(folder, sizeof folder, "/tmp/shoal-fake-mps-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    sh_mps_folders = folder;
    write_file("nvidia-cuda-mps-control", script, 0700);
    snprintf(path, sizeof path, "%s:%s", folder, getenv("PATH"));
    ck_assert_int_eq(setenv("PATH", path, 1), 0);
    ck_assert_int_eq(setenv("FAKE", folder, 1), 0);
    ck_assert_int_eq(unsetenv("CUDA_MPS_PIPE_DIRECTORY"), 0);
    sh_leaks_begin();
}

static void tear_down(void)
{
    char command[128];
    sh_leaks_end();
    snprintf(command, sizeof command, "rm -rf %s", folder);
    ck_assert_int_eq(system(command), 0);
}

static const shoal_train_options four = {.device = SHOAL_CUDA, .workers = 4};

START_TEST(started_and_ended)
{
    sh_mps mps;
    ck_assert_ok(sh_mps_start(&mps, &four));
    ck_assert_int_eq(access(mps.folder, F_OK), 0);
    ck_assert_int_eq(strncmp(read_file("folder"), mps.folder, strlen(mps.folder)), 0);
    ck_assert_str_eq(mps.note, "");
    char there[64];
    snprintf(there, sizeof there, "%s", mps.folder);
    sh_mps_stop(&mps);
    ck_assert_str_eq(read_file("commands"), "quit\n");
    ck_assert_int_ne(access(there, F_OK), 0);
    sh_mps_stop(&mps);
}
END_TEST

/* The process that has started the daemon is killed, with its group: the owner ends the daemon. */
START_TEST(ended_after_a_kill)
{
    int ready[2], gone[2];
    char there[64] = "", byte;
    ck_assert_int_eq(pipe(ready), 0);
    ck_assert_int_eq(pipe(gone), 0);
    pid_t pid = fork();
    if (pid == 0) {
        sh_mps mps;
        (void)setpgid(0, 0);
        (void)close(gone[0]);
        if (sh_mps_start(&mps, &four) == SHOAL_OK && write(ready[1], mps.folder, sizeof mps.folder) > 0) {
            (void)pause();
        }
        _exit(1);
    }
    (void)close(gone[1]);
    ck_assert_int_eq(read(ready[0], there, sizeof there), (ssize_t)sizeof there);
    ck_assert_int_eq(access(there, F_OK), 0);
    ck_assert_int_eq(kill(-pid, SIGKILL), 0);
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
    /* The owner inherited this end, and holds it until it has done everything. */
    ck_assert_int_eq(read(gone[0], &byte, 1), 0);
    ck_assert_int_ne(access(there, F_OK), 0);
    ck_assert_str_eq(read_file("commands"), "quit\n");
    (void)close(gone[0]);
    (void)close(ready[0]);
    (void)close(ready[1]);
}
END_TEST

/* The same, while the daemon starts. */
START_TEST(ended_after_a_kill_at_the_start)
{
    int gone[2];
    char there[64] = "", byte, path[128];
    snprintf(path, sizeof path, "%s/slow", folder);
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    ck_assert_int_eq(pipe(gone), 0);
    pid_t pid = fork();
    if (pid == 0) {
        sh_mps mps;
        (void)close(gone[0]);
        _exit(sh_mps_start(&mps, &four) != SHOAL_OK);
    }
    (void)close(gone[1]);
    FILE *slow = fopen(path, "w"); /* waits until the fake reads */
    ck_assert_ptr_nonnull(slow);
    ck_assert_int_eq(sscanf(read_file("begun"), "%63s", there), 1);
    ck_assert_int_eq(access(there, F_OK), 0);
    ck_assert_int_eq(kill(pid, SIGKILL), 0);
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
    ck_assert_int_eq(fclose(slow), 0);
    ck_assert_int_eq(read(gone[0], &byte, 1), 0);
    ck_assert_int_ne(access(there, F_OK), 0);
    ck_assert_str_eq(read_file("commands"), "quit\n");
    (void)close(gone[0]);
}
END_TEST

static int daemon_of(const char *there)
{
    char path[128];
    int pid = 0;
    snprintf(path, sizeof path, "%s/nvidia-cuda-mps-control.pid", there);
    FILE *f = fopen(path, "r");
    ck_assert_ptr_nonnull(f);
    ck_assert_int_eq(fscanf(f, "%d", &pid), 1);
    (void)fclose(f);
    return pid;
}

/* One that has ended may wait for its parent. */
static bool runs(int pid)
{
    char path[64], state = 'X';
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *f = fopen(path, "r");
    ck_assert(f == NULL || fscanf(f, "%*d (%*[^)]) %c", &state) == 1);
    if (f != NULL) {
        (void)fclose(f);
    }
    return state != 'Z' && state != 'X';
}

/* The owner is killed: the job ends the daemon itself. */
START_TEST(ended_without_its_owner)
{
    sh_mps mps;
    char there[64];
    ck_assert_ok(sh_mps_start(&mps, &four));
    snprintf(there, sizeof there, "%s", mps.folder);
    int daemon = daemon_of(there);
    ck_assert(runs(daemon));
    ck_assert_int_eq(kill(mps.owner, SIGKILL), 0);
    sh_mps_stop(&mps);
    ck_assert_str_eq(read_file("commands"), "quit\n");
    ck_assert_int_ne(access(there, F_OK), 0);
    ck_assert(!runs(daemon));
}
END_TEST

/* The owner is stopped. */
START_TEST(ended_by_a_stopped_owner)
{
    sh_mps mps;
    ck_assert_ok(sh_mps_start(&mps, &four));
    int daemon = daemon_of(mps.folder);
    ck_assert_int_eq(kill(mps.owner, SIGSTOP), 0);
    sh_mps_stop(&mps);
    ck_assert_str_eq(read_file("commands"), "quit\n");
    ck_assert(!runs(daemon));
}
END_TEST

/* The owner is killed, and the daemon does not obey. */
START_TEST(killed_without_its_owner)
{
    sh_mps mps;
    ck_assert_ok(sh_mps_start(&mps, &four));
    int daemon = daemon_of(mps.folder);
    ck_assert_int_eq(kill(mps.owner, SIGKILL), 0);
    write_file("silent", "", 0600);
    sh_mps_stop(&mps);
    ck_assert(!runs(daemon));
}
END_TEST

/* The owner is killed while the daemon starts. */
START_TEST(a_start_without_its_owner)
{
    sh_mps mps;
    char there[64], path[128];
    int starter, limiter;
    snprintf(path, sizeof path, "%s/slow", folder);
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    pid_t pid = fork();
    if (pid == 0) {
        FILE *slow =
            fopen(path, "w"); /* waits until the fake reads; its parent is timeout, whose parent is the owner */
        _exit(slow == NULL ||
              system("read -r folder fake limit <\"$FAKE/begun\"; kill -9 $(cut -d ' ' -f 4 /proc/$limit/stat)"));
    }
    ck_assert_ok(sh_mps_start(&mps, &four));
    ck_assert_ptr_nonnull(strstr(mps.note, "nvidia-cuda-mps-control -d failed"));
    ck_assert_int_eq(sscanf(read_file("begun"), "%63s %d %d", there, &starter, &limiter), 3);
    ck_assert_int_ne(access(there, F_OK), 0);
    ck_assert(!runs(starter));
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
}
END_TEST

/* A job and its owner are killed at the same moment: the next job ends the daemon, and no job ends that of another. */
START_TEST(ended_by_the_next_job)
{
    int ready[2];
    sh_mps dead, next, third;
    ck_assert_int_eq(pipe(ready), 0);
    pid_t pid = fork();
    if (pid == 0) {
        sh_mps mps;
        if (sh_mps_start(&mps, &four) == SHOAL_OK && write(ready[1], &mps, sizeof mps) > 0) {
            (void)pause();
        }
        _exit(1);
    }
    ck_assert_int_eq(read(ready[0], &dead, sizeof dead), (ssize_t)sizeof dead);
    int daemon = daemon_of(dead.folder);
    struct pollfd owner = {.fd = (int)syscall(SYS_pidfd_open, dead.owner, 0), .events = POLLIN};
    ck_assert_int_eq(kill(pid, SIGSTOP), 0);
    ck_assert_int_eq(kill(dead.owner, SIGKILL), 0);
    ck_assert_int_eq(poll(&owner, 1, -1), 1);
    ck_assert_int_eq(kill(pid, SIGKILL), 0);
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
    ck_assert_int_eq(close(owner.fd), 0);
    ck_assert(runs(daemon) && access(dead.folder, F_OK) == 0);
    ck_assert_ok(sh_mps_start(&next, &four));
    ck_assert(!runs(daemon) && access(dead.folder, F_OK) != 0);
    ck_assert_str_eq(read_file("commands"), "quit\n");
    ck_assert_ok(sh_mps_start(&third, &four));
    ck_assert_int_eq(kill(next.owner, SIGKILL), 0);
    daemon = daemon_of(next.folder);
    sh_mps_stop(&third);
    ck_assert_ok(sh_mps_start(&third, &four)); /* the job of `next` lives */
    ck_assert(runs(daemon) && access(next.folder, F_OK) == 0);
    sh_mps_stop(&third);
    sh_mps_stop(&next);
    (void)close(ready[0]);
    (void)close(ready[1]);
}
END_TEST

START_TEST(a_running_daemon_is_used)
{
    sh_mps mps;
    ck_assert_int_eq(setenv("CUDA_MPS_PIPE_DIRECTORY", folder, 1), 0);
    write_file("control", "", 0600);
    ck_assert_ok(sh_mps_start(&mps, &four));
    ck_assert_str_eq(mps.folder, "");
    ck_assert_str_eq(mps.note, "");
    ck_assert_str_eq(read_file("commands"), "get_server_list\n");
    sh_mps_stop(&mps);
    ck_assert_str_eq(read_file("commands"), "get_server_list\n");
}
END_TEST

/* The driver looks for the daemon in CUDA_MPS_PIPE_DIRECTORY, or in a default folder. */
START_TEST(a_running_daemon_is_not_used_if_mps_is_off)
{
    for (int workers = 1; workers <= 2; workers++) {
        sh_mps mps;
        char control[128];
        ck_assert_int_eq(setenv("CUDA_MPS_PIPE_DIRECTORY", folder, 1), 0);
        write_file("control", "", 0600);
        ck_assert_ok(
            sh_mps_start(&mps, &(shoal_train_options){.device = SHOAL_CUDA, .workers = workers, .mps = SHOAL_MPS_OFF}));
        ck_assert(!mps.used);
        ck_assert_ptr_nonnull(strstr(mps.note, workers == 1 ? "" : "the 2 workers take turns on the GPU: MPS is off"));
        sh_mps_join(mps.folder, 0);
        ck_assert_str_ne(getenv("CUDA_MPS_PIPE_DIRECTORY"), "");
        snprintf(control, sizeof control, "%s/control", getenv("CUDA_MPS_PIPE_DIRECTORY"));
        ck_assert_int_ne(access(control, F_OK), 0);
        sh_mps_stop(&mps);
        ck_assert_str_eq(read_file("commands"), "");
    }
}
END_TEST

/* The real daemon starts a new server by itself; the daemon is killed to be missed. */
START_TEST(comes_back)
{
    sh_mps mps;
    char first[64];
    ck_assert_ok(sh_mps_start(&mps, &four));
    snprintf(first, sizeof first, "%s", mps.folder);
    sh_mps_recover(&mps);
    ck_assert_ptr_nonnull(strstr(mps.note, "the MPS server went down with a worker"));
    ck_assert_str_eq(mps.folder, first);
    ck_assert_str_eq(read_file("commands"), "get_server_list\n");
    mps.note[0] = 0;
    sh_mps_recover(&mps); /* of another worker, at the same time */
    ck_assert_str_eq(mps.note, "");
    mps.lost = 1;
    write_file("silent", "", 0600);
    sh_mps_recover(&mps);
    ck_assert_ptr_nonnull(strstr(mps.note, "the MPS daemon had ended; MPS and the workers start again"));
    ck_assert_str_ne(mps.folder, first);
    ck_assert_int_eq(access(mps.folder, F_OK), 0);
    ck_assert_int_ne(access(first, F_OK), 0);
    mps.lost = 1;
    write_file("broken", "", 0600);
    sh_mps_recover(&mps);
    ck_assert_ptr_nonnull(strstr(mps.note, "the 4 workers take turns on the GPU"));
    ck_assert(!mps.used && mps.folder[0] == 0);
    mps.note[0] = 0;
    mps.lost = 1;
    sh_mps_recover(&mps);
    ck_assert_str_eq(mps.note, "");
    sh_mps_stop(&mps);
}
END_TEST

START_TEST(without_mps_a_line_says_so)
{
    sh_mps mps;
    shoal_train_options o = four;
    write_file("broken", "", 0600);
    ck_assert_ok(sh_mps_start(&mps, &o));
    ck_assert_ptr_nonnull(strstr(mps.note, "nvidia-cuda-mps-control -d failed"));
    ck_assert_str_eq(mps.folder, "");
    o.mps = SHOAL_MPS_OFF;
    ck_assert_ok(sh_mps_start(&mps, &o));
    ck_assert_ptr_nonnull(strstr(mps.note, "MPS is off"));
    ck_assert_int_eq(setenv("PATH", "/usr/bin:/bin", 1), 0);
    o.mps = SHOAL_MPS_AUTO;
    ck_assert_ok(sh_mps_start(&mps, &o));
    ck_assert_ptr_nonnull(strstr(mps.note, "is not installed"));
    o.workers = 1;
    ck_assert_ok(sh_mps_start(&mps, &o));
    ck_assert_str_eq(mps.note, "");
}
END_TEST

/* Only MPS has shares of the card: without it they are refused, also for one worker. */
START_TEST(a_share_needs_mps)
{
    sh_mps mps;
    shoal_train_options o = {.device = SHOAL_CUDA, .workers = 1, .cuda_share = 40};
    ck_assert_ok(shoal_train_check(&o));
    ck_assert_ok(sh_mps_start(&mps, &o));
    ck_assert(mps.used && mps.folder[0] != 0);
    mps.lost = 1;
    write_file("silent", "", 0600);
    write_file("broken", "", 0600);
    sh_mps_recover(&mps); /* a job that runs goes on without MPS */
    ck_assert_ptr_nonnull(strstr(mps.note, "take turns on the GPU, each with all of it: "));
    ck_assert_err(sh_mps_start(&mps, &o), SHOAL_EOS);
    ck_assert_ptr_nonnull(
        strstr(shoal_last_error_text(), "share of the GPU needs MPS, but nvidia-cuda-mps-control -d failed"));
    sh_mps_stop(&mps);
    ck_assert_int_eq(setenv("PATH", "/nowhere", 1), 0);
    ck_assert_int_eq(setenv("CUDA_MPS_PIPE_DIRECTORY", folder, 1), 0);
    ck_assert_err(shoal_train_check(&o), SHOAL_ENOENT);
    ck_assert_err(shoal_train_run(&o, NULL), SHOAL_ENOENT);
    ck_assert_ptr_nonnull(strstr(shoal_last_error_text(), "nvidia-cuda-mps-control is not installed"));
    ck_assert_ptr_nonnull(strstr(shoal_last_error_text(), folder));
    write_file("control", "", 0600); /* a daemon of somebody else, whose program is not in the PATH */
    ck_assert_ok(shoal_train_check(&o));
    ck_assert_ok(sh_mps_start(&mps, &o));
    ck_assert(mps.used && mps.folder[0] == 0);
    ck_assert_int_eq(setenv("PATH", "/usr/bin:/bin", 1), 0);
}
END_TEST

/* A command that does not end, whatever asks it to: not when the daemon starts, and not when it ends. */
START_TEST(a_program_that_hangs)
{
    sh_mps mps;
    char there[64];
    sh_mps_seconds = "0.1";
    ck_assert_ok(sh_mps_start(&mps, &four));
    snprintf(there, sizeof there, "%s", mps.folder);
    write_file("hangs", "", 0600);
    ck_assert_int_eq(system("kill $(cat $(cat \"$FAKE/folder\")/nvidia-cuda-mps-control.pid)"), 0);
    sh_mps_stop(&mps);
    ck_assert_int_ne(access(there, F_OK), 0);
    ck_assert_ok(sh_mps_start(&mps, &four));
    ck_assert_ptr_nonnull(strstr(mps.note, "nvidia-cuda-mps-control -d failed"));
    sh_mps_stop(&mps);
}
END_TEST

/* A server that nobody can ask to end, because a client was killed at a bad moment. */
START_TEST(a_server_that_hangs)
{
    sh_mps mps;
    int pid = 0;
    write_file("nvidia-cuda-mps-server",
               "#!/bin/sh\ntrap '' TERM\necho $$ >\"$FAKE/server\"\nwhile :; do sleep 1; done\n", 0700);
    ck_assert_ok(sh_mps_start(&mps, &four));
    while (sscanf(read_file("server"), "%d", &pid) != 1) {
        (void)usleep(1000);
    }
    sh_mps_stop(&mps);
    ck_assert(!runs(pid));
}
END_TEST

typedef struct stopped {
    bool killed, replaced;
} stopped;

/* Kills a worker, and stops all others, and those that come after them, until MPS is replaced. */
static bool stop_all(const shoal_train_event *event, void *context)
{
    stopped *s = context;
    s->replaced =
        s->replaced || (event->kind == SHOAL_TRAIN_NOTE &&
                        strstr(event->text, "stopped answering after a worker died; MPS and the workers") != NULL);
    for (int i = 0; i < event->workers_count && !s->replaced && event->so_far.images > 0; i++) {
        pid_t pid = event->workers[i].pid;
        if (pid > 0 && (s->killed ? kill(pid, SIGSTOP) : kill(pid, SIGKILL)) == 0) {
            s->killed = true;
        }
    }
    return true;
}

START_TEST(workers_that_wait_for_a_server_are_replaced)
{
    sh_stub_use();
    setenv("SHOAL_CAPTURE", "off", 1);
    sh_crew_stall = SHOAL_MS(300);
    shoal_dataset *some = part_of(SHOAL_PART_TRAIN, 200);
    stopped s = {false, false};
    shoal_train_result r;
    shoal_train_options o = {.method = SHOAL_METHOD_HOGWILD,
                             .device = SHOAL_CUDA,
                             .model = "logistic",
                             .workers = 2,
                             .epochs = 200,
                             .train_set = some,
                             .call = stop_all,
                             .context = &s};
    ck_assert_ok(shoal_train_run(&o, &r));
    ck_assert(s.killed && s.replaced);
    ck_assert_int_eq(r.deaths, 1);
    ck_assert_int_eq(r.epochs, 200);
    ck_assert_str_ne(read_file("commands"), "");
    shoal_dataset_release(some);
}
END_TEST

START_TEST(too_many_workers)
{
    sh_mps mps;
    shoal_train_options o = four;
    o.workers = SH_MPS_CLIENTS + 1;
    ck_assert_err(sh_mps_start(&mps, &o), SHOAL_ELIMIT);
    ck_assert_ptr_nonnull(strstr(shoal_last_error_text(), "49 workers are too many: MPS allows 48"));
    sh_mps_stop(&mps);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("mps");
    TCase *tc = tcase_create("mps");
    tcase_set_timeout(tc, SH_TEST_SECONDS);
    tcase_add_checked_fixture(tc, set_up, tear_down);
    tcase_add_test(tc, started_and_ended);
    tcase_add_test(tc, ended_after_a_kill);
    tcase_add_test(tc, ended_after_a_kill_at_the_start);
    tcase_add_test(tc, ended_without_its_owner);
    tcase_add_test(tc, ended_by_a_stopped_owner);
    tcase_add_test(tc, killed_without_its_owner);
    tcase_add_test(tc, a_start_without_its_owner);
    tcase_add_test(tc, ended_by_the_next_job);
    tcase_add_test(tc, a_running_daemon_is_used);
    tcase_add_test(tc, a_running_daemon_is_not_used_if_mps_is_off);
    tcase_add_test(tc, comes_back);
    tcase_add_test(tc, without_mps_a_line_says_so);
    tcase_add_test(tc, a_share_needs_mps);
    tcase_add_test(tc, a_program_that_hangs);
    tcase_add_test(tc, a_server_that_hangs);
    tcase_add_test(tc, workers_that_wait_for_a_server_are_replaced);
    tcase_add_test(tc, too_many_workers);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
