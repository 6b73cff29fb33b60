/* Queue: the C part of Queue, JoinableQueue and SimpleQueue. */
#include "ext.h"

#define LARGEST_BOUND (1 << 30) /* the library's limit; programs write a larger bound to mean none */

typedef struct queue_object {
    ext_shared shared;
    int closed;              /* close() was called in this process */
    shoal_delivery delivery; /* of an acknowledged queue: what was taken and not finished; queue is NULL if nothing */
} queue_object;

static shoal_queue *handle_of(queue_object *self)
{
    if (self->closed && self->shared.handle == NULL) { /* a SimpleQueue */
        PyErr_SetString(PyExc_OSError, "handle is closed");
        return NULL;
    }
    if (self->closed) {
        PyErr_Format(PyExc_ValueError, "Queue %R is closed", self);
        return NULL;
    }
    return ext_shared_handle((PyObject *)self, SHOAL_KIND_QUEUE);
}

static int read_options(PyObject *args, PyObject *kwargs, shoal_queue_options *out_options)
{
    static char *names[] = {"maxsize", "ctx", "acknowledge", "deliveries", "rejects", "maxbytes", NULL};
    long long bound = 0;
    PyObject *ctx = NULL, *rejects = NULL;
    int acknowledge = 0;
    unsigned int deliveries = 0;
    unsigned long long bytes = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|L$OpIOK", names, &bound, &ctx, &acknowledge, &deliveries, &rejects,
                                     &bytes)) {
        return -1;
    }
    *out_options = (shoal_queue_options){.bound = bound > 0 && bound <= LARGEST_BOUND ? (uint64_t)bound : 0,
                                         .bytes = bytes,
                                         .acknowledge = acknowledge != 0,
                                         .deliveries = deliveries};
    if (rejects != NULL && !Py_IsNone(rejects)) {
        out_options->rejects = ext_shared_handle(rejects, SHOAL_KIND_QUEUE);
        return out_options->rejects != NULL ? 0 : -1;
    }
    return 0;
}

static int queue_init(PyObject *obj, PyObject *args, PyObject *kwargs)
{
    queue_object *self = (queue_object *)obj;
    shoal_queue_options options;
    shoal_queue *queue;
    if (read_options(args, kwargs, &options) != 0) {
        return -1;
    }
    shoal_err err = shoal_queue_create_with(&options, &queue);
    if (err != SHOAL_OK) {
        ext_raise(err);
        return -1;
    }
    ext_shared_close(&self->shared);
    self->shared.kind = SHOAL_KIND_QUEUE;
    self->shared.handle = queue;
    return 0;
}

/* ---- put ---- */

static PyObject *put_failed(shoal_err err)
{
    if (err == SHOAL_ETIMEDOUT) {
        PyErr_SetNone(ext_full);
        return NULL;
    }
    return ext_raise(err);
}

/* Consumes the value. */
static PyObject *put_value(shoal_queue *queue, shoal_value *value, int64_t timeout)
{
    shoal_value_keep(value);
    shoal_err err;
    EXT_TRY(err, queue, queue, timeout, shoal_queue_put(queue, value, limit));
    shoal_value_destroy(value);
    if (err != SHOAL_OK) {
        return put_failed(err);
    }
    Py_RETURN_NONE;
}

static PyObject *put(queue_object *self, PyObject *obj, int64_t timeout)
{
    shoal_queue *queue = handle_of(self);
    shoal_value *value = queue != NULL ? ext_encode(obj) : NULL;
    if (value == NULL) {
        return NULL;
    }
    if (self->shared.handle != queue) { /* pickling ran Python code that closed the queue */
        shoal_value_destroy(value);
        return ext_shared_handle((PyObject *)self, SHOAL_KIND_QUEUE);
    }
    return put_value(queue, value, timeout);
}

static PyObject *queue_put(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    static ext_name names[] = {EXT_NAME("obj"), EXT_NAME("block"), EXT_NAME("timeout")};
    PyObject *values[3];
    int64_t timeout = SHOAL_FOREVER;
    if (nargs == 1 && kwnames == NULL) {
        return put((queue_object *)self, args[0], timeout);
    }
    if (ext_arguments("put", args, nargs, kwnames, names, 3, 1, values) != 0 ||
        ext_block_and_timeout(values[1], values[2], &timeout) != 0) {
        return NULL;
    }
    return put((queue_object *)self, values[0], timeout);
}

static PyObject *queue_put_nowait(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    static ext_name names[] = {EXT_NAME("obj")};
    PyObject *obj;
    if (ext_arguments("put_nowait", args, nargs, kwnames, names, 1, 1, &obj) != 0) {
        return NULL;
    }
    return put((queue_object *)self, obj, SHOAL_NOW);
}

/* ---- get ---- */

static PyObject *get_failed(shoal_err err)
{
    if (err == SHOAL_ETIMEDOUT) {
        PyErr_SetNone(ext_empty);
        return NULL;
    }
    return ext_raise(err);
}

