#include "cli/train_text.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* The first row has the terms of all methods that are not below. */
static const struct {
    const char *method;
    cli_terms terms;
} table[] = {
    {"", {"epoch", "epochs", "images", "images_per_second", "accuracy", "test/accuracy", true, true, true}},
    {"fedavg", {"round", "rounds", "images", "images_per_second", "accuracy", "test/accuracy", true, true, false}},
    {"a3c", {"epoch", "epochs", "steps", "steps_per_second", "mean reward", "reward/mean", false, false, false}},
};

const cli_terms *cli_terms_of(shoal_train_method method)
{
    const char *name = shoal_train_method_name(method);
    for (size_t i = 1; name != NULL && i < sizeof table / sizeof *table; i++) {
        if (strcmp(name, table[i].method) == 0) {
            return &table[i].terms;
        }
    }
    return &table[0].terms;
}

double cli_score(shoal_train_method method, const shoal_train_result *result)
{
    return method == SHOAL_METHOD_A3C ? result->reward : result->test_accuracy;
}

bool cli_started_again(const shoal_train_event *death)
{
    return death->workers[death->worker].pid != 0;
}

double cli_worker_rate(const shoal_train_worker *worker, double seconds)
{
    return seconds > 0 ? (double)(worker->images - worker->images_before) / seconds : NAN;
}

bool cli_trained(const shoal_train_worker *workers, int count)
{
    for (int i = 0; i < count; i++) {
        if (workers[i].images > workers[i].images_before) {
            return true;
        }
    }
    return false;
}

bool cli_diverged(const shoal_train_result *result, const shoal_train_worker *workers, int count)
{
    bool diverged = result->tested_epoch > 0 && !isfinite(result->test_loss);
    for (int i = 0; i < count; i++) {
        diverged = diverged || (cli_trained(&workers[i], 1) && !isfinite(workers[i].loss));
    }
    return diverged;
}

const char *cli_model_name(const shoal_train_options *job)
{
    return job->model != NULL ? job->model : "mnist-cnn";
}

const char *cli_data_name(const shoal_train_options *job)
{
    return job->method == SHOAL_METHOD_A3C ? job->a3c.env : job->data != NULL ? job->data : "mnist";
}

static const char *unknown(char buffer[CLI_NUMBER_TEXT])
{
    buffer[0] = '-';
    buffer[1] = 0;
    return buffer;
}

const char *cli_grouped(double x, char buffer[CLI_NUMBER_TEXT])
{
    char digits[24];
    if (!isfinite(x) || fabs(x) >= 1e15) {
        return unknown(buffer);
    }
    int length = snprintf(digits, sizeof digits, "%.0f", x > 0 ? x : 0), at = 0;
    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0) {
            buffer[at++] = ',';
        }
        buffer[at++] = digits[i];
    }
    buffer[at] = 0;
    return buffer;
}

const char *cli_fixed(double x, int digits, char buffer[CLI_NUMBER_TEXT])
{
    if (!isfinite(x)) {
        return unknown(buffer);
    }
    snprintf(buffer, CLI_NUMBER_TEXT, fabs(x) < 1e9 ? "%.*f" : "%.*g", digits, x);
    bool zero = buffer[0] == '-' && strspn(buffer + 1, "0.") == strlen(buffer + 1);
    if (zero) {
        memmove(buffer, buffer + 1, strlen(buffer));
    }
    return buffer;
}

const char *cli_loss_text(double x, bool there, char buffer[CLI_NUMBER_TEXT])
{
    if (there && !isfinite(x)) {
        snprintf(buffer, CLI_NUMBER_TEXT, isnan(x) ? "nan" : "inf");
        return buffer;
    }
    return cli_fixed(x, 4, buffer);
}

const char *cli_left(double seconds, char buffer[CLI_NUMBER_TEXT])
{
    if (!isfinite(seconds) || seconds < 0 || seconds > 1e9) {
        return unknown(buffer);
    }
    long s = lround(seconds), minutes = s / 60, hours = s / 3600, days = s / 86400;
    if (days > 1) {
        snprintf(buffer, CLI_NUMBER_TEXT, "%ld d %ld h", days, hours % 24);
    } else if (hours > 0) {
        snprintf(buffer, CLI_NUMBER_TEXT, "%ld:%02ld:%02ld", hours, minutes % 60, s % 60);
    } else {
        snprintf(buffer, CLI_NUMBER_TEXT, "%ld:%02ld", minutes, s % 60);
    }
    return buffer;
}

const char *cli_duration(double seconds, char buffer[CLI_NUMBER_TEXT])
{
    if (!isfinite(seconds) || seconds < 0 || seconds > 1e12) {
        return unknown(buffer);
    }
    long s = lround(seconds), minutes = s / 60, hours = s / 3600, days = s / 86400;
    if (s < 120) {
        snprintf(buffer, CLI_NUMBER_TEXT, "%.1f s", seconds);
    } else if (hours < 1) {
        snprintf(buffer, CLI_NUMBER_TEXT, "%ld min %ld s", minutes, s % 60);
    } else if (days < 2) {
        snprintf(buffer, CLI_NUMBER_TEXT, "%ld h %ld min", hours, minutes % 60);
    } else {
        snprintf(buffer, CLI_NUMBER_TEXT, "%ld d %ld h", days, hours % 24);
    }
    return buffer;
}

const char *cli_score_text(const cli_terms *terms, double score, char buffer[CLI_NUMBER_TEXT])
{
    if (isfinite(score) && terms->percent) {
        snprintf(buffer, CLI_NUMBER_TEXT, "%.2f %%", score * 100);
        return buffer;
    }
    return cli_fixed(score, 2, buffer);
}

bool cli_is_data_name(const char *data)
{
    for (size_t i = 0; shoal_data_name(i) != NULL; i++) {
        if (strcmp(data, shoal_data_name(i)) == 0) {
            return true;
        }
    }
    return false;
}

const char *cli_goal_text(const shoal_train_options *job, const shoal_train_result *result, char *buffer,
                          size_t capacity)
{
    const cli_terms *terms = cli_terms_of(job->method);
    char goal[CLI_NUMBER_TEXT];
    cli_score_text(terms, job->until, goal);
    if (result->reached_epoch > 0) {
        snprintf(buffer, capacity, "%s %s reached in %s %lld", terms->score, goal, terms->epoch,
                 (long long)result->reached_epoch);
    } else {
        snprintf(buffer, capacity, "%s %s not reached", terms->score, goal);
    }
    return buffer;
}
