/* Spans, and finding one with free blocks. There are no lists, only bits: too many may be set, but never too few. */
#include "os/memory.h"
#include "shm/commit.h"
#include "shm/heap.h"
#include "shm/intent.h"

/* ---- the class map ---- */

static sh_a64 *map_word(uint32_t klass, uint32_t level, uint32_t word)
{
    if (level == 2) {
        return (sh_a64 *)sh_at(SH_TOPS_AT) + klass * SH_MAP_2 + word;
    }
    return (sh_a64 *)sh_at(SH_MAPS_AT + (uint64_t)klass * SH_MAP_BYTES) + (level == 0 ? 0 : SH_MAP_0) + word;
}

/* Each level is read after the one below was set (both seq_cst), and cleared before the one below is read again
 * (clear_up). So of a setter and a clearer at least one sees the other. */
static void set_up(uint32_t klass, uint32_t span)
{
    uint32_t bit = span;
    for (uint32_t level = 0; level < 3; level++) {
        sh_a64 *word = map_word(klass, level, bit / 64);
        uint64_t mask = UINT64_C(1) << (bit % 64);
        if ((sh_load_seq_cst(word) & mask) == 0) {
            sh_or_seq_cst(word, mask);
        }
        bit /= 64;
    }
}

/* Called when the span had no free block. The open intent BITS names it until the second load; if this process dies
 * before that, recovery corrects the map. */
static void clear_up(uint32_t klass, uint32_t span)
{
    uint32_t bit = span;
    for (uint32_t level = 0; level < 3; level++) {
        sh_a64 *word = map_word(klass, level, bit / 64);
        uint64_t mask = UINT64_C(1) << (bit % 64);
        uint64_t left = sh_and_seq_cst(word, ~mask) & ~mask;
        SH_DEATH("span.clear.cleared");
        if (level == 0) {
            for (uint32_t i = 0; i < sh_class_map_words(klass); i++) {
                sh_a64 *w = sh_span_map_word(span, klass, i);
                if (w != NULL && sh_load_seq_cst(w) != 0) {
                    set_up(klass, span);
                    return;
                }
            }
        } else if (sh_load_seq_cst(map_word(klass, level - 1, bit)) != 0) {
            set_up(klass, span); /* sets the bits that are set again, and the cleared one */
            return;
        }
        if (left != 0) {
            return;
        }
        bit /= 64;
    }
}

bool sh_span_is_listed(uint32_t klass, uint32_t span)
{
    uint32_t bit = span;
    for (uint32_t level = 0; level < 3; level++) {
        if (((sh_load_acquire(map_word(klass, level, bit / 64)) >> (bit % 64)) & 1) == 0) {
            return false;
        }
        bit /= 64;
    }
    return true;
}

/* Returns a word of the map, or 0 if the level above says that there is nothing: it may have no memory. */
static uint64_t map_bits(uint32_t klass, uint32_t level, uint32_t word)
{
    if (level < 2 && ((map_bits(klass, level + 1, word / 64) >> (word % 64)) & 1) == 0) {
        return 0;
    }
    return sh_load_relaxed(map_word(klass, level, word));
}

/* Returns the next set bit of the level, from `from` on. Goes up a level when its word has none, and down again. */
static bool next_bit(uint32_t klass, uint32_t level, uint64_t from, uint64_t *out_bit)
{
    static const uint32_t words[3] = {SH_MAP_0, SH_MAP_1, SH_MAP_2};
    for (uint64_t word = from / 64, skip = from % 64; word < words[level]; skip = 0) {
        uint64_t bits = map_bits(klass, level, (uint32_t)word) & (~UINT64_C(0) << skip);
        if (bits != 0) {
            *out_bit = word * 64 + (uint64_t)__builtin_ctzll(bits);
            return true;
        }
        word++;
        if (level < 2 && !next_bit(klass, level + 1, word, &word)) {
            return false;
        }
    }
    return false;
}

static bool next_span(uint32_t klass, uint32_t from, uint32_t *out_span)
{
    uint64_t bit;
    if (!next_bit(klass, 0, from, &bit)) {
        return false;
    }
    *out_span = (uint32_t)bit;
    return true;
}

/* ---- spans ---- */

