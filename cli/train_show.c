#include "cli/train_show.h"

#include "cli/report.h"
#include "cli/train_text.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define REPORT_SECONDS 5 /* between two reports within a long epoch */

/* ---- JSON ---- */

static void json_number(FILE *file, const char *name, double x)
{
    fprintf(file, ",\"%s\":", name);
    cli_json_number(file, x);
}

static void json_string(FILE *file, const char *name, const char *text)
{
    fprintf(file, ",\"%s\":", name);
    cli_json_string(file, text);
}

static void json_begin(const cli_show *show, const shoal_train_event *event)
{
    const shoal_train_options *o = show->job;
    FILE *f = show->json;
    json_string(f, "method", shoal_train_method_name(o->method));
    json_string(f, "model", cli_model_name(o));
    json_string(f, o->method == SHOAL_METHOD_A3C ? "env" : "data", cli_data_name(o));
    fprintf(f, ",\"workers\":%d,\"epochs\":%" PRId64, event->workers_count, o->epochs);
    json_number(f, "lr", o->lr);
    if (o->method != SHOAL_METHOD_A3C) {
        fprintf(f, ",\"batch\":%" PRId64, o->batch);
        json_number(f, "lr_decay", o->lr_decay);
        json_number(f, "momentum", o->momentum > 0 ? o->momentum : 0);
    }
    fprintf(f, ",\"seed\":%" PRIu64, o->seed);
    fprintf(f, ",\"device\":\"%s\",\"tf32\":%s", o->device == SHOAL_CUDA ? "cuda" : "cpu", o->tf32 ? "true" : "false");
    if (o->method == SHOAL_METHOD_A3C) {
        fprintf(f, ",\"rollout\":%" PRId64 ",\"env_steps\":%" PRId64, o->rollout, o->env_steps);
        json_number(f, "gamma", o->gamma > 0 ? o->gamma : 0);
        json_number(f, "entropy", o->entropy > 0 ? o->entropy : 0);
        json_number(f, "until", o->until > 0 ? o->until : 0);
    }
    if (event->text[0] != 0) {
        json_string(f, "resumed", event->text);
        fprintf(f, ",\"epochs_finished\":%" PRId64, event->so_far.epochs);
    }
}

static void json_result(const cli_show *show, const shoal_train_event *event, bool last)
{
    const shoal_train_result *r = &event->so_far;
    FILE *f = show->json;
    if (last) {
        json_string(f, "method", shoal_train_method_name(show->job->method));
        fprintf(f, ",\"workers\":%d", event->workers_count);
    }
    fprintf(f, ",\"%s\":%" PRId64, last ? "epochs" : "epoch", r->epochs);
    json_number(f, "seconds", r->seconds);
    json_number(f, "train_seconds", r->train_seconds);
    json_number(f, "images", (double)r->images);
    json_number(f, "images_per_second", r->images_per_second);
    json_number(f, "train_loss", event->loss);
    json_number(f, "test_loss", r->test_loss);
    json_number(f, "test_accuracy", r->test_accuracy);
    json_number(f, "tested_epoch", r->tested_epoch > 0 ? (double)r->tested_epoch : NAN);
    if (show->job->method == SHOAL_METHOD_A3C) {
        fprintf(f, ",\"episodes\":%" PRId64, r->episodes);
        json_number(f, "reward", r->reward);
    }
    fprintf(f, ",\"deaths\":%" PRId64, r->deaths);
    if (last) {
        fprintf(f, ",\"stopped\":%s", r->stopped ? "true" : "false");
        json_number(f, "reached_epoch", r->reached_epoch > 0 ? (double)r->reached_epoch : NAN);
    }
}

static shoal_train_event past_event(const shoal_train_event *begin, int64_t i)
{
    const shoal_train_epoch *e = &begin->past->epochs[i];
    return (shoal_train_event){.kind = SHOAL_TRAIN_EPOCH,
                               .so_far = e->so_far,
                               .loss = e->loss,
                               .worker = -1,
                               .text = "",
                               .workers = begin->workers,
                               .workers_count = begin->workers_count};
}

