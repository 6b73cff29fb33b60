/* Clients of a round at the same time: each has its own parameters, momentum and order, and a step is one set of
 * launches for all. The orders of several passes go to the GPU in one copy; what one pass needs is moved into place
 * there, so nothing waits for the host between passes. */
#include "train/engines/cuda/steps_fedavg_cnn.h"

#include "base/clock.h"
#include "base/error.h"

#include <stdlib.h>
#include <string.h>

/* Images in one step, about: more do not make it faster. Clients, because each has its parameters in memory. */
#define IMAGES_AT_ONCE 500
#define CLIENTS_AT_ONCE 50

#define ORDERS_SIZE ((int64_t)4 << 20) /* bytes of orders in one copy, about */

typedef struct sh_gpu_clients {
    int room;
    int64_t length; /* of a client's order */
    int64_t passes; /* whose orders fit into one copy */
    sh_gpu_cnn cnn;
    shoal_tensor *params, *momentum; /* f32 [room, all parameters]; momentum: NULL without */
    shoal_tensor *order;             /* i64 [room, length], of the pass that runs */
    shoal_tensor *orders;            /* i64 [passes, room, length] */
    int64_t *host;                   /* pinned: the same */
    shoal_tensor *at;                /* i64 [1], that of g->progress */
    int64_t *counts;                 /* [room] samples of each client; 0: the place is not used */

    sh_engine_group group; /* that runs */
    int64_t steps;         /* of a pass of the client that has the most samples */
    int64_t pass;          /* of the group: the first one whose orders the GPU has */
    int64_t sent;          /* passes whose orders it has; 0: none */
    int64_t next;          /* the next step of those passes */
} sh_gpu_clients;

/* ---- opening and closing ---- */

/* Returns how many clients to train at the same time: so many that the last group of a round is not much smaller. */
static int room_for(int64_t wanted, int64_t batch)
{
    int64_t most = batch < IMAGES_AT_ONCE ? IMAGES_AT_ONCE / batch : 1;
    most = most < CLIENTS_AT_ONCE ? most : CLIENTS_AT_ONCE;
    int64_t groups = (wanted + most - 1) / most;
    return (int)((wanted + groups - 1) / groups);
}

static shoal_tensor *view_of_at(const sh_gpu *g)
{
    sh_shape s;
    return sh_shape_init(&s, SHOAL_I64, SHOAL_SHAPE(1)) == SHOAL_OK ? sh_tensor_over(g->progress->storage, &s) : NULL;
}

static shoal_err make_tensors(const sh_gpu *g, sh_gpu_clients *c)
{
    int64_t all = g->offsets[g->count];
    c->params = sh_gpu_make(g, SHOAL_F32, SHOAL_SHAPE(c->room, all));
    c->momentum = c->params && g->momentum ? sh_gpu_make(g, SHOAL_F32, SHOAL_SHAPE(c->room, all)) : NULL;
    if (c->params == NULL || (g->momentum && c->momentum == NULL)) {
        return shoal_last_error();
    }
    c->order = sh_gpu_make(g, SHOAL_I64, SHOAL_SHAPE(c->room, c->length));
    c->orders = c->order ? sh_gpu_make(g, SHOAL_I64, SHOAL_SHAPE(c->passes, c->room, c->length)) : NULL;
    c->at = c->orders ? view_of_at(g) : NULL;
    c->host = c->at ? g->device->alloc_pinned((size_t)c->orders->count * sizeof *c->host) : NULL;
    return c->host ? SHOAL_OK : shoal_last_error();
}

static shoal_err open_room(sh_gpu *g, sh_gpu_clients *c)
{
    c->counts = calloc((size_t)c->room, sizeof *c->counts);
    if (c->counts == NULL) {
        return sh_fail(SHOAL_ENOMEM, "no memory for %d clients", c->room);
    }
    SH_TRY(make_tensors(g, c));
    return sh_gpu_cnn_open(&c->cnn, g, c->room, c->params, c->momentum, c->order, c->length);
}

