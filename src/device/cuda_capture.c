/* Captures of a step. cuda_capture.h describes them. */
#include "device/cuda_capture.h"

#include "base/error.h"
#include "device/cuda_share.h"
#include "shm/block.h"

#include <stdio.h>
#include <stdlib.h>

typedef enum capture_state {
    RECORDING,
    BROKEN, /* a call could not be captured; not ended yet */
    READY,
} capture_state;

struct sh_cuda_capture {
    capture_state state;
    sh_cu_stream stream; /* while it records, and after its thread ended */
    sh_cu_graph_exec graph;
    bool own_only;    /* this process had mapped no memory of others while it recorded */
    uint64_t left;    /* how many worlds this process had left when it began */
    uint64_t *word;   /* on the card: what random kernels add to their offsets */
    uint64_t advance; /* what the word is after the launches so far; NO_ADVANCE before the first */
    sh_exec *exec;    /* of the thread, and what its scratch was before */
    void *scratch;
    size_t scratch_size;
    sh_cuda_piece *pieces; /* all that belong to the graph, by capture_next */
    sh_cuda_piece *freed;  /* those that the capture can use again, by next */
    sh_cuda_piece *others; /* those of other captures that were freed in this one, by other_next */
    shoal_block **held;    /* of pieces of other processes that were closed while it recorded */
    size_t held_count;
    char reason[200]; /* of BROKEN */
};

#define NO_ADVANCE UINT64_MAX

static _Thread_local sh_cuda_capture *mine __attribute__((tls_model("initial-exec")));

sh_cuda_capture *sh_cuda_capturing(void)
{
    return mine;
}

sh_cu_stream sh_cuda_stream(void)
{
    return mine ? mine->stream : sh_cuda_the_card()->stream;
}

/* ---- memory; under SH_CARD_LOCK_STATE ---- */

void sh_cuda_capture_add(sh_cuda_capture *c, sh_cuda_piece *p)
{
    p->capture = c;
    p->capture_next = c->pieces;
    c->pieces = p;
}

sh_cuda_piece *sh_cuda_capture_take(sh_cuda_capture *c, size_t size)
{
    sh_cuda_piece **best = NULL;
    for (sh_cuda_piece **p = &c->freed; *p; p = &(*p)->next) {
        if ((*p)->size >= size && (*p)->size / 2 <= size && (!best || (*p)->size < (*best)->size)) {
            best = p;
        }
    }
    if (!best) {
        return NULL;
    }
    sh_cuda_piece *p = *best;
    *best = p->next;
    p->next = NULL;
    p->state = SH_CUDA_USED;
    return p;
}

bool sh_cuda_capture_keep(sh_cuda_piece *p)
{
    if (!p->capture && !mine) {
        return false;
    }
    bool own = p->capture == mine;
    if (!p->capture) {
        sh_cuda_capture_add(mine, p); /* from before: the graph may read it, so nothing else may be written there */
    } else if (own && mine->state == RECORDING && p->granule && !p->ledger && !p->given) {
        p->next = mine->freed;
        mine->freed = p;
    } else if (!own && mine) {
        p->other = mine;
        p->other_next = mine->others;
        mine->others = p;
    }
    p->state = SH_CUDA_KEPT;
    return true;
}

bool sh_cuda_capture_hold(shoal_block *owner_block)
{
    if (!mine || !sh_cuda_is_ours()) { /* a child of fork never replays what its parent captures */
        return false;
    }
    shoal_block **fresh = realloc(mine->held, (mine->held_count + 1) * sizeof *fresh);
    if (!fresh) { /* a replay would use bytes that their maker uses again */
        (void)sh_cuda_capture_refuse("releasing a received tensor without memory to remember it");
        return false;
    }
    mine->held = fresh;
    fresh[mine->held_count++] = owner_block;
    return true;
}

/* Under the lock. Returns the piece if it is pinned memory that goes back to the driver. */
static sh_cuda_piece *leave_graph(sh_cuda_piece *p)
{
    p->capture = NULL;
    p->capture_next = NULL;
    p->next = p->prev = NULL;
    if (p->other) {
        sh_cuda_capture_add(p->other, p);
        p->other = NULL; /* it stays in that one's list of others, which is as long-lived as the piece now */
    } else if (p->state == SH_CUDA_KEPT && !p->granule) {
        return p;
    } else if (p->state == SH_CUDA_KEPT) {
        sh_cuda_piece_take_back(p);
    }
    return NULL;
}

/* The graph is gone: what was freed meanwhile becomes free, unless the graph of another capture uses it, too. Then it
 * belongs to that one from now on. */
