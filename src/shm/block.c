#include "shm/handle.h"

#include "shm/intent.h"
#include "shm/kind.h"

#include <stdlib.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__) && !defined(SHOAL_KEEP_HANDLES)
#define KEEPS_HANDLES 0 /* AddressSanitizer must see a handle used after its end */
#else
#define KEEPS_HANDLES 1
#endif
#define SPARE_MAX (KEEPS_HANDLES ? 64 : 0)

sh_handle_table sh_handles;
uint64_t sh_handle_tenures;
uint64_t sh_blocks_world_serial;

static shoal_block *lost; /* handles of worlds that were left; under the lock of sh_enter */

#define CHUNK_FIRST 4096u
#define CHUNK_MAX (1u << 20)

/* ---- the table ---- */

static bool grow_table(void)
{
    if (sh_handles.count < sh_handles.bucket_count) {
        return true;
    }
    size_t old_count = sh_handles.bucket_count, new_count = old_count == 0 ? 64 : old_count * 2;
    shoal_block **old = sh_handles.buckets, **fresh = calloc(new_count, sizeof *fresh);
    if (fresh == NULL) {
        return false;
    }
    sh_handles.growing = true;
    sh_signal_fence();
    sh_handles.buckets = fresh;
    sh_handles.bucket_count = new_count;
    for (size_t i = 0; i < old_count; i++) {
        for (shoal_block *b = old[i], *next; b != NULL; b = next) {
            next = b->next;
            size_t k = sh_handle_bucket(b->id);
            b->next = fresh[k];
            fresh[k] = b;
        }
    }
    sh_signal_fence();
    sh_handles.growing = false;
    free(old);
    return true;
}

static void insert(shoal_block *block)
{
    size_t k = sh_handle_bucket(block->id);
    block->next = sh_handles.buckets[k];
    sh_handles.buckets[k] = block;
    block->tenure = ++sh_handle_tenures;
    sh_handles.count++;
    sh_handle_tell();
}

static void remove_block(shoal_block *block)
{
    shoal_block **p = &sh_handles.buckets[sh_handle_bucket(block->id)];
    while (*p != block) {
        p = &(*p)->next;
    }
    *p = block->next;
    sh_handles.count--;
    sh_handle_tell();
}

/* ---- cells ---- */

static bool room_for_cells(size_t cells)
{
    if (cells <= sh_handles.free_room) {
        return true;
    }
    size_t room = cells * 2;
    uint64_t *fresh = realloc(sh_handles.free_cells, room * sizeof *fresh);
    if (fresh == NULL) {
        return false;
    }
    sh_handles.free_cells = fresh;
    sh_handles.free_room = room;
    return true;
}

/* Makes a block of cells, with its reference in the given cell. */
static shoal_err make_chunk(sh_ctx *c, sh_kind kind, uint64_t size, uint64_t cell, sh_cells_shm **out_cells)
{
    uint64_t id;
    sh_found f;
    SH_TRY(sh_heap_alloc(c, sh_class_of(size), size, cell, &id));
    SH_INVARIANT(sh_heap_find(id, &f));
    memset(f.data, 0, size);
    sh_heap_set_kind(id, kind);
    *out_cells = (sh_cells_shm *)f.data;
    return SHOAL_OK;
}

/* Puts the new chunk in front of the others. In between, the new chunk refers to them and the cell to the new chunk:
 * they are never without a reference. */
static void link_chunk(sh_ctx *c, sh_slot_shm *slot, uint64_t cell, sh_cells_shm *cells)
{
    uint64_t chunks = sh_offset_of(&slot->chunks);
    uint64_t older = sh_ref_weight(sh_load_relaxed(&slot->chunks));
    if (older != 0) {
        sh_heap_split(c, chunks, sh_offset_of(&cells->next), older);
    }
    SH_DEATH("cells.chunk.linked");
    sh_heap_split(c, cell, chunks, sh_ref_weight(sh_load_relaxed((sh_a64 *)sh_at(cell))));
}

