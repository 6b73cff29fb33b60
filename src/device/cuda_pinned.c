/* Pinned host memory: the card copies from it and to it by itself, so such a copy need not wait. */
#include "device/cuda_capture.h"

#include "base/error.h"
#include "device/cuda_share.h"
#include "shm/card_lock.h"

#include <stdlib.h>

/* Memory that a thread made or freed while it captured. Each replay of the graph copies from it or to it, so it is freed with
 * the capture, like card memory (SH_CUDA_KEPT). */
typedef struct kept {
    struct kept *next;
    void *data;
    const sh_cuda_capture *capture;
    bool freed; /* by the program */
} kept;

static struct {
    kept *list;
} of_captures;

/* Under the lock. */
static void add(kept *fresh, void *data, bool freed)
{
    *fresh = (kept){.next = of_captures.list, .data = data, .capture = sh_cuda_capturing(), .freed = freed};
    of_captures.list = fresh;
}

/* Remembers that the capture of this thread made the memory. */
static bool keep(void *data)
{
    kept *fresh = malloc(sizeof *fresh);
    if (fresh) {
        sh_cardlock_lock(SH_CARD_LOCK_STATE);
        add(fresh, data, false);
        sh_cardlock_unlock(SH_CARD_LOCK_STATE);
    }
    return fresh != NULL;
}

/* Says that the program has freed the memory. Returns whether it is kept: by the capture that made it, by that of this thread, or
 * by both. */
static bool is_kept(void *data)
{
    const sh_cuda_capture *mine = sh_cuda_capturing();
    kept *fresh = mine ? malloc(sizeof *fresh) : NULL;
    sh_cardlock_lock(SH_CARD_LOCK_STATE);
    kept *k = of_captures.list;
    while (k && (k->data != data || k->freed)) {
        k = k->next;
    }
    if (k) {
        k->freed = true;
    }
    bool adds = mine && (!k || k->capture != mine), added = adds && fresh;
    if (added) {
        add(fresh, data, true);
    }
    sh_cardlock_unlock(SH_CARD_LOCK_STATE);
    if (adds && !fresh) {
        (void)sh_cuda_capture_refuse("releasing pinned memory, without memory to remember it,");
    }
    if (!added) {
        free(fresh);
    }
    return k || added;
}

/* Under the lock. */
static bool is_kept_by_any(const void *data)
{
    const kept *k = of_captures.list;
    while (k && k->data != data) {
        k = k->next;
    }
    return k != NULL;
}

static void free_now(void *data)
{
    int mode = sh_cuda_relax();
    (void)sh_cuda_result("cannot free pinned memory", sh_cu.cuMemFreeHost(data)); /* waits for copies that use it */
    sh_cuda_restrict(mode);
}

void *sh_cuda_alloc_pinned(size_t size)
{
    void *data = NULL;
    shoal_err err = sh_cuda_check();
    if (err == SHOAL_OK) {
        int mode = sh_cuda_relax();
        err = sh_cuda_result("cannot pin host memory", sh_cu.cuMemAllocHost(&data, size > 0 ? size : 1));
        sh_cuda_restrict(mode);
    }
    if (err == SHOAL_OK && sh_cuda_capturing() && !keep(data)) {
        free_now(data);
        err = sh_fail(SHOAL_ENOMEM, "no memory to describe %zu bytes of pinned memory", size);
    }
    return err == SHOAL_OK ? data : NULL;
}

/* A child of fork cannot free what its parent pinned, nor a process whose context is gone: the memory goes with the
 * process. */
void sh_cuda_free_pinned(void *data, size_t size)
{
    (void)size;
    sh_cleanup_begin();
    if (data && sh_cuda_check() == SHOAL_OK && !is_kept(data)) {
        free_now(data);
    }
    sh_cleanup_end();
}

void sh_cuda_pinned_give_back(const sh_cuda_capture *capture)
{
    kept *freed = NULL;
    sh_cardlock_lock(SH_CARD_LOCK_STATE);
    for (kept **place = &of_captures.list; *place;) {
        kept *k = *place;
        if (k->capture != capture) {
            place = &k->next;
            continue;
        }
        *place = k->next;
        k->next = freed;
        freed = k;
    }
    for (kept *k = freed; k; k = k->next) {
        k->freed = k->freed && !is_kept_by_any(k->data); /* else it goes with the other capture */
    }
    sh_cardlock_unlock(SH_CARD_LOCK_STATE);
    for (kept *k = freed, *next; k; k = next) {
        next = k->next;
        if (k->freed) {
            free_now(k->data);
        }
        free(k);
    }
}

shoal_err sh_cuda_write_later(void *to, const void *from_pinned, size_t size)
{
    shoal_err err = sh_cuda_check();
    if (err == SHOAL_OK) {
        err = sh_cuda_follow();
    }
    if (err == SHOAL_OK && size > 0) {
        err = sh_cuda_result("cannot copy to the GPU", sh_cu.cuMemcpyHtoDAsync((sh_cu_address)(uintptr_t)to,
                                                                               from_pinned, size, sh_cuda_stream()));
        sh_cuda_touch();
    }
    return err;
}

shoal_err sh_cuda_read_later(void *to_pinned, const void *from, size_t size)
{
    shoal_err err = sh_cuda_check();
    if (err == SHOAL_OK) {
        err = sh_cuda_follow();
    }
    if (err == SHOAL_OK && size > 0) {
        err =
            sh_cuda_result("cannot copy from the GPU",
                           sh_cu.cuMemcpyDtoHAsync(to_pinned, (sh_cu_address)(uintptr_t)from, size, sh_cuda_stream()));
        sh_cuda_touch();
    }
    return err;
}
