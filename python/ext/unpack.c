/* Reads MessagePack bytes into Python objects in one pass; packed.c writes them. */
#include "codec.h"

#include <string.h>

/* Strings of a message that were read lately. Many are there again and again: keys of records, labels. They become one
 * object, which takes less time and memory than another; pickle does the same for an object that is sent twice. */
#define RECENT 64u /* 6 bits of a hash */
#define PATIENCE 64

typedef struct string {
    PyObject *object; /* owned: hostile code may drop the one in the message */
    const char *bytes;
    uint64_t size, first, last;
    PyTypeObject *type;
} string;

#define MANY 128 /* members of a container that are worth an iterator, and to remember strings */

/* The bytes may come from a hostile process. They are a private copy, so they do not change. */
typedef struct reader {
    const uint8_t *at, *end;
    int depth;
    int patience;   /* how many new strings it takes until the known ones are no longer looked at */
    string *recent; /* strings that were read, by hash; NULL in small messages */
    string room[RECENT];
} reader;

static __attribute__((noinline, cold)) PyObject *damaged(void)
{
    if (PyErr_Occurred() == NULL || PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) {
        PyErr_SetString(ext_error, "the message is damaged");
    }
    return NULL;
}

/* Reads a number of 1, 2, 4 or 8 bytes, big endian. */
static inline int get_number(reader *r, unsigned size, uint64_t *out_number)
{
    size_t left = (size_t)(r->end - r->at);
    uint64_t big = 0;
    if (left >= 8) {
        memcpy(&big, r->at, 8); /* a constant size: one instruction */
    } else if (left >= size) {
        memcpy(&big, r->at, size);
    } else {
        return 0;
    }
    *out_number = __builtin_bswap64(big) >> (64 - 8 * size);
    r->at += size;
    return 1;
}

/* Takes size bytes; NULL if there are not as many. */
static inline const char *get_bytes(reader *r, uint64_t size)
{
    if ((uint64_t)(r->end - r->at) < size) {
        return NULL;
    }
    const char *bytes = (const char *)r->at;
    r->at += size;
    return bytes;
}

/* ---- strings ---- */

static PyObject *make_string(PyTypeObject *type, const char *bytes, uint64_t size)
{
    return type == &PyUnicode_Type ? PyUnicode_FromStringAndSize(bytes, (Py_ssize_t)size)
                                   : PyBytes_FromStringAndSize(bytes, (Py_ssize_t)size);
}

/* The first eight bytes of a string, and the last if there are more: all of a short one, without a loop. */
static inline void words_of(const reader *r, const char *bytes, uint64_t size, uint64_t *out_first, uint64_t *out_last)
{
    uint64_t first = 0, last = 0;
    if ((const char *)r->end - bytes >= 8) {
        memcpy(&first, bytes, 8);
        first &= size < 8 ? (UINT64_C(1) << 8 * size) - 1 : UINT64_MAX;
    } else {
        memcpy(&first, bytes, (size_t)size);
    }
    if (size > 8) {
        memcpy(&last, bytes + size - 8, 8);
    }
    *out_first = first;
    *out_last = last;
}

static PyObject *find_string(reader *r, PyTypeObject *type, const char *bytes, uint64_t size)
{
    uint64_t first, last;
    words_of(r, bytes, size, &first, &last);
    string *s = &r->recent[((first ^ last << 7) + size) * UINT64_C(0x9e3779b97f4a7c15) >> 58];
    if (s->first == first && s->last == last && s->size == size && s->type == type &&
        (size <= 16 || memcmp(s->bytes, bytes, (size_t)size) == 0)) {
        r->patience = PATIENCE;
        return Py_NewRef(s->object);
    }
    PyObject *object = make_string(type, bytes, size);
    if (object != NULL) {
        r->patience--;
        Py_XDECREF(s->object);
        *s = (string){Py_NewRef(object), bytes, size, first, last, type};
    }
    return object;
}

static void remember_strings(reader *r)
{
    if (r->recent == NULL) {
        memset(r->room, 0, sizeof r->room);
        r->recent = r->room;
        r->patience = PATIENCE;
    }
}

static void forget_strings(reader *r)
{
    for (size_t i = 0; r->recent != NULL && i < RECENT; i++) {
        Py_XDECREF(r->recent[i].object);
    }
}

static inline PyObject *read_string(reader *r, PyTypeObject *type, uint64_t size)
{
    const char *bytes = get_bytes(r, size);
    if (bytes == NULL) {
        return damaged();
    }
    int look = r->recent != NULL && r->patience > 0;
    PyObject *object = look ? find_string(r, type, bytes, size) : make_string(type, bytes, size);
    return object != NULL ? object : damaged();
}

