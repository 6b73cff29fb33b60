#include "shm/waits.h"

#include "shm/slot.h"

#include <stdio.h>

static _Thread_local sh_waits_kind serves;

sh_waits_kind sh_waits_serve(sh_waits_kind kind)
{
    sh_waits_kind before = serves;
    serves = kind;
    return before;
}

uint32_t sh_waits_begin(uint64_t name, sh_owner holder)
{
    if (sh_attachment_now() != SH_ATTACHED) {
        return 0;
    }
    if (serves != SH_WAITS_NONE && sh_waits_is_at_object(name)) {
        name = sh_waits_name(serves, sh_waits_number(name));
    }
    if (holder != 0) {
        name |= (uint64_t)(sh_owner_slot(holder) + 1) << SH_WAITS_NUMBER_BITS;
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

/* Looks the slot up again: a handler that interrupted the wait may have forked, and this may be the child. */
void sh_waits_end(uint32_t entry)
{
    if (entry != 0 && sh_attachment_now() == SH_ATTACHED) {
        sh_store_release(&sh_the_world.self.slot->waits[entry - 1], 0);
    }
}

/* ---- texts ---- */

static const struct {
    const char *before, *after; /* before and after the number */
} words[SH_WAITS_KINDS] = {
    [SH_WAITS_GET] = {"gets from queue ", ""},
    [SH_WAITS_PUT] = {"puts into queue ", ""},
    [SH_WAITS_DONE] = {"joins queue ", ""},
    [SH_WAITS_RECEIVE] = {"receives from pipe ", ""},
    [SH_WAITS_LOCK] = {"waits for lock ", ""},
    [SH_WAITS_RLOCK] = {"waits for recursive lock ", ""},
    [SH_WAITS_SEMAPHORE] = {"waits for semaphore ", ""},
    [SH_WAITS_CONDITION] = {"waits for condition ", ""},
    [SH_WAITS_CONDITION_LOCK] = {"waits for the lock of condition ", ""},
    [SH_WAITS_EVENT] = {"waits for event ", ""},
    [SH_WAITS_BARRIER] = {"waits at barrier ", ""},
    [SH_WAITS_POOL] = {"waits for its pool (queue ", ")"},
    [SH_WAITS_TASK] = {"waits for a task (queue ", ")"},
    [SH_WAITS_BATCH] = {"waits for a batch (queue ", ")"},
    [SH_WAITS_PROCESS] = {"joins process ", ""},
    [SH_WAITS_PROCESSES] = {"joins ", " processes"},
    [SH_WAITS_ANY] = {"waits for one of ", ""},
    [SH_WAITS_SERVER] = {"waits for fork server ", ""},
    [SH_WAITS_REQUEST] = {"serves process ", ""},
};

void sh_waits_describe(uint64_t name, const sh_slot_shm *slots, char *buffer, size_t capacity)
{
    uint32_t kind = sh_waits_kind_of(name), holder = sh_waits_holder(name);
    if (kind == SH_WAITS_NONE || kind >= SH_WAITS_KINDS) {
        buffer[0] = 0;
        return;
    }
    int n = snprintf(buffer, capacity, "%s%llu%s", words[kind].before, (unsigned long long)sh_waits_number(name),
                     words[kind].after);
    uint32_t pid = holder != 0 && holder <= SH_SLOTS ? sh_load_relaxed(&slots[holder - 1].pid) : 0;
    if (pid != 0 && n > 0 && (size_t)n < capacity) {
        snprintf(buffer + n, capacity - (size_t)n, ", held by %u", pid);
    }
}
