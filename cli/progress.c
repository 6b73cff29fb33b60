#include "cli/progress.h"

#include "cli/train_text.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define FRAME_SECONDS 0.1 /* between two frames */
#define PACE_SECONDS 2.0  /* the time constant of the running mean of rates */

#define HIDE "\033[?25l"
#define SHOW "\033[?7h\033[?25h"
#define CUT "\033[?7l" /* do not wrap rows */
#define BREAK "\033[?7h"
#define CLEAR_LINE "\033[K"
#define CLEAR_BELOW "\033[J"

/* ---- the cursor is restored on every exit except by SIGKILL ---- */

static pid_t owner; /* forked workers inherit the handlers, but must leave the screen alone */

static const int ways_out[] = {SIGQUIT, SIGABRT, SIGSEGV, SIGBUS, SIGTSTP};

/* Restores the screen, then lets the signal take its default action. Ctrl-C, SIGTERM and SIGHUP are handled elsewhere:
 * they end the job in order. */
static void leave(int number)
{
    static const char out[] = CLEAR_BELOW SHOW, back[] = HIDE;
    struct sigaction usual = {.sa_handler = SIG_DFL}, kept;
    sigset_t only, before;
    int error = errno;
    bool ours = getpid() == owner;
    if (ours) {
        (void)!write(STDOUT_FILENO, out, sizeof out - 1);
    }
    sigemptyset(&only);
    sigaddset(&only, number);
    sigaction(number, &usual, &kept);
    raise(number);
    sigprocmask(SIG_UNBLOCK, &only, &before); /* the process ends or stops here; SIGTSTP returns after SIGCONT */
    sigprocmask(SIG_SETMASK, &before, NULL);
    sigaction(number, &kept, NULL);
    if (ours) {
        (void)!write(STDOUT_FILENO, back, sizeof back - 1);
    }
    errno = error;
}

/* Sets or resets the handlers, but only of signals that nothing else handles, as a sanitizer may. */
static void watch(bool on)
{
    for (size_t i = 0; i < sizeof ways_out / sizeof *ways_out; i++) {
        struct sigaction now, wanted = {.sa_handler = on ? leave : SIG_DFL, .sa_flags = SA_RESTART};
        if (sigaction(ways_out[i], NULL, &now) == 0 && now.sa_handler == (on ? SIG_DFL : leave)) {
            sigaction(ways_out[i], &wanted, NULL);
        }
    }
}

/* ---- the terminal ---- */

bool cli_progress_possible(void)
{
    const char *term = getenv("TERM");
    return isatty(STDOUT_FILENO) && term != NULL && term[0] != 0 && strcmp(term, "dumb") != 0;
}

static bool has_unicode(void)
{
    static const char *const names[] = {"LC_ALL", "LC_CTYPE", "LANG"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *value = getenv(names[i]);
        if (value != NULL && value[0] != 0) {
            return strcasestr(value, "utf-8") != NULL || strcasestr(value, "utf8") != NULL;
        }
    }
    return false;
}

void cli_progress_init(cli_progress *progress)
{
    const char *no_color = getenv("NO_COLOR");
    *progress = (cli_progress){.color = no_color == NULL || no_color[0] == 0, .unicode = has_unicode()};
}

/* Checks whether the job is in the background, where it must not write to a terminal that is in use. */
static bool in_background(void)
{
    pid_t group = tcgetpgrp(STDOUT_FILENO);
    return group >= 0 && group != getpgrp();
}

static void look_at_size(int *out_rows, int *out_columns)
{
    struct winsize size;
    bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 0 && size.ws_col > 0;
    *out_rows = known ? size.ws_row : 24;
    *out_columns = known ? size.ws_col : 80;
}

int cli_progress_columns(void)
{
    int rows, columns;
    look_at_size(&rows, &columns);
    return columns;
}

/* ---- a row ---- */

enum { LABEL, BAR, DONE, EPOCH, LOSS, RATE, LEFT, DEATHS, COLUMNS };

/* The columns in the order in which a narrow terminal drops them. */
static const int expendable[] = {EPOCH, DEATHS, BAR, RATE, LEFT, DONE, LOSS};

enum { BAR_LEAST = 4, GAP = 2 };

typedef struct layout {
    int width[COLUMNS]; /* 0: the column is dropped */
    bool color, unicode;
} layout;

typedef struct row {
    char label[24], epoch[24];
    double share, loss, rate, left; /* NaN: unknown, or meaningless here */
    bool trained;                   /* there is a loss, so NaN is its value */
    int64_t deaths;
} row;

static int total(const layout *l)
{
    int sum = 0;
    for (int i = 0; i < COLUMNS; i++) {
        sum += l->width[i] > 0 ? l->width[i] + GAP : 0;
    }
    return sum - GAP;
}

