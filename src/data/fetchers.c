/* The workers of a loader, as the loader sees them. */
#include "data/fetchers.h"
#include "data/loader.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "shm/block.h"
#include "shm/waits.h"

#include <shoal/share.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define POLL SHOAL_MS(20) /* between looks whether a worker that is waited for still lives */
#define GRACE SHOAL_SECONDS(1)
#define DEATHS_MOST 3 /* of workers over one batch */

typedef enum place_state {
    PLACE_IDLE,   /* the loader's; what is in it was given, or never asked for */
    PLACE_ASKED,  /* the worker's */
    PLACE_FETCHED /* the loader's, answered */
} place_state;

typedef struct place {
    shoal_block *block;
    sh_place_shm *shm;
    sh_batch full;
    place_state state;
    uint32_t sequence;
    shoal_err err;
    int deaths;
} place;

typedef struct worker {
    shoal_process *process;
    shoal_queue *tasks;
} worker;

struct sh_fetchers {
    shoal_dataset *set; /* the loader's */
    shoal_value *packed;
    shoal_queue *answers;
    worker *workers;
    int count;
    place *places;
    int places_each;
    int prefetch;
    int64_t batch;
    uint32_t sequence; /* of the last task */
    int64_t asked;     /* batches of the epoch before this one were asked for */
    int64_t epoch;     /* that asked is of */
    int64_t given;     /* the last batch that was given */
    shoal_start start;
    pid_t pid; /* of the loader's process: a forked child must not touch the workers */
};

/* ---- starting ---- */

static place *places_of(const sh_fetchers *fetchers, int w)
{
    return fetchers->places + (ptrdiff_t)w * fetchers->places_each;
}

static shoal_value *start_args(sh_fetchers *fetchers, int w)
{
    shoal_value *list = shoal_value_list();
    for (int i = 0; i < fetchers->places_each; i++) {
        const place *p = &places_of(fetchers, w)[i];
        list = shoal_list_add(list, shoal_map(SH_PLACE_BLOCK, p->block, SH_PLACE_X, shoal_value_tensor(p->full.x),
                                              SH_PLACE_Y, shoal_value_tensor(p->full.y)));
    }
    return shoal_map(SH_CREW_SET, shoal_value_copy(fetchers->packed), SH_CREW_TASKS, fetchers->workers[w].tasks,
                     SH_CREW_ANSWERS, fetchers->answers, SH_CREW_FIRST, w * fetchers->places_each, SH_CREW_PLACES,
                     list);
}

/* A worker with a queue of its own, empty. */
static shoal_err hire(sh_fetchers *fetchers, int w)
{
    shoal_process_options o = {.start = fetchers->start, .name = "loader", .rank = w};
    shoal_err err = shoal_queue_create(0, &fetchers->workers[w].tasks);
    shoal_value *args = err == SHOAL_OK ? start_args(fetchers, w) : NULL;
    if (err == SHOAL_OK && args == NULL) {
        err = shoal_last_error();
    }
    return err == SHOAL_OK ? shoal_process_start(sh_fetchers_work, args, &o, &fetchers->workers[w].process) : err;
}

static shoal_err make_place(const sh_fetchers *fetchers, place *p)
{
    size_t size = sizeof(sh_place_shm) + (size_t)fetchers->batch * sizeof(int64_t);
    shoal_err err = shoal_block_create_zeroed(size, &p->block);
    if (err == SHOAL_OK) {
        p->shm = shoal_block_data(p->block);
        err = sh_batch_create(&p->full, fetchers->set, fetchers->batch, shoal_empty_shared);
    }
    return err;
}

