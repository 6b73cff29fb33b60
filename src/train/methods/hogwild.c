/* Hogwild (Niu et al., "Hogwild!: a lock-free approach to parallelizing stochastic gradient descent", 2011): all
 * workers change the same parameters all the time, without locks. An update may be lost, on purpose.
 *
 * The workers never wait for each other. A worker that has finished an epoch rings, so that the job checks at once; if
 * it dies before it rings, the job sees the epoch at its next check, a twentieth of a second later. A restarted worker
 * continues at its position, with new momentum, or with the shared momentum. */
#include "train/job/crew.h"

#include "base/error.h"

#include <shoal/share.h>

#include <stdlib.h>

/* The job's side. If the engine does not train the job's model in place, the first worker makes the common parameters
 * and sends a handle of them to the job, which gives it to all workers, also to those that are restarted. The
 * parameters stay as long as the job holds the handle, whichever worker dies. */
typedef struct hogwild {
    shoal_value *state;    /* the common momentum; NULL: each worker has its own */
    shoal_value *handle;   /* of the parameters; NULL: none is needed, or it is not made yet */
    shoal_queue *handles;  /* from the first worker */
    shoal_queue **getting; /* to each worker: the queue on which its process gets the handle */
} hogwild;

/* ---- a worker ---- */

static shoal_err make_parameters(sh_worker *w, shoal_queue *handles)
{
    sh_engine *e = w->engine;
    SH_TRY(e->type->load(e, w->model));
    shoal_value *handle = e->type->share(e);
    SH_TRY(handle != NULL ? shoal_queue_put(handles, handle, SHOAL_FOREVER) : shoal_last_error());
    return sh_worker_ring(w, 0);
}

static shoal_err get_parameters(sh_worker *w, shoal_queue *from)
{
    shoal_value *handle = NULL;
    shoal_err err = SHOAL_ETIMEDOUT;
    while (err == SHOAL_ETIMEDOUT && !sh_worker_stopped(w)) {
        err = shoal_queue_get(from, SHOAL_MS(50), &handle);
    }
    if (err == SHOAL_OK) {
        err = w->engine->type->adopt(w->engine, handle);
    }
    shoal_value_destroy(handle);
    return err == SHOAL_ETIMEDOUT ? SHOAL_OK : err; /* the job stops before they were made */
}

static shoal_err share_parameters(sh_worker *w, const shoal_value *own)
{
    bool make = false;
    shoal_queue *handles = shoal_arg_queue(own, "handles"), *getting = handles ? shoal_arg_queue(own, "getting") : NULL;
    if (getting == NULL || shoal_arg_bool(own, "make", &make) != SHOAL_OK) {
        return shoal_last_error();
    }
    return make ? make_parameters(w, handles) : get_parameters(w, getting);
}

/* Trains on the rest of an epoch, and tells the job. */
static shoal_err train_epoch(sh_worker *w, int64_t *epoch, int64_t batch)
{
    SH_TRY(sh_worker_train(w, *epoch, batch, INT64_MAX));
    SH_TRY(w->engine->type->store(w->engine, w->model)); /* what is tested by the job and saved, also after a stop */
    if (!sh_worker_stopped(w)) {
        sh_racy_store(&w->progress->position, sh_position(++*epoch, 0));
        SH_TRY(sh_worker_ring(w, *epoch));
    }
    return SHOAL_OK;
}

static shoal_err share_all(sh_worker *w, const shoal_value *own)
{
    const shoal_value *state = shoal_value_find(own, "state");
    if (w->engine->type->share != NULL) {
        SH_TRY(share_parameters(w, own));
    }
    return shoal_value_type(state) != SHOAL_TYPE_NULL ? w->engine->type->adopt_state(w->engine, state) : SHOAL_OK;
}