/* Marks the past epochs that the log already has. Ends the last line if a kill cut it off. */
static void find_logged(const cli_show *show, const shoal_train_past *past, bool *logged)
{
    FILE *log = show->json_path != NULL ? fopen(show->json_path, "re") : NULL;
    char *line = NULL;
    size_t room = 0;
    bool whole = true;
    for (ssize_t n; log != NULL && (n = getline(&line, &room, log)) > 0;) {
        int64_t epoch = 0, low = 0, high = past->count;
        whole = line[n - 1] == '\n';
        if (!whole || sscanf(line, "{\"event\":\"epoch\",\"epoch\":%" SCNd64 ",", &epoch) != 1) {
            continue;
        }
        while (low < high) { /* the epochs are in increasing order */
            int64_t middle = low + (high - low) / 2;
            bool before = past->epochs[middle].so_far.epochs < epoch;
            low = before ? middle + 1 : low;
            high = before ? high : middle;
        }
        if (low < past->count && past->epochs[low].so_far.epochs == epoch) {
            logged[low] = true;
        }
    }
    if (!whole) {
        fputc('\n', show->json);
    }
    free(line);
    if (log != NULL) {
        fclose(log);
    }
}

/* Writes the epochs of a resumed job that the log does not have. */
static void json_past(const cli_show *show, const shoal_train_event *begin, const bool *logged)
{
    for (int64_t i = 0; i < begin->past->count; i++) {
        shoal_train_event event = past_event(begin, i);
        if (logged == NULL || !logged[i]) {
            fputs("{\"event\":\"epoch\"", show->json);
            json_result(show, &event, false);
            fputs(",\"before\":true}\n", show->json);
        }
    }
}

static void show_json(const cli_show *show, const shoal_train_event *event)
{
    bool *logged = event->past != NULL ? calloc((size_t)event->past->count + 1, sizeof *logged) : NULL;
    if (logged != NULL) {
        find_logged(show, event->past, logged);
    }
    static const char *const names[] = {
        [SHOAL_TRAIN_BEGIN] = "begin", [SHOAL_TRAIN_EPOCH] = "epoch",     [SHOAL_TRAIN_DEATH] = "death",
        [SHOAL_TRAIN_SAVE] = "save",   [SHOAL_TRAIN_SUMMARY] = "summary", [SHOAL_TRAIN_NOTE] = "note",
    };
    FILE *f = show->json;
    fprintf(f, "{\"event\":\"%s\"", names[event->kind]);
    switch (event->kind) {
    case SHOAL_TRAIN_BEGIN: json_begin(show, event); break;
    case SHOAL_TRAIN_EPOCH: json_result(show, event, false); break;
    case SHOAL_TRAIN_SUMMARY: json_result(show, event, true); break;
    case SHOAL_TRAIN_SAVE: json_string(f, "path", event->text); break;
    case SHOAL_TRAIN_NOTE: json_string(f, "text", event->text); break;
    case SHOAL_TRAIN_DEATH:
        fprintf(f, ",\"worker\":%d", event->worker);
        json_number(f, "seconds", event->so_far.seconds);
        json_string(f, "text", event->text);
        fprintf(f, ",\"deaths\":%" PRId64 ",\"restarted\":%s", event->so_far.deaths,
                cli_started_again(event) ? "true" : "false");
        break;
    default: break;
    }
    fputs("}\n", f);
    if (event->past != NULL) {
        json_past(show, event, logged);
    }
    free(logged);
}

/* Writes the last line of a failed job, which has no summary unless only an output failed. */
static void json_failed(FILE *f, shoal_err err, const char *why)
{
    fputs("{\"event\":\"failed\"", f);
    json_string(f, "error", shoal_err_name(err));
    json_string(f, "text", why);
    fputs("}\n", f);
}

/* ---- lines ---- */

static void show_resumed(FILE *f, const shoal_train_options *o, const shoal_train_event *event)
{
    const shoal_train_result *r = &event->so_far;
    const char *epochs = cli_terms_of(o->method)->epochs;
    char goal[128];
    if (r->reached_epoch > 0) {
        fprintf(f, "%s: the job is finished: %s; a higher --until, or --until 0, continues it\n", event->text,
                cli_goal_text(o, r, goal, sizeof goal));
    } else if (r->epochs >= o->epochs) {
        fprintf(f, "%s: the job is finished: %" PRId64 " of %" PRId64 " %s; --epochs N continues it\n", event->text,
                r->epochs, o->epochs, epochs);
    } else {
        fprintf(f, "resumed from %s: %" PRId64 " of %" PRId64 " %s are finished\n", event->text, r->epochs, o->epochs,
                epochs);
    }
}

