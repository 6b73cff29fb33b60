/* The memory file behind a world, and its mapping. */
#ifndef SH_OS_MEMORY_H
#define SH_OS_MEMORY_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* A new anonymous memory file of `size` bytes, sparse, sealed against every change of size, readable by its user only,
 * close-on-exec. The name shows in /proc. */
shoal_err sh_memory_create(const char *name, uint64_t size, int *out_fd);

/* True when fd is such a file: sealed, and its size in out_size. */
bool sh_memory_is_sealed(int fd, uint64_t *out_size);

/* Which file it is: a number alone may be another's by now, when the program closed what is not its own. */
typedef struct sh_memory_id {
    dev_t device;
    ino_t inode;
} sh_memory_id;

sh_memory_id sh_memory_identify(int fd);
bool sh_memory_is(int fd, const sh_memory_id *id);

/* Maps the whole file, shared, without reserving memory. */
shoal_err sh_memory_map(int fd, uint64_t size, void **out_base);
void sh_memory_unmap(void *base, uint64_t size);

/* Maps a part of the file a second time, until the process ends or becomes another program. NULL with errno. */
void *sh_memory_map_for_good(int fd, uint64_t offset, size_t size);

/* Puts nothing in the place of the mapping: whoever follows a pointer there gets SIGSEGV. */
void sh_memory_hide(void *base, uint64_t size);

/* Puts memory behind a range of the file, which is mapped at base, so that touching it cannot fail later. Idempotent.
 * False when the system has none; errno tells. */
bool sh_memory_commit(int fd, void *base, uint64_t offset, uint64_t size);

/* Gives the memory behind whole pages of a mapping back; they read as zeros afterwards. Needs no fd. What the program
 * has locked into memory (mlock) stays. */
void sh_memory_decommit(void *at, uint64_t size);

/* Bytes of memory behind the file now. */
uint64_t sh_memory_used(int fd);

/* What this machine, or the memory cgroup of this process, has in all. */
uint64_t sh_memory_of_machine(void);

#endif
