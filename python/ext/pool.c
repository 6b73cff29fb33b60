/* The inner loops of shoal.multiprocessing.pool: putting tasks, running them in a worker, and collecting results.
 *
 * A task is a list of a task_header, as bytes with the pickled function behind it, and the arguments. A result is a
 * list of a result_header and the value. The headers can be read when the rest cannot be decoded, so a task or a result
 * that fails to unpickle fails alone. */
#include "codec.h"

#include <stdatomic.h>
#include <string.h>
#include <time.h>

/* How a worker calls the function. pool.py has the same numbers. */
enum {
    CALL_ONE,      /* f(x) */
    CALL_STAR,     /* f(*x) */
    CALL_CHUNK,    /* [f(x) for x in chunk] */
    CALL_STARS,    /* [f(*x) for x in chunk] */
    CALL_KEYWORDS, /* x is (args, kwds): f(*args, **kwds) */
};

/* pool.py has the same numbers. */
enum {
    RESULT_DONE,      /* the value is what the task returned */
    RESULT_RAISED,    /* the value is what it raised */
    RESULT_GAVE_UP,   /* the task was delivered too often: each time its worker died */
    RESULT_NOTE,      /* not a result: the handler thread should look around */
    RESULT_NO_START,  /* the value is what the initializer of a worker raised */
    RESULT_NO_MEMORY, /* there was no memory to send what the task returned or raised; the value says more */
};

typedef struct task_header {
    int64_t job, index;
    int32_t call;
    int32_t whole; /* the function is not behind the header but in the arguments: (function, x) */
    int32_t keep;  /* the worker may keep the function for the next task: it is a global one */
    int32_t function_size;
} task_header;

typedef struct result_header {
    int64_t job, index;
    int64_t outcome;
} result_header;

/* What a worker tells about itself. One for each place, in a block of shared memory.
 *
 * Synchronisation: written by the worker of this place; read by the parent, after the worker's end or for the count. */
typedef struct place_shm {
    _Atomic int64_t job; /* of the task that it runs; 0: none. Written after index */
    int64_t index;
    _Atomic int64_t ready;     /* its initializer has returned */
    _Atomic int64_t no_memory; /* it ended because it could not even send that there is no memory for a result */
} place_shm;

/* ---- messages ---- */

static shoal_value *message(const void *header, size_t size, shoal_value *body)
{
    shoal_value *list = shoal_list_add(shoal_list_add(shoal_value_list(), shoal_value_bytes(header, size)), body);
    if (list == NULL) {
        ext_raise(shoal_last_error());
    }
    return list;
}

static const void *damaged(void)
{
    PyErr_SetString(ext_error, "a message of a pool is damaged");
    return NULL;
}

/* Copies the header of a message. Returns the bytes behind it, or NULL if it is not a message of ours. */
static const char *open_message(const shoal_value *value, void *header, size_t header_size, size_t *out_rest)
{
    size_t size = 0;
    const char *bytes = shoal_value_type(value) == SHOAL_LIST && shoal_value_count(value) == 2
                            ? shoal_value_as_bytes(shoal_value_at(value, 0), &size)
                            : NULL;
    if (bytes == NULL || size < header_size) {
        return damaged();
    }
    memcpy(header, bytes, header_size);
    *out_rest = size - header_size;
    return bytes + header_size;
}

/* Consumes the value. */
static int put(shoal_queue *queue, shoal_value *value)
{
    shoal_err err = value != NULL ? shoal_queue_put(queue, value, SHOAL_FOREVER) : SHOAL_OK; /* it has no bound */
    if (err != SHOAL_OK) {
        ext_raise(err);
    }
    return value != NULL && err == SHOAL_OK ? 0 : -1;
}

/* ---- putting tasks ---- */

#define SMALL_FUNCTION 512

static shoal_value *task(const task_header *header, const char *function, PyObject *argument)
{
    char bytes[sizeof *header + SMALL_FUNCTION];
    size_t size = (size_t)header->function_size;
    if (size > SMALL_FUNCTION) {
        PyErr_SetString(PyExc_ValueError, "the pickled function is too large");
        return NULL;
    }
    memcpy(bytes, header, sizeof *header);
    memcpy(bytes + sizeof *header, function, size);
    shoal_value *body = ext_encode(argument);
    return body != NULL ? message(bytes, sizeof *header + size, body) : NULL;
}

