#include "os/process.h"

#include "os/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/single_threaded.h>
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

/* Field `number` of a line of /proc/PID/stat, from field 3, the state letter, on. NULL when it does not have it. */
static const char *stat_field(const char *text, int number)
{
    const char *field = strrchr(text, ')'); /* the name may hold anything, also parentheses */
    if (field == NULL || field[1] != ' ') {
        return NULL;
    }
    field += 2;
    for (int i = 3; i < number && field != NULL; i++) {
        field = strchr(field, ' ');
        field = field != NULL ? field + 1 : NULL;
    }
    return field;
}

/* The line of /proc/PID/stat. False when there is no such process. No memory is taken: a signal handler may ask. */
static bool read_stat_line(int32_t pid, char *text, size_t room)
{
    char path[48];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    ssize_t n = read(fd, text, room - 1);
    close(fd);
    text[n > 0 ? n : 0] = 0;
    return n > 0;
}

/* The state letter and the start time. False when there is no such process. */
static bool read_stat(int32_t pid, char *out_state, uint64_t *out_start)
{
    char text[1024];
    if (!read_stat_line(pid, text, sizeof text)) {
        return false;
    }
    const char *state = stat_field(text, 3), *start = stat_field(text, 22);
    if (state == NULL || start == NULL) {
        return false;
    }
    *out_state = state[0];
    *out_start = strtoull(start, NULL, 10);
    return true;
}

bool sh_process_is_single(void)
{
    char text[1024];
    if (__libc_single_threaded) {
        return true;
    }
    const char *threads = read_stat_line((int32_t)getpid(), text, sizeof text) ? stat_field(text, 20) : NULL;
    return threads != NULL && strtoul(threads, NULL, 10) == 1;
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
