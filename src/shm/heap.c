#include "shm/heap.h"

#include "os/memory.h"
#include "shm/commit.h"
#include "shm/intent.h"
#include "shm/kind.h"
#include "shm/slot.h"

/* ---- finding ---- */

static inline uint32_t id_span(uint64_t id)
{
    return (uint32_t)(id >> SH_INDEX_BITS);
}

static inline uint32_t id_index(uint64_t id)
{
    return (uint32_t)(id & ((1u << SH_INDEX_BITS) - 1));
}

/* The offsets in a span of a class (class.h), computed once: every message with a handle needs them. Under the lock of
 * sh_enter. */
typedef struct geometry {
    uint64_t metas, data, room, bytes;
    uint32_t stride, blocks; /* blocks 0: not computed yet */
} geometry;

static const geometry *geometry_of(uint32_t klass)
{
    static geometry all[SH_CLASSES];
    geometry *g = &all[klass];
    if (__builtin_expect(g->blocks == 0, 0)) {
        *g = (geometry){.metas = sh_span_meta_at(klass),
                        .data = sh_span_data_at(klass),
                        .room = sh_class_size(klass),
                        .bytes = sh_span_bytes(klass),
                        .stride = (uint32_t)sh_class_meta_stride(klass)};
        /* A signal handler that ends the process here, or the successor of a recovery helper that was killed here,
         * finds all of it or computes it again. */
        sh_signal_fence();
        g->blocks = sh_class_blocks(klass);
    }
    return g;
}

/* Finds the span's class and base, and checks them. Returns false for a span that is not made yet or contains
 * nonsense. */
static bool find_span(uint32_t span, uint32_t *out_klass, uint64_t *out_base)
{
    /* Beyond the frontier the table has no memory: even a load would allocate there. */
    if (span >= SH_SPANS || span >= sh_load_relaxed(&sh_the_world.header->frontier.hi) >> SH_TAG_BITS) {
        return false;
    }
    sh_span_shm *s = sh_span_at(span);
    uint32_t klass = sh_load_acquire(&s->klass) - 1; /* pairs with the release in sh_span_finish: base is visible */
    uint64_t base = sh_load_relaxed(&s->base);
    if (klass >= SH_CLASSES || base < SH_HEAP_AT || base % SH_UNIT != 0 || base >= sh_the_world.size ||
        geometry_of(klass)->bytes > sh_the_world.size - base) {
        return false;
    }
    *out_klass = klass;
    *out_base = base;
    return true;
}

uint32_t sh_heap_spans(void)
{
    uint64_t made = sh_load_acquire(&sh_the_world.header->frontier.hi) >> SH_TAG_BITS;
    uint64_t most = (sh_the_world.size - SH_HEAP_AT) / SH_UNIT;
    most = most < SH_SPANS ? most : SH_SPANS;
    return (uint32_t)(made < most ? made : most);
}

bool sh_heap_find(uint64_t id, sh_found *out_found)
{
    uint32_t klass, index = id_index(id);
    uint64_t base;
    if (id > SH_ID_MASK || !find_span(id_span(id), &klass, &base) || index >= geometry_of(klass)->blocks) {
        return false;
    }
    const geometry *g = geometry_of(klass);
    out_found->klass = klass;
    out_found->meta = sh_at(base + g->metas + index * (uint64_t)g->stride);
    out_found->room = g->room;
    out_found->data = sh_at(base + g->data + index * g->room);
    uint64_t info = sh_load_relaxed(&out_found->meta->info);
    uint64_t size = info & SH_INFO_SIZE_MASK;
    out_found->size = size <= out_found->room ? size : out_found->room;
    out_found->kind = (sh_kind)(info >> 56);
    return true;
}

sh_a64 *sh_heap_committed(uint64_t id)
{
    uint32_t klass;
    uint64_t base;
    if (!find_span(id_span(id), &klass, &base) || !sh_class_is_large(klass)) {
        return NULL;
    }
    return (sh_a64 *)sh_at(base + sh_span_committed_at(klass)) + id_index(id);
}

void sh_heap_set_kind(uint64_t id, sh_kind kind)
{
    sh_found f;
    if (sh_heap_find(id, &f)) {
        sh_store_release(&f.meta->info, (uint64_t)kind << 56 | f.size); /* after the zeroing of its reference words */
    }
}

/* ---- free blocks: caches ---- */

