/* Connection: one end of a pipe. */
#include "codec.h"

#include <errno.h>
#include <string.h>

typedef struct pipe_object {
    ext_shared shared;
    int readable, writable;
} pipe_object;

static PyTypeObject *pipe_type;
static PyObject *too_short; /* multiprocessing.BufferTooShort */

typedef enum pipe_use { PIPE_ANY, PIPE_READ, PIPE_WRITE } pipe_use;

static shoal_pipe *handle_of(PyObject *obj, pipe_use use)
{
    pipe_object *self = (pipe_object *)obj;
    if (self->shared.handle == NULL) {
        PyErr_SetString(PyExc_OSError, "handle is closed");
        return NULL;
    }
    if (use == PIPE_READ && !self->readable) {
        PyErr_SetString(PyExc_OSError, "connection is write-only");
        return NULL;
    }
    if (use == PIPE_WRITE && !self->writable) {
        PyErr_SetString(PyExc_OSError, "connection is read-only");
        return NULL;
    }
    return self->shared.handle;
}

static PyObject *send_failed(shoal_err err)
{
    if (err == SHOAL_ECLOSED) {
        errno = EPIPE;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    return ext_raise(err);
}

static PyObject *recv_failed(shoal_err err)
{
    if (err == SHOAL_ECLOSED) {
        PyErr_SetNone(PyExc_EOFError);
        return NULL;
    }
    return ext_raise(err);
}

/* ---- objects ---- */

/* bytes travel as a pickle here, because recv takes a message of plain bytes for a pickle (below). */
static shoal_value *encode(PyObject *obj)
{
    return PyBytes_CheckExact(obj) ? ext_encode_pickle(obj) : ext_encode(obj);
}

static PyObject *pipe_send(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    static ext_name names[] = {EXT_NAME("obj")};
    PyObject *obj = nargs == 1 ? args[0] : NULL;
    if ((nargs != 1 || kwnames != NULL) && ext_arguments("send", args, nargs, kwnames, names, 1, 1, &obj) != 0) {
        return NULL;
    }
    shoal_pipe *end = handle_of(self, PIPE_WRITE);
    shoal_value *value = end != NULL ? encode(obj) : NULL;
    if (value == NULL) {
        return NULL;
    }
    end = handle_of(self, PIPE_WRITE); /* pickling may have run Python code that closed it */
    if (end == NULL) {
        shoal_value_destroy(value);
        return NULL;
    }
    shoal_value_keep(value);
    shoal_err err;
    EXT_TRY(err, pipe, end, SHOAL_FOREVER, shoal_pipe_send(end, value, limit));
    shoal_value_destroy(value);
    if (err != SHOAL_OK) {
        return send_failed(err);
    }
    Py_RETURN_NONE;
}

/* Returns the next message, which the caller owns. NULL and an exception on failure. */
static shoal_value *receive(PyObject *self)
{
    shoal_value *value = NULL;
    shoal_pipe *end = handle_of(self, PIPE_READ);
    if (end == NULL) {
        return NULL;
    }
    shoal_err err;
    EXT_TRY(err, pipe, end, SHOAL_FOREVER, shoal_pipe_recv_packed(end, limit, &value));
    if (err != SHOAL_OK) {
        recv_failed(err);
        return NULL;
    }
    return value;
}

/* As in the standard module, what send_bytes sent may be a pickle that recv loads. */
static PyObject *pipe_recv(PyObject *self, PyObject *unused)
{
    (void)unused;
    shoal_value *value = receive(self);
    if (value == NULL) {
        return NULL;
    }
    if (shoal_value_type(value) != SHOAL_TYPE_BYTES) {
        return ext_decode(value);
    }
    size_t size = 0;
    const void *bytes = shoal_value_as_bytes(value, &size);
    shoal_value *pickle = shoal_value_foreign(CODEC_PICKLE, bytes, size);
    shoal_value_destroy(value);
    return pickle != NULL ? ext_decode(pickle) : ext_raise(shoal_last_error());
}

/* ---- bytes ---- */

/* Cuts a view to (offset, size) by the rules of the standard module. */
static int cut(Py_ssize_t length, PyObject *offset, PyObject *size, Py_ssize_t *out_offset, Py_ssize_t *out_size)
{
    *out_offset = offset != NULL ? PyLong_AsSsize_t(offset) : 0;
    if (*out_offset == -1 && PyErr_Occurred() != NULL) {
        return -1;
    }
    *out_size = length - *out_offset;
    if (*out_offset < 0) {
        PyErr_SetString(PyExc_ValueError, "offset is negative");
    } else if (*out_offset > length) {
        PyErr_SetString(PyExc_ValueError, "buffer length < offset");
    } else if (size != NULL && !Py_IsNone(size)) {
        *out_size = PyLong_AsSsize_t(size);
        if (*out_size == -1 && PyErr_Occurred() != NULL) {
            return -1;
        }
        if (*out_size < 0) {
            PyErr_SetString(PyExc_ValueError, "size is negative");
        } else if (*out_size > length - *out_offset) {
            PyErr_SetString(PyExc_ValueError, "buffer length < offset + size");
        }
    }
    return PyErr_Occurred() != NULL ? -1 : 0;
}

static PyObject *pipe_send_bytes(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    static ext_name names[] = {EXT_NAME("buf"), EXT_NAME("offset"), EXT_NAME("size")};
    PyObject *values[3];
    Py_buffer view;
    shoal_pipe *end = handle_of(self, PIPE_WRITE);
    if (end == NULL || ext_arguments("send_bytes", args, nargs, kwnames, names, 3, 1, values) != 0 ||
        PyObject_GetBuffer(values[0], &view, PyBUF_CONTIG_RO) != 0) {
        return NULL;
    }
    Py_ssize_t offset, size;
    int done = cut(view.len, values[1], values[2], &offset, &size);
    shoal_err err = SHOAL_OK;
    if (done == 0) {
        const char *bytes = (const char *)view.buf + offset;
        EXT_TRY(err, pipe, end, SHOAL_FOREVER, shoal_pipe_send_bytes(end, bytes, (size_t)size, limit));
    }
    PyBuffer_Release(&view);
    if (done != 0) {
        return NULL;
    }
    if (err != SHOAL_OK) {
        return send_failed(err);
    }
    Py_RETURN_NONE;
}

/* Receives a message as bytes: plain bytes as they are, an object as the pickle that the standard module would have
 * sent. */
static PyObject *receive_bytes(PyObject *self)
{
    shoal_value *value = receive(self);
    if (value == NULL) {
        return NULL;
    }
    if (shoal_value_type(value) == SHOAL_TYPE_BYTES) {
        return ext_decode(value);
    }
    PyObject *obj = ext_decode(value);
    PyObject *pickle = obj != NULL ? PyImport_ImportModule("pickle") : NULL;
    PyObject *bytes = pickle != NULL ? PyObject_CallMethod(pickle, "dumps", "O", obj) : NULL;
    Py_XDECREF(pickle);
    Py_XDECREF(obj);
    return bytes;
}

static PyObject *pipe_recv_bytes(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    static ext_name names[] = {EXT_NAME("maxlength")};
    PyObject *values[1];
    Py_ssize_t most = PY_SSIZE_T_MAX;
    if (ext_arguments("recv_bytes", args, nargs, kwnames, names, 1, 0, values) != 0 ||
        handle_of(self, PIPE_READ) == NULL) {
        return NULL;
    }
    if (values[0] != NULL && !Py_IsNone(values[0])) {
        most = PyLong_AsSsize_t(values[0]);
        if (most < 0) {
            if (PyErr_Occurred() == NULL) {
                PyErr_SetString(PyExc_ValueError, "negative maxlength");
            }
            return NULL;
        }
    }
    PyObject *bytes = receive_bytes(self);
    if (bytes != NULL && PyBytes_Size(bytes) > most) {
        Py_DECREF(bytes);
        /* The rest of the message is lost, so the end is closed for reading. */
        pipe_object *end = (pipe_object *)self;
        end->readable = 0;
        if (!end->writable) {
            ext_shared_close(&end->shared);
        }
        PyErr_SetString(PyExc_OSError, "bad message length");
        return NULL;
    }
    return bytes;
}

static PyObject *copy_into(const Py_buffer *view, Py_ssize_t offset, PyObject *bytes)
{
    char *from;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(bytes, &from, &size) != 0) {
        return NULL;
    }
    if (size > view->len - offset) {
        PyErr_SetObject(too_short, bytes);
        return NULL;
    }
    memcpy((char *)view->buf + offset, from, (size_t)size);
    return PyLong_FromSsize_t(size);
}