static shoal_err set_up(sh_fetchers *fetchers)
{
    size_t places = (size_t)fetchers->count * (size_t)fetchers->places_each;
    fetchers->workers = calloc((size_t)fetchers->count, sizeof *fetchers->workers);
    fetchers->places = calloc(places, sizeof *fetchers->places);
    if (fetchers->workers == NULL || fetchers->places == NULL) {
        return sh_fail(SHOAL_ENOMEM, "no memory for %d workers of a loader", fetchers->count);
    }
    fetchers->packed = shoal_value_dataset(fetchers->set);
    shoal_err err = fetchers->packed != NULL ? shoal_queue_create(0, &fetchers->answers) : shoal_last_error();
    for (size_t i = 0; err == SHOAL_OK && i < places; i++) {
        err = make_place(fetchers, &fetchers->places[i]);
    }
    for (int w = 0; err == SHOAL_OK && w < fetchers->count; w++) {
        err = hire(fetchers, w);
    }
    return err;
}

shoal_err sh_fetchers_create(const shoal_loader *loader, int workers, int prefetch, shoal_start start,
                             sh_fetchers **out_crew)
{
    if ((int64_t)workers * (prefetch + 1) > UINT16_MAX) {
        return sh_fail(SHOAL_EINVAL, "%d workers with %d batches ahead are too many batches", workers, prefetch);
    }
    sh_fetchers *fetchers = calloc(1, sizeof *fetchers);
    if (fetchers == NULL) {
        return sh_fail(SHOAL_ENOMEM, "no memory for the workers of a loader");
    }
    *fetchers = (sh_fetchers){.set = loader->set,
                              .count = workers,
                              .prefetch = prefetch,
                              .places_each = prefetch + 1, /* and the one that the caller has */
                              .batch = loader->batch,
                              .epoch = -1,
                              .start = start,
                              .pid = getpid()};
    shoal_err err = set_up(fetchers);
    if (err != SHOAL_OK) {
        char text[512];
        snprintf(text, sizeof text, "%s", shoal_last_error_text());
        sh_fetchers_destroy(fetchers);
        return sh_fail(err, "%s", text);
    }
    *out_crew = fetchers;
    return SHOAL_OK;
}

static void dismiss(worker *w)
{
    if (w->process != NULL) {
        if (!sh_block_is_lost((const shoal_block *)w->tasks)) { /* else it does not know that its queue is closed */
            (void)!shoal_process_join(w->process, GRACE, NULL);
        }
        shoal_process_destroy(w->process);
    }
    shoal_release(w->tasks);
    *w = (worker){NULL, NULL};
}

void sh_fetchers_destroy(sh_fetchers *fetchers)
{
    if (fetchers == NULL || fetchers->pid != getpid()) { /* a forked child holds nothing of this but memory */
        return;
    }
    for (int w = 0; fetchers->workers != NULL && w < fetchers->count; w++) {
        if (fetchers->workers[w].tasks != NULL) {
            shoal_queue_close(fetchers->workers[w].tasks);
        }
    }
    for (int w = 0; fetchers->workers != NULL && w < fetchers->count; w++) {
        dismiss(&fetchers->workers[w]);
    }
    for (int i = 0; fetchers->places != NULL && i < fetchers->count * fetchers->places_each; i++) {
        sh_batch_release(&fetchers->places[i].full);
        shoal_release(fetchers->places[i].block);
    }
    shoal_value_destroy(fetchers->packed);
    shoal_release(fetchers->answers);
    free(fetchers->places);
    free(fetchers->workers);
    free(fetchers);
}

/* ---- asking ---- */

static shoal_err put_task(sh_fetchers *fetchers, place *p)
{
    int64_t number = p - fetchers->places;
    sh_fetchers_word task = {.sequence = ++fetchers->sequence, .place = (uint16_t)number};
    p->sequence = task.sequence;
    p->state = PLACE_ASKED;
    return shoal_queue_put_bytes(fetchers->workers[number / fetchers->places_each].tasks, &task, sizeof task,
                                 SHOAL_NOW);
}

/* The caller kept what was given from this place: it gets new tensors, and the worker is told. */
static shoal_err renew(sh_fetchers *fetchers, place *p)
{
    int64_t number = p - fetchers->places;
    shoal_err err = sh_batch_create(&p->full, fetchers->set, fetchers->batch, shoal_empty_shared);
    if (err != SHOAL_OK) {
        return err;
    }
    shoal_value *message = shoal_map(SH_PLACE, number, SH_PLACE_X, shoal_value_tensor(p->full.x), SH_PLACE_Y,
                                     shoal_value_tensor(p->full.y));
    return shoal_queue_put(fetchers->workers[number / fetchers->places_each].tasks, message, SHOAL_NOW);
}