/* The last column of the terminal stays empty, because some terminals wrap when it is written to. */
static layout lay_out(const cli_progress *p, int columns, int label, int epoch, bool deaths)
{
    layout l = {
        .width = {label, BAR_LEAST, 5, epoch, 7, 9, 8, deaths ? 6 : 0}, .color = p->color, .unicode = p->unicode};
    int most = (columns < CLI_PROGRESS_COLUMNS ? columns : CLI_PROGRESS_COLUMNS) - 1;
    for (size_t i = 0; i < sizeof expendable / sizeof *expendable && total(&l) > most; i++) {
        l.width[expendable[i]] = 0;
    }
    if (l.width[BAR] > 0) {
        l.width[BAR] += most - total(&l);
    }
    if (l.width[LABEL] > most) {
        l.width[LABEL] = most > 0 ? most : 0;
    }
    return l;
}

static void paint(FILE *f, const layout *l, const char *code)
{
    if (l->color) {
        fprintf(f, "\033[%sm", code);
    }
}

static void put_bar(FILE *f, const layout *l, double share)
{
    int width = l->width[BAR], done = isfinite(share) ? (int)(share * width + 0.5) : 0;
    if (!isfinite(share)) {
        fprintf(f, "%*s", width, "");
        return;
    }
    paint(f, l, "36");
    for (int i = 0; i < width; i++) {
        if (i == done) {
            paint(f, l, "0;2");
        }
        fputs(i < done ? (l->unicode ? "━" : "#") : (l->unicode ? "─" : "-"), f);
    }
    paint(f, l, "0");
}

static void put_text(FILE *f, const layout *l, int column, const char *text)
{
    int width = l->width[column];
    if (width > 0) {
        fprintf(f, "%*s%*.*s", column == LABEL ? 0 : GAP, "", column == LABEL ? -width : width, width, text);
    }
}

static void end_row(FILE *f)
{
    fputs(CLEAR_LINE "\r\n", f);
}

static void put_row(FILE *f, const layout *l, const row *r)
{
    char text[CLI_NUMBER_TEXT];
    put_text(f, l, LABEL, r->label);
    if (l->width[BAR] > 0) {
        fprintf(f, "%*s", GAP, "");
        put_bar(f, l, r->share);
    }
    snprintf(text, sizeof text, isfinite(r->share) ? "%3.0f %%" : "", floor(r->share * 100));
    put_text(f, l, DONE, text);
    put_text(f, l, EPOCH, r->epoch);
    put_text(f, l, LOSS, cli_loss_text(r->loss, r->trained, text));
    put_text(f, l, RATE, cli_grouped(r->rate, text));
    put_text(f, l, LEFT, isfinite(r->left) ? cli_left(r->left, text) : "");
    if (l->width[DEATHS] > 0) {
        snprintf(text, sizeof text, "%lld", (long long)r->deaths);
        paint(f, l, r->deaths > 0 ? "33" : "2");
        put_text(f, l, DEATHS, text);
        paint(f, l, "0");
    }
    end_row(f);
}

static void put_head(FILE *f, const layout *l, const cli_terms *terms)
{
    char rate[CLI_NUMBER_TEXT];
    snprintf(rate, sizeof rate, "%s/s", terms->samples);
    paint(f, l, "2");
    put_text(f, l, LABEL, "");
    fprintf(f, "%*s", l->width[BAR] > 0 ? GAP + l->width[BAR] : 0, "");
    put_text(f, l, DONE, "done");
    put_text(f, l, EPOCH, terms->epoch);
    put_text(f, l, LOSS, "loss");
    put_text(f, l, RATE, rate);
    put_text(f, l, LEFT, "left");
    put_text(f, l, DEATHS, "deaths");
    paint(f, l, "0");
    end_row(f);
}

/* ---- what the rows say ---- */

/* Updates the rates. They begin with the first images, because the time to start processes says nothing about the rest
 * of the job. */
static void keep_pace(cli_progress *p, const shoal_train_event *event)
{
    double now = event->so_far.train_seconds, passed = now - p->paced_at;
    if (passed <= 0) {
        return;
    }
    double keep = exp(-passed / PACE_SECONDS);
    bool begun = p->weight > 0 || (event->so_far.images > 0 && p->paced_at > 0);
    p->weight = begun ? p->weight * keep + 1 - keep : 0;
    for (int i = 0; i < p->workers; i++) {
        cli_pace *pace = &p->paces[i];
        double rate = (double)(event->workers[i].images - pace->images) / passed;
        pace->sum = begun ? pace->sum * keep + (1 - keep) * rate : 0;
        pace->rate = begun ? pace->sum / p->weight : 0;
        pace->images = event->workers[i].images;
    }
    p->paced_at = now;
}

static double bounded(double share)
{
    return share < 0 ? 0 : share > 1 ? 1 : share;
}

static double time_for(double images, double rate)
{
    return images <= 0 ? 0 : rate > 0 ? images / rate : NAN;
}

static void write_epoch(char *text, size_t size, int64_t finished, int64_t all)
{
    snprintf(text, size, "%lld/%lld", (long long)(finished < all ? finished + 1 : all), (long long)all);
}

