/* What the torch glue offers to the extension module shoal._shoal: plain tensors as a few bytes and their memory.
 *
 * The glue is C++ for one version of torch and Python (shoal._torch_glue). The extension is C for all of them. They
 * meet in this struct, which the glue exports as the capsule `shoal._torch_glue.api`. All functions need the
 * interpreter's lock.
 */
#ifndef SHOAL_TORCH_GLUE_H
#define SHOAL_TORCH_GLUE_H

#include <Python.h>

#include <shoal/handle.h>
#include <shoal/tensor.h>

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SHOAL_TORCH_GLUE_VERSION 3
#define SHOAL_TORCH_GLUE_CAPSULE "shoal._torch_glue.api"

/* The most bytes that describe writes: dtype, flags, offset, and sizes and strides of up to SHOAL_TORCH_DIMS_MAX. */
#define SHOAL_TORCH_DIMS_MAX 16
#define SHOAL_TORCH_META_MAX (16 + 16 * SHOAL_TORCH_DIMS_MAX)

/* The memory of a torch storage: a block of the heap, or a tensor of bytes on a GPU. The other one is NULL. */
typedef struct shoal_torch_memory {
    shoal_block *block;
    shoal_tensor *tensor;
} shoal_torch_memory;

typedef struct shoal_torch_glue {
    int version; /* SHOAL_TORCH_GLUE_VERSION */

    /* Describes a tensor and moves its storage into the heap, or into GPU memory of Shoal's. A storage whose memory is
     * in the heap already, by whatever way torch got it, stays where it is. Returns
     *  1 for a strided tensor of the CPU or a CUDA GPU that is exactly a torch.Tensor or a torch.nn.Parameter and has
     *    nothing but its data: no grad, hooks, attributes, names, conjugate or negative bit. *out_memory has a new
     *    reference to its memory, and *out_size bytes were written to meta. On a GPU, torch's current stream comes
     *    before what is done with the memory later.
     *  0 for anything else, which pickle must carry; also for memory that torch itself has shared, which must stay
     *    where it is. Nothing was changed.
     * -1 if a Python exception is set: for a non-leaf tensor that requires grad, if there is no memory, if the elements
     *    are not aligned in a block that torch was given, or if GPU memory is not torch's own. */
    int (*describe)(PyObject *obj, unsigned char *meta, size_t capacity, size_t *out_size,
                    shoal_torch_memory *out_memory);

    /* Makes a tensor from what describe wrote, over its memory. Takes over the caller's reference of the memory, on
     * failure too. Raises ValueError if the tensor would not lie within it. */
    PyObject *(*rebuild)(const unsigned char *meta, size_t size, shoal_torch_memory memory);

    /* Returns whether obj is a torch.Tensor of any kind. Cheap, cannot fail. */
    int (*is_tensor)(PyObject *obj);
} shoal_torch_glue;

#ifdef __cplusplus
}
#endif
#endif