/* Batches go round: to the workers in turn, and to the places of each in turn. */
static place *place_of(const sh_fetchers *fetchers, int64_t batch)
{
    return places_of(fetchers, (int)(batch % fetchers->count)) + batch / fetchers->count % fetchers->places_each;
}

static shoal_err ask_for(sh_fetchers *fetchers, const shoal_loader *loader, int64_t batch)
{
    const int64_t *numbers;
    place *p = place_of(fetchers, batch);
    shoal_err err = sh_batch_is_free(&p->full) ? SHOAL_OK : renew(fetchers, p);
    if (err != SHOAL_OK) {
        return err;
    }
    p->shm->count = sh_loader_batch(loader, batch, &numbers);
    memcpy(p->shm->numbers, numbers, (size_t)p->shm->count * sizeof *numbers);
    p->deaths = 0;
    return put_task(fetchers, p);
}

/* ---- answers, and the dead ---- */

static void accept(sh_fetchers *fetchers, sh_fetchers_word answer)
{
    if (answer.place < fetchers->count * fetchers->places_each) {
        place *p = &fetchers->places[answer.place];
        if (p->state == PLACE_ASKED && p->sequence == answer.sequence) {
            p->state = PLACE_FETCHED;
            p->err = (shoal_err)answer.err;
        }
    }
}

static shoal_err take_answer(sh_fetchers *fetchers, int64_t timeout)
{
    sh_fetchers_word answer;
    size_t size;
    shoal_err err = shoal_queue_get_bytes(fetchers->answers, &answer, sizeof answer, timeout, &size);
    if (err == SHOAL_OK) {
        accept(fetchers, answer);
    }
    return err;
}

/* The batch that kills whoever fetches it is answered with an error, which is given when its turn comes. */
static void give_up(place *p, const char *how)
{
    p->state = PLACE_FETCHED;
    p->err = SHOAL_ECHILD;
    snprintf(p->shm->text, sizeof p->shm->text, "%d workers of the loader died over one batch; the last: %.190s",
             DEATHS_MOST, how);
}

/* What the dead worker had not answered is asked for again, in its order; the first of it may be what killed it. */
static shoal_err ask_again(sh_fetchers *fetchers, int w, const char *how)
{
    shoal_err err = SHOAL_OK;
    bool first = true;
    for (uint32_t before = fetchers->sequence; err == SHOAL_OK; first = false) {
        place *oldest = NULL;
        for (int i = 0; i < fetchers->places_each; i++) {
            place *p = &places_of(fetchers, w)[i];
            /* of those not asked for again yet; differences, because sequences wrap around */
            if (p->state == PLACE_ASKED && (int32_t)(p->sequence - before) <= 0 &&
                (oldest == NULL || (int32_t)(p->sequence - oldest->sequence) < 0)) {
                oldest = p;
            }
        }
        if (oldest == NULL) {
            return SHOAL_OK;
        }
        if (first && ++oldest->deaths >= DEATHS_MOST) {
            give_up(oldest, how);
        } else {
            err = put_task(fetchers, oldest);
        }
    }
    return err;
}

/* What a worker answered before its end counts. */
static void take_answers(sh_fetchers *fetchers)
{
    while (take_answer(fetchers, SHOAL_NOW) == SHOAL_OK) {
    }
}

static shoal_err replace(sh_fetchers *fetchers, int w, const char *text)
{
    sh_log("a worker of the loader, %s, is replaced", text);
    dismiss(&fetchers->workers[w]);
    shoal_err err = hire(fetchers, w);
    return err == SHOAL_OK ? ask_again(fetchers, w, text) : err;
}

