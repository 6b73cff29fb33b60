#include "shm/granule.h"

#include "base/death.h"
#include "shm/card_store.h"
#include "shm/kind.h"
#include "shm/slot.h"

#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof((sh_granule_shm){0}.uuid) == SH_UUID_BYTES, "a granule has room for the UUID of its card");

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

bool sh_granules_want(void)
{
    if (!sh_attached()) {
        return false;
    }
    (void)sh_add_acq_rel(&sh_the_world.header->store.wanted, 1);
    uint32_t used = sh_load_acquire(&sh_the_world.header->slots_used);
    for (uint32_t i = 0; i < used && i < SH_SLOTS; i++) {
        if (i != sh_the_world.self.index && sh_racy_load(&sh_slot_at(i)->card_held) > 0) {
            return true;
        }
    }
    return false;
}

uint64_t sh_granules_wanted(void)
{
    return sh_attached() ? sh_load_acquire(&sh_the_world.header->store.wanted) : 0;
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
    shoal_err err = sh_block_require(granule, SH_KIND_GRANULE, "a piece of card memory");
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
    shoal_err err = sh_block_require(piece, SH_KIND_PIECE, "a piece of card memory");
    if (err != SHOAL_OK) {
        return err;
    }
    if (sh_enter_held() == NULL) {
        return shoal_last_error();
    }
    if (!sh_heap_find(piece->id, &f) || !sh_piece_look(&f, out_piece)) {
        err = sh_fail(SHOAL_ECORRUPT, "block %llu is not a piece of card memory that exists",
                      (unsigned long long)piece->id);
    }
    sh_leave();
    return err;
}

/* ---- for tools ---- */

void sh_granules_tell(uint64_t held, uint64_t used)
{
    if (sh_attached()) {
        sh_racy_store(&sh_the_world.self.slot->card_held, held);
        sh_racy_store(&sh_the_world.self.slot->card_used, used);
    }
}

/* A granule, and the last slot that was counted among its holders, + 1. */
typedef struct tally {
    sh_granule_row row;
    uint32_t last;
} tally;

/* More than the store has room for: those that are dying or being made are among them. */
#define ROWS_MAX 1024
#define CHUNKS_MAX (1u << 16) /* no slot has more: a longer chain is forged */

typedef struct listing {
    tally *rows; /* by ascending id */
    size_t count;
} listing;

static int compare_ids(const void *id, const void *row)
{
    uint64_t a = *(const uint64_t *)id, b = ((const tally *)row)->row.id;
    return a < b ? -1 : a > b;
}

static tally *find_row(const listing *l, uint64_t id)
{
    return bsearch(&id, l->rows, l->count, sizeof *l->rows, compare_ids);
}

static void note_granule(listing *l, uint64_t id, const sh_found *f)
{
    sh_granule_info info;
    if (f->kind == SH_KIND_GRANULE && l->count < ROWS_MAX && sh_granule_look(id, &info)) {
        l->rows[l->count++] = (tally){.row = {.id = id, .info = info}};
    }
}

static void note_piece(listing *l, uint64_t id, const sh_found *f)
{
    (void)id;
    sh_piece piece;
    tally *t = sh_word_weight(sh_load_acquire(&f->meta->word)) != 0 && sh_piece_look(f, &piece)
                   ? find_row(l, piece.granule)
                   : NULL;
    if (t != NULL) {
        t->row.pieces++;
        t->row.lent += piece.size;
    }
}

static void each_block(listing *l, void (*note)(listing *, uint64_t, const sh_found *))
{
    uint32_t spans = sh_heap_spans();
    for (uint32_t s = 0; s < spans; s++) {
        sh_found f;
        for (uint32_t i = 0; sh_heap_find((uint64_t)s << SH_INDEX_BITS | i, &f); i++) {
            note(l, (uint64_t)s << SH_INDEX_BITS | i, &f);
        }
    }
}

static void note_reference(const listing *l, sh_ref ref, uint32_t slot)
{
    sh_found f;
    sh_piece piece;
    if (ref == 0 || !sh_heap_find(sh_ref_id(ref), &f)) {
        return;
    }
    tally *t = find_row(l, sh_piece_look(&f, &piece) ? piece.granule : sh_ref_id(ref));
    if (t != NULL && t->last != slot + 1) {
        t->last = slot + 1;
        t->row.holders++;
    }
}

static void note_holder(const listing *l, uint32_t slot)
{
    sh_slot_shm *s = sh_slot_at(slot);
    sh_phase phase = sh_slot_state_phase(sh_load_acquire(&s->state));
    if (phase != SH_PHASE_ALIVE && phase != SH_PHASE_RESERVED) {
        return;
    }
    for (uint32_t i = 0; i < SH_SLOT_CELLS; i++) {
        note_reference(l, sh_load_acquire(&s->cells[i]), slot);
    }
    sh_ref ref = sh_load_acquire(&s->chunks);
    sh_found f;
    for (uint32_t n = 0; n < CHUNKS_MAX && ref != 0 && sh_heap_find(sh_ref_id(ref), &f); n++) {
        sh_cells_shm *cells = (sh_cells_shm *)f.data;
        if ((f.kind != SH_KIND_CELLS && f.kind != SH_KIND_INHERITED) || f.size < sizeof *cells) {
            return;
        }
        for (uint64_t i = 0; i < (f.size - sizeof *cells) / 8; i++) {
            note_reference(l, sh_load_acquire(&cells->cells[i]), slot);
        }
        ref = sh_load_acquire(&cells->next);
    }
}

shoal_err sh_granules_list(bool (*each)(const sh_granule_row *row, void *context), void *context)
{
    listing l = {.rows = calloc(ROWS_MAX, sizeof *l.rows)};
    if (l.rows == NULL) {
        return sh_fail(SHOAL_ENOMEM, "no memory to list card memory");
    }
    shoal_err err = sh_enter() != NULL ? SHOAL_OK : shoal_last_error();
    if (err == SHOAL_OK) {
        each_block(&l, note_granule);
        each_block(&l, note_piece);
        uint32_t used = sh_load_acquire(&sh_the_world.header->slots_used);
        for (uint32_t i = 0; i < used && i < SH_SLOTS; i++) {
            note_holder(&l, i);
        }
        for (size_t i = 0; i < l.count && each(&l.rows[i].row, context); i++) {
        }
        sh_leave();
    }
    free(l.rows);
    return err;
}
