#include "cli/report.h"

#include "cli/atomic_file.h"
#include "cli/cli.h"
#include "cli/report_chart.h"
#include "cli/report_data.h"

#include <shoal/version.h>

#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* CMake makes them from report.css and report.js. */
extern const char cli_report_css[], cli_report_js[];

/* ---- charts ---- */

/* Makes the marks on the time axis: deaths, checkpoints, and the end if the job was stopped or failed. */
static cli_chart_mark *make_marks(const cli_report_data *d, size_t *out_count)
{
    const cli_thin *deaths = &d->history->deaths, *saves = &d->history->saves;
    cli_chart_mark *marks = calloc(deaths->count + saves->count + 1, sizeof *marks);
    size_t n = 0;
    for (size_t i = 0; marks != NULL && i < saves->count; i++) {
        const cli_mark *m = cli_thin_at(saves, i);
        marks[n++] = (cli_chart_mark){.kind = CLI_MARK_SAVE, .x = m->seconds, .text = "checkpoint"};
    }
    for (size_t i = 0; marks != NULL && i < deaths->count; i++) {
        const cli_mark *m = cli_thin_at(deaths, i);
        marks[n++] = (cli_chart_mark){.kind = CLI_MARK_DEATH, .x = m->seconds, .text = m->text};
    }
    if (marks != NULL && !d->running && strcmp(d->outcome, "completed") != 0) {
        marks[n++] = (cli_chart_mark){.kind = CLI_MARK_STOP, .x = d->end, .text = d->outcome};
    }
    *out_count = n;
    return marks;
}

static void put_loss(FILE *f, const cli_report_data *d, bool time, const cli_chart *base)
{
    const cli_curve curves[] = {
        {.name = "training",
         .x_key = time ? "samples.seconds" : "samples.images",
         .y_key = "samples.loss",
         .x = time ? d->seconds : d->images,
         .y = d->loss,
         .count = d->samples,
         .color = 1},
        {.name = "test",
         .x_key = time ? "epochs.seconds" : "epochs.images",
         .y_key = "epochs.test_loss",
         .x = time ? d->epoch_seconds : d->epoch_images,
         .y = d->epoch_test_loss,
         .count = d->epochs,
         .color = 2,
         .points = true},
    };
    cli_chart chart = *base;
    char title[64];
    snprintf(title, sizeof title, "Loss over %s", time ? "time" : d->terms->samples);
    chart.id = time ? "loss-time" : "loss-images";
    chart.title = title;
    chart.description = "Training loss, a running mean over all workers, and the loss on the test set.";
    chart.y_scale = CLI_SCALE_LOG;
    chart.curves = curves;
    chart.curves_count = 2;
    if (!time) {
        chart.x_name = d->terms->samples;
        chart.x_unit = CLI_UNIT_COUNT;
        chart.x_most = d->samples > 0 ? d->images[d->samples - 1] : 0;
        chart.marks_count = 0;
    }
    cli_chart_write(f, &chart);
}

static void put_score(FILE *f, const cli_report_data *d, const cli_chart *base)
{
    const cli_curve curve = {.name = d->terms->percent ? "test" : "",
                             .x_key = "epochs.seconds",
                             .y_key = "epochs.score",
                             .x = d->epoch_seconds,
                             .y = d->score,
                             .count = d->epochs,
                             .color = 2,
                             .points = true};
    cli_chart chart = *base;
    char title[64];
    snprintf(title, sizeof title, "%c%s over time", d->terms->score[0] - 'a' + 'A', d->terms->score + 1);
    chart.id = "score-time";
    chart.title = title;
    chart.description = "What the model reached when it was tested, once an epoch.";
    chart.y_unit = d->terms->percent ? CLI_UNIT_PERCENT : CLI_UNIT_PLAIN;
    chart.y_scale = CLI_SCALE_RANGE;
    chart.curves = &curve;
    chart.curves_count = 1;
    cli_chart_write(f, &chart);
}

static void put_rates(FILE *f, const cli_report_data *d, const cli_chart *base)
{
    cli_curve curves[CLI_REPORT_WORKERS];
    char names[CLI_REPORT_WORKERS][32], keys[CLI_REPORT_WORKERS][32], title[64];
    size_t n = d->spread ? 2 : d->rates_count;
    for (size_t i = 0; i < n; i++) {
        snprintf(names[i], sizeof names[i], "worker %zu", i);
        snprintf(keys[i], sizeof keys[i], "rates.%zu", i);
        curves[i] = (cli_curve){.name = names[i],
                                .x_key = "rates.seconds",
                                .y_key = keys[i],
                                .x = d->bin_seconds,
                                .y = d->rates[i],
                                .count = d->bins,
                                .color = (int)i + 1};
    }
    if (d->spread) {
        curves[0].name = "all workers";
        curves[0].y_key = "rates.most";
        curves[0].low = d->rates[0];
        curves[0].y = d->rates[2];
        curves[1].name = "median";
        curves[1].y_key = "rates.median";
        curves[1].y = d->rates[1];
        curves[1].color = 1;
    }
    cli_chart chart = *base;
    snprintf(title, sizeof title, "%c%s/s of each worker", d->terms->samples[0] - 'a' + 'A', d->terms->samples + 1);
    chart.id = "rates";
    chart.title = title;
    chart.description = "How fast each worker trained, over time.";
    chart.y_unit = CLI_UNIT_COUNT;
    chart.y_scale = CLI_SCALE_ZERO;
    chart.curves = curves;
    chart.curves_count = n;
    cli_chart_write(f, &chart);
}

static bool has_nan(const double *x, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (isinf(x[i])) {
            return true;
        }
    }
    return false;
}

