/* Identifies a function so that another process of the same program finds it.
 *
 * A function is identified by its offset in a loaded object: the program, or a library. So static functions work too.
 * The object is identified by its build id, or by its file if it has none: another build of it is refused, because the
 * offset would lead somewhere else.
 */
#ifndef SH_PROC_TARGET_H
#define SH_PROC_TARGET_H

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef void (*sh_function)(void);

#define SH_TARGET_ID_MAX 40
#define SH_TARGET_PATH_MAX 1024

typedef enum sh_target_proof {
    SH_TARGET_BUILD_ID = 1, /* id is the ELF build id */
    SH_TARGET_FILE,         /* id is device, inode and size of the file */
} sh_target_proof;

/* Plain bytes, which are copied into shared memory before another process reads them. Only the first sh_target_size
 * bytes are used. */
typedef struct sh_target {
    uint64_t offset;
    uint32_t proof;
    uint32_t id_size;
    uint8_t id[SH_TARGET_ID_MAX];
    char path[SH_TARGET_PATH_MAX]; /* "": the program itself */
} sh_target;

static inline size_t sh_target_size(const sh_target *target)
{
    return offsetof(sh_target, path) + strlen(target->path) + 1;
}

/* Fills in *out_target for the function. Errors: SHOAL_EINVAL if no loaded object holds the function. */
shoal_err sh_target_name(sh_function function, sh_target *out_target);

/* Finds the function in this process. Loads its library if it is not loaded yet, and never unloads it. size: the number
 * of valid bytes at target. Errors: SHOAL_ENOENT if the object cannot be loaded or is another build, SHOAL_ECORRUPT. */
shoal_err sh_target_find(const sh_target *target, size_t size, sh_function *out_function);

/* Writes a readable name: the function's symbol, taken from the symbol table of its file if it is not exported, or
 * "program+0x1234" if the program is stripped. */
void sh_target_label(sh_function function, char *buffer, size_t capacity);

#endif