/* A worker that was killed is replaced. One that ended by itself is an error, but of its own batches: those of the others, which come
 * before, are given first. */
static shoal_err look_after(sh_fetchers *fetchers, const place *wanted)
{
    for (int w = 0; w < fetchers->count; w++) {
        shoal_status status;
        shoal_err err = shoal_process_join(fetchers->workers[w].process, SHOAL_NOW, &status);
        if (err == SHOAL_OK) {
            take_answers(fetchers);
            if (status.end == SHOAL_KILLED) {
                err = replace(fetchers, w, status.text);
            } else if (wanted->state == PLACE_ASKED && (wanted - fetchers->places) / fetchers->places_each == w) {
                err = sh_fail(SHOAL_ECHILD, "a worker of the loader: %s", status.text);
            }
        }
        if (err != SHOAL_OK && err != SHOAL_ETIMEDOUT) {
            return err;
        }
    }
    return SHOAL_OK;
}

static shoal_err wait_for(sh_fetchers *fetchers, const place *p, int64_t deadline)
{
    shoal_err err = SHOAL_OK;
    sh_waits_kind before = sh_waits_serve(SH_WAITS_BATCH);
    while (err == SHOAL_OK && p->state == PLACE_ASKED) {
        int64_t left = deadline - sh_now();
        err = take_answer(fetchers, left < POLL ? left : POLL);
        if (err == SHOAL_ETIMEDOUT) {
            err = look_after(fetchers, p);
            if (err == SHOAL_OK && p->state == PLACE_ASKED && sh_passed(deadline)) {
                err = sh_fail(SHOAL_ETIMEDOUT, "no batch came from the workers of the loader within its time limit");
            }
        }
    }
    sh_waits_serve(before);
    return err;
}

/* ---- giving ---- */

/* The loader is at another place than the fetchers thought: what is under way is waited for, and forgotten. */
static shoal_err start_over(sh_fetchers *fetchers, const shoal_loader *loader, int64_t deadline)
{
    shoal_err err = SHOAL_OK;
    for (int i = 0; err == SHOAL_OK && i < fetchers->count * fetchers->places_each; i++) {
        err = wait_for(fetchers, &fetchers->places[i], deadline);
        if (err == SHOAL_ETIMEDOUT || err == SHOAL_EINTR) {
            return err; /* the next call goes on with this one */
        }
        fetchers->places[i].state = PLACE_IDLE;
    }
    fetchers->epoch = loader->epoch;
    fetchers->asked = loader->next;
    fetchers->given = loader->next - 1;
    return err;
}

shoal_err sh_fetchers_next(sh_fetchers *fetchers, const shoal_loader *loader, sh_batch **out_pair)
{
    shoal_err err = SHOAL_OK;
    int64_t deadline = sh_deadline(loader->timeout > 0 ? loader->timeout : SHOAL_FOREVER);
    if (fetchers->pid != getpid()) {
        return sh_fail(SHOAL_EFORK, "the workers of this loader are another process's");
    }
    if (fetchers->epoch != loader->epoch || fetchers->given + 1 != loader->next) {
        err = start_over(fetchers, loader, deadline);
    }
    int64_t end = loader->next + (int64_t)fetchers->count * fetchers->prefetch;
    end = end < loader->batches ? end : loader->batches;
    while (err == SHOAL_OK && fetchers->asked < end) {
        err = ask_for(fetchers, loader, fetchers->asked++);
    }
    place *p = place_of(fetchers, loader->next);
    if (err == SHOAL_OK) {
        err = wait_for(fetchers, p, deadline);
    }
    if (err != SHOAL_OK) {
        fetchers->epoch = err == SHOAL_ETIMEDOUT || err == SHOAL_EINTR ? fetchers->epoch : -1;
        return err;
    }
    p->state = PLACE_IDLE;
    fetchers->given = loader->next;
    *out_pair = &p->full;
    return p->err == SHOAL_OK ? SHOAL_OK : sh_fail(p->err, "%.*s", SH_PLACE_TEXT - 1, p->shm->text);
}