/* Returns about how much memory a value takes once it is put. */
static size_t size_of(const shoal_value *value, int depth)
{
    size_t size = 0, count;
    switch (shoal_value_type(value)) {
    case SHOAL_STRING: return strlen(shoal_value_as_string(value));
    case SHOAL_BYTES: return shoal_value_as_bytes(value, &size) != NULL ? size : 0;
    case SHOAL_FOREIGN: return shoal_value_as_foreign(value, NULL, &size) != NULL ? size : 0;
    case SHOAL_OBJECT:
        return shoal_value_object_kind(value) == SHOAL_KIND_BLOCK ? shoal_block_size(shoal_value_as_block(value)) : 0;
    case SHOAL_LIST:
    case SHOAL_MAP:
        count = depth > 0 ? shoal_value_count(value) : 0;
        for (size_t i = 0; i < count; i++) {
            size += size_of(shoal_value_at(value, i), depth - 1);
        }
        return size;
    default: return 0;
    }
}

/* pool_put(queue, job, index, call, function, keep, x): returns about how many bytes that takes. function is None if x
 * has it: (function, x). */
static PyObject *pool_put(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *queue_object, *argument;
    const char *function;
    Py_ssize_t size;
    long long job, index;
    task_header header = {0};
    if (!PyArg_ParseTuple(args, "OLLiz#pO", &queue_object, &job, &index, &header.call, &function, &size, &header.keep,
                          &argument)) {
        return NULL;
    }
    shoal_queue *queue = ext_shared_handle(queue_object, SHOAL_KIND_QUEUE);
    if (queue == NULL) {
        return NULL;
    }
    header.job = job;
    header.index = index;
    header.whole = function == NULL;
    header.function_size = function == NULL ? 0 : (int32_t)size;
    shoal_value *value = task(&header, function == NULL ? "" : function, argument);
    size_t bytes = value != NULL ? size_of(value, 3) : 0;
    return put(queue, value) == 0 ? PyLong_FromSize_t(bytes) : NULL;
}

/* ---- the worker ---- */

typedef struct worker {
    shoal_queue *tasks, *results;
    place_shm *place;
    unsigned int deliveries; /* how often a task may be delivered */
    PyObject *load;          /* load(pickled function) */
    PyObject *failed;        /* failed(exception, result or None): the exception to send */
    PyObject *kept_pickle;   /* the function that was kept, and its pickle */
    PyObject *kept;
} worker;

static PyObject *function_of(worker *w, const task_header *header, const char *bytes)
{
    Py_ssize_t size = header->function_size;
    if (w->kept != NULL && PyBytes_Size(w->kept_pickle) == size &&
        memcmp(PyBytes_AsString(w->kept_pickle), bytes, (size_t)size) == 0) {
        return Py_NewRef(w->kept);
    }
    PyObject *pickle = PyBytes_FromStringAndSize(bytes, size);
    PyObject *function = pickle != NULL ? PyObject_CallFunctionObjArgs(w->load, pickle, NULL) : NULL;
    if (function != NULL && header->keep) {
        Py_XDECREF(w->kept);
        Py_XDECREF(w->kept_pickle);
        w->kept = Py_NewRef(function);
        w->kept_pickle = Py_NewRef(pickle);
    }
    Py_XDECREF(pickle);
    return function;
}

static PyObject *call_star(PyObject *function, PyObject *x, PyObject *kwds)
{
    PyObject *args = PyTuple_CheckExact(x) ? Py_NewRef(x) : PySequence_Tuple(x);
    PyObject *result = args != NULL ? PyObject_Call(function, args, kwds) : NULL;
    Py_XDECREF(args);
    return result;
}

static PyObject *call_one(PyObject *function, PyObject *x)
{
    return PyObject_CallFunctionObjArgs(function, x, NULL);
}

static PyObject *call_chunk(PyObject *function, PyObject *chunk, int star)
{
    Py_ssize_t count = PyTuple_Size(chunk);
    PyObject *results = count >= 0 ? PyList_New(count) : NULL;
    for (Py_ssize_t i = 0; results != NULL && i < count; i++) {
        PyObject *x = PyTuple_GetItem(chunk, i);
        PyObject *result = star ? call_star(function, x, NULL) : call_one(function, x);
        if (result == NULL || PyList_SetItem(results, i, result) != 0) {
            Py_CLEAR(results);
        }
    }
    return results;
}