static void show_line(cli_show *show, const shoal_train_event *event)
{
    const shoal_train_options *o = show->job;
    FILE *f = show->output.file;
    int workers = event->workers_count, columns = show->terminal ? cli_progress_columns() : 0;
    columns = columns < CLI_PROGRESS_COLUMNS ? columns : CLI_PROGRESS_COLUMNS;
    switch (event->kind) {
    case SHOAL_TRAIN_BEGIN:
        fprintf(f, "%s: %d worker%s, %s on %s\n", shoal_train_method_name(o->method), workers, workers == 1 ? "" : "s",
                cli_model_name(o), cli_data_name(o));
        if (event->text[0] != 0) {
            show_resumed(f, o, event);
        }
        for (int64_t i = 0; event->past != NULL && i < event->past->count; i++) {
            shoal_train_event past = past_event(event, i);
            show->epoch_columns = cli_print_epoch(f, o, &past, columns, show->epoch_columns);
        }
        break;
    case SHOAL_TRAIN_EPOCH: show->epoch_columns = cli_print_epoch(f, o, event, columns, show->epoch_columns); break;
    case SHOAL_TRAIN_DEATH:
        fprintf(f, "worker %d: %s; %sstarted again\n", event->worker, event->text,
                cli_started_again(event) ? "" : "not ");
        break;
    case SHOAL_TRAIN_NOTE: fprintf(f, "%s\n", event->text); break;
    case SHOAL_TRAIN_SUMMARY: cli_print_summary(f, show, event, columns); break;
    default: break;
    }
}

static void show_plain(cli_show *show, const shoal_train_event *event)
{
    bool tick = event->kind == SHOAL_TRAIN_TICK, last = event->kind == SHOAL_TRAIN_SUMMARY;
    if (!tick && show->terminal) {
        cli_progress_lift(&show->progress, show->output.file);
    }
    show_line(show, event);
    if (show->terminal && !last) {
        cli_progress_draw(&show->progress, show->output.file, show->job, event, !tick);
    }
}

/* ---- the report ---- */

static bool is_output(const char *path)
{
    return path != NULL && strcmp(path, "-") == 0;
}

/* Returns the monotonic clock in nanoseconds. */
static int64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Writes the report after each epoch, and from time to time during a long one. Writing takes at most a tenth of the
 * time, however short the epochs are. An error is ignored here: the last write, at the end, reports it. */
static void refresh_report(cli_show *show, const shoal_train_event *event)
{
    int64_t begun = now();
    show->report_due = show->report_due || event->kind != SHOAL_TRAIN_TICK;
    int64_t pause = show->report_due ? 0 : REPORT_SECONDS * INT64_C(1000000000);
    if (event->kind == SHOAL_TRAIN_SUMMARY || begun < show->next_report + pause) {
        return;
    }
    show->report_due = false;
    (void)cli_report_write(show->report_path, show->job, show->settings, &show->history, NULL);
    int64_t end = now();
    show->next_report = end + 9 * (end - begun);
}

/* ---- all ---- */

static bool cannot_because(cli_show *show, const char *path, const char *why)
{
    show->terminal = false; /* the error must not be among rows that change */
    cli_progress_end(&show->progress);
    if (!show->output.failed) {
        cli_complain(&cli_train, CLI_FAILED, "cannot write %s: %s", path, why);
    }
    show->output.failed = true;
    return false;
}

static bool cannot(cli_show *show, const char *path)
{
    return cannot_because(show, path, strerror(errno));
}

/* Opens the log. A resumed job appends to its log. */
static bool begin_json(cli_show *show, const char *path)
{
    if (is_output(path)) {
        show->json = show->output.file;
        show->plain = false;
    } else if (path != NULL) {
        show->json = fopen(path, show->job->resume != NULL ? "ae" : "we");
        show->json_path = show->json != NULL ? path : NULL;
    }
    return path == NULL || show->json != NULL || cannot(show, path);
}

static bool begin_report(cli_show *show, const char *path)
{
    show->report_path = path;
    show->plain = show->plain && !is_output(path);
    if (path == NULL) {
        return true;
    }
    const char *obstacle = is_output(path) ? NULL : cli_report_obstacle(path);
    if (obstacle != NULL) {
        return cannot_because(show, path, obstacle);
    }
    return cli_history_init(&show->history, show->job->method) || cannot(show, path);
}

