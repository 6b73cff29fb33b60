#include "shm/waits.h"

#include "shm/slot.h"

#include <stdio.h>

static _Thread_local sh_wait_kind serves;

sh_wait_kind sh_waits_serve(sh_wait_kind kind)
{
    sh_wait_kind before = serves;
    serves = kind;
    return before;
}

uint32_t sh_waits_begin(uint64_t name, sh_owner holder)
{
    if (sh_the_world.attachment != SH_ATTACHED) {
        return 0;
    }
    if (serves != SH_WAIT_NONE && sh_wait_is_at_object(name)) {
        name = sh_wait_name(serves, sh_wait_number(name));
    }
    if (holder != 0) {
        name |= (uint64_t)(sh_owner_slot(holder) + 1) << SH_WAIT_NUMBER_BITS;
    }
    sh_slot_shm *slot = sh_the_world.self.slot;
    for (uint32_t i = 0; i < SH_SLOT_WAITS; i++) {
        uint64_t none = 0;
        if (sh_load_relaxed(&slot->waits[i]) == 0 && sh_cas_acq_rel(&slot->waits[i], &none, name)) {
            return i + 1;
        }
    }
    return 0;
}

/* The slot is looked up anew: a handler that interrupted the wait may have forked, and we are the child. */
void sh_waits_end(uint32_t entry)
{
    if (entry != 0 && sh_the_world.attachment == SH_ATTACHED) {
        sh_store_release(&sh_the_world.self.slot->waits[entry - 1], 0);
    }
}

/* ---- words ---- */

static const struct {
    const char *before, *after; /* the number */
} words[SH_WAIT_KINDS] = {
    [SH_WAIT_GET] = {"gets from queue ", ""},
    [SH_WAIT_PUT] = {"puts into queue ", ""},
    [SH_WAIT_DONE] = {"joins queue ", ""},
    [SH_WAIT_RECEIVE] = {"receives from pipe ", ""},
    [SH_WAIT_LOCK] = {"waits for lock ", ""},
    [SH_WAIT_RLOCK] = {"waits for recursive lock ", ""},
    [SH_WAIT_SEMAPHORE] = {"waits for semaphore ", ""},
    [SH_WAIT_CONDITION] = {"waits for condition ", ""},
    [SH_WAIT_CONDITION_LOCK] = {"waits for the lock of condition ", ""},
    [SH_WAIT_EVENT] = {"waits for event ", ""},
    [SH_WAIT_BARRIER] = {"waits at barrier ", ""},
    [SH_WAIT_POOL] = {"waits for its pool (queue ", ")"},
    [SH_WAIT_TASK] = {"waits for a task (queue ", ")"},
    [SH_WAIT_BATCH] = {"waits for a batch (queue ", ")"},
    [SH_WAIT_PROCESS] = {"joins process ", ""},
    [SH_WAIT_PROCESSES] = {"joins ", " processes"},
    [SH_WAIT_ANY] = {"waits for one of ", ""},
    [SH_WAIT_SERVER] = {"waits for fork server ", ""},
    [SH_WAIT_REQUEST] = {"serves process ", ""},
};

void sh_wait_words(uint64_t name, const sh_slot_shm *slots, char *buffer, size_t capacity)
{
    uint32_t kind = sh_wait_kind_of(name), holder = sh_wait_holder(name);
    if (kind == SH_WAIT_NONE || kind >= SH_WAIT_KINDS) {
        buffer[0] = 0;
        return;
    }
    int n = snprintf(buffer, capacity, "%s%llu%s", words[kind].before, (unsigned long long)sh_wait_number(name),
                     words[kind].after);
    uint32_t pid = holder != 0 && holder <= SH_SLOTS ? sh_load_relaxed(&slots[holder - 1].pid) : 0;
    if (pid != 0 && n > 0 && (size_t)n < capacity) {
        snprintf(buffer + n, capacity - (size_t)n, ", held by %u", pid);
    }
}