/* ---- containers ---- */

static PyObject *read_object(reader *r);

/* Reads a member of a list or tuple: small ints here, the others there. */
static inline PyObject *read_member(reader *r)
{
    if (r->end - r->at >= 3) {
        uint8_t head = *r->at;
        if (head < 0x80) {
            r->at++;
            return PyLong_FromLong(head);
        }
        if (head == 0xcd) {
            r->at += 3;
            return PyLong_FromLong(r->at[-2] << 8 | r->at[-1]);
        }
    }
    return read_object(r);
}

/* An iterator over the members of a list or tuple. With the limited API each member of a new list is set by a call,
 * with its checks; a list that is made of an iterator calls the iterator, and sets its members itself. */
typedef struct members {
    PyObject_HEAD reader *r;
    Py_ssize_t left;
} members;

static PyTypeObject *members_type;

static PyObject *members_next(PyObject *self)
{
    members *m = (members *)self;
    if (m->left == 0) {
        return NULL;
    }
    m->left--;
    return read_member(m->r);
}

static Py_ssize_t members_left(PyObject *self)
{
    return ((members *)self)->left;
}

static PyObject *read_many(reader *r, int tuple, Py_ssize_t count)
{
    members *m = PyObject_New(members, members_type);
    if (m == NULL) {
        return NULL;
    }
    m->r = r;
    m->left = count;
    PyObject *result = tuple ? PySequence_Tuple((PyObject *)m) : PySequence_List((PyObject *)m);
    m->left = 0;
    Py_DECREF(m);
    return result;
}

static PyObject *read_few(reader *r, int tuple, Py_ssize_t count)
{
    PyObject *result = tuple ? PyTuple_New(count) : PyList_New(count);
    for (Py_ssize_t i = 0; result != NULL && i < count; i++) {
        PyObject *member = read_member(r);
        if (member == NULL || (tuple ? PyTuple_SetItem(result, i, member) : PyList_SetItem(result, i, member)) != 0) {
            Py_CLEAR(result);
        }
    }
    return result;
}

/* Each member takes at least a byte, so a list is never longer than the message. */
static PyObject *read_list(reader *r, uint64_t count)
{
    if (count > (uint64_t)(r->end - r->at) || r->depth == SHOAL_VALUE_DEPTH) {
        return damaged();
    }
    int tuple = count > 0 && (size_t)(r->end - r->at) >= sizeof ext_tuple_mark &&
                memcmp(r->at, ext_tuple_mark, sizeof ext_tuple_mark) == 0;
    if (tuple) {
        r->at += sizeof ext_tuple_mark;
        count--;
    }
    if (count >= MANY) {
        remember_strings(r);
    }
    r->depth++;
    PyObject *result = count >= MANY ? read_many(r, tuple, (Py_ssize_t)count) : read_few(r, tuple, (Py_ssize_t)count);
    r->depth--;
    return result;
}

static PyObject *read_key(reader *r)
{
    uint64_t size = 0;
    uint8_t head = r->at < r->end ? *r->at++ : 0xc0;
    if ((head & 0xe0) == 0xa0) {
        return read_string(r, &PyUnicode_Type, head & 0x1f);
    }
    return head >= 0xd9 && head <= 0xdb && get_number(r, 1u << (head - 0xd9), &size)
               ? read_string(r, &PyUnicode_Type, size)
               : damaged();
}

static PyObject *read_dict(reader *r, uint64_t count)
{
    if (count > (uint64_t)(r->end - r->at) / 2 || r->depth == SHOAL_VALUE_DEPTH) {
        return damaged();
    }
    if (count >= MANY) {
        remember_strings(r);
    }
    PyObject *result = PyDict_New();
    r->depth++;
    for (uint64_t i = 0; result != NULL && i < count; i++) {
        PyObject *key = read_key(r);
        PyObject *member = key != NULL ? read_object(r) : NULL;
        if (member == NULL || PyDict_SetItem(result, key, member) != 0) {
            Py_CLEAR(result);
        }
        Py_XDECREF(member);
        Py_XDECREF(key);
    }
    r->depth--;
    return result;
}

/* Reads what follows the head of an extension with a body of that size. */
static PyObject *read_extension(reader *r, uint64_t size)
{
    const char *type = get_bytes(r, 1);
    const char *body = type != NULL ? get_bytes(r, size) : NULL;
    if (body == NULL || *type != EXT_FOREIGN || size < 4) {
        return damaged();
    }
    const uint8_t *h = (const uint8_t *)body;
    uint32_t tag = (uint32_t)h[0] | (uint32_t)h[1] << 8 | (uint32_t)h[2] << 16 | (uint32_t)h[3] << 24;
    return ext_decode_foreign(tag, body + 4, (size_t)size - 4);
}

