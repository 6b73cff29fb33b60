/* Values: the contents of messages, arguments and results.
 *
 * A value is null, a bool, an int, a float, a string, bytes, a list, a map with string keys, or a shared object
 * (block, queue, pipe end, lock, tensor, module and so on). A value is private to its process. A container owns its
 * members. A value is sent as MessagePack, with an extension type for the handles of shared objects; the receiver
 * gets the same object, not a copy.
 *
 * A call that takes a shoal_value * consumes it, on success and on failure (put, send, start, spawn, shoal_return,
 * the calls of a pool, shoal_list_add, shoal_map_set), unless the value is kept (shoal_value_keep). A call that
 * takes a const shoal_value * only reads it. A call that makes a value returns NULL on failure. If one of its
 * members is NULL, it destroys the other members and returns NULL. So calls can be nested without checks, and
 * nothing leaks: shoal_queue_put(q, shoal_map("t", tensor), SHOAL_FOREVER).
 *
 * NULL for a value or a handle is taken for the result of a call that failed: a call that returns a pointer returns
 * NULL and leaves that call's error as the last one, and a call that returns shoal_err fails with SHOAL_EINVAL. NULL
 * for a key, a text or an output that is not optional is SHOAL_EINVAL.
 *
 * A member is valid until its container is destroyed or consumed, or its key is set again. To use it for longer, or
 * to send it, copy it (shoal_value_copy).
 *
 * Nothing here blocks. Threads may use different values at the same time, and any number of threads may read one
 * value. While one thread changes, consumes or destroys a value, no other thread may use it.
 */
#ifndef SHOAL_VALUE_H
#define SHOAL_VALUE_H

#include <shoal/block.h>
#include <shoal/sync.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#include <type_traits>
#include <utility>

