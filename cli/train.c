/* shoal train: checks the files of the call, runs the job, and stops it on a signal. */
#include "cli/overwrite.h"
#include "cli/train_options.h"
#include "cli/train_show.h"
#include "cli/train_text.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct call {
    cli_train_call asked;
    shoal_train_options in_force; /* the job with all defaults set, to be shown */
    cli_settings settings;        /* of in_force */
    int signal;                   /* the signal that stopped the job, or 0 */
    cli_show show;
} call;

/* ---- signals: the handler writes their number to a pipe, which is read between steps of the job ---- */

static int pipe_ends[2];

static void note_signal(int number)
{
    int kept = errno;
    unsigned char byte = (unsigned char)number;
    (void)!write(pipe_ends[1], &byte, 1);
    errno = kept;
}

/* SIGHUP stays ignored if it is, as under nohup. SIGINT does not: a shell ignores it for every job in the
 * background. */
static bool watch_signals(void)
{
    struct sigaction action = {.sa_handler = note_signal, .sa_flags = SA_RESTART}, hangup;
    return pipe2(pipe_ends, O_CLOEXEC | O_NONBLOCK) == 0 && sigaction(SIGINT, &action, NULL) == 0 &&
           sigaction(SIGTERM, &action, NULL) == 0 && sigaction(SIGHUP, NULL, &hangup) == 0 &&
           (hangup.sa_handler == SIG_IGN || sigaction(SIGHUP, &action, NULL) == 0);
}

/* Returns the signal that came, or 0. Its byte stays in the pipe, so that the output sees it too. */
static int seen_signal(void)
{
    unsigned char byte;
    return read(pipe_ends[0], &byte, 1) == 1 && write(pipe_ends[1], &byte, 1) == 1 ? byte : 0;
}

/* ---- files: two options must not name the same one, or one would destroy the other's ---- */

typedef struct named_file {
    const char *option, *path;
    bool written;
} named_file;

/* What a path names: an existing file, or a name in a folder. */
typedef struct place {
    struct stat at;          /* of the file, or of the folder if there is no file */
    char name[NAME_MAX + 1]; /* "": the file exists */
} place;

/* Returns false if there is no regular file to lose. */
static bool find_place(const char *path, place *out)
{
    char folder[PATH_MAX], name[PATH_MAX];
    *out = (place){.name = ""};
    if (stat(path, &out->at) == 0) {
        return S_ISREG(out->at.st_mode);
    }
    snprintf(folder, sizeof folder, "%s", path);
    snprintf(name, sizeof name, "%s", path);
    snprintf(out->name, sizeof out->name, "%s", basename(name));
    return stat(dirname(folder), &out->at) == 0;
}

static bool same_file(const char *a, const char *b)
{
    place p, q;
    return find_place(a, &p) && find_place(b, &q) && p.at.st_dev == q.at.st_dev && p.at.st_ino == q.at.st_ino &&
           strcmp(p.name, q.name) == 0;
}

/* Returns the path of a file, or NULL if it is standard output. */
static const char *named(const char *path)
{
    return path != NULL && strcmp(path, "-") != 0 ? path : NULL;
}

/* Checks that no two options name the same file. --resume and --save, the first two, may: a job may continue in its own
 * file. */
static bool files_differ(const cli_train_call *asked)
{
    const named_file files[] = {
        {"resume", asked->job.resume, false},    {"save", asked->job.save, true},
        {"json", named(asked->show.json), true}, {"report", named(asked->show.report), true},
        {"config", asked->config, false},
    };
    size_t count = sizeof files / sizeof *files;
    for (size_t j = 2; j < count; j++) {
        for (size_t i = 0; i < j; i++) {
            const named_file *a = &files[i], *b = &files[j];
            if ((a->written || b->written) && a->path != NULL && b->path != NULL && same_file(a->path, b->path)) {
                cli_complain(&cli_train, CLI_MISUSED, "--%s %s and --%s %s are the same file; give two different files",
                             a->option, a->path, b->option, b->path);
                return false;
            }
        }
    }
    return true;
}

/* ---- the job ---- */

static bool on_event(const shoal_train_event *event, void *context)
{
    call *c = context;
    bool shown = cli_show_event(&c->show, event);
    if (c->signal == 0) {
        c->signal = seen_signal();
    }
    return shown && c->signal == 0;
}

