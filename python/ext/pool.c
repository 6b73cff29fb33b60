/* The inner loops of shoal.multiprocessing.pool, around a pool of the library whose workers Python starts: submitting
 * tasks, running them in a worker, and collecting answers.
 *
 * A task is a list of a task_header, as bytes with the pickled function behind it, and the arguments. The header can be
 * read when the rest cannot be decoded, so a task that fails to unpickle fails alone. */
#include "codec.h"

#include <shoal/pool.h>

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

/* pool_child.py has the same numbers. */
enum {
    OUTCOME_DONE,      /* the value is what the task returned */
    OUTCOME_RAISED,    /* the value is what it raised */
    OUTCOME_DIED,      /* its worker died, and it is not run again; the value is the reason of pool_lost */
    OUTCOME_NO_MEMORY, /* there was no memory to send what the task returned or raised; the value is a text or None */
};

#define RAISED SHOAL_ETYPE /* the error of an answer whose value is an exception */

typedef struct task_header {
    int32_t call;
    int32_t whole; /* the function is not behind the header but in the arguments: (function, x) */
    int32_t keep;  /* the worker may keep the function for the next task: it is a global one */
    int32_t function_size;
} task_header;

/* ---- the pool ---- */

#define CAPSULE "shoal.pool"

static shoal_pool *pool_of(PyObject *capsule)
{
    return PyCapsule_GetPointer(capsule, CAPSULE);
}

static void destroy_pool(PyObject *capsule)
{
    shoal_pool_destroy(pool_of(capsule));
}

/* Reads the three shared objects of a pool. */
static int objects_of(PyObject *tasks, PyObject *answers, PyObject *places, shoal_pool_objects *out)
{
    out->tasks = ext_shared_handle(tasks, SHOAL_KIND_QUEUE);
    out->answers = out->tasks != NULL ? ext_shared_handle(answers, SHOAL_KIND_QUEUE) : NULL;
    out->places = out->answers != NULL ? ext_shared_handle(places, SHOAL_KIND_BLOCK) : NULL;
    return out->places != NULL ? 0 : -1;
}

/* pool_make(tasks, answers, places, retries): makes the pool of these objects. */
static PyObject *pool_make(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *tasks, *answers, *places;
    shoal_pool_objects objects;
    shoal_pool *pool;
    int retries;
    if (!PyArg_ParseTuple(args, "OOOi", &tasks, &answers, &places, &retries) ||
        objects_of(tasks, answers, places, &objects) != 0) {
        return NULL;
    }
    shoal_err err = shoal_pool_create_on(&objects, retries, &pool);
    if (err != SHOAL_OK) {
        return ext_raise(err);
    }
    PyObject *capsule = PyCapsule_New(pool, CAPSULE, destroy_pool);
    if (capsule == NULL) {
        shoal_pool_destroy(pool);
    }
    return capsule;
}

/* pool_lost(pool, place, reason): the worker of this place has ended. */
static PyObject *pool_lost(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *capsule, *reason;
    int place;
    if (!PyArg_ParseTuple(args, "OiO", &capsule, &place, &reason)) {
        return NULL;
    }
    shoal_pool *pool = pool_of(capsule);
    shoal_value *value = pool != NULL ? ext_encode(reason) : NULL;
    if (value == NULL) {
        return NULL;
    }
    shoal_err err = shoal_pool_lost(pool, place, value);
    return err == SHOAL_OK ? Py_NewRef(Py_None) : ext_raise(err);
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
    if (body == NULL) {
        return NULL;
    }
    shoal_value *list =
        shoal_list_add(shoal_list_add(shoal_value_list(), shoal_value_bytes(bytes, sizeof *header + size)), body);
    if (list == NULL) {
        ext_raise(shoal_last_error());
    }
    return list;
}

/* Returns about how much memory a value takes once it is put. */
static size_t size_of(const shoal_value *value, int depth)
{
    size_t size = 0, count;
    switch (shoal_value_type(value)) {
    case SHOAL_TYPE_STRING: return strlen(shoal_value_as_string(value));
    case SHOAL_TYPE_BYTES: return shoal_value_as_bytes(value, &size) != NULL ? size : 0;
    case SHOAL_TYPE_FOREIGN: return shoal_value_as_foreign(value, NULL, &size) != NULL ? size : 0;
    case SHOAL_TYPE_OBJECT:
        return shoal_value_object_kind(value) == SHOAL_KIND_BLOCK ? shoal_block_size(shoal_value_as_block(value)) : 0;
    case SHOAL_TYPE_LIST:
    case SHOAL_TYPE_MAP:
        count = depth > 0 ? shoal_value_count(value) : 0;
        for (size_t i = 0; i < count; i++) {
            size += size_of(shoal_value_at(value, i), depth - 1);
        }
        return size;
    default: return 0;
    }
}