static sh_a64 *cache_of(sh_slot_shm *slot, uint32_t klass, uint32_t *out_room)
{
    if (klass < SH_CLASSES_SMALL) {
        *out_room = SH_CACHE_SMALL;
        return &slot->cache[klass * SH_CACHE_SMALL];
    }
    *out_room = SH_CACHE_LARGE;
    return &slot->cache[SH_CLASSES_SMALL * SH_CACHE_SMALL + (klass - SH_CLASSES_SMALL) * SH_CACHE_LARGE];
}

/* Cache entries hold id + 1. */
static void cache_push(sh_ctx *c, uint32_t klass, uint64_t id)
{
    uint32_t room;
    sh_a64 *cache = cache_of(c->slot, klass, &room);
    if (c->recovering) {
        sh_heap_list(id);
        return;
    }
    if (c->cached[klass] >= room) {
        /* Half of them go to the maps. They are listed first, then dropped: a death in between lists them twice, which
         * is allowed. */
        for (uint32_t i = 0; i < room / 2; i++) {
            uint64_t old = sh_load_relaxed(&cache[i]);
            if (old != 0) {
                sh_heap_list(old - 1);
            }
        }
        SH_DEATH("heap.cache.listed");
        for (uint32_t i = 0; i < room - room / 2; i++) {
            sh_store_relaxed(&cache[i], sh_load_relaxed(&cache[i + room / 2]));
        }
        for (uint32_t i = room - room / 2; i < room; i++) {
            sh_store_relaxed(&cache[i], 0);
        }
        c->cached[klass] = (uint8_t)(room - room / 2);
    }
    sh_store_release(&cache[c->cached[klass]++], id + 1);
}

/* Returns the newest cached block, which stays in the cache, and its place. Another process may have taken entries out
 * (list_cached). */
static bool cache_peek(sh_ctx *c, uint32_t klass, uint64_t *out_id, sh_a64 **out_entry)
{
    uint32_t room;
    sh_a64 *cache = cache_of(c->slot, klass, &room);
    while (c->cached[klass] > 0) {
        sh_a64 *entry = &cache[c->cached[klass] - 1];
        uint64_t id = sh_load_relaxed(entry);
        if (id != 0) {
            *out_id = id - 1;
            *out_entry = entry;
            return true;
        }
        c->cached[klass]--;
    }
    return false;
}

/* ---- acquisition ---- */

/* Takes the block if it is free. entry: the place of the hint in this slot's cache, or NULL. */
static bool acquire(sh_ctx *c, uint64_t id, uint64_t cell, sh_a64 *entry)
{
    sh_found f;
    if (!sh_heap_find(id, &f)) {
        if (entry != NULL) {
            sh_store_relaxed(entry, 0);
        }
        return false;
    }
    uint64_t target = sh_offset_of(&f.meta->word);
    uint64_t old = sh_load_acquire(&f.meta->word);
    uint64_t seen = old & SH_TAG_MASK;
    sh_intent_confirm(c, seen, target);
    sh_ref ref = sh_ref_make(id, SH_WEIGHT_NEW);
    uint64_t tag = sh_intent_begin(c, SH_INTENT_ALLOC, target, seen, 0, 0, cell, ref, id);
    SH_DEATH("heap.alloc.begun"); /* death: the intent names the block; recovery lists it as free */
    if (entry != NULL) {
        sh_store_relaxed(entry, 0);
    }
    SH_DEATH("heap.alloc.uncached");
    bool ours = (old & SH_WORD_FREE) != 0 && sh_cas_acq_rel(&f.meta->word, &old, sh_word_make(SH_WEIGHT_NEW, tag));
    /* death: the tag is in the word; recovery fills the cell, and then empties it with the others */
    SH_DEATH("heap.alloc.applied");
    if (ours) {
        sh_store_release((sh_a64 *)sh_at(cell), ref);
    }
    SH_DEATH("heap.alloc.held");
    sh_intent_end(c);
    return ours;
}

/* Commits the whole span, for a block of it that this process has just taken. Two processes may do so at once, which is
 * harmless. */
