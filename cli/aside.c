#include "cli/aside.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <stdint.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

/* Creates the file without a name, or with one if the file system cannot do that. Returns -1 and sets errno on failure. */
static int create(cli_aside *a, const char *folder)
{
    int fd = open(folder, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)) {
        return fd;
    }
    fd = open(a->another, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666); /* O_EXCL does not follow a link */
    a->named = fd >= 0;
    return fd;
}

bool cli_aside_begin(cli_aside *aside, const char *target)
{
    char text[PATH_MAX];
    struct stat there;
    uint64_t number;
    *aside = (cli_aside){.file = NULL};
    if (getrandom(&number, sizeof number, 0) != (ssize_t)sizeof number) {
        return false;
    }
    int length = snprintf(aside->target, PATH_MAX, "%s", target);
    memcpy(text, aside->target, sizeof text);
    const char *folder = dirname(text);
    if (length >= PATH_MAX || snprintf(aside->another, PATH_MAX, "%s/.shoal-%016" PRIx64, folder, number) >= PATH_MAX) {
        errno = ENAMETOOLONG;
        return false;
    }
    int fd = create(aside, folder);
    if (fd < 0) {
        return false;
    }
    if (stat(target, &there) == 0) {
        (void)!fchmod(fd, there.st_mode & 0777);
    }
    aside->file = fdopen(fd, "w");
    if (aside->file == NULL) {
        close(fd);
    }
    return aside->file != NULL || cli_aside_end(aside, false, false);
}

static bool put_in_place(cli_aside *a, bool sync)
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

bool cli_aside_end(cli_aside *aside, bool sync, bool good)
{
    good = good && put_in_place(aside, sync);
    int why = errno;
    if (!good && aside->named) {
        unlink(aside->another);
    }
    if (aside->file != NULL) {
        fclose(aside->file);
    }
    errno = why;
    return good;
}
