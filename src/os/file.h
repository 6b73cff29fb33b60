/* Files: read by place, and written aside, so that a file is either the old one or the new one. */
#ifndef SH_OS_FILE_H
#define SH_OS_FILE_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The error of a failed system call on a file: "path: doing: words of errno". SHOAL_ENOENT for ENOENT and ENOTDIR,
 * SHOAL_EPERM for EACCES, EPERM and EROFS, SHOAL_ENOMEM, else SHOAL_EOS. */
shoal_err sh_file_fail(const char *path, const char *doing);

/* Opens a regular file for reading, and tells its size. SHOAL_EINVAL for what is no regular file (a directory, a pipe). */
shoal_err sh_file_open(const char *path, int *out_fd, uint64_t *out_size);

/* Reads size bytes at a place, fewer only at the end of the file; out_got tells how many. path is for words. */
shoal_err sh_file_read_at(int fd, const char *path, uint64_t at, void *to, size_t size, size_t *out_got);

/* A file that is being written beside the one that it will replace. It has no name before commit where the file system can do
 * that, so a process that dies leaves nothing behind. What is no regular file (a device, a pipe that somebody reads) is written as it
 * stands. */
typedef struct sh_aside {
    char *path;  /* to replace: links are followed */
    char *other; /* the name beside it, once it has one */
    int fd;
    bool named;  /* other exists */
    bool direct; /* path itself is written */
} sh_aside;

/* Errors: SHOAL_ENOENT (no such directory), SHOAL_EPERM (the directory or the old file may not be written), SHOAL_EOS. After a
 * failure there is nothing to abort. */
shoal_err sh_aside_begin(sh_aside *a, const char *path);
shoal_err sh_aside_write(sh_aside *a, const void *bytes, size_t size);

/* Syncs, and puts the file in the place of the old one. Whether it succeeds or not, a is done with. */
shoal_err sh_aside_commit(sh_aside *a);
void sh_aside_abort(sh_aside *a);

#endif