static shoal_err ensure_span(sh_ctx *c, const sh_found *f, uint32_t index, uint64_t size)
{
    sh_span_shm *span = sh_span_at(index);
    if (__builtin_expect(sh_load_acquire(&span->committed) == SH_COMMIT_ALL, 1)) {
        return SHOAL_OK;
    }
    sh_store_relaxed(&span->committed, SH_COMMIT_UNSURE);
    shoal_err err = sh_commit(c, sh_load_relaxed(&span->base), sh_span_head_bytes(f->klass), size);
    SH_DEATH("heap.commit.span"); /* death: committed is UNSURE, so trim knows that there may be memory */
    SH_TRY(err);
    sh_store_release(&span->committed, SH_COMMIT_ALL);
    return SHOAL_OK;
}

/* Commits memory for the block that this process has just taken. */
static shoal_err ensure_memory(sh_ctx *c, const sh_found *f, uint64_t id, uint64_t size)
{
    if (!sh_class_is_large(f->klass)) {
        return ensure_span(c, f, id_span(id), size);
    }
    sh_a64 *committed = sh_heap_committed(id);
    uint64_t before = sh_load_relaxed(committed), have = before;
    uint64_t need = (size + SH_PAGE - 1) / SH_PAGE * SH_PAGE;
    if (have % SH_PAGE != 0 || have > f->room) {
        have = 0; /* UNSURE, or nonsense from outside: committing again is harmless */
    }
    if (have >= need) {
        return SHOAL_OK;
    }
    sh_store_relaxed(committed, need | SH_COMMIT_UNSURE);
    shoal_err err = sh_commit(c, sh_offset_of(f->data) + have, need - have, size);
    SH_DEATH("heap.commit.block"); /* death: as above */
    sh_store_relaxed(committed, err == SHOAL_OK ? need : before);
    return err;
}

/* ---- the last resort: free blocks that only other processes know of ---- */

/* Turns an id in another slot's cache into a bit in its span. The intent names the block from before the swap until it
 * is listed. The slot's process sees the 0 and goes on to the next entry; if it was about to allocate this very block,
 * the block's word decides between it and the process that finds the bit. */
static bool list_cached(sh_ctx *c, sh_a64 *entry)
{
    uint64_t id = sh_load_acquire(entry);
    if (id == 0) {
        return false;
    }
    uint64_t index = id_index(id - 1);
    sh_intent_begin(c, SH_INTENT_BITS, 0, 0, 0, UINT64_C(1) << (index % 64), 0, index / 64, id_span(id - 1));
    bool ours = sh_cas_acq_rel(entry, &id, 0);
    SH_DEATH("heap.steal.uncached"); /* death: recovery lists the block that the intent names, if it is free */
    if (ours) {
        sh_heap_list(id - 1);
    }
    sh_intent_end(c);
    return ours;
}

bool sh_heap_uncover(sh_ctx *c, uint32_t klass)
{
    bool found = sh_slots_sweep_found();
    uint32_t used = sh_load_acquire(&sh_the_world.header->slots_used), room;
    for (uint32_t i = 0; i < used && i < SH_SLOTS; i++) {
        sh_a64 *cache = cache_of(sh_slot_at(i), klass, &room);
        for (uint32_t n = 0; i != c->index && n < room; n++) {
            found |= list_cached(c, &cache[n]);
        }
    }
    return found;
}

/* Takes any free block of the class into the cell. */
static shoal_err take_any(sh_ctx *c, uint32_t klass, uint64_t size, uint64_t cell, uint64_t *out_id)
{
    uint64_t ids[SH_CACHE_SMALL];
    sh_a64 *entry;
    bool uncovered = false;
    for (;;) {
        while (cache_peek(c, klass, out_id, &entry)) {
            if (acquire(c, *out_id, cell, entry)) {
                return SHOAL_OK;
            }
        }
        uint32_t got = 0;
        uint32_t want = sh_class_is_large(klass) || c->recovering ? 1 : SH_CACHE_SMALL / 2;
        if (!sh_span_claim(c, klass, ids, want, &got)) {
            shoal_err err = sh_span_make(c, klass, size);
            if (err == SHOAL_ENOMEM && !uncovered) { /* once: another process may get the uncovered block */
                uncovered = true;
                err = sh_heap_uncover(c, klass) ? SHOAL_OK : err;
            }
            if (err != SHOAL_OK) {
                return err;
            }
            continue;
        }
        /* The claim's intent is still open and names these blocks, so nothing is lost while they move into the
         * cache. */
        uint64_t first = 0;
        bool have_first = false;
        for (uint32_t i = 0; i < got; i++) {
            if (c->recovering) {
                first = ids[i];
                have_first = true;
            } else {
                cache_push(c, klass, ids[i]);
            }
        }
        SH_DEATH("heap.claim.cached");
        sh_intent_end(c);
        if (have_first && acquire(c, first, cell, NULL)) {
            *out_id = first;
            return SHOAL_OK;
        }
    }
}