static void give_back_pieces(sh_cuda_capture *c)
{
    sh_cuda_piece *pinned = NULL;
    sh_cardlock_lock(SH_CARD_LOCK_STATE);
    for (sh_cuda_piece *p = c->others; p; p = p->other_next) {
        p->other = NULL;
    }
    for (sh_cuda_piece *p = c->pieces, *next; p; p = next) {
        next = p->capture_next;
        sh_cuda_piece *back = leave_graph(p);
        if (back) {
            back->next = pinned;
            pinned = back;
        }
    }
    c->pieces = c->freed = c->others = NULL;
    sh_cardlock_unlock(SH_CARD_LOCK_STATE);
    for (sh_cuda_piece *p = pinned, *next; p; p = next) {
        next = p->next;
        void *data = (void *)(uintptr_t)p->address;
        sh_cardlock_lock(SH_CARD_LOCK_STATE);
        sh_cuda_piece_forget(p);
        sh_cardlock_unlock(SH_CARD_LOCK_STATE);
        sh_cuda_pinned_drop(data);
    }
}

/* ---- recording ---- */

static shoal_err start_recording(sh_cuda_capture *c)
{
    SH_TRY(sh_cuda_result("cannot make a stream", sh_cu.cuStreamCreate(&c->stream, SH_CU_STREAM_NON_BLOCKING)));
    shoal_err err =
        sh_cuda_result("cannot begin a capture", sh_cu.cuStreamBeginCapture(c->stream, SH_CU_CAPTURE_RELAXED));
    if (err != SHOAL_OK) {
        (void)sh_cu.cuStreamDestroy(c->stream);
        return err;
    }
    c->exec->stream = c->stream;
    c->exec->advance = c->word;
    c->exec->scratch = NULL;
    c->exec->scratch_size = 0;
    mine = c;
    return SHOAL_OK;
}

shoal_err sh_cuda_capture_begin(sh_cuda_capture **out_capture)
{
    if (mine && sh_cuda_is_ours()) {
        return sh_fail(SHOAL_ESTATE, "this thread is already capturing: end that capture first");
    }
    sh_exec *exec = sh_device_get(SHOAL_CUDA) ? sh_device_cuda.exec() : NULL;
    if (!exec) {
        return shoal_last_error();
    }
    sh_cuda_capture *c = calloc(1, sizeof *c);
    if (!c) {
        return sh_fail(SHOAL_ENOMEM, "no memory for a capture");
    }
    *c = (sh_cuda_capture){.exec = exec,
                           .scratch = exec->scratch,
                           .scratch_size = exec->scratch_size,
                           .advance = NO_ADVANCE,
                           .left = sh_load_relaxed(&sh_gpu.worlds_left),
                           .word = sh_cuda_alloc(sizeof(uint64_t))};
    shoal_err err = c->word ? start_recording(c) : shoal_last_error();
    if (err != SHOAL_OK) {
        sh_cuda_free(c->word, sizeof(uint64_t));
        free(c);
        return err;
    }
    *out_capture = c;
    return SHOAL_OK;
}

/* The thread's work runs again, instead of being recorded. */
static void leave_thread(sh_cuda_capture *c)
{
    sh_cuda_free(c->exec->scratch, c->exec->scratch_size); /* stays with the graph */
    c->exec->stream = sh_cuda_the_card()->stream;
    c->exec->advance = NULL;
    c->exec->scratch = c->scratch;
    c->exec->scratch_size = c->scratch_size;
    mine = NULL;
}

/* Returns what was recorded. */
static shoal_err end_stream(sh_cuda_capture *c, sh_cu_graph *out_graph)
{
    int result = sh_cu.cuStreamEndCapture(c->stream, out_graph);
    (void)sh_cu.cuStreamDestroy(c->stream);
    c->stream = NULL;
    return sh_cuda_result("cannot end a capture", result);
}

static void drop_stream(sh_cuda_capture *c)
{
    sh_cu_graph graph = NULL;
    (void)end_stream(c, &graph);
    if (graph) {
        (void)sh_cu.cuGraphDestroy(graph);
    }
}

/* The driver is not called in a thread that ends: destroy does the rest. */
void sh_cuda_capture_thread_ends(void)
{
    sh_cuda_capture *c = mine;
    if (c) {
        leave_thread(c);
        c->state = BROKEN;
        snprintf(c->reason, sizeof c->reason, "the thread that began the capture exited before it ended the capture");
    }
}

