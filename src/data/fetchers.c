/* The loader's side of its worker processes. */
#include "data/fetchers.h"
#include "data/loader.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "proc/supervisor.h"
#include "shm/block.h"

#include <shoal/share.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ASK SHOAL_SECONDS(1)   /* for the batch that a worker is fetching */
#define GRACE SHOAL_SECONDS(3) /* between SIGTERM and SIGKILL */
#define DEATHS_MOST 3          /* of workers while fetching one batch */

typedef enum place_state {
    PLACE_IDLE,   /* owned by the loader; its batch was given, or never asked for */
    PLACE_ASKED,  /* owned by the worker */
    PLACE_FETCHED /* owned by the loader, answered */
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

struct sh_fetchers {
    shoal_dataset *set; /* the loader's */
    shoal_value *packed;
    shoal_queue *answers;
    sh_supervisor *workers;
    shoal_queue **tasks; /* of the current process of each rank; NULL: none was started */
    int count;
    place *places;
    int places_each;
    int prefetch;
    int64_t batch;
    uint32_t sequence; /* of the last task */
    int64_t asked;     /* the batches of the epoch before this number were asked for */
    int64_t epoch;     /* the epoch that `asked` counts in */
    int64_t given;     /* the last batch that was given */
};

/* ---- places ---- */

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
    return shoal_map(SH_FETCHERS_SET, shoal_value_copy(fetchers->packed), SH_FETCHERS_TASKS, fetchers->tasks[w],
                     SH_FETCHERS_ANSWERS, fetchers->answers, SH_FETCHERS_FIRST, w * fetchers->places_each,
                     SH_FETCHERS_PLACES, list);
}

static shoal_err make_place(const sh_fetchers *fetchers, place *p)
{
    size_t size = sizeof(sh_place_shm) + (size_t)fetchers->batch * sizeof(int64_t);
    SH_TRY(shoal_block_create_zeroed(size, &p->block));
    p->shm = shoal_block_data(p->block);
    return sh_batch_create(&p->full, fetchers->set, fetchers->batch, shoal_empty_shared);
}

/* ---- asking ---- */

static shoal_err put_task(sh_fetchers *fetchers, place *p)
{
    int64_t number = p - fetchers->places;
    sh_fetchers_word task = {.sequence = ++fetchers->sequence, .place = (uint16_t)number};
    p->sequence = task.sequence;
    p->state = PLACE_ASKED;
    return shoal_queue_put_bytes(fetchers->tasks[number / fetchers->places_each], &task, sizeof task, SHOAL_NOW);
}

/* Gives a place new tensors, because the caller kept the old ones, and sends them to the worker. */
static shoal_err renew(sh_fetchers *fetchers, place *p)
{
    int64_t number = p - fetchers->places;
    SH_TRY(sh_batch_create(&p->full, fetchers->set, fetchers->batch, shoal_empty_shared));
    shoal_value *message = shoal_map(SH_PLACE, number, SH_PLACE_X, shoal_value_tensor(p->full.x), SH_PLACE_Y,
                                     shoal_value_tensor(p->full.y));
    return shoal_queue_put(fetchers->tasks[number / fetchers->places_each], message, SHOAL_NOW);
}

/* Returns the place of a batch. Batches go to the workers in turn, and to the places of each worker in turn. */
static place *place_of(const sh_fetchers *fetchers, int64_t batch)
{
    return places_of(fetchers, (int)(batch % fetchers->count)) + batch / fetchers->count % fetchers->places_each;
}

static shoal_err ask_for(sh_fetchers *fetchers, const shoal_loader *loader, int64_t batch)
{
    const int64_t *numbers;
    place *p = place_of(fetchers, batch);
    SH_TRY(sh_batch_is_free(&p->full) ? SHOAL_OK : renew(fetchers, p));
    p->shm->count = sh_loader_batch(loader, batch, &numbers);
    memcpy(p->shm->numbers, numbers, (size_t)p->shm->count * sizeof *numbers);
    p->deaths = 0;
    return put_task(fetchers, p);
}

/* ---- answers and deaths ---- */

static void accept_answer(sh_fetchers *fetchers, sh_fetchers_word answer)
{
    if (answer.place < fetchers->count * fetchers->places_each) {
        place *p = &fetchers->places[answer.place];
        if (p->state == PLACE_ASKED && p->sequence == answer.sequence) {
            p->state = PLACE_FETCHED;
            p->err = (shoal_err)answer.err;
        }
    }
}

static shoal_err take_answer(sh_fetchers *fetchers)
{
    sh_fetchers_word answer;
    size_t size;
    SH_TRY(shoal_queue_get_bytes(fetchers->answers, &answer, sizeof answer, SHOAL_NOW, &size));
    accept_answer(fetchers, answer);
    return SHOAL_OK;
}

