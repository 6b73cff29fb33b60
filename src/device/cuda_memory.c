/* The allocator of card memory. cuda_memory.h describes it. */
#include "device/cuda_capture.h"

#include "base/error.h"
#include "base/fork.h"
#include "device/cuda_share.h"
#include "shm/card_lock.h"
#include "shm/card_store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEP ((size_t)256) /* sizes and addresses of small pieces are multiples of it */
#define SMALL_LIMIT ((size_t)256 << 10)
#define LARGE_STEP ((size_t)16 << 10) /* of large pieces */
#define SLAB_LEAST ((size_t)64 << 10)
#define SLAB_PIECES 16 /* at least so many pieces a slab */
#define CLASSES 36     /* of small pieces: up to 1 KiB in steps, then four a doubling */
#define RECLAIM_EACH 2 /* lent pieces looked at by each allocation */
#define ASK_ROUNDS 2   /* what one process gives back may be what another one can give back only then */
#define ASK_LIMIT SHOAL_MS(1000)
#define BINS 168 /* of large free pieces: four a doubling */

typedef struct sh_cuda_slab {
    struct sh_cuda_slab *next, *prev; /* among all slabs */
    sh_cuda_piece *whole;
    unsigned klass;
    unsigned count, used; /* pieces, and those that are not free */
    unsigned given;       /* of the used ones */
    sh_cuda_piece pieces[];
} sh_cuda_slab;

static struct {
    sh_cuda_granule *granules;
    unsigned granule_count;
    sh_cuda_slab *slabs;
    sh_cuda_piece *classes[CLASSES];
    sh_cuda_piece *bins[BINS];
    sh_cuda_piece **table; /* pieces by address */
    size_t table_size;     /* a power of two */
    size_t table_count;
    size_t asked, used, held;
} memory;

void sh_cuda_memory_lock(void)
{
    sh_cardlock_lock(SH_CARD_LOCK_MEMORY);
}

void sh_cuda_memory_unlock(void)
{
    sh_cardlock_unlock(SH_CARD_LOCK_MEMORY);
}

void sh_cuda_memory_tell(void)
{
    sh_granules_tell(memory.held, memory.used);
}

/* ---- sizes ---- */

/* Returns the class of a small size and the bytes of its pieces. */
static unsigned class_of(size_t size, size_t *out_bytes)
{
    size_t steps = size > STEP ? (size + STEP - 1) / STEP : 1;
    if (steps <= 4) {
        *out_bytes = steps * STEP;
        return (unsigned)steps - 1;
    }
    unsigned log = 63u - (unsigned)__builtin_clzll(steps - 1); /* 2^log < steps <= 2^(log+1) */
    size_t quarter = (size_t)1 << (log - 2);
    unsigned part = (unsigned)((steps - 1 - ((size_t)1 << log)) / quarter);
    *out_bytes = (((size_t)1 << log) + (part + 1) * quarter) * STEP;
    return 4 + (log - 2) * 4 + part;
}

/* Returns the bin of a free piece of this size: every piece in a higher bin is larger. */
static unsigned bin_of(size_t size)
{
    unsigned log = 63u - (unsigned)__builtin_clzll(size);
    return (log - 12) * 4 + (unsigned)((size >> (log - 2)) & 3);
}

/* The next granule: they grow with their number, because a world has room for 253 of them, of all its processes, and
 * because a process that joins maps each of them. */
static size_t next_granule_size(void)
{
    static const size_t sizes[] = {(size_t)32 << 20, (size_t)128 << 20, (size_t)1 << 30, (size_t)4 << 30};
    unsigned step = memory.granule_count / 8;
    return sizes[step < 4 ? step : 3];
}

/* ---- lists, and the table ---- */

static void list_push(sh_cuda_piece **list, sh_cuda_piece *p)
{
    p->prev = NULL;
    p->next = *list;
    if (*list) {
        (*list)->prev = p;
    }
    *list = p;
}

static void list_remove(sh_cuda_piece **list, sh_cuda_piece *p)
{
    *(p->prev ? &p->prev->next : list) = p->next;
    if (p->next) {
        p->next->prev = p->prev;
    }
    p->next = p->prev = NULL;
}

static sh_cuda_piece **bucket_of(sh_cu_address address)
{
    return &memory.table[((address >> 8) * UINT64_C(0x9e3779b97f4a7c15) >> 32) & (memory.table_size - 1)];
}