static void free_cell(uint64_t cell)
{
    sh_handles.free_cells[sh_handles.free_count++] = cell; /* there is room for all cells of this process */
}

/* Frees the cell of a handle that is about to be freed. */
static void leave_cell(const shoal_block *b)
{
    if (!b->inherited) {
        free_cell(b->cell);
    }
}

static void drop_idle(void);

static shoal_err more_cells(sh_ctx *c)
{
    uint64_t size = sh_handles.next_chunk, spare = sh_handles.free_cells[0];
    size_t more = (size - sizeof(sh_cells_shm)) / 8;
    sh_cells_shm *cells;
    if (!room_for_cells(sh_handles.cells + more)) {
        return sh_fail(SHOAL_ENOMEM, "no memory for %zu cells", more);
    }
    SH_TRY(make_chunk(c, SH_KIND_CELLS, size, spare, &cells));
    link_chunk(c, c->slot, spare, cells);
    for (size_t i = more; i > 0; i--) {
        sh_handles.free_cells[sh_handles.free_count++] = sh_offset_of(&cells->cells[i - 1]);
    }
    sh_handles.cells += more;
    sh_handles.next_chunk = size * 2 < CHUNK_MAX ? size * 2 : CHUNK_MAX;
    return SHOAL_OK;
}

/* The last free cell is never used: a new chunk needs one. */
static shoal_err take_cell(sh_ctx *c, uint64_t *out_cell)
{
    if (sh_handles.free_count <= 1 && sh_handles.idle_count > 0) {
        drop_idle();
    }
    if (sh_handles.free_count <= 1) {
        sh_handles.growing = true;
        sh_signal_fence();
        shoal_err err = more_cells(c);
        sh_signal_fence();
        sh_handles.growing = false;
        if (err != SHOAL_OK) {
            return err;
        }
    }
    *out_cell = sh_handles.free_cells[--sh_handles.free_count];
    return SHOAL_OK;
}

shoal_err sh_blocks_begin(sh_ctx *c)
{
    sh_handles.next_chunk = CHUNK_FIRST;
    if (!room_for_cells(SH_SLOT_CELLS)) {
        return sh_fail(SHOAL_ENOMEM, "no memory for cells");
    }
    sh_handles.cells = SH_SLOT_CELLS;
    for (uint32_t i = SH_SLOT_CELLS; i > 0; i--) {
        if (sh_load_relaxed(&c->slot->cells[i - 1]) == 0) {
            sh_handles.free_cells[sh_handles.free_count++] = sh_offset_of(&c->slot->cells[i - 1]);
        }
    }
    return SHOAL_OK;
}

/* ---- leaving ---- */

/* Frees the handles that were lost before and have no references any more. */
static void free_lost(void)
{
    for (shoal_block **p = &lost; *p != NULL;) {
        shoal_block *b = *p;
        if (sh_load_acquire(&b->refs) == 0) { /* pairs with sh_count_down in sh_block_unref_lost */
            *p = b->next;
            free(b->extra);
            free(b);
        } else {
            p = &b->next;
        }
    }
}

static void mark_lost(shoal_block *b)
{
    b->kind = SH_KIND_COUNT;
    b->meta = NULL;
    b->data = NULL;
    b->next = lost;
    lost = b;
}

void sh_block_unref_lost(shoal_block *block)
{
    shoal_block *parts[2] = {block->parts[0], block->parts[1]};
    if (sh_count_down(&block->refs)) { /* its memory is freed when the next world is left */
        sh_block_release(parts[0]);
        sh_block_release(parts[1]);
    }
}

void sh_blocks_forget(void)
{
    free_lost();
    for (size_t i = 0; i < sh_handles.bucket_count; i++) {
        for (shoal_block *b = sh_handles.buckets[i], *next; b != NULL; b = next) {
            next = b->next;
            if (b->idle_at == 0) {
                mark_lost(b);
            } else {
                free(b->extra);
                free(b);
            }
        }
    }
    while (sh_handles.spare != NULL) {
        shoal_block *b = sh_handles.spare;
        sh_handles.spare = b->next;
        free(b);
    }
    free(sh_handles.buckets);
    free(sh_handles.free_cells);
    memset(&sh_handles, 0, sizeof sh_handles);
    sh_blocks_world_serial++;
}

