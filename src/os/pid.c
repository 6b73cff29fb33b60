#include "os/pid.h"

#include "os/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/single_threaded.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
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

_Thread_local uint64_t sh_life_asked;

bool sh_life_marked(int fd, uint64_t byte)
{
    sh_life_asked++;
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)byte, .l_len = 1};
    if (fcntl(fd, F_GETLK, &lock) != 0) {
        return true; /* unknown: never take a living process for dead */
    }
    return lock.l_type != F_UNLCK;
}

/* Returns field `number` of a line of /proc/PID/stat, counting from field 3, the state letter. NULL if there is no such
 * field. */
static const char *stat_field(const char *text, int number)
{
    const char *field = strrchr(text, ')'); /* the name may contain any character, even parentheses */
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

/* Nothing from here to sh_pid_kill_stopped allocates memory or takes a private lock: signal handlers call it, and so
 * does a recovery helper, which may be killed at any instruction (sh_helper_run). */

/* Reads the text of a file of /proc. Returns false if there is no such process or thread. */
static bool read_line(const char *path, char *text, size_t room)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    ssize_t n = read(fd, text, room - 1);
    close(fd);
    text[n > 0 ? n : 0] = 0;
    return n > 0;
}

/* Reads the state letter and the start time from a file `stat`. */
static bool read_stat(const char *path, char *out_state, uint64_t *out_start)
{
    char text[1024];
    if (!read_line(path, text, sizeof text)) {
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

static bool read_process(int32_t pid, char *out_state, uint64_t *out_start)
{
    char path[48];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    return read_stat(path, out_state, out_start);
}

bool sh_pid_zombie_status(int32_t pid, int *out_wait_status)
{
    char path[48], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    const char *state = read_line(path, text, sizeof text) ? stat_field(text, 3) : NULL;
    const char *status = state != NULL && state[0] == 'Z' ? stat_field(text, 52) : NULL;
    if (status == NULL) {
        return false;
    }
    *out_wait_status = (int)strtol(status, NULL, 10);
    return true;
}

static bool is_over(char state)
{
    return state == 'Z' || state == 'X';
}

/* As getdents64 returns it. */
typedef struct entry {
    uint64_t inode;
    int64_t next;
    unsigned short size;
    unsigned char type;
    char name[];
} entry;

/* Returns a thread of the process that runs or will run again, or 0. When the main thread has called pthread_exit, the
 * state of the process is zombie, but its other threads run on. */
static int32_t living_thread(int32_t pid)
{
    char path[64], state, bytes[1024] __attribute__((aligned(8)));
    uint64_t start;
    if (read_process(pid, &state, &start) && !is_over(state)) {
        return pid;
    }
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int32_t found = 0;
    for (long n; fd >= 0 && found == 0 && (n = syscall(SYS_getdents64, fd, bytes, sizeof bytes)) > 0;) {
        for (long at = 0; at < n && found == 0; at += ((entry *)(bytes + at))->size) {
            int32_t thread = (int32_t)strtol(((entry *)(bytes + at))->name, NULL, 10);
            snprintf(path, sizeof path, "/proc/%d/task/%d/stat", (int)pid, (int)thread);
            if (thread > 0 && read_stat(path, &state, &start) && !is_over(state)) {
                found = thread;
            }
        }
    }
    if (fd >= 0) {
        close(fd);
    }
    return found;
}

bool sh_thread_is_only(void)
{
    char text[1024];
    if (__libc_single_threaded) {
        return true;
    }
    const char *threads = read_line("/proc/self/stat", text, sizeof text) ? stat_field(text, 20) : NULL;
    return threads != NULL && strtoul(threads, NULL, 10) == 1;
}

uint64_t sh_pid_start_time(int32_t pid)
{
    char state;
    uint64_t start;
    return read_process(pid, &state, &start) ? start : 0;
}

static uint32_t space;

void sh_pid_find_space(void)
{
    struct stat status;
    uint32_t now = stat("/proc/self/ns/pid", &status) == 0 ? (uint32_t)status.st_ino : 0;
    if (space != now) { /* changes only in a child of fork, which has no other threads */
        space = now;
    }
}

void sh_pid_find_space_of_child(void)
{
    if (getppid() == 0) {
        sh_pid_find_space();
    }
}

uint32_t sh_pid_space(void)
{
    return space;
}

bool sh_pid_gone(int32_t pid, uint64_t start_time)
{
    char state;
    uint64_t start;
    if (pid <= 0 || (kill(pid, 0) != 0 && errno == ESRCH)) {
        return true;
    }
    if (!read_process(pid, &state, &start)) {
        /* /proc may be hidden, or this process has no fd left. Then only a missing pid proves death, or the parent is
         * asked, which is this process: a zombie stays, and one whose other threads run on is not reported. */
        siginfo_t end = {.si_pid = 0};
        return (kill(pid, 0) != 0 && errno == ESRCH) ||
               (waitid(P_PID, (id_t)pid, &end, WEXITED | WNOHANG | WNOWAIT) == 0 && end.si_pid == pid);
    }
    return (start_time != 0 && start != start_time) || (is_over(state) && living_thread(pid) == 0);
}

bool sh_pid_runs(int32_t pid)
{
    int fd = pid > 0 ? (int)syscall(SYS_pidfd_open, pid, 0) : -1;
    struct pollfd end = {.fd = fd, .events = POLLIN};
    bool runs = fd >= 0 && poll(&end, 1, 0) == 0; /* readable as soon as all of its threads have ended */
    if (fd >= 0) {
        close(fd);
    }
    return runs;
}

/* Checks whether a line of /proc/PID/maps names the file: 'from-to flags offset device inode path' */
static bool line_names(const char *line, uint64_t inode)
{
    const char *field = line;
    for (int i = 0; i < 4 && field != NULL; i++) {
        field = strchr(field, ' ');
        field = field != NULL ? field + 1 : NULL;
    }
    return field != NULL && strtoull(field, NULL, 10) == inode && strstr(line, "/memfd:") != NULL;
}

static int open_maps(int32_t pid, int32_t thread)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task/%d/maps", (int)pid, (int)thread);
    return open(path, O_RDONLY | O_CLOEXEC);
}

/* Checks whether the thread has memory. The maps file of one that has ended, or whose process ends, is empty. */
static bool has_memory(int32_t pid, int32_t thread)
{
    char byte;
    int fd = open_maps(pid, thread);
    bool has = fd >= 0 && read(fd, &byte, 1) == 1;
    if (fd >= 0) {
        close(fd);
    }
    return has;
}

bool sh_pid_maps(int32_t pid, uint64_t inode)
{
    char text[4096 + 1];
    int32_t thread = living_thread(pid);
    int fd = thread != 0 && inode != 0 ? open_maps(pid, thread) : -1;
    if (fd < 0) {
        return true; /* unknown */
    }
    size_t have = 0;
    bool mapped = false;
    ssize_t n;
    while (!mapped && (n = read(fd, text + have, sizeof text - 1 - have)) > 0) {
        have += (size_t)n;
        text[have] = 0;
        char *line = text;
        for (char *end; !mapped && (end = strchr(line, '\n')) != NULL; line = end + 1) {
            *end = 0;
            mapped = line_names(line, inode);
        }
        have = (size_t)(text + have - line);
        have = have < sizeof text - 1 ? have : 0; /* no line is that long */
        memmove(text, line, have);
    }
    mapped = mapped || n < 0;
    close(fd);
    /* The file also ends when the process loses its memory between two reads. What was read is all of it only if the
     * process still has memory now: that, or that of the program that it has executed. */
    return mapped || !has_memory(pid, thread);
}

void sh_pid_kill_stopped(int32_t pid, uint64_t start_time, bool running_too)
{
    char state;
    uint64_t start;
    int pidfd = sh_pidfd_open(pid); /* if there are pidfds, the pid cannot be reused from here on */
    bool right = read_process(pid, &state, &start) && start == start_time && !is_over(state);
    if (right && (state == 'T' || state == 't' || running_too)) {
        if (pidfd < 0 || syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, NULL, 0) != 0) {
            kill(pid, SIGKILL);
        }
    }
    if (pidfd >= 0) {
        close(pidfd);
    }
}

