#include "share/record.h"

#include "base/error.h"

#include <string.h>

/* Inside: stores references to the objects in the record. */
static shoal_err refer(sh_ctx *c, sh_message_shm *shm, shoal_block *const *objects, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        SH_TRY(sh_block_give(c, objects[i], sh_offset_of(&shm->references[i])));
    }
    return SHOAL_OK;
}

shoal_err sh_record_create(sh_kind kind, shoal_block *const *objects, size_t count, const void *bytes, size_t size,
                           shoal_block **out_record)
{
    size_t head = sizeof(sh_message_shm) + count * sizeof(sh_a64);
    sh_ctx *c = sh_enter();
    if (c == NULL) {
        return shoal_last_error();
    }
    shoal_block *b = NULL;
    shoal_err err = sh_block_new(c, sh_class_of(head + size), head + size, &b);
    if (err == SHOAL_OK) {
        sh_message_shm *shm = (sh_message_shm *)b->data;
        memset(b->data, 0, head);
        sh_store_relaxed(&shm->count, count);
        sh_store_relaxed(&shm->size, size);
        memcpy(b->data + head, bytes, size);
        sh_heap_set_kind(b->id, kind); /* its references are zeros at this point */
        b->kind = kind;
        /* death: the record has one holder, our slot; recovery releases it with the references that it has so far. */
        err = refer(c, shm, objects, count);
        if (err == SHOAL_OK) {
            *out_record = b;
        } else {
            sh_block_unref(c, b);
        }
    }
    sh_leave();
    return err;
}

bool sh_record_read(const shoal_block *record, sh_record *out)
{
    if (record->size < sizeof(sh_message_shm)) {
        return false;
    }
    sh_message_shm *shm = (sh_message_shm *)record->data;
    uint64_t room = record->size - sizeof *shm;
    uint64_t count = (uint32_t)sh_load_relaxed(&shm->count), size = sh_load_relaxed(&shm->size);
    if (count > room / sizeof(sh_a64) || size > room - count * sizeof(sh_a64)) {
        return false;
    }
    *out = (sh_record){
        .count = count,
        .size = size,
        .references = shm->references,
        .bytes = record->data + sizeof *shm + count * sizeof(sh_a64),
    };
    return true;
}

shoal_err sh_record_open(const sh_record *record, uint64_t i, shoal_block **out_block)
{
    sh_ref ref = i < record->count ? sh_load_acquire(&record->references[i]) : 0;
    if (sh_ref_weight(ref) == 0) {
        return sh_fail(SHOAL_ECORRUPT, "the object %llu of a record is missing", (unsigned long long)i);
    }
    sh_ctx *c = sh_enter_held();
    if (c == NULL) {
        return shoal_last_error();
    }
    shoal_err err = sh_block_open(c, sh_ref_id(ref), out_block);
    sh_leave();
    return err;
}
