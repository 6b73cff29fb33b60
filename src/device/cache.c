/* Private memory of the CPU: free lists by size class in front of malloc, one set per thread. So the tensors of a loop
 * in steady state come from the same few warm pieces, without a system call or a lock.
 *
 * There are four size classes per doubling, from 64 bytes. A request is rounded up to its class, so any size of the
 * class can reuse a piece. A piece that another thread frees goes into that thread's lists. A thread keeps at most
 * KEEP_BYTES; beyond that, and when the thread ends, pieces go back to malloc. */
#include "device/device.h"

#include "base/error.h"

#include <pthread.h>
#include <stdlib.h>

#define SMALLEST 64
#define CLASSES 168 /* up to 64 << 42 bytes */
#ifdef __SANITIZE_ADDRESS__
#define KEEP_BYTES ((size_t)0) /* so that AddressSanitizer sees every use after the last release */
#else
#define KEEP_BYTES ((size_t)1 << 30)
#endif

typedef struct piece {
    struct piece *next;
} piece;

typedef struct cache {
    piece *lists[CLASSES];
    size_t kept;
} cache;

/* Created at the first free, because it is too large for static TLS, which is scarce for a library that is loaded with
 * dlopen. Until then, and if there was no memory for it, it is the empty cache, which nobody writes to. */
static cache empty;
static _Thread_local cache *mine __attribute__((tls_model("initial-exec"))) = &empty;
static pthread_key_t end_key;
static pthread_once_t end_once = PTHREAD_ONCE_INIT;

/* Returns the class of a size and the bytes of its pieces; CLASSES if the size is too large. */
static unsigned class_of(size_t size, size_t *out_bytes)
{
    if (size <= SMALLEST) {
        *out_bytes = SMALLEST;
        return 0;
    }
    unsigned log = 63u - (unsigned)__builtin_clzll(size - 1); /* 2^log < size <= 2^(log+1) */
    size_t step = (size_t)1 << (log - 2);
    unsigned quarter = (unsigned)((size - 1 - ((size_t)1 << log)) / step); /* 0 to 3 */
    *out_bytes = ((size_t)1 << log) + (quarter + 1) * step;
    return (log - 6) * 4 + quarter + 1;
}

static void drop_all(cache *c)
{
    for (unsigned k = 0; k < CLASSES; k++) {
        for (piece *p = c->lists[k], *next; p; p = next) {
            next = p->next;
            free(p);
        }
        c->lists[k] = NULL;
    }
    c->kept = 0;
}

static void thread_ended(void *c)
{
    mine = &empty;
    drop_all(c);
    free(c);
}

static void make_key(void)
{
    (void)pthread_key_create(&end_key, thread_ended);
}

/* Creates this thread's cache. Returns false if it cannot. */
static bool make_cache(void)
{
    (void)pthread_once(&end_once, make_key);
    cache *fresh = calloc(1, sizeof *fresh);
    if (fresh == NULL || pthread_setspecific(end_key, fresh) != 0) {
        free(fresh);
        return false;
    }
    mine = fresh;
    return true;
}

void *sh_cpu_cache_alloc(size_t size)
{
    size_t bytes;
    unsigned k = class_of(size, &bytes);
    cache *c = mine;
    if (__builtin_expect(k < CLASSES && c->lists[k] != NULL, 1)) {
        piece *p = c->lists[k];
        c->lists[k] = p->next;
        c->kept -= bytes;
        return p;
    }
    void *fresh = k < CLASSES ? aligned_alloc(64, (bytes + 63) & ~(size_t)63) : NULL;
    if (!fresh) {
        (void)sh_fail(SHOAL_ENOMEM, "no memory for a tensor of %zu bytes", size);
    }
    return fresh;
}

void sh_cpu_cache_free(void *data, size_t size)
{
    if (!data) {
        return;
    }
    size_t bytes;
    unsigned k = class_of(size, &bytes);
    if (bytes > KEEP_BYTES - mine->kept || (__builtin_expect(mine == &empty, 0) && !make_cache())) {
        free(data);
        return;
    }
    cache *c = mine;
    piece *p = data;
    p->next = c->lists[k];
    c->lists[k] = p;
    c->kept += bytes;
}

void sh_cpu_cache_trim(void)
{
    if (mine != &empty) {
        drop_all(mine);
    }
}
