/* Files of tensors: reads and writes safetensors and NPY, and reads IDX.
 *
 * Readers check everything; an error names the file and the byte. A size in a file is believed only up to the length
 * of the file. Writers write a temporary file, sync it and rename it, so a file is always either the old one or the
 * new one.
 */
#ifndef SHOAL_FILE_H
#define SHOAL_FILE_H

#include <shoal/nn.h>

#ifdef __cplusplus
extern "C" {
#endif

/* An ordered set of named tensors: the contents of a safetensors file. Only one thread at a time may use a set. */
typedef struct shoal_tensors shoal_tensors;

/* Makes an empty set of tensors. The caller owns it: shoal_tensors_destroy. Does not block. Errors: SHOAL_ENOMEM. */
shoal_tensors *shoal_tensors_create(void);

/* Destroys a set of tensors and releases its tensors. NULL is allowed. Never changes the last error. */
void shoal_tensors_destroy(shoal_tensors *set);

/* Return the number of tensors in a set, or the name or the tensor with number i. The set owns them: retain a tensor
 * to use it for longer. They return 0 or NULL for NULL and if i is out of range, and do not change the last error. */
size_t shoal_tensors_count(const shoal_tensors *set);
const char *shoal_tensors_name(const shoal_tensors *set, size_t i);
shoal_tensor *shoal_tensors_at(const shoal_tensors *set, size_t i);

/* Returns the tensor of a set with a name. The set owns it: retain it to use it for longer. Errors: SHOAL_ENOENT if
 * there is none. */
shoal_tensor *shoal_tensors_find(const shoal_tensors *set, const char *name);

/* Adds a tensor to a set, which retains it. Does not block. Errors: SHOAL_EINVAL if the name is taken; SHOAL_ENOMEM. */
SHOAL_MUST_USE shoal_err shoal_tensors_add(shoal_tensors *set, const char *name, shoal_tensor *t);

/* Sets a text of a set (safetensors' __metadata__). The text is copied. Does not block. Errors: SHOAL_EINVAL;
 * SHOAL_ENOMEM. */
SHOAL_MUST_USE shoal_err shoal_tensors_set_text(shoal_tensors *set, const char *name, const char *text);

/* Returns a text of a set. The set owns it. Errors: SHOAL_ENOENT if there is none with that name. */
const char *shoal_tensors_text(const shoal_tensors *set, const char *name);

/* Return the number of texts of a set, or the name of text number i, to list them all. A new text is the last one. The
 * set owns the name. They return 0 or NULL for NULL and if i is out of range, and do not change the last error. */
size_t shoal_tensors_text_count(const shoal_tensors *set);
const char *shoal_tensors_text_name(const shoal_tensors *set, size_t i);

/* Reads a safetensors file with the element types of dtype.h. The tensors are in the order of their bytes in the file.
 * The caller owns the result. Blocks while it reads. Returns NULL on failure. Errors: SHOAL_ENOENT; SHOAL_EPERM;
 * SHOAL_EOS; SHOAL_ENOMEM; SHOAL_EINVAL if it is not a regular file; SHOAL_ECORRUPT if the file is damaged; SHOAL_ETYPE
 * if an element type is not supported. The text of the last two has the file and the byte. */
shoal_tensors *shoal_safetensors_read(const char *path);

/* Writes a set of tensors to a safetensors file. They are ordered as the format's own library does: wide elements
 * first, then by name. The tensors may have any strides and be on any device. Follows symbolic links, and keeps the
 * mode of an old file. A device, or a pipe with a reader, is written directly. Blocks while it writes. After a
 * failure the old file is unchanged, and no temporary file is left. Errors: SHOAL_EOS (such as a full disk, or a pipe
 * without a reader); SHOAL_EPERM; SHOAL_ENOENT if the folder does not exist; SHOAL_ENOMEM; SHOAL_EINVAL if a name is
 * not UTF-8. */
SHOAL_MUST_USE shoal_err shoal_safetensors_write(const char *path, const shoal_tensors *set);

/* Reads a NPY file of version 1 to 3, in either byte order. A file in Fortran order gives a tensor with such strides.
 * Otherwise like shoal_safetensors_read. */
shoal_tensor *shoal_npy_read(const char *path);

/* Writes a tensor to a NPY file. Errors: also SHOAL_ETYPE for bf16, which NPY does not have. Otherwise like
 * shoal_safetensors_write. */
SHOAL_MUST_USE shoal_err shoal_npy_write(const char *path, shoal_tensor *t);

/* Reads an IDX file of u8, i32, f32 or f64, gzipped or not, whatever its name. Otherwise like shoal_safetensors_read.
 */
shoal_tensor *shoal_idx_read(const char *path);

/* Reads a model's parameters and buffers from a safetensors file. The file has them under the model's names, which
 * are PyTorch's. Ignores tensors whose names begin with "shoal/", so it also reads a checkpoint of a training job.
 * Blocks while it reads. After a failure the model is unchanged. Errors: those of shoal_safetensors_read;
 * SHOAL_EINVAL if a tensor is missing, unknown, or has another dtype or shape (the text names the file and the
 * tensor). */
SHOAL_MUST_USE shoal_err shoal_weights_read(const char *path, shoal_module *module);

/* Writes a model's parameters and buffers, under the model's names, to a safetensors file. Blocks while it writes.
 * Errors: those of shoal_safetensors_write. */
SHOAL_MUST_USE shoal_err shoal_weights_write(const char *path, const shoal_module *module);

#ifdef __cplusplus
}
#endif
#endif
