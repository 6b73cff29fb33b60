/* Writes the text of a report: the summary and the tables. */
#include "cli/cli.h"
#include "cli/machine.h"
#include "cli/report_data.h"

#include <shoal/version.h>

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <time.h>
#include <unistd.h>

enum { ROWS_OPEN = 40, WORKER_ROWS = 64 };

__attribute__((format(printf, 2, 3))) static void put(FILE *f, const char *format, ...)
{
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    cli_html_text(f, text);
}

/* ---- the summary ---- */

static void put_tile(FILE *f, const char *name, const char *value, const char *note)
{
    fputs("<div class=\"tile\"><dt>", f);
    cli_html_text(f, name);
    fputs("</dt><dd>", f);
    cli_html_text(f, value);
    fputs("</dd><dd class=\"note\">", f);
    cli_html_text(f, note);
    fputs("</dd></div>\n", f);
}

/* Writes a number with as many digits as a tile has room for. */
static const char *compact(double x, char buffer[CLI_NUMBER_TEXT])
{
    if (x < 1e7) {
        return cli_grouped(x, buffer);
    }
    snprintf(buffer, CLI_NUMBER_TEXT, x < 1e9 ? "%.4g M" : "%.4g G", x / (x < 1e9 ? 1e6 : 1e9));
    return buffer;
}

static const char *date_text(time_t time, char buffer[64])
{
    struct tm utc;
    buffer[0] = 0;
    if (gmtime_r(&time, &utc) != NULL) {
        strftime(buffer, 64, "%Y-%m-%d %H:%M:%S UTC", &utc);
    }
    return buffer;
}

static void put_heading(FILE *f, const cli_report_data *d)
{
    char when[64], host[256] = "";
    (void)!gethostname(host, sizeof host - 1);
    fprintf(f, "<header><p class=\"outcome %s\">%s</p><h1>", d->outcome, d->outcome);
    put(f, "%s on %s", cli_model_name(d->job), cli_data_name(d->job));
    fputs("</h1><p>", f);
    put(f, "Trained by %s with %d worker%s, %s %s on %s.", shoal_train_method_name(d->job->method), d->history->workers,
        d->history->workers == 1 ? "" : "s", d->history->past.seconds > 0 ? "resumed" : "started",
        date_text((time_t)d->history->started, when), host);
    if (d->running) { /* so that a reader after the program was killed sees that the page is old */
        put(f, " The job was running when this page was written, %s.", date_text(time(NULL), when));
    }
    fputs("</p>", f);
    if (d->why != NULL) {
        fputs("<p class=\"why\">", f);
        cli_html_text(f, d->why);
        fputs("</p>", f);
    }
    if (cli_diverged(&d->history->result, d->history->last_seen, d->history->workers)) {
        fputs("<p class=\"why\">" CLI_DIVERGED "</p>", f);
    }
    fputs("</header>\n", f);
}

static void put_test(FILE *f, const cli_report_data *d)
{
    const shoal_train_result *r = &d->history->result;
    const cli_terms *terms = d->terms;
    char text[CLI_NUMBER_TEXT], note[96] = "not tested";
    if (!terms->tested) {
        snprintf(note, sizeof note, "of the last %" PRId64 " episodes", r->episodes < 100 ? r->episodes : 100);
    } else if (r->tested_epoch > 0) {
        snprintf(note, sizeof note, "on the test set, after %s %" PRId64, terms->epoch, r->tested_epoch);
    }
    put_tile(f, terms->score, cli_score_text(terms, cli_score(d->job->method, r), text), note);
    if (terms->tested) {
        put_tile(f, "test loss", cli_loss_text(r->test_loss, r->tested_epoch > 0, text), "mean over the test set");
    }
}

/* Says whether dead workers were started again. Only the last death can have ended the job. */
static const char *death_note(const cli_history *h)
{
    const cli_mark *newest = h->deaths.count > 0 ? cli_thin_at(&h->deaths, h->deaths.count - 1) : NULL;
    if (newest == NULL || !newest->last) {
        return newest == NULL ? "no worker was lost" : "each started again";
    }
    return h->deaths.seen > 1 ? "all but the last started again" : "not started again";
}

