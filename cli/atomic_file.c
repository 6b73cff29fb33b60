#include "cli/atomic_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <stdint.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

/* Creates the file without a name, or with one if the file system cannot do that. Returns -1 and sets errno on
 * failure. */
static int create(cli_atomic_file *a, const char *folder)
{
    int fd = open(folder, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)) {
        return fd;
    }
    fd = open(a->another, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666); /* O_EXCL does not follow a link */
    a->named = fd >= 0;
    return fd;
}

bool cli_atomic_file_begin(cli_atomic_file *file, const char *target)
{
    char text[PATH_MAX];
    struct stat there;
    uint64_t number;
    *file = (cli_atomic_file){.file = NULL};
    if (getrandom(&number, sizeof number, 0) != (ssize_t)sizeof number) {
        return false;
    }
    int length = snprintf(file->target, PATH_MAX, "%s", target);
    memcpy(text, file->target, sizeof text);
    const char *folder = dirname(text);
    if (length >= PATH_MAX || snprintf(file->another, PATH_MAX, "%s/.shoal-%016" PRIx64, folder, number) >= PATH_MAX) {
        errno = ENAMETOOLONG;
        return false;
    }
    int fd = create(file, folder);
    if (fd < 0) {
        return false;
    }
    if (stat(target, &there) == 0) {
        (void)!fchmod(fd, there.st_mode & 0777);
    }
    file->file = fdopen(fd, "w");
    if (file->file == NULL) {
        close(fd);
    }
    return file->file != NULL || cli_atomic_file_end(file, false, false);
}

static bool put_in_place(cli_atomic_file *a, bool sync)
{
    char self[64];
    int fd = fileno(a->file);
    if (fflush(a->file) != 0 || ferror(a->file) || (sync && fsync(fd) != 0)) {
        return false;
    }
    snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
    a->named = a->named || linkat(AT_FDCWD, self, AT_FDCWD, a->another, AT_SYMLINK_FOLLOW) == 0;
    return a->named && rename(a->another, a->target) == 0;
}

bool cli_atomic_file_end(cli_atomic_file *file, bool sync, bool good)
{
    good = good && put_in_place(file, sync);
    int why = errno;
    if (!good && file->named) {
        unlink(file->another);
    }
    if (file->file != NULL) {
        fclose(file->file);
    }
    errno = why;
    return good;
}
