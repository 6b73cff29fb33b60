/* The allocator of GPU memory. cuda_memory.h describes it. */
#include "device/cuda_capture.h"

#include "base/error.h"
#include "base/fork.h"
#include "device/cuda_share.h"
#include "shm/card_store.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define STEP ((size_t)256) /* sizes and addresses of pieces are multiples of it */
#define SMALL_LIMIT ((size_t)256 << 10)
#define LARGE_STEP ((size_t)16 << 10) /* of large pieces */
#define CUT_LEAST ((size_t)64 << 10)  /* small pieces are cut from so many bytes at least, */
#define CUT_PIECES 16                 /* and so many at a time */
#define RECLAIM_EACH 2                /* lent pieces looked at by each allocation */
#define ASK_ROUNDS 2                  /* what one process gives back may be what another one can give back only then */
#define ASK_LIMIT SHOAL_MS(1000)
#define POLL_NS 50000

sh_cuda_state sh_gpu = {.end = &sh_gpu.first};

void sh_cuda_memory_tell(void)
{
    sh_granules_tell(sh_gpu.held, sh_gpu.used);
}

/* ---- sizes ---- */

/* Returns the bin of a free piece of this size: every piece in a higher bin is larger, or as large. */
static unsigned bin_of(size_t size)
{
    size_t steps = size / STEP;
    unsigned log = 63u - (unsigned)__builtin_clzll(steps);
    return log * 4 + (unsigned)(((steps << 2) >> log) & 3);
}

/* Rounds a request up. Small sizes: to the least size of a bin, so that any piece of that bin will do. */
static size_t round_up(size_t size)
{
    size_t step = LARGE_STEP;
    if (size <= SMALL_LIMIT) {
        size_t steps = size > STEP ? (size + STEP - 1) / STEP : 1;
        unsigned log = 63u - (unsigned)__builtin_clzll(steps);
        size = steps * STEP;
        step = log > 2 ? STEP << (log - 2) : STEP;
    }
    return (size + step - 1) / step * step;
}

/* The next granule: they grow with their number, because a world has room for 253 of them, of all its processes, and
 * because a process that joins maps each of them. */
static size_t next_granule_size(void)
{
    static const size_t sizes[] = {(size_t)32 << 20, (size_t)128 << 20, (size_t)1 << 30, (size_t)4 << 30};
    unsigned step = sh_gpu.made / 8;
    return sizes[step < 4 ? step : 3];
}

/* ---- the bins, and the table ---- */

static void bin_add(sh_cuda_piece *p)
{
    sh_cuda_piece **bin = &sh_gpu.bins[bin_of(p->size)];
    p->prev = NULL;
    p->next = *bin;
    if (*bin) {
        (*bin)->prev = p;
    }
    *bin = p;
}

static void bin_remove(sh_cuda_piece *p)
{
    *(p->prev ? &p->prev->next : &sh_gpu.bins[bin_of(p->size)]) = p->next;
    if (p->next) {
        p->next->prev = p->prev;
    }
    p->next = p->prev = NULL;
}

static sh_cuda_piece **bucket_of(sh_cu_address address)
{
    return &sh_gpu.table[((address >> 8) * UINT64_C(0x9e3779b97f4a7c15) >> 32) % SH_CUDA_BUCKETS];
}

/* Returns NULL with the error set if there is no memory. */
static sh_cuda_piece *new_piece(sh_cuda_granule *granule, sh_cu_address address, size_t size)
{
    sh_cuda_piece *p = malloc(sizeof *p), **bucket = bucket_of(address);
    if (!p) {
        (void)sh_fail(SHOAL_ENOMEM, "no memory to describe %zu bytes of GPU memory", size);
        return NULL;
    }
    *p = (sh_cuda_piece){.granule = granule, .address = address, .size = size, .hash_next = *bucket};
    return *bucket = p;
}

void sh_cuda_piece_forget(sh_cuda_piece *p)
{
    sh_cuda_piece **place = bucket_of(p->address);
    while (*place != p) {
        place = &(*place)->hash_next;
    }
    *place = p->hash_next;
    free(p);
}

sh_cuda_piece *sh_cuda_piece_at(const void *data)
{
    sh_cu_address address = (sh_cu_address)(uintptr_t)data;
    sh_cuda_piece *p = *bucket_of(address);
    while (p && (p->address != address || p->state != SH_CUDA_USED)) {
        p = p->hash_next;
    }
    return p;
}

/* ---- pieces ---- */

