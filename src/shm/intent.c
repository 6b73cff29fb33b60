#include "shm/intent.h"

uint64_t sh_intent_seen[SH_SLOTS];
uint64_t sh_intent_seen_when[SH_SLOTS];
uint64_t sh_intent_seen_tick[SH_SLOTS];

void sh_intent_forget(void)
{
    for (uint32_t i = 0; i < SH_SLOTS; i++) {
        sh_intent_seen[i] = 0;
        sh_intent_seen_when[i] = sh_coarse_time() - 1;
    }
}

void sh_intent_confirm_slow(uint64_t tag, uint64_t target, const sh_a64 *word, uint64_t seen, uint64_t mask)
{
    uint32_t index = (uint32_t)(tag >> SH_SEQ_BITS);
    sh_slot_shm *slot = sh_slot_at(index);
    uint64_t tick = sh_coarse_tick(),
             when = sh_coarse_time(); /* before the load: if we are stopped in between, the value counts as too old */
    /* The tag was read with acquire, after the release or stronger swap that wrote it. So if its operation is still the
     * latest of its slot, all fields of the intent are visible here. */
    SH_DEATH("intent.confirm.looked"); /* a stop here may last for 2^24 operations of the other slot: intent.h */
    uint64_t seq = sh_load_acquire(&slot->intent.seq);
    /* Private memory: sh_enter lets one thread in at a time. */
    sh_intent_seen[index] = seq;
    sh_intent_seen_when[index] = when;
    sh_intent_seen_tick[index] = tick;
    if ((seq & SH_SEQ_MASK) != (tag & SH_SEQ_MASK) || sh_load_acquire(&slot->intent.target) != target ||
        sh_load_acquire(&slot->intent.seq) != seq) {
        return; /* closed, or an old tag */
    }
    if (((sh_load_acquire(word) ^ seen) & mask) != 0) { /* after seq and target: intent.h */
        return;
    }
    uint64_t confirmed = sh_load_relaxed(&slot->confirmed);
    while (confirmed < seq && !sh_cas_acq_rel(&slot->confirmed, &confirmed, seq)) {
    }
    SH_DEATH("intent.confirmed");
}
