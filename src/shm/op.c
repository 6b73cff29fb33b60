#include "shm/op.h"

uint64_t sh_op_seen[SH_SLOTS];
uint32_t sh_op_seen_when[SH_SLOTS];

uint64_t sh_op_begin(sh_ctx *c, sh_op_code code, uint64_t target, uint64_t seen_a, uint64_t seen_b, uint64_t word,
                     uint64_t cell, uint64_t value, uint64_t extra)
{
    sh_op_shm *op = &c->slot->op;
    uint64_t seq = sh_load_relaxed(&op->seq) + 1;
    while ((seq & SH_SEQ_MASK) == 0 || sh_tag(c->index, seq) == seen_a || sh_tag(c->index, seq) == seen_b) {
        seq++;
    }
    /* code is NONE here: a death among these stores leaves no note, and nothing has happened yet. */
    sh_store_relaxed(&op->target, target);
    sh_store_relaxed(&op->word, word);
    sh_store_relaxed(&op->cell, cell);
    sh_store_relaxed(&op->value, value);
    sh_store_relaxed(&op->extra, extra);
    sh_store_release(&op->seq, seq);
    sh_store_release(&op->code, (uint64_t)code); /* pairs with the acquire in recovery: the note is whole */
    return sh_tag(c->index, seq);
}

void sh_op_forget(void)
{
    for (uint32_t i = 0; i < SH_SLOTS; i++) {
        sh_op_seen_when[i] = sh_coarse_time() - 1;
    }
}

void sh_op_confirm_slow(uint64_t tag, uint64_t target)
{
    uint32_t index = (uint32_t)(tag >> SH_SEQ_BITS);
    sh_slot_shm *slot = sh_slot_at(index);
    /* The tag was read with acquire, after the release or stronger swap that wrote it, so if its operation is still
     * the latest of its slot all fields of the note are visible here. */
    uint64_t seq = sh_load_acquire(&slot->op.seq);
    /* Racy with our other threads only in recovery of private memory: sh_enter lets one thread in. */
    sh_op_seen[index] = seq;
    sh_op_seen_when[index] = sh_coarse_time();
    if ((seq & SH_SEQ_MASK) != (tag & SH_SEQ_MASK) || sh_load_acquire(&slot->op.target) != target ||
        sh_load_acquire(&slot->op.seq) != seq) {
        return; /* closed, or a tag of long ago */
    }
    uint64_t confirmed = sh_load_relaxed(&slot->confirmed);
    while (confirmed < seq && !sh_cas_acq_rel(&slot->confirmed, &confirmed, seq)) {
    }
    SH_DEATH("op.confirmed");
}