static PyObject *get(queue_object *self, int64_t timeout)
{
    shoal_queue *queue = handle_of(self);
    if (queue == NULL) {
        return NULL;
    }
    shoal_value *value;
    shoal_err err;
    EXT_TRY(err, queue, queue, timeout, shoal_queue_get_packed(queue, limit, &value));
    return err == SHOAL_OK ? ext_decode(value) : get_failed(err);
}

static PyObject *queue_get(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    static ext_name names[] = {EXT_NAME("block"), EXT_NAME("timeout")};
    PyObject *values[2];
    int64_t timeout = SHOAL_FOREVER;
    if ((nargs > 0 || kwnames != NULL) && (ext_arguments("get", args, nargs, kwnames, names, 2, 0, values) != 0 ||
                                           ext_block_and_timeout(values[0], values[1], &timeout) != 0)) {
        return NULL;
    }
    return get((queue_object *)self, timeout);
}

static PyObject *queue_get_nowait(PyObject *self, PyObject *unused)
{
    (void)unused;
    return get((queue_object *)self, SHOAL_NOW);
}

/* ---- acknowledged queues: one delivery at a time ---- */

static PyObject *queue_take(PyObject *obj, PyObject *const *args, Py_ssize_t nargs)
{
    queue_object *self = (queue_object *)obj;
    shoal_queue *queue = handle_of(self);
    int64_t timeout;
    if (queue == NULL || ext_timeout(nargs > 0 ? args[0] : NULL, &timeout) != 0) {
        return NULL;
    }
    if (self->delivery.queue != NULL) {
        PyErr_SetString(PyExc_ValueError, "the last delivery is not finished");
        return NULL;
    }
    shoal_value *value;
    shoal_delivery delivery;
    shoal_err err;
    EXT_TRY(err, queue, queue, timeout, shoal_queue_get_delivery(queue, limit, &value, &delivery));
    if (err != SHOAL_OK) {
        return get_failed(err);
    }
    self->delivery = delivery;
    PyObject *result = ext_decode(value);
    return result != NULL ? Py_BuildValue("(NI)", result, (unsigned)delivery.deliveries) : NULL;
}

static PyObject *end_delivery(PyObject *obj, shoal_err (*end)(shoal_delivery *))
{
    queue_object *self = (queue_object *)obj;
    if (self->delivery.queue == NULL) {
        PyErr_SetString(PyExc_ValueError, "nothing was taken");
        return NULL;
    }
    shoal_err err = end(&self->delivery);
    self->delivery.queue = NULL;
    return err == SHOAL_OK ? Py_NewRef(Py_None) : ext_raise(err);
}

static PyObject *queue_done(PyObject *obj, PyObject *unused)
{
    (void)unused;
    return end_delivery(obj, shoal_delivery_done);
}

static PyObject *queue_return(PyObject *obj, PyObject *unused)
{
    (void)unused;
    return end_delivery(obj, shoal_delivery_return);
}

/* ---- the rest ---- */

static PyObject *queue_qsize(PyObject *self, PyObject *unused)
{
    (void)unused;
    shoal_queue *queue = ext_shared_handle(self, SHOAL_KIND_QUEUE);
    return queue != NULL ? PyLong_FromUnsignedLongLong(shoal_queue_size(queue)) : NULL;
}

static PyObject *queue_empty(PyObject *self, PyObject *unused)
{
    (void)unused;
    shoal_queue *queue = ext_shared_handle(self, SHOAL_KIND_QUEUE);
    return queue != NULL ? PyBool_FromLong(shoal_queue_size(queue) == 0) : NULL;
}

static PyObject *queue_full(PyObject *self, PyObject *unused)
{
    (void)unused;
    shoal_queue *queue = ext_shared_handle(self, SHOAL_KIND_QUEUE);
    uint64_t bound = queue != NULL ? shoal_queue_bound(queue) : 0;
    return queue != NULL ? PyBool_FromLong(bound != 0 && shoal_queue_size(queue) >= bound) : NULL;
}

static PyObject *queue_close(PyObject *self, PyObject *unused)
{
    (void)unused;
    ((queue_object *)self)->closed = 1;
    Py_RETURN_NONE;
}

static PyObject *queue_release(PyObject *self, PyObject *unused)
{
    (void)unused;
    ((queue_object *)self)->closed = 1;
    ext_shared_close((ext_shared *)self);
    Py_RETURN_NONE;
}

static PyObject *queue_shutdown(PyObject *self, PyObject *unused)
{
    (void)unused;
    shoal_queue *queue = ext_shared_handle(self, SHOAL_KIND_QUEUE);
    if (queue == NULL) {
        return NULL;
    }
    shoal_queue_close(queue);
    Py_RETURN_NONE;
}

static PyObject *queue_fileno(PyObject *self, PyObject *unused)
{
    (void)unused;
    int fd;
    shoal_queue *queue = ext_shared_handle(self, SHOAL_KIND_QUEUE);
    if (queue == NULL) {
        return NULL;
    }
    shoal_err err = shoal_queue_fd(queue, &fd);
    return err == SHOAL_OK ? PyLong_FromLong(fd) : ext_raise(err);
}

