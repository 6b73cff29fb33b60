/* Files: read at an offset; write to a temporary file that replaces the old one, so that a reader sees one or the
 * other. */
#ifndef SH_OS_FILE_H
#define SH_OS_FILE_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Reports a failed system call on a file: "path: doing: strerror(errno)". Returns SHOAL_ENOENT for ENOENT and ENOTDIR,
 * SHOAL_EPERM for EACCES, EPERM and EROFS, SHOAL_ENOMEM for ENOMEM, otherwise SHOAL_EOS. */
shoal_err sh_file_fail(const char *path, const char *doing);

/* Opens a regular file for reading and returns its size. Errors: SHOAL_EINVAL if it is not a regular file (a directory,
 * a pipe). */
shoal_err sh_file_open(const char *path, int *out_fd, uint64_t *out_size);

/* Reads size bytes at an offset, fewer only at the end of the file; out_got is the count. path is for error texts. */
shoal_err sh_file_read_at(int fd, const char *path, uint64_t at, void *to, size_t size, size_t *out_got);

/* A file that is written beside the one that it will replace. Where the file system allows, it has no name before
 * commit, so a process that dies leaves nothing behind. If path is not a regular file (a device, a pipe that has a
 * reader), it is written directly. */
typedef struct sh_atomic_file {
    char *path;  /* the file to replace, with links followed */
    char *other; /* the temporary name beside it, once it has one */
    int fd;
    bool named;  /* a file of that name exists */
    bool direct; /* path itself is written */
} sh_atomic_file;

/* Begins to write path. Errors: SHOAL_ENOENT (no such directory), SHOAL_EPERM (the directory or the old file is not
 * writable), SHOAL_EOS. After a failure there is nothing to abort. */
shoal_err sh_atomic_file_begin(sh_atomic_file *a, const char *path);
shoal_err sh_atomic_file_write(sh_atomic_file *a, const void *bytes, size_t size);

/* Syncs the file and replaces the old one with it. Frees what a holds, whether it succeeds or not. */
shoal_err sh_atomic_file_commit(sh_atomic_file *a);
void sh_atomic_file_abort(sh_atomic_file *a);

#endif