int sh_pidfd_open(int32_t pid)
{
    return sh_fd_keep((int)syscall(SYS_pidfd_open, pid, 0)); /* pidfds are always close-on-exec */
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

/* ---- a process that anybody may kill without harm ---- */

/* ThreadSanitizer would take the helper for the thread that made it. */
#if defined(__SANITIZE_THREAD__) || defined(__ia64__) || defined(__hppa__)

sh_helper_result sh_helper_run(int (*function)(void *), void *argument)
{
    (void)function;
    (void)argument;
    return SH_HELPER_REFUSED;
}

#else

#define STACK (256u << 10)

#if defined(__SANITIZE_ADDRESS__)
void __asan_unpoison_memory_region(const void *at, size_t size);
#endif

/* Waits until the helper has ended. The caller and the helper share one errno, so the caller makes no call here that
 * may fail while the helper lives. They also share AddressSanitizer's stack of fake frames, so the caller uses none. */
__attribute__((no_sanitize("address"))) static sh_helper_result see_out(pid_t pid)
{
    int status;
    for (uint32_t round = 0;; round++) {
        pid_t got = waitpid(pid, &status, WNOHANG | WUNTRACED | __WALL);
        if (got == pid && WIFSTOPPED(status)) {
            kill(pid, SIGKILL);
        } else if (got == pid) {
            return WIFEXITED(status) && WEXITSTATUS(status) == 0        ? SH_HELPER_DONE
                   : WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL ? SH_HELPER_KILLED
                                                                        : SH_HELPER_FAILED;
        } else if (got < 0) {
            return SH_HELPER_KILLED; /* another thread has reaped it, with __WALL or __WCLONE */
        } else if (round < 200) {
            sched_yield();
        } else {
            clock_nanosleep(CLOCK_MONOTONIC, 0, &(struct timespec){.tv_nsec = 50000}, NULL);
        }
    }
}

/* valgrind aborts a program that makes such a process. It answers a request in the form of instructions that do nothing
 * on a CPU (valgrind.h: RUNNING_ON_VALGRIND), whatever options it was started with. */
static bool is_under_valgrind(void)
{
#if defined(__x86_64__)
    uint64_t request[6] = {0x1001};
    uint64_t answer = 0;
    __asm__ volatile("rolq $3, %%rdi; rolq $13, %%rdi; rolq $61, %%rdi; rolq $51, %%rdi; xchgq %%rbx, %%rbx"
                     : "=d"(answer)
                     : "a"(request), "0"(answer)
                     : "cc", "memory");
    return answer != 0;
#else
    const char *preloaded = getenv("LD_PRELOAD");
    return preloaded != NULL && strstr(preloaded, "vgpreload_") != NULL;
#endif
}

sh_helper_result sh_helper_run(int (*function)(void *), void *argument)
{
    static char *stack; /* kept: there is one caller at a time */
    sigset_t all, before;
    if (is_under_valgrind()) {
        return SH_HELPER_REFUSED;
    }
    if (stack == NULL) {
        void *room = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
        if (room == MAP_FAILED) {
            return SH_HELPER_REFUSED;
        }
        stack = room;
    }
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(stack, STACK); /* a killed helper has left its frames */
#endif
    sigfillset(&all);
    int cancel; /* a thread that is cancelled in see_out would take its stack away from the helper, which uses
                 * `argument` */
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* no signal handler of the program runs in the helper */
    /* Without CLONE_FILES: its fds and locks end with it. Exit signal 0: the program's wait calls do not see it. */
    pid_t pid = clone(function, stack + STACK, CLONE_VM, argument);
    sh_helper_result result = pid > 0 ? see_out(pid) : SH_HELPER_REFUSED;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_setcancelstate(cancel, NULL);
    return result;
}

#endif
