#include "shm/granule.h"

#include "base/clock.h"
#include "base/death.h"
#include "os/futex.h"
#include "shm/card_store.h"
#include "shm/kind.h"
#include "shm/slot.h"

#include <limits.h>
#include <string.h>

_Static_assert(sizeof((sh_granule_shm){0}.uuid) == SH_UUID_BYTES, "a granule has room for the UUID of its GPU");

/* ---- granules ---- */

/* Makes the block. death: it is the dead process's; recovery releases it, and the store knows nothing of it. */
static shoal_err make_granule(const sh_granule_info *info, shoal_block **out_granule)
{
    shoal_block *b = NULL;
    shoal_err err = sh_object_create(sh_class_of(sizeof(sh_granule_shm)), sizeof(sh_granule_shm), SH_KIND_GRANULE, &b);
    if (err != SHOAL_OK) {
        return err;
    }
    SH_DEATH("granule.create.made");
    sh_granule_shm *g = (sh_granule_shm *)b->data;
    uint64_t words[2];
    memcpy(words, info->uuid, sizeof words);
    sh_store_relaxed(&g->uuid[0], words[0]);
    sh_store_relaxed(&g->uuid[1], words[1]);
    sh_store_relaxed(&g->size, info->size);
    /* The release pairs with the acquire in sh_granule_look. */
    sh_store_release(&g->serial, sh_add_relaxed(&sh_the_world.header->store.serials, 1) + 1);
    SH_DEATH("granule.create.complete");
    *out_granule = b;
    return SHOAL_OK;
}

shoal_err sh_granule_create(const sh_granule_info *info, int fd, shoal_block **out_granule)
{
    shoal_block *b = NULL;
    if (info->size == 0 || fd < 0) {
        return sh_fail(SHOAL_EINVAL, "a granule of %llu bytes with fd %d", (unsigned long long)info->size, fd);
    }
    shoal_err err = make_granule(info, &b);
    if (err != SHOAL_OK) {
        return err;
    }
    err = sh_cardstore_add(b->id, fd);
    if (err != SHOAL_OK) {
        sh_block_release(b);
        return err;
    }
    SH_DEATH("granule.create.stored"); /* death: recovery releases the block, and its fd is swept */
    *out_granule = b;
    return SHOAL_OK;
}

bool sh_granule_look(uint64_t id, sh_granule_info *out_info)
{
    sh_found f;
    if (!sh_heap_find(id, &f) || f.kind != SH_KIND_GRANULE || f.size < sizeof(sh_granule_shm) ||
        sh_word_weight(sh_load_acquire(&f.meta->word)) == 0) {
        return false;
    }
    sh_granule_shm *g = (sh_granule_shm *)f.data;
    sh_granule_info info = {.serial = sh_load_acquire(&g->serial), .size = sh_load_relaxed(&g->size)};
    uint64_t words[2] = {sh_load_relaxed(&g->uuid[0]), sh_load_relaxed(&g->uuid[1])};
    memcpy(info.uuid, words, sizeof words);
    if (info.serial == 0 || info.size == 0) {
        return false;
    }
    *out_info = info;
    return true;
}

shoal_err sh_granule_fd(uint64_t id, int *out_fd)
{
    return sh_cardstore_fd(id, out_fd);
}

uint64_t sh_granules_died(void)
{
    return sh_attached() ? sh_load_acquire(&sh_the_world.header->store.died) : 0;
}

/* ---- requests ---- */

/* Checks whether a living process that answers requests has not answered this one. One that is dead and not yet
 * recovered counts, until it is. */
static bool is_unanswered(uint64_t number)
{
    uint32_t used = sh_load_acquire(&sh_the_world.header->slots_used);
    for (uint32_t i = 0; i < used && i < SH_SLOTS; i++) {
        uint64_t answered = sh_load_acquire(&sh_slot_at(i)->card_answered); /* pairs with sh_granules_answer */
        if (answered != 0 && answered <= number) {
            return true;
        }
    }
    return false;
}

static void ring(sh_slot_shm *slot)
{
    (void)sh_add_acq_rel(&slot->card_bell, 1);
    (void)sh_futex_wake(&slot->card_bell, 1);
}

/* Wakes the service threads of all processes. The fence pairs with that in sh_granules_answers_begin: either this
 * process sees a service that has just begun, or that one sees what was asked. */
static void ring_all(void)
{
    uint32_t used = sh_load_acquire(&sh_the_world.header->slots_used);
    sh_fence_seq_cst();
    for (uint32_t i = 0; i < used && i < SH_SLOTS; i++) {
        if (sh_load_acquire(&sh_slot_at(i)->card_answered) != 0) {
            ring(sh_slot_at(i));
        }
    }
}

uint64_t sh_granules_ask(void)
{
    if (!sh_attached()) {
        return 0;
    }
    uint64_t number = sh_add_acq_rel(&sh_the_world.header->store.wanted, 1) + 1;
    ring_all();
    return number;
}

void sh_granules_probe(void)
{
    if (sh_attached()) {
        (void)sh_add_acq_rel(&sh_the_world.header->store.probes, 1);
        ring_all();
    }
}

bool sh_granules_await_answers(uint64_t number, int64_t timeout)
{
    sh_wait wait;
    sh_gate *gate = &sh_the_world.header->store.answered;
    bool in_time = true;
    sh_wait_init(&wait, timeout, SH_SLICE_SHORT, gate);
    while (in_time && is_unanswered(number)) {
        uint32_t prepared = sh_gate_prepare(gate);
        in_time = !is_unanswered(number) || sh_wait_park(&wait, gate, prepared);
    }
    return in_time || !is_unanswered(number);
}

