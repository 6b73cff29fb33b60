/* Pieces between processes: lending this process's, mapping others'. cuda_share.h describes it. */
#include "device/cuda_share.h"

#include "base/error.h"
#include "shm/block.h"
#include "shm/card_lock.h"
#include "shm/card_store.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- lending ---- */

/* Under SH_CARD_LOCK_STATE, like all functions here that say nothing else. */
static bool is_shared(const sh_cuda_granule *g)
{
    return g->ledger && !sh_block_is_lost(g->ledger);
}

/* Puts a granule into the store. Without a lock. */
static shoal_err put_into_store(const sh_cuda_granule *g, shoal_block **out_ledger)
{
    int fd = -1, mode = sh_cuda_relax();
    shoal_err err = sh_cuda_result("cannot share GPU memory",
                                   sh_cu.cuMemExportToShareableHandle(&fd, g->memory, SH_CU_HANDLE_FD, 0));
    sh_cuda_restrict(mode);
    if (err != SHOAL_OK) {
        return err;
    }
    sh_granule_info info = {.size = g->size};
    memcpy(info.uuid, sh_cuda_the_card()->uuid, SH_UUID_BYTES);
    err = sh_granule_create(&info, fd, out_ledger);
    close(fd);
    return err;
}

/* Without a lock: if a stopped process has that of the store, only those that share wait for it. The caller uses a
 * piece of the granule, so it stays. If two threads do this at the same time, the granule is in the store twice for a
 * moment, and the second one drops its own entry. */
static shoal_err share_granule(sh_cuda_granule *g)
{
    shoal_block *ledger = NULL;
    shoal_err err = put_into_store(g, &ledger);
    sh_cardlock_lock(SH_CARD_LOCK_STATE);
    if (is_shared(g)) {
        err = SHOAL_OK;
    } else if (err == SHOAL_OK) {
        g->ledger = ledger;
        g->id = shoal_block_id(ledger);
        ledger = NULL;
    }
    sh_cuda_memory_tell(); /* this process may have been in no world when it allocated */
    sh_cardlock_unlock(SH_CARD_LOCK_STATE);
    sh_block_release(ledger);
    return err;
}

/* Releases the lock to share the granule. */
static shoal_err share_piece(sh_cuda_piece *p, size_t size)
{
    if (!p->ledger && !is_shared(p->granule)) {
        sh_cardlock_unlock(SH_CARD_LOCK_STATE);
        shoal_err err = share_granule(p->granule);
        sh_cardlock_lock(SH_CARD_LOCK_STATE);
        SH_TRY(err);
    }
    return p->ledger
               ? SHOAL_OK
               : sh_piece_create(p->granule->ledger, p->address - p->granule->address, size > 0 ? size : 1, &p->ledger);
}

shoal_err sh_cuda_share(void *data, size_t size, shoal_block **out_piece)
{
    SH_TRY(sh_cuda_check());
    sh_cuda_order_begin();
    sh_cardlock_lock(SH_CARD_LOCK_STATE);
    sh_cuda_piece *p = sh_cuda_piece_at(data);
    shoal_err err = p && p->granule && size <= p->size
                        ? share_piece(p, size)
                        : sh_fail(SHOAL_EINVAL, "this GPU memory was not allocated by Shoal: clone the tensor first");
    if (err == SHOAL_OK) {
        *out_piece = sh_block_retain(p->ledger);
    }
    sh_cardlock_unlock(SH_CARD_LOCK_STATE);
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
    p->prev = sh_gpu.lent_last;
    *(sh_gpu.lent_last ? &sh_gpu.lent_last->next : &sh_gpu.lent_first) = p;
    sh_gpu.lent_last = p;
}

static void unlink_lent(sh_cuda_piece *p)
{
    *(p->prev ? &p->prev->next : &sh_gpu.lent_first) = p->next;
    *(p->next ? &p->next->prev : &sh_gpu.lent_last) = p->prev;
    p->next = p->prev = NULL;
}

void sh_cuda_reclaim(size_t most)
{
    sh_cuda_piece *last = sh_gpu.lent_last;
    for (size_t i = 0; sh_gpu.lent_first && i < most; i++) {
        sh_cuda_piece *p = sh_gpu.lent_first;
        unlink_lent(p);
        sh_cuda_lend(p); /* free, or again at the end */
        if (p == last) {
            break;
        }
    }
}

/* ---- mapping ---- */

/* Takes granules that others made and no longer exist out of the list, or all that others made. Returns them. Nothing
 * of this process uses the dead ones: it would hold a piece, and so the granule. */
static sh_cuda_granule *take_imports(bool all)
{
    sh_cuda_granule *taken = NULL;
    sh_granule_info info;
    for (sh_cuda_granule **place = &sh_gpu.granules; *place;) {
        sh_cuda_granule *g = *place;
        if (g->first || (!all && sh_granule_look(g->id, &info) && info.serial == g->serial)) {
            place = &g->next;
            continue;
        }
        *place = g->next;
        g->next = taken;
        taken = g;
    }
    return taken;
}