static row row_of_all(const cli_progress *p, const shoal_train_options *job, const shoal_train_event *event)
{
    const shoal_train_result *s = &event->so_far;
    double rate = 0, images = (double)s->images, all = (double)event->images_total;
    for (int i = 0; i < p->workers; i++) {
        rate += p->paces[i].rate;
    }
    row r = {.label = "all",
             .share = all > 0 ? bounded(images / all) : 0,
             .loss = event->loss,
             .trained = cli_trained(event->workers, event->workers_count),
             .rate = rate,
             .left = time_for(all - images, rate),
             .deaths = s->deaths};
    write_epoch(r.epoch, sizeof r.epoch, s->epochs, job->epochs);
    return r;
}

static row row_of_worker(const cli_progress *p, const shoal_train_options *job, const shoal_train_event *event, int i)
{
    const shoal_train_worker *w = &event->workers[i];
    bool even = cli_terms_of(job->method)->even;
    double all = (double)event->images_total / event->workers_count, rate = p->paces[i].rate;
    row r = {.share = even && all > 0 ? bounded((double)w->images / all) : NAN,
             .loss = w->loss,
             .trained = cli_trained(w, 1),
             .rate = rate,
             .left = even ? time_for(all - (double)w->images, rate) : NAN,
             .deaths = w->deaths};
    snprintf(r.label, sizeof r.label, "worker %d", i);
    write_epoch(r.epoch, sizeof r.epoch, w->epoch, job->epochs);
    return r;
}

/* Makes one row of the workers that have no row: sums, means, and the longest time. */
static row row_of_rest(const cli_progress *p, const shoal_train_options *job, const shoal_train_event *event, int from)
{
    row sum = {.left = 0};
    int n = event->workers_count - from, known = 0;
    for (int i = from; i < event->workers_count; i++) {
        row r = row_of_worker(p, job, event, i);
        sum.share += r.share / n;
        sum.rate += r.rate;
        sum.left = r.left <= sum.left ? sum.left : r.left;
        sum.deaths += r.deaths;
        sum.loss += r.trained ? r.loss : 0;
        known += r.trained;
    }
    sum.loss /= known;
    sum.trained = known > 0;
    snprintf(sum.label, sizeof sum.label, "%d more", n);
    return sum;
}

/* Writes a frame. Returns the number of its rows; the cursor is below them. */
static int put_frame(const cli_progress *p, FILE *f, const shoal_train_options *job, const shoal_train_event *event)
{
    int rows, columns;
    look_at_size(&rows, &columns);
    int room = rows - 3; /* an empty row and a line of text are above, and the cursor is below */
    int label = snprintf(NULL, 0, "worker %d", event->workers_count - 1);
    int epoch = snprintf(NULL, 0, "%lld/%lld", (long long)job->epochs, (long long)job->epochs);
    layout l = lay_out(p, columns, label, epoch > 5 ? epoch : 5, event->so_far.deaths > 0);
    row all = row_of_all(p, job, event);
    if (room < 4 || event->workers_count == 1) {
        bool head = room >= 2;
        if (head) {
            put_head(f, &l, cli_terms_of(job->method));
        }
        put_row(f, &l, &all);
        return head ? 2 : 1;
    }
    int shown = event->workers_count <= room - 2 ? event->workers_count : room - 3;
    put_head(f, &l, cli_terms_of(job->method));
    put_row(f, &l, &all);
    for (int i = 0; i < shown; i++) {
        row r = row_of_worker(p, job, event, i);
        put_row(f, &l, &r);
    }
    if (shown < event->workers_count) {
        row rest = row_of_rest(p, job, event, shown);
        put_row(f, &l, &rest);
    }
    return 2 + shown + (shown < event->workers_count);
}

/* ---- drawing ---- */

static bool begin(cli_progress *p, FILE *file, const shoal_train_event *event)
{
    if (p->hidden) {
        return true;
    }
    p->paces = calloc((size_t)event->workers_count, sizeof *p->paces);
    if (p->paces == NULL) {
        return false; /* the job goes on without the rows */
    }
    p->workers = event->workers_count;
    owner = getpid();
    watch(true);
    fputs(HIDE, file);
    p->hidden = true;
    return true;
}

void cli_progress_lift(cli_progress *progress, FILE *file)
{
    if (progress->standing) {
        fputs("\r" CLEAR_BELOW, file);
        progress->standing = false;
    }
}

void cli_progress_draw(cli_progress *progress, FILE *file, const shoal_train_options *job,
                       const shoal_train_event *event, bool now)
{
    double seconds = event->so_far.seconds;
    if ((!now && seconds < progress->drawn_at + FRAME_SECONDS) || in_background() || !begin(progress, file, event)) {
        return;
    }
    keep_pace(progress, event);
    fputs("\r" CUT, file);
    end_row(file);
    int rows = 1 + put_frame(progress, file, job, event);
    fprintf(file, CLEAR_BELOW BREAK "\033[%dA", rows);
    progress->standing = true;
    progress->drawn_at = seconds;
}

void cli_progress_end(cli_progress *progress)
{
    static const char clear[] = "\r" CLEAR_BELOW, show[] = SHOW;
    if (progress->standing) {
        (void)!write(STDOUT_FILENO, clear, sizeof clear - 1);
    }
    if (progress->hidden) {
        (void)!write(STDOUT_FILENO, show, sizeof show - 1);
        watch(false);
    }
    free(progress->paces);
    *progress = (cli_progress){.hidden = false};
}
