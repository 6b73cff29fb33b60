/* DLPack: lending memory to other libraries, and using theirs. */
#include "tensor/tensor.h"

#include "base/error.h"
#include "device/cuda_capture.h"
#include "device/cuda_share.h"

#include <shoal/dlpack.h>

#include <stdlib.h>
#include <string.h>

/* Checks the layout against the ABI. */
_Static_assert(sizeof(shoal_dlpack) == 80 && offsetof(shoal_dlpack, manager) == 8 &&
                   offsetof(shoal_dlpack, deleter) == 16 && offsetof(shoal_dlpack, flags) == 24 &&
                   offsetof(shoal_dlpack, tensor.data) == 32 && offsetof(shoal_dlpack, tensor.device) == 40 &&
                   offsetof(shoal_dlpack, tensor.ndim) == 48 && offsetof(shoal_dlpack, tensor.dtype) == 52 &&
                   offsetof(shoal_dlpack, tensor.shape) == 56 && offsetof(shoal_dlpack, tensor.strides) == 64 &&
                   offsetof(shoal_dlpack, tensor.byte_offset) == 72,
               "the layout of DLManagedTensorVersioned");

static const shoal_dlpack_dtype dtypes[SHOAL_DTYPES] = {
    [SHOAL_F32] = {SHOAL_DLPACK_FLOAT, 32, 1},   [SHOAL_F64] = {SHOAL_DLPACK_FLOAT, 64, 1},
    [SHOAL_BF16] = {SHOAL_DLPACK_BFLOAT, 16, 1}, [SHOAL_F16] = {SHOAL_DLPACK_FLOAT, 16, 1},
    [SHOAL_I64] = {SHOAL_DLPACK_INT, 64, 1},     [SHOAL_I32] = {SHOAL_DLPACK_INT, 32, 1},
    [SHOAL_U8] = {SHOAL_DLPACK_UINT, 8, 1},      [SHOAL_B8] = {SHOAL_DLPACK_BOOL, 8, 1},
};

/* ---- out ---- */

typedef struct export
{
    shoal_dlpack pack;
    shoal_tensor *t;
    int64_t shape[SHOAL_MAX_DIMS];
    int64_t strides[SHOAL_MAX_DIMS];
}
export;

static void export_delete(shoal_dlpack *pack)
{
    export *e = pack->manager;
    (void)sh_sub_acq_rel(&e->t->storage->pins, 1);
    shoal_tensor_release(e->t);
    free(e);
}

/* Makes another tensor over the same memory, or a copy. It is not recorded for autograd, so any thread may release
 * it. */
static shoal_tensor *export_of(const shoal_tensor *t, bool copy)
{
    sh_shape s;
    sh_tensor_shape_of(t, &s);
    return copy ? sh_tensor_new_copy(t) : sh_tensor_over(t->storage, &s);
}

static shoal_err check_export(const shoal_tensor *t, uint64_t flags)
{
    sh_text text;
    if ((flags & ~(SHOAL_DLPACK_READ_ONLY | SHOAL_DLPACK_COPIED)) != 0) {
        return sh_fail(SHOAL_EINVAL, "shoal_tensor_to_dlpack: unknown flags %#llx", (unsigned long long)flags);
    }
    if (sh_tensor_check(t) != SHOAL_OK) {
        return shoal_last_error();
    }
    if (t->requires_grad) {
        return sh_fail(SHOAL_ESTATE, "shoal_tensor_to_dlpack: %s needs a gradient: detach it first",
                       sh_tensor_text(&text, t));
    }
    /* In a child of fork its address means nothing. */
    return t->storage->device == &sh_device_cuda ? sh_cuda_check() : SHOAL_OK;
}

