/* A CUDA card as a device. */
#include "device/cuda_capture.h"

#include "base/error.h"
#include "base/fork.h"
#include "device/cuda_share.h"
#include "shm/block.h"
#include "sync/atomic.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static sh_cuda_card card;
static sh_a32 is_open; /* 1 once card is filled in, set with release order under the lock */

/* A thread's exec, and whether the context is current in it. The scratch is freed when the thread ends. */
static _Thread_local sh_exec mine __attribute__((tls_model("initial-exec")));
static _Thread_local bool is_current __attribute__((tls_model("initial-exec")));
static pthread_key_t end_key;
static pthread_once_t end_once = PTHREAD_ONCE_INIT;

static void thread_ended(void *exec)
{
    sh_exec *e = exec;
    sh_cuda_capture_thread_ends();
    if (e->scratch) {
        sh_cuda_free(e->scratch, e->scratch_size);
    }
    *e = (sh_exec){0};
    is_current = false;
}

static void make_key(void)
{
    (void)pthread_key_create(&end_key, thread_ended);
}

/* ---- opening ---- */

static shoal_err forked(void)
{
    return sh_fail(SHOAL_EFORK, SH_LEFT_CARD_TEXT);
}

/* Fork does not wait for the lock: opening a card takes a quarter of a second, and the driver's own handlers of forks
 * may be among what a fork waits for. */
__attribute__((constructor)) static void register_lock(void)
{
    static sh_fork_part part = {.only_anew = true};
    part.lock = sh_cardlock_mutex(SH_CARD_LOCK_OPEN);
    sh_fork_register(SH_FORK_CARD, &part);
    sh_world_uses_card = sh_cuda_is_open;
}

static shoal_err load_both(const sh_cuda_library **out_library)
{
    SH_TRY(sh_cuda_library_load(out_library));
    return sh_cuda_driver_load();
}

/* Under the lock. What does not survive a fork begins before the driver starts: a fork in the middle leaves half of it
 * to the child. */
static shoal_err start_driver(const sh_cuda_library **out_library)
{
    static uint64_t generation;
    static bool begun;
    if (begun && !sh_fork_is_ours(generation)) {
        return forked();
    }
    generation = sh_fork_generation();
    begun = true;
    shoal_err err = load_both(out_library);
    begun = err == SHOAL_OK;
    return err;
}

static shoal_err start_locked(const sh_cuda_library **out_library)
{
    sh_cardlock_lock(SH_CARD_LOCK_OPEN);
    shoal_err err = start_driver(out_library);
    sh_cardlock_unlock(SH_CARD_LOCK_OPEN);
    return err;
}

static shoal_err count_cards(int *out_count)
{
    return sh_cuda_result("cannot count the GPUs", sh_cu.cuDeviceGetCount(out_count));
}

shoal_err sh_cuda_count(int *out_count)
{
    const sh_cuda_library *unused;
    int count = 0;
    SH_TRY(start_locked(&unused));
    SH_TRY(count_cards(&count));
    *out_count = count;
    return SHOAL_OK;
}

static shoal_err choose_card(sh_cuda_card *c)
{
    int count = 0;
    SH_TRY(count_cards(&count));
    const char *name = "SHOAL_CUDA_DEVICE", *own = getenv(name);
    if (own == NULL && getenv("SHOAL_CARD") != NULL) { /* its name in 0.2 */
        own = getenv(name = "SHOAL_CARD");
    }
    char *end = NULL;
    long index = own && own[0] ? strtol(own, &end, 10) : 0;
    if (end && *end != 0) {
        return sh_fail(SHOAL_EINVAL, "%s is \"%s\"; it must be the number of a GPU, from 0", name, own);
    }
    if (count == 0) {
        return sh_fail(SHOAL_ENOENT, "no CUDA GPU found: the driver (CUDA %d.%d) sees none", sh_cu.version / 1000,
                       sh_cu.version % 1000 / 10);
    }
    if (index < 0 || index >= count) {
        return sh_fail(SHOAL_ENOENT, "%s is %ld, but this process sees %d GPU%s, numbered from 0", name, index, count,
                       count == 1 ? "" : "s");
    }
    c->index = (int)index;
    return SHOAL_OK;
}