/* ---- handles ---- */

static shoal_block *handle_memory(void)
{
    shoal_block *b = sh_handles.spare;
    if (b == NULL) {
        b = calloc(1, sizeof *b);
    } else {
        sh_handles.spare = b->next;
        sh_handles.spare_count--;
        memset(b, 0, sizeof *b);
    }
    if (b != NULL) {
        b->magic = SH_HANDLE_MAGIC;
    }
    return b;
}

static void handle_free(shoal_block *b)
{
    free(b->extra);
    b->magic = 0;
    if (sh_handles.spare_count == SPARE_MAX) {
        free(b);
        return;
    }
    b->next = sh_handles.spare;
    sh_handles.spare = b;
    sh_handles.spare_count++;
}

/* ---- idle handles ---- */

static void destroy_idle(shoal_block *b)
{
    sh_handle_end_idle(b);
    remove_block(b);
    leave_cell(b);
    handle_free(b);
}

static void drop_idle(void)
{
    for (size_t i = 0; i < SH_IDLE_MAX; i++) {
        if (sh_handles.idle[i] != NULL) {
            destroy_idle(sh_handles.idle[i]);
        }
    }
}

/* Keeps the handle, whose cell is empty. Frees the oldest idle handle for it. */
static void make_idle(shoal_block *b)
{
    size_t at = sh_handles.idle_next++ % SH_IDLE_MAX;
    if (sh_handles.idle[at] != NULL) {
        destroy_idle(sh_handles.idle[at]);
    }
    sh_handles.idle[at] = b;
    b->idle_at = (uint32_t)at + 1;
    sh_handles.idle_count++;
    sh_handle_tell();
}

/* Checks whether to keep a handle after this process's last reference to the block is gone. Not if it has private
 * parts, and not if the block is free now: then this process will allocate it again as another block. */
static bool can_idle(const shoal_block *b)
{
    return KEEPS_HANDLES && b->received && !b->inherited && b->extra == NULL && b->parts[0] == NULL &&
           b->parts[1] == NULL && sh_word_weight(sh_load_relaxed(&b->meta->word)) != 0;
}

static shoal_err new_handle(sh_ctx *c, shoal_block **out_block)
{
    shoal_block *b = handle_memory();
    if (b == NULL || !grow_table()) {
        free(b);
        return sh_fail(SHOAL_ENOMEM, "no memory for a handle");
    }
    shoal_err err = take_cell(c, &b->cell);
    if (err != SHOAL_OK) {
        handle_free(b);
        return err;
    }
    *out_block = b;
    return SHOAL_OK;
}

static void fill_handle(shoal_block *b, uint64_t id, const sh_found *f)
{
    b->id = id;
    b->data = f->data;
    b->meta = f->meta;
    b->room = f->room;
    b->size = f->size;
    b->kind = f->kind;
}

shoal_err sh_block_new(sh_ctx *c, uint32_t klass, uint64_t size, shoal_block **out_block)
{
    shoal_block *b = NULL;
    if (size > SH_SIZE_MAX) {
        return sh_fail(SHOAL_ENOMEM, "heap: asked for %llu bytes, a block can have %llu", (unsigned long long)size,
                       (unsigned long long)SH_SIZE_MAX);
    }
    SH_TRY(new_handle(c, &b));
    uint64_t id;
    shoal_err err = sh_heap_alloc(c, klass, size, b->cell, &id);
    if (err != SHOAL_OK) {
        leave_cell(b);
        handle_free(b);
        return err;
    }
    sh_found f;
    SH_INVARIANT(sh_heap_find(id, &f));
    shoal_block *old = sh_handles.idle_count > 0 ? sh_handle_find(id) : NULL;
    if (old != NULL && old->idle_at != 0) { /* the handle of an earlier block with this id */
        destroy_idle(old);
    }
    fill_handle(b, id, &f);
    sh_store_relaxed(&b->refs, 1);
    insert(b);
    *out_block = b;
    return SHOAL_OK;
}