/* pool_put(pool, job, index, call, function, keep, x, more): returns about how many bytes that takes. function is None
 * if x has it: (function, x). more: another task follows at once. */
static PyObject *pool_put(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *capsule, *argument;
    const char *function;
    Py_ssize_t size;
    unsigned long long job, index;
    int more;
    task_header header = {0};
    if (!PyArg_ParseTuple(args, "OKKiz#pOp", &capsule, &job, &index, &header.call, &function, &size, &header.keep,
                          &argument, &more)) {
        return NULL;
    }
    shoal_pool *pool = pool_of(capsule);
    if (pool == NULL) {
        return NULL;
    }
    header.whole = function == NULL;
    header.function_size = function == NULL ? 0 : (int32_t)size;
    shoal_value *value = task(&header, function == NULL ? "" : function, argument);
    size_t bytes = value != NULL ? size_of(value, 3) : 0;
    shoal_err err = value != NULL ? shoal_pool_submit(pool, job, index, value, more != 0) : SHOAL_OK;
    if (value != NULL && err == SHOAL_OK) {
        return PyLong_FromSize_t(bytes);
    }
    shoal_pool_wake(pool); /* for the tasks before this one */
    return value != NULL ? ext_raise(err) : NULL;
}

/* ---- the worker ---- */

