/* Python objects as values.
 *
 * Frequent types take a short way: None, bool, int, float, str, bytes, shared objects (queues, locks, shoal.Tensor and
 * so on: shared.c has the kinds), numpy arrays and torch tensors, and lists, tuples and dicts of such things. C
 * programs read these as plain values. Containers with plain members only are written and read without values in
 * between (packed.c, unpack.c). Everything else is pickled, by the functions that shoal.multiprocessing.reduction
 * registers.
 *
 * What a value cannot say by itself is said by foreign values with a tag:
 *   [foreign TUPLE, a, b]          a tuple
 *   [foreign PICKLE, o1, o2]       a pickle; the shared objects that it refers to by number follow
 *   foreign PICKLE                 a pickle without shared objects
 *   [foreign ARRAY, block]         a numpy array whose elements are in the block (array.c)
 *   foreign SMALL_ARRAY            a small numpy array, the elements included
 *   [foreign TORCH, block]         a torch tensor over a block (torch/glue.h)
 *   [foreign TORCH, tensor]        the same on a GPU, over a tensor of bytes
 */
#include "codec.h"

#include <string.h>

static PyObject *pickle_dumps, *pickle_loads; /* of shoal.multiprocessing.reduction */
int ext_unpickle_allowed = 1;

/* ---- encoding ---- */

/* The encoders of one type return 1 and a value; 0 if the short way cannot carry the object; -1 with an exception. */
static int made(shoal_value *value, shoal_value **out_value)
{
    if (value == NULL) {
        ext_raise(shoal_last_error());
        return -1;
    }
    *out_value = value;
    return 1;
}

static int encode_int(PyObject *obj, shoal_value **out_value)
{
    int overflow;
    long long number = PyLong_AsLongLongAndOverflow(obj, &overflow);
    if (overflow != 0) {
        return 0;
    }
    return made(shoal_value_int(number), out_value);
}

static int encode_str(PyObject *obj, shoal_value **out_value)
{
    Py_ssize_t size;
    const char *text = PyUnicode_AsUTF8AndSize(obj, &size);
    if (text == NULL) { /* lone surrogates */
        PyErr_Clear();
        return 0;
    }
    if (memchr(text, 0, (size_t)size) != NULL) { /* a string value ends at its first NUL */
        return 0;
    }
    return made(shoal_value_string(text), out_value);
}

static int encode_bytes(PyObject *obj, shoal_value **out_value)
{
    char *bytes;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(obj, &bytes, &size) != 0) {
        return -1;
    }
    return made(shoal_value_bytes(bytes, (size_t)size), out_value);
}

/* A shared object whose class has nothing to add travels as itself. */
static int encode_shared(PyObject *obj, shoal_value **out_value)
{
    if (!ext_shared_is_plain(obj)) {
        return PyErr_Occurred() != NULL ? -1 : 0;
    }
    *out_value = ext_shared_value(obj);
    return *out_value != NULL ? 1 : -1;
}

static int encode_short(PyObject *obj, ext_known *known, shoal_value **out_value);

/* Adds a member to a list, or sets it under a key of a map. On 0 and -1 the container is gone. */
static int add_member(shoal_value **container, const char *key, PyObject *obj, ext_known *known)
{
    shoal_value *member;
    int done = encode_short(obj, known, &member);
    if (done == 1) {
        *container = key != NULL ? shoal_map_set(*container, key, member) : shoal_list_add(*container, member);
        return made(*container, container);
    }
    shoal_value_destroy(*container);
    *container = NULL;
    return done;
}

static int encode_sequence(PyObject *obj, int tuple, ext_known *known, shoal_value **out_value)
{
    Py_ssize_t count = tuple ? PyTuple_Size(obj) : PyList_Size(obj);
    shoal_value *list = shoal_value_list();
    if (tuple && list != NULL) {
        list = shoal_list_add(list, shoal_value_foreign(CODEC_TUPLE, "", 0));
    }
    int done = made(list, &list);
    for (Py_ssize_t i = 0; done == 1 && i < count; i++) {
        PyObject *member = tuple ? PyTuple_GetItem(obj, i) : PyList_GetItem(obj, i);
        if (member == NULL) { /* another thread has changed the list */
            shoal_value_destroy(list);
            return -1;
        }
        done = add_member(&list, NULL, member, known);
    }
    *out_value = list;
    return done;
}

/* Returns a key as text; NULL if a map cannot have it. */
static const char *text_of_key(PyObject *key)
{
    Py_ssize_t size = 0;
    const char *text = PyUnicode_CheckExact(key) ? PyUnicode_AsUTF8AndSize(key, &size) : NULL;
    PyErr_Clear();
    return text != NULL && memchr(text, 0, (size_t)size) == NULL ? text : NULL;
}

