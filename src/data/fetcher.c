/* The code that runs in a loader's worker process. */
#include "data/fetchers.h"
#include "data/loader.h"

#include "base/error.h"
#include "shm/waits.h"

#include <shoal/share.h>

#include <stdio.h>
#include <stdlib.h>

typedef struct place {
    shoal_block *block; /* borrowed from the arguments */
    sh_place_shm *shm;
    sh_batch full;
} place;

typedef struct worker {
    shoal_dataset *set;
    shoal_queue *tasks, *answers; /* borrowed */
    int64_t first;                /* the number of its first place */
    place *places;
    size_t count;
} worker;

/* Takes the tensors of a place from a member of the list or from a message. */
static shoal_err take_tensors(place *p, const shoal_value *from)
{
    shoal_tensor *x = shoal_arg_tensor(from, SH_PLACE_X);
    shoal_tensor *y = shoal_arg_tensor(from, SH_PLACE_Y);
    if (x == NULL || y == NULL) {
        return shoal_last_error();
    }
    sh_batch_release(&p->full);
    p->full = (sh_batch){shoal_tensor_retain(x), shoal_tensor_retain(y)};
    return SHOAL_OK;
}

static shoal_err set_up(worker *w, const shoal_value *args)
{
    const shoal_value *places = shoal_value_find(args, SH_FETCHERS_PLACES);
    w->tasks = shoal_arg_queue(args, SH_FETCHERS_TASKS);
    w->answers = shoal_arg_queue(args, SH_FETCHERS_ANSWERS);
    w->count = shoal_value_count(places);
    w->places = calloc(w->count + 1, sizeof *w->places);
    if (w->places == NULL) {
        return sh_fail(SHOAL_ENOMEM, "no memory for %zu batches", w->count);
    }
    if (w->tasks == NULL || w->answers == NULL) {
        return shoal_last_error();
    }
    SH_TRY(shoal_arg_int(args, SH_FETCHERS_FIRST, &w->first));
    for (size_t i = 0; i < w->count; i++) {
        w->places[i].block = shoal_value_as_block(shoal_value_find(shoal_value_at(places, i), SH_PLACE_BLOCK));
        w->places[i].shm = w->places[i].block != NULL ? shoal_block_data(w->places[i].block) : NULL;
        SH_TRY(w->places[i].shm != NULL ? take_tensors(&w->places[i], shoal_value_at(places, i)) : shoal_last_error());
    }
    w->set = shoal_dataset_retain(shoal_arg_dataset(args, SH_FETCHERS_SET));
    return w->set != NULL ? SHOAL_OK : shoal_last_error();
}

static void fini(worker *w)
{
    for (size_t i = 0; w->places != NULL && i < w->count; i++) {
        sh_batch_release(&w->places[i].full);
    }
    free(w->places);
    shoal_dataset_release(w->set);
}

static shoal_err fetch(worker *w, const place *p)
{
    int64_t count = p->shm->count;
    if (count == shoal_tensor_size(p->full.x, 0)) {
        return sh_fetch_into(w->set, p->shm->numbers, count, &p->full);
    }
    sh_batch rows = {NULL, NULL};
    shoal_err err = sh_batch_rows(&rows, &p->full, count);
    if (err == SHOAL_OK) {
        err = sh_fetch_into(w->set, p->shm->numbers, count, &rows);
    }
    sh_batch_release(&rows);
    return err;
}

static shoal_err do_task(worker *w, sh_fetchers_word task)
{
    size_t i = (size_t)(task.place - w->first);
    if (i >= w->count) {
        return sh_fail(SHOAL_ECORRUPT, "a task for place %d, which belongs to another worker", task.place);
    }
    shoal_err err = fetch(w, &w->places[i]);
    if (err != SHOAL_OK) {
        snprintf(w->places[i].shm->text, SH_PLACE_TEXT, "%s", shoal_last_error_text());
    }
    task.err = (uint16_t)err;
    return shoal_queue_put_bytes(w->answers, &task, sizeof task, SHOAL_FOREVER); /* unbounded: does not block */
}

/* Receives a message that is not a task: new tensors for a place. */
static shoal_err renew(worker *w)
{
    shoal_value *message;
    SH_TRY(shoal_queue_get(w->tasks, SHOAL_NOW, &message));
    int64_t number = -1;
    shoal_err err = shoal_arg_int(message, SH_PLACE, &number);
    if (err == SHOAL_OK) {
        size_t i = (size_t)(number - w->first);
        err = i < w->count ? take_tensors(&w->places[i], message)
                           : sh_fail(SHOAL_ECORRUPT, "new tensors for a place that belongs to another worker");
    }
    shoal_value_destroy(message);
    return err;
}

shoal_err sh_fetchers_work(int rank, const shoal_value *args)
{
    (void)rank;
    worker w = {.set = NULL};
    shoal_err err = set_up(&w, args);
    while (err == SHOAL_OK) {
        sh_fetchers_word task;
        size_t size;
        sh_waits_kind before = sh_waits_serve(SH_WAITS_TASK);
        err = shoal_queue_get_bytes(w.tasks, &task, sizeof task, SHOAL_FOREVER, &size);
        sh_waits_serve(before);
        if (err == SHOAL_OK) {
            err = do_task(&w, task);
        } else if (err == SHOAL_ETYPE) {
            err = renew(&w);
        }
    }
    fini(&w);
    return err == SHOAL_ECLOSED ? SHOAL_OK : err;
}