typedef struct worker {
    shoal_worker *worker;
    PyObject *load;        /* load(pickled function) */
    PyObject *failed;      /* failed(exception, result or None): the exception to send */
    PyObject *kept_pickle; /* the function that was kept, and its pickle */
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

static int send_answer(const worker *w, shoal_err code, shoal_value *value)
{
    shoal_err err = shoal_worker_answer(w->worker, code, value);
    if (err != SHOAL_OK) {
        ext_raise(err);
    }
    return err == SHOAL_OK ? 0 : -1;
}

/* Answers that there is no memory for a result. The exception that is set says why. */
static int answer_no_memory(const worker *w)
{
    PyObject *error = take_exception();
    PyObject *text = error != NULL ? PyObject_Str(error) : NULL;
    PyObject *bytes = text != NULL ? PyUnicode_AsUTF8String(text) : NULL;
    const char *reason = bytes != NULL ? PyBytes_AsString(bytes) : NULL;
    PyErr_Clear();
    int done = send_answer(w, SHOAL_ENOMEM, shoal_value_string(reason != NULL ? reason : ""));
    Py_XDECREF(bytes);
    Py_XDECREF(text);
    Py_XDECREF(error);
    return done;
}

/* Answers with the result of a task; NULL if it raised. What cannot be encoded is replaced by an exception that says
 * so. Consumes the result. */
static int answer(const worker *w, PyObject *result)
{
    shoal_err code = result != NULL ? SHOAL_OK : RAISED;
    PyObject *sent = result != NULL ? result : failure(w, NULL);
    shoal_value *value = sent != NULL ? ext_encode(sent) : NULL;
    if (sent != NULL && value == NULL && !PyErr_ExceptionMatches(PyExc_MemoryError)) {
        code = RAISED;
        sent = failure(w, sent);
        value = sent != NULL ? ext_encode(sent) : NULL;
    }
    Py_XDECREF(sent);
    if (value != NULL) {
        return send_answer(w, code, value);
    }
    return sent != NULL && PyErr_ExceptionMatches(PyExc_MemoryError) ? answer_no_memory(w) : -1;
}

/* Runs a task and answers it. Consumes the value. */
static int work_on(worker *w, shoal_value *value)
{
    task_header header;
    size_t size = 0;
    const char *bytes = shoal_value_type(value) == SHOAL_TYPE_LIST && shoal_value_count(value) == 2
                            ? shoal_value_as_bytes(shoal_value_at(value, 0), &size)
                            : NULL;
    if (bytes != NULL && size >= sizeof header) {
        memcpy(&header, bytes, sizeof header);
    }
    if (bytes == NULL || size < sizeof header || size - sizeof header != (size_t)header.function_size) {
        PyErr_SetString(ext_error, "a task of a pool is damaged");
        shoal_value_destroy(value);
        return -1;
    }
    return answer(w, run(w, &header, bytes + sizeof header, value));
}

static shoal_err take(const worker *w, shoal_value **out_value)
{
    if (PyErr_CheckSignals() != 0) { /* the function may be one in C, which runs no handlers */
        return SHOAL_EINTR;
    }
    shoal_err err = shoal_worker_take(w->worker, SHOAL_NOW, out_value);
    if (err == SHOAL_ETIMEDOUT) {
        EXT_WAIT(err, shoal_worker_take(w->worker, SHOAL_FOREVER, out_value));
    }
    return err;
}

static void pause_a_moment(void)
{
    const struct timespec pause = {.tv_nsec = 20000000};
    Py_BEGIN_ALLOW_THREADS;
    nanosleep(&pause, NULL);
    Py_END_ALLOW_THREADS;
}

/* Returns 1 after a task, 0 if the queue is closed and empty, -1 with an exception. */
static int work_once(worker *w)
{
    shoal_value *value;
    shoal_err err;
    while ((err = take(w, &value)) == SHOAL_ENOMEM) {
        pause_a_moment(); /* the heap is full; the next take gets the same task */
    }
    if (err == SHOAL_ECLOSED) {
        return 0;
    }
    if (err != SHOAL_OK) {
        ext_raise(err);
        return -1;
    }
    return work_on(w, value) == 0 ? 1 : -1; /* after -1 this process ends, and the pool sees that */
}

/* pool_work(tasks, answers, places, place, tasks at most or 0, load, failed) */
static PyObject *pool_work(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *tasks, *answers, *places;
    int place;
    unsigned long long most;
    shoal_pool_objects objects;
    worker w = {0};
    if (!PyArg_ParseTuple(args, "OOOiKOO", &tasks, &answers, &places, &place, &most, &w.load, &w.failed) ||
        objects_of(tasks, answers, places, &objects) != 0) {
        return NULL;
    }
    shoal_err err = shoal_worker_begin(&objects, place, &w.worker);
    if (err != SHOAL_OK) {
        return ext_raise(err);
    }
    int state = 1;
    for (unsigned long long done = 0; state == 1 && (most == 0 || done < most); done++) {
        state = work_once(&w);
        if (done % 64 == 0) { /* functions in C would never let another thread of this worker run */
            Py_BEGIN_ALLOW_THREADS;
            Py_END_ALLOW_THREADS;
        }
    }
    shoal_worker_end(w.worker);
    Py_XDECREF(w.kept);
    Py_XDECREF(w.kept_pickle);
    if (state < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* ---- answers ---- */

static long outcome_of(shoal_err err)
{
    switch (err) {
    case SHOAL_OK: return OUTCOME_DONE;
    case SHOAL_ECHILD: return OUTCOME_DIED;
    case SHOAL_ENOMEM: return OUTCOME_NO_MEMORY;
    default: return OUTCOME_RAISED;
    }
}

/* Makes (job, index, outcome, value). Consumes the value of the answer. */
static PyObject *decode_answer(const shoal_answer *a)
{
    long outcome = outcome_of(a->err);
    PyObject *obj = a->value != NULL ? ext_decode(a->value) : Py_NewRef(Py_None);
    if (obj != NULL && outcome == OUTCOME_RAISED && a->err != RAISED) { /* an error of the library, with its text */
        PyErr_SetObject(ext_error, obj);
        Py_CLEAR(obj);
    }
    if (obj == NULL) {
        obj = take_exception();
        outcome = OUTCOME_RAISED;
    }
    return obj != NULL ? Py_BuildValue("(KKlN)", (unsigned long long)a->job, (unsigned long long)a->index, outcome, obj)
                       : NULL;
}

/* A full heap has no room for a message that there is a note, so the handler thread looks from time to time. */
#define COLLECT_TIME SHOAL_SECONDS(1)

/* pool_collect(pool, most): waits for an answer, a second at most, and returns a list of those that are there; None
 * once the queue of answers is closed and empty. After MemoryError nothing is lost. */
static PyObject *pool_collect(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *capsule;
    Py_ssize_t most;
    shoal_answer answer;
    if (!PyArg_ParseTuple(args, "On", &capsule, &most)) {
        return NULL;
    }
    shoal_pool *pool = pool_of(capsule);
    PyObject *list = pool != NULL ? PyList_New(0) : NULL;
    if (list == NULL) {
        return NULL;
    }
    shoal_err err = shoal_pool_next(pool, SHOAL_NOW, &answer);
    if (err == SHOAL_ETIMEDOUT) {
        EXT_WAIT(err, shoal_pool_next(pool, COLLECT_TIME, &answer));
    }
    while (err == SHOAL_OK) {
        PyObject *result = decode_answer(&answer);
        if (result == NULL || PyList_Append(list, result) != 0) {
            Py_XDECREF(result);
            Py_DECREF(list);
            return NULL;
        }
        Py_DECREF(result);
        err = PyList_Size(list) < most ? shoal_pool_next(pool, SHOAL_NOW, &answer) : SHOAL_ETIMEDOUT;
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
        {"pool_make", pool_make, METH_VARARGS, NULL},       {"pool_put", pool_put, METH_VARARGS, NULL},
        {"pool_work", pool_work, METH_VARARGS, NULL},       {"pool_lost", pool_lost, METH_VARARGS, NULL},
        {"pool_collect", pool_collect, METH_VARARGS, NULL}, {NULL, NULL, 0, NULL},
    };
    return PyModule_AddFunctions(module, functions);
}
