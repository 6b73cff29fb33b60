#include "cli/train_show.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool cli_show_begin(cli_show *show, const shoal_train_options *job, const char *json, bool quiet)
{
    *show = (cli_show){.job = job, .plain = !quiet};
    if (!cli_output_begin(&show->output)) {
        return false;
    }
    if (json != NULL && strcmp(json, "-") == 0) {
        show->json = show->output.file;
        show->plain = false;
    } else if (json != NULL) {
        show->json_path = json;
        show->json = fopen(json, "we");
        if (show->json == NULL) {
            cli_complain(&cli_train, CLI_FAILED, "cannot write %s: %s", json, strerror(errno));
            show->output.failed = true;
            (void)cli_output_end(&show->output);
            return false;
        }
    }
    const char *term = getenv("TERM");
    show->terminal = show->plain && isatty(STDOUT_FILENO) && term != NULL && strcmp(term, "dumb") != 0;
    return true;
}

/* 1234567 as "1,234,567". */
static const char *grouped(double x, char buffer[32])
{
    char digits[24];
    int length = snprintf(digits, sizeof digits, "%.0f", x > 0 && x < 1e15 ? x : 0), at = 0;
    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0) {
            buffer[at++] = ',';
        }
        buffer[at++] = digits[i];
    }
    buffer[at] = 0;
    return buffer;
}

static bool is_a3c(const cli_show *show)
{
    return show->job->method == SHOAL_METHOD_A3C;
}

static const char *data_name(const cli_show *show)
{
    if (is_a3c(show)) {
        return show->job->env != NULL ? show->job->env : "cartpole";
    }
    return show->job->data != NULL ? show->job->data : "mnist";
}

static const char *model_name(const cli_show *show)
{
    return show->job->model != NULL ? show->job->model : is_a3c(show) ? "actor-critic" : "mnist-cnn";
}

/* ---- JSON ---- */

static void json_number(FILE *file, const char *name, double x)
{
    fprintf(file, isfinite(x) ? ",\"%s\":%.9g" : ",\"%s\":null", name, x);
}

static void json_string(FILE *file, const char *name, const char *text)
{
    fprintf(file, ",\"%s\":", name);
    cli_json_string(file, text);
}

static void json_begin(const cli_show *show, const shoal_train_event *event)
{
    const shoal_train_options *o = event->options;
    FILE *f = show->json;
    json_string(f, "method", shoal_train_method_name(o->method));
    json_string(f, "model", model_name(show));
    json_string(f, is_a3c(show) ? "env" : "data", data_name(show));
    fprintf(f, ",\"workers\":%d,\"epochs\":%" PRId64 ",\"batch\":%" PRId64, event->workers_count, o->epochs, o->batch);
    json_number(f, "lr", o->lr);
    json_number(f, "momentum", o->momentum);
    if (is_a3c(show)) {
        fprintf(f, ",\"rollout\":%" PRId64 ",\"env_steps\":%" PRId64, o->rollout, o->env_steps);
        json_number(f, "gamma", o->gamma);
        json_number(f, "entropy", o->entropy);
        json_number(f, "until", o->until);
    }
    fprintf(f, ",\"seed\":%" PRIu64, o->seed);
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
    if (is_a3c(show)) {
        fprintf(f, ",\"episodes\":%" PRId64, r->episodes);
        json_number(f, "reward", r->reward);
    }
    fprintf(f, ",\"deaths\":%" PRId64, r->deaths);
    if (last) {
        fprintf(f, ",\"stopped\":%s", r->stopped ? "true" : "false");
    }
}

static void show_json(const cli_show *show, const shoal_train_event *event)
{
    static const char *const names[] = {
        [SHOAL_TRAIN_BEGIN] = "begin", [SHOAL_TRAIN_EPOCH] = "epoch",     [SHOAL_TRAIN_DEATH] = "death",
        [SHOAL_TRAIN_SAVE] = "save",   [SHOAL_TRAIN_SUMMARY] = "summary",
    };
    FILE *f = show->json;
    fprintf(f, "{\"event\":\"%s\"", names[event->kind]);
    switch (event->kind) {
    case SHOAL_TRAIN_BEGIN: json_begin(show, event); break;
    case SHOAL_TRAIN_EPOCH: json_result(show, event, false); break;
    case SHOAL_TRAIN_SUMMARY: json_result(show, event, true); break;
    case SHOAL_TRAIN_SAVE: json_string(f, "path", event->text); break;
    case SHOAL_TRAIN_DEATH:
        fprintf(f, ",\"worker\":%d", event->worker);
        json_number(f, "seconds", event->so_far.seconds);
        json_string(f, "text", event->text);
        fprintf(f, ",\"deaths\":%" PRId64, event->so_far.deaths);
        break;
    default: break;
    }
    fputs("}\n", f);
}

/* ---- lines ---- */