static PyObject *pipe_recv_bytes_into(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    static ext_name names[] = {EXT_NAME("buf"), EXT_NAME("offset")};
    PyObject *values[2];
    Py_buffer view;
    if (ext_arguments("recv_bytes_into", args, nargs, kwnames, names, 2, 1, values) != 0 ||
        handle_of(self, PIPE_READ) == NULL || PyObject_GetBuffer(values[0], &view, PyBUF_CONTIG) != 0) {
        return NULL;
    }
    Py_ssize_t offset = values[1] != NULL ? PyLong_AsSsize_t(values[1]) : 0;
    PyObject *result = NULL;
    if (PyErr_Occurred() == NULL && offset < 0) {
        PyErr_SetString(PyExc_ValueError, "negative offset");
    } else if (PyErr_Occurred() == NULL && offset > view.len) {
        PyErr_SetString(PyExc_ValueError, "offset too large");
    } else if (PyErr_Occurred() == NULL) {
        PyObject *bytes = receive_bytes(self);
        result = bytes != NULL ? copy_into(&view, offset, bytes) : NULL;
        Py_XDECREF(bytes);
    }
    PyBuffer_Release(&view);
    return result;
}

/* ---- the rest ---- */

static PyObject *pipe_poll(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    static ext_name names[] = {EXT_NAME("timeout")};
    PyObject *values[1];
    int64_t timeout = SHOAL_NOW;
    shoal_pipe *end = handle_of(self, PIPE_READ);
    if (end == NULL || ext_arguments("poll", args, nargs, kwnames, names, 1, 0, values) != 0 ||
        (values[0] != NULL && ext_timeout(values[0], &timeout) != 0)) {
        return NULL;
    }
    shoal_err err;
    EXT_TRY(err, pipe, end, timeout, shoal_pipe_poll(end, limit));
    if (err == SHOAL_OK || err == SHOAL_ETIMEDOUT) {
        return PyBool_FromLong(err == SHOAL_OK);
    }
    return ext_raise(err);
}