/* Makes two of a piece that is in no bin. Returns the second, or NULL without memory to describe it. */
static sh_cuda_piece *split(sh_cuda_piece *p, size_t size)
{
    sh_cuda_piece *rest = new_piece(p->granule, p->address + size, p->size - size);
    if (rest) {
        p->size = size;
        rest->before = p;
        rest->after = p->after;
        p->after = rest;
        if (rest->after) {
            rest->after->before = rest;
        }
    }
    return rest;
}

/* Joins a free piece that is in no bin with the one after it, if that is free and has more than `least` bytes. */
static bool join(sh_cuda_piece *p, size_t least)
{
    sh_cuda_piece *second = p->after;
    if (!second || second->state != SH_CUDA_FREE || second->size <= least) {
        return false;
    }
    bin_remove(second);
    p->size += second->size;
    p->after = second->after;
    if (p->after) {
        p->after->before = p;
    }
    sh_cuda_piece_forget(second);
    return true;
}

static void release(sh_cuda_piece *p)
{
    sh_gpu.used -= p->size;
    p->state = SH_CUDA_FREE;
    if (p->size > SMALL_LIMIT) {
        (void)join(p, SMALL_LIMIT);
        if (p->before && p->before->state == SH_CUDA_FREE && p->before->size > SMALL_LIMIT) {
            p = p->before;
            bin_remove(p);
            (void)join(p, SMALL_LIMIT);
        }
    }
    bin_add(p);
}

/* Joins all free neighbours. */
static void join_all(void)
{
    for (sh_cuda_granule *g = sh_gpu.granules; g; g = g->next) {
        for (sh_cuda_piece *p = g->first; p; p = p->after) {
            if (p->state == SH_CUDA_FREE) {
                bin_remove(p);
                while (join(p, 0)) {
                }
                bin_add(p);
            }
        }
    }
}

/* Returns how many bytes at the start of a piece come before an address that is a multiple of this. Joined small pieces
 * may begin anywhere, and reach far into what is free behind them. */
static size_t before_aligned(const sh_cuda_piece *p, size_t alignment)
{
    return (alignment - p->address % alignment) % alignment;
}

/* Returns the smallest free piece with room for this size at such an address, from that bin on, or NULL. */
static sh_cuda_piece *best_fit(size_t size, unsigned bin, size_t alignment)
{
    for (sh_cuda_piece *best = NULL; bin < SH_CUDA_BINS; bin++) {
        for (sh_cuda_piece *p = sh_gpu.bins[bin]; p; p = p->next) {
            if (p->size >= size + before_aligned(p, alignment) && (!best || p->size < best->size)) {
                best = p;
            }
        }
        if (best) {
            return best;
        }
    }
    return NULL;
}

/* Takes the first bytes of a free piece; the rest stays free. Without memory to describe it, it stays with the
 * piece. */
static sh_cuda_piece *take(sh_cuda_piece *p, size_t size)
{
    bin_remove(p);
    sh_cuda_piece *rest = p->size > size ? split(p, size) : NULL;
    if (rest) {
        bin_add(rest);
    }
    sh_gpu.used += p->size;
    p->state = SH_CUDA_USED;
    return p;
}

/* Takes a large piece, or one that will be cut into small ones, or returns NULL. Its address is a multiple of
 * LARGE_STEP; what comes before it stays free. */
static sh_cuda_piece *take_large(size_t size)
{
    sh_cuda_piece *p = best_fit(size, bin_of(size), LARGE_STEP);
    size_t before = p ? before_aligned(p, LARGE_STEP) : 0;
    if (before > 0) {
        bin_remove(p);
        sh_cuda_piece *rest = split(p, before);
        bin_add(p);
        if (rest) {
            bin_add(rest);
        }
        p = rest; /* NULL without memory to describe it */
    }
    return p ? take(p, size) : NULL;
}

/* Cuts free pieces of this size from the end of a piece. What is too small for one is a piece, too. */
static void cut(sh_cuda_piece *p, size_t size)
{
    for (size_t part = p->size % size; p->size > size; part = size) {
        sh_cuda_piece *rest = part > 0 ? split(p, p->size - part) : NULL;
        if (rest) {
            sh_gpu.used -= rest->size;
            bin_add(rest);
        } else if (part > 0) {
            return; /* no memory to describe it: it stays with the piece */
        }
    }
}