static PyObject *call_keywords(PyObject *function, PyObject *both)
{
    PyObject *args = PyTuple_GetItem(both, 0), *kwds = args != NULL ? PyTuple_GetItem(both, 1) : NULL;
    if (kwds == NULL) {
        return NULL;
    }
    PyObject *copy = PyDict_New();
    PyObject *result = copy != NULL && PyDict_Update(copy, kwds) == 0 ? call_star(function, args, copy) : NULL;
    Py_XDECREF(copy);
    return result;
}

static PyObject *call(PyObject *function, PyObject *x, int32_t how)
{
    switch (how) {
    case CALL_STAR: return call_star(function, x, NULL);
    case CALL_CHUNK: return call_chunk(function, x, 0);
    case CALL_STARS: return call_chunk(function, x, 1);
    case CALL_KEYWORDS: return call_keywords(function, x);
    default: return call_one(function, x);
    }
}

/* Decodes the function and its argument, and calls it. Destroys the value before the call: its memory is large. */
static PyObject *run(worker *w, const task_header *header, const char *bytes, shoal_value *value)
{
    PyObject *x = ext_decode_part(shoal_value_at(value, 1));
    PyObject *both = NULL, *function = NULL;
    if (x != NULL && header->whole) {
        both = x;
        function = Py_XNewRef(PyTuple_GetItem(both, 0));
        x = function != NULL ? Py_XNewRef(PyTuple_GetItem(both, 1)) : NULL;
        Py_DECREF(both);
    } else if (x != NULL) {
        function = function_of(w, header, bytes);
    }
    shoal_value_destroy(value);
    PyObject *result = x != NULL && function != NULL ? call(function, x, header->call) : NULL;
    Py_XDECREF(function);
    Py_XDECREF(x);
    return result;
}

/* Takes the exception of this thread. */
static PyObject *take_exception(void)
{
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    PyErr_NormalizeException(&type, &error, &trace);
    if (trace != NULL) {
        PyException_SetTraceback(error, trace);
    }
    Py_XDECREF(type);
    Py_XDECREF(trace);
    return error;
}

/* Replaces a result by the exception that is set now. Consumes the result, which is NULL if the task raised. What is
 * not an Exception ends the worker. */
static PyObject *failure(const worker *w, PyObject *result)
{
    PyObject *error = PyErr_ExceptionMatches(PyExc_Exception) ? take_exception() : NULL;
    PyObject *report = error == NULL ? NULL
                                     : PyObject_CallFunctionObjArgs(w->failed, error, result == NULL ? Py_None : result,
                                                                    result == NULL ? Py_False : Py_True, NULL);
    Py_XDECREF(error);
    Py_XDECREF(result);
    return report;
}

/* Encodes a result. What cannot be encoded is replaced by an exception that says so. Consumes the result. */
static shoal_value *encode_result(const worker *w, result_header *header, PyObject *result)
{
    shoal_value *body = NULL;
    if (result == NULL) {
        header->outcome = RESULT_RAISED;
        result = failure(w, NULL);
    }
    if (result != NULL) {
        body = ext_encode(result);
    }
    if (result != NULL && body == NULL && !PyErr_ExceptionMatches(PyExc_MemoryError)) {
        header->outcome = RESULT_RAISED;
        result = failure(w, result);
        body = result != NULL ? ext_encode(result) : NULL;
    }
    Py_XDECREF(result);
    return body != NULL ? message(header, sizeof *header, body) : NULL;
}

/* Takes the exception of this thread as a value that says why. */
static shoal_value *take_reason(void)
{
    PyObject *error = take_exception();
    PyObject *text = error != NULL ? PyObject_Str(error) : NULL;
    PyObject *bytes = text != NULL ? PyUnicode_AsUTF8String(text) : NULL;
    const char *reason = bytes != NULL ? PyBytes_AsString(bytes) : NULL;
    shoal_value *value = shoal_value_string(reason != NULL ? reason : "");
    PyErr_Clear();
    Py_XDECREF(bytes);
    Py_XDECREF(text);
    Py_XDECREF(error);
    return value;
}

static void pause_a_moment(void)
{
    const struct timespec pause = {.tv_nsec = 20000000};
    Py_BEGIN_ALLOW_THREADS;
    nanosleep(&pause, NULL);
    Py_END_ALLOW_THREADS;
}