void sh_block_become(shoal_block *block, sh_kind kind)
{
    memset(block->data, 0, block->size);
    sh_heap_set_kind(block->id, kind);
    block->kind = kind;
}

/* Makes a handle for a block that this process does not know. */
static shoal_err make_handle(sh_ctx *c, uint64_t id, const char *who, shoal_block **out_block)
{
    sh_found f;
    if (!sh_heap_find(id, &f) || !sh_handle_can_be_sent(&f)) {
        return sh_fail(SHOAL_ECORRUPT, "%s refers to block %llu, which does not exist", who, (unsigned long long)id);
    }
    shoal_block *b;
    SH_TRY(new_handle(c, &b));
    fill_handle(b, id, &f);
    *out_block = b;
    return SHOAL_OK;
}

shoal_err sh_block_expect_unknown(sh_ctx *c, sh_ref ref, shoal_block **out_block, uint64_t *out_value)
{
    uint64_t id = sh_ref_id(ref);
    shoal_block *b = NULL;
    if (sh_ref_weight(ref) == 0) {
        return sh_fail(SHOAL_ECORRUPT, "a message refers to block %llu, which does not exist", (unsigned long long)id);
    }
    SH_TRY(make_handle(c, id, "a message", &b));
    b->received = true;
    *out_value = ref;
    *out_block = b;
    return SHOAL_OK;
}

uint64_t sh_block_lighten(sh_ctx *c, const shoal_block *block)
{
    sh_heap_give_back(c, block->cell);
    return sh_ref_weight(sh_load_relaxed((sh_a64 *)sh_at(block->cell)));
}

void sh_block_arrived_first(shoal_block *block)
{
    insert(block);
}

void sh_block_unexpect(shoal_block *block)
{
    if (sh_load_relaxed(&block->refs) == 0 && block->idle_at == 0) {
        leave_cell(block);
        handle_free(block);
    }
}

shoal_err sh_block_take(sh_ctx *c, uint64_t from, shoal_block **out_block)
{
    sh_ref ref = sh_load_acquire((sh_a64 *)sh_at(from));
    shoal_block *b = NULL;
    uint64_t value;
    SH_TRY(sh_block_expect(c, ref, &b, &value));
    sh_heap_move(c, from, b->cell, value);
    sh_block_arrived(b);
    *out_block = b;
    return SHOAL_OK;
}

shoal_err sh_block_open(sh_ctx *c, uint64_t id, shoal_block **out_block)
{
    shoal_block *b = sh_handle_find(id);
    if (b != NULL && b->idle_at != 0) {
        destroy_idle(b);
        b = NULL;
    }
    if (b == NULL) {
        SH_TRY(make_handle(c, id, "an object", &b));
        shoal_err err = sh_heap_draw(c, id, b->cell);
        if (err != SHOAL_OK) {
            sh_block_unexpect(b);
            return err;
        }
    }
    sh_block_arrived(b);
    *out_block = b;
    return SHOAL_OK;
}

shoal_err sh_block_give(sh_ctx *c, const shoal_block *block, uint64_t to)
{
    uint64_t weight;
    SH_TRY(sh_heap_share(c, block->cell, &weight));
    sh_heap_give(c, block->cell, to, weight);
    return SHOAL_OK;
}

void sh_block_unref(sh_ctx *c, shoal_block *block)
{
    if (!sh_count_down(&block->refs)) {
        return;
    }
    if (__builtin_expect(block->view != SH_BLOCK_SHARED, 0) && !sh_block_end_view(c, block)) {
        return;
    }
    shoal_block *parts[2] = {block->parts[0], block->parts[1]};
    if (block->let_go != NULL) {
        block->let_go(c, block->extra);
    }
    sh_heap_release(c, block->cell);
    if (can_idle(block)) {
        make_idle(block);
        return;
    }
    remove_block(block);
    leave_cell(block);
    handle_free(block);
    for (int i = 0; i < 2; i++) { /* parts have no parts: the recursion is one level deep */
        if (parts[i] != NULL) {
            sh_block_unref(c, parts[i]);
        }
    }
}

