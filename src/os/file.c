#include "os/file.h"

#include "os/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MODE 0666
#define NAME_TRIES 100
#define LINKS_MOST 40 /* as in the kernel */

shoal_err sh_file_fail(const char *path, const char *doing)
{
    int number = errno;
    char words[128];
    shoal_err err = number == ENOENT || number == ENOTDIR                    ? SHOAL_ENOENT
                    : number == EACCES || number == EPERM || number == EROFS ? SHOAL_EPERM
                    : number == ENOMEM                                       ? SHOAL_ENOMEM
                                                                             : SHOAL_EOS;
    return sh_fail(err, "%s: %s: %s", path, doing, strerror_r(number, words, sizeof words));
}

/* ---- reading ---- */

shoal_err sh_file_open(const char *path, int *out_fd, uint64_t *out_size)
{
    struct stat st;
    int fd;
    do {
        fd = sh_fd_keep(open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)); /* a pipe must not block here */
    } while (fd < 0 && errno == EINTR);
    if (fd < 0) {
        return sh_file_fail(path, "open");
    }
    shoal_err err = SHOAL_OK;
    if (fstat(fd, &st) != 0) {
        err = sh_file_fail(path, "stat");
    } else if (!S_ISREG(st.st_mode)) {
        err = sh_fail(SHOAL_EINVAL, "%s: not a regular file", path);
    }
    if (err != SHOAL_OK) {
        close(fd);
        return err;
    }
    *out_fd = fd;
    *out_size = (uint64_t)st.st_size;
    return SHOAL_OK;
}

shoal_err sh_file_read_at(int fd, const char *path, uint64_t at, void *to, size_t size, size_t *out_got)
{
    size_t got = 0;
    while (got < size) {
        size_t piece = size - got < (size_t)1 << 30 ? size - got : (size_t)1 << 30;
        ssize_t n = pread(fd, (char *)to + got, piece, (off_t)(at + got));
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            return sh_file_fail(path, "read");
        }
        if (n == 0) {
            break;
        }
        got += (size_t)n;
    }
    *out_got = got;
    return SHOAL_OK;
}

/* ---- replacing a file in one step ---- */

static void forget(sh_atomic_file *a)
{
    free(a->path);
    free(a->other);
    *a = (sh_atomic_file){.fd = -1};
}