shoal_err sh_cuda_capture_refuse(const char *what)
{
    sh_cuda_capture *c = mine;
    if (__builtin_expect(!c, 1)) {
        return SHOAL_OK;
    }
    sh_cleanup_begin();
    leave_thread(c);
    drop_stream(c);
    sh_cleanup_end();
    c->state = BROKEN;
    snprintf(c->reason, sizeof c->reason, "%s cannot be captured: it needs the host", what);
    return sh_fail(SHOAL_ESTATE, "%s; the capture has ended", c->reason);
}

/* Checks whether this process has left a world since the capture began. */
static bool has_left(const sh_cuda_capture *c)
{
    return sh_load_relaxed(&sh_gpu.worlds_left) != c->left;
}

static shoal_err instantiate(sh_cuda_capture *c, sh_cu_graph graph)
{
    SH_TRY(sh_cuda_result("cannot make a graph of a capture", sh_cu.cuGraphInstantiate(&c->graph, graph, 0)));
    return sh_cuda_result("cannot send a graph to the GPU", sh_cu.cuGraphUpload(c->graph, sh_cuda_the_card()->stream));
}

static shoal_err make_graph(sh_cuda_capture *c)
{
    sh_cu_graph graph = NULL;
    c->own_only = !sh_cuda_imports_exist() && !has_left(c); /* a graph does not say which addresses it uses */
    leave_thread(c);
    shoal_err err = end_stream(c, &graph);
    if (err == SHOAL_OK) {
        err = instantiate(c, graph);
    }
    if (graph) {
        (void)sh_cu.cuGraphDestroy(graph);
    }
    return err;
}

shoal_err sh_cuda_capture_end(sh_cuda_capture *c)
{
    if (!sh_cuda_is_ours()) {
        return sh_cuda_check(); /* a child of fork has inherited it, and must not call the driver */
    }
    if (c->state == BROKEN) {
        return sh_fail(SHOAL_ESTATE, "%s", c->reason);
    }
    if (c != mine) {
        return sh_fail(SHOAL_ESTATE, c->state == READY
                                         ? "the capture was already ended"
                                         : "another thread began this capture; only that thread can end it");
    }
    shoal_err err = make_graph(c);
    c->state = err == SHOAL_OK ? READY : BROKEN;
    if (err != SHOAL_OK) {
        snprintf(c->reason, sizeof c->reason, "%s", shoal_last_error_text());
    }
    return err;
}

/* ---- launching ---- */

static shoal_err check_launch(const sh_cuda_capture *c)
{
    SH_TRY(sh_cuda_check());
    SH_TRY(sh_cuda_capture_refuse("replaying a capture"));
    SH_TRY(sh_cuda_follow());
    if (c->state != READY) {
        return sh_fail(SHOAL_ESTATE, "the capture %s",
                       c->state == BROKEN ? "failed and cannot be replayed" : "was not ended");
    }
    if (!c->own_only && has_left(c)) {
        return sh_fail(SHOAL_ESTATE,
                       "the capture may use tensors of other processes, and this process has left their world");
    }
    return SHOAL_OK;
}

static shoal_err enqueue(sh_cuda_capture *c, uint64_t advance)
{
    sh_cu_stream stream = sh_cuda_the_card()->stream;
    if (advance != c->advance) {
        c->advance = NO_ADVANCE;
        SH_TRY(sh_cuda_result(
            "cannot advance the random numbers",
            sh_cu.cuStreamWriteValue64(stream, (sh_cu_address)(uintptr_t)c->word, advance, SH_CU_WRITE_VALUE_DEFAULT)));
        c->advance = advance;
    }
    return sh_cuda_result("cannot launch a graph", sh_cu.cuGraphLaunch(c->graph, stream));
}

shoal_err sh_cuda_capture_launch(sh_cuda_capture *c, uint64_t advance)
{
    SH_TRY(check_launch(c));
    shoal_err err = enqueue(c, advance);
    sh_cuda_touch();
    return err;
}

void sh_cuda_capture_destroy(sh_cuda_capture *c)
{
    if (!c || !sh_cuda_is_ours()) {
        return;
    }
    sh_cleanup_begin();
    (void)sh_cuda_check(); /* the context becomes current in this thread */
    if (c == mine) {
        (void)sh_cuda_capture_refuse("destroying it");
    } else if (c->stream) {
        drop_stream(c);
    }
    if (c->graph) {
        sh_cuda_order_finish();
        (void)sh_cu.cuGraphExecDestroy(c->graph);
    }
    give_back_pieces(c);
    for (size_t i = 0; i < c->held_count; i++) {
        sh_cuda_close(c->held[i]); /* work from before the capture may use them still */
    }
    free(c->held);
    sh_cuda_free(c->word, sizeof(uint64_t));
    free(c);
    sh_cleanup_end();
}