static shoal_err train(sh_worker *w)
{
    uint64_t position = sh_racy_load(&w->progress->position);
    int64_t epoch = (int64_t)(position >> 32), batch = (int64_t)(position & UINT32_MAX);
    while (epoch < w->settings.epochs && !sh_worker_stopped(w)) {
        SH_TRY(train_epoch(w, &epoch, batch));
        batch = 0;
    }
    return sh_worker_next(w, &epoch); /* tests, until the job ends: there are no other tasks */
}

static shoal_err work(int rank, const shoal_value *args)
{
    sh_worker w;
    shoal_err err = sh_worker_open(&w, rank, args);
    if (err == SHOAL_OK) {
        err = share_all(&w, shoal_value_find(args, "own"));
    }
    if (err == SHOAL_OK) {
        err = train(&w);
    }
    sh_worker_close(&w);
    return err == SHOAL_ECLOSED ? SHOAL_OK : err;
}

/* ---- the job ---- */

static shoal_err hogwild_open(sh_job *job)
{
    hogwild *h = job->own = calloc(1, sizeof *h);
    if (h == NULL || (h->getting = calloc((size_t)job->o.workers, sizeof(shoal_queue *))) == NULL) {
        return sh_fail(SHOAL_ENOMEM, "no memory for %d workers", job->o.workers);
    }
    SH_TRY(shoal_queue_create(0, &h->handles));
    if (job->o.hogwild
            .shared_state) { /* one momentum for all workers, who change it without locks, like the parameters */
        h->state = sh_engine_of(job->o.device)->new_state(&job->settings.engine, job->model);
        return h->state ? SHOAL_OK : shoal_last_error();
    }
    return SHOAL_OK;
}

static void hogwild_close(sh_job *job)
{
    hogwild *h = job->own;
    for (int i = 0; h != NULL && h->getting != NULL && i < job->o.workers; i++) {
        shoal_release(h->getting[i]);
    }
    if (h != NULL) {
        shoal_release(h->handles);
        shoal_value_destroy(h->handle);
        shoal_value_destroy(h->state);
        free(h->getting);
        free(h);
    }
}

static shoal_err check(const shoal_train_options *o)
{
    return o->hogwild.shared_state && sh_engine_of(o->device)->adopt_state == NULL
               ? sh_fail(SHOAL_EINVAL,
                         "one momentum for all workers (shared state) needs the CPU: on a GPU each worker has its own")
               : SHOAL_OK;
}

static shoal_err give_handle(const hogwild *h, int rank)
{
    return shoal_queue_put(h->getting[rank], shoal_value_copy(h->handle), SHOAL_NOW);
}

static shoal_value *arguments(sh_job *job, int rank)
{
    hogwild *h = job->own;
    shoal_release(h->getting[rank]);
    h->getting[rank] = NULL;
    if (shoal_queue_create(0, &h->getting[rank]) != SHOAL_OK) {
        return NULL;
    }
    if (h->handle != NULL && give_handle(h, rank) != SHOAL_OK) {
        return NULL;
    }
    return shoal_map("state", h->state ? shoal_value_copy(h->state) : shoal_value_null(), "handles", h->handles,
                     "getting", h->getting[rank], "make", shoal_value_bool(rank == 0 && h->handle == NULL));
}

/* Receives the handle of the parameters, and gives it to all workers. */
static shoal_err gather(sh_job *job)
{
    hogwild *h = job->own;
    shoal_value *handle = NULL;
    shoal_err err = shoal_queue_get(h->handles, SHOAL_NOW, &handle);
    if (err != SHOAL_OK) {
        return err == SHOAL_ETIMEDOUT ? SHOAL_OK : err;
    }
    shoal_value_destroy(h->handle);
    h->handle = handle;
    for (int i = 1; i < job->o.workers; i++) {
        SH_TRY(give_handle(h, i));
    }
    return SHOAL_OK;
}

/* Returns the number of epochs that every worker has finished. */
static int64_t finished(const sh_job *job)
{
    int64_t least = job->o.epochs;
    for (int i = 0; i < job->o.workers; i++) {
        int64_t epoch = (int64_t)(sh_racy_load(&job->board->workers[i].position) >> 32);
        least = epoch < least ? epoch : least;
    }
    return least;
}