static PyObject *queue_task_done(PyObject *self, PyObject *unused)
{
    (void)unused;
    shoal_queue *queue = ext_shared_handle(self, SHOAL_KIND_QUEUE);
    if (queue == NULL) {
        return NULL;
    }
    shoal_err err = shoal_queue_task_done(queue);
    if (err == SHOAL_ESTATE) {
        PyErr_SetString(PyExc_ValueError, "task_done() called too many times");
        return NULL;
    }
    return err == SHOAL_OK ? Py_NewRef(Py_None) : ext_raise(err);
}

static PyObject *queue_join(PyObject *self, PyObject *unused)
{
    (void)unused;
    shoal_queue *queue = ext_shared_handle(self, SHOAL_KIND_QUEUE);
    if (queue == NULL) {
        return NULL;
    }
    shoal_err err;
    EXT_TRY(err, queue, queue, SHOAL_FOREVER, shoal_queue_join(queue, limit));
    return err == SHOAL_OK ? Py_NewRef(Py_None) : ext_raise(err);
}

static PyMethodDef methods[] = {
    {"put", (PyCFunction)(void (*)(void))queue_put, METH_FASTCALL | METH_KEYWORDS,
     "put($self, /, obj, block=True, timeout=None)\n--\n\nPuts an object. It is in shared memory when put returns."},
    {"get", (PyCFunction)(void (*)(void))queue_get, METH_FASTCALL | METH_KEYWORDS,
     "get($self, /, block=True, timeout=None)\n--\n\nTakes the oldest object. Raises queue.Empty after the timeout."},
    {"put_nowait", (PyCFunction)(void (*)(void))queue_put_nowait, METH_FASTCALL | METH_KEYWORDS,
     "put_nowait($self, obj)\n--\n\nput(obj, False)"},
    {"get_nowait", queue_get_nowait, METH_NOARGS, "get_nowait($self, /)\n--\n\nget(False)"},
    {"qsize", queue_qsize, METH_NOARGS, "qsize($self, /)\n--\n\nThe number of objects in the queue."},
    {"empty", queue_empty, METH_NOARGS, "empty($self, /)\n--\n\nWhether there is nothing to get now."},
    {"full", queue_full, METH_NOARGS, "full($self, /)\n--\n\nWhether a put would wait now."},
    {"close", queue_close, METH_NOARGS,
     "close($self, /)\n--\n\nThis process will not use the queue again. Others still can."},
    {"shutdown", queue_shutdown, METH_NOARGS,
     "shutdown($self, /)\n--\n\nCloses the queue for all processes: a put raises shoal.Closed, and a get once it is "
     "empty."},
    {"fileno", queue_fileno, METH_NOARGS,
     "fileno($self, /)\n--\n\nA file descriptor that is readable while a get would not wait. Costs a thread once it is "
     "used."},
    {"_task_done", queue_task_done, METH_NOARGS, "_task_done($self, /)\n--\n\nOne object that was taken is done."},
    {"_join", queue_join, METH_NOARGS, "_join($self, /)\n--\n\nWaits until task_done() was called for every object."},
    {"_take", (PyCFunction)(void (*)(void))queue_take, METH_FASTCALL,
     "Takes a delivery from an acknowledged queue: (object, number of deliveries)."},
    {"_done", queue_done, METH_NOARGS, "Ends the delivery: nobody gets its object again."},
    {"_return", queue_return, METH_NOARGS, "Ends the delivery: the next one gets its object."},
    {"_release", queue_release, METH_NOARGS, "Drops the reference to the shared queue."},
    {NULL, NULL, 0, NULL},
};

static PyObject *queue_maxsize(PyObject *self, void *unused)
{
    (void)unused;
    shoal_queue *queue = ext_shared_handle(self, SHOAL_KIND_QUEUE);
    return queue != NULL ? PyLong_FromUnsignedLongLong(shoal_queue_bound(queue)) : NULL;
}

static PyObject *queue_is_closed(PyObject *self, void *unused)
{
    (void)unused;
    return PyBool_FromLong(((queue_object *)self)->closed);
}

int ext_add_queue(PyObject *module)
{
    static PyGetSetDef properties[] = {
        {"_maxsize", queue_maxsize, NULL, "The bound of the queue; 0 for none.", NULL},
        {"_closed", queue_is_closed, NULL, "Whether close() was called in this process.", NULL},
        {NULL, NULL, NULL, NULL, NULL},
    };
    static PyType_Slot slots[] = {
        {Py_tp_doc, "A queue in shared memory."},
        {Py_tp_new, PyType_GenericNew},
        {Py_tp_init, queue_init},
        {Py_tp_methods, methods},
        {Py_tp_getset, properties},
        {0, NULL},
    };
    return ext_shared_type_add(module, "shoal._shoal.Queue", SHOAL_KIND_QUEUE, sizeof(queue_object), slots) != NULL
               ? 0
               : -1;
}