shoal_err sh_heap_alloc(sh_ctx *c, uint32_t klass, uint64_t size, uint64_t cell, uint64_t *out_id)
{
    uint64_t id;
    sh_found f;
    SH_TRY(take_any(c, klass, size, cell, &id));
    SH_INVARIANT(sh_heap_find(id, &f));
    shoal_err err = ensure_memory(c, &f, id, size);
    if (err != SHOAL_OK) {
        sh_heap_release(c, cell);
        return err;
    }
    sh_store_release(&f.meta->info, (uint64_t)SH_KIND_DATA << 56 | size);
    *out_id = id;
    return SHOAL_OK;
}

/* ---- release ---- */

/* Frees a dying block that has no references, or has released all of them. The open intent names it. */
static void make_free(sh_ctx *c, uint64_t id, const sh_found *f)
{
    sh_a64 *committed = sh_class_is_large(f->klass) ? sh_heap_committed(id) : NULL;
    bool keep = true;
    if (committed != NULL && sh_load_relaxed(committed) >= (1u << 20)) {
        keep = sh_commit_keeps(sh_load_relaxed(committed)) ||
               (c->cached[f->klass] == 0 && sh_load_relaxed(committed) <= (256u << 20));
        if (!keep) {
            sh_store_relaxed(committed, sh_load_relaxed(committed) | SH_COMMIT_UNSURE);
            /* death: nobody relies on the memory, but trim knows that it may be there */
            SH_DEATH("heap.free.giving_back");
            sh_decommit(f->data, f->room);
            sh_store_relaxed(committed, 0);
        }
    }
    sh_store_relaxed(&f->meta->info, (uint64_t)SH_KIND_DATA << 56);
    uint64_t word = sh_load_relaxed(&f->meta->word);
    sh_store_release(&f->meta->word, word | SH_WORD_FREE); /* nobody else writes the word of a dying block */
    SH_DEATH("heap.free.unlisted");                        /* death: free, but no hint names it; recovery lists it */
    if (keep) {
        cache_push(c, f->klass, id);
    } else {
        sh_heap_list(id);
    }
}

/* Destroys a block whose weight this slot's swap has brought to 0. The intent is open. */
static void bury(sh_ctx *c, uint64_t id, const sh_found *f)
{
    if (sh_kind_look_up(f->kind)->next_reference == NULL) {
        make_free(c, id, f);
        return;
    }
    sh_a64 *link = (sh_a64 *)f->data;
    if (sh_load_relaxed(&c->slot->destroying) != id + 1) { /* recovery may find it on the stack already */
        sh_store_relaxed(link, sh_load_relaxed(&c->slot->destroying));
        sh_store_relaxed(link + 1, 0); /* the progress of releasing its references */
        SH_DEATH("heap.bury.linked");
        sh_store_release(&c->slot->destroying, id + 1);
    }
    SH_DEATH("heap.bury.pushed");
}

static void release_one(sh_ctx *c, uint64_t cell_offset)
{
    sh_a64 *cell = sh_at(cell_offset);
    sh_ref ref = sh_load_relaxed(cell);
    uint64_t id = sh_ref_id(ref), weight = sh_ref_weight(ref);
    sh_found f;
    if (weight == 0 || !sh_heap_find(id, &f)) {
        sh_store_relaxed(cell, 0);
        return;
    }
    uint64_t target = sh_offset_of(&f.meta->word);
    uint64_t old = sh_load_acquire(&f.meta->word);
    for (;;) {
        if (sh_word_weight(old) < weight || (old & SH_WORD_FREE) != 0) {
            sh_store_relaxed(cell, 0); /* only in a damaged world; the reference counts for nothing */
            return;
        }
        uint64_t seen = old & SH_TAG_MASK;
        sh_intent_confirm(c, seen, target);
        uint64_t tag = sh_intent_begin(c, SH_INTENT_RELEASE, target, seen, 0, 0, cell_offset, 0, id);
        SH_DEATH("heap.release.begun");
        uint64_t left = sh_word_weight(old) - weight;
        /* acq_rel: our use of the block comes before it is freed, all other uses come before we destroy it. */
        if (sh_cas_acq_rel(&f.meta->word, &old, sh_word_make(left, tag))) {
            /* death: the tag is there; recovery empties the cell and destroys the block */
            SH_DEATH("heap.release.applied");
            sh_store_release(cell, 0);
            SH_DEATH("heap.release.emptied");
            if (left == 0) {
                f.kind = (sh_kind)(sh_load_acquire(&f.meta->info) >> 56);
                bury(c, id, &f);
            }
            sh_intent_end(c);
            return;
        }
        sh_intent_end(c);
    }
}