bool cli_show_begin(cli_show *show, const shoal_train_options *job, const cli_settings *settings,
                    const cli_show_options *options)
{
    *show = (cli_show){.job = job, .settings = settings, .plain = !options->quiet};
    if (!cli_output_begin(&show->output)) {
        return false;
    }
    if (begin_report(show, options->report) && begin_json(show, options->json) &&
        (options->tensorboard == NULL || cli_tensorboard_open(&show->events, job->method, options->tensorboard) ||
         cannot(show, options->tensorboard))) {
        show->terminal = show->plain && cli_progress_possible();
        cli_progress_init(&show->progress);
        return true;
    }
    if (show->json_path != NULL) {
        fclose(show->json);
    }
    cli_history_fini(&show->history);
    (void)cli_output_end(&show->output);
    return false;
}

/* Adds what a resumed job did before, so that the whole job is shown. */
static shoal_train_event of_whole_job(cli_show *show, const shoal_train_event *event)
{
    shoal_train_event e = *event;
    if (event->past != NULL) {
        show->past = event->past->so_far;
    }
    e.so_far.seconds += show->past.seconds;
    e.so_far.train_seconds += show->past.train_seconds;
    e.so_far.deaths += show->past.deaths;
    return e;
}

bool cli_show_event(cli_show *show, const shoal_train_event *of_this_call)
{
    const shoal_train_event whole = of_whole_job(show, of_this_call), *event = &whole;
    bool tick = event->kind == SHOAL_TRAIN_TICK;
    show->saved = show->saved || event->kind == SHOAL_TRAIN_SAVE;
    if (show->report_path != NULL && !cli_history_event(&show->history, event)) {
        errno = ENOMEM;
        cannot(show, show->report_path);
    } else if (show->report_path != NULL && !is_output(show->report_path)) {
        refresh_report(show, event);
    }
    if (!cli_tensorboard_event(&show->events, event)) {
        cannot(show, show->events.path);
    }
    if (show->json != NULL && !tick) {
        show_json(show, event);
    }
    if (show->json_path != NULL && (fflush(show->json) != 0 || ferror(show->json))) {
        cannot(show, show->json_path);
    }
    if (show->plain && (!tick || show->terminal)) {
        show_plain(show, event);
    }
    return cli_output_send(&show->output);
}

/* Writes the report. why is the reason why the job failed, or NULL. Returns false and sets errno on failure. */
static bool write_report(cli_show *show, const char *why)
{
    return is_output(show->report_path)
               ? cli_report_put(show->output.file, show->job, show->settings, &show->history, why)
               : cli_report_write(show->report_path, show->job, show->settings, &show->history, why);
}

/* The job is done, but an output of it is not complete: the log must not end with the summary. */
static void cannot_end(cli_show *show, const char *path)
{
    char text[PATH_MAX + 200];
    int why = errno;
    snprintf(text, sizeof text, "cannot write %s: %s", path, strerror(why));
    if (show->json != NULL) {
        json_failed(show->json, SHOAL_EOS, text);
    }
    if (show->json != NULL && show->json_path == NULL) {
        (void)cli_output_send(&show->output); /* before cannot() marks this output as failed */
    }
    cannot_because(show, path, strerror(why));
}

cli_exit cli_show_end(cli_show *show, bool failed)
{
    const char *why = failed ? shoal_last_error_text() : NULL;
    cli_progress_end(&show->progress);
    if (failed) {
        cli_complain(&cli_train, CLI_FAILED, "%s", why);
    }
    if (failed && show->json != NULL) {
        json_failed(show->json, shoal_last_error(), why);
    }
    if (show->report_path != NULL && show->history.begun && !write_report(show, why)) {
        cannot_end(show, show->report_path);
    }
    if (!cli_tensorboard_close(&show->events)) {
        cannot_end(show, show->events.path);
    }
    if (show->json_path != NULL && fclose(show->json) != 0) {
        cannot(show, show->json_path);
    }
    cli_history_fini(&show->history);
    cli_exit sent = cli_output_end(&show->output);
    return failed ? CLI_FAILED : sent;
}
