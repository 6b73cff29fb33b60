/* Prints the row of an epoch, and the tables at the end of a job. */
#include "cli/train_show.h"
#include "cli/train_text.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>

enum { WORKER_ROWS = 16, CELLS_MOST = 6 };

/* ---- rows of cells ---- */

/* A column and its text in one row. Columns are as narrow as possible, so that a row fits into 60 columns: a terminal
 * that is made narrower wraps longer rows, and some then push rows off the top. */
typedef struct cell {
    const char *name;
    int width; /* at least; 0: the column does not exist */
    int keep;  /* on a narrow terminal, the columns with the smallest numbers are dropped first */
    char text[CLI_NUMBER_TEXT];
} cell;

/* Returns the bits of the columns that fit. columns 0: all fit. */
static unsigned choose_cells(const cell *cells, int count, int columns)
{
    unsigned shown = 0;
    int width = -1;
    for (int i = 0; i < count; i++) {
        shown |= cells[i].width > 0 ? 1u << i : 0;
        width += cells[i].width > 0 ? cells[i].width + 1 : 0;
    }
    for (int keep = 0; columns > 0 && width >= columns && keep < count; keep++) {
        for (int i = 0; i < count; i++) {
            if (cells[i].keep == keep && cells[i].width > 0 && (shown & ~(1u << i)) != 0) {
                shown &= ~(1u << i);
                width -= cells[i].width + 1;
            }
        }
    }
    return shown;
}

static void put_cells(FILE *f, const cell *cells, int count, unsigned shown, bool head)
{
    bool first = true;
    for (int i = 0; i < count; i++) {
        if (shown >> i & 1) {
            fprintf(f, "%s%*s", first ? "" : " ", cells[i].width, head ? cells[i].name : cells[i].text);
            first = false;
        }
    }
    fputc('\n', f);
}

unsigned cli_print_epoch(FILE *file, const shoal_train_options *job, const shoal_train_event *event, int columns,
                         unsigned before)
{
    const cli_terms *terms = cli_terms_of(job->method);
    const shoal_train_result *r = &event->so_far;
    char rate[CLI_NUMBER_TEXT];
    snprintf(rate, sizeof rate, "%s/s", terms->samples);
    int epoch = snprintf(NULL, 0, "%" PRId64 "/%" PRId64, job->epochs, job->epochs);
    cell cells[CELLS_MOST] = {{terms->epoch, epoch < 7 ? 7 : epoch, 5, ""},
                              {"loss", 7, 2, ""},
                              {"test loss", terms->tested ? 9 : 0, 3, ""},
                              {terms->score, (int)strlen(terms->score), 4, ""},
                              {rate, 9, 0, ""},
                              {"time", 11, 1, ""}};
    snprintf(cells[0].text, CLI_NUMBER_TEXT, "%" PRId64 "/%" PRId64, r->epochs, job->epochs);
    cli_loss_text(event->loss, cli_trained(event->workers, event->workers_count), cells[1].text);
    cli_loss_text(r->test_loss, r->tested_epoch > 0, cells[2].text);
    cli_score_text(terms, cli_score(job->method, r), cells[3].text);
    cli_grouped(r->images_per_second, cells[4].text);
    cli_duration(r->seconds, cells[5].text);
    unsigned shown = choose_cells(cells, CELLS_MOST, columns);
    if (shown != before) {
        fputc('\n', file);
        put_cells(file, cells, CELLS_MOST, shown, true);
    }
    put_cells(file, cells, CELLS_MOST, shown, false);
    return shown;
}

static void show_workers(FILE *f, const cli_show *show, const shoal_train_event *event, int columns)
{
    const cli_terms *terms = cli_terms_of(show->job->method);
    char rate[CLI_NUMBER_TEXT];
    snprintf(rate, sizeof rate, "%s/s", terms->samples);
    cell cells[] = {
        {"worker", 9, 4, ""}, {terms->samples, 13, 1, ""}, {rate, 11, 2, ""}, {"loss", 9, 3, ""}, {"deaths", 7, 0, ""}};
    int count = sizeof cells / sizeof *cells;
    unsigned shown = choose_cells(cells, count, columns);
    fputc('\n', f);
    put_cells(f, cells, count, shown, true);
    for (int i = 0; i < event->workers_count && i < WORKER_ROWS; i++) {
        const shoal_train_worker *w = &event->workers[i];
        snprintf(cells[0].text, CLI_NUMBER_TEXT, "%d", i);
        cli_grouped((double)w->images, cells[1].text);
        cli_grouped(cli_worker_rate(w, event->so_far.train_seconds - show->past.train_seconds), cells[2].text);
        cli_loss_text(w->loss, cli_trained(w, 1), cells[3].text);
        snprintf(cells[4].text, CLI_NUMBER_TEXT, "%d", w->deaths);
        put_cells(f, cells, count, shown, false);
    }
    if (event->workers_count > WORKER_ROWS) {
        fprintf(f, "  and %d more\n", event->workers_count - WORKER_ROWS);
    }
}

/* ---- the end ---- */

__attribute__((format(printf, 3, 4))) static void line(FILE *f, const char *name, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fprintf(f, "  %-12s ", name);
    vfprintf(f, format, arguments);
    fputc('\n', f);
    va_end(arguments);
}