static bool table_reserve(size_t more)
{
    if (memory.table_count + more <= memory.table_size) {
        return true;
    }
    size_t old_size = memory.table_size, size = old_size > 0 ? old_size : 256;
    while (size < memory.table_count + more) {
        size *= 2;
    }
    sh_cuda_piece **old = memory.table, **fresh = calloc(size, sizeof *fresh);
    if (!fresh) {
        return false;
    }
    memory.table = fresh;
    memory.table_size = size;
    for (size_t i = 0; i < old_size; i++) {
        for (sh_cuda_piece *p = old[i], *next; p; p = next) {
            next = p->hash_next;
            sh_cuda_piece **b = bucket_of(p->address);
            p->hash_next = *b;
            *b = p;
        }
    }
    free(old);
    return true;
}

static void table_add(sh_cuda_piece *p)
{
    sh_cuda_piece **b = bucket_of(p->address);
    p->hash_next = *b;
    *b = p;
    memory.table_count++;
}

static void table_remove(sh_cuda_piece *p)
{
    sh_cuda_piece **b = bucket_of(p->address);
    while (*b != p) {
        b = &(*b)->hash_next;
    }
    *b = p->hash_next;
    memory.table_count--;
}

sh_cuda_piece *sh_cuda_piece_at(const void *data)
{
    sh_cu_address address = (sh_cu_address)(uintptr_t)data;
    sh_cuda_piece *p = memory.table_size > 0 ? *bucket_of(address) : NULL;
    while (p && (p->address != address || p->state != SH_CUDA_USED)) {
        p = p->hash_next;
    }
    return p;
}

/* ---- large pieces ---- */

static void free_large(sh_cuda_piece *p)
{
    p->state = SH_CUDA_FREE;
    list_push(&memory.bins[bin_of(p->size)], p);
}

/* Makes one piece of two neighbours: the second goes. */
static void merge(sh_cuda_piece *p, sh_cuda_piece *second)
{
    p->size += second->size;
    p->after = second->after;
    if (second->after) {
        second->after->before = p;
    }
    table_remove(second);
    free(second);
}

static void release_large(sh_cuda_piece *p)
{
    memory.used -= p->size;
    if (p->after && p->after->state == SH_CUDA_FREE) {
        list_remove(&memory.bins[bin_of(p->after->size)], p->after);
        merge(p, p->after);
    }
    if (p->before && p->before->state == SH_CUDA_FREE) {
        p = p->before;
        list_remove(&memory.bins[bin_of(p->size)], p);
        merge(p, p->after);
    }
    free_large(p);
}

/* Returns the smallest free piece of at least this size, or NULL. */
static sh_cuda_piece *best_fit(size_t size)
{
    for (unsigned bin = bin_of(size); bin < BINS; bin++) {
        sh_cuda_piece *best = NULL;
        for (sh_cuda_piece *p = memory.bins[bin]; p; p = p->next) {
            if (p->size >= size && (!best || p->size < best->size)) {
                best = p;
            }
        }
        if (best) {
            return best;
        }
    }
    return NULL;
}

static sh_cuda_piece *new_piece(sh_cuda_granule *granule, sh_cu_address address, size_t size)
{
    sh_cuda_piece *p = table_reserve(1) ? calloc(1, sizeof *p) : NULL;
    if (!p) {
        (void)sh_fail(SHOAL_ENOMEM, "no memory to describe %zu bytes of GPU memory", size);
        return NULL;
    }
    p->granule = granule;
    p->address = address;
    p->size = size;
    table_add(p);
    return p;
}

/* Takes the first bytes of a free piece; the rest stays free. */
static sh_cuda_piece *take_large(sh_cuda_piece *p, size_t size)
{
    list_remove(&memory.bins[bin_of(p->size)], p);
    sh_cuda_piece *rest = p->size > size ? new_piece(p->granule, p->address + size, p->size - size) : NULL;
    if (rest) { /* without memory to describe it, it stays with the piece */
        p->size = size;
        rest->before = p;
        rest->after = p->after;
        if (rest->after) {
            rest->after->before = rest;
        }
        p->after = rest;
        free_large(rest);
    }
    memory.used += p->size;
    p->state = SH_CUDA_USED;
    return p;
}

/* Adds a granule with room for size bytes. If the card has no room for a usual one, tries one that is just large
 * enough. */