static PyObject *pipe_close(PyObject *self, PyObject *unused)
{
    (void)unused;
    ext_shared_close((ext_shared *)self);
    Py_RETURN_NONE;
}

static PyObject *pipe_fileno(PyObject *self, PyObject *unused)
{
    (void)unused;
    int fd;
    shoal_pipe *end = handle_of(self, PIPE_READ);
    if (end == NULL) {
        return NULL;
    }
    shoal_err err = shoal_pipe_fd(end, &fd);
    return err == SHOAL_OK ? PyLong_FromLong(fd) : ext_raise(err);
}

static PyObject *pipe_closed(PyObject *self, void *unused)
{
    (void)unused;
    return PyBool_FromLong(((ext_shared *)self)->handle == NULL);
}

static PyObject *pipe_readable(PyObject *self, void *unused)
{
    (void)unused;
    return PyBool_FromLong(((pipe_object *)self)->readable);
}

static PyObject *pipe_writable(PyObject *self, void *unused)
{
    (void)unused;
    return PyBool_FromLong(((pipe_object *)self)->writable);
}

static PyObject *pipe_enter(PyObject *self, PyObject *unused)
{
    (void)unused;
    return Py_NewRef(self);
}

static PyObject *pipe_exit(PyObject *self, PyObject *args)
{
    (void)args;
    return pipe_close(self, NULL);
}

static PyObject *pipe_state(PyObject *obj, PyObject *unused)
{
    (void)unused;
    pipe_object *self = (pipe_object *)obj;
    return Py_BuildValue("(ii)", self->readable, self->writable);
}

