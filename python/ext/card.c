/* GPUs: names of devices, the rules of DLPack for streams, and waiting. */
#include "tensor.h"

#include <stdlib.h>
#include <string.h>

/* ---- devices ---- */

int ext_dlpack_device(shoal_tensor *t, shoal_dlpack_device *out_device)
{
    if (shoal_tensor_device(t) == SHOAL_CPU) {
        *out_device = (shoal_dlpack_device){SHOAL_DLPACK_CPU, 0};
        return 0;
    }
    shoal_dlpack *pack;
    shoal_err err = shoal_tensor_to_dlpack(t, 0, &pack); /* knows the number of the GPU */
    if (err != SHOAL_OK) {
        ext_raise(err);
        return -1;
    }
    *out_device = pack->tensor.device;
    pack->deleter(pack);
    return 0;
}

/* Returns the number of this process's GPU, which it opens; -1 with an exception. */
static int card_number(void)
{
    shoal_tensor *t = shoal_empty_on(SHOAL_CUDA, SHOAL_U8, SHOAL_SHAPE(1));
    shoal_dlpack_device device = {0, -1};
    if (t == NULL) {
        ext_raise(shoal_last_error());
    } else if (ext_dlpack_device(t, &device) != 0) {
        device.id = -1;
    }
    shoal_tensor_release(t);
    return device.id;
}

int ext_card_device(const char *name, shoal_device *out_device)
{
    if (strcmp(name, "cpu") == 0 || strcmp(name, "cuda") == 0) {
        *out_device = name[1] == 'p' ? SHOAL_CPU : SHOAL_CUDA;
        return 0;
    }
    char *end = NULL;
    long number = strncmp(name, "cuda:", 5) == 0 ? strtol(name + 5, &end, 10) : -1;
    if (end == NULL || end == name + 5 || *end != 0) {
        PyErr_Format(PyExc_ValueError, "the device %s is unknown; there are 'cpu' and 'cuda'", name);
        return -1;
    }
    int card = card_number();
    if (card >= 0 && card != number) {
        PyErr_Format(PyExc_ValueError, "this process uses GPU %d, not %ld; SHOAL_CUDA_DEVICE says which one", card,
                     number);
    }
    *out_device = SHOAL_CUDA;
    return card >= 0 && card == number ? 0 : -1; /* -1 may be both, with an exception */
}

/* ---- DLPack's rules ---- */

/* The numbers of streams: None and 1 are the legacy default stream, 2 is the thread's default stream, -1 asks for no
 * order, 0 could mean several, and others are addresses. */
static int read_stream(PyObject *stream, ext_destination *to)
{
    long long number = Py_IsNone(stream) ? 1 : PyLong_AsLongLong(stream);
    if (number == -1 && PyErr_Occurred() != NULL) {
        return -1;
    }
    if (number == 0 || number < -1) {
        PyErr_Format(PyExc_ValueError, "stream %lld is not a CUDA stream: use 1 for the default stream", number);
        return -1;
    }
    to->has_stream = number != -1;
    to->stream = (void *)(uintptr_t)(number != -1 ? number : 0);
    return 0;
}

/* Reads dl_device, None or (type, id). */
static int read_device(PyObject *device, shoal_dlpack_device *out_device)
{
    int type, id;
    if (Py_IsNone(device)) {
        return 0;
    }
    if (!PyTuple_Check(device)) {
        PyErr_SetString(PyExc_TypeError, "dl_device must be None or a tuple of two numbers");
        return -1;
    }
    if (!PyArg_ParseTuple(device, "ii:dl_device", &type, &id)) {
        return -1;
    }
    *out_device = (shoal_dlpack_device){type, id};
    return 0;
}