static shoal_err grow(size_t size)
{
    size_t usual = next_granule_size();
    sh_cuda_granule *granule = NULL;
    shoal_err err = sh_cuda_granule_make(size > usual ? size : usual, &granule);
    if (err == SHOAL_ENOMEM && size < usual) {
        err = sh_cuda_granule_make(size, &granule);
    }
    if (err != SHOAL_OK) {
        return err;
    }
    sh_cuda_piece *p = new_piece(granule, granule->address, granule->size);
    if (!p) {
        sh_cuda_granule_drop(granule);
        return shoal_last_error();
    }
    granule->next = memory.granules;
    memory.granules = granule;
    memory.granule_count++;
    memory.held += granule->size;
    free_large(p);
    sh_cuda_memory_tell();
    sh_cuda_answer_begin();
    return SHOAL_OK;
}

/* ---- slabs ---- */

static void release_small(sh_cuda_piece *p)
{
    p->state = SH_CUDA_FREE;
    p->slab->used--;
    list_push(&memory.classes[p->slab->klass], p);
}

static sh_cuda_piece *find_large(size_t size);

/* Cuts a large piece into pieces of a class. Returns false with the error set if there is no memory. */
static bool add_slab(unsigned klass, size_t bytes)
{
    size_t size = bytes * SLAB_PIECES > SLAB_LEAST ? bytes * SLAB_PIECES : SLAB_LEAST;
    sh_cuda_piece *whole = find_large((size + LARGE_STEP - 1) / LARGE_STEP * LARGE_STEP);
    if (!whole) {
        return false;
    }
    unsigned count = (unsigned)(whole->size / bytes);
    sh_cuda_slab *s = table_reserve(count) ? calloc(1, sizeof *s + count * sizeof s->pieces[0]) : NULL;
    if (!s) {
        release_large(whole);
        (void)sh_fail(SHOAL_ENOMEM, "no memory to describe %zu bytes of GPU memory", size);
        return false;
    }
    whole->state = SH_CUDA_SLAB;
    whole->slab = s;
    table_remove(whole); /* its address is that of its first piece now */
    *s = (sh_cuda_slab){.next = memory.slabs, .whole = whole, .klass = klass, .count = count, .used = count};
    if (memory.slabs) {
        memory.slabs->prev = s;
    }
    memory.slabs = s;
    for (unsigned i = count; i-- > 0;) {
        sh_cuda_piece *p = &s->pieces[i];
        *p =
            (sh_cuda_piece){.address = whole->address + i * bytes, .size = bytes, .granule = whole->granule, .slab = s};
        table_add(p);
        release_small(p);
    }
    return true;
}

/* ---- when there is no memory ---- */

/* Returns the first large piece of a granule. */
static sh_cuda_piece *first_piece(const sh_cuda_granule *granule)
{
    sh_cuda_piece *p = *bucket_of(granule->address);
    while (p->address != granule->address) {
        p = p->hash_next;
    }
    return p->slab ? p->slab->whole : p;
}

/* Checks whether this process uses nothing of a granule. */
static bool is_unused(const sh_cuda_granule *granule)
{
    const sh_cuda_piece *p = first_piece(granule);
    while (p && (p->slab ? p->slab->used == p->slab->given : p->state == SH_CUDA_FREE || p->state == SH_CUDA_GIVEN)) {
        p = p->after;
    }
    return !p;
}

/* Forgets the small pieces of a slab, and the slab; its large piece stays, and is in the table again. */
static void forget_slab(sh_cuda_slab *s)
{
    for (unsigned i = 0; i < s->count; i++) {
        if (s->pieces[i].state == SH_CUDA_FREE) {
            list_remove(&memory.classes[s->klass], &s->pieces[i]);
        }
        table_remove(&s->pieces[i]);
    }
    *(s->prev ? &s->prev->next : &memory.slabs) = s->next;
    if (s->next) {
        s->next->prev = s->prev;
    }
    s->whole->slab = NULL;
    table_add(s->whole);
    free(s);
}

static void forget_granule(sh_cuda_granule *granule)
{
    for (sh_cuda_piece *p = first_piece(granule), *next; p; p = next) {
        next = p->after;
        if (p->slab) {
            forget_slab(p->slab);
        }
        if (p->state == SH_CUDA_FREE) {
            list_remove(&memory.bins[bin_of(p->size)], p);
        } else {
            memory.used -= p->size;
        }
        table_remove(p);
        free(p);
    }
    memory.granule_count--;
    memory.held -= granule->size;
}