/* Answers a batch that kills every worker that fetches it with an error, which the caller gets when its turn comes. */
static void give_up(place *p, const char *how)
{
    p->state = PLACE_FETCHED;
    p->err = SHOAL_ECHILD;
    snprintf(p->shm->text, sizeof p->shm->text,
             "%d workers of the loader died while fetching one batch; the last: %.180s", DEATHS_MOST, how);
}

/* Returns the worker's oldest unanswered task, looking only at tasks up to `last`. */
static place *oldest_asked(const sh_fetchers *fetchers, int w, uint32_t last)
{
    place *oldest = NULL;
    for (int i = 0; i < fetchers->places_each; i++) {
        place *p = &places_of(fetchers, w)[i];
        /* differences, because sequences wrap around */
        if (p->state == PLACE_ASKED && (int32_t)(p->sequence - last) <= 0 &&
            (oldest == NULL || (int32_t)(p->sequence - oldest->sequence) < 0)) {
            oldest = p;
        }
    }
    return oldest;
}

/* Decides about a worker that ended. A killed worker is replaced; its oldest batch may have killed it. A worker that
 * ended by itself is an error of its own batches only: the caller first gets the earlier batches of other workers
 * (check_worker). */
static sh_verdict worker_ended(void *owner, int w, const shoal_process *process)
{
    sh_fetchers *fetchers = owner;
    while (sh_queue_ready(fetchers->answers) && take_answer(fetchers) == SHOAL_OK) { /* accept what it answered */
    }
    if (process->status.end != SHOAL_PROCESS_KILLED) {
        return SH_VERDICT_DONE;
    }
    sh_log("a worker of the loader, %s, is replaced", process->status.text);
    place *p = oldest_asked(fetchers, w, fetchers->sequence);
    if (p != NULL && ++p->deaths >= DEATHS_MOST) {
        give_up(p, process->status.text);
    }
    return SH_VERDICT_REPLACE;
}

/* Makes the arguments of a worker. It gets its own queue, with the tasks that its predecessor had not answered, in
 * their order. */
static shoal_value *arguments(void *owner, int w)
{
    sh_fetchers *fetchers = owner;
    shoal_release(fetchers->tasks[w]);
    fetchers->tasks[w] = NULL;
    if (shoal_queue_create(0, &fetchers->tasks[w]) != SHOAL_OK) {
        return NULL;
    }
    place *p;
    for (uint32_t last = fetchers->sequence; (p = oldest_asked(fetchers, w, last)) != NULL;) {
        if (put_task(fetchers, p) != SHOAL_OK) {
            return NULL;
        }
    }
    return start_args(fetchers, w);
}

static shoal_err check_worker(sh_fetchers *fetchers, const place *wanted)
{
    int w = (int)((wanted - fetchers->places) / fetchers->places_each);
    SH_TRY(sh_supervisor_tend(fetchers->workers));
    return wanted->state == PLACE_ASKED && !sh_supervisor_runs(fetchers->workers, w)
               ? sh_fail(SHOAL_ECHILD, "a worker of the loader ended: %s",
                         sh_supervisor_process(fetchers->workers, w)->status.text)
               : SHOAL_OK;
}

static shoal_err wait_for(sh_fetchers *fetchers, const place *p, int64_t deadline)
{
    static const char *const late = "the workers of the loader did not deliver a batch within its timeout";
    while (p->state == PLACE_ASKED) {
        if (sh_queue_ready(fetchers->answers)) {
            SH_TRY(take_answer(fetchers));
            continue;
        }
        if (sh_passed(deadline)) {
            return sh_fail(SHOAL_ETIMEDOUT, "%s", late);
        }
        sh_supervisor_wait(fetchers->workers, fetchers->answers, NULL, deadline);
        if (sh_interrupt_mine.hit) {
            return sh_fail_waiting(SHOAL_FOREVER, "%s", late);
        }
        if (!sh_queue_ready(fetchers->answers)) {
            SH_TRY(check_worker(fetchers, p));
        }
    }
    return SHOAL_OK;
}

/* ---- creating and ending the workers ---- */

