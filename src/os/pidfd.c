#include "os/pidfd.h"

#include "base/interrupt.h"

#include <dirent.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif

#define NS_PER_S INT64_C(1000000000)

int sh_poll(struct pollfd *fds, nfds_t count, int64_t deadline)
{
    for (;;) {
        int64_t left = deadline == SH_NO_DEADLINE ? NS_PER_S : deadline - sh_now();
        left = left < 0 ? 0 : left > NS_PER_S ? NS_PER_S : left; /* one second at a time: an endless wait looks again */
        left = sh_interrupt_bound(0, left);
        struct timespec t = {.tv_sec = left / NS_PER_S, .tv_nsec = left % NS_PER_S};
        int n = ppoll(fds, count, &t, NULL);
        if (n > 0) {
            return n;
        }
        if ((n < 0 && errno != EINTR && errno != EAGAIN) || sh_passed(deadline) || (left > 0 && sh_interrupted())) {
            return 0;
        }
    }
}

bool sh_mutex_lock_until(pthread_mutex_t *mutex, int64_t deadline)
{
    if (deadline == SH_NO_DEADLINE) {
        return pthread_mutex_lock(mutex) == 0;
    }
#if defined(__SANITIZE_THREAD__)
    while (pthread_mutex_trylock(mutex) != 0) { /* ThreadSanitizer of gcc 12 does not know pthread_mutex_clocklock */
        if (sh_passed(deadline)) {
            return false;
        }
        sched_yield();
    }
    return true;
#else
    struct timespec t = {.tv_sec = deadline / NS_PER_S, .tv_nsec = deadline % NS_PER_S};
    return pthread_mutex_clocklock(mutex, CLOCK_MONOTONIC, &t) == 0; /* the same clock as sh_now */
#endif
}

bool sh_pidfd_ended(int pidfd)
{
    struct pollfd p = {.fd = pidfd, .events = POLLIN};
    return sh_poll(&p, 1, 0) > 0;
}

bool sh_pidfd_signal(int pidfd, int signal)
{
    return syscall(SYS_pidfd_send_signal, pidfd, signal, NULL, 0) == 0;
}

int sh_pidfd_copy(int pidfd, int fd)
{
    return (int)syscall(SYS_pidfd_getfd, pidfd, fd, 0);
}

int sh_thread_count(void)
{
    DIR *tasks = opendir("/proc/self/task");
    int n = 0;
    if (tasks == NULL) {
        return 1;
    }
    for (const struct dirent *e = readdir(tasks); e != NULL; e = readdir(tasks)) {
        n += e->d_name[0] != '.';
    }
    closedir(tasks);
    return n;
}
