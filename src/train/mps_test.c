/* The daemon of MPS, played by a script: it is started, used and ended, also when the job is killed. */
#include "testing/runner.h"
#include "train/mps.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[64];

/* "-d" starts a process that sleeps, and writes its pid as the real one does. Commands come on standard input. */
static const char script[] = "#!/bin/sh\n"
                             "d=${CUDA_MPS_PIPE_DIRECTORY:?}\n"
                             "if [ \"$1\" = -d ]; then\n"
                             "    [ -e \"$FAKE/broken\" ] && exit 1\n"
                             "    sleep 100 </dev/null >/dev/null 2>&1 & echo $! >\"$d/nvidia-cuda-mps-control.pid\"\n"
                             "    : >\"$d/control\"; echo \"$d\" >\"$FAKE/folder\"; exit 0\n"
                             "fi\n"
                             "read -r command; echo \"$command\" >>\"$FAKE/commands\"\n"
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

/* The process that has started the daemon is killed, with its group: the keeper ends the daemon. */
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
    /* The keeper inherited this end, and holds it until it has done everything. */
    ck_assert_int_eq(read(gone[0], &byte, 1), 0);
    ck_assert_int_ne(access(there, F_OK), 0);
    ck_assert_str_eq(read_file("commands"), "quit\n");
    (void)close(gone[0]);
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

START_TEST(too_many_workers)
{
    sh_mps mps;
    shoal_train_options o = four;
    o.workers = SH_MPS_CLIENTS + 1;
    ck_assert_err(sh_mps_start(&mps, &o), SHOAL_ELIMIT);
    ck_assert_ptr_nonnull(strstr(shoal_last_error_text(), "49 workers, but MPS has room for 48"));
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
    tcase_add_test(tc, a_running_daemon_is_used);
    tcase_add_test(tc, without_mps_a_line_says_so);
    tcase_add_test(tc, too_many_workers);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
