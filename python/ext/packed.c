/* Plain containers as MessagePack, written from Python objects and read into them in one pass.
 *
 * A plain container is a list, tuple or dict of None, bool, int, float, str, bytes and plain containers. Its message has
 * the bytes that the library writes for such a value (src/ipc/value_codec.h), so C programs read it as a list or map.
 * It is just not built as a tree of values first: that costs an allocation for each member, in both processes.
 */
#include "codec.h"

#include <stdlib.h>
#include <string.h>

#define EXT_FOREIGN 2 /* the extension type of foreign values */

/* ---- the objects of a message ---- */

#define LINEAR 16
#define MOST (1u << 20) /* beyond that pickle carries the message */

static size_t place_of(const ext_known *known, const PyObject *obj)
{
    return (size_t)(((uintptr_t)obj >> 4) * UINT64_C(0x9e3779b97f4a7c15) >> 32) & (known->places - 1);
}

static void index_object(ext_known *known, uint32_t number)
{
    size_t at = place_of(known, known->seen[number]);
    while (known->index[at] != 0) {
        at = (at + 1) & (known->places - 1);
    }
    known->index[at] = number + 1;
}

/* Makes room for one more object, and an index that is at most half full. Returns 0 if there is no memory. */
static int make_room(ext_known *known)
{
    if (known->count == known->capacity) {
        size_t capacity = 2 * known->capacity;
        PyObject **seen = realloc(known->seen == known->few ? NULL : known->seen, capacity * sizeof(PyObject *));
        if (seen == NULL) {
            return 0;
        }
        if (known->seen == known->few) {
            memcpy(seen, known->few, sizeof known->few);
        }
        known->seen = seen;
        known->capacity = (uint32_t)capacity;
    }
    if (known->count >= LINEAR && (size_t)known->count * 2 >= known->places) {
        size_t places = known->places == 0 ? 8 * LINEAR : 2 * known->places;
        uint32_t *index = calloc(places, sizeof *index);
        if (index == NULL) {
            return 0;
        }
        free(known->index);
        known->index = index;
        known->places = places;
        for (uint32_t i = 0; i < known->count; i++) {
            index_object(known, i);
        }
    }
    return 1;
}

void ext_known_init(ext_known *known)
{
    known->seen = known->few;
    known->capacity = EXT_KNOWN_FEW;
    known->index = NULL;
    known->places = 0;
    known->count = 0;
    known->depth = 0;
}

void ext_known_fini(ext_known *known)
{
    if (known->seen != known->few) {
        free(known->seen);
    }
    free(known->index);
}

/* The last object that came into the index is in no other object's way, so its place can be emptied. */
void ext_known_forget(ext_known *known, uint32_t count)
{
    while (known->count > count) {
        known->count--;
        if (known->places != 0) {
            size_t at = place_of(known, known->seen[known->count]);
            while (known->index[at] != known->count + 1) {
                at = (at + 1) & (known->places - 1);
            }
            known->index[at] = 0;
        }
    }
}

int ext_known_add(ext_known *known, PyObject *obj)
{
    if (Py_REFCNT(obj) == 1) { /* only the container that is being read refers to it, and only once */
        return 1;
    }
    if (known->places == 0) {
        for (uint32_t i = 0; i < known->count; i++) {
            if (known->seen[i] == obj) {
                return 0;
            }
        }
    } else {
        for (size_t at = place_of(known, obj); known->index[at] != 0; at = (at + 1) & (known->places - 1)) {
            if (known->seen[known->index[at] - 1] == obj) {
                return 0;
            }
        }
    }
    if (known->count == MOST || !make_room(known)) {
        return 0;
    }
    known->seen[known->count++] = obj;
    if (known->places != 0) {
        index_object(known, known->count - 1);
    }
    return 1;
}

/* ---- writing ---- */

typedef struct writer {
    uint8_t *at, *end; /* the room that is left */
    uint8_t *bytes;
    ext_known *known;
    uint8_t few[1024];
} writer;

