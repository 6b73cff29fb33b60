/* Pieces between processes: lending this process's, mapping others'. cuda_share.h describes it. */
#include "device/cuda_share.h"

#include "base/error.h"
#include "shm/block.h"
#include "shm/card_lock.h"
#include "shm/card_store.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Granules of other processes that this one has mapped. */
typedef struct import {
    struct import *next;
    uint64_t granule, serial;
    sh_cu_address address;
    size_t size;
    sh_cu_memory memory;
} import;

static struct {
    import *list;
    uint64_t died; /* sh_granules_died when the list was last checked */
} imports;

static sh_a64 worlds_left; /* counts them */

/* Pieces that were freed here while others held them, the oldest first. Under the allocator's lock. */
static struct {
    sh_cuda_piece *first, *last;
} lent;

/* ---- lending ---- */

static bool is_shared(const sh_cuda_granule *g)
{
    return g->ledger && !sh_block_is_lost(g->ledger);
}

/* Under SH_CARD_LOCK_EXPORT. */
static shoal_err put_into_store(sh_cuda_granule *g)
{
    int fd = -1;
    shoal_block *ledger = NULL;
    int mode = sh_cuda_relax();
    shoal_err err = sh_cuda_result("cannot share GPU memory",
                                   sh_cu.cuMemExportToShareableHandle(&fd, g->memory, SH_CU_HANDLE_FD, 0));
    sh_cuda_restrict(mode);
    if (err != SHOAL_OK) {
        return err;
    }
    sh_granule_info info = {.size = g->size};
    memcpy(info.uuid, sh_cuda_the_card()->uuid, SH_UUID_BYTES);
    err = sh_granule_create(&info, fd, &ledger);
    close(fd);
    sh_cuda_memory_lock();
    if (err == SHOAL_OK) {
        g->ledger = ledger;
    }
    sh_cuda_memory_tell(); /* this process may have been in no world when it allocated */
    sh_cuda_memory_unlock();
    return err;
}

/* Without the allocator's lock: if a stopped process has that of the store, only who shares waits for it. The caller uses a
 * piece of the granule, so it stays. */
static shoal_err share_granule(sh_cuda_granule *g)
{
    sh_cardlock_lock(SH_CARD_LOCK_EXPORT);
    shoal_err err = is_shared(g) ? SHOAL_OK : put_into_store(g);
    sh_cardlock_unlock(SH_CARD_LOCK_EXPORT);
    return err;
}

/* Under the allocator's lock, which it lets go to share the granule. */
static shoal_err share_piece(sh_cuda_piece *p, size_t size)
{
    shoal_err err = SHOAL_OK;
    if (!p->ledger && !is_shared(p->granule)) {
        sh_cuda_memory_unlock();
        err = share_granule(p->granule);
        sh_cuda_memory_lock();
    }
    if (err == SHOAL_OK && !p->ledger) {
        err = sh_piece_create(p->granule->ledger, p->address - p->granule->address, size > 0 ? size : 1, &p->ledger);
    }
    return err;
}

shoal_err sh_cuda_share(void *data, size_t size, shoal_block **out_piece)
{
    shoal_err err = sh_cuda_check();
    if (err != SHOAL_OK) {
        return err;
    }
    sh_cuda_order_begin();
    sh_cuda_memory_lock();
    sh_cuda_piece *p = sh_cuda_piece_at(data);
    err = p && size <= p->size
              ? share_piece(p, size)
              : sh_fail(SHOAL_EINVAL, "this GPU memory was not allocated by Shoal: clone the tensor first");
    if (err == SHOAL_OK) {
        *out_piece = sh_block_retain(p->ledger);
    }
    sh_cuda_memory_unlock();
    return err;
}

/* Ends a loan, if nobody else holds the piece. */
static bool is_back(sh_cuda_piece *p)
{
    if (!sh_block_is_sole_holder(p->ledger)) {
        return false;
    }
    sh_block_release(p->ledger);
    p->ledger = NULL;
    return true;
}

void sh_cuda_lend(sh_cuda_piece *p)
{
    if (is_back(p)) {
        sh_cuda_piece_take_back(p);
        return;
    }
    p->state = SH_CUDA_LENT;
    p->next = NULL;
    p->prev = lent.last;
    *(lent.last ? &lent.last->next : &lent.first) = p;
    lent.last = p;
}

static void unlink_lent(sh_cuda_piece *p)
{
    *(p->prev ? &p->prev->next : &lent.first) = p->next;
    *(p->next ? &p->next->prev : &lent.last) = p->prev;
    p->next = p->prev = NULL;
}