/* Takes a small piece: one of its bin, or the first of many; or returns NULL. */
static sh_cuda_piece *take_small(size_t size)
{
    sh_cuda_piece *p = sh_gpu.bins[bin_of(size)];
    if (p) {
        return take(p, p->size);
    }
    size_t all = size * CUT_PIECES > CUT_LEAST ? size * CUT_PIECES : CUT_LEAST;
    p = take_large((all + LARGE_STEP - 1) / LARGE_STEP * LARGE_STEP);
    if (p) {
        cut(p, size);
    }
    return p;
}

/* Takes a piece of what this process has; or returns NULL. */
static sh_cuda_piece *find(size_t size)
{
    sh_cuda_piece *p = size <= SMALL_LIMIT ? take_small(size) : take_large(size);
    if (!p) {
        sh_cuda_reclaim(SIZE_MAX);
        join_all();
        p = size <= SMALL_LIMIT ? take_small(size) : take_large(size);
    }
    if (!p && size <= SMALL_LIMIT) {
        p = best_fit(size, bin_of(size), STEP);
        p = p ? take(p, size) : NULL;
    }
    return p;
}

/* ---- granules ---- */

/* Makes a granule with room for size bytes. If the GPU has no room for a usual one, tries one that is just large
 * enough. */
static shoal_err make_granule(size_t size, size_t usual, sh_cuda_granule **out_granule)
{
    shoal_err err = sh_cuda_granule_make(size > usual ? size : usual, out_granule);
    return err == SHOAL_ENOMEM && size < usual ? sh_cuda_granule_make(size, out_granule) : err;
}

/* Gives this process one more granule, and takes a piece of it. Under SH_CARD_LOCK_DRIVER, so that two threads do not
 * make a granule for the same need. */
static shoal_err grow(size_t size, sh_cuda_piece **out_piece)
{
    sh_cuda_granule *g;
    sh_cardlock_lock(SH_CARD_LOCK_STATE);
    *out_piece = find(size);
    size_t usual = next_granule_size();
    sh_cardlock_unlock(SH_CARD_LOCK_STATE);
    if (*out_piece) {
        return SHOAL_OK; /* another thread has freed some, or has made one */
    }
    SH_TRY(make_granule(size, usual, &g));
    sh_cardlock_lock(SH_CARD_LOCK_STATE);
    g->first = new_piece(g, g->address, g->size);
    if (g->first) {
        bin_add(g->first);
        g->next = sh_gpu.granules;
        sh_gpu.granules = g;
        sh_gpu.made++;
        sh_gpu.held += g->size;
        *out_piece = find(size);
        sh_cuda_memory_tell();
    }
    sh_cardlock_unlock(SH_CARD_LOCK_STATE);
    if (!*out_piece) {
        if (!g->first) {
            (void)sh_cuda_granules_drop(g);
        }
        return shoal_last_error();
    }
    return SHOAL_OK;
}

static shoal_err find_or_grow(size_t size, sh_cuda_piece **out_piece)
{
    sh_cardlock_lock(SH_CARD_LOCK_DRIVER);
    shoal_err err = grow(size, out_piece);
    sh_cardlock_unlock(SH_CARD_LOCK_DRIVER);
    return err;
}

/* Checks whether this process uses nothing of a granule that it has made. */
static bool is_unused(const sh_cuda_granule *g)
{
    const sh_cuda_piece *p = g->first;
    while (p && (p->state == SH_CUDA_FREE || (p->state == SH_CUDA_LENT && !p->ledger))) {
        p = p->after;
    }
    return g->first && !p;
}

static void forget_pieces(sh_cuda_granule *g)
{
    for (sh_cuda_piece *p = g->first, *next; p; p = next) {
        next = p->after;
        if (p->state == SH_CUDA_FREE) {
            bin_remove(p);
        } else {
            sh_gpu.used -= p->size;
        }
        sh_cuda_piece_forget(p);
    }
}

/* Forgets unused granules. Returns them, as a list. */
static sh_cuda_granule *retire_unused(void)
{
    sh_cuda_granule *retired = NULL;
    sh_cuda_reclaim(SIZE_MAX);
    join_all();
    for (sh_cuda_granule **place = &sh_gpu.granules; *place;) {
        sh_cuda_granule *g = *place;
        if (!is_unused(g)) {
            place = &g->next;
            continue;
        }
        *place = g->next;
        forget_pieces(g);
        sh_gpu.made--;
        sh_gpu.held -= g->size;
        g->next = retired;
        retired = g;
    }
    sh_cuda_memory_tell();
    return retired;
}

