/* Tensors of a card in values: before a message goes, each tensor in it says what its receiver must wait for. A
 * tensor's own put does that by itself (description.c); a value may have been made long before it is sent. */
#include "base/error.h"
#include "device/cuda_share.h"
#include "share/description.h"

/* The first object of a description is its piece, the second the description of its grad. */
static shoal_err mark_description(const shoal_block *description, bool is_grad);

/* Returns the work word of the piece of that id, or NULL if it is another block. */
static sh_a64 *work_of(uint64_t id)
{
    sh_found f;
    sh_piece piece;
    if (sh_enter_held() == NULL) {
        return NULL;
    }
    bool found = sh_heap_find(id, &f) && f.kind == SH_KIND_PIECE && sh_piece_look(&f, &piece);
    sh_leave();
    return found ? piece.work : NULL;
}

static shoal_err mark_reference(const sh_record *r, uint64_t i, bool is_grad)
{
    sh_found f;
    uint64_t id = sh_ref_id(sh_load_acquire(&r->references[i]));
    if (!sh_heap_find(id, &f)) {
        return SHOAL_OK;
    }
    shoal_block seen = {.id = id, .kind = f.kind, .data = f.data, .size = f.size};
    return f.kind == SH_KIND_TENSOR ? mark_description(&seen, is_grad) : SHOAL_OK;
}

static shoal_err mark_description(const shoal_block *description, bool is_grad)
{
    sh_record r;
    if (!sh_record_read(description, &r) || r.count == 0) {
        return SHOAL_OK; /* nonsense: the receiver says so */
    }
    sh_a64 *work = work_of(sh_ref_id(sh_load_acquire(&r.references[0])));
    if (work) {
        SH_TRY(sh_cuda_mark(work));
    }
    return r.count > 1 && !is_grad ? mark_reference(&r, 1, true) : SHOAL_OK;
}

/* A sparse tensor and a module refer to the descriptions of their tensors. */
shoal_err sh_share_mark_work(const shoal_block *object)
{
    sh_record r;
    if (!sh_cuda_is_ours()) {
        return SHOAL_OK;
    }
    if (object->kind == SH_KIND_TENSOR) {
        return mark_description(object, false);
    }
    if ((object->kind == SH_KIND_SPARSE || object->kind == SH_KIND_MODULE) && sh_record_read(object, &r)) {
        for (uint64_t i = 0; i < r.count; i++) {
            SH_TRY(mark_reference(&r, i, false));
        }
    }
    return SHOAL_OK;
}
