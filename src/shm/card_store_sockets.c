/* The sockets of the store that this process has: made with the world, inherited, passed by a parent, or copied from
 * another process. card_store.h explains them. */
#include "shm/card_store.h"

#include "os/fd.h"
#include "os/pid.h"
#include "os/pidfd.h"
#include "shm/slot.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int sh_cardstore_fds[2] = {-1, -1};

/* Which files they are. The header says so, too, but a child of fork that found no place in the world cannot read that
 * any more when it closes them. */
static sh_memory_id files[2];

/* Checks for the world's socket. */
static bool is_end(int fd, int which)
{
    sh_memory_id id = {.device = (dev_t)sh_load_relaxed(&sh_the_world.header->store.device),
                       .inode = (ino_t)sh_load_relaxed(&sh_the_world.header->store.inode[which])};
    return fd >= 0 && id.inode != 0 && sh_memory_is(fd, &id);
}

/* The program may have closed them, and have other files under their numbers by now. */
static bool have_end(int which)
{
    return sh_cardstore_fds[which] >= 0 && sh_memory_is(sh_cardstore_fds[which], &files[which]);
}

bool sh_cardstore_have_ends(void)
{
    return have_end(SH_STORE_INTO) && have_end(SH_STORE_FROM);
}

static void set_ends(const int fds[2])
{
    for (int i = 0; i < 2; i++) {
        sh_cardstore_fds[i] = fds[i];
        files[i] = sh_memory_identify(fds[i]);
    }
}

void sh_cardstore_make(sh_world_shm *header)
{
    int pair[2];
    sh_cardstore_fds[SH_STORE_INTO] = sh_cardstore_fds[SH_STORE_FROM] = -1;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0 || !sh_fd_keep_both(pair)) {
        return;
    }
    set_ends(pair);
    sh_store_relaxed(&header->store.device, (uint64_t)files[SH_STORE_INTO].device);
    sh_store_relaxed(&header->store.inode[SH_STORE_INTO], (uint64_t)files[SH_STORE_INTO].inode);
    sh_store_relaxed(&header->store.inode[SH_STORE_FROM], (uint64_t)files[SH_STORE_FROM].inode);
}

void sh_cardstore_tell(sh_slot_shm *slot)
{
    for (int i = 0; i < 2; i++) {
        sh_store_relaxed(&slot->store[i], (uint32_t)(sh_cardstore_fds[i] + 1));
    }
}

void sh_cardstore_adopt(const int passed[2])
{
    if (is_end(passed[SH_STORE_INTO], SH_STORE_INTO) && is_end(passed[SH_STORE_FROM], SH_STORE_FROM)) {
        fcntl(passed[SH_STORE_INTO], F_SETFD, FD_CLOEXEC);
        fcntl(passed[SH_STORE_FROM], F_SETFD, FD_CLOEXEC);
        set_ends(passed);
        sh_cardstore_tell(sh_the_world.self.slot);
    }
}

void sh_cardstore_ends(int out_ends[2])
{
    bool have = sh_cardstore_have_ends();
    out_ends[SH_STORE_INTO] = have ? sh_cardstore_fds[SH_STORE_INTO] : -1;
    out_ends[SH_STORE_FROM] = have ? sh_cardstore_fds[SH_STORE_FROM] : -1;
}

void sh_cardstore_close(void)
{
    for (int i = 0; i < 2; i++) {
        if (have_end(i)) {
            close(sh_cardstore_fds[i]);
        }
        sh_cardstore_fds[i] = -1;
    }
}

/* Copies the two sockets from a process that has them. Returns 0, or the errno of the first step that failed. */
static int copy_ends(const sh_slot_shm *slot)
{
    int got[2] = {-1, -1};
    int pidfd = sh_pidfd_open((int32_t)sh_load_acquire(&slot->pid)), number = pidfd < 0 ? errno : 0;
    for (int i = 0; i < 2 && number == 0; i++) {
        got[i] = sh_fd_keep(sh_pidfd_copy(pidfd, (int)sh_load_relaxed(&slot->store[i]) - 1));
        number = got[i] < 0 ? errno : is_end(got[i], i) ? 0 : EBADF;
    }
    if (pidfd >= 0) {
        close(pidfd);
    }
    if (number == 0) {
        set_ends(got);
    } else if (got[SH_STORE_INTO] >= 0) {
        close(got[SH_STORE_INTO]);
    }
    if (number != 0 && got[SH_STORE_FROM] >= 0) {
        close(got[SH_STORE_FROM]);
    }
    return number;
}

/* Returns 0; ENOENT if no process that this one can see has the sockets; or why it cannot copy them from one that
 * has. */
static int fetch_ends(void)
{
    uint32_t used = sh_load_acquire(&sh_the_world.header->slots_used);
    int why = ENOENT;
    for (uint32_t i = 0; i < used && i < SH_SLOTS; i++) {
        sh_slot_shm *slot = sh_slot_at(i);
        if (sh_slot_state_phase(sh_load_acquire(&slot->state)) != SH_PHASE_ALIVE ||
            sh_load_relaxed(&slot->store[SH_STORE_INTO]) == 0 || sh_load_relaxed(&slot->store[SH_STORE_FROM]) == 0) {
            continue;
        }
        int number = copy_ends(slot);
        if (number == 0) {
            sh_cardstore_tell(sh_the_world.self.slot);
            return 0;
        }
        if (number != ESRCH && number != EBADF) { /* it has ended, or its program has closed them */
            why = number;
        }
    }
    return why;
}

void sh_cardstore_join(void)
{
    if (sh_enter_held() != NULL) {
        (void)fetch_ends();
        sh_leave();
    }
}

/* For a process that joined by name, and could not get them then. */
static shoal_err fetch_late(void)
{
    int why = fetch_ends();
    if (why == 0) {
        return SHOAL_OK;
    }
    if (why == ENOENT) {
        return sh_fail(SHOAL_EOS, "this world cannot share GPU memory: this process joined it by name, and the "
                                  "processes that had its store have ended: create a new world");
    }
    return sh_fail(why == EMFILE || why == ENFILE ? SHOAL_ELIMIT : SHOAL_EPERM,
                   "this process joined the world by name, and cannot get the world's GPU memory from another process "
                   "(pidfd_getfd: %s): start it with shoal_process_start or shoal_process_start_program",
                   strerror(why));
}

/* Makes sure that this process has the sockets. Called inside. */
shoal_err sh_cardstore_need_ends(void)
{
    if (sh_cardstore_have_ends()) {
        return SHOAL_OK;
    }
    if (sh_load_relaxed(&sh_the_world.header->store.inode[SH_STORE_INTO]) == 0) {
        return sh_fail(SHOAL_EOS, "this world cannot share GPU memory: there were no fds, or no Unix sockets, for its "
                                  "store when it was created");
    }
    if (sh_cardstore_fds[SH_STORE_INTO] >= 0) {
        return sh_fail(SHOAL_EOS,
                       "the program has closed the fds of the world's GPU memory (they were %d and %d): a program must "
                       "close only its own fds, or close all others before it first uses the library",
                       sh_cardstore_fds[SH_STORE_INTO], sh_cardstore_fds[SH_STORE_FROM]);
    }
    return fetch_late();
}
