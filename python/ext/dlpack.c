/* DLPack capsules: tensors to and from other Python libraries without a copy.
 *
 * A capsule owns its struct until its receiver renames it to "used_...". Capsules are versioned, with the struct of the
 * library's dlpack.h, or not, with the older struct below. Receivers call the deleter from any thread, with or without
 * the interpreter's lock. */
#include "tensor.h"

#include <stdlib.h>
#include <string.h>

#define VERSIONED "dltensor_versioned"
#define UNVERSIONED "dltensor"

/* The struct of DLPack before version 1. */
typedef struct old_pack {
    struct {
        void *data;
        shoal_dlpack_device device;
        int32_t ndim;
        shoal_dlpack_dtype dtype;
        int64_t *shape;
        int64_t *strides;
        uint64_t byte_offset;
    } tensor;
    void *manager;
    void (*deleter)(struct old_pack *self);
} old_pack;

_Static_assert(sizeof((old_pack *)0)->tensor == sizeof((shoal_dlpack *)0)->tensor, "the same struct in both");

static void delete_pack(shoal_dlpack *pack)
{
    if (pack->deleter != NULL) {
        pack->deleter(pack);
    }
}

/* ---- out ---- */

static void old_pack_delete(old_pack *old)
{
    delete_pack(old->manager);
    free(old);
}

static void drop_versioned(PyObject *capsule)
{
    if (PyCapsule_IsValid(capsule, VERSIONED)) {
        delete_pack(PyCapsule_GetPointer(capsule, VERSIONED));
    }
}

static void drop_unversioned(PyObject *capsule)
{
    if (PyCapsule_IsValid(capsule, UNVERSIONED)) {
        old_pack_delete(PyCapsule_GetPointer(capsule, UNVERSIONED));
    }
}

static PyObject *unversioned_capsule(shoal_dlpack *pack)
{
    old_pack *old = calloc(1, sizeof *old);
    if (old == NULL) {
        delete_pack(pack);
        return PyErr_NoMemory();
    }
    memcpy(&old->tensor, &pack->tensor, sizeof old->tensor);
    old->manager = pack;
    old->deleter = old_pack_delete;
    PyObject *capsule = PyCapsule_New(old, UNVERSIONED, drop_unversioned);
    if (capsule == NULL) {
        old_pack_delete(old);
    }
    return capsule;
}

/* A pack of GPU memory for a receiver with a stream of its own. Before the memory is given back, Shoal's later work is
 * made to wait for what the receiver has enqueued. */
typedef struct card_pack {
    shoal_dlpack pack; /* a copy of inner, with another deleter */
    shoal_dlpack *inner;
    void *stream;
} card_pack;

static void card_pack_delete(shoal_dlpack *pack)
{
    card_pack *card = pack->manager;
    (void)!shoal_cuda_follow_stream(card->stream); /* fails if the receiver captures, or the GPU is gone */
    delete_pack(card->inner);
    free(card);
}

/* Takes over the pack. */
static shoal_dlpack *for_stream(shoal_dlpack *inner, void *stream)
{
    card_pack *card = malloc(sizeof *card);
    if (card == NULL) {
        PyErr_NoMemory();
    } else if (shoal_cuda_precede_stream(stream) != SHOAL_OK) {
        ext_raise(shoal_last_error());
        free(card);
        card = NULL;
    }
    if (card == NULL) {
        delete_pack(inner);
        return NULL;
    }
    *card = (card_pack){.pack = *inner, .inner = inner, .stream = stream};
    card->pack.manager = card;
    card->pack.deleter = card_pack_delete;
    return &card->pack;
}

/* Makes the pack, of a copy in the memory of the CPU if that was asked for. */
static shoal_dlpack *make_pack(shoal_tensor *t, const ext_destination *to)
{
    shoal_dlpack *pack = NULL;
    shoal_tensor *copy = NULL;
    size_t mark = shoal_scope_mark();
    if (to->to_cpu) {
        Py_BEGIN_ALLOW_THREADS; /* waits for the GPU */
        copy = shoal_to_device(t, SHOAL_CPU);
        Py_END_ALLOW_THREADS;
    }
    shoal_err err = to->to_cpu && copy == NULL ? shoal_last_error()
                                               : shoal_tensor_to_dlpack(copy != NULL ? copy : t, to->flags, &pack);
    shoal_scope_release(mark);
    if (err != SHOAL_OK) {
        ext_raise(err);
        return NULL;
    }
    return to->has_stream ? for_stream(pack, to->stream) : pack;
}

PyObject *ext_dlpack_export(shoal_tensor *t, const ext_destination *to)
{
    shoal_dlpack *pack = make_pack(t, to);
    if (pack == NULL) {
        return NULL;
    }
    if (to->bool_as_bytes && pack->tensor.dtype.code == SHOAL_DLPACK_BOOL) {
        pack->tensor.dtype.code = SHOAL_DLPACK_UINT;
    }
    if (!to->versioned) {
        return unversioned_capsule(pack);
    }
    PyObject *capsule = PyCapsule_New(pack, VERSIONED, drop_versioned);
    if (capsule == NULL) {
        delete_pack(pack);
    }
    return capsule;
}

/* ---- in ---- */

static void wrapper_delete(shoal_dlpack *wrapper)
{
    old_pack *old = wrapper->manager;
    if (old->deleter != NULL) {
        old->deleter(old);
    }
    free(wrapper);
}

/* The old struct, wrapped in the new one. Its deleter deletes both. */
static shoal_dlpack *wrap_old(old_pack *old)
{
    shoal_dlpack *wrapper = calloc(1, sizeof *wrapper);
    if (wrapper == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    wrapper->version.major = SHOAL_DLPACK_MAJOR;
    wrapper->version.minor = SHOAL_DLPACK_MINOR;
    wrapper->manager = old;
    wrapper->deleter = wrapper_delete;
    memcpy(&wrapper->tensor, &old->tensor, sizeof wrapper->tensor);
    return wrapper;
}

static shoal_tensor *take_pack(shoal_dlpack *pack, int bytes_as_bool)
{
    shoal_dlpack_dtype *dtype = &pack->tensor.dtype;
    if (bytes_as_bool && dtype->code == SHOAL_DLPACK_UINT && dtype->bits == 8) {
        dtype->code = SHOAL_DLPACK_BOOL;
    }
    shoal_tensor *t = shoal_tensor_from_dlpack(pack);
    if (t == NULL) {
        ext_raise(shoal_last_error());
    }
    return t;
}

shoal_tensor *ext_dlpack_import(PyObject *capsule, int bytes_as_bool)
{
    if (PyCapsule_IsValid(capsule, VERSIONED)) {
        shoal_tensor *t = take_pack(PyCapsule_GetPointer(capsule, VERSIONED), bytes_as_bool);
        if (t != NULL) {
            PyCapsule_SetName(capsule, "used_" VERSIONED);
        }
        return t;
    }
    if (!PyCapsule_IsValid(capsule, UNVERSIONED)) {
        PyErr_SetString(PyExc_TypeError, "not a DLPack capsule, or one that was used before");
        return NULL;
    }
    shoal_dlpack *wrapper = wrap_old(PyCapsule_GetPointer(capsule, UNVERSIONED));
    if (wrapper == NULL) {
        return NULL;
    }
    shoal_tensor *t = take_pack(wrapper, bytes_as_bool);
    if (t == NULL) {
        free(wrapper); /* the capsule still owns the old struct */
        return NULL;
    }
    PyCapsule_SetName(capsule, "used_" UNVERSIONED);
    return t;
}
