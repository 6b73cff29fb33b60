#include "cli/history.h"

#include "cli/train_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    SAMPLES = 1024, /* one or two for each pixel of a curve */
    EPOCHS = 1024,
    MARKS = 128,
};

bool cli_thin_init(cli_thin *list, size_t size, size_t room)
{
    *list = (cli_thin){.size = size, .room = room, .stride = 1, .entries = calloc(room, size)};
    return list->entries != NULL;
}

void cli_thin_fini(cli_thin *list)
{
    free(list->entries);
    *list = (cli_thin){.size = 0};
}

void *cli_thin_next(cli_thin *list)
{
    int64_t number = list->seen++;
    bool passing = list->count > 0 && (number - 1) % list->stride != 0; /* the next entry replaces the last one */
    if (!passing && list->count == list->room) {
        for (size_t i = 1; i < list->room / 2; i++) {
            memcpy(list->entries + i * list->size, list->entries + 2 * i * list->size, list->size);
        }
        list->count = list->room / 2;
        list->stride *= 2;
    }
    list->count += passing ? 0 : 1;
    return list->entries + (list->count - 1) * list->size;
}

const void *cli_thin_at(const cli_thin *list, size_t i)
{
    return list->entries + i * list->size;
}

bool cli_history_init(cli_history *history, shoal_train_method method)
{
    *history = (cli_history){.method = method, .started = (int64_t)time(NULL)};
    return cli_thin_init(&history->epochs, sizeof(cli_epoch), EPOCHS) &&
           cli_thin_init(&history->deaths, sizeof(cli_mark), MARKS) &&
           cli_thin_init(&history->saves, sizeof(cli_mark), MARKS);
}

void cli_history_fini(cli_history *history)
{
    cli_thin_fini(&history->samples);
    cli_thin_fini(&history->epochs);
    cli_thin_fini(&history->deaths);
    cli_thin_fini(&history->saves);
    free(history->last_seen);
    history->last_seen = NULL;
}

static bool begin(cli_history *h, const shoal_train_event *event)
{
    size_t n = (size_t)event->workers_count;
    h->workers = event->workers_count;
    h->last_seen = calloc(n, sizeof *h->last_seen);
    h->begun = h->last_seen != NULL && cli_thin_init(&h->samples, sizeof(cli_sample) + n * sizeof(int64_t), SAMPLES);
    return h->begun;
}

static void add_sample(cli_history *h, const shoal_train_event *event)
{
    cli_sample *s = cli_thin_next(&h->samples);
    s->seconds = event->so_far.seconds;
    s->trained = event->so_far.train_seconds;
    s->loss = event->loss;
    s->images = event->so_far.images;
    for (int i = 0; i < h->workers; i++) {
        s->by_worker[i] = event->workers[i].images;
    }
}

static void add_epoch(cli_history *h, const shoal_train_event *event)
{
    const shoal_train_result *r = &event->so_far;
    cli_epoch *e = cli_thin_next(&h->epochs);
    *e = (cli_epoch){.epoch = r->epochs,
                     .images = r->images,
                     .seconds = r->seconds,
                     .rate = r->images_per_second,
                     .loss = event->loss,
                     .test_loss = r->test_loss,
                     .score = cli_score(h->method, r),
                     .trained = cli_trained(event->workers, event->workers_count)};
}

/* Adds the past epochs of a resumed job, each as a sample too. What each worker did in them is not recorded: its share
 * of the whole is a good guess, and exact where workers have parts of a set. */
static void add_past(cli_history *h, const shoal_train_event *event)
{
    const shoal_train_past *past = event->past;
    double all = 0;
    for (int i = 0; i < h->workers; i++) {
        all += (double)event->workers[i].images_before;
    }
    for (int64_t k = 0; k < past->count; k++) {
        const shoal_train_epoch *e = &past->epochs[k];
        shoal_train_event epoch = {
            .kind = SHOAL_TRAIN_EPOCH, .so_far = e->so_far, .loss = e->loss, .workers = event->workers};
        cli_sample *s = cli_thin_next(&h->samples);
        *s = (cli_sample){.seconds = e->so_far.seconds,
                          .trained = e->so_far.train_seconds,
                          .loss = e->loss,
                          .images = e->so_far.images};
        for (int i = 0; i < h->workers; i++) {
            double share = all > 0 ? (double)event->workers[i].images_before / all : 0;
            s->by_worker[i] = (int64_t)(share * (double)e->so_far.images);
        }
        add_epoch(h, &epoch);
    }
    h->past = past->so_far;
}

static void add_mark(cli_thin *list, const shoal_train_event *event)
{
    cli_mark *m = cli_thin_next(list);
    m->seconds = event->so_far.seconds;
    m->worker = event->worker;
    m->last = event->kind == SHOAL_TRAIN_DEATH && !cli_started_again(event);
    snprintf(m->text, sizeof m->text, "%s", event->text);
}

bool cli_history_event(cli_history *h, const shoal_train_event *event)
{
    if (!h->begun && !begin(h, event)) {
        return false;
    }
    switch (event->kind) {
    case SHOAL_TRAIN_BEGIN:
        if (event->past != NULL) {
            add_past(h, event);
        }
        h->begun_at = event->so_far.seconds;
        add_sample(h, event);
        break;
    case SHOAL_TRAIN_TICK: add_sample(h, event); break;
    case SHOAL_TRAIN_EPOCH:
        add_sample(h, event);
        add_epoch(h, event);
        break;
    case SHOAL_TRAIN_DEATH: add_mark(&h->deaths, event); break;
    case SHOAL_TRAIN_SAVE: add_mark(&h->saves, event); break;
    case SHOAL_TRAIN_SUMMARY: h->done = true; break;
    default: break;
    }
    memcpy(h->last_seen, event->workers, (size_t)h->workers * sizeof *h->last_seen);
    h->result = event->so_far;
    h->loss = event->loss;
    return true;
}