/* Removes the finished block from the stack and frees it. */
static void free_top(sh_ctx *c, uint64_t id, const sh_found *f)
{
    uint64_t next = sh_load_relaxed((sh_a64 *)f->data);
    sh_intent_begin(c, SH_INTENT_FREE, sh_offset_of(&f->meta->word), 0, 0, 0, 0, next, id);
    SH_DEATH("heap.drain.begun");
    sh_store_release(&c->slot->destroying, next);
    SH_DEATH("heap.drain.popped");
    make_free(c, id, f);
    sh_intent_end(c);
}

/* Checks that nobody holds the block, it is not free, and a swap of this slot brought it to 0. */
static bool is_dying_by(const sh_ctx *c, const sh_found *f)
{
    uint64_t word = sh_load_acquire(&f->meta->word);
    return sh_word_weight(word) == 0 && (word & SH_WORD_FREE) == 0 &&
           (uint32_t)((word & SH_TAG_MASK) >> SH_SEQ_BITS) == c->index;
}

void sh_heap_drain(sh_ctx *c)
{
    for (;;) {
        uint64_t top = sh_load_relaxed(&c->slot->destroying);
        sh_found f;
        if (top == 0) {
            return;
        }
        if (!sh_heap_find(top - 1, &f) || !is_dying_by(c, &f)) {
            sh_store_relaxed(&c->slot->destroying, 0); /* only in a damaged world */
            return;
        }
        sh_kind_dying(&f);
        sh_a64 *word = sh_kind_next_reference(&f, (sh_a64 *)f.data + 1);
        if (word != NULL) {
            release_one(c, sh_offset_of(word)); /* may put another block on top */
        } else {
            free_top(c, top - 1, &f);
        }
    }
}

void sh_heap_release(sh_ctx *c, uint64_t cell)
{
    release_one(c, cell);
    sh_heap_drain(c);
}

void sh_heap_redo(sh_ctx *c, sh_intent_code code, uint64_t id, bool applied)
{
    sh_found f;
    if (!sh_heap_find(id, &f)) {
        return;
    }
    uint64_t word = sh_load_acquire(&f.meta->word);
    bool dying = is_dying_by(c, &f);
    if (code == SH_INTENT_RELEASE && applied && dying) {
        bury(c, id, &f);
    } else if (code == SH_INTENT_FREE && dying) {
        make_free(c, id, &f);
    } else if ((word & SH_WORD_FREE) != 0) {
        sh_heap_list(id);
    }
}

/* ---- moving weight ---- */

/* Stores what a move leaves in its two words. */
static void move(sh_ctx *c, uint64_t from, sh_ref rest, uint64_t to, sh_ref given)
{
    sh_intent_begin(c, SH_INTENT_MOVE, to, 0, 0, given, from, rest, 0);
    SH_DEATH("heap.split.begun"); /* death: recovery stores both; both words belong to this slot */
    sh_store_release((sh_a64 *)sh_at(to), given);
    SH_DEATH("heap.split.given");
    sh_store_release((sh_a64 *)sh_at(from), rest);
    sh_intent_end(c);
}

void sh_heap_move(sh_ctx *c, uint64_t from, uint64_t cell, sh_ref value)
{
    move(c, from, 0, cell, value);
}

void sh_heap_give(sh_ctx *c, uint64_t cell, uint64_t to, uint64_t weight)
{
    sh_ref ref = sh_load_relaxed((sh_a64 *)sh_at(cell));
    SH_INVARIANT(weight > 0 && weight < sh_ref_weight(ref));
    move(c, cell, sh_ref_make(sh_ref_id(ref), sh_ref_weight(ref) - weight), to, sh_ref_make(sh_ref_id(ref), weight));
}