/* Makes room for size bytes. */
static int grow(writer *w, size_t size)
{
    size_t used = (size_t)(w->at - w->bytes), capacity = 2 * ((size_t)(w->end - w->bytes) + size);
    uint8_t *bytes = realloc(w->bytes == w->few ? NULL : w->bytes, capacity);
    if (bytes == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    if (w->bytes == w->few) {
        memcpy(bytes, w->few, used);
    }
    w->bytes = bytes;
    w->at = bytes + used;
    w->end = bytes + capacity;
    return 1;
}

static inline int reserve(writer *w, size_t size)
{
    return __builtin_expect((size_t)(w->end - w->at) >= size, 1) ? 1 : grow(w, size);
}

/* Writes a byte and a number of 1, 2, 4 or 8 bytes, big endian. There is room. */
static inline void put_number(writer *w, uint8_t head, uint64_t number, unsigned size)
{
    uint64_t big = __builtin_bswap64(number << (64 - 8 * size));
    *w->at = head;
    memcpy(w->at + 1, &big, 8); /* the room is always for 9 bytes */
    w->at += 1 + size;
}

#define NUMBER_ROOM 9u

static inline int write_int(writer *w, PyObject *obj)
{
    int overflow;
    long i = PyLong_AsLongAndOverflow(obj, &overflow);
    if (overflow != 0) {
        return EXT_PICKLE;
    }
    if (reserve(w, NUMBER_ROOM) < 0) {
        return -1;
    }
    if (i >= -32 && i < 128) {
        *w->at++ = (uint8_t)i;
    } else if (i >= 0) {
        uint64_t u = (uint64_t)i;
        unsigned power = u <= UINT8_MAX ? 0 : u <= UINT16_MAX ? 1 : u <= UINT32_MAX ? 2 : 3;
        put_number(w, (uint8_t)(0xcc + power), u, 1u << power);
    } else {
        unsigned power = i >= INT8_MIN ? 0 : i >= INT16_MIN ? 1 : i >= INT32_MIN ? 2 : 3;
        put_number(w, (uint8_t)(0xd0 + power), (uint64_t)i, 1u << power);
    }
    return 1;
}

/* Writes the head of something with a size: its short form if it has one (fix: the first byte, below: the sizes that fit
 * into it), then those of 8, 16 and 32 bits; head_8 is 0 if there is none of 8 bits. */
static int write_head(writer *w, size_t size, uint8_t fix, size_t below, uint8_t head_8, uint8_t head_16)
{
    if (size > UINT32_MAX / 2) {
        return EXT_PICKLE;
    }
    if (reserve(w, NUMBER_ROOM) < 0) {
        return -1;
    }
    if (size < below) {
        *w->at++ = (uint8_t)(fix | size);
    } else if (head_8 != 0 && size <= UINT8_MAX) {
        put_number(w, head_8, size, 1);
    } else if (size <= UINT16_MAX) {
        put_number(w, head_16, size, 2);
    } else {
        put_number(w, (uint8_t)(head_16 + 1), size, 4);
    }
    return 1;
}

static int write_body(writer *w, const char *bytes, size_t size)
{
    if (reserve(w, size) < 0) {
        return -1;
    }
    memcpy(w->at, bytes, size);
    w->at += size;
    return 1;
}

static int write_str(writer *w, PyObject *obj)
{
    Py_ssize_t size;
    const char *text = PyUnicode_AsUTF8AndSize(obj, &size);
    if (text == NULL) { /* lone surrogates */
        PyErr_Clear();
        return EXT_PICKLE;
    }
    if (memchr(text, 0, (size_t)size) != NULL) { /* a string value ends at its first NUL */
        return EXT_PICKLE;
    }
    int done = write_head(w, (size_t)size, 0xa0, 32, 0xd9, 0xda);
    return done == 1 ? write_body(w, text, (size_t)size) : done;
}

static int write_bytes(writer *w, PyObject *obj)
{
    char *bytes;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(obj, &bytes, &size) != 0) {
        return -1;
    }
    int done = write_head(w, (size_t)size, 0, 0, 0xc4, 0xc5);
    return done == 1 ? write_body(w, bytes, (size_t)size) : done;
}

static int write_object(writer *w, PyObject *obj);

/* Writes a member of a list or tuple. Long ones are mostly of numbers. */
static inline int write_member(writer *w, PyObject *obj)
{
    return PyLong_CheckExact(obj) ? write_int(w, obj) : write_object(w, obj);
}

static const uint8_t tuple_mark[] = {
    0xd6, EXT_FOREIGN, CODEC_TUPLE & 0xff, CODEC_TUPLE >> 8 & 0xff, CODEC_TUPLE >> 16 & 0xff, CODEC_TUPLE >> 24 & 0xff};