/* Prints the legend of the kinds of marks that occur. */
static void put_legend(FILE *f, const cli_report_data *d, const cli_chart_mark *marks, size_t count)
{
    static const char *const texts[] = {
        [CLI_MARK_DEATH] =
            "<svg viewBox=\"-6 -10 12 12\" class=\"mark death\"><path d=\"M-5 -9h10l-5 9z\"/></svg> a worker "
            "died and was started again ",
        [CLI_MARK_SAVE] = "<svg viewBox=\"-6 -6 12 12\" class=\"mark save\"><path d=\"M0 -4.5l4.5 4.5l-4.5 4.5l-4.5 "
                          "-4.5z\"/></svg> checkpoint ",
        [CLI_MARK_STOP] =
            "<svg viewBox=\"-6 -10 12 12\" class=\"mark stop\"><path d=\"M-4 -8h8v8h-8z\"/></svg> the job "
            "was stopped or failed ",
    };
    bool seen[sizeof texts / sizeof *texts] = {false};
    for (size_t i = 0; i < count; i++) {
        seen[marks[i].kind] = true;
    }
    bool nan = has_nan(d->loss, d->samples) || has_nan(d->epoch_test_loss, d->epochs);
    fputs(count > 0 || nan ? "<p class=\"legend\">" : "", f);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        fputs(seen[i] ? texts[i] : "", f);
    }
    fputs(nan ? "<svg viewBox=\"-6 -6 12 12\"><path class=\"nan\" d=\"M0 0" CLI_CHART_NAN
                "\"/></svg> the loss is not a number "
              : "",
          f);
    fputs(count > 0 || nan ? "</p>\n" : "", f);
}

static void put_charts(FILE *f, const cli_report_data *d)
{
    cli_chart base = {.x_name = "time since the start of the job", .x_unit = CLI_UNIT_SECONDS, .x_most = d->end};
    cli_chart_mark *marks = make_marks(d, &base.marks_count);
    base.marks = marks;
    fputs("<div class=\"charts\">\n", f);
    put_loss(f, d, true, &base);
    put_loss(f, d, false, &base);
    put_score(f, d, &base);
    put_rates(f, d, &base);
    fputs("</div>\n", f);
    put_legend(f, d, marks, base.marks_count);
    free(marks);
}

/* ---- the page ---- */

#define RELOAD_SECONDS "5"

static void put_page(FILE *f, const cli_report_data *d)
{
    fputs("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
          "<meta name=\"color-scheme\" content=\"light dark\">\n"
          "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
          "script-src 'unsafe-inline'; img-src data:\">\n",
          f);
    fputs(d->running ? "<meta http-equiv=\"refresh\" content=\"" RELOAD_SECONDS "\">\n<title>" : "<title>", f);
    cli_html_text(f, shoal_train_method_name(d->job->method));
    fputs(": ", f);
    cli_html_text(f, cli_model_name(d->job));
    fputs(" on ", f);
    cli_html_text(f, cli_data_name(d->job));
    fprintf(f, "</title>\n<style>\n%s</style></head>\n<body><main>\n", cli_report_css);
    cli_report_summary(f, d);
    put_charts(f, d);
    cli_report_tables(f, d);
    fputs("<footer>Written by shoal train, version " SHOAL_VERSION
          ". The numbers of the curves are in this page as JSON, "
          "in the element <code>#run</code>.</footer>\n</main>\n<script type=\"application/json\" id=\"run\">",
          f);
    cli_report_data_json(f, d);
    fprintf(f, "</script>\n<script>\n%s</script>\n</body></html>\n", cli_report_js);
}

/* ---- the file ---- */

/* Finds the file itself, behind any links. Returns false and sets errno if the path is too long. */
static bool find_target(const char *path, char target[PATH_MAX])
{
    if (realpath(path, target) == NULL && snprintf(target, PATH_MAX, "%s", path) >= PATH_MAX) {
        errno = ENAMETOOLONG;
        return false;
    }
    return true;
}

const char *cli_report_obstacle(const char *path)
{
    char target[PATH_MAX];
    struct stat there;
    if (!find_target(path, target)) {
        return strerror(errno);
    }
    bool exists = stat(target, &there) == 0;
    if (!exists && errno != ENOENT) { /* such as a name that is too long */
        return strerror(errno);
    }
    if (exists && !S_ISREG(there.st_mode)) { /* renaming would replace a device by a file */
        return S_ISDIR(there.st_mode) ? strerror(EISDIR) : "not a regular file; use - for standard output";
    }
    return access(dirname(target), W_OK | X_OK) == 0 ? NULL : strerror(errno);
}

bool cli_report_put(FILE *file, const shoal_train_options *job, const cli_settings *settings,
                    const cli_history *history, const char *why)
{
    cli_report_data data;
    bool good = cli_report_data_init(&data, job, settings, history, why);
    if (good) {
        put_page(file, &data);
    }
    cli_report_data_fini(&data);
    return good;
}

bool cli_report_write(const char *path, const shoal_train_options *job, const cli_settings *settings,
                      const cli_history *history, const char *why)
{
    char target[PATH_MAX];
    cli_report_data data;
    cli_atomic_file file;
    if (!find_target(path, target) || !cli_atomic_file_begin(&file, target)) {
        return false;
    }
    bool good = cli_report_data_init(&data, job, settings, history, why);
    if (good) {
        put_page(file.file, &data);
    }
    /* A page of a running job is soon replaced: it must survive this process, but not a crash of the machine. */
    good = cli_atomic_file_end(&file, good && !data.running, good);
    cli_report_data_fini(&data);
    return good;
}
