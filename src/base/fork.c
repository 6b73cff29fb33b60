#include "base/fork.h"

static const sh_fork_part *parts[SH_FORK_RANKS]; /* written by constructors, before there is a second thread */
static _Thread_local bool holds;                 /* this thread has all locks already */
static uint64_t generation;

static void lock_all(void)
{
    for (int i = 0; i < SH_FORK_RANKS; i++) {
        if (parts[i] != NULL && parts[i]->lock != NULL && !parts[i]->only_anew) {
            pthread_mutex_lock(parts[i]->lock);
        }
    }
}

static void unlock_all(void)
{
    for (int i = SH_FORK_RANKS; i-- > 0;) {
        if (parts[i] != NULL && parts[i]->lock != NULL && !parts[i]->only_anew) {
            pthread_mutex_unlock(parts[i]->lock);
        }
    }
}

void sh_fork_hold(void)
{
    lock_all();
    holds = true;
}

void sh_fork_let_go(void)
{
    holds = false;
    unlock_all();
}

static void prepare(void)
{
    if (!holds) {
        lock_all();
    }
    for (int i = 0; i < SH_FORK_RANKS; i++) {
        if (parts[i] != NULL && parts[i]->prepare != NULL) {
            parts[i]->prepare();
        }
    }
}

static void parent(void)
{
    for (int i = SH_FORK_RANKS; i-- > 0;) {
        if (parts[i] != NULL && parts[i]->parent != NULL) {
            parts[i]->parent();
        }
    }
    if (!holds) {
        unlock_all();
    }
}

static void child(void)
{
    generation++;
    holds = false;
    for (int i = 0; i < SH_FORK_RANKS; i++) {
        if (parts[i] != NULL && parts[i]->lock != NULL) {
            pthread_mutex_init(parts[i]->lock, NULL);
        }
    }
    for (int i = 0; i < SH_FORK_RANKS; i++) {
        if (parts[i] != NULL && parts[i]->child != NULL) {
            parts[i]->child();
        }
    }
}

void sh_fork_register(sh_fork_rank rank, const sh_fork_part *part)
{
    static bool installed;
    parts[rank] = part;
    if (!installed) {
        installed = true;
        pthread_atfork(prepare, parent, child);
    }
}

uint64_t sh_fork_generation(void)
{
    return generation;
}
