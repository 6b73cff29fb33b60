/* The workers of a loader, as the loader sees them. */
#include "data/crew.h"
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
    sh_pair full;
    place_state state;
    uint32_t sequence;
    shoal_err err;
    int deaths;
} place;

typedef struct worker {
    shoal_process *process;
    shoal_queue *tasks;
} worker;

struct sh_crew {
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

static place *places_of(const sh_crew *crew, int w)
{
    return crew->places + (ptrdiff_t)w * crew->places_each;
}

static shoal_value *start_args(sh_crew *crew, int w)
{
    shoal_value *list = shoal_value_list();
    for (int i = 0; i < crew->places_each; i++) {
        const place *p = &places_of(crew, w)[i];
        list = shoal_list_add(list, shoal_map(SH_PLACE_BLOCK, p->block, SH_PLACE_X, shoal_value_tensor(p->full.x),
                                              SH_PLACE_Y, shoal_value_tensor(p->full.y)));
    }
    return shoal_map(SH_CREW_SET, shoal_value_copy(crew->packed), SH_CREW_TASKS, crew->workers[w].tasks,
                     SH_CREW_ANSWERS, crew->answers, SH_CREW_FIRST, w * crew->places_each, SH_CREW_PLACES, list);
}

/* A worker with a queue of its own, empty. */
static shoal_err hire(sh_crew *crew, int w)
{
    shoal_process_options o = {.start = crew->start, .name = "loader", .rank = w};
    shoal_err err = shoal_queue_create(0, &crew->workers[w].tasks);
    shoal_value *args = err == SHOAL_OK ? start_args(crew, w) : NULL;
    if (err == SHOAL_OK && args == NULL) {
        err = shoal_last_error();
    }
    return err == SHOAL_OK ? shoal_process_start(sh_crew_work, args, &o, &crew->workers[w].process) : err;
}

static shoal_err make_place(const sh_crew *crew, place *p)
{
    size_t size = sizeof(sh_place_shm) + (size_t)crew->batch * sizeof(int64_t);
    shoal_err err = shoal_block_create_zeroed(size, &p->block);
    if (err == SHOAL_OK) {
        p->shm = shoal_block_data(p->block);
        err = sh_pair_create(&p->full, crew->set, crew->batch, shoal_empty_shared);
    }
    return err;
}

static shoal_err set_up(sh_crew *crew)
{
    size_t places = (size_t)crew->count * (size_t)crew->places_each;
    crew->workers = calloc((size_t)crew->count, sizeof *crew->workers);
    crew->places = calloc(places, sizeof *crew->places);
    if (crew->workers == NULL || crew->places == NULL) {
        return sh_fail(SHOAL_ENOMEM, "no memory for %d workers of a loader", crew->count);
    }
    crew->packed = shoal_value_dataset(crew->set);
    shoal_err err = crew->packed != NULL ? shoal_queue_create(0, &crew->answers) : shoal_last_error();
    for (size_t i = 0; err == SHOAL_OK && i < places; i++) {
        err = make_place(crew, &crew->places[i]);
    }
    for (int w = 0; err == SHOAL_OK && w < crew->count; w++) {
        err = hire(crew, w);
    }
    return err;
}

shoal_err sh_crew_create(const shoal_loader *loader, int workers, int prefetch, shoal_start start, sh_crew **out_crew)
{
    if ((int64_t)workers * (prefetch + 1) > UINT16_MAX) {
        return sh_fail(SHOAL_EINVAL, "%d workers with %d batches ahead are too many batches", workers, prefetch);
    }
    sh_crew *crew = calloc(1, sizeof *crew);
    if (crew == NULL) {
        return sh_fail(SHOAL_ENOMEM, "no memory for the workers of a loader");
    }
    *crew = (sh_crew){.set = loader->set,
                      .count = workers,
                      .prefetch = prefetch,
                      .places_each = prefetch + 1, /* and the one that the caller has */
                      .batch = loader->batch,
                      .epoch = -1,
                      .start = start,
                      .pid = getpid()};
    shoal_err err = set_up(crew);
    if (err != SHOAL_OK) {
        char text[512];
        snprintf(text, sizeof text, "%s", shoal_last_error_text());
        sh_crew_destroy(crew);
        return sh_fail(err, "%s", text);
    }
    *out_crew = crew;
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

void sh_crew_destroy(sh_crew *crew)
{
    if (crew == NULL || crew->pid != getpid()) { /* a forked child holds nothing of this but memory */
        return;
    }
    for (int w = 0; crew->workers != NULL && w < crew->count; w++) {
        if (crew->workers[w].tasks != NULL) {
            shoal_queue_close(crew->workers[w].tasks);
        }
    }
    for (int w = 0; crew->workers != NULL && w < crew->count; w++) {
        dismiss(&crew->workers[w]);
    }
    for (int i = 0; crew->places != NULL && i < crew->count * crew->places_each; i++) {
        sh_pair_release(&crew->places[i].full);
        shoal_release(crew->places[i].block);
    }
    shoal_value_destroy(crew->packed);
    shoal_release(crew->answers);
    free(crew->places);
    free(crew->workers);
    free(crew);
}

/* ---- asking ---- */

static shoal_err put_task(sh_crew *crew, place *p)
{
    int64_t number = p - crew->places;
    sh_crew_word task = {.sequence = ++crew->sequence, .place = (uint16_t)number};
    p->sequence = task.sequence;
    p->state = PLACE_ASKED;
    return shoal_queue_put_bytes(crew->workers[number / crew->places_each].tasks, &task, sizeof task, SHOAL_NOW);
}

/* The caller kept what was given from this place: it gets new tensors, and the worker is told. */
static shoal_err renew(sh_crew *crew, place *p)
{
    int64_t number = p - crew->places;
    shoal_err err = sh_pair_create(&p->full, crew->set, crew->batch, shoal_empty_shared);
    if (err != SHOAL_OK) {
        return err;
    }
    shoal_value *message = shoal_map(SH_PLACE, number, SH_PLACE_X, shoal_value_tensor(p->full.x), SH_PLACE_Y,
                                     shoal_value_tensor(p->full.y));
    return shoal_queue_put(crew->workers[number / crew->places_each].tasks, message, SHOAL_NOW);
}

/* Batches go round: to the workers in turn, and to the places of each in turn. */
static place *place_of(const sh_crew *crew, int64_t batch)
{
    return places_of(crew, (int)(batch % crew->count)) + batch / crew->count % crew->places_each;
}

static shoal_err ask_for(sh_crew *crew, const shoal_loader *loader, int64_t batch)
{
    const int64_t *numbers;
    place *p = place_of(crew, batch);
    shoal_err err = sh_pair_is_free(&p->full) ? SHOAL_OK : renew(crew, p);
    if (err != SHOAL_OK) {
        return err;
    }
    p->shm->count = sh_loader_batch(loader, batch, &numbers);
    memcpy(p->shm->numbers, numbers, (size_t)p->shm->count * sizeof *numbers);
    p->deaths = 0;
    return put_task(crew, p);
}

/* ---- answers, and the dead ---- */

static void accept(sh_crew *crew, sh_crew_word answer)
{
    if (answer.place < crew->count * crew->places_each) {
        place *p = &crew->places[answer.place];
        if (p->state == PLACE_ASKED && p->sequence == answer.sequence) {
            p->state = PLACE_FETCHED;
            p->err = (shoal_err)answer.err;
        }
    }
}

static shoal_err take_answer(sh_crew *crew, int64_t timeout)
{
    sh_crew_word answer;
    size_t size;
    shoal_err err = shoal_queue_get_bytes(crew->answers, &answer, sizeof answer, timeout, &size);
    if (err == SHOAL_OK) {
        accept(crew, answer);
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
static shoal_err ask_again(sh_crew *crew, int w, const char *how)
{
    shoal_err err = SHOAL_OK;
    bool first = true;
    for (uint32_t before = crew->sequence; err == SHOAL_OK; first = false) {
        place *oldest = NULL;
        for (int i = 0; i < crew->places_each; i++) {
            place *p = &places_of(crew, w)[i];
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
            err = put_task(crew, oldest);
        }
    }
    return err;
}

/* What a worker answered before its end counts. */
static void take_answers(sh_crew *crew)
{
    while (take_answer(crew, SHOAL_NOW) == SHOAL_OK) {
    }
}

static shoal_err replace(sh_crew *crew, int w, const char *text)
{
    sh_log("a worker of the loader, %s, is replaced", text);
    dismiss(&crew->workers[w]);
    shoal_err err = hire(crew, w);
    return err == SHOAL_OK ? ask_again(crew, w, text) : err;
}

/* A worker that was killed is replaced. One that ended by itself is an error, but of its own batches: those of the others, which come
 * before, are given first. */
static shoal_err look_after(sh_crew *crew, const place *wanted)
{
    for (int w = 0; w < crew->count; w++) {
        shoal_status status;
        shoal_err err = shoal_process_join(crew->workers[w].process, SHOAL_NOW, &status);
        if (err == SHOAL_OK) {
            take_answers(crew);
            if (status.end == SHOAL_KILLED) {
                err = replace(crew, w, status.text);
            } else if (wanted->state == PLACE_ASKED && (wanted - crew->places) / crew->places_each == w) {
                err = sh_fail(SHOAL_ECHILD, "a worker of the loader: %s", status.text);
            }
        }
        if (err != SHOAL_OK && err != SHOAL_ETIMEDOUT) {
            return err;
        }
    }
    return SHOAL_OK;
}

static shoal_err wait_for(sh_crew *crew, const place *p, int64_t deadline)
{
    shoal_err err = SHOAL_OK;
    sh_wait_kind before = sh_waits_serve(SH_WAIT_BATCH);
    while (err == SHOAL_OK && p->state == PLACE_ASKED) {
        int64_t left = deadline - sh_now();
        err = take_answer(crew, left < POLL ? left : POLL);
        if (err == SHOAL_ETIMEDOUT) {
            err = look_after(crew, p);
            if (err == SHOAL_OK && p->state == PLACE_ASKED && sh_passed(deadline)) {
                err = sh_fail(SHOAL_ETIMEDOUT, "no batch came from the workers of the loader within its time limit");
            }
        }
    }
    sh_waits_serve(before);
    return err;
}

/* ---- giving ---- */

/* The loader is at another place than the crew thought: what is under way is waited for, and forgotten. */
static shoal_err start_over(sh_crew *crew, const shoal_loader *loader, int64_t deadline)
{
    shoal_err err = SHOAL_OK;
    for (int i = 0; err == SHOAL_OK && i < crew->count * crew->places_each; i++) {
        err = wait_for(crew, &crew->places[i], deadline);
        if (err == SHOAL_ETIMEDOUT || err == SHOAL_EINTR) {
            return err; /* the next call goes on with this one */
        }
        crew->places[i].state = PLACE_IDLE;
    }
    crew->epoch = loader->epoch;
    crew->asked = loader->next;
    crew->given = loader->next - 1;
    return err;
}

shoal_err sh_crew_next(sh_crew *crew, const shoal_loader *loader, sh_pair **out_pair)
{
    shoal_err err = SHOAL_OK;
    int64_t deadline = sh_deadline(loader->timeout > 0 ? loader->timeout : SHOAL_FOREVER);
    if (crew->pid != getpid()) {
        return sh_fail(SHOAL_EFORK, "the workers of this loader are another process's");
    }
    if (crew->epoch != loader->epoch || crew->given + 1 != loader->next) {
        err = start_over(crew, loader, deadline);
    }
    int64_t end = loader->next + (int64_t)crew->count * crew->prefetch;
    end = end < loader->batches ? end : loader->batches;
    while (err == SHOAL_OK && crew->asked < end) {
        err = ask_for(crew, loader, crew->asked++);
    }
    place *p = place_of(crew, loader->next);
    if (err == SHOAL_OK) {
        err = wait_for(crew, p, deadline);
    }
    if (err != SHOAL_OK) {
        crew->epoch = err == SHOAL_ETIMEDOUT || err == SHOAL_EINTR ? crew->epoch : -1;
        return err;
    }
    p->state = PLACE_IDLE;
    crew->given = loader->next;
    *out_pair = &p->full;
    return p->err == SHOAL_OK ? SHOAL_OK : sh_fail(p->err, "%.*s", SH_PLACE_TEXT - 1, p->shm->text);
}
