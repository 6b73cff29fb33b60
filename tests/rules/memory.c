/* Replaces the allocator for the library and the test:
 * each allocation can fail, and allocations that are not freed are counted. */
#include "rules.h"

#include <pthread.h>
#include <stdlib.h>

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *p, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
void __real_free(void *p);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *p, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
void __wrap_free(void *p);

static int fails_at;
static bool has_failed;
static pthread_t armed;

/* The addresses of all allocations, in a hash table with open addressing. Memory that others allocate (strdup, zlib)
 * and the library frees is not in it, and does not count. */
#define TABLE (1u << 17)
#define GONE ((void *)1)
static void *table[TABLE];
static int64_t count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static size_t place_of(const void *p)
{
    return (size_t)(((uintptr_t)p >> 4) * UINT64_C(0x9e3779b97f4a7c15) >> 47);
}

static void *note(void *p)
{
    if (p != NULL) {
        pthread_mutex_lock(&lock);
        size_t i = place_of(p);
        while (table[i] != NULL && table[i] != GONE) {
            i = (i + 1) % TABLE;
        }
        table[i] = p;
        count++;
        pthread_mutex_unlock(&lock);
    }
    return p;
}

static void forget(const void *p)
{
    pthread_mutex_lock(&lock);
    for (size_t i = place_of(p); p != NULL && table[i] != NULL; i = (i + 1) % TABLE) {
        if (table[i] == p) {
            table[i] = GONE;
            count--;
            break;
        }
    }
    pthread_mutex_unlock(&lock);
}

static bool is_refused(void)
{
    if (fails_at == 0 || !pthread_equal(armed, pthread_self()) || --fails_at > 0) {
        return false;
    }
    has_failed = true;
    return true;
}

void *__wrap_malloc(size_t size)
{
    return is_refused() ? NULL : note(__real_malloc(size));
}

void *__wrap_calloc(size_t items, size_t size)
{
    return is_refused() ? NULL : note(__real_calloc(items, size));
}

void *__wrap_realloc(void *p, size_t size)
{
    if (is_refused()) {
        return NULL;
    }
    forget(p);
    return note(__real_realloc(p, size));
}

void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
    return is_refused() ? NULL : note(__real_aligned_alloc(alignment, size));
}

void __wrap_free(void *p)
{
    forget(p);
    __real_free(p);
}

void rules_fail_at(int n)
{
    armed = pthread_self();
    has_failed = has_failed && n == 0;
    fails_at = n;
}

bool rules_has_failed(void)
{
    return has_failed;
}

int64_t rules_allocated(void)
{
    return count;
}