/* Without a lock: what was freed may still be used by work before, and while the GPU does that, other threads of this
 * process allocate and free. A thread that finds the GPU's memory full waits here until they have given back what they
 * have begun to. */
size_t sh_cuda_memory_trim(void)
{
    uint32_t number = sh_add_acq_rel(&sh_gpu.trims_begun, 1) + 1;
    sh_cardlock_lock(SH_CARD_LOCK_STATE);
    sh_cuda_granule *retired = retire_unused();
    sh_cardlock_unlock(SH_CARD_LOCK_STATE);
    if (retired) {
        sh_cuda_order_drain();
    }
    size_t bytes = sh_cuda_granules_drop(retired);
    (void)sh_add_acq_rel(&sh_gpu.trims_ended, 1);
    while ((int32_t)(sh_load_acquire(&sh_gpu.trims_ended) - number) < 0) {
        nanosleep(&(struct timespec){.tv_nsec = POLL_NS}, NULL);
    }
    return bytes;
}

/* ---- when there is no memory ---- */

/* If the GPU has room, another call of the driver failed, or malloc: a limit of addresses, say. Then its reason belongs
 * to the text. */
static shoal_err out_of_memory(size_t size)
{
    size_t free_bytes = 0, total = 0;
    char reason[200] = "";
    (void)sh_cu.cuMemGetInfo(&free_bytes, &total);
    if (free_bytes >= size) {
        snprintf(reason, sizeof reason, "; the last failure was: %s", shoal_last_error_text());
    }
    sh_cardlock_lock(SH_CARD_LOCK_STATE);
    size_t used = sh_gpu.used, held = sh_gpu.held;
    sh_cardlock_unlock(SH_CARD_LOCK_STATE);
    return sh_fail(SHOAL_ENOMEM,
                   "out of GPU memory: asked for %zu bytes; this process uses %zu of the %zu that it holds, and %zu of "
                   "the GPU's %zu are free%s",
                   size, used, held, free_bytes, total, reason);
}

/* The GPU's memory is full: gives back what this process does not use, then asks all processes to do the same, and
 * waits for that. */
static shoal_err grow_after_trim(size_t size, sh_cuda_piece **out_piece)
{
    sh_cuda_order_poll();
    (void)sh_cuda_memory_trim();
    sh_cardstore_sweep();
    shoal_err err = find_or_grow(size, out_piece);
    bool answered = true;
    for (int round = 0; err == SHOAL_ENOMEM && answered && round < ASK_ROUNDS; round++) {
        uint64_t request = sh_granules_ask();
        answered = request != 0 && sh_granules_await_answers(request, ASK_LIMIT);
        err = find_or_grow(size, out_piece);
    }
    return err;
}

/* ---- the calls ---- */

/* No memory of this process is large enough. */
static shoal_err get_more(size_t size, size_t asked, sh_cuda_piece **out_piece)
{
    if (asked > sh_cuda_the_card()->total) { /* no process's giving back would help */
        return out_of_memory(asked);
    }
    shoal_err err = find_or_grow(size, out_piece);
    if (err == SHOAL_ENOMEM) {
        err = grow_after_trim(size, out_piece);
    }
    sh_cuda_service_begin();
    return err == SHOAL_ENOMEM ? out_of_memory(size) : err;
}

/* Under the lock. again: the piece was freed in this capture, and is in it already. */
static void give_out(sh_cuda_piece *p, size_t size, sh_cuda_capture *capture, bool again)
{
    p->asked = size;
    sh_gpu.asked += size;
    if (capture && !again) {
        sh_cuda_capture_add(capture, p);
    }
}

void *sh_cuda_alloc(size_t size)
{
    if (sh_cuda_check() != SHOAL_OK) {
        return NULL;
    }
    sh_cuda_capture *capture = sh_cuda_capturing();
    bool possible = size <= sh_cuda_the_card()->total;
    size_t rounded = possible ? round_up(size) : 0;
    sh_cardlock_lock(SH_CARD_LOCK_STATE);
    sh_cuda_reclaim(RECLAIM_EACH);
    sh_cuda_piece *p = capture ? sh_cuda_capture_take(capture, size) : NULL;
    bool again = p != NULL;
    if (!again && possible) {
        p = find(rounded);
    }
    if (!p) {
        sh_cardlock_unlock(SH_CARD_LOCK_STATE);
        if (get_more(rounded, size, &p) != SHOAL_OK) {
            return NULL;
        }
        sh_cardlock_lock(SH_CARD_LOCK_STATE);
    }
    give_out(p, size, capture, again);
    sh_cardlock_unlock(SH_CARD_LOCK_STATE);
    return (void *)(uintptr_t)p->address;
}

