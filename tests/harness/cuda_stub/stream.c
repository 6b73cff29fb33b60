/* The stub driver: streams and captures. A stream is a list of jobs. A job is done at once, if those before it are
 * done; jobs behind one that waits are done when somebody calls the stream again. */
#include "tests/harness/cuda_stub/driver.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

typedef enum job_kind {
    JOB_COPY,
    JOB_WRITE, /* a word */
    JOB_WAIT,  /* until a word has reached a value */
    JOB_CALL,  /* of a kernel: to(from) */
} job_kind;

typedef struct job {
    struct job *next;
    job_kind kind;
    void *to;
    const void *from;
    uint64_t size; /* or value */
    bool owned;    /* from is a copy of the caller's bytes */
} job;

typedef struct jobs {
    job *first, **end;
    unsigned count;
} jobs;

struct CUgraph_st {
    jobs jobs;
};

struct CUgraphExec_st {
    jobs jobs;
};

struct CUstream_st {
    jobs waiting;
    struct CUgraph_st *capture;
};

static uint64_t gate = 1, gate_open = 1; /* a blocked stream waits for the word gate */
static unsigned room;                    /* of a stream; 0: any number */

/* The default streams have numbers instead of addresses. Their work is done at once, and is nothing. */
static bool is_default(sh_cu_stream s)
{
    return (uintptr_t)s <= 2;
}

/* What a trace calls a stream. */
const char *stub_kind(sh_cu_stream s)
{
    return is_default(s) ? "default" : s->capture ? "capture" : "stream";
}

static void jobs_add(jobs *list, const job *what)
{
    job *fresh = malloc(sizeof *fresh);
    *fresh = *what;
    fresh->next = NULL;
    if (what->owned) {
        void *copy = malloc(what->size + 1);
        memcpy(copy, what->from, what->size);
        fresh->from = copy;
    }
    if (!list->first) {
        list->end = &list->first;
    }
    *list->end = fresh;
    list->end = &fresh->next;
    list->count++;
}

static void jobs_drop_first(jobs *list)
{
    job *done = list->first;
    list->first = done->next;
    list->count--;
    if (done->owned) {
        free((void *)(uintptr_t)done->from);
    }
    free(done);
}

/* Does one job. Returns false if it must wait. */
static bool do_job(const job *j)
{
    switch (j->kind) {
    case JOB_COPY: memmove(j->to, j->from, j->size); return true;
    case JOB_WRITE: __atomic_store_n((uint64_t *)j->to, j->size, __ATOMIC_SEQ_CST); return true;
    case JOB_WAIT: return __atomic_load_n((const uint64_t *)j->from, __ATOMIC_SEQ_CST) >= j->size;
    case JOB_CALL: ((void (*)(const void *))j->to)(j->from); return true;
    }
    return true;
}

/* Does what can be done. Under the lock. Returns true if nothing is left. */
static bool go_on(sh_cu_stream s)
{
    while (s->waiting.first && do_job(s->waiting.first)) {
        jobs_drop_first(&s->waiting);
    }
    return !s->waiting.first;
}

/* Under the lock, which it gives up meanwhile: waits until there is room for one job more. */
static void await_room(sh_cu_stream s)
{
    while (room > 0 && !go_on(s) && s->waiting.count >= room) {
        stub_unlock();
        sched_yield();
        stub_lock();
    }
}

/* Adds a job; `owned` bytes are copied if it cannot be done at once. */
static int enqueue(sh_cu_stream s, job j)
{
    if (is_default(s)) {
        return SH_CU_OK;
    }
    stub_lock();
    if (!s->capture) {
        await_room(s);
    }
    if (s->capture) {
        j.owned = j.kind == JOB_CALL; /* a copy reads the caller's bytes again each time */
        jobs_add(&s->capture->jobs, &j);
    } else if (!go_on(s) || gate < gate_open || !do_job(&j)) {
        if (gate < gate_open) {
            jobs_add(&s->waiting, &(job){.kind = JOB_WAIT, .from = &gate, .size = gate_open});
        }
        jobs_add(&s->waiting, &j);
    }
    stub_unlock();
    return SH_CU_OK;
}

void stub_block(void)
{
    stub_lock();
    gate_open = gate + 1;
    stub_unlock();
}

void stub_unblock(void)
{
    stub_lock();
    gate = gate_open;
    stub_unlock();
}

void stub_room(unsigned things)
{
    stub_lock();
    room = things;
    stub_unlock();
}

STUB_EXPORT int cuGraphDestroy(sh_cu_graph graph);

STUB_EXPORT int cuStreamCreate(sh_cu_stream *out, unsigned flags)
{
    (void)flags;
    ENTER;
    *out = calloc(1, sizeof **out);
    return SH_CU_OK;
}

STUB_EXPORT int cuStreamDestroy_v2(sh_cu_stream s)
{
    ENTER_STREAM(s);
    if (s->capture) {
        (void)cuGraphDestroy(s->capture);
    }
    free(s);
    return SH_CU_OK;
}

STUB_EXPORT int cuStreamQuery(sh_cu_stream s)
{
    ENTER_STREAM(s);
    stub_lock();
    bool done = is_default(s) || go_on(s);
    stub_unlock();
    return done ? SH_CU_OK : SH_CU_NOT_READY;
}

static void wait_for(sh_cu_stream s)
{
    for (bool done = false; !done;) {
        stub_lock();
        done = go_on(s);
        stub_unlock();
        if (!done) {
            sched_yield(); /* on a busy machine that takes milliseconds */
        }
    }
}

STUB_EXPORT int cuStreamSynchronize(sh_cu_stream s)
{
    ENTER_STREAM(s);
    wait_for(s);
    return SH_CU_OK;
}

