#include "os/memory.h"

#include "os/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#define COMMIT_PART (UINT64_C(1) << 20)
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

shoal_err sh_memory_create(const char *name, uint64_t size, int *out_fd)
{
    int fd = sh_fd_keep(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (fd < 0) {
        return sh_fail_os("memfd_create");
    }
    if (ftruncate(fd, (off_t)size) != 0 || fchmod(fd, S_IRUSR | S_IWUSR) != 0 || fcntl(fd, F_ADD_SEALS, SEALS) != 0) {
        shoal_err err = sh_fail_os("preparing the world's memory file");
        close(fd);
        return err;
    }
    *out_fd = fd;
    return SHOAL_OK;
}

bool sh_memory_is_sealed(int fd, uint64_t *out_size)
{
    struct stat st;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & SEALS) != SEALS || fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size < 0) {
        return false;
    }
    *out_size = (uint64_t)st.st_size;
    return true;
}

sh_memory_id sh_memory_identify(int fd)
{
    struct stat st;
    return fstat(fd, &st) == 0 ? (sh_memory_id){.device = st.st_dev, .inode = st.st_ino} : (sh_memory_id){.inode = 0};
}

bool sh_memory_is(int fd, const sh_memory_id *id)
{
    sh_memory_id now = sh_memory_identify(fd);
    return now.inode != 0 && now.inode == id->inode && now.device == id->device;
}

static void *map_pages(int fd, uint64_t offset, void *at, uint64_t size, int flags)
{
    void *pages = mmap(at, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | flags, fd, (off_t)offset);
    if (pages != MAP_FAILED) {
        madvise(pages, size, MADV_DONTDUMP); /* a core dump of one process must not contain the whole world */
    }
    return pages;
}

shoal_err sh_memory_map(int fd, uint64_t size, void **out_base)
{
    void *base = map_pages(fd, 0, NULL, size, 0);
    if (base == MAP_FAILED) {
        return sh_fail_os("mapping the world");
    }
    *out_base = base;
    return SHOAL_OK;
}

void sh_memory_unmap(void *base, uint64_t size)
{
    munmap(base, size);
}

void *sh_memory_map_part(int fd, uint64_t offset, size_t size)
{
    uint64_t within = offset % (uint64_t)sysconf(_SC_PAGESIZE);
    char *page = mmap(NULL, within + size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)(offset - within));
    return page != MAP_FAILED ? page + within : NULL;
}

void sh_memory_unmap_part(void *part, size_t size)
{
    uint64_t within = (uintptr_t)part % (uint64_t)sysconf(_SC_PAGESIZE);
    munmap((char *)part - within, within + size);
}

bool sh_memory_part_go_private(int fd, uint64_t offset, void *part, size_t size)
{
    uint64_t within = offset % (uint64_t)sysconf(_SC_PAGESIZE);
    return mmap((char *)part - within, within + size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, fd,
                (off_t)(offset - within)) != MAP_FAILED;
}

/* mremap replaces the pages in one step. It checks its limits before it unmaps anything; should it fail later all the same,
 * the file's pages are mapped again. */
bool sh_memory_detach_pages(int fd, uint64_t offset, void *at, uint64_t size)
{
    void *copy = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (copy == MAP_FAILED) {
        return false;
    }
    memcpy(copy, at, size);
    if (mremap(copy, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, at) != MAP_FAILED) {
        return true;
    }
    int number = errno;
    munmap(copy, size);
    bool whole = sh_memory_reattach_pages(fd, offset, at, size) || msync(at, size, MS_ASYNC) == 0;
    SH_INVARIANT(whole); /* msync fails if a page is not mapped */
    errno = number;
    return false;
}

bool sh_memory_reattach_pages(int fd, uint64_t offset, void *at, uint64_t size)
{
    return map_pages(fd, offset, at, size, MAP_FIXED) != MAP_FAILED;
}

void sh_memory_hide(void *base, uint64_t size)
{
    if (mmap(base, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED) {
        munmap(base, size);
    }
}

bool sh_memory_decommit(void *at, uint64_t size)
{
    int r;
    do {
        r = madvise(at, size, MADV_REMOVE);
    } while (r != 0 && errno == EINTR);
    return r == 0;
}

void sh_memory_decommit_file(int fd, uint64_t offset, uint64_t size)
{
    while (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)size) != 0 &&
           errno == EINTR) {
    }
}

/* Commits in parts: before Linux 6.12 any signal undid the whole call, and under a timer a large call never
 * finished. */
bool sh_memory_commit(int fd, void *base, uint64_t offset, uint64_t size)
{
    for (uint64_t done = 0; done < size;) {
        uint64_t part = size - done < COMMIT_PART ? size - done : COMMIT_PART;
        if (fallocate(fd, FALLOC_FL_KEEP_SIZE, (off_t)(offset + done), (off_t)part) == 0) {
            done += part;
        } else if (errno != EINTR) {
            int number = errno;
            if (done > 0) { /* only a block is that large, and this process holds it: nobody else uses the range */
                sh_memory_decommit((char *)base + offset, done);
            }
            errno = number;
            return false;
        }
    }
    return true;
}

uint64_t sh_memory_used(int fd)
{
    struct stat st;
    return fstat(fd, &st) == 0 ? (uint64_t)st.st_blocks * 512 : 0;
}

/* Returns the memory limit of this process's cgroup (v2), or 0. */
static uint64_t cgroup_limit(void)
{
    char line[512], path[640];
    uint64_t limit = 0;
    FILE *f = fopen("/proc/self/cgroup", "re");
    if (f == NULL) {
        return 0;
    }
    while (fgets(line, sizeof line, f) != NULL) {
        if (strncmp(line, "0::", 3) == 0) {
            line[strcspn(line, "\n")] = 0;
            snprintf(path, sizeof path, "/sys/fs/cgroup%s/memory.max", line + 3);
            FILE *g = fopen(path, "re");
            if (g != NULL) {
                if (fgets(line, sizeof line, g) != NULL) {
                    limit = strtoull(line, NULL, 10); /* "max" gives 0 */
                }
                fclose(g);
            }
            break;
        }
    }
    fclose(f);
    return limit;
}

uint64_t sh_memory_of_machine(void)
{
    struct sysinfo s;
    uint64_t total = sysinfo(&s) == 0 ? (uint64_t)s.totalram * s.mem_unit : UINT64_C(1) << 30;
    uint64_t limit = cgroup_limit();
    return limit != 0 && limit < total ? limit : total;
}