/* Gives back empty slabs, and forgets unused granules. Returns these, as a list. */
static sh_cuda_granule *retire_unused(void)
{
    sh_cuda_reclaim(SIZE_MAX);
    for (sh_cuda_slab *s = memory.slabs, *next; s; s = next) {
        next = s->next;
        if (s->used == 0) {
            sh_cuda_piece *whole = s->whole;
            forget_slab(s);
            release_large(whole);
        }
    }
    sh_cuda_granule *retired = NULL;
    for (sh_cuda_granule **g = &memory.granules; *g;) {
        sh_cuda_granule *granule = *g;
        if (!is_unused(granule)) {
            g = &granule->next;
            continue;
        }
        *g = granule->next;
        forget_granule(granule);
        granule->next = retired;
        retired = granule;
    }
    sh_cuda_memory_tell();
    return retired;
}

/* Without the lock: what was freed may still be used by work before, and while the card does that, other threads of this
 * process allocate and free. A thread that finds the card full meanwhile waits here until the granules are freed. */
size_t sh_cuda_memory_trim(void)
{
    size_t bytes = 0;
    sh_cardlock_lock(SH_CARD_LOCK_TRIM);
    sh_cuda_memory_lock();
    sh_cuda_granule *retired = retire_unused();
    sh_cuda_memory_unlock();
    if (retired) {
        sh_cuda_order_drain();
    }
    for (sh_cuda_granule *g = retired, *next; g; g = next) {
        next = g->next;
        bytes += g->size;
        if (g->ledger) {
            sh_cuda_granule_unshare(g);
        }
        sh_cuda_granule_drop(g);
    }
    sh_cardlock_unlock(SH_CARD_LOCK_TRIM);
    return bytes;
}

/* If the card has room, another call of the driver failed, or malloc: a limit of addresses, say. Then its reason belongs to the
 * text. */
static void out_of_memory(size_t size)
{
    size_t free_bytes = 0, total = 0;
    char reason[200] = "";
    (void)sh_cu.cuMemGetInfo(&free_bytes, &total);
    if (free_bytes >= size) {
        snprintf(reason, sizeof reason, "; the last failure was: %s", shoal_last_error_text());
    }
    (void)sh_fail(SHOAL_ENOMEM,
                  "out of GPU memory: asked for %zu bytes; this process uses %zu of the %zu that it holds, and %zu of "
                  "the GPU's %zu are free%s",
                  size, memory.used, memory.held, free_bytes, total, reason);
}

static shoal_err grow_unless_fits(size_t size)
{
    sh_cuda_reclaim(SIZE_MAX);
    return best_fit(size) ? SHOAL_OK : grow(size);
}

/* The card is full: gives back what this process does not use, then asks all processes to do the same, and waits for
 * that; without the lock, which this process needs to answer. */
static shoal_err grow_after_trim(size_t size)
{
    sh_cuda_memory_unlock();
    sh_cuda_order_poll();
    (void)sh_cuda_memory_trim();
    sh_cardstore_sweep();
    sh_cuda_memory_lock();
    shoal_err err = grow_unless_fits(size);
    for (int round = 0; err == SHOAL_ENOMEM && round < ASK_ROUNDS; round++) {
        sh_cuda_memory_unlock();
        uint64_t request = sh_granules_ask();
        bool answered = request != 0 && sh_granules_await_answers(request, ASK_LIMIT);
        sh_cuda_memory_lock();
        err = grow_unless_fits(size);
        round = answered ? round : ASK_ROUNDS;
    }
    return err;
}

/* Returns a large piece, from what is there or from the driver; NULL with the error set. */
static sh_cuda_piece *find_large(size_t size)
{
    sh_cuda_piece *p = best_fit(size);
    if (!p) {
        shoal_err err = grow_unless_fits(size);
        err = err == SHOAL_ENOMEM ? grow_after_trim(size) : err;
        if (err == SHOAL_ENOMEM) {
            out_of_memory(size);
        }
        p = err == SHOAL_OK ? best_fit(size) : NULL;
    }
    return p ? take_large(p, size) : NULL;
}

/* ---- the calls ---- */

static sh_cuda_piece *find_small(size_t size)
{
    size_t bytes;
    unsigned klass = class_of(size, &bytes);
    if (!memory.classes[klass] && !add_slab(klass, bytes)) {
        return NULL;
    }
    sh_cuda_piece *p = memory.classes[klass];
    list_remove(&memory.classes[klass], p);
    p->state = SH_CUDA_USED;
    p->slab->used++;
    return p;
}

