/* DLPack: passes tensors to and from other libraries without a copy (https://dmlc.github.io/dlpack, ABI version 1).
 *
 * The structs below have the layout of DLPack's DLManagedTensorVersioned under other names, so that a program may
 * include both headers and cast: (DLManagedTensorVersioned *)pack.
 *
 * The holder of a shoal_dlpack must call its deleter once, from any thread, when it no longer needs the elements.
 * After a fork each process has its own copy of the pack and calls the deleter for itself. After shoal_world_leave
 * the elements of a shared tensor are gone: a pack of one may only be deleted. Threads may use different packs at
 * the same time; tensor.h says how they may use the elements.
 *
 * On a GPU, work is done later, in streams. Whoever exports a tensor makes the receiver's stream wait for Shoal's work
 * (shoal_cuda_precede_stream), and before the deleter is called, Shoal's work wait for the receiver's stream
 * (shoal_cuda_follow_stream). Whoever imports one makes Shoal's work wait for the stream that computed it
 * (shoal_cuda_follow_stream).
 */
#ifndef SHOAL_DLPACK_H
#define SHOAL_DLPACK_H

#include <shoal/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of DLPack. */
#define SHOAL_DLPACK_MAJOR 1
#define SHOAL_DLPACK_MINOR 0

/* The values of shoal_dlpack_device.type that Shoal uses. It exports tensors of the CPU and of CUDA, and imports
 * these and those of CUDA_HOST. */
enum {
    SHOAL_DLPACK_CPU = 1,
    SHOAL_DLPACK_CUDA = 2,
    SHOAL_DLPACK_CUDA_HOST = 3, /* host memory that a GPU can read */
};

/* The values of shoal_dlpack_dtype.code. shoal_tensor_from_dlpack accepts those that have a shoal_dtype (dtype.h) of
 * the same size. */
enum {
    SHOAL_DLPACK_INT = 0,
    SHOAL_DLPACK_UINT = 1,
    SHOAL_DLPACK_FLOAT = 2,
    SHOAL_DLPACK_BFLOAT = 4,
    SHOAL_DLPACK_BOOL = 6,
};

/* Bits of shoal_dlpack.flags. As an argument of shoal_tensor_to_dlpack they ask for such a pack. */
#define SHOAL_DLPACK_READ_ONLY (UINT64_C(1) << 0) /* the receiver must not write */
#define SHOAL_DLPACK_COPIED (UINT64_C(1) << 1)    /* the memory is a copy that no one else uses */

/* A device in DLPack. */
typedef struct shoal_dlpack_device {
    int32_t type; /* SHOAL_DLPACK_CPU and so on */
    int32_t id;   /* the number of the GPU; 0 for the CPU */
} shoal_dlpack_device;

/* An element type in DLPack. */
typedef struct shoal_dlpack_dtype {
    uint8_t code;   /* SHOAL_DLPACK_INT and so on */
    uint8_t bits;   /* of one element */
    uint16_t lanes; /* 1; more for vector types, which are not supported */
} shoal_dlpack_dtype;

/* A tensor in DLPack. The elements begin byte_offset bytes after data. shape and strides have ndim members and
 * belong to the pack; strides are in elements, and NULL means contiguous. */
typedef struct shoal_dlpack {
    struct {
        uint32_t major;
        uint32_t minor;
    } version;
    void *manager;                              /* for the library that made the pack */
    void (*deleter)(struct shoal_dlpack *self); /* frees the pack; NULL if there is nothing to free */
    uint64_t flags;                             /* SHOAL_DLPACK_READ_ONLY, SHOAL_DLPACK_COPIED */
    struct {
        void *data;
        shoal_dlpack_device device;
        int32_t ndim;
        shoal_dlpack_dtype dtype;
        int64_t *shape;
        int64_t *strides; /* in elements; NULL means contiguous */
        uint64_t byte_offset;
    } tensor;
} shoal_dlpack;

/* Exports a tensor to another library. flags is 0 or a combination of SHOAL_DLPACK_READ_ONLY, which asks the
 * receiver not to write, and SHOAL_DLPACK_COPIED, which makes a contiguous copy. The pack holds a reference to the
 * memory, so t may be released; the holder calls the pack's deleter. As long as the pack exists, a private tensor
 * cannot be shared (SHOAL_ESTATE), because its memory must not move: share it first, or clone it. Does not block.
 * Errors: SHOAL_ESTATE if the tensor needs a gradient (detach it first); SHOAL_EINVAL if t or out_pack is NULL or
 * there are other flags; SHOAL_ENOMEM; SHOAL_ECUDA and SHOAL_EFORK for a tensor on a GPU. */
SHOAL_MUST_USE shoal_err shoal_tensor_to_dlpack(shoal_tensor *t, uint64_t flags, shoal_dlpack **out_pack);

/* Makes a tensor over the memory of another library. The caller owns the tensor. The pack now belongs to the tensor,
 * which calls the pack's deleter, if it has one, when the last tensor over the memory is released. A read-only pack is
 * copied and deleted at once. After a failure the caller still owns the pack. The tensor cannot be shared or sent to
 * another process, unless it is such a copy (SHOAL_EINVAL): clone it first (shoal_clone). Does not block; the release
 * of GPU memory that has a deleter waits until Shoal's work is done, and so does the copy of a read-only pack. Returns
 * NULL on failure, and for NULL. Errors: SHOAL_EINVAL if the pack has another major version (a newer minor version is
 * accepted), a device that is neither the CPU nor this process's GPU, more than SHOAL_MAX_DIMS dims, negative sizes or
 * strides, several lanes, no data, or memory that is not aligned to its elements; SHOAL_ETYPE if no shoal_dtype fits
 * the element type; SHOAL_ENOMEM; those of shoal_cuda_memory_get for GPU memory. */
shoal_tensor *shoal_tensor_from_dlpack(shoal_dlpack *pack);

#ifdef __cplusplus
}
#endif
#endif