void sh_cuda_reclaim(size_t most)
{
    sh_cuda_piece *last = lent.last;
    for (size_t i = 0; lent.first && i < most; i++) {
        sh_cuda_piece *p = lent.first;
        unlink_lent(p);
        sh_cuda_lend(p); /* free, or again at the end */
        if (p == last) {
            break;
        }
    }
}

void sh_cuda_granule_unshare(sh_cuda_granule *granule)
{
    sh_block_release(granule->ledger);
    granule->ledger = NULL;
}

/* ---- mapping ---- */

static void drop_import(import *m)
{
    int mode = sh_cuda_relax();
    sh_cuda_unmap(m->address, m->size);
    (void)sh_cu.cuMemRelease(m->memory);
    sh_cuda_restrict(mode);
    free(m);
}

/* Under the lock of imports: unmaps granules that no longer exist. Nothing of this process uses them: it would hold a
 * piece, and so the granule. */
static void drop_dead(void)
{
    uint64_t died = sh_granules_died();
    if (died == imports.died || !sh_enter_held()) {
        return;
    }
    import *dead = NULL;
    for (import **m = &imports.list; *m;) {
        import *here = *m;
        sh_granule_info info;
        if (sh_granule_look(here->granule, &info) && info.serial == here->serial) {
            m = &here->next;
            continue;
        }
        *m = here->next;
        here->next = dead;
        dead = here;
    }
    sh_leave();
    imports.died = died;
    for (import *m = dead, *next; m; m = next) {
        next = m->next;
        drop_import(m);
    }
}

void sh_cuda_imports_tidy(void)
{
    sh_cardlock_lock(SH_CARD_LOCK_IMPORTS);
    if (imports.list) {
        drop_dead();
    }
    sh_cardlock_unlock(SH_CARD_LOCK_IMPORTS);
}

static shoal_err import_memory(import *m, int fd)
{
    int mode = sh_cuda_relax();
    shoal_err err =
        sh_cuda_result("cannot open GPU memory of another process",
                       sh_cu.cuMemImportFromShareableHandle(&m->memory, (void *)(intptr_t)fd, SH_CU_HANDLE_FD));
    if (err == SHOAL_OK) {
        err = sh_cuda_map(m->memory, m->size, &m->address);
        if (err != SHOAL_OK) {
            (void)sh_cu.cuMemRelease(m->memory);
        }
    }
    sh_cuda_restrict(mode);
    return err;
}

/* Checks that the granule is of this card. The caller holds a piece of it, so it lives. */
static shoal_err look_at_granule(const sh_piece *piece, sh_granule_info *out_info)
{
    if (!sh_enter_held()) {
        return shoal_last_error();
    }
    bool found = sh_granule_look(piece->granule, out_info) && out_info->serial == piece->serial;
    sh_leave();
    if (!found) {
        return sh_fail(SHOAL_ECORRUPT, "a GPU tensor refers to GPU memory that does not exist");
    }
    const sh_cuda_card *card = sh_cuda_the_card();
    if (memcmp(out_info->uuid, card->uuid, SH_UUID_BYTES) != 0) {
        char theirs[48], ours[48];
        return sh_fail(SHOAL_EINVAL, "the tensor is on GPU %s, but this process uses GPU %s (%s)",
                       sh_cuda_uuid_text(out_info->uuid, theirs), sh_cuda_uuid_text(card->uuid, ours), card->name);
    }
    return SHOAL_OK;
}

static shoal_err map_granule(const sh_piece *piece, import **out_import)
{
    sh_granule_info info;
    int fd = -1;
    shoal_err err = look_at_granule(piece, &info);
    if (err == SHOAL_OK) {
        err = sh_granule_fd(piece->granule, &fd);
    }
    if (err != SHOAL_OK) {
        return err;
    }
    import *fresh = malloc(sizeof *fresh);
    if (!fresh) {
        err = sh_fail(SHOAL_ENOMEM, "no memory to describe GPU memory of another process");
    } else {
        *fresh = (import){.granule = piece->granule, .serial = piece->serial, .size = info.size};
        err = import_memory(fresh, fd);
    }
    close(fd);
    if (err != SHOAL_OK) {
        free(fresh);
        return err;
    }
    *out_import = fresh;
    sh_cuda_answer_begin();
    return SHOAL_OK;
}