sh_a64 *sh_span_map_word(uint32_t span, uint32_t klass, uint32_t word)
{
    sh_found f;
    if (!sh_heap_find((uint64_t)span << SH_INDEX_BITS, &f) || f.klass != klass || word >= sh_class_map_words(klass)) {
        return NULL;
    }
    return (sh_a64 *)sh_at(sh_load_relaxed(&sh_span_at(span)->base)) + word;
}

void sh_heap_list(uint64_t id)
{
    sh_found f;
    if (!sh_heap_find(id, &f)) {
        return;
    }
    uint32_t span = (uint32_t)(id >> SH_INDEX_BITS), index = (uint32_t)(id & ((1u << SH_INDEX_BITS) - 1));
    sh_a64 *word = sh_span_map_word(span, f.klass, index / 64);
    sh_or_seq_cst(word, UINT64_C(1) << (index % 64));
    SH_DEATH("heap.list.half");
    set_up(f.klass, span);
}

void sh_heap_list_span(uint32_t span)
{
    sh_found f;
    if (!sh_heap_find((uint64_t)span << SH_INDEX_BITS, &f)) {
        return;
    }
    for (uint32_t w = 0; w < sh_class_map_words(f.klass); w++) {
        if (sh_load_seq_cst(sh_span_map_word(span, f.klass, w)) != 0) {
            set_up(f.klass, span);
            return;
        }
    }
    /* The span has no free block, but the upper levels may have to show bits of its neighbours. */
    for (uint32_t level = 1, bit = span / 64; level < 3; level++, bit /= 64) {
        if (sh_load_seq_cst(map_word(f.klass, level - 1, bit)) != 0) {
            sh_or_seq_cst(map_word(f.klass, level, bit / 64), UINT64_C(1) << (bit % 64));
        }
    }
}

/* Claims up to `want` free blocks of one span by clearing their bits. On success the intent stays open: the caller
 * stores the ids and ends it. */
static uint32_t claim_in(sh_ctx *c, uint32_t klass, uint32_t span, uint64_t *out_ids, uint32_t want)
{
    uint32_t words = sh_class_map_words(klass);
    for (uint32_t w = 0; w < words; w++) {
        sh_a64 *word = sh_span_map_word(span, klass, w);
        uint64_t bits = word != NULL ? sh_load_relaxed(word) : 0;
        if (bits == 0) {
            continue;
        }
        uint64_t mask = 0, rest = bits;
        for (uint32_t i = 0; i < want && rest != 0; i++) {
            mask |= rest & -rest;
            rest &= rest - 1;
        }
        sh_intent_begin(c, SH_INTENT_BITS, sh_offset_of(word), 0, 0, mask, 0, w, span);
        SH_DEATH("span.claim.begun");
        uint64_t got = sh_and_seq_cst(word, ~mask) & mask;
        SH_DEATH("span.claim.applied"); /* death: recovery lists the free ones among them again */
        uint32_t n = 0;
        for (; got != 0; got &= got - 1) {
            uint32_t index = w * 64 + (uint32_t)__builtin_ctzll(got);
            if (index < sh_class_blocks(klass)) {
                out_ids[n++] = (uint64_t)span << SH_INDEX_BITS | index;
            }
        }
        if (n > 0) {
            return n;
        }
        sh_intent_end(c);
    }
    return 0;
}

bool sh_span_claim(sh_ctx *c, uint32_t klass, uint64_t *out_ids, uint32_t want, uint32_t *out_got)
{
    uint32_t span = c->cursor[klass];
    bool wrapped = false;
    for (;;) {
        if (!next_span(klass, span, &span)) {
            if (wrapped) {
                return false;
            }
            wrapped = true;
            span = 0;
            continue;
        }
        uint32_t n = claim_in(c, klass, span, out_ids, want);
        if (n > 0) {
            c->cursor[klass] = span;
            *out_got = n;
            return true;
        }
        sh_intent_begin(c, SH_INTENT_BITS, 0, 0, 0, 0, 0, 0, span);
        clear_up(klass, span);
        sh_intent_end(c);
        span = span + 1 < SH_SPANS ? span + 1 : 0;
    }
}

/* Initialises a span that the frontier has given out. Idempotent: done by the process that took it, or by its
 * recovery. */