shoal_err sh_gpu_open_group(sh_engine *e, int64_t wanted, int64_t samples, int64_t passes, int *out_room)
{
    sh_gpu *g = (sh_gpu *)e;
    *out_room = 0;
    if (g->plan != &sh_gpu_plan_fedavg_cnn || wanted < 1 || samples < 1) {
        return SHOAL_OK;
    }
    sh_gpu_clients *c = g->clients = calloc(1, sizeof *c);
    if (c == NULL) {
        return sh_fail(SHOAL_ENOMEM, "no memory for clients on the GPU");
    }
    c->room = room_for(wanted, e->settings.batch);
    c->length = samples;
    int64_t each = c->room * samples * (int64_t)sizeof(int64_t), fit = each < ORDERS_SIZE ? ORDERS_SIZE / each : 1;
    c->passes = fit < passes ? fit : passes;
    SH_TRY(open_room(g, c));
    *out_room = c->room;
    return SHOAL_OK;
}

void sh_gpu_clients_close(sh_gpu_clients *c)
{
    if (c == NULL) {
        return;
    }
    sh_gpu_cnn_close(&c->cnn);
    if (c->host != NULL) {
        c->orders->storage->device->free_pinned(c->host, (size_t)c->orders->count * sizeof *c->host);
    }
    shoal_tensor *all[] = {c->params, c->momentum, c->order, c->orders, c->at};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        shoal_tensor_release(all[i]);
    }
    free(c->counts);
    free(c);
}

/* ---- a round ---- */

/* Arranges the orders of a client for `count` passes in the host's memory. */
static shoal_err arrange(sh_gpu *g, int client, int64_t count)
{
    sh_gpu_clients *c = g->clients;
    const sh_engine_client *from = &c->group.clients[client];
    SH_TRY(sh_engine_take_samples(&g->base, from->samples, from->count, from->order));
    for (int64_t pass = 0; pass < count; pass++) {
        const int64_t *order = sh_loader_order(g->base.loader, c->group.pass + c->pass + pass);
        memcpy(c->host + (pass * c->room + client) * c->length, order, (size_t)from->count * sizeof *order);
    }
    return SHOAL_OK;
}

/* Sends the orders of passes c->pass to c->pass + count - 1. */
static shoal_err send_orders(sh_gpu *g, int64_t count)
{
    sh_gpu_clients *c = g->clients;
    for (int i = 0; i < c->room; i++) {
        if (c->counts[i] > 0) {
            SH_TRY(arrange(g, i, count));
        }
    }
    c->sent = count;
    c->next = 0;
    SH_TRY(g->device->write_later(sh_tensor_ptr(c->orders), c->host,
                                  (size_t)(count * c->room * c->length) * sizeof *c->host));
    return sh_gpu_begin_steps(g, 0, 0);
}

/* Enqueues what makes the GPU begin that pass of those it has the orders of. */
static shoal_err begin_pass(const sh_gpu_clients *c, int64_t pass)
{
    sh_shape s;
    SH_TRY(sh_shape_init(&s, SHOAL_I64, SHOAL_SHAPE(c->room, c->length)));
    s.offset = pass * c->room * c->length;
    shoal_tensor *from = sh_tensor_over(c->orders->storage, &s);
    shoal_err err = from ? sh_tensor_copy_data(c->order, from) : shoal_last_error();
    shoal_tensor_release(from);
    SH_TRY(err);
    return sh_tensor_fill(c->at, 0);
}

/* Enqueues steps at to end - 1 of the passes whose orders the GPU has. */
static shoal_err enqueue(const sh_gpu *g, int64_t at, int64_t end)
{
    sh_gpu_clients *c = g->clients;
    while (at < end) {
        int64_t left = c->steps - at % c->steps, count = end - at < left ? end - at : left;
        if (at % c->steps == 0) {
            SH_TRY(begin_pass(c, at / c->steps));
        }
        SH_TRY(sh_gpu_cnn_steps(&c->cnn, g, count));
        at += count;
    }
    return SHOAL_OK;
}

