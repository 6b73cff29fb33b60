/* Plain containers as MessagePack, written from Python objects in one pass; unpack.c reads them.
 *
 * A plain container is a list, tuple or dict of None, bool, int, float, str, bytes and plain containers. Its message
 * has the bytes that the library writes for such a value (src/ipc/value_codec.h), so C programs read it as a list or
 * map. It is just not built as a tree of values first: that costs an allocation for each member, in both processes.
 */
#include "codec.h"

#include <stdlib.h>
#include <string.h>

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

/* A str that was written lately, and where. Messages of many strings often have the same ones again: keys of records,
 * labels. These are copied from there. */
typedef struct text {
    const PyObject *object; /* borrowed: no Python code runs while a message is written */
    uint32_t at, size;
} text;

#define RECENT 64u
#define RECENT_SIZE 32u /* of longer ones a copy saves little */

typedef struct writer {
    uint8_t *at, *end; /* the room that is left */
    uint8_t *bytes;
    ext_known *known;
    int done; /* what write_arguments returned */
    int many; /* recent is in use */
    text recent[RECENT];
    uint8_t few[1024];
} writer;

#define MANY 64                    /* members of a container that are worth an array, and to remember strings */
static PyObject *arguments_writer; /* write_arguments as a Python function */
static writer *writer_now;         /* its argument */

/* The memory of the last large message, for the next one: it need not grow by doubling again, nor come from the
 * system. */
static uint8_t *spare;
static size_t spare_size;
#define SPARE_MOST (1u << 20)

static uint8_t *take_spare(size_t size, size_t *out_capacity)
{
    uint8_t *bytes = spare;
    if (bytes == NULL || spare_size < size) {
        return NULL;
    }
    *out_capacity = spare_size;
    spare = NULL;
    return bytes;
}

static void give_back(writer *w)
{
    size_t size = (size_t)(w->end - w->bytes);
    if (w->bytes == w->few) {
        return;
    }
    if (size > SPARE_MOST || (spare != NULL && spare_size >= size)) {
        free(w->bytes);
        return;
    }
    free(spare);
    spare = w->bytes;
    spare_size = size;
}

