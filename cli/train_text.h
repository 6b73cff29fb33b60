/* How a job's numbers are called and written, in lines, tables, the report and event files alike. */
#ifndef CLI_TRAIN_TEXT_H
#define CLI_TRAIN_TEXT_H

#include <shoal/train.h>

#include <stdbool.h>
#include <stddef.h>

/* What differs from method to method. */
typedef struct cli_terms {
    const char *epoch, *epochs; /* "epoch" and "epochs" */
    const char *samples;        /* that are trained on: "images" */
    const char *rate_tag;       /* their rate as one word, for event files */
    const char *score;          /* what a test ends with: "accuracy" */
    const char *score_tag;      /* as one word with a path, for event files */
    bool tested;                /* on a test set */
    bool percent;               /* the score is a share */
    bool even;                  /* every worker has the same part of the work */
} cli_terms;

const cli_terms *cli_terms_of(shoal_train_method method);

/* The score of the last test; NaN when there was none. */
double cli_score(shoal_train_method method, const shoal_train_result *result);

/* Of a death: whether the worker is started again. */
bool cli_started_again(const shoal_train_event *death);

/* Images a second of a worker, of those of this call; NaN when there was no time. */
double cli_worker_rate(const shoal_train_worker *worker, double seconds);

/* Whether one of them has trained in this call, so that there is a loss. */
bool cli_trained(const shoal_train_worker *workers, int count);

/* Whether a loss is nan or infinite, and what is said then. */
bool cli_diverged(const shoal_train_result *result, const shoal_train_worker *workers, int count);
#define CLI_DIVERGED "the loss is not a number any more: the learning rate may be too large"

/* "98.00 % reached in epoch 3": of a job that reached `until`. */
const char *cli_goal_text(const shoal_train_options *job, const shoal_train_result *result, char *buffer,
                          size_t capacity);

const char *cli_model_name(const shoal_train_options *job);
const char *cli_data_name(const shoal_train_options *job);

/* Numbers as text in buffer, which they return. What is not finite is "-". */
#define CLI_NUMBER_TEXT 32
const char *cli_grouped(double x, char buffer[CLI_NUMBER_TEXT]);               /* 1234567 as "1,234,567" */
const char *cli_fixed(double x, int digits, char buffer[CLI_NUMBER_TEXT]);     /* after the point */
const char *cli_loss_text(double x, bool there, char buffer[CLI_NUMBER_TEXT]); /* there is one: also "nan" and "inf" */
const char *cli_left(double seconds, char buffer[CLI_NUMBER_TEXT]);            /* "0:05", "1:02:03", "3 d 4 h" */
const char *cli_duration(double seconds, char buffer[CLI_NUMBER_TEXT]);        /* "5.2 s", "3 min 20 s", "1 h 2 min" */
const char *cli_score_text(const cli_terms *words, double score, char buffer[CLI_NUMBER_TEXT]); /* "98.71 %" */

#endif
