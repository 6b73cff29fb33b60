/* Draws the rows that change on a terminal while a job runs: one for the whole job and one for each worker.
 *
 * Between two calls the hidden cursor is at the beginning of the first row. A terminal that is resized may wrap the
 * rows, cut them or leave them as they are. In each case everything from the cursor on belongs to the rows: the next
 * frame overwrites it and clears the rest. Some terminals (tmux) push one row off the top for each row that they wrap.
 * So rows are at most CLI_PROGRESS_COLUMNS wide, and a terminal of that width wraps none. While a frame is written,
 * wrapping is off, so a frame made for a wider terminal does no harm. A frame is one text, which the caller sends in
 * one write.
 */
#ifndef CLI_PROGRESS_H
#define CLI_PROGRESS_H

#include <shoal/train.h>

#include <stdbool.h>
#include <stdio.h>

#define CLI_PROGRESS_COLUMNS 60 /* this width is enough for all columns; more is not used */

/* The speed of one worker. */
typedef struct cli_pace {
    double sum;  /* of rates, weighted: newer ones count more */
    double rate; /* images per second: sum divided by the sum of the weights */
    int64_t images;
} cli_pace;

typedef struct cli_progress {
    bool color, unicode;
    bool hidden;     /* the cursor is hidden */
    bool standing;   /* rows are on the screen */
    double drawn_at; /* seconds of the job */
    double paced_at; /* train_seconds of the job */
    double weight;   /* sum of the weights in paces */
    cli_pace *paces;
    int workers;
} cli_progress;

/* Checks whether standard output is a terminal that can show the rows. */
bool cli_progress_possible(void);
void cli_progress_init(cli_progress *progress);

/* Returns the width of the terminal. */
int cli_progress_columns(void);

/* Removes the rows, so that text can be written. The next draw puts them below it. */
void cli_progress_lift(cli_progress *progress, FILE *file);

/* Draws the rows, at most ten times per second unless `now`. */
void cli_progress_draw(cli_progress *progress, FILE *file, const shoal_train_options *job,
                       const shoal_train_event *event, bool now);

/* Removes the rows and shows the cursor again, at once. The caller has already sent what it wrote to `file`. */
void cli_progress_end(cli_progress *progress);

#endif
