#include "os/process.h"

#include "os/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static bool set_lock(int fd, uint64_t byte, short type)
{
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)byte, .l_len = 1};
    int r;
    do {
        r = fcntl(fd, F_SETLK, &lock);
    } while (r != 0 && errno == EINTR);
    return r == 0;
}

bool sh_life_mark(int fd, uint64_t byte)
{
    return set_lock(fd, byte, F_WRLCK);
}

void sh_life_unmark(int fd, uint64_t byte)
{
    set_lock(fd, byte, F_UNLCK);
}

bool sh_life_marked(int fd, uint64_t byte)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)byte, .l_len = 1};
    if (fcntl(fd, F_GETLK, &lock) != 0) {
        return true; /* cannot tell: never take the living for dead */
    }
    return lock.l_type != F_UNLCK;
}

/* Reads the state letter and the start time of /proc/PID/stat. False when there is no such process. */
static bool read_stat(int32_t pid, char *out_state, uint64_t *out_start)
{
    char path[48], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0) {
        return false;
    }
    text[n] = 0;
    char *after_name = strrchr(text, ')'); /* the name may hold anything, also parentheses */
    if (after_name == NULL || after_name[1] != ' ') {
        return false;
    }
    *out_state = after_name[2];
    char *field = after_name + 2; /* field 3; the start time is field 22 */
    for (int i = 3; i < 22; i++) {
        field = strchr(field, ' ');
        if (field == NULL) {
            return false;
        }
        field++;
    }
    *out_start = strtoull(field, NULL, 10);
    return true;
}

uint64_t sh_process_start_time(int32_t pid)
{
    char state;
    uint64_t start;
    return read_stat(pid, &state, &start) ? start : 0;
}

bool sh_process_gone(int32_t pid, uint64_t start_time)
{
    char state;
    uint64_t start;
    if (pid <= 0 || (kill(pid, 0) != 0 && errno == ESRCH)) {
        return true;
    }
    if (!read_stat(pid, &state, &start)) {
        return kill(pid, 0) != 0 && errno == ESRCH; /* /proc may be hidden: only a missing pid proves death then */
    }
    return (start_time != 0 && start != start_time) || state == 'Z' || state == 'X';
}

bool sh_process_maps(int32_t pid, int fd)
{
    struct stat st;
    char path[48], *line = NULL;
    size_t room = 0;
    snprintf(path, sizeof path, "/proc/%d/maps", (int)pid);
    FILE *f = fopen(path, "re");
    bool mapped = f == NULL || fstat(fd, &st) != 0; /* cannot tell */
    while (!mapped && getline(&line, &room, f) > 0) {
        unsigned long long inode;
        mapped = sscanf(line, "%*s %*s %*s %*s %llu", &inode) == 1 && inode == (unsigned long long)st.st_ino &&
                 strstr(line, "/memfd:") != NULL;
    }
    mapped = mapped || ferror(f);
    free(line);
    if (f != NULL) {
        fclose(f);
    }
    return mapped;
}

int sh_pidfd_open(int32_t pid)
{
    return sh_fd_keep((int)syscall(SYS_pidfd_open, pid, 0)); /* pidfds are close-on-exec by themselves */
}

int sh_cores(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) {
        return 1;
    }
    int n = CPU_COUNT(&set);
    return n > 0 ? n : 1;
}