extern "C" {
#endif

typedef struct shoal_value shoal_value;
typedef struct shoal_sparse shoal_sparse;
typedef struct shoal_module shoal_module;

/* The types of objects in values, as SHOAL_HANDLES: handles, and sparse tensors and modules, which have no reference
 * counts. */
#define SHOAL_OBJECTS(X) SHOAL_HANDLES(X) X(sparse) X(module)

/* How deeply lists and maps may be nested. Calls that make values fail with SHOAL_EINVAL beyond it, and the decoder
 * refuses such messages. Other limits: 2^32 - 1 members of a list or map; less than 4 GiB for a string or bytes that
 * is sent (SHOAL_ELIMIT). */
#define SHOAL_VALUE_DEPTH 64

/* The type of a value. */
typedef enum shoal_type {
    SHOAL_TYPE_NULL,
    SHOAL_TYPE_BOOL,
    SHOAL_TYPE_INT,
    SHOAL_TYPE_UINT, /* an integer over INT64_MAX; every other integer is SHOAL_TYPE_INT */
    SHOAL_TYPE_FLOAT,
    SHOAL_TYPE_STRING,
    SHOAL_TYPE_BYTES,
    SHOAL_TYPE_LIST,
    SHOAL_TYPE_MAP,
    SHOAL_TYPE_OBJECT,  /* a shared object: see shoal_value_object_kind */
    SHOAL_TYPE_FOREIGN, /* bytes that only a binding understands: see shoal_value_foreign */
} shoal_type;

/* Make a value from null, a bool or a number. The caller owns it. An integer up to INT64_MAX becomes SHOAL_TYPE_INT.
 * Does not block. Thread-safe. Errors: SHOAL_ENOMEM. */
shoal_value *shoal_value_null(void);
shoal_value *shoal_value_bool(bool b);
shoal_value *shoal_value_int(int64_t i);
shoal_value *shoal_value_uint(uint64_t u);
shoal_value *shoal_value_float(double d);

/* Makes a value from a copy of a UTF-8 string, up to its NUL. Use shoal_value_bytes for text that contains NULs. The
 * caller owns the value. Does not block. Thread-safe. Errors: SHOAL_EINVAL if the text is NULL or not UTF-8;
 * SHOAL_ENOMEM. */
shoal_value *shoal_value_string(const char *text);

/* Makes a value from a copy of size bytes. The caller owns the value. Does not block. Thread-safe. Errors:
 * SHOAL_EINVAL if bytes is NULL and size is not 0; SHOAL_ENOMEM. */
shoal_value *shoal_value_bytes(const void *bytes, size_t size);

/* Makes a value of type SHOAL_TYPE_FOREIGN from a copy of bytes that only a binding understands, such as a pickled
 * Python object; tag identifies their format. The library carries them and does not look inside. The caller owns the
 * value. At most 4 GiB less 17 bytes can be sent. Does not block. Thread-safe. Errors: SHOAL_EINVAL if bytes is NULL
 * and size is not 0; SHOAL_ENOMEM. */
shoal_value *shoal_value_foreign(uint32_t tag, const void *bytes, size_t size);

/* Make a value from a shared object, and retain the object. The caller owns the value. NULL gives NULL and does not
 * change the last error. Do not block. Thread-safe; a tensor only if it was shared before. Errors: SHOAL_ENOMEM;
 * SHOAL_ESTATE after the process left the object's world; SHOAL_EFORK.
 *
 * A tensor, sparse tensor or module is also shared: its elements move into the heap, with the errors of
 * shoal_tensor_share (share.h). The value keeps the memory alive, even if the argument is released. For a data set:
 * SHOAL_EINVAL if it cannot be sent (the text has the reason); the error of its pack function. */
#define SHOAL_DECLARE_VALUE(type) shoal_value *shoal_value_##type(shoal_##type *type);
SHOAL_OBJECTS(SHOAL_DECLARE_VALUE)

/* Make an empty list or an empty map, for shoal_list_add and shoal_map_set. The caller owns it. Does not block.
 * Thread-safe. Errors: SHOAL_ENOMEM. */
shoal_value *shoal_value_list(void);
shoal_value *shoal_value_map(void);

/* Add a member to a list, or set a key of a map. They consume the member, on success and on failure. They return the
 * container; on failure they consume the container too and return NULL. If the container is kept, they change it and
 * return it, and a failure leaves it as it was. If a map has the key already, the new member replaces the old one,
 * at its position. Do not block. No other thread may use them meanwhile. Errors: SHOAL_ETYPE if the container is not
 * a list or not a map; SHOAL_EINVAL if the member belongs to another container, the nesting is too deep, or the key
 * is NULL or not UTF-8; SHOAL_ELIMIT; SHOAL_ENOMEM.
 *
 * A member belongs to its container for good. It can no longer be changed or added to another container. A call that
 * would consume a member (put, send, start, shoal_return, a call of a pool) fails with SHOAL_EINVAL, and the member
 * stays where it is. */
shoal_value *shoal_list_add(shoal_value *list, shoal_value *member);
shoal_value *shoal_map_set(shoal_value *map, const char *key, shoal_value *member);

/* Keeps a value: from now on no call consumes it, and only shoal_value_destroy ends it. A call that would consume it
 * only reads it; a container gets a copy. So a put that timed out can be tried again:
 *
 *     shoal_value *v = shoal_value_keep(shoal_list(1, "two"));
 *     while ((err = shoal_queue_put(q, v, SHOAL_MS(10))) ==
 *            SHOAL_ETIMEDOUT) { ... }
 *     shoal_value_destroy(v);
 *
 * Returns its argument. Returns NULL for NULL, and for a member of a container (SHOAL_EINVAL). Does not block. No
 * other thread may use the value meanwhile. */
shoal_value *shoal_value_keep(shoal_value *value);

/* Destroys a value and all its members, and releases its shared objects. Does nothing for NULL and for a member of a
 * container. Never changes the last error. Does not block. No other thread may use the value meanwhile. */
void shoal_value_destroy(shoal_value *value);

/* Makes a deep copy of a value. Shared objects are retained, not copied. The caller owns the copy. NULL gives NULL.
 * Does not block. Thread-safe. Errors: SHOAL_ENOMEM. */
shoal_value *shoal_value_copy(const shoal_value *value);

/* Returns whether two values have the same type and content. Shared objects are equal if they are the same object.
 * Floats are equal if their bits are: a NaN equals itself, and 0.0 differs from -0.0. The order of a map's keys does
 * not matter. Does not block. Thread-safe. Cannot fail. */
bool shoal_value_equal(const shoal_value *a, const shoal_value *b);

/* Returns the type of a value; SHOAL_TYPE_NULL for NULL. Does not block. Thread-safe. Cannot fail. */
shoal_type shoal_value_type(const shoal_value *value);

/* Read a value as a bool or a number. Int, uint and float can be read as each other if that does not change the
 * number: the float 3.0 can be read as int 3, but 3.5 cannot, nor can the int 2^53 + 1 be read as a float. Do not
 * block. Thread-safe. Errors, which leave the output unchanged: SHOAL_ETYPE if the value has another type (the text
 * names both) or the number does not fit (the text has it); SHOAL_EINVAL for NULL. */
SHOAL_MUST_USE shoal_err shoal_value_as_bool(const shoal_value *value, bool *out_bool);
SHOAL_MUST_USE shoal_err shoal_value_as_int(const shoal_value *value, int64_t *out_int);
SHOAL_MUST_USE shoal_err shoal_value_as_uint(const shoal_value *value, uint64_t *out_uint);
SHOAL_MUST_USE shoal_err shoal_value_as_float(const shoal_value *value, double *out_float);

/* Read a value as a string, bytes or foreign bytes. The value owns the result. A string contains no NUL but the one
 * at its end. out_size and out_tag may be NULL; after a failure they are set to 0. NULL gives NULL and does not
 * change the last error. Do not block. Thread-safe. Errors: SHOAL_ETYPE if the value has another type. */
const char *shoal_value_as_string(const shoal_value *value);
const void *shoal_value_as_bytes(const shoal_value *value, size_t *out_size);
const void *shoal_value_as_foreign(const shoal_value *value, uint32_t *out_tag, size_t *out_size);

/* Returns the kind of shared object that a value contains; SHOAL_KIND_NONE if it contains none, and for NULL. Does
 * not block. Thread-safe. Cannot fail. */
shoal_kind shoal_value_object_kind(const shoal_value *value);

/* Read a value as a shared object of one kind. The value owns the result: retain a handle to use it for longer. NULL
 * gives NULL and does not change the last error. Do not block. Thread-safe. Errors: SHOAL_ETYPE if the value is not an
 * object of that kind.
 *
 * The first read of a tensor, sparse tensor, module or data set makes it, over the memory of the original. Errors: also
 * SHOAL_ESTATE after the process left its world; SHOAL_ECORRUPT; SHOAL_ENOMEM. A module has the same type, settings and
 * parameters as the one that was sent; its types must be registered (shoal_module_register), or the error is
 * SHOAL_ENOENT. A data set may also fail with the error of its open function. This process's later work on a GPU tensor
 * comes after the work that the sender did before its put; the get of the value alone does not ensure that.
 * SHOAL_ELOST if the sender of a GPU tensor died before its work was done. */
#define SHOAL_DECLARE_AS(type) shoal_##type *shoal_value_as_##type(const shoal_value *value);
SHOAL_OBJECTS(SHOAL_DECLARE_AS)

/* Read a bool or a number from a map by its key. A target reads what shoal_map("in", queue, "n", 3) put in:
 *
 *     int64_t n = 1; // stays 1 if there is no key "n"
 *     shoal_queue *in = shoal_arg_queue(args, "in");
 *     shoal_err err = shoal_arg_int(args, "n", &n);
 *     if (err == SHOAL_ENOENT) { ... "n" is optional ... }
 *
 * Do not block. Thread-safe. Errors, whose text names the key and which leave the output unchanged: SHOAL_ENOENT if
 * the key is missing; SHOAL_ETYPE if the member has another type (the text names both); SHOAL_EINVAL for NULL. */
SHOAL_MUST_USE shoal_err shoal_arg_bool(const shoal_value *args, const char *key, bool *out_bool);
SHOAL_MUST_USE shoal_err shoal_arg_int(const shoal_value *args, const char *key, int64_t *out_int);
SHOAL_MUST_USE shoal_err shoal_arg_uint(const shoal_value *args, const char *key, uint64_t *out_uint);
SHOAL_MUST_USE shoal_err shoal_arg_float(const shoal_value *args, const char *key, double *out_float);

/* Read a string, bytes or a shared object from a map by its key. The map owns the result: retain a handle to use it for
 * longer. out_size may be NULL; after a failure it is set to 0. Do not block. Thread-safe. Errors, whose text names the
 * key: SHOAL_ENOENT if the key is missing; SHOAL_ETYPE if the member has another type; SHOAL_EINVAL for NULL; those of
 * shoal_value_as_tensor and the like. */
const char *shoal_arg_string(const shoal_value *args, const char *key);
const void *shoal_arg_bytes(const shoal_value *args, const char *key, size_t *out_size);
#define SHOAL_DECLARE_ARG(type) shoal_##type *shoal_arg_##type(const shoal_value *args, const char *key);
SHOAL_OBJECTS(SHOAL_DECLARE_ARG)

/* Returns the number of members of a list or a map; 0 for anything else. Does not block. Thread-safe. Cannot fail. */
size_t shoal_value_count(const shoal_value *value);

/* Return the i-th member of a list or a map, or the i-th key of a map, in the order in which the keys were set. The
 * container owns the result. Do not block. Thread-safe. Errors: SHOAL_EINVAL if i is out of range; SHOAL_ETYPE if
 * the value is not such a container. */
const shoal_value *shoal_value_at(const shoal_value *value, size_t i);
const char *shoal_value_key_at(const shoal_value *map, size_t i);

/* Returns the member of a map with a key, or NULL if the map has no such key. The map owns it. Does not block.
 * Thread-safe. Errors: SHOAL_ENOENT if there is no such key; SHOAL_ETYPE if the value is not a map; SHOAL_EINVAL if
 * key is NULL. */
const shoal_value *shoal_value_find(const shoal_value *map, const char *key);

/* Writes a value as text for people, such as {"rank": 0, "data": <block 81>}. Lists and maps are written in full,
 * bytes only as their size. Writes at most capacity bytes, the NUL included, and does not cut within a character.
 * With a capacity of 0, buffer may be NULL. Returns the length of the whole text without the NUL; 0 for NULL. Does
 * not block. Thread-safe. */
size_t shoal_value_format(const shoal_value *value, char *buffer, size_t capacity);

/* For bindings to other languages: makes a packed value of MessagePack bytes that the binding wrote: one list or map,
 * as shoal_value_list and shoal_value_map would be sent, without shared objects. A foreign value in it is extension
 * type 2, with its tag in four bytes, little endian, before its bytes. A packed value can only be copied, kept,
 * destroyed, sent, and added to a list or map. The receiver checks the bytes: if they are not such a list or map, its
 * get fails with SHOAL_ECORRUPT. Copies the bytes. The caller owns the value. Does not block. Thread-safe. Returns NULL
 * and sets SHOAL_EINVAL if there are no bytes, or SHOAL_ENOMEM. */
shoal_value *shoal_value_packed(const void *bytes, size_t size);

/* Returns the bytes of a packed value, borrowed from it, and their number; NULL, without an error, for any other
 * value. */
const void *shoal_value_as_packed(const shoal_value *value, size_t *out_size);

#ifdef __cplusplus
}