static int encode_dict(PyObject *obj, ext_known *known, shoal_value **out_value)
{
    PyObject *key, *member;
    Py_ssize_t position = 0;
    shoal_value *map = NULL;
    int done = made(shoal_value_map(), &map);
    while (done == 1 && PyDict_Next(obj, &position, &key, &member)) {
        const char *text = text_of_key(key);
        if (text == NULL) {
            shoal_value_destroy(map);
            return 0;
        }
        done = add_member(&map, text, member, known);
    }
    *out_value = map;
    return done;
}

static int encode_container(PyObject *obj, ext_known *known, shoal_value **out_value)
{
    int done = ext_pack(obj, known, out_value);
    if (done != EXT_TREE) {
        return done;
    }
    if (known->depth == EXT_KNOWN_DEPTH || !ext_known_add(known, obj)) {
        return EXT_PICKLE;
    }
    known->depth++;
    done = PyDict_CheckExact(obj) ? encode_dict(obj, known, out_value)
                                  : encode_sequence(obj, PyTuple_CheckExact(obj), known, out_value);
    known->depth--;
    return done;
}

static int encode_short(PyObject *obj, ext_known *known, shoal_value **out_value)
{
    if (PyLong_CheckExact(obj)) {
        return encode_int(obj, out_value);
    }
    if (PyFloat_CheckExact(obj)) {
        return made(shoal_value_float(PyFloat_AsDouble(obj)), out_value);
    }
    if (PyUnicode_CheckExact(obj)) {
        return encode_str(obj, out_value);
    }
    if (Py_IsNone(obj)) {
        return made(shoal_value_null(), out_value);
    }
    if (PyBool_Check(obj)) {
        return made(shoal_value_bool(Py_IsTrue(obj)), out_value);
    }
    if (PyBytes_CheckExact(obj)) {
        return encode_bytes(obj, out_value);
    }
    if (PyTuple_CheckExact(obj) || PyList_CheckExact(obj) || PyDict_CheckExact(obj)) {
        return encode_container(obj, known, out_value);
    }
    if (!ext_known_add(known, obj)) {
        return EXT_PICKLE;
    }
    if (PyObject_TypeCheck(obj, ext_shared_type)) {
        return encode_shared(obj, out_value);
    }
    int done = ext_torch_encode(obj, out_value);
    return done != 0 ? done : ext_array_encode(obj, out_value);
}

shoal_value *ext_pickle_value(PyObject *pickle, PyObject *objects)
{
    Py_buffer view;
    if (PyObject_GetBuffer(pickle, &view, PyBUF_SIMPLE) != 0) {
        return NULL;
    }
    shoal_value *value = shoal_value_foreign(CODEC_PICKLE, view.buf, (size_t)view.len);
    PyBuffer_Release(&view);
    Py_ssize_t count = PyList_Size(objects);
    if (count < 0) {
        shoal_value_destroy(value);
        return NULL;
    }
    if (count > 0) {
        value = value != NULL ? shoal_list_add(shoal_value_list(), value) : NULL;
    }
    for (Py_ssize_t i = 0; value != NULL && i < count; i++) {
        shoal_value *member = ext_shared_value(PyList_GetItem(objects, i));
        if (member == NULL) {
            shoal_value_destroy(value);
            return NULL;
        }
        value = shoal_list_add(value, member);
    }
    if (value == NULL) {
        ext_raise(shoal_last_error());
    }
    return value;
}

/* The functions are registered when shoal.multiprocessing.reduction is imported. */
static int need_pickle(void)
{
    if (pickle_dumps == NULL) {
        PyObject *module = PyImport_ImportModule("shoal.multiprocessing.reduction");
        Py_XDECREF(module);
        if (module == NULL) {
            return -1;
        }
    }
    if (pickle_dumps == NULL) {
        PyErr_SetString(ext_error, "shoal.multiprocessing.reduction has not registered its functions");
        return -1;
    }
    return 0;
}

shoal_value *ext_encode_pickle(PyObject *obj)
{
    if (need_pickle() != 0) {
        return NULL;
    }
    PyObject *pair = PyObject_CallFunctionObjArgs(pickle_dumps, obj, NULL);
    PyObject *pickle = pair != NULL ? PyTuple_GetItem(pair, 0) : NULL;
    PyObject *objects = pickle != NULL ? PyTuple_GetItem(pair, 1) : NULL;
    shoal_value *value = objects != NULL ? ext_pickle_value(pickle, objects) : NULL;
    Py_XDECREF(pair);
    return value;
}

