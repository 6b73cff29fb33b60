/* Tensors to and from other libraries without a copy, by DLPack (https://dmlc.github.io/dlpack), ABI version 1.
 *
 * The structs below have the layout of DLPack's own DLManagedTensorVersioned under names of ours, so that a program may
 * include both headers and cast: (DLManagedTensorVersioned *)pack.
 *
 * Whoever holds a shoal_dlpack calls its deleter once, from any thread, when it needs the elements no more.
 */
#ifndef SHOAL_DLPACK_H
#define SHOAL_DLPACK_H

#include <shoal/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SHOAL_DLPACK_MAJOR 1
#define SHOAL_DLPACK_MINOR 0

/* Values of shoal_dlpack_device.type that are known here. */
enum {
    SHOAL_DLPACK_CPU = 1,
    SHOAL_DLPACK_CUDA = 2,
    SHOAL_DLPACK_CUDA_HOST = 3, /* memory of the host that a card can read */
};

/* Values of shoal_dlpack_dtype.code. */
enum {
    SHOAL_DLPACK_INT = 0,
    SHOAL_DLPACK_UINT = 1,
    SHOAL_DLPACK_FLOAT = 2,
    SHOAL_DLPACK_BFLOAT = 4,
    SHOAL_DLPACK_BOOL = 6,
};

/* Bits of shoal_dlpack.flags. */
#define SHOAL_DLPACK_READ_ONLY (UINT64_C(1) << 0) /* who receives it must not write */
#define SHOAL_DLPACK_COPIED (UINT64_C(1) << 1)    /* nobody else sees the memory */

/* A device in DLPack. */
typedef struct shoal_dlpack_device {
    int32_t type;
    int32_t id;
} shoal_dlpack_device;

/* An element type in DLPack. */
typedef struct shoal_dlpack_dtype {
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
} shoal_dlpack_dtype;

/* A tensor in DLPack. */
typedef struct shoal_dlpack {
    struct {
        uint32_t major;
        uint32_t minor;
    } version;
    void *manager;
    void (*deleter)(struct shoal_dlpack *self);
    uint64_t flags;
    struct {
        void *data;
        shoal_dlpack_device device;
        int32_t ndim;
        shoal_dlpack_dtype dtype;
        int64_t *shape;
        int64_t *strides; /* in elements; NULL: contiguous */
        uint64_t byte_offset;
    } tensor;
} shoal_dlpack;

/* Gives a tensor to another library. flags: 0, SHOAL_DLPACK_READ_ONLY (which asks the receiver not to write) and SHOAL_DLPACK_COPIED (which makes a
 * contiguous copy) or both. The pack holds a reference to the memory, so t may be released. While it is held a private
 * tensor's memory stays where it is: sharing it is SHOAL_ESTATE. Errors: SHOAL_ESTATE for a tensor that needs a gradient
 * (detach it first); SHOAL_EINVAL for other flags; SHOAL_ENOMEM. */
SHOAL_MUST_USE shoal_err shoal_tensor_to_dlpack(shoal_tensor *t, uint64_t flags, shoal_dlpack **out_pack);

/* Makes a tensor over the memory of a pack; the caller owns it. The pack is taken: its deleter is called when the last view of the
 * memory is released. A pack that is read-only is copied, and then deleted at once. After a failure the pack is still the
 * caller's. NULL: SHOAL_EINVAL for another major version, a device that is not the CPU, more than SHOAL_MAX_DIMS dims,
 * negative sizes or strides, several lanes, memory that is not aligned to its elements; SHOAL_ETYPE for an element type that is
 * not one of shoal_dtype; SHOAL_ENOMEM. */
shoal_tensor *shoal_tensor_from_dlpack(shoal_dlpack *pack);

#ifdef __cplusplus
}
#endif
#endif