void sh_heap_split(sh_ctx *c, uint64_t from, uint64_t to, uint64_t weight)
{
    sh_ref ref = sh_load_relaxed((sh_a64 *)sh_at(from)), there = sh_load_relaxed((sh_a64 *)sh_at(to));
    uint64_t id = sh_ref_id(ref), left = sh_ref_weight(ref) - weight;
    SH_INVARIANT(weight > 0 && weight <= sh_ref_weight(ref) && (there == 0 || sh_ref_id(there) == id));
    move(c, from, left == 0 ? 0 : sh_ref_make(id, left), to, sh_ref_make(id, weight + sh_ref_weight(there)));
}

shoal_err sh_heap_draw(sh_ctx *c, uint64_t id, uint64_t cell_offset)
{
    sh_a64 *cell = sh_at(cell_offset);
    sh_found f;
    if (!sh_heap_find(id, &f)) {
        return sh_fail(SHOAL_ECORRUPT, "block %llu does not exist", (unsigned long long)id);
    }
    uint64_t target = sh_offset_of(&f.meta->word);
    uint64_t old = sh_load_acquire(&f.meta->word);
    sh_ref more = sh_ref_make(id, sh_ref_weight(sh_load_relaxed(cell)) + SH_WEIGHT_MORE);
    for (;;) {
        if (sh_word_weight(old) == 0) {
            return sh_fail(SHOAL_ECORRUPT, "block %llu is not alive", (unsigned long long)id);
        }
        if (sh_word_weight(old) + SH_WEIGHT_MORE >= SH_WEIGHT_TRIM) {
            return sh_fail(SHOAL_ELIMIT, "block %llu has too many holders", (unsigned long long)id);
        }
        uint64_t seen = old & SH_TAG_MASK;
        sh_intent_confirm(c, seen, target);
        uint64_t tag = sh_intent_begin(c, SH_INTENT_WEIGHT, target, seen, 0, 0, cell_offset, more, id);
        bool done = sh_cas_acq_rel(&f.meta->word, &old, sh_word_make(sh_word_weight(old) + SH_WEIGHT_MORE, tag));
        SH_DEATH("heap.draw.applied");
        if (done) {
            sh_store_release(cell, more);
        }
        sh_intent_end(c);
        if (done) {
            return SHOAL_OK;
        }
    }
}

/* stopped: costs nobody anything. The cell keeps MORE, so the word stays above 0 and the block is not destroyed. */
void sh_heap_give_back(sh_ctx *c, uint64_t cell_offset)
{
    sh_a64 *cell = sh_at(cell_offset);
    sh_ref ref = sh_load_relaxed(cell);
    uint64_t id = sh_ref_id(ref), surplus = sh_ref_weight(ref) - SH_WEIGHT_MORE;
    sh_ref less = sh_ref_make(id, SH_WEIGHT_MORE);
    sh_found f;
    if (sh_ref_weight(ref) <= SH_WEIGHT_HOLD || !sh_heap_find(id, &f)) {
        return;
    }
    uint64_t target = sh_offset_of(&f.meta->word), old = sh_load_acquire(&f.meta->word);
    bool done = false;
    while (!done && sh_word_weight(old) > surplus) { /* less only in a damaged world */
        uint64_t seen = old & SH_TAG_MASK;
        sh_intent_confirm(c, seen, target);
        uint64_t tag = sh_intent_begin(c, SH_INTENT_WEIGHT, target, seen, 0, 0, cell_offset, less, id);
        SH_DEATH("heap.give_back.begun"); /* death: no tag; word and cell are as they were */
        done = sh_cas_acq_rel(&f.meta->word, &old, sh_word_make(sh_word_weight(old) - surplus, tag));
        /* death: the tag is there; recovery stores the smaller weight in the cell */
        SH_DEATH("heap.give_back.applied");
        if (done) {
            sh_store_release(cell, less);
        }
        sh_intent_end(c);
    }
}

shoal_err sh_heap_share_little(sh_ctx *c, uint64_t cell, uint64_t *out_weight)
{
    sh_ref ref = sh_load_relaxed((sh_a64 *)sh_at(cell));
    if (sh_ref_weight(ref) == 0) {
        return sh_fail(SHOAL_ECORRUPT, "a cell that should hold a reference is empty");
    }
    SH_TRY(sh_heap_draw(c, sh_ref_id(ref), cell));
    *out_weight = sh_weight_to_share(sh_ref_weight(ref) + SH_WEIGHT_MORE);
    return SHOAL_OK;
}