static PyObject *pipe_restore(PyObject *obj, PyObject *state)
{
    pipe_object *self = (pipe_object *)obj;
    if (!PyTuple_Check(state)) {
        PyErr_SetString(PyExc_TypeError, "the state of a connection is a tuple");
        return NULL;
    }
    if (!PyArg_ParseTuple(state, "ii", &self->readable, &self->writable)) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* ---- the functions of the module ---- */

static PyObject *end_of(PyTypeObject *type, shoal_pipe *end, int readable, int writable)
{
    PyObject *obj = ext_shared_new(type, end);
    if (obj != NULL) {
        ((pipe_object *)obj)->readable = readable;
        ((pipe_object *)obj)->writable = writable;
    }
    return obj;
}

static PyObject *make_pipe(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *cls;
    int duplex = 1;
    shoal_pipe *a, *b;
    if (!PyArg_ParseTuple(args, "O!p", &PyType_Type, &cls, &duplex)) {
        return NULL;
    }
    if (!PyType_IsSubtype((PyTypeObject *)cls, pipe_type)) {
        PyErr_SetString(PyExc_TypeError, "pipe() takes a class of connections");
        return NULL;
    }
    shoal_err err = shoal_pipe_create(duplex != 0, &a, &b);
    if (err != SHOAL_OK) {
        return ext_raise(err);
    }
    PyObject *first = end_of((PyTypeObject *)cls, a, 1, duplex);
    PyObject *second = end_of((PyTypeObject *)cls, b, duplex, 1);
    PyObject *pair = first != NULL && second != NULL ? PyTuple_Pack(2, first, second) : NULL;
    Py_XDECREF(first);
    Py_XDECREF(second);
    return pair;
}

static PyMethodDef methods[] = {
    {"send", (PyCFunction)(void (*)(void))pipe_send, METH_FASTCALL | METH_KEYWORDS,
     "send($self, obj)\n--\n\nSends a (picklable) object. Waits while the pipe is full (1 MiB)."},
    {"recv", pipe_recv, METH_NOARGS,
     "recv($self, /)\n--\n\nReceives an object. Raises EOFError if the other end is closed."},
    {"send_bytes", (PyCFunction)(void (*)(void))pipe_send_bytes, METH_FASTCALL | METH_KEYWORDS,
     "send_bytes($self, /, buf, offset=0, size=None)\n--\n\nSends the bytes of a bytes-like object as one message."},
    {"recv_bytes", (PyCFunction)(void (*)(void))pipe_recv_bytes, METH_FASTCALL | METH_KEYWORDS,
     "recv_bytes($self, /, maxlength=None)\n--\n\nReceives a message as bytes."},
    {"recv_bytes_into", (PyCFunction)(void (*)(void))pipe_recv_bytes_into, METH_FASTCALL | METH_KEYWORDS,
     "recv_bytes_into($self, /, buf, offset=0)\n--\n\nReceives a message into a buffer and returns its size."},
    {"poll", (PyCFunction)(void (*)(void))pipe_poll, METH_FASTCALL | METH_KEYWORDS,
     "poll($self, /, timeout=0.0)\n--\n\nWhether there is something to receive, or the other end is closed."},
    {"close", pipe_close, METH_NOARGS, "close($self, /)\n--\n\nCloses this end in this process."},
    {"fileno", pipe_fileno, METH_NOARGS,
     "fileno($self, /)\n--\n\nA file descriptor that is readable while recv would not wait."},
    {"__enter__", pipe_enter, METH_NOARGS, NULL},
    {"__exit__", pipe_exit, METH_VARARGS, NULL},
    {"_shoal_state", pipe_state, METH_NOARGS, NULL},
    {"_shoal_restore", pipe_restore, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

int ext_add_pipe(PyObject *module)
{
    static PyGetSetDef properties[] = {
        {"closed", pipe_closed, NULL, "Whether this end is closed in this process.", NULL},
        {"readable", pipe_readable, NULL, "Whether this end receives.", NULL},
        {"writable", pipe_writable, NULL, "Whether this end sends.", NULL},
        {NULL, NULL, NULL, NULL, NULL},
    };
    static PyType_Slot slots[] = {
        {Py_tp_doc, "One end of a pipe in shared memory."},
        {Py_tp_methods, methods},
        {Py_tp_getset, properties},
        {0, NULL},
    };
    static PyMethodDef functions[] = {
        {"pipe", make_pipe, METH_VARARGS, "pipe(cls, duplex): the two ends of a new pipe, as objects of cls."},
        {NULL, NULL, 0, NULL},
    };
    PyObject *multiprocessing = PyImport_ImportModule("multiprocessing.context");
    too_short = multiprocessing != NULL ? PyObject_GetAttrString(multiprocessing, "BufferTooShort") : NULL;
    Py_XDECREF(multiprocessing);
    pipe_type = too_short == NULL ? NULL
                                  : ext_shared_type_add(module, "shoal._shoal.Connection", SHOAL_KIND_PIPE,
                                                        sizeof(pipe_object), slots);
    return pipe_type != NULL ? PyModule_AddFunctions(module, functions) : -1;
}
