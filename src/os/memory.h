/* The memory file of a world, and its mapping. */
#ifndef SH_OS_MEMORY_H
#define SH_OS_MEMORY_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Creates an anonymous memory file of `size` bytes: sparse, sealed against every change of size, readable by its user
 * only, close-on-exec. The name is visible in /proc. */
shoal_err sh_memory_create(const char *name, uint64_t size, int *out_fd);

/* Checks whether fd is such a sealed file. If so, returns true and its size. */
bool sh_memory_is_sealed(int fd, uint64_t *out_size);

/* Identifies a file. An fd number alone may refer to another file, if the program closed an fd that is not its own. */
typedef struct sh_memory_id {
    dev_t device;
    ino_t inode;
} sh_memory_id;

sh_memory_id sh_memory_identify(int fd);
bool sh_memory_is(int fd, const sh_memory_id *id);

/* Maps the whole file, shared, without reserving memory. */
shoal_err sh_memory_map(int fd, uint64_t size, void **out_base);
void sh_memory_unmap(void *base, uint64_t size);

/* Maps a part of the file a second time. Returns NULL with errno if that fails. unmap takes what map returned, and the
 * same size. */
void *sh_memory_map_part(int fd, uint64_t offset, size_t size);
void sh_memory_unmap_part(void *part, size_t size);

/* Makes a part private, at the same address: this process gets its own copy of a page when it first writes there. No
 * write of another thread is lost meanwhile. Returns false with errno if that fails. */
bool sh_memory_part_go_private(int fd, uint64_t offset, void *part, size_t size);

/* Replaces whole pages of a mapping by a private copy of them, and by the file's pages again. Others never see the
 * pages unmapped. A write of another thread while they are copied is lost. Return false with errno and change nothing
 * if the system has no memory or no mapping left. */
bool sh_memory_detach_pages(int fd, uint64_t offset, void *at, uint64_t size);
bool sh_memory_reattach_pages(int fd, uint64_t offset, void *at, uint64_t size);

/* Replaces the mapping by one without access: a read or write there gets SIGSEGV. */
void sh_memory_hide(void *base, uint64_t size);

/* Allocates memory for a range of the file, which is mapped at base, so that an access cannot fail later. Idempotent.
 * Returns false with errno if the system has no memory. */
bool sh_memory_commit(int fd, void *base, uint64_t offset, uint64_t size);

/* Frees the memory behind whole pages of a mapping; they read as zeros afterwards. Needs no fd. Pages that the program
 * has locked (mlock) keep theirs. Returns false with errno for pages that are detached. */
bool sh_memory_decommit(void *at, uint64_t size);

/* The same for detached pages: frees the file's, and leaves the private copy alone. */
void sh_memory_decommit_file(int fd, uint64_t offset, uint64_t size);

/* Returns the number of bytes of memory that the file uses now. */
uint64_t sh_memory_used(int fd);

/* Returns the lowest memory limit of this process's cgroup and of those that it is part of (version 1 or 2), as far as
 * they can be seen; UINT64_MAX if there is none. list: /proc/self/cgroup; mount: where the groups are. */
uint64_t sh_memory_group_limit(const char *list, const char *mount);

/* Returns the total memory of this machine, or the limit of this process's memory cgroups if that is lower. */
uint64_t sh_memory_of_machine(void);

#endif