/* Prints a sentence, with line breaks between words that fit the terminal. */
static void note(FILE *f, const char *text, int columns)
{
    enum { INDENT = 15 };
    size_t room = columns > INDENT + 20 ? (size_t)(columns - 1 - INDENT) : strlen(text);
    for (const char *name = "note"; *text != 0; name = "") {
        size_t length = strlen(text);
        if (length > room) {
            for (length = room; length > 0 && text[length] != ' '; length--) {
            }
        }
        line(f, name, "%.*s", (int)length, text);
        text += length + (text[length] == ' ');
    }
}

/* Prints "3 of 3", or "3 of 3 (12 passes over the set)" if each worker passes over the whole set, or "3" if the job
 * reached its goal. */
static void show_epochs(FILE *f, const cli_show *show, const shoal_train_event *event)
{
    const cli_terms *terms = cli_terms_of(show->job->method);
    const shoal_train_result *r = &event->so_far;
    bool whole = show->job->method == SHOAL_METHOD_HOGWILD && !show->job->hogwild.shard && event->workers_count > 1;
    char all[32] = "", passes[64] = "", goal[128];
    if (r->reached_epoch == 0) {
        snprintf(all, sizeof all, " of %" PRId64, show->job->epochs);
    }
    if (whole) {
        snprintf(passes, sizeof passes, " (%" PRId64 " passes over the set)", r->epochs * event->workers_count);
    }
    line(f, terms->epochs, "%" PRId64 "%s%s%s", r->epochs, all, passes, r->stopped ? ", stopped" : "");
    if (show->job->until > 0) {
        line(f, "goal", "%s", cli_goal_text(show->job, r, goal, sizeof goal));
    }
}

/* Prints the last test. A stopped job ends at once, without another test: the text says after which epoch the test
 * was. */
static void show_test(FILE *f, const cli_terms *terms, const shoal_train_result *r, double score)
{
    char text[CLI_NUMBER_TEXT], when[64] = "";
    if (terms->tested && r->stopped && r->tested_epoch == 0) {
        line(f, terms->score, "not tested: stopped in the first %s", terms->epoch);
        return;
    }
    if (terms->tested && r->stopped) {
        snprintf(when, sizeof when, " after %s %" PRId64, terms->epoch, r->tested_epoch);
    }
    if (r->tested_epoch > 0) {
        line(f, "test loss", "%s%s", cli_loss_text(r->test_loss, true, text), when);
    }
    if (isfinite(score)) {
        line(f, terms->score, "%s%s", cli_score_text(terms, score, text), when);
    }
}

static void show_results(FILE *f, const cli_show *show, const shoal_train_event *event)
{
    const cli_terms *terms = cli_terms_of(show->job->method);
    const shoal_train_result *r = &event->so_far;
    char text[2][CLI_NUMBER_TEXT];
    if (show->past.seconds > 0) {
        line(f, "time", "%s, %s of it since the job was resumed", cli_duration(r->seconds, text[0]),
             cli_duration(r->seconds - show->past.seconds, text[1]));
    } else {
        line(f, "time", "%s", cli_duration(r->seconds, text[0]));
    }
    bool trained = r->train_seconds > show->past.train_seconds; /* not if the job was finished already */
    if (trained && event->workers_count > 1) {
        line(f, "speed", "%s %s/s, %s per worker", cli_grouped(r->images_per_second, text[0]), terms->samples,
             cli_grouped(r->images_per_second / event->workers_count, text[1]));
    } else if (trained) {
        line(f, "speed", "%s %s/s", cli_grouped(r->images_per_second, text[0]), terms->samples);
    }
    show_test(f, terms, r, cli_score(show->job->method, r));
    line(f, "deaths", r->deaths > 0 ? "%" PRId64 ", each started again" : "%" PRId64, r->deaths);
}

/* Prints an option with its path. A path with other characters than these is quoted for the shell. */
static void show_option(FILE *f, const char *option, const char *path)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-+=:,@%";
    fprintf(f, " --%s ", option);
    if (path[strspn(path, plain)] == 0) {
        fputs(path, f);
        return;
    }
    fputc('\'', f);
    for (const char *c = path; *c != 0; c++) {
        fputs(*c == '\'' ? "'\\''" : (char[]){*c, 0}, f);
    }
    fputc('\'', f);
}

/* Prints the command that continues a stopped job and its outputs. */
static void show_continue(FILE *f, const cli_show *show)
{
    fputs("  continue with: shoal train", f);
    show_option(f, "resume", show->job->save);
    if (show->report_path != NULL) {
        show_option(f, "report", show->report_path);
    }
    if (show->json_path != NULL) {
        show_option(f, "json", show->json_path);
    }
    fputc('\n', f);
}

void cli_print_summary(FILE *file, const cli_show *show, const shoal_train_event *event, int columns)
{
    const shoal_train_options *o = show->job;
    if (event->workers_count > 1) {
        show_workers(file, show, event, columns);
    }
    fputc('\n', file);
    line(file, "method", "%s", shoal_train_method_name(o->method));
    line(file, "model", "%s", cli_model_name(o));
    line(file, "data", "%s", cli_data_name(o));
    line(file, "workers", "%d", event->workers_count);
    show_epochs(file, show, event);
    show_results(file, show, event);
    if (cli_diverged(&event->so_far, event->workers, event->workers_count)) {
        note(file, CLI_DIVERGED, columns);
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
    if (show->saved && event->so_far.stopped) {
        show_continue(file, show);
    }
}
