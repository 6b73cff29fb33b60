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

/* mremap replaces the pages in one step. It checks its limits before it unmaps anything; should it fail later all the
 * same, the file's pages are mapped again. */
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

/* Lowers *limit to the number in the file. "max" in version 2, and a number beyond all memory in version 1, mean
 * none. */
static void lower_to(const char *path, uint64_t *limit)
{
    char line[64];
    FILE *f = fopen(path, "re");
    if (f != NULL) {
        uint64_t n = fgets(line, sizeof line, f) != NULL ? strtoull(line, NULL, 10) : 0; /* "max" gives 0 */
        *limit = n != 0 && n < *limit ? n : *limit;
        fclose(f);
    }
}

/* The same for a group and all groups that it is part of: each of them limits what is inside. The path of a group is
 * relative to the root of this process's cgroup namespace, and in a container what is mounted may begin at another one.
 * Groups that are not there have no limit that could be read. */
static void lower_to_groups(const char *mount, const char *group, const char *file, uint64_t *limit)
{
    char path[640], name[512];
    snprintf(name, sizeof name, "%s", group);
    for (;;) {
        snprintf(path, sizeof path, "%s%s/%s", mount, strcmp(name, "/") == 0 ? "" : name, file);
        lower_to(path, limit);
        char *slash = strrchr(name, '/');
        if (slash == NULL) {
            return;
        }
        *slash = 0;
    }
}

/* Checks whether a list such as "cpu,memory" has the word. */
static bool lists(const char *list, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = list; (p = strstr(p, word)) != NULL; p += n) {
        if ((p == list || p[-1] == ',') && (p[n] == ',' || p[n] == 0)) {
            return true;
        }
    }
    return false;
}

/* The lines of /proc/self/cgroup are "number:controllers:group". That of version 2 is "0::group"; it has the memory
 * controller unless a line of version 1 has. */
uint64_t sh_memory_group_limit(const char *list, const char *mount)
{
    char line[512], place[512];
    uint64_t limit = UINT64_MAX;
    FILE *f = fopen(list, "re");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        line[strcspn(line, "\n")] = 0;
        char *controllers = strchr(line, ':'), *group = controllers != NULL ? strchr(controllers + 1, ':') : NULL;
        if (group == NULL) {
            continue;
        }
        *controllers++ = 0;
        *group++ = 0;
        if (controllers[0] == 0) {
            lower_to_groups(mount, group, "memory.max", &limit);
        } else if (lists(controllers, "memory")) {
            snprintf(place, sizeof place, "%s/memory", mount);
            lower_to_groups(place, group, "memory.limit_in_bytes", &limit);
        }
    }
    if (f != NULL) {
        fclose(f);
    }
    return limit;
}

uint64_t sh_memory_of_machine(void)
{
    struct sysinfo s;
    uint64_t total = sysinfo(&s) == 0 ? (uint64_t)s.totalram * s.mem_unit : UINT64_C(1) << 30;
    uint64_t limit = sh_memory_group_limit("/proc/self/cgroup", "/sys/fs/cgroup");
    return limit < total ? limit : total;
}