/* Makes room for size bytes. */
static int grow(writer *w, size_t size)
{
    size_t used = (size_t)(w->at - w->bytes), capacity = 2 * ((size_t)(w->end - w->bytes) + size);
    uint8_t *bytes = w->bytes == w->few ? take_spare(capacity, &capacity) : NULL;
    if (bytes == NULL) {
        bytes = realloc(w->bytes == w->few ? NULL : w->bytes, capacity);
    }
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

/* Writes the head of something with a size: its short form if it has one (fix: the first byte, below: the sizes that
 * fit into it), then those of 8, 16 and 32 bits; head_8 is 0 if there is none of 8 bits. */
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

static inline uint64_t has_zero_byte(uint64_t word)
{
    return (word - UINT64_C(0x0101010101010101)) & ~word & UINT64_C(0x8080808080808080);
}

#define SHORT_TEXT 16u

/* Copies at most SHORT_TEXT bytes without a call, as two words that may overlap. Returns 0 if one of them is NUL. */
static inline int copy_short(uint8_t *to, const char *from, size_t size)
{
    if (size >= 8) {
        uint64_t first, last;
        memcpy(&first, from, 8);
        memcpy(&last, from + size - 8, 8);
        memcpy(to, &first, 8);
        memcpy(to + size - 8, &last, 8);
        return (has_zero_byte(first) | has_zero_byte(last)) == 0;
    }
    for (size_t i = 0; i < size; i++) {
        to[i] = (uint8_t)from[i];
        if (from[i] == 0) {
            return 0;
        }
    }
    return 1;
}

static int write_new_str(writer *w, PyObject *obj)
{
    Py_ssize_t size;
    const char *bytes = PyUnicode_AsUTF8AndSize(obj, &size);
    if (bytes == NULL) { /* lone surrogates */
        PyErr_Clear();
        return EXT_PICKLE;
    }
    if ((size_t)size <= SHORT_TEXT) {
        if (reserve(w, SHORT_TEXT + 1) < 0) {
            return -1;
        }
        *w->at++ = (uint8_t)(0xa0 | size);
        w->at += size;
        return copy_short(w->at - size, bytes, (size_t)size) ? 1 : EXT_PICKLE;
    }
    if (memchr(bytes, 0, (size_t)size) != NULL) { /* a string value ends at its first NUL */
        return EXT_PICKLE;
    }
    int done = write_head(w, (size_t)size, 0xa0, 32, 0xd9, 0xda);
    return done == 1 ? write_body(w, bytes, (size_t)size) : done;
}

static void remember_strings(writer *w)
{
    if (!w->many) {
        memset(w->recent, 0, sizeof w->recent);
        w->many = 1;
    }
}

static int write_str(writer *w, PyObject *obj)
{
    if (!w->many || Py_REFCNT(obj) == 1) { /* 1: it is here only once */
        return write_new_str(w, obj);
    }
    text *t = &w->recent[((uintptr_t)obj >> 4) * UINT64_C(0x9e3779b97f4a7c15) >> 32 & (RECENT - 1)];
    if (t->object == obj) {
        uint8_t bytes[RECENT_SIZE];
        if (reserve(w, RECENT_SIZE) < 0) {
            return -1;
        }
        memcpy(bytes, w->bytes + t->at, RECENT_SIZE); /* a constant size: no call */
        memcpy(w->at, bytes, RECENT_SIZE);
        w->at += t->size;
        return 1;
    }
    size_t before = (size_t)(w->at - w->bytes);
    int done = write_new_str(w, obj);
    size_t size = (size_t)(w->at - w->bytes) - before;
    if (done == 1 && size <= RECENT_SIZE && before <= UINT32_MAX) {
        *t = (text){obj, (uint32_t)before, (uint32_t)size};
    }
    return done;
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

/* The limited API gives the members of a tuple one by one, a call for each. But a function gets its arguments as an
 * array: so a long tuple is written by calling this function with it. */
static PyObject *write_arguments(PyObject *unused, PyObject *const *members, Py_ssize_t count)
{
    writer *w = writer_now;
    int done = 1;
    (void)unused;
    for (Py_ssize_t i = 0; done == 1 && i < count; i++) {
        done = write_member(w, members[i]);
    }
    w->done = done;
    return done >= 0 ? Py_NewRef(Py_None) : NULL;
}

static int write_members(writer *w, PyObject *tuple, Py_ssize_t count)
{
    int done = 1;
    if (count >= MANY) {
        remember_strings(w);
        writer_now = w;
        PyObject *result = PyObject_Call(arguments_writer, tuple, NULL);
        Py_XDECREF(result);
        return result != NULL ? w->done : -1;
    }
    for (Py_ssize_t i = 0; done == 1 && i < count; i++) {
        done = write_member(w, PyTuple_GetItem(tuple, i));
    }
    return done;
}

static int write_list(writer *w, PyObject *list)
{
    Py_ssize_t count = PyList_Size(list);
    if (count >= MANY) {
        remember_strings(w);
    }
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
        done = write_body(w, (const char *)ext_tuple_mark, sizeof ext_tuple_mark);
    }
    return done == 1 ? write_members(w, tuple, count) : done;
}

static int write_dict(writer *w, PyObject *dict)
{
    PyObject *key, *member;
    Py_ssize_t position = 0, count = PyDict_Size(dict), written = 0;
    if (count >= MANY) {
        remember_strings(w);
    }
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
    w.many = 0;
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
    give_back(&w);
    return done;
}

int ext_pack_add(void)
{
    static PyMethodDef method = {"write_arguments", (PyCFunction)(void (*)(void))write_arguments, METH_FASTCALL, NULL};
    arguments_writer = PyCFunction_NewEx(&method, NULL, NULL);
    return arguments_writer != NULL ? 0 : -1;
}