static shoal_err run(sh_job *job)
{
    int64_t epochs = 0;
    /* A model that is good enough is tested once more when all have ended, also if they had finished all epochs. */
    while (!sh_crew_done(job) && (epochs < job->o.epochs || job->enough) && !job->result.stopped) {
        SH_TRY(sh_crew_wait(job));
        epochs = finished(job);
        if (epochs > job->result.epochs && epochs < job->o.epochs && !sh_job_over(job)) {
            SH_TRY(sh_job_epoch(job, epochs, false)); /* while the workers train */
            if (job->enough) {
                sh_crew_close(job);
            }
        }
    }
    if (job->result.stopped) {
        return SHOAL_OK;
    }
    return job->enough ? sh_job_test(job)
                       : sh_job_epoch(job, job->o.epochs, true); /* again: the workers have trained since */
}

/* ---- checkpoints ---- */

static shoal_err take_position(sh_job *job, const sh_checkpoint *c, int rank, int64_t epoch, int64_t batch)
{
    int64_t batches = sh_shard_batches(&job->settings, shoal_dataset_length(job->train_set), rank);
    if (epoch < 0 || batch < 0 || batch > batches) {
        return sh_fail(SHOAL_ECORRUPT, "%s: the checkpoint is broken: worker %d is at batch %lld of epoch %lld",
                       c->path, rank, (long long)batch, (long long)epoch);
    }
    sh_job_place(job, rank, epoch, batch);
    return SHOAL_OK;
}

/* Passes each worker's position: epoch and batch. Positions are taken before the parameters, which keep changing while
 * they are written: a resumed job repeats what a worker did in between. */
static shoal_err pass_positions(sh_job *job, sh_checkpoint *c, shoal_tensor *positions)
{
    int64_t *at = shoal_tensor_data(positions);
    for (int i = 0; i < job->o.workers && c->writing; i++) {
        uint64_t position = sh_racy_load(&job->board->workers[i].position);
        at[2 * i] = (int64_t)(position >> 32);
        at[2 * i + 1] = (int64_t)(position & UINT32_MAX);
    }
    SH_TRY(sh_checkpoint_tensor(c, "positions", positions));
    int64_t begun = 0;
    for (int i = 0; i < job->o.workers; i++) {
        int64_t epochs = at[2 * i] + (at[2 * i + 1] > 0 && at[2 * i] < INT64_MAX);
        begun = epochs > begun ? epochs : begun;
    }
    SH_TRY(sh_checkpoint_check_epochs(job, c, begun));
    for (int i = 0; i < job->o.workers && !c->writing; i++) {
        SH_TRY(take_position(job, c, i, at[2 * i], at[2 * i + 1]));
    }
    return SHOAL_OK;
}

static shoal_err checkpoint(sh_job *job, sh_checkpoint *c)
{
    const hogwild *h = job->own;
    SH_TRY(sh_checkpoint_setting(c, "shard", job->o.hogwild.shard ? "true" : "false"));
    SH_TRY(sh_checkpoint_setting(c, "shared_state", job->o.hogwild.shared_state ? "true" : "false"));
    shoal_tensor *positions = shoal_empty(SHOAL_I64, SHOAL_SHAPE(job->o.workers, 2));
    shoal_err err = positions != NULL ? pass_positions(job, c, positions) : shoal_last_error();
    shoal_tensor_release(positions);
    SH_TRY(err);
    return h->state != NULL ? sh_checkpoint_map(c, "momentum", h->state) : SHOAL_OK;
}

const sh_method sh_method_hogwild = {.name = "hogwild",
                                     .target = work,
                                     .check = check,
                                     .open = hogwild_open,
                                     .close = hogwild_close,
                                     .arguments = arguments,
                                     .gather = gather,
                                     .run = run,
                                     .checkpoint = checkpoint};
