#include "cli/report_data.h"

#include "cli/cli.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Rates are means over bins of time. Shorter bins would have too few batches; more bins would not be visible. */
#define BIN_SECONDS 0.5
#define BIN_SECONDS_LEAST 0.1 /* so that a short job has several */
#define BINS_MOST 60.0
#define BINS_FEW 8.0

/* ---- rates ---- */

static const cli_sample *sample(const cli_history *h, size_t i)
{
    return cli_thin_at(&h->samples, i);
}

/* What a worker had done at a point in time. */
typedef struct point {
    double images, trained;
} point;

/* Interpolates between two samples. *at is where the last call found its samples; calls must have increasing times. */
static point point_at(const cli_history *h, int worker, double seconds, size_t *at)
{
    while (*at + 2 < h->samples.count && sample(h, *at + 1)->seconds < seconds) {
        ++*at;
    }
    const cli_sample *a = sample(h, *at), *b = sample(h, *at + 1);
    double span = b->seconds - a->seconds, share = span > 0 ? (seconds - a->seconds) / span : 1;
    share = share < 0 ? 0 : share > 1 ? 1 : share;
    double images = (double)a->by_worker[worker], next = (double)b->by_worker[worker];
    return (point){images + share * (next - images), a->trained + share * (b->trained - a->trained)};
}

/* Returns the training time after which a worker did nothing more. */
static double done_at(const cli_history *h, int worker)
{
    size_t i = h->samples.count - 1;
    while (i > 0 && sample(h, i - 1)->by_worker[worker] == sample(h, i)->by_worker[worker]) {
        i--;
    }
    return sample(h, i)->trained;
}

/* Computes the rate of a worker in each bin, over the time in which workers trained: tests in between do not count. A
 * worker has no rate after its last image, and none in a bin in which it trained for less than a quarter. */
static void fill_rate(const cli_report_data *d, int worker, double *out_rate)
{
    const cli_history *h = d->history;
    double first = sample(h, 0)->seconds, last = sample(h, h->samples.count - 1)->seconds, done = done_at(h, worker);
    double width = (last - first) / (double)d->bins;
    size_t at = 0;
    point before = point_at(h, worker, first, &at);
    for (size_t i = 0; i < d->bins; i++) {
        double from = first + width * (double)i;
        point now = point_at(h, worker, from + width, &at);
        double trained = (done < now.trained ? done : now.trained) - before.trained;
        d->bin_seconds[i] = from + width / 2;
        out_rate[i] = trained < width / 4          ? NAN
                      : now.images > before.images ? (now.images - before.images) / trained
                                                   : 0;
        before = now;
    }
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Computes minimum, median and maximum of the workers' rates in each bin. */
static bool fill_spread(cli_report_data *d)
{
    size_t n = (size_t)d->history->workers;
    double *all = calloc(n * d->bins + n, sizeof *all), *column = all + n * d->bins;
    if (all == NULL) {
        return false;
    }
    for (size_t w = 0; w < n; w++) {
        fill_rate(d, (int)w, all + w * d->bins);
    }
    for (size_t i = 0; i < d->bins; i++) {
        size_t there = 0;
        for (size_t w = 0; w < n; w++) {
            column[there] = all[w * d->bins + i];
            there += isfinite(column[there]);
        }
        qsort(column, there, sizeof *column, by_value);
        d->rates[0][i] = there > 0 ? column[0] : NAN;
        d->rates[1][i] = there > 0 ? column[there / 2] : NAN;
        d->rates[2][i] = there > 0 ? column[there - 1] : NAN;
    }
    free(all);
    return true;
}

/* ---- columns ---- */

/* Makes a loss that exists but is not finite infinite, so that charts mark it. */
static double loss_of(double loss, bool there)
{
    return isfinite(loss) ? loss : there ? INFINITY : NAN;
}

static void fill_samples(cli_report_data *d)
{
    for (size_t i = 0; i < d->samples; i++) {
        const cli_sample *s = sample(d->history, i);
        d->seconds[i] = s->seconds;
        d->images[i] = (double)s->images;
        /* Before the first batch, also that of a resumed job, there is no loss. */
        d->loss[i] = loss_of(s->loss, i > 0 && s->images > sample(d->history, i - 1)->images);
    }
}

static void fill_epochs(cli_report_data *d)
{
    for (size_t i = 0; i < d->epochs; i++) {
        const cli_epoch *e = cli_thin_at(&d->history->epochs, i);
        d->epoch_seconds[i] = e->seconds;
        d->epoch_images[i] = (double)e->images;
        d->epoch_test_loss[i] = loss_of(e->test_loss, d->terms->tested);
        d->score[i] = e->score;
    }
}

static bool fill_rates(cli_report_data *d)
{
    if (d->bins == 0) {
        return true;
    }
    if (d->spread) {
        return fill_spread(d);
    }
    for (size_t i = 0; i < d->rates_count; i++) {
        fill_rate(d, (int)i, d->rates[i]);
    }
    return true;
}

static size_t count_bins(const cli_history *h)
{
    if (h->samples.count < 2) {
        return 0;
    }
    double seconds = sample(h, h->samples.count - 1)->seconds - sample(h, 0)->seconds;
    double few = fmin(BINS_FEW, floor(seconds / BIN_SECONDS_LEAST));
    double bins = fmin(BINS_MOST, fmax(few, floor(seconds / BIN_SECONDS)));
    return bins >= 1 ? (size_t)bins : seconds > 0;
}

bool cli_report_data_init(cli_report_data *data, const shoal_train_options *job, const cli_settings *settings,
                          const cli_history *history, const char *why)
{
    bool running = why == NULL && !history->done;
    *data = (cli_report_data){.job = job,
                              .settings = settings,
                              .history = history,
                              .terms = cli_terms_of(job->method),
                              .why = why,
                              .running = running,
                              .outcome = running                   ? "running"
                                         : why != NULL             ? "failed"
                                         : history->result.stopped ? "stopped"
                                                                   : "completed",
                              .end = history->result.seconds,
                              .samples = history->samples.count,
                              .epochs = history->epochs.count,
                              .bins = count_bins(history),
                              .spread = history->workers > CLI_REPORT_WORKERS};
    data->rates_count = data->spread ? 3 : (size_t)history->workers;
    data->numbers =
        calloc(3 * data->samples + 4 * data->epochs + (1 + data->rates_count) * data->bins + 1, sizeof(double));
    if (data->numbers == NULL) {
        return false;
    }
    double **columns[] = {&data->seconds,      &data->images,          &data->loss,  &data->epoch_seconds,
                          &data->epoch_images, &data->epoch_test_loss, &data->score, &data->bin_seconds};
    double *free_place = data->numbers;
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++) {
        *columns[i] = free_place;
        free_place += i < 3 ? data->samples : i < 7 ? data->epochs : data->bins;
    }
    for (size_t i = 0; i < data->rates_count; i++) {
        data->rates[i] = free_place + i * data->bins;
    }
    fill_samples(data);
    fill_epochs(data);
    return fill_rates(data);
}

