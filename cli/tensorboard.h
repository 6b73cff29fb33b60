/* Writes event files for TensorBoard: records framed as in TFRecord files, each an Event of TensorFlow's
 * event.proto. */
#ifndef CLI_TENSORBOARD_H
#define CLI_TENSORBOARD_H

#include <shoal/train.h>

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* The most workers that have their own curves. */
#define CLI_TENSORBOARD_WORKERS 64

typedef struct cli_tensorboard {
    FILE *file; /* NULL: no events are written */
    bool begun; /* the job has begun */
    shoal_train_method method;
    char path[PATH_MAX];
    double next_sample, next_flush; /* seconds of the job */
    double paced_at;                /* train_seconds and images at the sample before */
    int64_t paced_images[CLI_TENSORBOARD_WORKERS];
} cli_tensorboard;

#define CLI_TENSORBOARD_NAME "events.out.tfevents." /* how the name of an event file begins */

/* Creates the folder and its parents, and a new file in it. Returns false and sets errno on failure. */
bool cli_tensorboard_open(cli_tensorboard *events, shoal_train_method method, const char *folder);

/* tensorboard_past.c: sets out_there[i] if the event files of the folder have epoch i of past. */
void cli_tensorboard_find(const char *folder, shoal_train_method method, const shoal_train_past *past, bool *out_there);

/* Writes an event, and the past epochs of a resumed job that the folder lacks. Does nothing if there is no file.
 * Returns false and sets errno if it cannot be written. */
bool cli_tensorboard_event(cli_tensorboard *events, const shoal_train_event *event);

/* Closes the file, and removes it if it is empty because the job did not begin. */
bool cli_tensorboard_close(cli_tensorboard *events);

#endif
