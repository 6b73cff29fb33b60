/* Wrappers of shared objects: the base type, and the table of kinds. */
#include "codec.h"

#include <stddef.h>
#include <structmember.h>

PyTypeObject *ext_shared_type;

#define KINDS (SHOAL_KIND_MODULE + 1)

/* What the library offers for each kind. retain is for a handle that a value owns. */
typedef struct kind_calls {
    void (*release)(void *handle);
    void *(*retain)(void *handle);
    shoal_value *(*value)(void *handle);
    void *(*as)(const shoal_value *value);
} kind_calls;

#define SHARED(X)                                                                                                      \
    X(block, BLOCK)                                                                                                    \
    X(queue, QUEUE)                                                                                                    \
    X(pipe, PIPE)                                                                                                      \
    X(lock, LOCK)                                                                                                      \
    X(rlock, RLOCK)                                                                                                    \
    X(semaphore, SEMAPHORE)                                                                                            \
    X(condition, CONDITION)                                                                                            \
    X(event, EVENT)                                                                                                    \
    X(barrier, BARRIER)                                                                                                \
    X(tensor, TENSOR)

#define CALLS_OF(noun, NOUN)                                                                                           \
    static void noun##_drop(void *handle)                                                                              \
    {                                                                                                                  \
        shoal_##noun##_release(handle);                                                                                \
    }                                                                                                                  \
    static void *noun##_keep(void *handle)                                                                             \
    {                                                                                                                  \
        return shoal_##noun##_retain(handle);                                                                          \
    }                                                                                                                  \
    static shoal_value *noun##_to(void *handle)                                                                        \
    {                                                                                                                  \
        return shoal_value_##noun(handle);                                                                             \
    }                                                                                                                  \
    static void *noun##_of(const shoal_value *value)                                                                   \
    {                                                                                                                  \
        return shoal_value_as_##noun(value);                                                                           \
    }
SHARED(CALLS_OF)

#define ROW(noun, NOUN) [SHOAL_KIND_##NOUN] = {noun##_drop, noun##_keep, noun##_to, noun##_of},
static const kind_calls calls[KINDS] = {SHARED(ROW)};

static PyTypeObject *types[KINDS];   /* of this module */
static PyTypeObject *classes[KINDS]; /* the Python classes that received objects get; NULL: the type above */
static bool has_state[KINDS];        /* whether that class overrides Shared._shoal_state */
static PyMethodDef *methods_of[KINDS];

static int kind_of_type(PyTypeObject *type)
{
    for (int kind = 0; kind < KINDS; kind++) {
        if (types[kind] != NULL && PyType_IsSubtype(type, types[kind])) {
            return kind;
        }
    }
    PyErr_SetString(PyExc_TypeError, "the class is not one of shared objects");
    return -1;
}

/* Makes the object as object.__new__ does, because only that prepares the attributes of a Python class in 3.12. Without
 * them the interpreter has no short way to call a method: a lock took 1.6 times as long. */
static PyObject *new_object(PyTypeObject *type)
{
    newfunc make = (newfunc)PyType_GetSlot(&PyBaseObject_Type, Py_tp_new);
    PyObject *args = PyTuple_New(0);
    PyObject *self = args != NULL ? make(type, args, NULL) : NULL;
    Py_XDECREF(args);
    return self;
}

/* Makes an object of a type of that kind around a handle, and takes over the caller's reference of the handle, after a
 * failure too. */
static PyObject *wrap(PyTypeObject *type, int kind, void *handle)
{
    ext_shared *self = (ext_shared *)new_object(type);
    if (self == NULL) {
        calls[kind].release(handle);
        return NULL;
    }
    self->kind = (shoal_kind)kind;
    self->handle = handle;
    return (PyObject *)self;
}

PyObject *ext_shared_new(PyTypeObject *type, void *handle)
{
    int kind = kind_of_type(type);
    return kind >= 0 ? wrap(type, kind, handle) : NULL;
}

void ext_shared_close(ext_shared *self)
{
    void *handle = self->handle;
    if (handle != NULL && self->closing != NULL) {
        self->closing(self);
    }
    self->handle = NULL;
    if (handle != NULL) {
        calls[self->kind].release(handle);
    }
}