void sh_cuda_piece_take_back(sh_cuda_piece *p)
{
    if (p->ledger) {
        sh_cuda_lend(p);
    } else if (p->given) {
        p->state = SH_CUDA_LENT;
    } else {
        release(p);
    }
}

/* Returns whether it was pinned memory, which the caller gives back to the driver. */
static bool free_piece(const void *data)
{
    bool pinned = false;
    sh_cardlock_lock(SH_CARD_LOCK_STATE);
    sh_cuda_piece *p = sh_cuda_piece_at(data);
    SH_INVARIANT(p != NULL);
    sh_gpu.asked -= p->asked;
    p->asked = 0;
    if (!sh_cuda_capture_keep(p)) { /* else until the graph is destroyed */
        pinned = !p->granule;
        if (pinned) {
            sh_cuda_piece_forget(p);
        } else {
            sh_cuda_piece_take_back(p);
        }
    }
    sh_cardlock_unlock(SH_CARD_LOCK_STATE);
    return pinned;
}

void sh_cuda_free(void *data, size_t size)
{
    (void)size;
    if (data && sh_cuda_is_ours()) { /* the GPU memory of a parent is not the child's to free */
        (void)free_piece(data);
    }
}

void *sh_cuda_alloc_pinned(size_t size)
{
    void *data = NULL;
    if (sh_cuda_check() != SHOAL_OK) {
        return NULL;
    }
    int mode = sh_cuda_relax();
    shoal_err err = sh_cuda_result("cannot pin host memory", sh_cu.cuMemAllocHost(&data, size > 0 ? size : 1));
    sh_cuda_restrict(mode);
    if (err != SHOAL_OK) {
        return NULL;
    }
    sh_cuda_capture *capture = sh_cuda_capturing();
    sh_cardlock_lock(SH_CARD_LOCK_STATE);
    sh_cuda_piece *p = new_piece(NULL, (sh_cu_address)(uintptr_t)data, size);
    if (p) {
        p->state = SH_CUDA_USED;
        give_out(p, 0, capture, false);
    }
    sh_cardlock_unlock(SH_CARD_LOCK_STATE);
    if (!p) {
        sh_cuda_pinned_drop(data);
    }
    return p ? data : NULL;
}

/* A child of fork cannot free what its parent pinned, nor a process whose context is gone: the memory goes with the
 * process. */
void sh_cuda_free_pinned(void *data, size_t size)
{
    (void)size;
    sh_cleanup_begin();
    if (data && sh_cuda_check() == SHOAL_OK && free_piece(data)) {
        sh_cuda_pinned_drop(data);
    }
    sh_cleanup_end();
}

shoal_err sh_cuda_memory_numbers_now(sh_cuda_memory_numbers *out_numbers)
{
    size_t free_bytes = 0, total = 0;
    SH_TRY(sh_cuda_result("cannot ask for the GPU's free memory", sh_cu.cuMemGetInfo(&free_bytes, &total)));
    sh_cardlock_lock(SH_CARD_LOCK_STATE);
    *out_numbers = (sh_cuda_memory_numbers){sh_gpu.asked, sh_gpu.used, sh_gpu.held, free_bytes, total};
    sh_cardlock_unlock(SH_CARD_LOCK_STATE);
    return SHOAL_OK;
}

/* ---- the invariants ---- */

bool sh_cuda_memory_valid(void)
{
    size_t held = 0, used = 0, asked = 0;
    bool valid = true;
    sh_cardlock_lock(SH_CARD_LOCK_STATE);
    for (const sh_cuda_granule *g = sh_gpu.granules; g; g = g->next) {
        sh_cu_address end = g->address;
        for (const sh_cuda_piece *p = g->first; p; p = p->after) {
            valid = valid && p->address == end && (!p->after || p->after->before == p);
            end += p->size;
            used += p->state == SH_CUDA_FREE ? 0 : p->size;
            asked += p->asked;
        }
        valid = valid && (!g->first || end == g->address + g->size);
        held += g->first ? g->size : 0;
    }
    valid = valid && held == sh_gpu.held && used == sh_gpu.used && asked == sh_gpu.asked;
    sh_cardlock_unlock(SH_CARD_LOCK_STATE);
    return valid;
}