/* Finds a granule among this process's own, which have no import. */
static bool find_own(const sh_piece *piece, sh_cu_address *out_address)
{
    sh_cuda_memory_lock();
    const sh_cuda_granule *g = sh_cuda_granules();
    while (g && (!g->ledger || sh_block_is_lost(g->ledger) || shoal_block_id(g->ledger) != piece->granule)) {
        g = g->next;
    }
    if (g) {
        *out_address = g->address;
    }
    sh_cuda_memory_unlock();
    return g != NULL;
}

/* Under the lock of imports: finds a granule of another process, and puts it first: the next piece is probably in the
 * same one. */
static import *find_import(const sh_piece *piece)
{
    import **place = &imports.list, *m;
    while ((m = *place) && (m->granule != piece->granule || m->serial != piece->serial)) {
        place = &m->next;
    }
    if (m && m != imports.list) { /* the list is never empty in between: the end of the process may look at it */
        *place = m->next;
        m->next = imports.list;
        imports.list = m;
    }
    return m;
}

/* Two threads may come here for the same granule. */
static shoal_err map_once(const sh_piece *piece, sh_cu_address *out_address)
{
    shoal_err err = SHOAL_OK;
    sh_cardlock_lock(SH_CARD_LOCK_IMPORTS);
    import *m = find_import(piece);
    if (!m) {
        err = map_granule(piece, &m);
        if (err == SHOAL_OK) {
            m->next = imports.list;
            imports.list = m;
        }
    }
    if (err == SHOAL_OK) {
        *out_address = m->address;
    }
    sh_cardlock_unlock(SH_CARD_LOCK_IMPORTS);
    return err;
}

/* Takes the allocator's lock only after it has released that of imports, which comes after it. */
shoal_err sh_cuda_open(const sh_piece *piece, void **out_data)
{
    shoal_err err = sh_cuda_get() ? SHOAL_OK : shoal_last_error();
    if (err != SHOAL_OK) {
        return err;
    }
    sh_cuda_order_begin();
    sh_cu_address address = 0;
    sh_cardlock_lock(SH_CARD_LOCK_IMPORTS);
    drop_dead();
    const import *m = find_import(piece);
    address = m ? m->address : 0;
    sh_cardlock_unlock(SH_CARD_LOCK_IMPORTS);
    if (!m && !find_own(piece, &address)) {
        err = map_once(piece, &address);
    }
    if (err == SHOAL_OK) {
        *out_data = (void *)(uintptr_t)(address + piece->offset);
    }
    return err;
}

bool sh_cuda_imports_exist(void)
{
    return imports.list != NULL;
}

/* ---- leaving a world ---- */

uint64_t sh_cuda_worlds_left(void)
{
    return sh_load_relaxed(&worlds_left);
}

bool sh_cuda_has_imports(void)
{
    sh_cardlock_lock(SH_CARD_LOCK_IMPORTS);
    bool has = sh_cuda_imports_exist();
    sh_cardlock_unlock(SH_CARD_LOCK_IMPORTS);
    return has;
}

/* What others hold of this process's memory cannot come back: this process would not learn of it. A piece that is in
 * use here stays so until it is freed: its tensor can no longer be used, but another library may have the memory
 * (DLPack). */
static void forget_piece(sh_cuda_piece *p)
{
    if (!p->ledger) {
        return;
    }
    p->given = p->given || !sh_block_is_sole_holder(p->ledger); /* it may have been shared in another world before */
    sh_block_release(p->ledger);
    p->ledger = NULL;
    if (p->state == SH_CUDA_LENT) {
        p->next = p->prev = NULL;
        sh_cuda_piece_give(p);
    }
}

void sh_cuda_share_leave(void)
{
    sh_cuda_memory_lock();
    sh_cuda_reclaim(SIZE_MAX);
    sh_cuda_pieces_visit(forget_piece);
    lent.first = lent.last = NULL;
    for (sh_cuda_granule *g = sh_cuda_granules(); g; g = g->next) {
        if (g->ledger) {
            sh_cuda_granule_unshare(g);
        }
    }
    sh_cuda_memory_unlock();
    (void)sh_cuda_memory_trim(); /* the processes of this world cannot ask for it any more */
    sh_cardlock_lock(SH_CARD_LOCK_IMPORTS);
    sh_store_relaxed(&worlds_left, sh_load_relaxed(&worlds_left) + 1); /* no other thread is in a call of the library */
    while (imports.list) {
        import *m = imports.list;
        imports.list = m->next;
        drop_import(m);
    }
    sh_cardlock_unlock(SH_CARD_LOCK_IMPORTS);
}
