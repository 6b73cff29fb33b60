/* Files of tensors: safetensors (read, write), NPY (read, write), IDX (read, plain or gzipped).
 *
 * Readers take nothing on trust: an error names the file and the byte. Sizes in a file are believed only as far as the
 * file is long. Writers write aside, sync and rename, so a file is either the old one or the new one.
 */
#ifndef SHOAL_FILE_H
#define SHOAL_FILE_H

#include <shoal/nn.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A set of named tensors, in order: what a safetensors file holds. One thread at a time uses a set. */
typedef struct shoal_tensors shoal_tensors;

shoal_tensors *shoal_tensors_create(void);
void shoal_tensors_destroy(shoal_tensors *set);
size_t shoal_tensors_count(const shoal_tensors *set);
const char *shoal_tensors_name(const shoal_tensors *set, size_t i);
shoal_tensor *shoal_tensors_at(const shoal_tensors *set, size_t i);           /* borrowed; NULL beyond the last */
shoal_tensor *shoal_tensors_find(const shoal_tensors *set, const char *name); /* NULL and SHOAL_ENOENT */

/* Adds a tensor to a set, which retains it. SHOAL_EINVAL when there is one of that name; SHOAL_ENOMEM. */
SHOAL_MUST_USE shoal_err shoal_tensors_add(shoal_tensors *set, const char *name, shoal_tensor *t);

/* Texts beside the tensors of a set (safetensors' __metadata__). NULL and SHOAL_ENOENT when there is none of that name. */
SHOAL_MUST_USE shoal_err shoal_tensors_set_text(shoal_tensors *set, const char *name, const char *text);
const char *shoal_tensors_text(const shoal_tensors *set, const char *name);

/* Read and write files of tensors.
 *
 * Readers: the caller owns the result; NULL is a failure. They block as long as the disk does. Errors: SHOAL_ENOENT, SHOAL_EPERM,
 * SHOAL_EOS, SHOAL_ENOMEM; SHOAL_EINVAL for what is no regular file; SHOAL_ECORRUPT with file and byte; SHOAL_ETYPE, with file
 * and byte too, for element types that there are but not here.
 *
 * Writers: any strides, any device; the links of the path are followed, and an old file's mode is kept. A device is
 * written as it stands, and so is a pipe that somebody reads. Errors: SHOAL_EOS (a full disk and a pipe that nobody reads among
 * them), SHOAL_EPERM, SHOAL_ENOENT (no such folder), SHOAL_ENOMEM; SHOAL_EINVAL for names that are not UTF-8; SHOAL_ETYPE for bf16 in NPY. The old file is then still there, and nothing else.
 *
 * safetensors: all dtypes. Tensors are written with wide elements first and then by name, as the format's own library does, and
 * come in the order of their bytes when they are read. NPY: versions 1 to 3, either order of bytes; a file in Fortran's order
 * gives a tensor with such strides. IDX: u8, i32, f32 and f64, gzipped or not, whatever the name. */
shoal_tensors *shoal_safetensors_read(const char *path);
SHOAL_MUST_USE shoal_err shoal_safetensors_write(const char *path, const shoal_tensors *set);
shoal_tensor *shoal_npy_read(const char *path);
SHOAL_MUST_USE shoal_err shoal_npy_write(const char *path, shoal_tensor *t);
shoal_tensor *shoal_idx_read(const char *path);

/* Copies a model's parameters and buffers out of a safetensors file that has them under the model's own names, which are
 * PyTorch's. What begins with "shoal/" is no weight and passed over, so a checkpoint of a training job is such a file too. Errors:
 * those of reading; SHOAL_EINVAL, which names file and tensor, for one that is missing, too much, or of another dtype or shape; the
 * model is then as it was. */
SHOAL_MUST_USE shoal_err shoal_weights_read(const char *path, shoal_module *module);

/* Writes a model's parameters and buffers, under the model's own names, into a safetensors file. Errors: those of writing. */
SHOAL_MUST_USE shoal_err shoal_weights_write(const char *path, const shoal_module *module);

#ifdef __cplusplus
}
#endif
#endif