shoal_value *ext_encode(PyObject *obj)
{
    shoal_value *value = NULL;
    ext_known known;
    ext_known_init(&known);
    int done = encode_short(obj, &known, &value);
    ext_known_fini(&known);
    return done == 1 ? value : done == 0 ? ext_encode_pickle(obj) : NULL;
}

/* ---- decoding ---- */

static PyObject *decode(const shoal_value *value);

PyObject *ext_objects_of(const shoal_value *list)
{
    size_t count = shoal_value_type(list) == SHOAL_TYPE_LIST ? shoal_value_count(list) : 1;
    PyObject *objects = PyList_New((Py_ssize_t)count - 1);
    for (size_t i = 1; objects != NULL && i < count; i++) {
        PyObject *object = ext_shared_from_value(shoal_value_at(list, i));
        if (object == NULL || PyList_SetItem(objects, (Py_ssize_t)i - 1, object) != 0) {
            Py_CLEAR(objects);
        }
    }
    return objects;
}

static PyObject *unpickle(const void *bytes, size_t size, const shoal_value *value)
{
    if (!ext_unpickle_allowed) {
        PyErr_SetString(ext_error, "this process only joined the world: it does not unpickle what others send, unless "
                                   "it joined with unpickle=True");
        return NULL;
    }
    if (need_pickle() != 0) {
        return NULL;
    }
    PyObject *objects = ext_objects_of(value);
    PyObject *view =
        objects == NULL ? NULL : PyMemoryView_FromMemory((char *)(uintptr_t)bytes, (Py_ssize_t)size, PyBUF_READ);
    PyObject *obj = view == NULL ? NULL : PyObject_CallFunctionObjArgs(pickle_loads, view, objects, NULL);
    if (view != NULL) { /* whoever kept the view must not read freed memory */
        PyObject *type, *error, *trace;
        PyErr_Fetch(&type, &error, &trace);
        PyObject *released = PyObject_CallMethod(view, "release", NULL);
        if (released == NULL) {
            PyErr_Clear();
        }
        Py_XDECREF(released);
        PyErr_Restore(type, error, trace);
    }
    Py_XDECREF(view);
    Py_XDECREF(objects);
    return obj;
}

/* value is the foreign value itself, or the list that begins with it. */
static PyObject *decode_foreign(const shoal_value *foreign, const shoal_value *value)
{
    uint32_t tag;
    size_t size;
    const void *bytes = shoal_value_as_foreign(foreign, &tag, &size);
    const shoal_value *second = value != foreign && shoal_value_count(value) == 2 ? shoal_value_at(value, 1) : NULL;
    shoal_block *block =
        second != NULL && shoal_value_object_kind(second) == SHOAL_KIND_BLOCK ? shoal_value_as_block(second) : NULL;
    switch (tag) {
    case CODEC_PICKLE: return unpickle(bytes, size, value);
    case CODEC_SMALL_ARRAY: return ext_array_decode(bytes, size, NULL);
    case CODEC_TORCH: return ext_torch_decode(bytes, size, second);
    case CODEC_ARRAY:
        if (block != NULL) {
            return ext_array_decode(bytes, size, block);
        }
        break;
    default: break;
    }
    PyErr_Format(ext_error, "the message has an unknown part: a foreign value with tag %u", (unsigned)tag);
    return NULL;
}

PyObject *ext_decode_foreign(uint32_t tag, const void *bytes, size_t size)
{
    if (tag == CODEC_PICKLE) {
        return unpickle(bytes, size, NULL);
    }
    shoal_value *foreign = shoal_value_foreign(tag, bytes, size);
    PyObject *obj = foreign != NULL ? decode_foreign(foreign, foreign) : ext_raise(shoal_last_error());
    shoal_value_destroy(foreign);
    return obj;
}

/* Returns the tag of a foreign value; 0 for anything else. */
static uint32_t tag_of(const shoal_value *value)
{
    uint32_t tag = 0;
    return value != NULL && shoal_value_type(value) == SHOAL_TYPE_FOREIGN &&
                   shoal_value_as_foreign(value, &tag, NULL) != NULL
               ? tag
               : 0;
}

static PyObject *decode_list(const shoal_value *value)
{
    size_t count = shoal_value_count(value);
    const shoal_value *first = count > 0 ? shoal_value_at(value, 0) : NULL;
    uint32_t tag = tag_of(first);
    if (tag == CODEC_PICKLE || tag == CODEC_ARRAY || tag == CODEC_TORCH) {
        return decode_foreign(first, value);
    }
    int tuple = tag == CODEC_TUPLE;
    size_t skipped = tuple ? 1 : 0;
    PyObject *result = tuple ? PyTuple_New((Py_ssize_t)(count - 1)) : PyList_New((Py_ssize_t)count);
    for (size_t i = skipped; result != NULL && i < count; i++) {
        PyObject *member = decode(shoal_value_at(value, i));
        Py_ssize_t place = (Py_ssize_t)(i - skipped);
        if (member == NULL ||
            (tuple ? PyTuple_SetItem(result, place, member) : PyList_SetItem(result, place, member)) != 0) {
            Py_CLEAR(result);
        }
    }
    return result;
}