static void show_progress(cli_show *show, const shoal_train_event *event)
{
    const shoal_train_result *r = &event->so_far;
    char rate[32];
    double share = event->images_total > 0 ? (double)r->images / (double)event->images_total : 0;
    double left = r->images_per_second > 0 ? (double)(event->images_total - r->images) / r->images_per_second : 0;
    share = share < 1 ? share : 1;
    fprintf(show->output.file, "%3.0f %%  loss %.4f  %s images/s  %.0f s left", share * 100,
            isfinite(event->loss) ? event->loss : 0, grouped(r->images_per_second, rate), left > 0 ? left : 0);
    show->line = true;
}

static void show_epoch(cli_show *show, const shoal_train_event *event)
{
    const shoal_train_result *r = &event->so_far;
    char rate[32];
    if (is_a3c(show)) {
        fprintf(show->output.file, "%s steps, ", grouped((double)r->images, rate));
        fprintf(show->output.file, "%" PRId64 " episodes: reward %.1f, %s steps/s, %.1f s\n", r->episodes, r->reward,
                grouped(r->images_per_second, rate), r->seconds);
        return;
    }
    fprintf(show->output.file, "epoch %" PRId64 " of %" PRId64 ": loss %.4f, test loss %.4f, accuracy %.2f %%, ",
            r->epochs, show->job->epochs, event->loss, r->test_loss, r->test_accuracy * 100);
    fprintf(show->output.file, "%s images/s, %.1f s\n", grouped(r->images_per_second, rate), r->seconds);
}

static void show_table(cli_show *show, const shoal_train_event *event)
{
    enum { ROWS = 64 };
    const shoal_train_result *r = &event->so_far;
    FILE *f = show->output.file;
    char text[32];
    fputs("\n  worker       images      loss  deaths\n", f);
    for (int i = 0; i < event->workers_count && i < ROWS; i++) {
        const shoal_train_worker *w = &event->workers[i];
        fprintf(f, "  %6d %12s %9.4f %7d\n", i, grouped((double)w->images, text), w->loss, w->deaths);
    }
    if (event->workers_count > ROWS) {
        fprintf(f, "  and %d more\n", event->workers_count - ROWS);
    }
    fprintf(f, "\n  %-14s %s%s\n", "method", shoal_train_method_name(show->job->method), r->stopped ? ", stopped" : "");
    fprintf(f, "  %-14s %" PRId64 "\n", "epochs", r->epochs);
    fprintf(f, "  %-14s %.1f s\n", "time", r->seconds);
    fprintf(f, "  %-14s %s images/s\n", "speed", grouped(r->images_per_second, text));
    if (is_a3c(show)) {
        fprintf(f, "  %-14s %" PRId64 "\n  %-14s %.1f, %s %.1f\n", "episodes", r->episodes, "reward", r->reward,
                r->reward >= event->options->until ? "at least" : "below", event->options->until);
    }
    if (isfinite(r->test_loss)) {
        fprintf(f, "  %-14s %.4f\n  %-14s %.2f %%\n", "test loss", r->test_loss, "accuracy", r->test_accuracy * 100);
    }
}

static void show_plain(cli_show *show, const shoal_train_event *event)
{
    FILE *f = show->output.file;
    if (show->line) {
        fputs("\r\033[K", f);
        show->line = false;
    }
    switch (event->kind) {
    case SHOAL_TRAIN_BEGIN:
        fprintf(f, "%s: %d worker%s, %s on %s\n", shoal_train_method_name(show->job->method), event->workers_count,
                event->workers_count == 1 ? "" : "s", model_name(show), data_name(show));
        break;
    case SHOAL_TRAIN_TICK: show_progress(show, event); break;
    case SHOAL_TRAIN_EPOCH: show_epoch(show, event); break;
    case SHOAL_TRAIN_DEATH: fprintf(f, "worker %d: %s; started again\n", event->worker, event->text); break;
    case SHOAL_TRAIN_SAVE: fprintf(f, "saved to %s\n", event->text); break;
    case SHOAL_TRAIN_SUMMARY: show_table(show, event); break;
    }
}

/* ---- all ---- */

bool cli_show_event(cli_show *show, const shoal_train_event *event)
{
    bool tick = event->kind == SHOAL_TRAIN_TICK;
    if (show->json != NULL && !tick) {
        show_json(show, event);
    }
    if (show->plain && (!tick || show->terminal)) {
        show_plain(show, event);
    }
    if (show->json_path != NULL && (fflush(show->json) != 0 || ferror(show->json)) && !show->output.failed) {
        cli_complain(&cli_train, CLI_FAILED, "cannot write %s: %s", show->json_path, strerror(errno));
        show->output.failed = true;
    }
    return cli_output_send(&show->output);
}

cli_exit cli_show_end(cli_show *show, bool failed)
{
    if (show->line && show->output.file != NULL) {
        fputs("\n", show->output.file);
    }
    if (show->json_path != NULL && fclose(show->json) != 0 && !show->output.failed) {
        cli_complain(&cli_train, CLI_FAILED, "cannot write %s: %s", show->json_path, strerror(errno));
        show->output.failed = true;
    }
    cli_exit sent = cli_output_end(&show->output);
    return failed ? CLI_FAILED : sent;
}