shoal_err sh_cuda_look(void)
{
    sh_cuda_card c = {0};
    SH_TRY(start_locked(&c.library));
    return choose_card(&c);
}

shoal_err sh_cuda_describe(sh_cuda_card *c)
{
    SH_TRY(sh_cuda_result("cannot open the GPU", sh_cu.cuDeviceGet(&c->device, c->index)));
    SH_TRY(sh_cuda_result("cannot read the GPU's name", sh_cu.cuDeviceGetName(c->name, sizeof c->name, c->device)));
    SH_TRY(sh_cuda_result("cannot read the GPU's UUID", sh_cu.cuDeviceGetUuid(c->uuid, c->device)));
    return sh_cuda_result("cannot read the size of the GPU's memory", sh_cu.cuDeviceTotalMem(&c->total, c->device));
}

/* The primary context, so that PyTorch and Shoal in one process share it. */
static shoal_err open_context(sh_cuda_card *c)
{
    SH_TRY(sh_cuda_result("cannot make a context on the GPU", sh_cu.cuDevicePrimaryCtxRetain(&c->context, c->device)));
    shoal_err err = sh_cuda_result("cannot use the GPU's context", sh_cu.cuCtxSetCurrent(c->context));
    if (err == SHOAL_OK) {
        err = sh_cuda_result("cannot make a stream", sh_cu.cuStreamCreate(&c->stream, SH_CU_STREAM_NON_BLOCKING));
    }
    if (err != SHOAL_OK) {
        (void)sh_cu.cuDevicePrimaryCtxRelease(c->device);
    }
    return err;
}

static shoal_err open_card(sh_cuda_card *c)
{
    SH_TRY(start_driver(&c->library));
    SH_TRY(choose_card(c));
    SH_TRY(sh_cuda_describe(c));
    SH_TRY(open_context(c));
    c->generation = sh_fork_generation();
    return SHOAL_OK;
}

static shoal_err open_once(void)
{
    sh_cardlock_lock(SH_CARD_LOCK_OPEN);
    shoal_err err = SHOAL_OK;
    if (sh_load_relaxed(&is_open) == 0) {
        sh_cuda_card fresh = {0};
        err = open_card(&fresh);
        if (err == SHOAL_OK) {
            card = fresh;
            sh_store_release(&is_open, 1); /* pairs with the acquire in sh_cuda_check: the card is filled in */
        }
    }
    sh_cardlock_unlock(SH_CARD_LOCK_OPEN);
    return err;
}

bool sh_cuda_is_open(void)
{
    return sh_load_acquire(&is_open) != 0;
}

bool sh_cuda_is_ours(void)
{
    return sh_cuda_is_open() && sh_fork_is_ours(card.generation);
}

shoal_err sh_cuda_check(void)
{
    if (!sh_cuda_is_open()) {
        return sh_fail(SHOAL_ESTATE, "this process has not opened the GPU");
    }
    if (__builtin_expect(!sh_fork_is_ours(card.generation), 0)) {
        return forked();
    }
    SH_TRY(sh_cuda_lost());
    if (__builtin_expect(!is_current, 0)) {
        SH_TRY(sh_cuda_result("cannot use the GPU's context", sh_cu.cuCtxSetCurrent(card.context)));
        is_current = true;
    }
    return SHOAL_OK;
}

const sh_cuda_card *sh_cuda_the_card(void)
{
    return &card;
}

const char *sh_cuda_uuid_text(const uint8_t uuid[SH_CUDA_UUID_SIZE], char out[48])
{
    size_t n = (size_t)snprintf(out, 48, "GPU");
    for (int i = 0; i < SH_CUDA_UUID_SIZE; i++) {
        bool dash = i == 0 || i == 4 || i == 6 || i == 8 || i == 10;
        n += (size_t)snprintf(out + n, 48 - n, "%s%02x", dash ? "-" : "", uuid[i]);
    }
    return out;
}

