/* The lines of epochs, and the tables at the end of a job. */
#include "cli/train_show.h"
#include "cli/train_words.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>

enum { WORKER_ROWS = 16 };

void cli_table_head(FILE *file, const shoal_train_options *job)
{
    const cli_words *words = cli_words_of(job->method);
    char rate[CLI_NUMBER_TEXT];
    snprintf(rate, sizeof rate, "%s/s", words->samples);
    fprintf(file, "\n%9s %9s %10s %12s %12s %12s\n", words->epoch, "loss", "test loss", words->score, rate, "time");
}

void cli_table_epoch(FILE *file, const shoal_train_options *job, const shoal_train_event *event)
{
    const cli_words *words = cli_words_of(job->method);
    const shoal_train_result *r = &event->so_far;
    char text[6][CLI_NUMBER_TEXT];
    snprintf(text[0], sizeof text[0], "%" PRId64 "/%" PRId64, r->epochs, job->epochs);
    fprintf(file, "%9s %9s %10s %12s %12s %12s\n", text[0],
            cli_loss_text(event->loss, cli_trained(event->workers, event->workers_count), text[1]),
            cli_loss_text(r->test_loss, r->tested_epoch > 0, text[2]),
            cli_score_text(words, cli_score(job->method, r), text[3]), cli_grouped(r->images_per_second, text[4]),
            cli_duration(r->seconds, text[5]));
}

static void show_workers(FILE *f, const cli_words *words, const shoal_train_event *event)
{
    const shoal_train_result *r = &event->so_far;
    char rate[CLI_NUMBER_TEXT], text[3][CLI_NUMBER_TEXT];
    snprintf(rate, sizeof rate, "%s/s", words->samples);
    fprintf(f, "\n%9s %12s %12s %9s %7s\n", "worker", words->samples, rate, "loss", "deaths");
    for (int i = 0; i < event->workers_count && i < WORKER_ROWS; i++) {
        const shoal_train_worker *w = &event->workers[i];
        fprintf(f, "%9d %12s %12s %9s %7d\n", i, cli_grouped((double)w->images, text[0]),
                cli_grouped(cli_worker_rate(w, r->train_seconds), text[1]),
                cli_loss_text(w->loss, cli_trained(w, 1), text[2]), w->deaths);
    }
    if (event->workers_count > WORKER_ROWS) {
        fprintf(f, "  and %d more\n", event->workers_count - WORKER_ROWS);
    }
}

__attribute__((format(printf, 3, 4))) static void line(FILE *f, const char *name, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fprintf(f, "  %-12s ", name);
    vfprintf(f, format, arguments);
    fputc('\n', f);
    va_end(arguments);
}

/* "3", or "3 (12 passes over the set)" where workers pass over the whole of it each. */
static void show_epochs(FILE *f, const cli_show *show, const shoal_train_event *event)
{
    const cli_words *words = cli_words_of(show->job->method);
    const shoal_train_result *r = &event->so_far;
    bool whole = show->job->method == SHOAL_METHOD_HOGWILD && !show->job->shard && event->workers_count > 1;
    const char *end = r->stopped ? ", stopped" : "";
    if (whole) {
        line(f, words->epochs, "%" PRId64 " of %" PRId64 " (%" PRId64 " passes over the set)%s", r->epochs,
             show->job->epochs, r->epochs * event->workers_count, end);
    } else {
        line(f, words->epochs, "%" PRId64 " of %" PRId64 "%s", r->epochs, show->job->epochs, end);
    }
}

/* A stop is prompt, so a job that was stopped is not tested once more: it says after which epoch it was. */
static void show_test(FILE *f, const cli_words *words, const shoal_train_result *r, double score)
{
    char text[CLI_NUMBER_TEXT], when[64] = "";
    if (words->tested && r->stopped && r->tested_epoch == 0) {
        line(f, words->score, "not tested: stopped in the first %s", words->epoch);
        return;
    }
    if (words->tested && r->stopped) {
        snprintf(when, sizeof when, " after %s %" PRId64, words->epoch, r->tested_epoch);
    }
    if (r->tested_epoch > 0) {
        line(f, "test loss", "%s%s", cli_loss_text(r->test_loss, true, text), when);
    }
    if (isfinite(score)) {
        line(f, words->score, "%s%s", cli_score_text(words, score, text), when);
    }
}

static void show_results(FILE *f, const cli_show *show, const shoal_train_event *event)
{
    const cli_words *words = cli_words_of(show->job->method);
    const shoal_train_result *r = &event->so_far;
    char text[2][CLI_NUMBER_TEXT];
    line(f, "time", "%s", cli_duration(r->seconds, text[0]));
    if (event->workers_count > 1) {
        line(f, "speed", "%s %s/s, %s a worker", cli_grouped(r->images_per_second, text[0]), words->samples,
             cli_grouped(r->images_per_second / event->workers_count, text[1]));
    } else {
        line(f, "speed", "%s %s/s", cli_grouped(r->images_per_second, text[0]), words->samples);
    }
    show_test(f, words, r, cli_score(show->job->method, r));
    line(f, "deaths", r->deaths > 0 ? "%" PRId64 ", each started again" : "%" PRId64, r->deaths);
}

void cli_table_summary(FILE *file, const cli_show *show, const shoal_train_event *event)
{
    const shoal_train_options *o = show->job;
    if (event->workers_count > 1) {
        show_workers(file, cli_words_of(o->method), event);
    }
    fputc('\n', file);
    line(file, "method", "%s", shoal_train_method_name(o->method));
    line(file, "model", "%s", cli_model_name(o));
    line(file, "data", "%s", cli_data_name(o));
    line(file, "workers", "%d", event->workers_count);
    show_epochs(file, show, event);
    show_results(file, show, event);
    if (cli_diverged(&event->so_far, event->workers, event->workers_count)) {
        line(file, "note", CLI_DIVERGED);
    }
    if (show->saved) {
        line(file, "checkpoint", "%s", o->save);
    }
    if (show->report_path != NULL) {
        line(file, "report", "%s", show->report_path);
    }
    if (show->events.path[0] != 0) {
        line(file, "events", "%s", show->events.path);
    }
}
