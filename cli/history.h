/* Records what happens in a job, for the report. A job may take days, so each list has a fixed maximum size. */
#ifndef CLI_HISTORY_H
#define CLI_HISTORY_H

#include <shoal/train.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A list that becomes coarser when it is full: it drops every second entry, and from then on keeps only every second
 * new one. The last entry is always the newest. Invariant: entry i, except the last, is number i * stride of all
 * entries that were added. */
typedef struct cli_thin {
    size_t size, room; /* the size of an entry in bytes; the maximum number of entries, which is even */
    size_t count;
    int64_t seen, stride;
    char *entries;
} cli_thin;

bool cli_thin_init(cli_thin *list, size_t size, size_t room); /* returns false if there is no memory */
void cli_thin_fini(cli_thin *list);
void *cli_thin_next(cli_thin *list); /* returns the place for the next entry */
const void *cli_thin_at(const cli_thin *list, size_t i);

/* The state of the job at a point in time. */
typedef struct cli_sample {
    double seconds;
    double trained; /* the part of seconds in which workers trained */
    double loss;
    int64_t images;
    int64_t by_worker[]; /* images */
} cli_sample;

typedef struct cli_epoch {
    int64_t epoch, images;
    double seconds, rate, loss, test_loss, score;
    bool trained; /* there is a loss */
} cli_epoch;

/* A death or a checkpoint. */
typedef struct cli_mark {
    double seconds;
    int worker;
    bool last; /* a death after which the worker was not started again */
    char text[240];
} cli_mark;

typedef struct cli_history {
    shoal_train_method method;
    int64_t started; /* time(2) */
    int workers;
    cli_thin samples, epochs, deaths, saves;
    shoal_train_worker *last_seen;
    shoal_train_result result;
    double loss;
    shoal_train_result past; /* what a resumed job did before; zeros if it is not resumed */
    double begun_at;         /* seconds of the whole job */
    bool begun, done;        /* the job has begun; its summary has come */
} cli_history;

/* Returns false if there is no memory. */
bool cli_history_init(cli_history *history, shoal_train_method method);
void cli_history_fini(cli_history *history);

/* Records an event. Returns false if there is no memory. */
bool cli_history_event(cli_history *history, const shoal_train_event *event);

#endif