/* Puts a small message. The heap may be full for a moment only, so this tries for a second; again without the body. */
static int put_small(const worker *w, const result_header *header, shoal_value *body)
{
    int done = put(w->results, message(header, sizeof *header, body));
    for (int tries = 0; done != 0 && tries < 50 && PyErr_ExceptionMatches(PyExc_MemoryError); tries++) {
        PyErr_Clear();
        pause_a_moment();
        done = PyErr_CheckSignals();
        if (done == 0) {
            done = put(w->results, message(header, sizeof *header, shoal_value_null()));
        }
    }
    return done;
}

/* Says, instead of the result, that there is no memory for it. The exception that is set says why. If there is none for
 * that either, the worker ends, which frees what it holds, and its place tells the parent. */
static int put_no_memory(worker *w, result_header *header)
{
    header->outcome = RESULT_NO_MEMORY;
    int done = put_small(w, header, take_reason());
    if (done != 0 && PyErr_ExceptionMatches(PyExc_MemoryError)) {
        atomic_store_explicit(&w->place->no_memory, 1, memory_order_release);
    }
    return done;
}

/* Puts the result of a task; NULL if it raised. Consumes it. */
static int put_result(worker *w, result_header *header, PyObject *result)
{
    int done = put(w->results, encode_result(w, header, result));
    return done != 0 && PyErr_ExceptionMatches(PyExc_MemoryError) ? put_no_memory(w, header) : done;
}

/* Runs a task that was taken and puts its result. Consumes the value. */
static int work_on(worker *w, shoal_value *value, const shoal_delivery *delivery)
{
    task_header header;
    size_t rest;
    const char *bytes = open_message(value, &header, sizeof header, &rest);
    if (bytes != NULL && rest != (size_t)header.function_size) {
        bytes = damaged();
    }
    if (bytes == NULL) {
        shoal_value_destroy(value);
        return -1;
    }
    result_header answer = {.job = header.job, .index = header.index, .outcome = RESULT_DONE};
    if (delivery->deliveries > w->deliveries) {
        shoal_value_destroy(value);
        answer.outcome = RESULT_GAVE_UP;
        return put_small(w, &answer, shoal_value_null());
    }
    w->place->index = header.index;
    atomic_store_explicit(&w->place->job, header.job, memory_order_release);
    PyObject *result = run(w, &header, bytes, value);
    return put_result(w, &answer, result);
}

static shoal_err take(const worker *w, shoal_value **out_value, shoal_delivery *out_delivery)
{
    if (PyErr_CheckSignals() != 0) { /* the function may be one in C, which runs no handlers */
        return SHOAL_EINTR;
    }
    shoal_err err = shoal_queue_get_delivery(w->tasks, SHOAL_NOW, out_value, out_delivery);
    if (err == SHOAL_ETIMEDOUT) {
        EXT_WAIT(err, shoal_queue_get_delivery(w->tasks, SHOAL_FOREVER, out_value, out_delivery));
    }
    return err;
}

/* Returns 1 after a task, 0 if the queue is closed and empty, -1 with an exception. */
static int work_once(worker *w)
{
    shoal_value *value;
    shoal_delivery delivery;
    shoal_err err;
    while ((err = take(w, &value, &delivery)) == SHOAL_ENOMEM) {
        pause_a_moment(); /* the heap is full; the task is back in the queue */
    }
    if (err == SHOAL_ECLOSED) {
        return 0;
    }
    if (err != SHOAL_OK) {
        ext_raise(err);
        return -1;
    }
    if (work_on(w, value, &delivery) != 0) {
        return -1; /* this process ends, and so the queue takes the task back */
    }
    err = shoal_delivery_done(&delivery);
    atomic_store_explicit(&w->place->job, 0, memory_order_release);
    if (err != SHOAL_OK) {
        ext_raise(err);
        return -1;
    }
    return 1;
}