shoal_err shoal_tensor_to_dlpack(shoal_tensor *t, uint64_t flags, shoal_dlpack **out_pack)
{
    SH_NEED(out_pack);
    SH_NEED_TENSOR(t);
    SH_TRY(check_export(t, flags));
    export *e = malloc(sizeof *e);
    shoal_tensor *alias = e ? export_of(t, flags & SHOAL_DLPACK_COPIED) : NULL;
    if (!alias) {
        free(e);
        return e ? shoal_last_error() : sh_fail(SHOAL_ENOMEM, "no memory for %zu bytes", sizeof *e);
    }
    *e = (export){.t = alias};
    memcpy(e->shape, alias->shape, sizeof e->shape);
    memcpy(e->strides, alias->strides, sizeof e->strides);
    e->pack.version.major = SHOAL_DLPACK_MAJOR;
    e->pack.version.minor = SHOAL_DLPACK_MINOR;
    e->pack.manager = e;
    e->pack.deleter = export_delete;
    e->pack.flags = flags;
    e->pack.tensor.data = alias->storage->data;
    e->pack.tensor.byte_offset = (uint64_t)alias->offset * shoal_dtype_size(alias->dtype);
    if (alias->storage->device == &sh_device_cuda) {
        e->pack.tensor.device = (shoal_dlpack_device){SHOAL_DLPACK_CUDA, sh_cuda_the_card()->index};
    } else {
        e->pack.tensor.device.type = SHOAL_DLPACK_CPU;
    }
    e->pack.tensor.ndim = alias->ndim;
    e->pack.tensor.dtype = dtypes[alias->dtype];
    e->pack.tensor.shape = e->shape;
    e->pack.tensor.strides = e->strides;
    (void)sh_add_relaxed(&alias->storage->pins, 1);
    *out_pack = &e->pack;
    return SHOAL_OK;
}

/* ---- in ---- */

static shoal_err find_dtype(const shoal_dlpack *pack, shoal_dtype *out)
{
    const shoal_dlpack_dtype *given = &pack->tensor.dtype;
    if (given->lanes != 1) {
        return sh_fail(SHOAL_EINVAL, "shoal_tensor_from_dlpack: elements have %d lanes, not 1", given->lanes);
    }
    for (int i = 0; i < SHOAL_DTYPES; i++) {
        if (dtypes[i].code == given->code && dtypes[i].bits == given->bits) {
            *out = (shoal_dtype)i;
            return SHOAL_OK;
        }
    }
    return sh_fail(SHOAL_ETYPE, "shoal_tensor_from_dlpack: no dtype for code %d with %d bits", given->code,
                   given->bits);
}

static shoal_err check_import(const shoal_dlpack *pack)
{
    int32_t device = pack->tensor.device.type, ndim = pack->tensor.ndim;
    if (pack->version.major != SHOAL_DLPACK_MAJOR) {
        return sh_fail(SHOAL_EINVAL, "shoal_tensor_from_dlpack: the version is %u.%u, not %d.x", pack->version.major,
                       pack->version.minor, SHOAL_DLPACK_MAJOR);
    }
    if (device != SHOAL_DLPACK_CPU && device != SHOAL_DLPACK_CUDA_HOST && device != SHOAL_DLPACK_CUDA) {
        return sh_fail(SHOAL_EINVAL, "shoal_tensor_from_dlpack: the device has type %d, neither the CPU nor a CUDA GPU",
                       device);
    }
    if (ndim < 0 || ndim > SHOAL_MAX_DIMS || (ndim > 0 && !pack->tensor.shape)) {
        return sh_fail(SHOAL_EINVAL, "shoal_tensor_from_dlpack: a tensor has 0 to %d dims, not %d", SHOAL_MAX_DIMS,
                       ndim);
    }
    return SHOAL_OK;
}

/* Reads the shape, for memory that begins at the first element. */
static shoal_err import_shape(const shoal_dlpack *pack, sh_shape *s)
{
    shoal_dtype dtype = SHOAL_F32;
    SH_TRY(check_import(pack));
    SH_TRY(find_dtype(pack, &dtype));
    SH_TRY(sh_shape_init(s, dtype, pack->tensor.ndim, pack->tensor.shape));
    for (int d = 0; pack->tensor.strides && d < s->ndim; d++) {
        int64_t stride = pack->tensor.strides[d];
        if (s->shape[d] > 1 && stride < 0) {
            return sh_fail(SHOAL_EINVAL, "shoal_tensor_from_dlpack: stride %lld of dim %d is negative",
                           (long long)stride, d);
        }
        s->strides[d] = s->shape[d] > 1 ? stride : s->strides[d];
    }
    return SHOAL_OK;
}