sh_asked sh_granules_answers_begin(void)
{
    const sh_store_shm *store = &sh_the_world.header->store;
    sh_asked asked = {.request = sh_load_acquire(&store->wanted), .probe = sh_load_acquire(&store->probes)};
    sh_store_release(&sh_the_world.self.slot->card_answered, asked.request + 1);
    sh_fence_seq_cst(); /* pairs with that in ring_all */
    return asked;
}

sh_asked sh_granules_asked(void)
{
    const sh_store_shm *store = &sh_the_world.header->store;
    return (sh_asked){.bell = sh_load_acquire(&sh_the_world.self.slot->card_bell),
                      .request = sh_load_acquire(&store->wanted),
                      .probe = sh_load_acquire(&store->probes)};
}

void sh_granules_sleep(uint32_t bell, int64_t timeout)
{
    (void)sh_futex_wait(&sh_the_world.self.slot->card_bell, bell, sh_deadline(timeout));
}

void sh_granules_ring(void)
{
    ring(sh_the_world.self.slot);
}

void sh_granules_answer(uint64_t number)
{
    sh_store_release(&sh_the_world.self.slot->card_answered, number + 1);
    sh_fence_seq_cst(); /* the answer, then the look at the gate's flag: pairs with sh_gate_prepare of the requester */
    sh_gate_wake(&sh_the_world.header->store.answered, INT_MAX);
}

void sh_granules_answers_end(void)
{
    sh_granules_answer(UINT64_MAX); /* stores 0 */
}

/* ---- pieces ---- */

static bool is_inside(uint64_t offset, uint64_t size, uint64_t granule_size)
{
    return size > 0 && offset <= granule_size && size <= granule_size - offset;
}

static shoal_err make_piece(sh_ctx *c, const shoal_block *granule, uint64_t offset, uint64_t size,
                            shoal_block **out_piece)
{
    shoal_block *b = NULL;
    shoal_err err = sh_block_new(c, sh_class_of(sizeof(sh_piece_shm)), sizeof(sh_piece_shm), &b);
    if (err != SHOAL_OK) {
        return err;
    }
    sh_block_become(b, SH_KIND_PIECE);
    sh_piece_shm *p = (sh_piece_shm *)b->data;
    sh_store_relaxed(&p->offset, offset);
    sh_store_relaxed(&p->size, size);
    SH_DEATH("piece.create.made"); /* death: a piece of nothing; recovery releases it */
    err = sh_block_give(c, granule, sh_offset_of(&p->granule));
    SH_DEATH("piece.create.referred"); /* death: recovery releases the piece, and that the granule */
    if (err != SHOAL_OK) {
        sh_block_unref(c, b);
        return err;
    }
    *out_piece = b;
    return SHOAL_OK;
}

shoal_err sh_piece_create(shoal_block *granule, uint64_t offset, uint64_t size, shoal_block **out_piece)
{
    sh_granule_info info;
    shoal_err err = sh_block_require(granule, SH_KIND_GRANULE, "a piece of GPU memory");
    if (err != SHOAL_OK) {
        return err;
    }
    sh_ctx *c = sh_enter_held();
    if (c == NULL) {
        return shoal_last_error();
    }
    if (!sh_granule_look(granule->id, &info)) {
        err = sh_fail(SHOAL_ECORRUPT, "block %llu is not a granule", (unsigned long long)granule->id);
    } else if (!is_inside(offset, size, info.size)) {
        err = sh_fail(SHOAL_EINVAL, "bytes %llu to %llu of a granule of %llu", (unsigned long long)offset,
                      (unsigned long long)(offset + size), (unsigned long long)info.size);
    } else {
        err = make_piece(c, granule, offset, size, out_piece);
    }
    sh_leave();
    return err;
}

bool sh_piece_look(const sh_found *found, sh_piece *out_piece)
{
    sh_granule_info info;
    sh_piece_shm *p = (sh_piece_shm *)found->data;
    if (found->kind != SH_KIND_PIECE || found->size < sizeof *p) {
        return false;
    }
    sh_ref ref = sh_load_acquire(&p->granule);
    sh_piece piece = {.granule = sh_ref_id(ref),
                      .offset = sh_load_relaxed(&p->offset),
                      .size = sh_load_relaxed(&p->size),
                      .work = &p->work};
    if (sh_ref_weight(ref) == 0 || !sh_granule_look(piece.granule, &info) ||
        !is_inside(piece.offset, piece.size, info.size)) {
        return false;
    }
    piece.serial = info.serial;
    *out_piece = piece;
    return true;
}

shoal_err sh_piece_read(const shoal_block *piece, sh_piece *out_piece)
{
    sh_found f;
    shoal_err err = sh_block_require(piece, SH_KIND_PIECE, "a piece of GPU memory");
    if (err != SHOAL_OK) {
        return err;
    }
    if (sh_enter_held() == NULL) {
        return shoal_last_error();
    }
    if (!sh_heap_find(piece->id, &f) || !sh_piece_look(&f, out_piece)) {
        err = sh_fail(SHOAL_ECORRUPT, "block %llu is not a piece of GPU memory that exists",
                      (unsigned long long)piece->id);
    }
    sh_leave();
    return err;
}

/* ---- for tools ---- */

bool sh_granules_existed(void)
{
    return sh_load_relaxed(&sh_the_world.header->store.serials) != 0;
}

void sh_granules_tell(uint64_t held, uint64_t used)
{
    if (sh_attached()) {
        sh_racy_store(&sh_the_world.self.slot->card_held, held);
        sh_racy_store(&sh_the_world.self.slot->card_used, used);
    }
}