void cli_report_summary(FILE *file, const cli_report_data *data)
{
    const shoal_train_result *r = &data->history->result;
    const cli_terms *terms = data->terms;
    char text[CLI_NUMBER_TEXT], note[96];
    put_heading(file, data);
    fputs("<dl class=\"tiles\">\n", file);
    put_test(file, data);
    if (r->reached_epoch > 0) {
        cli_goal_text(data->job, r, note, sizeof note);
    } else {
        snprintf(note, sizeof note, "%" PRId64 " of %" PRId64 " %s", r->epochs, data->job->epochs, terms->epochs);
    }
    put_tile(file, "time", cli_duration(r->seconds, text), note);
    char each[CLI_NUMBER_TEXT];
    snprintf(note, sizeof note, "%s per worker", cli_grouped(r->images_per_second / data->history->workers, each));
    snprintf(text, sizeof text, "%s/s", terms->samples);
    put_tile(file, text, cli_grouped(r->images_per_second, each), note);
    put_tile(file, terms->samples, compact((double)r->images, text), "by all workers");
    cli_grouped((double)r->deaths, text);
    put_tile(file, "deaths", text, death_note(data->history));
    fputs("</dl>\n", file);
}

/* ---- tables ---- */

static void put_head(FILE *f, size_t count, const char *const *names)
{
    fputs("<thead><tr>", f);
    for (size_t i = 0; i < count; i++) {
        fputs("<th scope=\"col\">", f);
        cli_html_text(f, names[i]);
        fputs("</th>", f);
    }
    fputs("</tr></thead><tbody>\n", f);
}

static void put_cells(FILE *f, size_t count, const char *const *texts)
{
    fputs("<tr>", f);
    for (size_t i = 0; i < count; i++) {
        fputs(i == 0 ? "<th scope=\"row\">" : "<td>", f);
        cli_html_text(f, texts[i]);
        fputs(i == 0 ? "</th>" : "</td>", f);
    }
    fputs("</tr>\n", f);
}

static void put_epochs(FILE *f, const cli_report_data *d)
{
    const cli_terms *terms = d->terms;
    const cli_thin *list = &d->history->epochs;
    char rate[CLI_NUMBER_TEXT], text[7][CLI_NUMBER_TEXT];
    snprintf(rate, sizeof rate, "%s/s", terms->samples);
    fprintf(f, "<details class=\"wide\"%s><summary><h2>%c%s</h2>", list->count <= ROWS_OPEN ? " open" : "",
            terms->epochs[0] - 'a' + 'A', terms->epochs + 1);
    if ((int64_t)list->count < list->seen) {
        put(f, "%zu of %" PRId64 " are listed", list->count, list->seen);
    }
    fputs("</summary><div class=\"scroll\"><table id=\"epochs\" class=\"numbers\">", f);
    put_head(
        f, 7,
        (const char *const[]){terms->epoch, "time", terms->samples, "training loss", "test loss", terms->score, rate});
    for (size_t i = 0; i < list->count; i++) {
        const cli_epoch *e = cli_thin_at(list, i);
        put_cells(f, 7,
                  (const char *const[]){cli_grouped((double)e->epoch, text[0]), cli_duration(e->seconds, text[1]),
                                        cli_grouped((double)e->images, text[2]),
                                        cli_loss_text(e->loss, e->trained, text[3]),
                                        cli_loss_text(e->test_loss, terms->tested, text[4]),
                                        cli_score_text(terms, e->score, text[5]), cli_grouped(e->rate, text[6])});
    }
    fputs("</tbody></table></div></details>\n", f);
}

static void put_workers(FILE *f, const cli_report_data *d)
{
    const cli_history *h = d->history;
    char rate[CLI_NUMBER_TEXT], text[5][CLI_NUMBER_TEXT];
    snprintf(rate, sizeof rate, "%s/s", d->terms->samples);
    fputs("<section><h2>Workers</h2><div class=\"scroll\"><table id=\"workers\" class=\"numbers\">", f);
    put_head(f, 5, (const char *const[]){"worker", d->terms->samples, rate, "loss", "deaths"});
    for (int i = 0; i < h->workers && i < WORKER_ROWS; i++) {
        const shoal_train_worker *w = &h->last_seen[i];
        double pace = cli_worker_rate(w, h->result.train_seconds - h->past.train_seconds);
        put_cells(f, 5,
                  (const char *const[]){cli_grouped(i, text[0]), cli_grouped((double)w->images, text[1]),
                                        cli_grouped(pace, text[2]), cli_loss_text(w->loss, cli_trained(w, 1), text[3]),
                                        cli_grouped(w->deaths, text[4])});
    }
    fputs("</tbody></table>", f);
    if (h->workers > WORKER_ROWS) {
        put(f, "and %d more", h->workers - WORKER_ROWS);
    }
    fputs("</div></section>\n", f);
}