static shoal_err check_memory(const shoal_dlpack *pack, const sh_shape *s)
{
    sh_text text;
    if (sh_shape_reach(s) < 0 || sh_shape_count(s) < 0) {
        return sh_fail(SHOAL_EINVAL, "shoal_tensor_from_dlpack: shape %s with its strides exceeds the address space",
                       sh_shape_text(&text, s->ndim, s->shape));
    }
    if (!pack->tensor.data && sh_shape_count(s) > 0) {
        return sh_fail(SHOAL_EINVAL, "shoal_tensor_from_dlpack: the data pointer is NULL, but the shape is %s",
                       sh_shape_text(&text, s->ndim, s->shape));
    }
    uintptr_t first = (uintptr_t)pack->tensor.data + (uintptr_t)pack->tensor.byte_offset;
    size_t size = shoal_dtype_size(s->dtype);
    if (first % size != 0) {
        return sh_fail(SHOAL_EINVAL, "shoal_tensor_from_dlpack: memory at %#llx is not aligned to %s of %zu bytes",
                       (unsigned long long)first, shoal_dtype_name(s->dtype), size);
    }
    return SHOAL_OK;
}

static void delete_pack(void *pack)
{
    shoal_dlpack *p = pack;
    if (p->deleter) {
        p->deleter(p);
    }
}

/* Its owner may use the memory at once, in a stream that Shoal does not know: so Shoal's work with it must be done.
 * This cannot wait until a capture of this thread ends, so it ends the capture. */
static void delete_card_pack(void *pack)
{
    const shoal_dlpack *p = pack;
    sh_cleanup_begin();
    if (p->deleter && sh_cuda_is_ours() && sh_cuda_check() == SHOAL_OK) {
        (void)sh_cuda_capture_refuse("giving memory back to another library");
        sh_cuda_order_finish();
    }
    sh_cleanup_end();
    delete_pack(pack);
}

/* Returns the device of the pack's memory; NULL with the error set if this process cannot use it. */
static const sh_device *import_device(const shoal_dlpack *pack)
{
    if (pack->tensor.device.type != SHOAL_DLPACK_CUDA) {
        return &sh_device_cpu;
    }
    const sh_device *device = sh_device_get(SHOAL_CUDA);
    int card = device ? sh_cuda_the_card()->index : 0;
    if (device && pack->tensor.device.id != card) {
        (void)sh_fail(
            SHOAL_EINVAL,
            "shoal_tensor_from_dlpack: the tensor is on GPU %d, and this process uses GPU %d: set SHOAL_CUDA_DEVICE",
            pack->tensor.device.id, card);
        device = NULL;
    }
    return device;
}

shoal_tensor *shoal_tensor_from_dlpack(shoal_dlpack *pack)
{
    sh_shape s;
    if (!pack) {
        (void)sh_null_in("shoal_tensor_from_dlpack", "pack");
        return NULL;
    }
    if (import_shape(pack, &s) != SHOAL_OK || check_memory(pack, &s) != SHOAL_OK) {
        return NULL;
    }
    const sh_device *device = import_device(pack);
    if (!device) {
        return NULL;
    }
    void (*release)(void *) = device == &sh_device_cpu ? delete_pack : delete_card_pack;
    char *first = pack->tensor.data ? (char *)pack->tensor.data + pack->tensor.byte_offset : NULL;
    sh_storage *storage = sh_storage_create_foreign(device, first, (size_t)sh_shape_reach(&s), NULL, pack);
    shoal_tensor *t = storage ? sh_tensor_over(storage, &s) : NULL;
    if (t && (pack->flags & SHOAL_DLPACK_READ_ONLY)) {
        shoal_tensor *copy = sh_tensor_new_copy(t);
        shoal_tensor_release(t);
        t = copy;
        if (t) {
            release(pack);
        }
    } else if (t) {
        storage->release = release;
    }
    sh_storage_release(storage);
    return t;
}
