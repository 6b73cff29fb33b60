#include "os/life_lock.h"

#include "os/fd.h"
#include "os/memory.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096u

static int description = -1;
static sh_memory_id file;
static void *page;

static void close_description(void)
{
    if (description >= 0 && sh_memory_is(description, &file)) {
        close(description);
    }
    description = -1;
}

bool sh_life_lock_take(int fd, uint64_t byte)
{
    char path[40];
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)byte, .l_len = 1};
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    file = sh_memory_identify(fd);
    description = sh_fd_keep(open(path, O_RDWR | O_CLOEXEC));
    if (description < 0) {
        return false;
    }
    /* The fd stays open: closing it would drop the marks that this process already has. */
    if (!sh_memory_is(description, &file) || fcntl(description, F_OFD_SETLK, &lock) != 0) {
        return false;
    }
    void *at = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, description, 0);
    if (at == MAP_FAILED) {
        return false;
    }
    if (madvise(at, PAGE, MADV_DONTFORK) != 0) {
        munmap(at, PAGE);
        return false;
    }
    page = at;
    return true;
}

void sh_life_lock_drop(void)
{
    if (page != NULL) {
        munmap(page, PAGE);
        page = NULL;
    }
    close_description();
}

void sh_life_lock_after_fork(void)
{
    page = NULL;
    close_description();
}
