/* Event files as TensorBoard reads them: records framed as in TFRecord files, each an Event of TensorFlow's event.proto. */
#ifndef CLI_TENSORBOARD_H
#define CLI_TENSORBOARD_H

#include <shoal/train.h>

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Most workers that have curves of their own. */
#define CLI_TENSORBOARD_WORKERS 64

typedef struct cli_tensorboard {
    FILE *file; /* NULL: none is wanted */
    shoal_train_method method;
    char path[PATH_MAX];
    double next_sample, next_flush; /* seconds of the job */
    double paced_at;                /* train_seconds and images at the sample before */
    int64_t paced_images[CLI_TENSORBOARD_WORKERS];
} cli_tensorboard;

/* Makes the folder, with those above it, and a new file in it. False: errno says why not. */
bool cli_tensorboard_open(cli_tensorboard *events, shoal_train_method method, const char *folder);

/* Does nothing without a file. False: it cannot be written, and errno says why. */
bool cli_tensorboard_event(cli_tensorboard *events, const shoal_train_event *event);
bool cli_tensorboard_close(cli_tensorboard *events);

#endif