static shoal_err set_up(sh_fetchers *fetchers, shoal_start start)
{
    size_t places = (size_t)fetchers->count * (size_t)fetchers->places_each;
    fetchers->tasks = calloc((size_t)fetchers->count, sizeof(shoal_queue *));
    fetchers->places = calloc(places, sizeof *fetchers->places);
    if (fetchers->tasks == NULL || fetchers->places == NULL) {
        return sh_fail(SHOAL_ENOMEM, "no memory for %d workers of a loader", fetchers->count);
    }
    fetchers->packed = shoal_value_dataset(fetchers->set);
    SH_TRY(fetchers->packed != NULL ? shoal_queue_create(0, &fetchers->answers) : shoal_last_error());
    for (size_t i = 0; i < places; i++) {
        SH_TRY(make_place(fetchers, &fetchers->places[i]));
    }
    sh_supervisor_rules rules = {.target = sh_fetchers_work,
                                 .options = {.start = start, .name = "loader"},
                                 .waits_for = SH_WAITS_BATCH,
                                 .owner = fetchers,
                                 .arguments = arguments,
                                 .ended = worker_ended};
    SH_TRY(sh_supervisor_create(&rules, fetchers->count, &fetchers->workers));
    return sh_supervisor_start(fetchers->workers);
}

shoal_err sh_fetchers_create(const shoal_loader *loader, int workers, int prefetch, shoal_start start,
                             sh_fetchers **out_fetchers)
{
    if ((int64_t)workers * (prefetch + 1) > UINT16_MAX) {
        return sh_fail(SHOAL_EINVAL, "%d workers that prefetch %d batches each are too many", workers, prefetch);
    }
    sh_fetchers *fetchers = calloc(1, sizeof *fetchers);
    if (fetchers == NULL) {
        return sh_fail(SHOAL_ENOMEM, "no memory for the workers of a loader");
    }
    *fetchers = (sh_fetchers){.set = loader->set,
                              .count = workers,
                              .prefetch = prefetch,
                              .places_each = prefetch + 1, /* plus the one that the caller has */
                              .batch = loader->batch,
                              .epoch = -1};
    shoal_err err = set_up(fetchers, start);
    if (err != SHOAL_OK) {
        sh_fetchers_destroy(fetchers);
        return err;
    }
    *out_fetchers = fetchers;
    return SHOAL_OK;
}

void sh_fetchers_destroy(sh_fetchers *fetchers)
{
    if (fetchers == NULL || (fetchers->workers != NULL && !sh_supervisor_is_ours(fetchers->workers))) {
        return; /* a forked child owns only the memory */
    }
    bool lost = false; /* then the workers do not see that their queues are closed */
    for (int w = 0; fetchers->tasks != NULL && w < fetchers->count; w++) {
        if (fetchers->tasks[w] != NULL) {
            lost = sh_block_is_lost((const shoal_block *)fetchers->tasks[w]);
            shoal_queue_close(fetchers->tasks[w]);
        }
    }
    if (fetchers->workers != NULL) {
        sh_supervisor_end(fetchers->workers, lost ? SHOAL_NOW : ASK, GRACE);
        sh_supervisor_destroy(fetchers->workers);
    }
    for (int w = 0; fetchers->tasks != NULL && w < fetchers->count; w++) {
        shoal_release(fetchers->tasks[w]);
    }
    for (int i = 0; fetchers->places != NULL && i < fetchers->count * fetchers->places_each; i++) {
        sh_batch_release(&fetchers->places[i].full);
        shoal_release(fetchers->places[i].block);
    }
    shoal_value_destroy(fetchers->packed);
    shoal_release(fetchers->answers);
    free(fetchers->places);
    free(fetchers->tasks);
    free(fetchers);
}

/* ---- giving ---- */

/* Starts over because the loader's position has changed: waits for the tasks in progress and discards them. */
static shoal_err start_over(sh_fetchers *fetchers, const shoal_loader *loader, int64_t deadline)
{
    shoal_err err = SHOAL_OK;
    for (int i = 0; err == SHOAL_OK && i < fetchers->count * fetchers->places_each; i++) {
        err = wait_for(fetchers, &fetchers->places[i], deadline);
        if (err == SHOAL_ETIMEDOUT || err == SHOAL_EINTR) {
            return err; /* the next call continues here */
        }
        fetchers->places[i].state = PLACE_IDLE;
    }
    fetchers->epoch = loader->epoch;
    fetchers->asked = loader->next;
    fetchers->given = loader->next - 1;
    return err;
}

shoal_err sh_fetchers_next(sh_fetchers *fetchers, const shoal_loader *loader, sh_batch **out_batch)
{
    shoal_err err = SHOAL_OK;
    int64_t deadline = sh_deadline(loader->timeout > 0 ? loader->timeout : SHOAL_FOREVER);
    if (!sh_supervisor_is_ours(fetchers->workers)) {
        return sh_fail(SHOAL_EFORK, "the workers of this loader belong to another process");
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
    *out_batch = &p->full;
    return p->err == SHOAL_OK ? SHOAL_OK : sh_fail(p->err, "%.*s", SH_PLACE_TEXT - 1, p->shm->text);
}