static void put_event(FILE *f, const char *kind, double seconds, const char *text)
{
    char when[CLI_NUMBER_TEXT];
    fprintf(f, "<tr class=\"%s\"><th scope=\"row\">%s</th><td>", kind, cli_duration(seconds, when));
    cli_html_text(f, text);
    fputs("</td></tr>\n", f);
}

/* Prints deaths and checkpoints, merged in the order of time. */
static void put_events(FILE *f, const cli_report_data *d)
{
    const cli_thin *deaths = &d->history->deaths, *saves = &d->history->saves;
    char text[400];
    fputs("<section><h2>Events</h2><div class=\"scroll\"><table id=\"events\"><tbody>\n", f);
    put_event(f, "begin", d->history->begun_at,
              d->history->past.seconds > 0 ? "the job was resumed: all workers are started again"
                                           : "all workers are started");
    for (size_t i = 0, j = 0; i < deaths->count || j < saves->count;) {
        const cli_mark *death = i < deaths->count ? cli_thin_at(deaths, i) : NULL;
        const cli_mark *save = j < saves->count ? cli_thin_at(saves, j) : NULL;
        bool first = save == NULL || (death != NULL && death->seconds <= save->seconds);
        if (first) {
            snprintf(text, sizeof text, "worker %d died (%s) and was %sstarted again", death->worker, death->text,
                     death->last ? "not " : "");
        } else {
            snprintf(text, sizeof text, "checkpoint written to %s", save->text);
        }
        put_event(f, first ? "death" : "save", first ? death->seconds : save->seconds, text);
        *(first ? &i : &j) += 1;
    }
    snprintf(text, sizeof text, "%s%s%s", d->outcome, d->why != NULL ? ": " : "", d->why != NULL ? d->why : "");
    put_event(f, d->outcome, d->end, text);
    fputs("</tbody></table>", f);
    int64_t left = deaths->seen + saves->seen - (int64_t)(deaths->count + saves->count);
    if (left > 0) {
        put(f, "and %" PRId64 " more between them", left);
    }
    fputs("</div></section>\n", f);
}

static void put_pair(FILE *f, const char *name, const char *text)
{
    fputs("<tr><th scope=\"row\">", f);
    cli_html_text(f, name);
    fputs("</th><td>", f);
    cli_html_text(f, text);
    fputs("</td></tr>\n", f);
}

static void put_machine(FILE *f)
{
    cli_machine m;
    char size[CLI_SIZE_TEXT], text[64];
    cli_machine_read(&m);
    fputs("<section><h2>Machine</h2><table id=\"machine\"><tbody>\n", f);
    put_pair(f, "processor", m.processor[0] != 0 ? m.processor : "unknown");
    snprintf(text, sizeof text, "%u of %u", m.cpus, m.cpus_online);
    put_pair(f, "cores", text);
    put_pair(f, "vectors", m.features[0] != 0 ? m.features : "none");
    put_pair(f, "memory", cli_size(m.memory, size));
    put_pair(f, "kernel", m.kernel);
    put_pair(f, "shoal", SHOAL_VERSION);
    fputs("</tbody></table></section>\n", f);
}

static void put_settings(FILE *f, const cli_report_data *d)
{
    fputs("<section><h2>Configuration</h2><dl class=\"pairs\" id=\"settings\">\n", f);
    for (size_t i = 0; i < d->settings->count; i++) {
        fputs("<div><dt>", f);
        cli_html_text(f, d->settings->all[i].name);
        fputs("</dt><dd>", f);
        cli_html_text(f, d->settings->all[i].text);
        fputs("</dd></div>\n", f);
    }
    fputs("</dl></section>\n", f);
}

void cli_report_tables(FILE *file, const cli_report_data *data)
{
    put_epochs(file, data);
    fputs("<div class=\"columns\">\n", file);
    put_workers(file, data);
    put_events(file, data);
    put_settings(file, data);
    put_machine(file);
    fputs("</div>\n", file);
}