int ext_dlpack_destination(const shoal_tensor *t, PyObject *device, PyObject *stream, PyObject *copy,
                           ext_destination *to)
{
    shoal_dlpack_device have, want;
    int copied = Py_IsNone(copy) ? 0 : PyObject_IsTrue(copy);
    if (copied < 0 || ext_dlpack_device((shoal_tensor *)(uintptr_t)t, &have) != 0) {
        return -1;
    }
    want = have;
    if (read_device(device, &want) != 0) {
        return -1;
    }
    if (have.type == SHOAL_DLPACK_CPU && !Py_IsNone(stream)) {
        PyErr_SetString(PyExc_BufferError, "stream must be None for a tensor on the CPU");
        return -1;
    }
    to->flags = copied ? SHOAL_DLPACK_COPIED : 0;
    if (want.type == have.type && want.id == have.id) {
        return have.type == SHOAL_DLPACK_CUDA ? read_stream(stream, to) : 0;
    }
    to->to_cpu = want.type == SHOAL_DLPACK_CPU && (copied || Py_IsNone(copy));
    if (!to->to_cpu) {
        PyErr_SetString(PyExc_BufferError, have.type == SHOAL_DLPACK_CPU
                                               ? "the tensor is on the CPU and can be exported to the CPU only"
                                               : "the tensor is on the GPU, and only a copy can be exported elsewhere, "
                                                 "to the CPU");
        return -1;
    }
    return 0;
}

/* ---- the functions of the module ---- */

static PyObject *order(PyObject *number, shoal_err (*call)(void *stream))
{
    void *stream = PyLong_AsVoidPtr(number);
    if (stream == NULL && PyErr_Occurred() != NULL) {
        return NULL;
    }
    shoal_err err = call(stream);
    return err == SHOAL_OK ? Py_NewRef(Py_None) : ext_raise(err);
}

static PyObject *cuda_follow(PyObject *module, PyObject *stream)
{
    (void)module;
    return order(stream, shoal_cuda_follow_stream);
}

static PyObject *cuda_precede(PyObject *module, PyObject *stream)
{
    (void)module;
    return order(stream, shoal_cuda_precede_stream);
}

static PyObject *card_wait(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    shoal_err err;
    Py_BEGIN_ALLOW_THREADS;
    err = shoal_cuda_wait();
    Py_END_ALLOW_THREADS;
    return err == SHOAL_OK ? Py_NewRef(Py_None) : ext_raise(err);
}

static PyObject *cuda_memory(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    shoal_cuda_memory memory;
    shoal_err err;
    Py_BEGIN_ALLOW_THREADS;
    err = shoal_cuda_memory_get(&memory);
    Py_END_ALLOW_THREADS;
    if (err != SHOAL_OK) {
        return ext_raise(err);
    }
    return Py_BuildValue("{s:n,s:n,s:n,s:n}", "asked", (Py_ssize_t)memory.asked, "held", (Py_ssize_t)memory.held,
                         "free", (Py_ssize_t)memory.free, "total", (Py_ssize_t)memory.total);
}

static PyObject *card_trim(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    size_t bytes;
    Py_BEGIN_ALLOW_THREADS;
    bytes = shoal_cuda_trim();
    Py_END_ALLOW_THREADS;
    return PyLong_FromSize_t(bytes);
}

int ext_add_card(PyObject *module)
{
    static PyMethodDef functions[] = {
        {"cuda_follow", cuda_follow, METH_O, "cuda_follow(stream): Shoal's later work waits for the stream."},
        {"cuda_precede", cuda_precede, METH_O, "cuda_precede(stream): the stream's later work waits for Shoal's."},
        {"synchronize", card_wait, METH_NOARGS,
         "synchronize()\n--\n\nWaits until all work of Shoal on this process's GPU is done, also what it waits for of "
         "other processes. Raises shoal.Error if one of them died before it had computed a tensor that was used here."},
        {"cuda_memory", cuda_memory, METH_NOARGS,
         "cuda_memory()\n--\n\nReturns how many bytes of the GPU this process has asked for and holds, and how many "
         "are "
         "free and there in total, as a dict. What is held includes memory that is kept for later or lent to other "
         "processes."},
        {"empty_cache", card_trim, METH_NOARGS,
         "empty_cache()\n--\n\nGives GPU memory back that Shoal keeps for later in this process, as "
         "torch.cuda.empty_cache() does for torch's. Returns the number of bytes."},
        {NULL, NULL, 0, NULL},
    };
    return PyModule_AddFunctions(module, functions);
}
