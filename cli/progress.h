/* The part of a terminal that changes while a job runs: a row for the whole and a row for each worker.
 *
 * Between two calls the cursor, hidden, stands at the beginning of the first row. So whatever a terminal does to the rows when it is
 * resized (break them, cut them, leave them), what stands from the cursor on is ours: the next frame is written over it and the rest is
 * cleared. Some terminals (tmux) push a row off the top for each that they break, so rows are no wider than
 * CLI_PROGRESS_COLUMNS allows, and a terminal that is made as narrow as that breaks none. While a frame is written, rows are cut at the edge and not broken, so one that was made for a wider terminal does no harm. A
 * frame is one text, which the caller sends in one write.
 */
#ifndef CLI_PROGRESS_H
#define CLI_PROGRESS_H

#include <shoal/train.h>

#include <stdbool.h>
#include <stdio.h>

#define CLI_PROGRESS_COLUMNS 60 /* a terminal that has so many shows all; more are not used */

/* Of one worker. */
typedef struct cli_pace {
    double sum;  /* of rates, weighted: the newer the more */
    double rate; /* images a second: sum by the sum of weights */
    int64_t images;
} cli_pace;

typedef struct cli_progress {
    bool color, unicode;
    bool hidden;     /* the cursor is */
    bool standing;   /* rows are on the screen */
    double drawn_at; /* seconds of the job */
    double paced_at; /* train_seconds of the job */
    double weight;   /* sum of the weights in paces */
    cli_pace *paces;
    int workers;
} cli_progress;

/* Whether standard output is a terminal that can do this. */
bool cli_progress_possible(void);
void cli_progress_init(cli_progress *progress);

/* Of the terminal. */
int cli_progress_columns(void);

/* Takes the rows away, so that text can be written; the next draw puts them below it. */
void cli_progress_lift(cli_progress *progress, FILE *file);

/* Puts the rows there, at most ten times a second unless `now`. */
void cli_progress_draw(cli_progress *progress, FILE *file, const shoal_train_options *job,
                       const shoal_train_event *event, bool now);

/* Takes the rows away and gives the cursor back, at once. What was to be written to `file` has been sent before. */
void cli_progress_end(cli_progress *progress);

#endif