/* By invariant (1) of layout.h the word has the weight of the cell and of all other references. Only a thread of this
 * process changes the cell, and there is none that has a reference: refs is 1. While the cell holds a weight, the word
 * can grow only by a holder's draw; if it equals the cell, there is no other holder who could. The acquire pairs with
 * the swap in release_one. */
bool sh_block_is_sole_holder(const shoal_block *block)
{
    if (sh_load_acquire(&block->refs) != 1 || sh_block_is_lost(block)) {
        return false;
    }
    uint64_t word = sh_load_acquire(&block->meta->word);
    return sh_word_weight(word) == sh_ref_weight(sh_load_relaxed((sh_a64 *)sh_at(block->cell)));
}

shoal_kind sh_block_kind_of(uint64_t id)
{
    const shoal_block *known = sh_handle_find(id);
    sh_found f;
    if (known != NULL && known->idle_at == 0) {
        return sh_block_kind(known);
    }
    return sh_heap_find(id, &f) ? sh_block_kind(&(shoal_block){.kind = f.kind}) : SHOAL_KIND_NONE;
}

/* ---- fork ---- */

#define CARD_DEPTH                                                                                                     \
    3 /* a module refers to the descriptions of its tensors, a description to that of its grad, and to a piece */

/* Checks whether a block is card memory or keeps some. */
static bool keeps_card(uint64_t id, int depth)
{
    sh_found f;
    if (!sh_heap_find(id, &f)) {
        return false;
    }
    if (f.kind == SH_KIND_PIECE || f.kind == SH_KIND_GRANULE) {
        return true;
    }
    bool record = f.kind == SH_KIND_TENSOR || f.kind == SH_KIND_SPARSE || f.kind == SH_KIND_MODULE, keeps = false;
    sh_a64 progress = {0}, *reference;
    for (uint64_t next = 0; record && depth > 0 && !keeps; next++) {
        sh_store_relaxed(&progress, next);
        reference = sh_kind_next_reference(&f, &progress);
        if (reference == NULL) {
            break;
        }
        next = sh_load_relaxed(&progress);
        keeps = keeps_card(sh_ref_id(sh_load_acquire(reference)), depth - 1);
    }
    return keeps;
}

static bool may_keep_card(const shoal_block *b)
{
    return b->kind == SH_KIND_PIECE || b->kind == SH_KIND_GRANULE || b->kind == SH_KIND_TENSOR ||
           b->kind == SH_KIND_SPARSE || b->kind == SH_KIND_MODULE;
}

static bool uses_card(void)
{
    return sh_world_uses_card != NULL && sh_world_uses_card();
}

/* Before the fork, when this process holds the block. */
static bool is_inherited(const shoal_block *b, sh_inherit what, bool card)
{
    return (what == SH_INHERIT_ALL || b->kind != SH_KIND_PIPE) &&
           !(card && may_keep_card(b) && keeps_card(b->id, CARD_DEPTH));
}

/* After it, in the child. Of card memory only the cells can tell: what the child does not hold may be another block by
 * now. */
static sh_left_behind left_behind(const shoal_block *b, sh_inherit what, bool card)
{
    return b->kind == SH_KIND_PIPE && what != SH_INHERIT_ALL                            ? SH_LEFT_PIPE
           : card && may_keep_card(b) && sh_load_relaxed((sh_a64 *)sh_at(b->cell)) == 0 ? SH_LEFT_CARD
                                                                                        : SH_LEFT_NOTHING;
}

/* Makes the cells that the child inherits, in one chunk, in the order of the table. Until the chunk is linked to the
 * slot, one of the slot's own cells holds it. */
