/* Handles: pointers through which a process uses shared objects, and the reference counts of those objects.
 *
 * Calls borrow the handles that are passed to them. A call that stores a handle retains it. Calls with "give" in
 * their name take the caller's reference if they succeed.
 */
#ifndef SHOAL_HANDLE_H
#define SHOAL_HANDLE_H

#ifdef __cplusplus
extern "C" {
#endif

/* The types of handles: SHOAL_HANDLES(X) is X(block) X(queue) and so on. What exists for each type is declared by this
 * list, here and in value.h. The layer of a type defines it. */
#define SHOAL_HANDLES(X)                                                                                               \
    X(block) X(queue) X(pipe) X(lock) X(rlock) X(semaphore) X(condition) X(event) X(barrier) X(tensor) X(dataset)

#define SHOAL_DECLARE_TYPE(type) typedef struct shoal_##type shoal_##type;
SHOAL_HANDLES(SHOAL_DECLARE_TYPE)

/* The kinds of shared objects that a value can contain (shoal_value_object_kind). */
typedef enum shoal_kind {
    SHOAL_KIND_NONE,
    SHOAL_KIND_BLOCK,
    SHOAL_KIND_QUEUE,
    SHOAL_KIND_PIPE,
    SHOAL_KIND_LOCK,
    SHOAL_KIND_RLOCK,
    SHOAL_KIND_SEMAPHORE,
    SHOAL_KIND_CONDITION,
    SHOAL_KIND_EVENT,
    SHOAL_KIND_BARRIER,
    SHOAL_KIND_TENSOR, /* share.h has the last three */
    SHOAL_KIND_SPARSE,
    SHOAL_KIND_MODULE,
} shoal_kind;

/* Add or drop a reference to a shared object. retain adds one for this process and returns its argument. release
 * drops one. The object is freed when the last holder drops its last reference. NULL is allowed. They do not block.
 * Thread-safe.
 *
 * If a cast passed a pointer to something else, the call changes nothing and writes a log line, and retain returns
 * NULL and sets SHOAL_EINVAL. release never changes the last error, and is allowed after shoal_world_leave and while
 * the process exits. */
#define SHOAL_DECLARE_REFERENCES(type)                                                                                 \
    shoal_##type *shoal_##type##_retain(shoal_##type *type);                                                           \
    void shoal_##type##_release(shoal_##type *type);
SHOAL_HANDLES(SHOAL_DECLARE_REFERENCES)

/* Add or drop a reference to a shared object of any type. They call the retain or release function for the type of x.
 * They do not compile for any other type, such as a value, a module or a void pointer. */
#ifdef __cplusplus
}
#define SHOAL_HANDLE_OVERLOADS(type)                                                                                   \
    inline shoal_##type *shoal_retain(shoal_##type *x)                                                                 \
    {                                                                                                                  \
        return shoal_##type##_retain(x);                                                                               \
    }                                                                                                                  \
    inline void shoal_release(shoal_##type *x)                                                                         \
    {                                                                                                                  \
        shoal_##type##_release(x);                                                                                     \
    }
SHOAL_HANDLES(SHOAL_HANDLE_OVERLOADS)
#undef SHOAL_HANDLE_OVERLOADS
#else
#define SHOAL_RETAIN_CASE(type) , shoal_##type * : shoal_##type##_retain
#define SHOAL_RELEASE_CASE(type) , shoal_##type * : shoal_##type##_release
#define shoal_retain(x) _Generic((x)SHOAL_HANDLES(SHOAL_RETAIN_CASE))(x)
#define shoal_release(x) _Generic((x)SHOAL_HANDLES(SHOAL_RELEASE_CASE))(x)
#endif
#endif