void *ext_shared_handle(PyObject *obj, shoal_kind kind)
{
    if (!PyObject_TypeCheck(obj, ext_shared_type) || ((ext_shared *)obj)->kind != kind) {
        PyErr_Format(PyExc_TypeError, "%R is not a %s", obj, "shared object of the expected kind");
        return NULL;
    }
    void *handle = ((ext_shared *)obj)->handle;
    if (handle == NULL) {
        PyErr_Format(PyExc_ValueError, "%R is closed", obj);
    }
    return handle;
}

shoal_value *ext_shared_value(PyObject *obj)
{
    if (!PyObject_TypeCheck(obj, ext_shared_type)) {
        PyErr_Format(PyExc_TypeError, "%R is not a shared object", obj);
        return NULL;
    }
    ext_shared *self = (ext_shared *)obj;
    if (self->handle == NULL) {
        PyErr_Format(PyExc_ValueError, "%R is closed", obj);
        return NULL;
    }
    shoal_value *value = calls[self->kind].value(self->handle);
    if (value == NULL) {
        ext_raise(shoal_last_error());
    }
    return value;
}

/* Returns the class for received objects of a kind. Its module says which (set_class), and may not be imported yet. */
static PyTypeObject *class_of(shoal_kind kind)
{
    static const char *const modules[KINDS] = {
        [SHOAL_KIND_QUEUE] = "shoal.multiprocessing.queues",
        [SHOAL_KIND_PIPE] = "shoal.multiprocessing.connection",
        [SHOAL_KIND_LOCK] = "shoal.multiprocessing.synchronize",
        [SHOAL_KIND_RLOCK] = "shoal.multiprocessing.synchronize",
        [SHOAL_KIND_SEMAPHORE] = "shoal.multiprocessing.synchronize",
        [SHOAL_KIND_CONDITION] = "shoal.multiprocessing.synchronize",
        [SHOAL_KIND_EVENT] = "shoal.multiprocessing.synchronize",
        [SHOAL_KIND_BARRIER] = "shoal.multiprocessing.synchronize",
    };
    if (classes[kind] == NULL && modules[kind] != NULL) {
        PyObject *module = PyImport_ImportModule(modules[kind]);
        if (module == NULL) {
            return NULL;
        }
        Py_DECREF(module);
    }
    return classes[kind] != NULL ? classes[kind] : types[kind];
}

PyObject *ext_shared_from_value(const shoal_value *value)
{
    shoal_kind kind = shoal_value_object_kind(value);
    if (types[kind] == NULL) {
        PyErr_SetString(ext_error, "a shared object of this kind cannot be used from Python");
        return NULL;
    }
    PyTypeObject *cls = class_of(kind);
    if (cls == NULL) {
        return NULL;
    }
    void *handle = calls[kind].as(value);
    if (handle == NULL || calls[kind].retain(handle) == NULL) {
        return ext_raise(shoal_last_error());
    }
    return wrap(cls, (int)kind, handle);
}

int ext_shared_is_plain(PyObject *obj)
{
    ext_shared *self = (ext_shared *)obj;
    PyTypeObject *type = Py_TYPE(obj);
    if (type != types[self->kind] && type != classes[self->kind]) {
        return 0;
    }
    if (!has_state[self->kind]) {
        return 1;
    }
    PyObject *state = PyObject_CallMethod(obj, "_shoal_state", NULL);
    int plain = state != NULL && Py_IsNone(state);
    Py_XDECREF(state);
    return plain;
}

static int overrides_state(PyTypeObject *cls, bool *out_overrides)
{
    PyObject *own = PyObject_GetAttrString((PyObject *)cls, "_shoal_state");
    PyObject *base = own != NULL ? PyObject_GetAttrString((PyObject *)ext_shared_type, "_shoal_state") : NULL;
    *out_overrides = own != base;
    Py_XDECREF(own);
    Py_XDECREF(base);
    return base != NULL ? 0 : -1;
}

