/* The thread's scope: a stack of the tensors that expressions made. */
#include "tensor/tensor.h"

#include "base/error.h"
#include "base/log.h"

#include <pthread.h>
#include <stdlib.h>

/* A thread that releases nothing gets one warning, when it holds this much. */
#define MANY_RESULTS ((size_t)1 << 20)
#define MANY_BYTES ((size_t)1 << 30)

typedef struct scope {
    shoal_tensor **items;
    size_t count, room;
    bool watched, warned;
} scope;

static _Thread_local scope mine __attribute__((tls_model("initial-exec")));
static pthread_key_t end_key;
static pthread_once_t end_once = PTHREAD_ONCE_INIT;

static void thread_ended(void *unused)
{
    (void)unused;
    shoal_scope_release(0);
    free(mine.items);
    mine = (scope){0};
}

static void make_key(void)
{
    (void)pthread_key_create(&end_key, thread_ended);
}

/* Called when the stack doubles, so it costs little. Views count as much as the storage that they use. */
static void warn_of_many(void)
{
    size_t bytes = 0;
    for (size_t i = 0; i < mine.count; i++) {
        bytes += mine.items[i]->storage->size;
    }
    if (mine.count >= MANY_RESULTS || bytes >= MANY_BYTES) {
        mine.warned = true;
        sh_log("a thread holds %zu results of tensor functions, about %zu MiB, and has released none: call "
               "shoal_scope_mark before a step, and shoal_scope_release with its result after the step",
               mine.count, bytes >> 20);
    }
}

static bool grow(void)
{
    if (!mine.warned) {
        warn_of_many();
    }
    size_t room = mine.room > 0 ? mine.room * 2 : 256;
    shoal_tensor **fresh = realloc(mine.items, room * sizeof(shoal_tensor *));
    if (!fresh) {
        return false;
    }
    mine.items = fresh;
    mine.room = room;
    if (!mine.watched) {
        (void)pthread_once(&end_once, make_key);
        mine.watched = pthread_setspecific(end_key, &mine) == 0;
    }
    return true;
}

shoal_tensor *sh_scope_add(shoal_tensor *t)
{
    if (!t) {
        return NULL;
    }
    if (__builtin_expect(mine.count == mine.room, 0) && !grow()) {
        (void)sh_fail(SHOAL_ENOMEM, "no memory for the scope of this thread, which holds %zu tensors", mine.count);
        shoal_tensor_release(t);
        return NULL;
    }
    mine.items[mine.count++] = t;
    return t;
}

shoal_tensor *shoal_scoped(shoal_tensor *t)
{
    return sh_tensor_exists(t, __func__) ? sh_scope_add(t) : NULL;
}

size_t shoal_scope_mark(void)
{
    return mine.count;
}

void shoal_scope_release(size_t mark)
{
    while (mine.count > mark) {
        shoal_tensor_release(mine.items[--mine.count]);
    }
}

void sh_scope_release_but(size_t mark, shoal_tensor *keep)
{
    bool found = false;
    while (mine.count > mark) {
        shoal_tensor *t = mine.items[--mine.count];
        if (t == keep && !found) {
            found = true;
        } else {
            shoal_tensor_release(t);
        }
    }
    if (found) {
        mine.items[mine.count++] = keep;
    }
}