void cli_report_data_fini(cli_report_data *data)
{
    free(data->numbers);
    data->numbers = NULL;
}

/* ---- JSON ---- */

static void put_column(FILE *f, const char *name, const double *x, size_t count, bool last)
{
    fprintf(f, "\"%s\":[", name);
    for (size_t i = 0; i < count; i++) {
        fputs(i > 0 ? "," : "", f);
        cli_json_number(f, x[i]);
    }
    fputs(last ? "]" : "],", f);
}

static void put_marks(FILE *f, const char *name, const cli_thin *list)
{
    fprintf(f, "\"%s\":[", name);
    for (size_t i = 0; i < list->count; i++) {
        const cli_mark *m = cli_thin_at(list, i);
        fprintf(f, "%s{\"seconds\":%.9g,\"worker\":%d,\"text\":", i > 0 ? "," : "", m->seconds, m->worker);
        cli_json_string(f, m->text);
        fputs("}", f);
    }
    fputs("],", f);
}

static void put_summary(FILE *f, const cli_report_data *d)
{
    const shoal_train_result *r = &d->history->result;
    const struct {
        const char *name;
        double x;
    } numbers[] = {
        {"epochs", (double)r->epochs},           {"seconds", r->seconds},
        {"images", (double)r->images},           {"images_per_second", r->images_per_second},
        {"train_loss", d->history->loss},        {"test_loss", r->test_loss},
        {"score", cli_score(d->job->method, r)}, {"deaths", (double)r->deaths},
    };
    fprintf(f, "\"summary\":{\"outcome\":\"%s\"", d->outcome);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        fprintf(f, ",\"%s\":", numbers[i].name);
        cli_json_number(f, numbers[i].x);
    }
    fputs("},", f);
}

static void put_columns(FILE *f, const cli_report_data *d)
{
    static const char *const spread[] = {"least", "median", "most"};
    fputs("\"samples\":{", f);
    put_column(f, "seconds", d->seconds, d->samples, false);
    put_column(f, "images", d->images, d->samples, false);
    put_column(f, "loss", d->loss, d->samples, true);
    fputs("},\"epochs\":{", f);
    put_column(f, "seconds", d->epoch_seconds, d->epochs, false);
    put_column(f, "images", d->epoch_images, d->epochs, false);
    put_column(f, "test_loss", d->epoch_test_loss, d->epochs, false);
    put_column(f, "score", d->score, d->epochs, true);
    fputs("},\"rates\":{", f);
    for (size_t i = 0; i < d->rates_count; i++) {
        char name[24];
        snprintf(name, sizeof name, "%zu", i);
        put_column(f, d->spread ? spread[i] : name, d->rates[i], d->bins, false);
    }
    put_column(f, "seconds", d->bin_seconds, d->bins, true);
    fputs("}", f);
}

static void put_all(FILE *f, const cli_report_data *d)
{
    fputs("{\"settings\":{", f);
    for (size_t i = 0; i < d->settings->count; i++) {
        fprintf(f, "%s\"%s\":", i > 0 ? "," : "", d->settings->all[i].name);
        cli_json_string(f, d->settings->all[i].text);
    }
    fputs("},", f);
    put_summary(f, d);
    put_marks(f, "deaths", &d->history->deaths);
    put_marks(f, "saves", &d->history->saves);
    put_columns(f, d);
    fputs("}", f);
}

/* In JSON a '<' occurs only inside strings. There it could begin "</script" or "<!--", so it is escaped. */
void cli_report_data_json(FILE *file, const cli_report_data *data)
{
    char *text = NULL;
    size_t size = 0;
    FILE *memory = open_memstream(&text, &size);
    if (memory != NULL) {
        put_all(memory, data);
        fclose(memory);
    }
    for (size_t i = 0; i < size; i++) {
        if (text[i] == '<') {
            fputs("\\u003c", file);
        } else {
            fputc(text[i], file);
        }
    }
    free(text);
}