/* shoal_value_of, shoal_list and shoal_map, as in C below. Here true and false are bools, and a std::string is a
 * string. */
#define SHOAL_VALUE_OVERLOAD(type, make)                                                                               \
    inline shoal_value *shoal_value_of(type x)                                                                         \
    {                                                                                                                  \
        return make(x);                                                                                                \
    }
#define SHOAL_VALUE_OF_HANDLE(type) SHOAL_VALUE_OVERLOAD(shoal_##type *, shoal_value_##type)
SHOAL_VALUE_OVERLOAD(char, shoal_value_int)
SHOAL_VALUE_OVERLOAD(signed char, shoal_value_int)
SHOAL_VALUE_OVERLOAD(unsigned char, shoal_value_int)
SHOAL_VALUE_OVERLOAD(short, shoal_value_int)
SHOAL_VALUE_OVERLOAD(unsigned short, shoal_value_int)
SHOAL_VALUE_OVERLOAD(int, shoal_value_int)
SHOAL_VALUE_OVERLOAD(unsigned, shoal_value_int)
SHOAL_VALUE_OVERLOAD(long, shoal_value_int)
SHOAL_VALUE_OVERLOAD(long long, shoal_value_int)
SHOAL_VALUE_OVERLOAD(unsigned long, shoal_value_uint)
SHOAL_VALUE_OVERLOAD(unsigned long long, shoal_value_uint)
SHOAL_VALUE_OVERLOAD(float, shoal_value_float)
SHOAL_VALUE_OVERLOAD(double, shoal_value_float)
SHOAL_VALUE_OVERLOAD(const char *, shoal_value_string)
SHOAL_VALUE_OVERLOAD(char *, shoal_value_string)
SHOAL_VALUE_OVERLOAD(shoal_value *, static_cast<shoal_value *>)
SHOAL_OBJECTS(SHOAL_VALUE_OF_HANDLE)
#undef SHOAL_VALUE_OF_HANDLE
#undef SHOAL_VALUE_OVERLOAD