void *sh_cuda_alloc(size_t size)
{
    if (sh_cuda_check() != SHOAL_OK) {
        return NULL;
    }
    sh_cuda_memory_lock();
    sh_cuda_reclaim(RECLAIM_EACH);
    sh_cuda_capture *capture = sh_cuda_capturing();
    sh_cuda_piece *p = capture ? sh_cuda_capture_take(capture, size) : NULL;
    bool again = p != NULL;
    if (again) {
        /* of this capture, and free again in it */
    } else if (size <= SMALL_LIMIT) {
        p = find_small(size);
    } else if (size <= sh_cuda_the_card()->total) { /* else nobody's giving back would help */
        p = find_large((size + LARGE_STEP - 1) / LARGE_STEP * LARGE_STEP);
    } else {
        out_of_memory(size);
    }
    if (p) {
        p->asked = size;
        memory.asked += size;
        if (capture && !again) {
            sh_cuda_capture_add(capture, p);
        }
    }
    sh_cuda_memory_unlock();
    return p ? (void *)(uintptr_t)p->address : NULL;
}

static void return_piece(sh_cuda_piece *p)
{
    if (p->slab) {
        release_small(p);
    } else {
        release_large(p);
    }
}

void sh_cuda_piece_give(sh_cuda_piece *p)
{
    p->state = SH_CUDA_GIVEN;
    if (p->slab) {
        p->slab->given++;
    }
}

void sh_cuda_piece_take_back(sh_cuda_piece *p)
{
    if (p->ledger) {
        sh_cuda_lend(p);
    } else if (p->given) {
        sh_cuda_piece_give(p);
    } else {
        return_piece(p);
    }
}

sh_cuda_granule *sh_cuda_granules(void)
{
    return memory.granules;
}

void sh_cuda_pieces_visit(void (*visit)(sh_cuda_piece *piece))
{
    for (size_t i = 0; i < memory.table_size; i++) {
        for (sh_cuda_piece *p = memory.table[i]; p; p = p->hash_next) {
            visit(p);
        }
    }
}

void sh_cuda_free(void *data, size_t size)
{
    (void)size;
    if (!data || !sh_cuda_is_ours()) { /* the card's memory of a parent is not the child's to free */
        return;
    }
    sh_cuda_memory_lock();
    sh_cuda_piece *p = sh_cuda_piece_at(data);
    SH_INVARIANT(p != NULL);
    memory.asked -= p->asked;
    p->asked = 0;
    if (!sh_cuda_capture_keep(p)) { /* else until the graph is destroyed */
        sh_cuda_piece_take_back(p);
    }
    sh_cuda_memory_unlock();
}

shoal_err sh_cuda_memory_numbers_now(sh_cuda_memory_numbers *out_numbers)
{
    size_t free_bytes = 0, total = 0;
    shoal_err err = sh_cuda_result("cannot ask for the GPU's free memory", sh_cu.cuMemGetInfo(&free_bytes, &total));
    if (err == SHOAL_OK) {
        sh_cuda_memory_lock();
        *out_numbers = (sh_cuda_memory_numbers){memory.asked, memory.used, memory.held, free_bytes, total};
        sh_cuda_memory_unlock();
    }
    return err;
}

/* ---- the invariants ---- */

static bool granule_valid(const sh_cuda_granule *granule, size_t *used, size_t *asked)
{
    sh_cu_address end = granule->address;
    bool before_free = false, valid = true;
    for (const sh_cuda_piece *p = first_piece(granule); p; p = p->after) {
        bool is_free = p->state == SH_CUDA_FREE;
        valid = valid && p->address == end && !(is_free && before_free);
        end += p->size;
        before_free = is_free;
        *used += is_free ? 0 : p->size;
        *asked += p->asked;
        unsigned small_used = 0, small_given = 0;
        for (unsigned i = 0; p->slab && i < p->slab->count; i++) {
            small_used += p->slab->pieces[i].state != SH_CUDA_FREE;
            small_given += p->slab->pieces[i].state == SH_CUDA_GIVEN;
            *asked += p->slab->pieces[i].asked;
        }
        valid = valid && (!p->slab || (small_used == p->slab->used && small_given == p->slab->given));
    }
    return valid && end == granule->address + granule->size;
}

bool sh_cuda_memory_valid(void)
{
    sh_cuda_memory_lock();
    size_t held = 0, used = 0, asked = 0;
    bool valid = true;
    for (const sh_cuda_granule *g = memory.granules; g; g = g->next) {
        held += g->size;
        valid = granule_valid(g, &used, &asked) && valid;
    }
    valid = valid && held == memory.held && used == memory.used && asked == memory.asked;
    sh_cuda_memory_unlock();
    return valid;
}