static PyObject *read_float(uint64_t bits)
{
    double number;
    memcpy(&number, &bits, 8);
    return PyFloat_FromDouble(number);
}

static PyObject *read_half(uint32_t bits)
{
    float number;
    memcpy(&number, &bits, 4);
    return PyFloat_FromDouble((double)number);
}

/* SIZED: an object whose head has a number n behind it. The size of the number is a constant for each head. */
#define SIZED(size, call) return get_number(r, (size), &n) ? (call) : damaged()

/* Reads what is longer than a number. Apart, so that the usual way of a number saves no registers. */
static __attribute__((noinline)) PyObject *read_long(reader *r, uint8_t head)
{
    uint64_t n = 0;
    switch (head) {
    case 0x80 ... 0x8f: return read_dict(r, head & 0xf);
    case 0x90 ... 0x9f: return read_list(r, head & 0xf);
    case 0xa0 ... 0xbf: return read_string(r, &PyUnicode_Type, head & 0x1f);
    case 0xc4: SIZED(1, read_string(r, &PyBytes_Type, n));
    case 0xc5: SIZED(2, read_string(r, &PyBytes_Type, n));
    case 0xc6: SIZED(4, read_string(r, &PyBytes_Type, n));
    case 0xc7: SIZED(1, read_extension(r, n));
    case 0xc8: SIZED(2, read_extension(r, n));
    case 0xc9: SIZED(4, read_extension(r, n));
    case 0xd4 ... 0xd8: return read_extension(r, 1u << (head - 0xd4));
    case 0xd9: SIZED(1, read_string(r, &PyUnicode_Type, n));
    case 0xda: SIZED(2, read_string(r, &PyUnicode_Type, n));
    case 0xdb: SIZED(4, read_string(r, &PyUnicode_Type, n));
    case 0xdc: SIZED(2, read_list(r, n));
    case 0xdd: SIZED(4, read_list(r, n));
    case 0xde: SIZED(2, read_dict(r, n));
    case 0xdf: SIZED(4, read_dict(r, n));
    default: return damaged(); /* 0xc1 */
    }
}

static PyObject *read_object(reader *r)
{
    uint64_t n = 0;
    if (r->at == r->end) {
        return damaged();
    }
    uint8_t head = *r->at++;
    switch (head) {
    case 0x00 ... 0x7f:
    case 0xe0 ... 0xff: return PyLong_FromLong((int8_t)head);
    case 0xc0:
    case 0xc2:
    case 0xc3: return Py_NewRef(head == 0xc0 ? Py_None : head == 0xc3 ? Py_True : Py_False);
    case 0xca: SIZED(4, read_half((uint32_t)n));
    case 0xcb: SIZED(8, read_float(n));
    case 0xcc: SIZED(1, PyLong_FromLong((uint8_t)n));
    case 0xcd: SIZED(2, PyLong_FromLong((uint16_t)n));
    case 0xce: SIZED(4, PyLong_FromLong((uint32_t)n));
    case 0xcf: SIZED(8, PyLong_FromUnsignedLongLong(n));
    case 0xd0: SIZED(1, PyLong_FromLong((int8_t)n));
    case 0xd1: SIZED(2, PyLong_FromLong((int16_t)n));
    case 0xd2: SIZED(4, PyLong_FromLong((int32_t)n));
    case 0xd3: SIZED(8, PyLong_FromLong((int64_t)n));
    default: return read_long(r, head);
    }
}

PyObject *ext_unpack(const void *bytes, size_t size)
{
    reader r;
    r.at = bytes;
    r.end = r.at + size;
    r.depth = 0;
    r.recent = NULL;
    PyObject *obj = read_object(&r);
    forget_strings(&r);
    if (obj != NULL && r.at != r.end) {
        Py_DECREF(obj);
        return damaged();
    }
    return obj;
}

int ext_unpack_add(void)
{
    static PyType_Slot slots[] = {
        {Py_tp_iter, PyObject_SelfIter},
        {Py_tp_iternext, members_next},
        {Py_sq_length, members_left},
        {0, NULL},
    };
    static PyType_Spec spec = {
        .name = "shoal._shoal.members",
        .basicsize = sizeof(members),
        .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
        .slots = slots,
    };
    members_type = (PyTypeObject *)PyType_FromSpec(&spec);
    return members_type != NULL ? 0 : -1;
}