static bool may_replace(const call *c)
{
    const shoal_train_options *job = &c->asked.job;
    bool resumed = job->resume != NULL && job->save != NULL && same_file(job->resume, job->save);
    return job->save == NULL || resumed || c->asked.overwrite ||
           cli_overwrite_allowed(job->save, &c->settings, c->in_force.epochs);
}

/* Checks early whether the checkpoint can be written, so that the job does not fail at its end. */
static bool can_save(const char *path)
{
    char folder[PATH_MAX];
    struct stat there;
    if (path == NULL) {
        return true;
    }
    if (stat(path, &there) == 0 && !S_ISREG(there.st_mode)) { /* renaming would replace a device by a file */
        cli_complain(&cli_train, CLI_FAILED, "cannot write %s: not a regular file", path);
        return false;
    }
    snprintf(folder, sizeof folder, "%s", path);
    if (access(dirname(folder), W_OK | X_OK) == 0) {
        return true;
    }
    cli_complain(&cli_train, CLI_FAILED, "cannot write %s: %s", path, strerror(errno));
    return false;
}

static bool know_settings(call *c)
{
    if (!cli_settings_of(&c->in_force, &c->settings)) {
        cli_complain(&cli_train, CLI_FAILED, "no memory");
        return false;
    }
    return true;
}

/* Adds to the error of a NaN loss what the user of the program can do. */
static void advise(const shoal_train_options *job)
{
    (void)!shoal_fail(SHOAL_ENAN, "%s; lower --lr, check the data, or go on with --allow-nan%s%s%s",
                      shoal_last_error_text(), job->save != NULL ? "; " : "", job->save != NULL ? job->save : "",
                      job->save != NULL ? " is the last good checkpoint" : "");
}

/* Adds to the error of a missing data folder where its path is from, if the user did not give it in this call. */
static void advise_data(const cli_train_call *asked)
{
    const char *data = asked->job.data;
    size_t i = (size_t)(cli_table_find(&cli_train_table, "data") - cli_train_table.options);
    if (asked->given.origin[i] != CLI_IN_CHECKPOINT || cli_is_data_name(data) || access(data, F_OK) == 0) {
        return;
    }
    (void)!shoal_fail(shoal_last_error(), "%s; %s has the path of this data set; --data gives another path",
                      shoal_last_error_text(), asked->job.resume);
}

static cli_exit run_job(call *c)
{
    shoal_train_options *job = &c->asked.job;
    if (!files_differ(&c->asked)) {
        return CLI_MISUSED;
    }
    c->in_force = shoal_train_defaults(job);
    if (!can_save(job->save) || !know_settings(c)) {
        return CLI_FAILED;
    }
    if (!may_replace(c)) {
        return CLI_MISUSED;
    }
    if (!cli_show_begin(&c->show, &c->in_force, &c->settings, &c->asked.show)) {
        return CLI_FAILED;
    }
    job->call = on_event;
    job->context = c;
    bool watched = watch_signals();
    c->show.output.stop = watched ? pipe_ends[0] : -1;
    shoal_err err = watched ? shoal_train_run(job, NULL) : shoal_fail(SHOAL_EOS, "%s", strerror(errno));
    if (err == SHOAL_ENAN) {
        advise(job);
    } else if (err != SHOAL_OK && job->data != NULL) {
        advise_data(&c->asked);
    }
    cli_exit status = cli_show_end(&c->show, err != SHOAL_OK);
    /* Output to a closed terminal fails, which is not a failure of the job. */
    bool hung_up = c->signal == SIGHUP && err == SHOAL_OK;
    return hung_up || (status == CLI_OK && c->signal != 0) ? (cli_exit)(128 + c->signal) : status;
}

static cli_exit run(int argc, char **argv)
{
    call c = {.signal = 0};
    cli_exit status;
    if (cli_train_read(argc, argv, &c.asked, &status)) {
        status = run_job(&c);
    }
    cli_settings_free(&c.settings);
    cli_train_free(&c.asked);
    return status;
}

const cli_command cli_train = {
    .name = "train",
    .summary = "train a model with several processes",
    .run = run,
    .table = &cli_train_table,
};