/* Opens the directory of path. */
static int open_directory(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *name = slash == NULL ? strdup(".") : slash == path ? strdup("/") : strndup(path, (size_t)(slash - path));
    int fd = name != NULL ? open(name, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    free(name);
    return fd;
}

/* Sets a->other to the n-th name to try beside path: .NAME.PID-n in its directory. */
static bool name_beside(sh_atomic_file *a, int n)
{
    const char *slash = strrchr(a->path, '/');
    int directory = slash != NULL ? (int)(slash + 1 - a->path) : 0;
    free(a->other);
    if (asprintf(&a->other, "%.*s.%.200s.%d-%d", directory, a->path, a->path + directory, (int)getpid(), n) < 0) {
        a->other = NULL;
        errno = ENOMEM;
        return false;
    }
    return true;
}

/* Creates a file with a temporary name. Returns false with errno if that fails. */
static bool create_named(sh_atomic_file *a)
{
    for (int n = 0; n < NAME_TRIES; n++) {
        if (!name_beside(a, n)) {
            return false;
        }
        a->fd = sh_fd_keep(open(a->other, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, MODE));
        if (a->fd >= 0 || errno != EEXIST) {
            a->named = a->fd >= 0;
            return a->named;
        }
    }
    return false;
}

/* Creates a file without a name, or with one if the file system cannot do that. Returns false with errno if that
 * fails. */
static bool create(sh_atomic_file *a)
{
    int directory = open_directory(a->path);
    if (directory < 0) {
        return false;
    }
    a->fd = sh_fd_keep(openat(directory, ".", O_WRONLY | O_TMPFILE | O_CLOEXEC, MODE));
    int number = errno;
    close(directory);
    errno = number;
    return a->fd >= 0 || ((errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL) && create_named(a));
}

/* Returns the target of a link, relative to the link's directory. The caller frees it. Returns NULL with errno if that
 * fails. */
static char *target_of(const char *link)
{
    char target[PATH_MAX], *path = NULL;
    ssize_t n = readlink(link, target, sizeof target - 1);
    const char *slash = strrchr(link, '/');
    if (n < 0) {
        return NULL;
    }
    target[n] = 0;
    int folder = target[0] != '/' && slash != NULL ? (int)(slash + 1 - link) : 0;
    return asprintf(&path, "%.*s%s", folder, link, target) >= 0 ? path : NULL;
}

/* Returns the path of the file itself, with links followed; the file need not exist. The caller frees it. Returns NULL
 * with errno if that fails. */
static char *follow(const char *path)
{
    struct stat st;
    char *whole = realpath(path, NULL);
    if (whole != NULL || stat(path, &st) == 0 || errno != ENOENT) { /* links of /proc may have no path */
        return whole != NULL ? whole : strdup(path);
    }
    char *file = strdup(path);
    for (int i = 0; i < LINKS_MOST && file != NULL && lstat(file, &st) == 0 && S_ISLNK(st.st_mode); i++) {
        char *next = target_of(file);
        free(file);
        file = next;
    }
    return file;
}

/* Opens a device or a pipe. Opening a pipe for writing would wait for a reader, forever if none comes. */
static shoal_err open_direct(sh_atomic_file *a, mode_t mode)
{
    a->direct = true;
    a->fd = sh_fd_keep(open(a->path, O_WRONLY | O_CLOEXEC | O_NOCTTY | (S_ISFIFO(mode) ? O_NONBLOCK : 0)));
    if (a->fd < 0 && errno == ENXIO && (S_ISFIFO(mode) || S_ISSOCK(mode))) {
        return sh_fail(SHOAL_EOS, S_ISFIFO(mode) ? "%s: is a pipe without a reader" : "%s: is a socket", a->path);
    }
    if (a->fd < 0 || (S_ISFIFO(mode) && fcntl(a->fd, F_SETFL, 0) != 0)) {
        return sh_file_fail(a->path, "open");
    }
    return SHOAL_OK;
}

/* Chooses how to write, by what is at path now. */
static shoal_err begin(sh_atomic_file *a)
{
    struct stat st;
    bool there = stat(a->path, &st) == 0;
    if (!there && errno != ENOENT) {
        return sh_file_fail(a->path, "stat");
    }
    if (there && S_ISDIR(st.st_mode)) {
        return sh_fail(SHOAL_EINVAL, "%s: is a directory", a->path);
    }
    if (there && faccessat(AT_FDCWD, a->path, W_OK, AT_EACCESS) != 0) {
        return sh_file_fail(a->path, "write");
    }
    if (there && !S_ISREG(st.st_mode)) {
        return open_direct(a, st.st_mode);
    }
    if (!create(a)) {
        return sh_file_fail(a->path, "create");
    }
    if (there) {
        (void)!fchmod(a->fd, st.st_mode & 07777);
    }
    return SHOAL_OK;
}

shoal_err sh_atomic_file_begin(sh_atomic_file *a, const char *path)
{
    *a = (sh_atomic_file){.fd = -1};
    if (path == NULL || path[0] == 0) {
        return sh_fail(SHOAL_EINVAL, "no file name");
    }
    a->path = follow(path);
    shoal_err err = a->path != NULL ? begin(a) : sh_file_fail(path, "follow");
    if (err != SHOAL_OK) {
        if (a->fd >= 0) {
            close(a->fd);
        }
        forget(a);
    }
    return err;
}

shoal_err sh_atomic_file_write(sh_atomic_file *a, const void *bytes, size_t size)
{
    for (size_t done = 0; done < size;) {
        size_t piece = size - done < (size_t)1 << 30 ? size - done : (size_t)1 << 30;
        ssize_t n = write(a->fd, (const char *)bytes + done, piece);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            return sh_file_fail(a->path, "write");
        }
        done += (size_t)n;
    }
    return SHOAL_OK;
}

/* Gives the nameless file a name beside its destination. Returns false with errno if that fails. */
static bool give_name(sh_atomic_file *a)
{
    char self[64];
    snprintf(self, sizeof self, "/proc/self/fd/%d", a->fd);
    for (int n = 0; !a->named && n < NAME_TRIES; n++) {
        if (!name_beside(a, n)) {
            return false;
        }
        a->named = linkat(AT_FDCWD, self, AT_FDCWD, a->other, AT_SYMLINK_FOLLOW) == 0;
        if (!a->named && errno != EEXIST) {
            return false;
        }
    }
    return a->named;
}

/* Makes the new name durable. If the file system cannot sync a directory, nothing more can be done. */
static void sync_directory(const char *path)
{
    int directory = open_directory(path);
    if (directory >= 0) {
        (void)!fsync(directory);
        close(directory);
    }
}

static shoal_err put_in_place(sh_atomic_file *a)
{
    if (fsync(a->fd) != 0 && !(a->direct && (errno == EINVAL || errno == EROFS || errno == ENOTSUP))) {
        return sh_file_fail(a->path, "sync");
    }
    if (a->direct) {
        return SHOAL_OK;
    }
    if (!give_name(a)) {
        return sh_file_fail(a->path, "link");
    }
    if (rename(a->other, a->path) != 0) {
        return sh_file_fail(a->path, "rename");
    }
    a->named = false;
    sync_directory(a->path);
    return SHOAL_OK;
}

shoal_err sh_atomic_file_commit(sh_atomic_file *a)
{
    shoal_err err = put_in_place(a);
    sh_atomic_file_abort(a);
    return err;
}

void sh_atomic_file_abort(sh_atomic_file *a)
{
    if (a->fd >= 0) {
        close(a->fd);
    }
    if (a->named) {
        (void)unlink(a->other);
    }
    forget(a);
}