void sh_span_finish(uint32_t span, uint32_t klass, uint64_t base)
{
    sh_span_shm *s = sh_span_at(span);
    uint32_t blocks = sh_class_blocks(klass);
    sh_a64 *map = sh_at(base);
    if (sh_load_acquire(&s->klass) == 0) { /* new memory is zero: no more to write before it is visible */
        for (uint32_t i = 0; i < blocks; i++) {
            sh_meta_shm *meta = sh_at(base + sh_span_meta_at(klass) + i * sh_class_meta_stride(klass));
            sh_store_relaxed(&meta->word, SH_WORD_FREE);
        }
        SH_DEATH("span.finish.metas");
        sh_store_relaxed(&s->base, base);
        sh_store_release(&s->committed, SH_COMMIT_ALL);
        sh_store_release(&s->klass, klass + 1);
    }
    SH_DEATH("span.finish.visible");
    for (uint32_t w = 0; w < sh_class_map_words(klass); w++) {
        uint32_t n = blocks - w * 64 < 64 ? blocks - w * 64 : 64;
        sh_or_seq_cst(&map[w], n == 64 ? ~UINT64_C(0) : (UINT64_C(1) << n) - 1);
    }
    set_up(klass, span);
}

static shoal_err commit_tables(sh_ctx *c, uint32_t span, uint32_t klass, uint64_t base, uint64_t asked)
{
    struct {
        uint64_t at, size;
    } const ranges[] = {
        {sh_offset_of(sh_span_at(span)), sizeof(sh_span_shm)},
        {sh_offset_of(map_word(klass, 0, span / 64)), 8},
        {sh_offset_of(map_word(klass, 1, span / 64 / 64)), 8},
        {base, sh_span_head_bytes(klass)},
    };
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++) {
        SH_TRY(sh_commit(c, ranges[i].at, ranges[i].size, asked));
    }
    return SHOAL_OK;
}

shoal_err sh_span_make(sh_ctx *c, uint32_t klass, uint64_t asked)
{
    sh_a128 *frontier = &sh_the_world.header->frontier;
    uint64_t target = sh_offset_of(frontier), units = sh_span_bytes(klass) / SH_UNIT;
    for (;;) {
        uint64_t hi = sh_load_acquire(&frontier->hi), lo = sh_load_acquire(&frontier->lo);
        uint64_t span = hi >> SH_TAG_BITS, base = SH_HEAP_AT + lo * SH_UNIT;
        if (span >= SH_SPANS) {
            return sh_fail(SHOAL_ENOMEM, "heap: all %u spans are in use", SH_SPANS);
        }
        if (base > sh_the_world.size || units * SH_UNIT > sh_the_world.size - base) {
            return sh_fail(SHOAL_ENOMEM,
                           "heap: asked for %llu bytes, %llu bytes of the %llu reserved addresses are left",
                           (unsigned long long)asked,
                           (unsigned long long)(base > sh_the_world.size ? 0 : sh_the_world.size - base),
                           (unsigned long long)sh_the_world.size);
        }
        SH_DEATH("span.make.looked");
        /* Memory first, for the span that we hope to get: a failure leaves no trace. A process that loses the race,
         * perhaps because it was stopped here, has committed memory for what is now a span of another process, of
         * another class: more than that span needs, or knows of. So it gives that back (sh_trim_unknown). death: before
         * that, the memory stays until those blocks are used and trimmed. */
        SH_TRY(commit_tables(c, (uint32_t)span, klass, base, asked));
        uint64_t seen = hi & SH_TAG_MASK;
        sh_intent_confirm_in(c, seen, target, &frontier->hi, hi, UINT64_MAX);
        uint64_t tag = sh_intent_begin(c, SH_INTENT_SPAN, target, seen, 0, span | (uint64_t)klass << 32, 0, 0, base);
        SH_DEATH("span.make.begun");
        bool ours = sh_cas128(frontier, lo, hi, lo + units, (span + 1) << SH_TAG_BITS | tag);
        SH_DEATH("span.make.applied"); /* death: the tag is there; recovery finishes the span */
        if (ours) {
            sh_span_finish((uint32_t)span, klass, base);
            SH_DEATH("span.make.finished");
        }
        sh_intent_end(c);
        if (ours) {
            return SHOAL_OK;
        }
        sh_trim_unknown(c, (uint32_t)span);
    }
}