static PyObject *decode_map(const shoal_value *value)
{
    size_t count = shoal_value_count(value);
    PyObject *result = PyDict_New();
    for (size_t i = 0; result != NULL && i < count; i++) {
        PyObject *member = decode(shoal_value_at(value, i));
        if (member == NULL || PyDict_SetItemString(result, shoal_value_key_at(value, i), member) != 0) {
            Py_CLEAR(result);
        }
        Py_XDECREF(member);
    }
    return result;
}

static PyObject *decode_number(const shoal_value *value, shoal_type type)
{
    int64_t integer = 0;
    uint64_t natural = 0;
    double number = 0;
    bool truth = false;
    switch (type) {
    case SHOAL_TYPE_BOOL: return shoal_value_as_bool(value, &truth) == SHOAL_OK ? PyBool_FromLong(truth) : NULL;
    case SHOAL_TYPE_INT: return shoal_value_as_int(value, &integer) == SHOAL_OK ? PyLong_FromLongLong(integer) : NULL;
    case SHOAL_TYPE_UINT:
        return shoal_value_as_uint(value, &natural) == SHOAL_OK ? PyLong_FromUnsignedLongLong(natural) : NULL;
    default: return shoal_value_as_float(value, &number) == SHOAL_OK ? PyFloat_FromDouble(number) : NULL;
    }
}

static PyObject *decode(const shoal_value *value)
{
    size_t size = 0;
    const void *bytes;
    shoal_type type = shoal_value_type(value);
    switch (type) {
    case SHOAL_TYPE_NULL: Py_RETURN_NONE;
    case SHOAL_TYPE_BOOL:
    case SHOAL_TYPE_INT:
    case SHOAL_TYPE_UINT:
    case SHOAL_TYPE_FLOAT: return decode_number(value, type);
    case SHOAL_TYPE_STRING: return PyUnicode_FromString(shoal_value_as_string(value));
    case SHOAL_TYPE_BYTES:
        bytes = shoal_value_as_bytes(value, &size);
        return PyBytes_FromStringAndSize(bytes, (Py_ssize_t)size);
    case SHOAL_TYPE_LIST: return decode_list(value);
    case SHOAL_TYPE_MAP: return decode_map(value);
    case SHOAL_TYPE_OBJECT: return ext_shared_from_value(value);
    case SHOAL_TYPE_FOREIGN:
        bytes = shoal_value_as_packed(value, &size);
        return bytes != NULL ? ext_unpack(bytes, size) : decode_foreign(value, value);
    }
    PyErr_SetString(ext_error, "the message has a value of an unknown type");
    return NULL;
}

PyObject *ext_decode_part(const shoal_value *part)
{
    return decode(part);
}

PyObject *ext_decode(shoal_value *value)
{
    PyObject *obj = decode(value);
    shoal_value_destroy(value);
    return obj;
}

/* ---- the functions of the module ---- */

static PyObject *set_pickle(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *dumps, *loads;
    if (!PyArg_ParseTuple(args, "OO", &dumps, &loads)) {
        return NULL;
    }
    Py_XDECREF(pickle_dumps);
    Py_XDECREF(pickle_loads);
    pickle_dumps = Py_NewRef(dumps);
    pickle_loads = Py_NewRef(loads);
    Py_RETURN_NONE;
}

static PyObject *set_unpickle_allowed(PyObject *module, PyObject *flag)
{
    (void)module;
    int allowed = PyObject_IsTrue(flag);
    if (allowed < 0) {
        return NULL;
    }
    ext_unpickle_allowed = allowed;
    Py_RETURN_NONE;
}

int ext_add_codec(PyObject *module)
{
    static PyMethodDef functions[] = {
        {"set_pickle", set_pickle, METH_VARARGS,
         "set_pickle(dumps, loads): how to carry what the short way cannot. dumps(obj) gives (bytes, [shared "
         "objects]), "
         "loads(bytes, [shared objects]) the object again."},
        {"set_unpickle_allowed", set_unpickle_allowed, METH_O, "Whether received pickles may be loaded."},
        {NULL, NULL, 0, NULL},
    };
    if (PyModule_AddFunctions(module, functions) != 0 || ext_pack_add() != 0 || ext_unpack_add() != 0 ||
        ext_array_add(module) != 0) {
        return -1;
    }
    return ext_torch_add(module);
}
