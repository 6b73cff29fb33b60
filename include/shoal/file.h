/* Files of tensors: safetensors (read, write), NPY (read, write), IDX (read, plain or gzipped).
 *
 * Readers take nothing on trust: an error names the file and the byte. Sizes in a file are believed only as far as the
 * file is long. Writers write aside, sync and rename, so a file is either the old one or the new one.
 */
#ifndef SHOAL_FILE_H
#define SHOAL_FILE_H

#include <shoal/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A set of named tensors, in order: what a safetensors file holds. */
typedef struct shoal_tensors shoal_tensors;

shoal_tensors *shoal_tensors_create(void);
void shoal_tensors_destroy(shoal_tensors *set);
size_t shoal_tensors_count(const shoal_tensors *set);
const char *shoal_tensors_name(const shoal_tensors *set, size_t i);
shoal_tensor *shoal_tensors_at(const shoal_tensors *set, size_t i);           /* borrowed; NULL beyond the last */
shoal_tensor *shoal_tensors_find(const shoal_tensors *set, const char *name); /* NULL and SHOAL_ENOENT */
SHOAL_MUST_USE shoal_err shoal_tensors_add(shoal_tensors *set, const char *name, shoal_tensor *t); /* retains t */

/* Texts beside the tensors (safetensors' __metadata__). NULL and SHOAL_ENOENT when there is none of that name. */
SHOAL_MUST_USE shoal_err shoal_tensors_set_text(shoal_tensors *set, const char *name, const char *text);
const char *shoal_tensors_text(const shoal_tensors *set, const char *name);

/* Errors of readers: SHOAL_ENOENT, SHOAL_EPERM, SHOAL_EOS, SHOAL_ENOMEM; SHOAL_ECORRUPT with file and byte. Of writers:
 * SHOAL_EOS (a full disk among them), SHOAL_EPERM; the old file is then still there. */
shoal_tensors *shoal_safetensors_read(const char *path);
SHOAL_MUST_USE shoal_err shoal_safetensors_write(const char *path, const shoal_tensors *set);
shoal_tensor *shoal_npy_read(const char *path);
SHOAL_MUST_USE shoal_err shoal_npy_write(const char *path, shoal_tensor *t);
shoal_tensor *shoal_idx_read(const char *path);

#ifdef __cplusplus
}
#endif
#endif
