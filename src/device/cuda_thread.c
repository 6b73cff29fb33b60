#include "device/cuda_thread.h"

#include "base/clock.h"

#include <errno.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define END_LIMIT SHOAL_MS(500)
#define POLL_NS 50000

static void *begin(void *thread)
{
    sh_cuda_thread *t = thread;
    sh_store_release(&t->tid, (uint32_t)syscall(SYS_gettid));
    t->run(t->argument);
    return NULL;
}

bool sh_cuda_thread_start(sh_cuda_thread *t, uint64_t argument)
{
    sigset_t all, before;
    if (sh_load_relaxed(&t->exists) != 0) {
        return true;
    }
    t->argument = argument;
    sh_store_relaxed(&t->tid, 0);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* the program's handlers run in its own threads */
    bool started = pthread_create(&t->thread, NULL, begin, t) == 0;
    if (started) {
        (void)pthread_setname_np(t->thread, t->name);
        sh_store_release(&t->exists, 1); /* pairs with the acquire in takes: `thread` is filled in */
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

static bool is_gone(const sh_cuda_thread *t)
{
    uint32_t tid = sh_load_acquire(&t->tid);
    return tid != 0 && syscall(SYS_tgkill, getpid(), tid, 0) != 0 && errno == ESRCH;
}

/* Waits until the kernel has removed it. There is nothing to sleep on that a thread could touch so late. */
static bool await_gone(const sh_cuda_thread *t)
{
    int64_t deadline = sh_deadline(END_LIMIT);
    while (!is_gone(t) && !sh_passed(deadline)) {
        nanosleep(&(struct timespec){.tv_nsec = POLL_NS}, NULL);
    }
    return is_gone(t);
}

/* Whoever changes `exists` joins it: a signal handler may end the process in the middle of a join. */
static bool takes(sh_cuda_thread *t)
{
    uint32_t yes = 1;
    return sh_cas_acq_rel(&t->exists, &yes, 0u);
}

/* Also until the kernel has removed it: the end of the process checks that its thread is the only one (shm/end.c). */
void sh_cuda_thread_join(sh_cuda_thread *t)
{
    if (takes(t)) {
        (void)pthread_join(t->thread, NULL);
        (void)await_gone(t);
    }
}

/* A timed join would do, but ThreadSanitizer does not know the one with the clock that nobody sets. */
void sh_cuda_thread_end(sh_cuda_thread *t)
{
    if (takes(t) && await_gone(t)) {
        (void)pthread_join(t->thread, NULL);
    }
}
