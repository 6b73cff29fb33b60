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

typedef struct shoal_block shoal_block;
typedef struct shoal_queue shoal_queue;
typedef struct shoal_pipe shoal_pipe;
typedef struct shoal_lock shoal_lock;
typedef struct shoal_rlock shoal_rlock;
typedef struct shoal_semaphore shoal_semaphore;
typedef struct shoal_condition shoal_condition;
typedef struct shoal_event shoal_event;
typedef struct shoal_barrier shoal_barrier;
typedef struct shoal_tensor shoal_tensor;
typedef struct shoal_dataset shoal_dataset;

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
shoal_block *shoal_block_retain(shoal_block *block);
void shoal_block_release(shoal_block *block);
shoal_queue *shoal_queue_retain(shoal_queue *queue);
void shoal_queue_release(shoal_queue *queue);
shoal_pipe *shoal_pipe_retain(shoal_pipe *pipe);
void shoal_pipe_release(shoal_pipe *pipe);
shoal_lock *shoal_lock_retain(shoal_lock *lock);
void shoal_lock_release(shoal_lock *lock);
shoal_rlock *shoal_rlock_retain(shoal_rlock *rlock);
void shoal_rlock_release(shoal_rlock *rlock);
shoal_semaphore *shoal_semaphore_retain(shoal_semaphore *semaphore);
void shoal_semaphore_release(shoal_semaphore *semaphore);
shoal_condition *shoal_condition_retain(shoal_condition *condition);
void shoal_condition_release(shoal_condition *condition);
shoal_event *shoal_event_retain(shoal_event *event);
void shoal_event_release(shoal_event *event);
shoal_barrier *shoal_barrier_retain(shoal_barrier *barrier);
void shoal_barrier_release(shoal_barrier *barrier);
shoal_tensor *shoal_tensor_retain(shoal_tensor *t);
void shoal_tensor_release(shoal_tensor *t);
shoal_dataset *shoal_dataset_retain(shoal_dataset *set);
void shoal_dataset_release(shoal_dataset *set);

/* The types of shared objects: SHOAL_HANDLES(X) is X(block) X(queue) and so on. What chooses by the type of a handle is
 * made of this list, here and in value.h. */
#define SHOAL_HANDLES(X)                                                                                               \
    X(block) X(queue) X(pipe) X(lock) X(rlock) X(semaphore) X(condition) X(event) X(barrier) X(tensor) X(dataset)

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