static int write_list(writer *w, PyObject *list)
{
    Py_ssize_t count = PyList_Size(list);
    int done = write_head(w, (size_t)count, 0x90, 16, 0, 0xdc);
    for (Py_ssize_t i = 0; done == 1 && i < count; i++) {
        PyObject *member = PyList_GetItem(list, i);
        done = member != NULL ? write_member(w, member) : -1; /* NULL: another thread has changed the list */
    }
    return done;
}

static int write_tuple(writer *w, PyObject *tuple)
{
    Py_ssize_t count = PyTuple_Size(tuple);
    int done = write_head(w, (size_t)count + 1, 0x90, 16, 0, 0xdc);
    if (done == 1) {
        done = write_body(w, (const char *)tuple_mark, sizeof tuple_mark);
    }
    for (Py_ssize_t i = 0; done == 1 && i < count; i++) {
        done = write_member(w, PyTuple_GetItem(tuple, i));
    }
    return done;
}

static int write_dict(writer *w, PyObject *dict)
{
    PyObject *key, *member;
    Py_ssize_t position = 0, count = PyDict_Size(dict), written = 0;
    int done = write_head(w, (size_t)count, 0x80, 16, 0, 0xde);
    while (done == 1 && PyDict_Next(dict, &position, &key, &member)) {
        done = PyUnicode_CheckExact(key) ? write_str(w, key) : EXT_PICKLE;
        if (done == 1) {
            done = write_object(w, member);
            written++;
        }
    }
    return done == 1 && written != count ? EXT_PICKLE : done; /* another thread has changed the dict */
}

static int write_container(writer *w, PyObject *obj)
{
    ext_known *known = w->known;
    if (known->depth == EXT_KNOWN_DEPTH || !ext_known_add(known, obj)) {
        return EXT_PICKLE;
    }
    known->depth++;
    int done = PyList_CheckExact(obj)    ? write_list(w, obj)
               : PyTuple_CheckExact(obj) ? write_tuple(w, obj)
                                         : write_dict(w, obj);
    known->depth--;
    return done;
}

static int write_object(writer *w, PyObject *obj)
{
    if (PyLong_CheckExact(obj)) {
        return write_int(w, obj);
    }
    if (PyUnicode_CheckExact(obj)) {
        return write_str(w, obj);
    }
    if (reserve(w, NUMBER_ROOM) < 0) {
        return -1;
    }
    if (PyFloat_CheckExact(obj)) {
        uint64_t bits;
        double number = PyFloat_AsDouble(obj);
        memcpy(&bits, &number, 8);
        put_number(w, 0xcb, bits, 8);
        return 1;
    }
    if (Py_IsNone(obj) || PyBool_Check(obj)) {
        *w->at++ = Py_IsNone(obj) ? 0xc0 : Py_IsTrue(obj) ? 0xc3 : 0xc2;
        return 1;
    }
    if (PyList_CheckExact(obj) || PyTuple_CheckExact(obj) || PyDict_CheckExact(obj)) {
        return write_container(w, obj);
    }
    return PyBytes_CheckExact(obj) ? write_bytes(w, obj) : EXT_TREE;
}

int ext_pack(PyObject *obj, ext_known *known, shoal_value **out_value)
{
    writer w;
    w.at = w.bytes = w.few;
    w.end = w.few + sizeof w.few;
    w.known = known;
    uint32_t before = known->count;
    int done = write_container(&w, obj);
    if (done == 1) {
        *out_value = shoal_value_packed(w.bytes, (size_t)(w.at - w.bytes));
        if (*out_value == NULL) {
            ext_raise(shoal_last_error());
            done = -1;
        }
    } else if (done == EXT_TREE) {
        ext_known_forget(known, before);
    }
    if (w.bytes != w.few) {
        free(w.bytes);
    }
    return done;
}

/* ---- reading ---- */

/* The bytes may come from a hostile process. They are a private copy, so they do not change. */
typedef struct reader {
    const uint8_t *at, *end;
    int depth;
} reader;

static PyObject *damaged(void)
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

static PyObject *read_str(reader *r, uint64_t size)
{
    const char *text = get_bytes(r, size);
    PyObject *obj = text != NULL ? PyUnicode_FromStringAndSize(text, (Py_ssize_t)size) : NULL;
    return obj != NULL ? obj : damaged();
}

static PyObject *read_bytes(reader *r, uint64_t size)
{
    const char *bytes = get_bytes(r, size);
    return bytes != NULL ? PyBytes_FromStringAndSize(bytes, (Py_ssize_t)size) : damaged();
}