/* A template, because every pointer would convert to a plain bool parameter. */
template <class Bool, std::enable_if_t<std::is_same<Bool, bool>::value, int> = 0> shoal_value *shoal_value_of(Bool x)
{
    return shoal_value_bool(x);
}

template <class T, class = void> struct shoal_cxx_is_text : std::false_type {
};
template <class T>
struct shoal_cxx_is_text<T, std::void_t<decltype(shoal_value_string(std::declval<const T &>().c_str()))>>
    : std::true_type {
};

/* Any other type: a std::string, or an error. */
template <class T, std::enable_if_t<!std::is_arithmetic<T>::value && !std::is_enum<T>::value, int> = 0>
shoal_value *shoal_value_of(const T &x)
{
    static_assert(shoal_cxx_is_text<T>::value,
                  "no value can be made of this type; a shoal_value or a handle must not be const");
    return shoal_value_string(x.c_str());
}

template <class... Member> shoal_value *shoal_list(Member... members)
{
    shoal_value *list = shoal_value_list();
    ((list = shoal_list_add(list, shoal_value_of(members))), ...);
    return list;
}

inline shoal_value *shoal_cxx_map(shoal_value *map)
{
    return map;
}

template <class Member, class... More>
shoal_value *shoal_cxx_map(shoal_value *map, const char *key, Member member, More... more)
{
    return shoal_cxx_map(shoal_map_set(map, key, shoal_value_of(member)), more...);
}