static PyObject *set_class(PyObject *module, PyObject *cls)
{
    (void)module;
    int kind = PyType_Check(cls) ? kind_of_type((PyTypeObject *)cls) : -1;
    if (kind < 0 || overrides_state((PyTypeObject *)cls, &has_state[kind]) != 0) {
        return NULL;
    }
    Py_XDECREF((PyObject *)classes[kind]);
    classes[kind] = (PyTypeObject *)Py_NewRef(cls);
    Py_RETURN_NONE;
}

PyTypeObject *ext_shared_type_add(PyObject *module, const char *name, shoal_kind kind, size_t size, PyType_Slot *slots)
{
    /* A type that adds nothing to Shared could be inherited from together with another one. */
    size_t least = sizeof(ext_shared) + sizeof(void *);
    PyType_Spec spec = {
        .name = name,
        .basicsize = (int)(size > least ? size : least),
        .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
        .slots = slots,
    };
    for (PyType_Slot *slot = slots; slot->slot != 0; slot++) {
        if (slot->slot == Py_tp_methods) {
            methods_of[kind] = slot->pfunc;
        }
    }
    types[kind] = (PyTypeObject *)PyType_FromSpecWithBases(&spec, (PyObject *)ext_shared_type);
    if (types[kind] == NULL || overrides_state(types[kind], &has_state[kind]) != 0 ||
        PyModule_AddType(module, types[kind]) != 0) {
        return NULL;
    }
    return types[kind];
}

/* ---- the base type ---- */

