#include "shm/commit.h"

#include "os/memory.h"
#include "shm/heap.h"
#include "shm/intent.h"
#include "shm/slot.h"

#include <errno.h>
#include <string.h>

#define KEEP_MAX (UINT64_C(1) << 30)

static uint64_t left_below_limit(void)
{
    uint64_t limit = sh_load_relaxed(&sh_the_world.header->heap_limit), used = sh_memory_used(sh_the_world.fd);
    return used < limit ? limit - used : 0;
}

bool sh_commit_keeps(uint64_t bytes)
{
    uint64_t limit = sh_load_relaxed(&sh_the_world.header->heap_limit);
    uint64_t budget = limit / 8 < KEEP_MAX ? limit / 8 : KEEP_MAX;
    return bytes <= budget && sh_memory_used(sh_the_world.fd) <= budget;
}

static shoal_err fail_full(uint64_t asked)
{
    return sh_fail(SHOAL_ENOMEM, "heap: asked for %llu bytes, %llu left of %llu", (unsigned long long)asked,
                   (unsigned long long)left_below_limit(),
                   (unsigned long long)sh_load_relaxed(&sh_the_world.header->heap_limit));
}

shoal_err sh_commit(sh_ctx *c, uint64_t offset, uint64_t size, uint64_t asked)
{
    uint64_t first = offset / SH_PAGE * SH_PAGE;
    uint64_t bytes = (offset + size + SH_PAGE - 1) / SH_PAGE * SH_PAGE - first;
    if (sh_world_file() < 0) {
        return sh_world_file_lost();
    }
    if (bytes > left_below_limit()) {
        /* The range may have memory already and need none, but only fallocate could tell. So make room first. */
        sh_trim(c, bytes);
        if (bytes > left_below_limit() && sh_slots_sweep_found()) {
            sh_trim(c, bytes); /* dead processes held memory */
        }
        if (bytes > left_below_limit()) {
            return fail_full(asked);
        }
    }
    if (!sh_memory_commit(sh_the_world.fd, sh_the_world.base, first, bytes)) {
        sh_trim(c, UINT64_MAX);
        if (!sh_memory_commit(sh_the_world.fd, sh_the_world.base, first, bytes)) {
            int number = errno; /* the kernel has undone its partial work; others may use the range by now */
            return sh_fail(SHOAL_ENOMEM, "heap: asked for %llu bytes, the system has no more: %s",
                           (unsigned long long)asked, strerror(number));
        }
    }
    return SHOAL_OK;
}

/* madvise refuses private views (private.c) and locked pages; the fd does not. */
void sh_decommit(void *at, uint64_t size)
{
    if (!sh_memory_decommit(at, size)) {
        sh_memory_decommit_file(sh_world_file(), sh_offset_of(at), size);
    }
}

/* ---- trim ---- */

/* Takes a free block for trim: it gets SH_WEIGHT_TRIM and this slot in its tag. The intent TRIM names the span. */
static bool take_for_trim(sh_ctx *c, uint64_t id)
{
    sh_found f;
    if (!sh_heap_find(id, &f)) {
        return false;
    }
    sh_meta_shm *meta = f.meta;
    uint64_t old = sh_load_acquire(&meta->word);
    uint64_t target = sh_offset_of(&meta->word);
    if ((old & SH_WORD_FREE) == 0) {
        return false;
    }
    sh_intent_confirm(c, old & SH_TAG_MASK, target);
    uint64_t tag = sh_tag(c->index, sh_load_relaxed(&c->slot->intent.seq));
    return sh_cas_acq_rel(&meta->word, &old, sh_word_make(SH_WEIGHT_TRIM, tag));
}

void sh_trim_undo(sh_ctx *c, uint32_t span)
{
    for (uint32_t i = 0; i < (1u << SH_INDEX_BITS); i++) {
        sh_found f;
        uint64_t id = (uint64_t)span << SH_INDEX_BITS | i;
        if (!sh_heap_find(id, &f)) {
            return;
        }
        uint64_t word = sh_load_acquire(&f.meta->word);
        bool ours =
            sh_word_weight(word) == SH_WEIGHT_TRIM && (uint32_t)((word & SH_TAG_MASK) >> SH_SEQ_BITS) == c->index;
        if (ours) {
            sh_store_release(&f.meta->word, SH_WORD_FREE | (word & SH_TAG_MASK));
            /* death: free, and a process that had it in a cache may have dropped it: recovery cannot tell it from the
             * other free blocks of the span, and lists them all */
            SH_DEATH("trim.undo.half");
        }
        if (ours || (c->recovering && (word & SH_WORD_FREE) != 0)) {
            sh_heap_list(id);
        }
    }
}

/* Gives back the memory of the span's free blocks: of each block in a large class, otherwise only if the whole span is
 * free. unknown: also memory of which the span does not know. */
static void trim_span(sh_ctx *c, uint32_t span, bool unknown)
{
    sh_found f;
    uint64_t id = (uint64_t)span << SH_INDEX_BITS;
    if (!sh_heap_find(id, &f)) {
        return;
    }
    bool large = sh_class_is_large(f.klass);
    uint32_t blocks = sh_class_blocks(f.klass), held = 0;
    sh_span_shm *s = sh_span_at(span);
    if (!unknown && !large && sh_load_acquire(&s->committed) == SH_COMMIT_NONE) {
        return;
    }
    sh_intent_begin(c, SH_INTENT_TRIM, 0, 0, 0, 0, 0, 0, span);
    for (uint32_t i = 0; i < blocks; i++) {
        bool none = !unknown && large && sh_load_relaxed(sh_heap_committed(id + i)) == 0;
        bool have = !none && take_for_trim(c, id + i);
        SH_DEATH("trim.held");
        if (have && large) {
            sh_a64 *committed = sh_heap_committed(id + i);
            sh_store_relaxed(committed, sh_load_relaxed(committed) | SH_COMMIT_UNSURE);
            sh_decommit((char *)f.data + i * f.room, f.room);
            sh_store_relaxed(committed, 0);
        } else if (!have && !large) {
            break;
        }
        held++;
    }
    if (!large && held == blocks) {
        /* Before the memory is given back: a process that takes a block commits again. */
        sh_store_release(&s->committed, SH_COMMIT_UNSURE);
        SH_DEATH("trim.uncommitted");
        uint64_t from = (sh_offset_of(f.data) + SH_PAGE - 1) / SH_PAGE * SH_PAGE;
        uint64_t to = (sh_offset_of(f.data) + blocks * f.room) / SH_PAGE * SH_PAGE;
        if (to > from) {
            sh_decommit(sh_at(from), to - from);
        }
        sh_store_release(&s->committed, SH_COMMIT_NONE);
    }
    if (held > 0) { /* a span in use costs one load, not one per block: a full heap walks all of them */
        sh_trim_undo(c, span);
    }
    sh_intent_end(c);
}

void sh_trim(sh_ctx *c, uint64_t want)
{
    uint32_t spans = sh_heap_spans();
    for (uint32_t span = 0; span < spans; span++) {
        if (want != UINT64_MAX && left_below_limit() >= want) {
            return;
        }
        trim_span(c, span, false);
    }
}

void sh_trim_unknown(sh_ctx *c, uint32_t span)
{
    trim_span(c, span, true);
}