/* Unmaps granules without a lock. They count as imports until the driver has done it. */
static void drop_imports(sh_cuda_granule *list)
{
    uint32_t count = 0;
    for (const sh_cuda_granule *g = list; g; g = g->next) {
        count++;
    }
    (void)sh_cuda_granules_drop(list);
    (void)sh_sub_acq_rel(&sh_gpu.imports, count);
}

void sh_cuda_imports_tidy(void)
{
    sh_cuda_granule *dead = NULL;
    uint64_t died = sh_granules_died();
    if (!sh_cuda_imports_exist() || died == sh_load_relaxed(&sh_gpu.died)) {
        return;
    }
    sh_cardlock_lock(SH_CARD_LOCK_STATE);
    if (sh_enter_held()) {
        dead = take_imports(false);
        sh_leave();
        sh_store_relaxed(&sh_gpu.died, died);
    }
    sh_cardlock_unlock(SH_CARD_LOCK_STATE);
    drop_imports(dead);
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

/* Returns the granule of a piece, and puts it first: the next piece is probably in the same one. NULL if it is not
 * mapped. */
static sh_cuda_granule *find_granule(const sh_piece *piece)
{
    sh_cuda_granule **place = &sh_gpu.granules, *g;
    while ((g = *place) && (g->id != piece->granule || (g->first ? !is_shared(g) : g->serial != piece->serial))) {
        place = &g->next;
    }
    if (g) {
        *place = g->next;
        g->next = sh_gpu.granules;
        sh_gpu.granules = g;
    }
    return g;
}

static bool find_address(const sh_piece *piece, void **out_data)
{
    sh_cardlock_lock(SH_CARD_LOCK_STATE);
    const sh_cuda_granule *g = find_granule(piece);
    if (g) {
        *out_data = (void *)(uintptr_t)(g->address + piece->offset);
    }
    sh_cardlock_unlock(SH_CARD_LOCK_STATE);
    return g != NULL;
}

/* Under SH_CARD_LOCK_DRIVER, so that a granule is mapped once. */
static shoal_err import(const sh_piece *piece, void **out_data)
{
    sh_granule_info info;
    sh_cuda_granule *g;
    int fd = -1;
    if (find_address(piece, out_data)) {
        return SHOAL_OK; /* another thread came first */
    }
    SH_TRY(look_at_granule(piece, &info));
    SH_TRY(sh_granule_fd(piece->granule, &fd));
    shoal_err err = sh_cuda_granule_import(fd, info.size, &g);
    close(fd);
    SH_TRY(err);
    g->id = piece->granule;
    g->serial = piece->serial;
    (void)sh_add_acq_rel(&sh_gpu.imports, 1);
    sh_cardlock_lock(SH_CARD_LOCK_STATE);
    g->next = sh_gpu.granules;
    sh_gpu.granules = g;
    sh_cardlock_unlock(SH_CARD_LOCK_STATE);
    *out_data = (void *)(uintptr_t)(g->address + piece->offset);
    return SHOAL_OK;
}

shoal_err sh_cuda_open(const sh_piece *piece, void **out_data)
{
    if (!sh_cuda_get()) {
        return shoal_last_error();
    }
    sh_cuda_order_begin();
    sh_cuda_imports_tidy();
    if (find_address(piece, out_data)) {
        return SHOAL_OK;
    }
    sh_cardlock_lock(SH_CARD_LOCK_DRIVER);
    shoal_err err = import(piece, out_data);
    sh_cardlock_unlock(SH_CARD_LOCK_DRIVER);
    sh_cuda_service_begin();
    return err;
}

bool sh_cuda_imports_exist(void)
{
    return sh_load_acquire(&sh_gpu.imports) != 0;
}

/* ---- leaving a world ---- */

/* What others hold of this process's memory cannot come back: this process would not learn of it. A piece that is in
 * use here stays so until it is freed: its tensor can no longer be used, but another library may have the memory
 * (DLPack). */
static void forget_ledger(sh_cuda_piece *p)
{
    if (p->ledger) {
        p->given =
            p->given || !sh_block_is_sole_holder(p->ledger); /* it may have been shared in another world before */
        sh_block_release(p->ledger);
        p->ledger = NULL;
        p->next = p->prev = NULL;
    }
}

void sh_cuda_share_leave(void)
{
    sh_cardlock_lock(SH_CARD_LOCK_STATE);
    sh_cuda_reclaim(SIZE_MAX);
    for (sh_cuda_granule *g = sh_gpu.granules; g; g = g->next) {
        for (sh_cuda_piece *p = g->first; p; p = p->after) {
            forget_ledger(p);
        }
        sh_block_release(g->ledger);
        g->ledger = NULL;
        g->id = g->first ? 0 : g->id;
    }
    sh_gpu.lent_first = sh_gpu.lent_last = NULL;
    sh_cuda_granule *imports = take_imports(true);
    sh_store_relaxed(&sh_gpu.died, 0); /* the next world counts anew */
    sh_cardlock_unlock(SH_CARD_LOCK_STATE);
    (void)sh_cuda_memory_trim(); /* the processes of this world cannot ask for it any more */
    sh_count_up(&sh_gpu.worlds_left);
    drop_imports(imports);
}
