/* The names of a job's numbers and how they are printed, the same in lines, tables, report and event files. */
#ifndef CLI_TRAIN_TEXT_H
#define CLI_TRAIN_TEXT_H

#include <shoal/train.h>

#include <stdbool.h>
#include <stddef.h>

/* The terms that differ between methods. */
typedef struct cli_terms {
    const char *epoch, *epochs; /* "epoch" and "epochs" */
    const char *samples;        /* what workers train on: "images" */
    const char *rate_tag;       /* the name of their rate in event files */
    const char *score;          /* the result of a test: "accuracy" */
    const char *score_tag;      /* its name in event files */
    bool tested;                /* on a test set */
    bool percent;               /* the score is a fraction, printed in percent */
    bool even;                  /* all workers have equal shares of the work */
} cli_terms;

const cli_terms *cli_terms_of(shoal_train_method method);

/* Returns the score of the last test, NaN if there was none. */
double cli_score(shoal_train_method method, const shoal_train_result *result);

/* Checks whether the worker of a death event is started again. */
bool cli_started_again(const shoal_train_event *death);

/* Returns the images per second of a worker in this call, NaN if no time has passed. */
double cli_worker_rate(const shoal_train_worker *worker, double seconds);

/* Checks whether any of the workers has trained in this call, so that there is a loss. */
bool cli_trained(const shoal_train_worker *workers, int count);

/* Checks whether a loss is NaN or infinite. CLI_DIVERGED is the text for that. */
bool cli_diverged(const shoal_train_result *result, const shoal_train_worker *workers, int count);
#define CLI_DIVERGED                                                                                                   \
    "the loss is NaN or infinite: the learning rate may be too large, or the data may have NaN or infinity"

/* Writes "accuracy 98.00 % reached in epoch 3", or "accuracy 98.00 % not reached", for a job with a goal. Returns
 * buffer. */
const char *cli_goal_text(const shoal_train_options *job, const shoal_train_result *result, char *buffer,
                          size_t capacity);

const char *cli_model_name(const shoal_train_options *job);
const char *cli_data_name(const shoal_train_options *job);

/* Checks whether --data with this text is a data set's name, such as mnist, and not a folder. */
bool cli_is_data_name(const char *data);

/* Write a number to buffer and return buffer. A number that is not finite becomes "-". */
#define CLI_NUMBER_TEXT 32
const char *cli_grouped(double x, char buffer[CLI_NUMBER_TEXT]);               /* 1234567 as "1,234,567" */
const char *cli_fixed(double x, int digits, char buffer[CLI_NUMBER_TEXT]);     /* digits after the point */
const char *cli_loss_text(double x, bool there, char buffer[CLI_NUMBER_TEXT]); /* there: also "nan" and "inf" */
const char *cli_left(double seconds, char buffer[CLI_NUMBER_TEXT]);            /* "0:05", "1:02:03", "3 d 4 h" */
const char *cli_duration(double seconds, char buffer[CLI_NUMBER_TEXT]);        /* "5.2 s", "3 min 20 s", "1 h 2 min" */
const char *cli_score_text(const cli_terms *terms, double score, char buffer[CLI_NUMBER_TEXT]); /* "98.71 %" */

#endif