template <class... More> shoal_value *shoal_map(const char *key, More... more)
{
    return shoal_cxx_map(shoal_value_map(), key, more...);
}
#else

/* Make values from C expressions by their types. shoal_value_of(x) makes one value. shoal_list(1, "two", 3.0, queue)
 * and shoal_map("rank", 0, "queue", queue) make containers of 1 to 16 members; shoal_value_list() and
 * shoal_value_map() make empty ones, and shoal_list_add and shoal_map_set add more. The caller owns the result. A
 * shoal_value * is consumed and becomes the member itself. In C, true and false are ints: write
 * shoal_value_bool(true). NULL has no type of a value: write shoal_value_null(). Do not block. Errors: those of the
 * functions above. */
static inline shoal_value *shoal_value_identity(shoal_value *v)
{
    return v;
}

#define SHOAL_VALUE_CASE(type) , shoal_##type * : shoal_value_##type
#define shoal_value_of(x)                                                                                              \
    _Generic((x),                                                                                                      \
        _Bool: shoal_value_bool,                                                                                       \
        char: shoal_value_int,                                                                                         \
        signed char: shoal_value_int,                                                                                  \
        unsigned char: shoal_value_int,                                                                                \
        short: shoal_value_int,                                                                                        \
        unsigned short: shoal_value_int,                                                                               \
        int: shoal_value_int,                                                                                          \
        unsigned: shoal_value_int,                                                                                     \
        long: shoal_value_int,                                                                                         \
        unsigned long: shoal_value_uint,                                                                               \
        long long: shoal_value_int,                                                                                    \
        unsigned long long: shoal_value_uint,                                                                          \
        float: shoal_value_float,                                                                                      \
        double: shoal_value_float,                                                                                     \
        char *: shoal_value_string,                                                                                    \
        const char *: shoal_value_string,                                                                              \
        shoal_value *: shoal_value_identity                                                                            \
        SHOAL_OBJECTS(SHOAL_VALUE_CASE))(x)