STUB_EXPORT int cuMemcpyHtoDAsync_v2(sh_cu_address to, const void *from, size_t size, sh_cu_stream s)
{
    ENTER_STREAM(s);
    return enqueue(s, (job){.kind = JOB_COPY, .to = (void *)(uintptr_t)to, .from = from, .size = size, .owned = true});
}

/* To memory that is not pinned, a driver's copy returns when it is done. */
STUB_EXPORT int cuMemcpyDtoHAsync_v2(void *to, sh_cu_address from, size_t size, sh_cu_stream s)
{
    ENTER_STREAM(s);
    int result = enqueue(s, (job){.kind = JOB_COPY, .to = to, .from = (const void *)(uintptr_t)from, .size = size});
    if (result == SH_CU_OK && !is_default(s) && !s->capture && !stub_is_pinned(to)) {
        wait_for(s);
    }
    return result;
}

STUB_EXPORT int cuMemcpyDtoDAsync_v2(sh_cu_address to, sh_cu_address from, size_t size, sh_cu_stream s)
{
    ENTER_STREAM(s);
    return enqueue(
        s, (job){.kind = JOB_COPY, .to = (void *)(uintptr_t)to, .from = (const void *)(uintptr_t)from, .size = size});
}

STUB_EXPORT void shoal_stub_call(sh_cu_stream s, void (*call)(const void *arg), const void *arg, size_t size)
{
    if (is_default(s)) {
        call(arg);
        return;
    }
    (void)enqueue(s, (job){.kind = JOB_CALL, .to = (void *)call, .from = arg, .size = size, .owned = true});
}

STUB_EXPORT int cuStreamWriteValue64_v2(sh_cu_stream s, sh_cu_address word, uint64_t value, unsigned flags)
{
    (void)flags;
    ENTER_STREAM(s);
    return enqueue(s, (job){.kind = JOB_WRITE, .to = (void *)(uintptr_t)word, .size = value});
}

STUB_EXPORT int cuStreamWaitValue64_v2(sh_cu_stream s, sh_cu_address word, uint64_t value, unsigned flags)
{
    (void)flags;
    ENTER_STREAM(s);
    return enqueue(s, (job){.kind = JOB_WAIT, .from = (const void *)(uintptr_t)word, .size = value});
}

/* ---- events: a word that a stream writes, and another one waits for ---- */

struct CUevent_st {
    uint64_t done, recorded;
};

STUB_EXPORT int cuEventCreate(sh_cu_event *out, unsigned flags)
{
    (void)flags;
    ENTER;
    *out = calloc(1, sizeof **out);
    return SH_CU_OK;
}

STUB_EXPORT int cuEventDestroy_v2(sh_cu_event event)
{
    ENTER;
    free(event);
    return SH_CU_OK;
}

STUB_EXPORT int cuEventRecord(sh_cu_event event, sh_cu_stream s)
{
    ENTER_STREAM(s);
    return enqueue(s, (job){.kind = JOB_WRITE, .to = &event->done, .size = ++event->recorded});
}

STUB_EXPORT int cuStreamWaitEvent(sh_cu_stream s, sh_cu_event event, unsigned flags)
{
    (void)flags;
    ENTER_STREAM(s);
    return enqueue(s, (job){.kind = JOB_WAIT, .from = &event->done, .size = event->recorded});
}

/* ---- captures ---- */

STUB_EXPORT int cuStreamIsCapturing(sh_cu_stream s, int *out_status)
{
    ENTER_STREAM(s);
    *out_status = !is_default(s) && s->capture != NULL;
    return SH_CU_OK;
}

STUB_EXPORT int cuThreadExchangeStreamCaptureMode(int *mode)
{
    ENTER;
    *mode = stub_exchange_mode(*mode);
    return SH_CU_OK;
}

STUB_EXPORT int cuStreamBeginCapture_v2(sh_cu_stream s, int mode)
{
    (void)mode;
    ENTER_STREAM(s);
    s->capture = calloc(1, sizeof *s->capture);
    return SH_CU_OK;
}

STUB_EXPORT int cuStreamEndCapture(sh_cu_stream s, sh_cu_graph *out)
{
    ENTER_STREAM(s);
    *out = s->capture;
    s->capture = NULL;
    return SH_CU_OK;
}

STUB_EXPORT int cuGraphInstantiateWithFlags(sh_cu_graph_exec *out, sh_cu_graph graph, unsigned long long flags)
{
    (void)flags;
    ENTER;
    *out = calloc(1, sizeof **out);
    for (job *j = graph->jobs.first; j; j = j->next) {
        jobs_add(&(*out)->jobs, j);
    }
    return SH_CU_OK;
}

STUB_EXPORT int cuGraphUpload(sh_cu_graph_exec graph, sh_cu_stream s)
{
    (void)graph;
    (void)s;
    ENTER_STREAM(s);
    return SH_CU_OK;
}

STUB_EXPORT int cuGraphLaunch(sh_cu_graph_exec graph, sh_cu_stream s)
{
    ENTER_STREAM(s);
    for (job *j = graph->jobs.first; j; j = j->next) {
        (void)enqueue(s, *j);
    }
    return SH_CU_OK;
}

STUB_EXPORT int cuGraphExecDestroy(sh_cu_graph_exec graph)
{
    ENTER;
    while (graph->jobs.first) {
        jobs_drop_first(&graph->jobs);
    }
    free(graph);
    return SH_CU_OK;
}

STUB_EXPORT int cuGraphDestroy(sh_cu_graph graph)
{
    ENTER;
    while (graph->jobs.first) {
        jobs_drop_first(&graph->jobs);
    }
    free(graph);
    return SH_CU_OK;
}