/* Each member takes at least a byte, so a list is never longer than the message. */
static PyObject *read_list(reader *r, uint64_t count)
{
    if (count > (uint64_t)(r->end - r->at) || r->depth == SHOAL_VALUE_DEPTH) {
        return damaged();
    }
    int tuple =
        count > 0 && (size_t)(r->end - r->at) >= sizeof tuple_mark && memcmp(r->at, tuple_mark, sizeof tuple_mark) == 0;
    if (tuple) {
        r->at += sizeof tuple_mark;
        count--;
    }
    PyObject *result = tuple ? PyTuple_New((Py_ssize_t)count) : PyList_New((Py_ssize_t)count);
    r->depth++;
    for (Py_ssize_t i = 0; result != NULL && i < (Py_ssize_t)count; i++) {
        PyObject *member = read_member(r);
        if (member == NULL || (tuple ? PyTuple_SetItem(result, i, member) : PyList_SetItem(result, i, member)) != 0) {
            Py_CLEAR(result);
        }
    }
    r->depth--;
    return result;
}

static PyObject *read_key(reader *r)
{
    uint64_t size = 0;
    uint8_t head = r->at < r->end ? *r->at++ : 0xc0;
    if ((head & 0xe0) == 0xa0) {
        return read_str(r, head & 0x1f);
    }
    return head >= 0xd9 && head <= 0xdb && get_number(r, 1u << (head - 0xd9), &size) ? read_str(r, size) : damaged();
}

static PyObject *read_dict(reader *r, uint64_t count)
{
    if (count > (uint64_t)(r->end - r->at) / 2 || r->depth == SHOAL_VALUE_DEPTH) {
        return damaged();
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

static PyObject *read_float(uint64_t bits, unsigned size)
{
    double number;
    float half;
    uint32_t low = (uint32_t)bits;
    memcpy(&number, &bits, 8);
    memcpy(&half, &low, 4);
    return PyFloat_FromDouble(size == 8 ? number : (double)half);
}

/* Reads an object whose head has a number of 1, 2, 4 or 8 bytes behind it. */
static PyObject *read_sized(reader *r, uint8_t head)
{
    static const uint8_t sizes[] = {[0xc4 - 0xc4] = 1, 2, 4, 1, 2, 4, 4, 8, 1, 2, 4, 8, 1, 2, 4, 8};
    uint64_t number = 0;
    if (head >= 0xd4 && head <= 0xd8) {
        return read_extension(r, 1u << (head - 0xd4));
    }
    unsigned size = head < 0xd4 ? sizes[head - 0xc4] : head < 0xdc ? 1u << (head - 0xd9) : 2u << (head & 1);
    if (!get_number(r, size, &number)) {
        return damaged();
    }
    switch (head) {
    case 0xc4:
    case 0xc5:
    case 0xc6: return read_bytes(r, number);
    case 0xc7:
    case 0xc8:
    case 0xc9: return read_extension(r, number);
    case 0xca:
    case 0xcb: return read_float(number, size);
    case 0xcc:
    case 0xcd:
    case 0xce: return PyLong_FromLong((long)number);
    case 0xcf: return PyLong_FromUnsignedLongLong(number);
    case 0xd0:
    case 0xd1:
    case 0xd2:
    case 0xd3: return PyLong_FromLong((long)(number << (64 - 8 * size)) >> (64 - 8 * size));
    case 0xd9:
    case 0xda:
    case 0xdb: return read_str(r, number);
    case 0xdc:
    case 0xdd: return read_list(r, number);
    default: return read_dict(r, number); /* 0xde, 0xdf */
    }
}

static PyObject *read_object(reader *r)
{
    if (r->at == r->end) {
        return damaged();
    }
    uint8_t head = *r->at++;
    if (head < 0x80 || head >= 0xe0) {
        return PyLong_FromLong((int8_t)head);
    }
    if (head >= 0xc4) {
        return read_sized(r, head);
    }
    if (head >= 0xc0) {
        return head == 0xc1 ? damaged() : Py_NewRef(head == 0xc0 ? Py_None : head == 0xc3 ? Py_True : Py_False);
    }
    return head >= 0xa0 ? read_str(r, head & 0x1f) : head >= 0x90 ? read_list(r, head & 0xf) : read_dict(r, head & 0xf);
}

PyObject *ext_unpack(const void *bytes, size_t size)
{
    reader r = {.at = bytes, .end = (const uint8_t *)bytes + size};
    PyObject *obj = read_object(&r);
    if (obj != NULL && r.at != r.end) {
        Py_DECREF(obj);
        return damaged();
    }
    return obj;
}