sh_cuda_card *sh_cuda_get(void)
{
    if (!sh_cuda_is_open() && open_once() != SHOAL_OK) {
        return NULL;
    }
    return sh_cuda_check() == SHOAL_OK ? &card : NULL;
}

/* ---- the device ---- */

static const sh_kernels *cuda_kernels(void)
{
    return card.library->kernels;
}

static sh_exec *cuda_exec(void)
{
    if (sh_cuda_check() != SHOAL_OK || sh_cuda_follow() != SHOAL_OK) {
        return NULL;
    }
    if (__builtin_expect(!mine.stream, 0)) {
        (void)pthread_once(&end_once, make_key);
        (void)pthread_setspecific(end_key, &mine);
        mine.stream = card.stream;
    }
    return &mine;
}

void *sh_cuda_scratch(sh_exec *exec, size_t size)
{
    if (size > exec->scratch_size || !exec->scratch) {
        sh_cuda_free(exec->scratch, exec->scratch_size); /* first: there may be no room for both */
        exec->scratch = sh_cuda_alloc(size);
        exec->scratch_size = exec->scratch ? size : 0;
    }
    return exec->scratch;
}

void sh_cuda_scratch_give_back(void)
{
    if (mine.scratch && !sh_cuda_capturing()) {
        sh_cuda_free(mine.scratch, mine.scratch_size);
        mine.scratch = NULL;
        mine.scratch_size = 0;
    }
}

static shoal_err cuda_wait(void)
{
    SH_TRY(sh_cuda_check());
    SH_TRY(sh_cuda_capture_refuse("waiting for the GPU"));
    return sh_cuda_order_wait();
}

/* Enqueues a copy from the host, or to it. */
static shoal_err enqueue_copy(bool to_card, void *to, const void *from, size_t size)
{
    int result;
    SH_TRY(sh_cuda_follow());
    if (size == 0) {
        return SHOAL_OK;
    }
    if (to_card) {
        result = sh_cu.cuMemcpyHtoDAsync((sh_cu_address)(uintptr_t)to, from, size, sh_cuda_stream());
    } else {
        result = sh_cu.cuMemcpyDtoHAsync(to, (sh_cu_address)(uintptr_t)from, size, sh_cuda_stream());
    }
    sh_cuda_touch();
    return sh_cuda_result(to_card ? "cannot copy to the GPU" : "cannot copy from the GPU", result);
}

/* The same, and waits until the bytes have arrived. */
static shoal_err copy_now(bool to_card, void *to, const void *from, size_t size)
{
    SH_TRY(sh_cuda_check());
    SH_TRY(sh_cuda_capture_refuse(to_card ? "writing elements from the host" : "reading elements on the host"));
    SH_TRY(enqueue_copy(to_card, to, from, size));
    return size > 0 ? cuda_wait() : SHOAL_OK;
}

static shoal_err cuda_write(void *to, const void *from_host, size_t size)
{
    return copy_now(true, to, from_host, size);
}

static shoal_err cuda_read(void *to_host, const void *from, size_t size)
{
    return copy_now(false, to_host, from, size);
}

static shoal_err cuda_write_later(void *to, const void *from_pinned, size_t size)
{
    SH_TRY(sh_cuda_check());
    return enqueue_copy(true, to, from_pinned, size);
}

static shoal_err cuda_read_later(void *to_pinned, const void *from, size_t size)
{
    SH_TRY(sh_cuda_check());
    return enqueue_copy(false, to_pinned, from, size);
}

const sh_device sh_device_cuda = {
    .kind = SHOAL_CUDA,
    .name = "cuda",
    .host_readable = false,
    .kernels = cuda_kernels,
    .alloc = sh_cuda_alloc,
    .free = sh_cuda_free,
    .write = cuda_write,
    .read = cuda_read,
    .exec = cuda_exec,
    .wait = cuda_wait,
    .alloc_pinned = sh_cuda_alloc_pinned,
    .free_pinned = sh_cuda_free_pinned,
    .write_later = cuda_write_later,
    .read_later = cuda_read_later,
};