/* Returns the number of images in these steps, of all clients. */
static int64_t images_of(const sh_gpu_clients *c, int64_t batch, int64_t at, int64_t end)
{
    int64_t images = 0;
    for (; at < end; at++) {
        for (int i = 0; i < c->room; i++) {
            int64_t left = c->counts[i] - at % c->steps * batch;
            images += left <= 0 ? 0 : left < batch ? left : batch;
        }
    }
    return images;
}

shoal_err sh_gpu_begin_group(sh_engine *e, const sh_engine_group *group)
{
    sh_gpu *g = (sh_gpu *)e;
    sh_gpu_clients *c = g->clients;
    int64_t most = 0;
    c->group = *group;
    c->pass = c->sent = 0;
    for (int i = 0; i < c->room; i++) {
        c->counts[i] = i < group->count ? group->clients[i].count : 0;
        most = most < c->counts[i] ? c->counts[i] : most;
    }
    c->steps = (most + e->settings.batch - 1) / e->settings.batch;
    SH_TRY(sh_gpu_cnn_count(&c->cnn, c->counts));
    SH_TRY(sh_tensor_copy_data(c->params, g->common));
    if (c->momentum != NULL) {
        SH_TRY(sh_tensor_fill(c->momentum, 0));
    }
    sh_gpu_cnn_begin(&c->cnn, g, group->lr, NULL);
    return SHOAL_OK;
}

/* Sends the next orders when the passes before are done. Returns whether there is a step left. */
static shoal_err prepare(sh_gpu *g, bool *out_left)
{
    sh_gpu_clients *c = g->clients;
    if (c->sent > 0 && c->next == c->sent * c->steps) {
        c->pass += c->sent;
        c->sent = 0;
    }
    int64_t left = c->group.passes - c->pass;
    *out_left = left > 0 && c->steps > 0;
    return *out_left && c->sent == 0 ? send_orders(g, left < c->passes ? left : c->passes) : SHOAL_OK;
}

shoal_err sh_gpu_run_group(sh_engine *e, sh_engine_done *out_done)
{
    sh_gpu *g = (sh_gpu *)e;
    sh_gpu_clients *c = g->clients;
    bool left;
    *out_done = (sh_engine_done){.steps = 0};
    SH_TRY(prepare(g, &left));
    if (!left) {
        return SHOAL_OK;
    }
    int64_t all = c->sent * c->steps, first = c->next, begun = sh_now();
    int64_t end = first + g->ahead < all ? first + g->ahead : all;
    SH_TRY(enqueue(g, first, end));
    c->next = end;
    out_done->batch = (end - 1) % c->steps + 1;
    out_done->samples = images_of(c, e->settings.batch, first, end);
    return sh_gpu_end_steps(g, end - first, begun, out_done);
}

static shoal_err add_client(sh_gpu *g, int client)
{
    const sh_gpu_clients *c = g->clients;
    int64_t all = g->offsets[g->count];
    sh_shape s;
    SH_TRY(sh_shape_init(&s, SHOAL_F32, SHOAL_SHAPE(all)));
    s.offset = client * all;
    shoal_tensor *params = sh_tensor_over(c->params->storage, &s);
    shoal_err err = params ? sh_gpu_add_to_sums(g, params, (double)c->counts[client]) : shoal_last_error();
    shoal_tensor_release(params);
    return err;
}

shoal_err sh_gpu_end_group(sh_engine *e)
{
    sh_gpu *g = (sh_gpu *)e;
    for (int i = 0; i < g->clients->group.count; i++) {
        SH_TRY(add_client(g, i));
    }
    return SHOAL_OK;
}