/* pool_work(tasks, results, places, place, tasks at most or 0, deliveries at most, load, failed) */
static PyObject *pool_work(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *tasks, *results, *places;
    unsigned long long place, most;
    worker w = {0};
    if (!PyArg_ParseTuple(args, "OOOKKIOO", &tasks, &results, &places, &place, &most, &w.deliveries, &w.load,
                          &w.failed)) {
        return NULL;
    }
    w.tasks = ext_shared_handle(tasks, SHOAL_KIND_QUEUE);
    w.results = w.tasks != NULL ? ext_shared_handle(results, SHOAL_KIND_QUEUE) : NULL;
    shoal_block *block = w.results != NULL ? ext_shared_handle(places, SHOAL_KIND_BLOCK) : NULL;
    if (block == NULL) {
        return NULL;
    }
    if (place >= shoal_block_size(block) / sizeof(place_shm)) {
        PyErr_SetString(PyExc_ValueError, "there is no such place");
        return NULL;
    }
    w.place = (place_shm *)shoal_block_data(block) + place;
    atomic_store_explicit(&w.place->ready, 1, memory_order_release);
    int state = 1;
    for (unsigned long long done = 0; state == 1 && (most == 0 || done < most); done++) {
        state = work_once(&w);
        if (done % 64 == 0) { /* functions in C would never let another thread of this worker run */
            Py_BEGIN_ALLOW_THREADS;
            Py_END_ALLOW_THREADS;
        }
    }
    Py_XDECREF(w.kept);
    Py_XDECREF(w.kept_pickle);
    if (state < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* ---- results ---- */

/* pool_answer(results, outcome, obj): puts something that is not the result of a task. */
static PyObject *pool_answer(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *results, *obj;
    long long outcome;
    if (!PyArg_ParseTuple(args, "OLO", &results, &outcome, &obj)) {
        return NULL;
    }
    shoal_queue *queue = ext_shared_handle(results, SHOAL_KIND_QUEUE);
    shoal_value *body = queue != NULL ? ext_encode(obj) : NULL;
    result_header header = {.outcome = outcome};
    if (body == NULL || put(queue, message(&header, sizeof header, body)) != 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* Makes (job, index, outcome, value). Consumes the value. */
static PyObject *decode_result(shoal_value *value)
{
    result_header header;
    size_t rest;
    if (open_message(value, &header, sizeof header, &rest) == NULL) {
        shoal_value_destroy(value);
        return NULL;
    }
    PyObject *obj = ext_decode_part(shoal_value_at(value, 1));
    shoal_value_destroy(value);
    if (obj == NULL) {
        obj = take_exception();
        header.outcome = RESULT_RAISED;
    }
    return obj != NULL
               ? Py_BuildValue("(LLLN)", (long long)header.job, (long long)header.index, (long long)header.outcome, obj)
               : NULL;
}

/* A full heap has no room for a message that there is a note, so the handler thread looks from time to time. */
#define COLLECT_TIME SHOAL_SECONDS(1)

/* pool_collect(results, most): waits for a result, a second at most, and returns a list of those that are there; None
 * once the queue is closed and empty. After MemoryError nothing is lost. */
static PyObject *pool_collect(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *results;
    Py_ssize_t most;
    if (!PyArg_ParseTuple(args, "On", &results, &most)) {
        return NULL;
    }
    shoal_queue *queue = ext_shared_handle(results, SHOAL_KIND_QUEUE);
    PyObject *list = queue != NULL ? PyList_New(0) : NULL;
    if (list == NULL) {
        return NULL;
    }
    shoal_value *value;
    shoal_err err = shoal_queue_get(queue, SHOAL_NOW, &value);
    if (err == SHOAL_ETIMEDOUT) {
        shoal_queue_retain(queue);
        EXT_WAIT(err, shoal_queue_get(queue, COLLECT_TIME, &value));
        shoal_queue_release(queue);
    }
    while (err == SHOAL_OK) {
        PyObject *result = decode_result(value);
        if (result == NULL || PyList_Append(list, result) != 0) {
            Py_XDECREF(result);
            Py_DECREF(list);
            return NULL;
        }
        Py_DECREF(result);
        err = PyList_Size(list) < most ? shoal_queue_get(queue, SHOAL_NOW, &value) : SHOAL_ETIMEDOUT;
    }
    if (err == SHOAL_ETIMEDOUT || PyList_Size(list) > 0) {
        return list;
    }
    Py_DECREF(list);
    if (err == SHOAL_ECLOSED) {
        Py_RETURN_NONE;
    }
    return ext_raise(err);
}

int ext_add_pool(PyObject *module)
{
    static PyMethodDef functions[] = {
        {"pool_put", pool_put, METH_VARARGS, NULL},
        {"pool_work", pool_work, METH_VARARGS, NULL},
        {"pool_answer", pool_answer, METH_VARARGS, NULL},
        {"pool_collect", pool_collect, METH_VARARGS, NULL},
        {NULL, NULL, 0, NULL},
    };
    return PyModule_AddFunctions(module, functions);
}