static shoal_err make_inheritance(sh_ctx *c, sh_slot_shm *slot, size_t cells, sh_cells_shm **out_chunk)
{
    uint64_t cell = sh_offset_of(&slot->cells[SH_SLOT_CELLS - 1]);
    SH_TRY(make_chunk(c, SH_KIND_INHERITED, sizeof **out_chunk + cells * 8, cell, out_chunk));
    link_chunk(c, slot, cell, *out_chunk);
    return SHOAL_OK;
}

/* A signal handler may fork in the middle of a call that has read the table or a cell. So this changes nothing private,
 * allocates no private memory, and draws the weights from the blocks' words, which others change at any time: no cell
 * of this process loses any. */
shoal_err sh_blocks_inherit(sh_ctx *c, uint32_t index, sh_inherit what)
{
    size_t n = 0, room = sh_handles.count + 1; /* the table may have one that is not counted yet */
    sh_cells_shm *chunk = NULL;
    bool card = uses_card();
    if (sh_handles.growing) {
        return sh_fail(SHOAL_ESTATE, "a signal handler forked in the middle of a call");
    }
    SH_TRY(sh_handles.count == 0 ? SHOAL_OK : make_inheritance(c, sh_slot_at(index), room, &chunk));
    for (size_t i = 0; chunk != NULL && i < sh_handles.bucket_count; i++) {
        for (shoal_block *b = sh_handles.buckets[i]; b != NULL && n < room; b = b->next, n++) {
            /* An empty cell is idle, or its block was just sent by another thread: the reference went with the
             * message. */
            if (is_inherited(b, what, card) && sh_load_relaxed((sh_a64 *)sh_at(b->cell)) != 0) {
                SH_TRY(sh_heap_draw(c, b->id, sh_offset_of(&chunk->cells[n])));
            }
        }
    }
    return SHOAL_OK;
}

/* Points the handles to the chunk that the slot inherited; drops those that were not passed on. */
static void take_inheritance(sh_cells_shm *chunk, sh_inherit what)
{
    size_t n = 0;
    bool card = uses_card();
    for (size_t i = 0; i < sh_handles.bucket_count; i++) {
        for (shoal_block **p = &sh_handles.buckets[i], *b; (b = *p) != NULL;) {
            b->cell = sh_offset_of(&chunk->cells[n++]);
            b->inherited = true;
            sh_left_behind left = left_behind(b, what, card);
            if (b->idle_at == 0 && left == SH_LEFT_NOTHING) {
                p = &b->next;
                continue;
            }
            *p = b->next;
            sh_handles.count--;
            if (b->idle_at != 0) {
                sh_handle_end_idle(b);
                handle_free(b);
            } else {
                mark_lost(b);
                b->left_behind = (uint8_t)left;
            }
        }
    }
}

void sh_blocks_become(sh_ctx *c, sh_inherit what)
{
    sh_found f;
    sh_ref ref = sh_load_acquire(&c->slot->chunks);
    if (sh_handles.count > 0 && ref != 0 && sh_heap_find(sh_ref_id(ref), &f) && f.kind == SH_KIND_INHERITED) {
        take_inheritance((sh_cells_shm *)f.data, what);
    }
    sh_handles.free_count = 0;
    sh_handles.next_chunk = CHUNK_FIRST;
    sh_handles.cells = SH_SLOT_CELLS;
    for (uint32_t i = SH_SLOT_CELLS; i > 0; i--) { /* there is room: every process has at least that many cells */
        if (sh_load_relaxed(&c->slot->cells[i - 1]) == 0) {
            sh_handles.free_cells[sh_handles.free_count++] = sh_offset_of(&c->slot->cells[i - 1]);
        }
    }
    sh_handle_tell();
}

shoal_err sh_block_own(sh_ctx *c, shoal_block *block)
{
    uint64_t cell;
    if (!block->inherited) {
        return SHOAL_OK;
    }
    SH_TRY(take_cell(c, &cell));
    sh_heap_split(c, block->cell, cell, sh_ref_weight(sh_load_relaxed((sh_a64 *)sh_at(block->cell))));
    SH_DEATH("block.own.moved");
    block->cell = cell;
    block->inherited = false;
    return SHOAL_OK;
}
