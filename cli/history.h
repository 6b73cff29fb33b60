/* What happened in a job, kept for the report. A job may take days: no list grows beyond a fixed room. */
#ifndef CLI_HISTORY_H
#define CLI_HISTORY_H

#include <shoal/train.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A list that is made coarser when it is full: every second entry is given up, and from then on every second is taken. The last entry
 * is always the newest one. Invariant: entry i, but for the last, is number i * stride of those that came. */
typedef struct cli_thin {
    size_t size, room; /* bytes of an entry; most entries, an even number */
    size_t count;
    int64_t seen, stride;
    char *entries;
} cli_thin;

bool cli_thin_init(cli_thin *list, size_t size, size_t room); /* false: no memory */
void cli_thin_fini(cli_thin *list);
void *cli_thin_next(cli_thin *list); /* where the next entry is to be written */
const void *cli_thin_at(const cli_thin *list, size_t i);

/* Where the job stood at a moment. */
typedef struct cli_sample {
    double seconds;
    double trained; /* seconds of these in which workers trained */
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
    shoal_train_result past; /* of a job that was resumed; zeros: it was not */
    double begun_at;         /* seconds of the whole job */
    bool begun, done;        /* the job has begun; it came to its summary */
} cli_history;

/* False: no memory. */
bool cli_history_init(cli_history *history, shoal_train_method method);
void cli_history_fini(cli_history *history);

/* False: no memory. */
bool cli_history_event(cli_history *history, const shoal_train_event *event);

#endif