static void shared_dealloc(PyObject *obj)
{
    ext_shared *self = (ext_shared *)obj;
    PyTypeObject *type = Py_TYPE(obj);
    if (self->weak != NULL) {
        PyObject_ClearWeakRefs(obj);
    }
    ext_shared_close(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(obj);
    Py_DECREF(type);
}

static PyObject *shared_adopt(PyObject *cls, PyObject *other)
{
    if (!PyObject_TypeCheck(other, ext_shared_type)) {
        PyErr_SetString(PyExc_TypeError, "_adopt() takes a shared object");
        return NULL;
    }
    ext_shared *from = (ext_shared *)other;
    int kind = kind_of_type((PyTypeObject *)cls);
    if (kind < 0) {
        return NULL;
    }
    if ((shoal_kind)kind != from->kind || from->handle == NULL) {
        PyErr_SetString(PyExc_TypeError, "_adopt(): the object is closed or of another kind");
        return NULL;
    }
    if (calls[kind].retain(from->handle) == NULL) {
        return ext_raise(shoal_last_error());
    }
    return ext_shared_new((PyTypeObject *)cls, from->handle);
}

/* Gives a Python class its own descriptors of the C methods that it inherits. The interpreter has a short way to call
 * a method only if the descriptor belongs to the exact class of the object: that saves a fifth of a lock's time. */
static int own_methods(PyTypeObject *cls, PyMethodDef *method)
{
    for (; method != NULL && method->ml_name != NULL; method++) {
        PyObject *inherited = PyObject_GetAttrString((PyObject *)cls, method->ml_name);
        int is_ours = inherited != NULL && Py_IS_TYPE(inherited, &PyMethodDescr_Type); /* not replaced in Python */
        Py_XDECREF(inherited);
        if (inherited == NULL) {
            return -1;
        }
        PyObject *own = is_ours ? PyDescr_NewMethod(cls, method) : NULL;
        if (is_ours && (own == NULL || PyObject_SetAttrString((PyObject *)cls, method->ml_name, own) != 0)) {
            Py_XDECREF(own);
            return -1;
        }
        Py_XDECREF(own);
    }
    return 0;
}

static PyObject *shared_init_subclass(PyObject *cls, PyObject *args, PyObject *kwargs)
{
    int kind = kind_of_type((PyTypeObject *)cls);
    if (kind < 0) {
        PyErr_Clear(); /* a class that inherits from Shared itself */
    } else if (own_methods((PyTypeObject *)cls, methods_of[kind]) != 0) {
        return NULL;
    }
    PyObject *next = PyObject_CallFunctionObjArgs((PyObject *)&PySuper_Type, ext_shared_type, cls, NULL);
    PyObject *call = next != NULL ? PyObject_GetAttrString(next, "__init_subclass__") : NULL;
    PyObject *result = call != NULL ? PyObject_Call(call, args, kwargs) : NULL;
    Py_XDECREF(call);
    Py_XDECREF(next);
    return result;
}

static PyObject *shared_reduce(PyObject *self, PyObject *unused)
{
    (void)unused;
    PyObject *name = PyType_GetName(Py_TYPE(self));
    if (name != NULL) {
        PyErr_Format(
            PyExc_RuntimeError,
            "%U objects should only be shared between processes through inheritance, as an argument of a process "
            "of shoal.multiprocessing, or through one of its queues or pipes",
            name);
    }
    Py_XDECREF(name);
    return NULL;
}

static PyObject *shared_state(PyObject *self, PyObject *unused)
{
    (void)self;
    (void)unused;
    Py_RETURN_NONE;
}

/* A class of the program may override __getstate__ and __setstate__ and call these: they have nothing to add. */
static PyObject *shared_getstate(PyObject *self, PyObject *unused)
{
    (void)self;
    (void)unused;
    Py_RETURN_NONE;
}

static PyObject *shared_setstate(PyObject *self, PyObject *state)
{
    if (PyDict_Check(state)) { /* the attributes of an object whose class does not override them */
        PyObject *attributes = PyObject_GetAttrString(self, "__dict__");
        int done = attributes != NULL ? PyDict_Update(attributes, state) : -1;
        Py_XDECREF(attributes);
        if (done != 0) {
            return NULL;
        }
    }
    Py_RETURN_NONE;
}

static PyObject *shared_restore(PyObject *self, PyObject *state)
{
    (void)self;
    (void)state;
    Py_RETURN_NONE;
}

static PyObject *shared_refuse(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    (void)args;
    (void)kwargs;
    PyErr_Format(PyExc_TypeError, "%R cannot be made directly", type);
    return NULL;
}

int ext_add_shared(PyObject *module)
{
    static PyMethodDef methods[] = {
        {"_adopt", shared_adopt, METH_O | METH_CLASS,
         "Makes an object of this class for a shared object that was received."},
        {"_shoal_state", shared_state, METH_NOARGS, "What must travel beside the shared object; None for nothing."},
        {"_shoal_restore", shared_restore, METH_O, "Takes over what _shoal_state gave, in the receiver."},
        {"__getstate__", shared_getstate, METH_NOARGS, "Returns None: the shared object itself travels by handle."},
        {"__setstate__", shared_setstate, METH_O, "Takes over attributes, in the receiver."},
        {"__init_subclass__", (PyCFunction)(void (*)(void))shared_init_subclass,
         METH_CLASS | METH_VARARGS | METH_KEYWORDS, "Gives the class its own descriptors of inherited methods."},
        {"__reduce__", shared_reduce, METH_NOARGS, "Raises RuntimeError: only a put or a start may pickle it."},
        {NULL, NULL, 0, NULL},
    };
    static PyMemberDef members[] = {
        {"__weaklistoffset__", T_PYSSIZET, offsetof(ext_shared, weak), READONLY, NULL},
        {NULL, 0, 0, 0, NULL},
    };
    static PyType_Slot slots[] = {
        {Py_tp_doc, "A reference to an object in shared memory."},
        {Py_tp_new, shared_refuse},
        {Py_tp_dealloc, shared_dealloc},
        {Py_tp_methods, methods},
        {Py_tp_members, members},
        {0, NULL},
    };
    static PyType_Spec spec = {
        .name = "shoal._shoal.Shared",
        .basicsize = sizeof(ext_shared),
        .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
        .slots = slots,
    };
    static PyMethodDef functions[] = {
        {"set_class", set_class, METH_O, "set_class(cls): received shared objects of its kind become objects of cls."},
        {NULL, NULL, 0, NULL},
    };
    ext_shared_type = (PyTypeObject *)PyType_FromSpec(&spec);
    if (ext_shared_type == NULL || PyModule_AddType(module, ext_shared_type) != 0) {
        return -1;
    }
    return PyModule_AddFunctions(module, functions);
}
