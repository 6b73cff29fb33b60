#include "train/job/past.h"

#include "base/error.h"
#include "data/tensors.h"

#include <shoal/file.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ROOM 1024         /* epochs at most */
#define WHOLE_MOST 0x1p53 /* whole numbers up to this are exact in f64 */

/* ---- the list ---- */

void sh_past_fini(sh_past *past)
{
    free(past->epochs);
    past->epochs = NULL;
}

shoal_train_past sh_past_view(const sh_past *past)
{
    return (shoal_train_past){.epochs = past->epochs, .count = past->count, .so_far = past->before};
}

/* Returns the distance between two kept epochs, except the last one: a power of two that depends on the last epoch
 * only. */
static int64_t stride(int64_t last)
{
    int64_t n = 1;
    while (last / n >= ROOM - 1) {
        n *= 2;
    }
    return n;
}

/* Makes room for the last epoch. It is new, or replaces its earlier report: a3c's last epoch continues when the job
 * gets more steps. */
static void thin_out(sh_past *past, int64_t last)
{
    int64_t n = stride(last), kept = 0;
    for (int64_t i = 0; i < past->count; i++) {
        int64_t epoch = past->epochs[i].so_far.epochs;
        if ((epoch - 1) % n == 0 && epoch < last) {
            past->epochs[kept++] = past->epochs[i];
        }
    }
    past->count = kept;
}

/* Turns the result of this call into that of the whole job. */
static shoal_train_result whole(const sh_past *past, const shoal_train_result *so_far)
{
    shoal_train_result r = *so_far;
    r.seconds += past->before.seconds;
    r.train_seconds += past->before.train_seconds;
    r.deaths += past->before.deaths;
    return r;
}

void sh_past_add(sh_past *past, const shoal_train_result *so_far, int64_t epoch, double loss)
{
    if (past->epochs == NULL) {
        past->epochs = calloc(ROOM, sizeof *past->epochs);
    }
    if (past->epochs == NULL) {
        return;
    }
    thin_out(past, epoch);
    past->epochs[past->count] = (shoal_train_epoch){.so_far = whole(past, so_far), .loss = loss};
    past->epochs[past->count++].so_far.epochs = epoch;
}

/* ---- as rows of numbers ---- */

enum {
    EPOCH,
    IMAGES,
    TESTED,
    DEATHS,
    EPISODES,
    WHOLES,
    SECONDS = WHOLES,
    TRAINED,
    RATE,
    LOSS,
    TEST_LOSS,
    ACCURACY,
    REWARD,
    COLUMNS
};

static void pack(const shoal_train_epoch *e, double row[COLUMNS])
{
    const shoal_train_result *r = &e->so_far;
    const double values[COLUMNS] = {
        [EPOCH] = (double)r->epochs,  [IMAGES] = (double)r->images,     [TESTED] = (double)r->tested_epoch,
        [DEATHS] = (double)r->deaths, [EPISODES] = (double)r->episodes, [SECONDS] = r->seconds,
        [TRAINED] = r->train_seconds, [RATE] = r->images_per_second,    [LOSS] = e->loss,
        [TEST_LOSS] = r->test_loss,   [ACCURACY] = r->test_accuracy,    [REWARD] = r->reward};
    memcpy(row, values, sizeof values);
}

/* Returns false if it is not a valid row. */
static bool unpack(const double row[COLUMNS], shoal_train_epoch *out)
{
    for (int i = 0; i < WHOLES; i++) {
        if (!(row[i] >= 0 && row[i] <= WHOLE_MOST && row[i] == floor(row[i]))) {
            return false;
        }
    }
    *out = (shoal_train_epoch){.so_far = {.epochs = (int64_t)row[EPOCH],
                                          .images = (int64_t)row[IMAGES],
                                          .tested_epoch = (int64_t)row[TESTED],
                                          .deaths = (int64_t)row[DEATHS],
                                          .episodes = (int64_t)row[EPISODES],
                                          .seconds = row[SECONDS],
                                          .train_seconds = row[TRAINED],
                                          .images_per_second = row[RATE],
                                          .test_loss = row[TEST_LOSS],
                                          .test_accuracy = row[ACCURACY],
                                          .reward = row[REWARD]},
                               .loss = row[LOSS]};
    return row[SECONDS] >= 0 && row[TRAINED] >= 0;
}

/* ---- checkpoints: a row for each epoch, and a last row for the result so far ---- */

static shoal_err write_rows(const sh_past *past, const shoal_train_result *so_far, sh_checkpoint *c)
{
    shoal_tensor *t = shoal_empty(SHOAL_F64, SHOAL_SHAPE(past->count + 1, COLUMNS));
    double *rows = t != NULL ? shoal_tensor_data(t) : NULL;
    for (int64_t i = 0; rows != NULL && i < past->count; i++) {
        pack(&past->epochs[i], rows + i * COLUMNS);
    }
    if (rows != NULL) {
        pack(&(shoal_train_epoch){.so_far = whole(past, so_far), .loss = NAN}, rows + past->count * COLUMNS);
    }
    shoal_err err = sh_checkpoint_tensor(c, "past", t);
    shoal_tensor_release(t);
    return err;
}

/* Takes the rows. Returns false unless their epochs increase and none is beyond the finished ones. */
static bool take_rows(sh_past *past, const double *rows, int64_t count, int64_t finished)
{
    int64_t before = 0;
    shoal_train_epoch last;
    for (int64_t i = 0; i < count; i++) {
        if (!unpack(rows + i * COLUMNS, &past->epochs[i]) || past->epochs[i].so_far.epochs <= before) {
            return false;
        }
        before = past->epochs[i].so_far.epochs;
    }
    bool good = before <= finished && unpack(rows + count * COLUMNS, &last);
    past->before = good ? last.so_far : past->before;
    past->count = good ? count : 0;
    return good;
}

static shoal_err read_rows(sh_past *past, int64_t finished, sh_checkpoint *c, const shoal_tensor *there)
{
    int64_t rows = shoal_tensor_ndim(there) == 2 ? shoal_tensor_size(there, 0) : 0;
    if (rows < 1 || rows > ROOM + 1) {
        return sh_fail(SHOAL_ECORRUPT, "%s: the checkpoint is broken: %lld rows of past epochs", c->path,
                       (long long)rows);
    }
    past->epochs = calloc(ROOM, sizeof *past->epochs);
    shoal_tensor *t = shoal_empty(SHOAL_F64, SHOAL_SHAPE(rows, COLUMNS));
    shoal_err err =
        past->epochs ? sh_checkpoint_tensor(c, "past", t) : sh_fail(SHOAL_ENOMEM, "no memory for %d epochs", ROOM);
    if (err == SHOAL_OK && !take_rows(past, shoal_tensor_data(t), rows - 1, finished)) {
        err = sh_fail(SHOAL_ECORRUPT, "%s: the checkpoint is broken: its past epochs are not in order", c->path);
    }
    shoal_tensor_release(t);
    return err;
}

shoal_err sh_past_pass(sh_past *past, const shoal_train_result *so_far, sh_checkpoint *c)
{
    if (c->writing) {
        return write_rows(past, so_far, c);
    }
    const shoal_tensor *there = shoal_tensors_find(c->set, SH_TENSORS_OWN "past");
    return there != NULL ? read_rows(past, so_far->epochs, c, there) : SHOAL_OK;
}