#define SHOAL_CAT_(a, b) a##b
#define SHOAL_CAT(a, b) SHOAL_CAT_(a, b)
#define SHOAL_COUNT_(a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15, a16, a17, a18, a19, a20, a21,   \
                     a22, a23, a24, a25, a26, a27, a28, a29, a30, a31, a32, n, ...)                                    \
    n
#define SHOAL_COUNT(...)                                                                                               \
    SHOAL_COUNT_(__VA_ARGS__, 32, 31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18, 17, 16, 15, 14, 13, 12, 11,  \
                 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0)
#define SHOAL_LIST_1(l, x) shoal_list_add(l, shoal_value_of(x))
#define SHOAL_LIST_2(l, x, ...) SHOAL_LIST_1(shoal_list_add(l, shoal_value_of(x)), __VA_ARGS__)
#define SHOAL_LIST_3(l, x, ...) SHOAL_LIST_2(shoal_list_add(l, shoal_value_of(x)), __VA_ARGS__)
#define SHOAL_LIST_4(l, x, ...) SHOAL_LIST_3(shoal_list_add(l, shoal_value_of(x)), __VA_ARGS__)
#define SHOAL_LIST_5(l, x, ...) SHOAL_LIST_4(shoal_list_add(l, shoal_value_of(x)), __VA_ARGS__)
#define SHOAL_LIST_6(l, x, ...) SHOAL_LIST_5(shoal_list_add(l, shoal_value_of(x)), __VA_ARGS__)
#define SHOAL_LIST_7(l, x, ...) SHOAL_LIST_6(shoal_list_add(l, shoal_value_of(x)), __VA_ARGS__)
#define SHOAL_LIST_8(l, x, ...) SHOAL_LIST_7(shoal_list_add(l, shoal_value_of(x)), __VA_ARGS__)
#define SHOAL_LIST_9(l, x, ...) SHOAL_LIST_8(shoal_list_add(l, shoal_value_of(x)), __VA_ARGS__)
#define SHOAL_LIST_10(l, x, ...) SHOAL_LIST_9(shoal_list_add(l, shoal_value_of(x)), __VA_ARGS__)
#define SHOAL_LIST_11(l, x, ...) SHOAL_LIST_10(shoal_list_add(l, shoal_value_of(x)), __VA_ARGS__)
#define SHOAL_LIST_12(l, x, ...) SHOAL_LIST_11(shoal_list_add(l, shoal_value_of(x)), __VA_ARGS__)
#define SHOAL_LIST_13(l, x, ...) SHOAL_LIST_12(shoal_list_add(l, shoal_value_of(x)), __VA_ARGS__)
#define SHOAL_LIST_14(l, x, ...) SHOAL_LIST_13(shoal_list_add(l, shoal_value_of(x)), __VA_ARGS__)
#define SHOAL_LIST_15(l, x, ...) SHOAL_LIST_14(shoal_list_add(l, shoal_value_of(x)), __VA_ARGS__)
#define SHOAL_LIST_16(l, x, ...) SHOAL_LIST_15(shoal_list_add(l, shoal_value_of(x)), __VA_ARGS__)
#define SHOAL_MAP_2(m, k, x) shoal_map_set(m, k, shoal_value_of(x))
#define SHOAL_MAP_4(m, k, x, ...) SHOAL_MAP_2(shoal_map_set(m, k, shoal_value_of(x)), __VA_ARGS__)
#define SHOAL_MAP_6(m, k, x, ...) SHOAL_MAP_4(shoal_map_set(m, k, shoal_value_of(x)), __VA_ARGS__)
#define SHOAL_MAP_8(m, k, x, ...) SHOAL_MAP_6(shoal_map_set(m, k, shoal_value_of(x)), __VA_ARGS__)
#define SHOAL_MAP_10(m, k, x, ...) SHOAL_MAP_8(shoal_map_set(m, k, shoal_value_of(x)), __VA_ARGS__)
#define SHOAL_MAP_12(m, k, x, ...) SHOAL_MAP_10(shoal_map_set(m, k, shoal_value_of(x)), __VA_ARGS__)
#define SHOAL_MAP_14(m, k, x, ...) SHOAL_MAP_12(shoal_map_set(m, k, shoal_value_of(x)), __VA_ARGS__)
#define SHOAL_MAP_16(m, k, x, ...) SHOAL_MAP_14(shoal_map_set(m, k, shoal_value_of(x)), __VA_ARGS__)
#define SHOAL_MAP_18(m, k, x, ...) SHOAL_MAP_16(shoal_map_set(m, k, shoal_value_of(x)), __VA_ARGS__)
#define SHOAL_MAP_20(m, k, x, ...) SHOAL_MAP_18(shoal_map_set(m, k, shoal_value_of(x)), __VA_ARGS__)
#define SHOAL_MAP_22(m, k, x, ...) SHOAL_MAP_20(shoal_map_set(m, k, shoal_value_of(x)), __VA_ARGS__)
#define SHOAL_MAP_24(m, k, x, ...) SHOAL_MAP_22(shoal_map_set(m, k, shoal_value_of(x)), __VA_ARGS__)
#define SHOAL_MAP_26(m, k, x, ...) SHOAL_MAP_24(shoal_map_set(m, k, shoal_value_of(x)), __VA_ARGS__)
#define SHOAL_MAP_28(m, k, x, ...) SHOAL_MAP_26(shoal_map_set(m, k, shoal_value_of(x)), __VA_ARGS__)
#define SHOAL_MAP_30(m, k, x, ...) SHOAL_MAP_28(shoal_map_set(m, k, shoal_value_of(x)), __VA_ARGS__)
#define SHOAL_MAP_32(m, k, x, ...) SHOAL_MAP_30(shoal_map_set(m, k, shoal_value_of(x)), __VA_ARGS__)
#define shoal_list(...) SHOAL_CAT(SHOAL_LIST_, SHOAL_COUNT(__VA_ARGS__))(shoal_value_list(), __VA_ARGS__)
#define shoal_map(...) SHOAL_CAT(SHOAL_MAP_, SHOAL_COUNT(__VA_ARGS__))(shoal_value_map(), __VA_ARGS__)

#endif
#endif
