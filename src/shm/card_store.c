#include "shm/card_store.h"

#include "base/death.h"
#include "shm/granule.h"
#include "shm/slot.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define MESSAGE_MAGIC UINT64_C(0x65726f7473206873)
#define MESSAGES_MAX 8 /* there are never more than two; more were sent by something else */

int64_t sh_cardstore_limit = SHOAL_SECONDS(10); /* a replacement takes less than a millisecond */

static sh_store_shm *store(void)
{
    return &sh_the_world.header->store;
}

/* ---- messages ---- */

/* What a message says. Its fds have the order of the entries. Nothing in it is trusted: any process of the world can
 * send one. */
typedef struct message {
    uint64_t magic;
    uint64_t number; /* one more than that of the set that it replaces */
    uint64_t count;
    sh_store_entry entries[SH_STORE_MAX];
} message;

typedef struct set {
    message m; /* number 0: there is no message yet */
    int fds[SH_STORE_MAX];
    uint32_t open; /* how many of the fds are open in this process */
} set;

typedef union control {
    char bytes[CMSG_SPACE(SH_STORE_MAX * sizeof(int))];
    struct cmsghdr align;
} control;

static size_t message_bytes(uint64_t count)
{
    return offsetof(message, entries) + (size_t)count * sizeof(sh_store_entry);
}

static uint64_t fd_limit(void)
{
    struct rlimit limit;
    return getrlimit(RLIMIT_NOFILE, &limit) == 0 ? (uint64_t)limit.rlim_cur : 0;
}

static void close_fds(set *s)
{
    for (uint32_t i = 0; i < s->open; i++) {
        close(s->fds[i]);
    }
    s->open = 0;
}

static void take_fds(struct msghdr *h, set *s)
{
    for (struct cmsghdr *c = CMSG_FIRSTHDR(h); c != NULL; c = CMSG_NXTHDR(h, c)) {
        if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) { /* there is one: the system makes no more */
            s->open = (uint32_t)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
            memcpy(s->fds, CMSG_DATA(c), s->open * sizeof(int));
        }
    }
}

static shoal_err too_few_fds(uint64_t granules, uint32_t open)
{
    return sh_fail(SHOAL_ELIMIT,
                   "the world has %llu granules of GPU memory, and this process could open the fds of %u: it may have "
                   "%llu fds (RLIMIT_NOFILE)",
                   (unsigned long long)granules, open, (unsigned long long)fd_limit());
}

static shoal_err check_set(const set *s, ssize_t size, int flags, bool with_fds)
{
    if (size < (ssize_t)message_bytes(0) || s->m.magic != MESSAGE_MAGIC || s->m.count > SH_STORE_MAX ||
        (size_t)size != message_bytes(s->m.count) || (flags & MSG_TRUNC) != 0 || s->m.number == 0) {
        return sh_fail(SHOAL_ECORRUPT, "the store of GPU memory holds a message that the library did not send");
    }
    if (with_fds && s->open != s->m.count) {
        return too_few_fds(s->m.count, s->open);
    }
    return SHOAL_OK;
}

/* Copies the first message, with its fds or without. The caller closes them. */
static shoal_err peek(bool with_fds, set *s)
{
    control room;
    struct iovec bytes = {.iov_base = &s->m, .iov_len = sizeof s->m};
    struct msghdr h = {.msg_iov = &bytes, .msg_iovlen = 1};
    ssize_t n;
    if (with_fds) {
        h.msg_control = room.bytes;
        h.msg_controllen = sizeof room.bytes;
    }
    s->open = 0;
    do {
        n = recvmsg(sh_cardstore_fds[SH_STORE_FROM], &h, MSG_PEEK | MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    } while (n < 0 && errno == EINTR);
    if (n < 0 && errno != EAGAIN) {
        return sh_fail_os("reading the store of GPU memory");
    }
    if (n <= 0) { /* nobody has added anything yet */
        s->m.number = s->m.count = 0;
        return SHOAL_OK;
    }
    take_fds(&h, s);
    shoal_err err = check_set(s, n, h.msg_flags, with_fds);
    if (err != SHOAL_OK) {
        close_fds(s);
    }
    return err;
}

/* Receives the first message at that end, without room for fds: the system closes its copies of them. Opens none here,
 * so this works in a process that can have no more fds. Returns false if there is none. */
static bool drop_first(int end)
{
    char byte;
    struct iovec bytes = {.iov_base = &byte, .iov_len = 1};
    struct msghdr h = {.msg_iov = &bytes, .msg_iovlen = 1};
    ssize_t n;
    do {
        n = recvmsg(end, &h, MSG_DONTWAIT);
    } while (n < 0 && errno == EINTR);
    return n > 0;
}

/* Sends bytes with fds. Returns false with errno. */
static bool send_fds(int end, const void *data, size_t size, const int *fds, size_t count)
{
    control room;
    struct iovec bytes = {.iov_base = (void *)(uintptr_t)data, .iov_len = size};
    struct msghdr h = {.msg_iov = &bytes, .msg_iovlen = 1};
    ssize_t n;
    if (count > 0) {
        memset(&room, 0, sizeof room);
        h.msg_control = room.bytes;
        h.msg_controllen = CMSG_SPACE(count * sizeof(int));
        struct cmsghdr *c = CMSG_FIRSTHDR(&h);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(count * sizeof(int));
        memcpy(CMSG_DATA(c), fds, count * sizeof(int));
    }
    do {
        n = sendmsg(end, &h, MSG_DONTWAIT | MSG_NOSIGNAL);
    } while (n < 0 && errno == EINTR);
    return n >= 0;
}

static shoal_err send_set(const set *s)
{
    if (send_fds(sh_cardstore_fds[SH_STORE_INTO], &s->m, message_bytes(s->m.count), s->fds, (size_t)s->m.count)) {
        return SHOAL_OK;
    }
    if (errno == ETOOMANYREFS) {
        return sh_fail(
            SHOAL_ELIMIT,
            "the world would have %llu granules of GPU memory, and the system allows this user no more fds in "
            "sockets: this process may have %llu (RLIMIT_NOFILE), in all worlds together",
            (unsigned long long)s->m.count, (unsigned long long)fd_limit());
    }
    return sh_fail_os("writing to the store of GPU memory");
}

/* The system lets a user send while no more fds are in his sockets than the limit. So the last set that it lets through
 * may be one fd over, and then none could be sent any more, not even a smaller one: nothing could be freed. So while a
 * set with one fd more is sent, one more fd lies in the sockets, in the other direction: what is let through now leaves
 * room for the next set. It is the fd of the world's file, which does no harm there. */
static void add_ballast(void)
{
    int file = sh_world_file();
    if (file >= 0) {
        (void)send_fds(sh_cardstore_fds[SH_STORE_FROM], "", 1, &file, 1);
    }
}

/* Also what a dead writer left. */
static void drop_ballast(void)
{
    for (int i = 0; i < MESSAGES_MAX && drop_first(sh_cardstore_fds[SH_STORE_INTO]); i++) {
    }
}

/* ---- replacing the set ---- */

/* Drops what a writer left that died between its send and its receive: all messages but the last. Under the lock, so no
 * other writer is in between now. The bytes of all messages tell whether the first is the only one. */
static shoal_err settle(set *s)
{
    for (int i = 0; i < MESSAGES_MAX; i++) {
        int total = 0;
        uint64_t before = s->m.number;
        shoal_err err = peek(false, s);
        if (err != SHOAL_OK || s->m.number == 0) {
            return err;
        }
        if (ioctl(sh_cardstore_fds[SH_STORE_FROM], FIONREAD, &total) != 0) {
            return sh_fail_os("the size of the store of GPU memory");
        }
        if (i > 0 && s->m.number <= before) {
            break;
        }
        if ((size_t)total <= message_bytes(s->m.count)) {
            return SHOAL_OK;
        }
        (void)drop_first(sh_cardstore_fds[SH_STORE_FROM]);
        SH_DEATH("store.settle.dropped"); /* death: the last message is still there; the next writer goes on */
    }
    return sh_fail(SHOAL_ECORRUPT, "the store of GPU memory holds messages that the library did not send");
}

static bool is_living(const sh_store_entry *e)
{
    sh_granule_info info;
    return sh_granule_look(e->granule, &info) && info.serial == e->serial;
}

static uint32_t count_living(const message *m)
{
    uint32_t n = 0;
    for (uint64_t i = 0; i < m->count; i++) {
        n += is_living(&m->entries[i]);
    }
    return n;
}

/* Removes the entries of dead granules from the set, and closes their fds. */
static void drop_dead(set *s)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->open; i++) {
        if (is_living(&s->m.entries[i])) {
            s->m.entries[n] = s->m.entries[i];
            s->fds[n++] = s->fds[i];
        } else {
            close(s->fds[i]);
        }
    }
    s->m.count = s->open = n;
}

/* Adds a copy of the fd to the set. So this process has had all of them open at once, and will be able to again: who
 * cannot open the set cannot take anything out of it. */
static shoal_err extend_set(set *s, const sh_store_entry *more, int fd)
{
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    if (copy < 0) {
        return errno == EMFILE ? too_few_fds(s->m.count + 1, s->open) : sh_fail_os("the fd of a granule");
    }
    s->m.entries[s->m.count++] = *more;
    s->fds[s->open++] = copy;
    add_ballast();
    SH_DEATH("store.add.ballast"); /* death: the next writer drops it */
    return SHOAL_OK;
}

/* Sends the set and drops the old one. had: there was a message before. */
static shoal_err put_set(set *s, bool had)
{
    s->m.magic = MESSAGE_MAGIC;
    s->m.number++;
    SH_DEATH("store.set.peeked"); /* death: nothing has changed; the system closes the fds of the dead */
    SH_TRY(send_set(s));
    /* death: two messages. The first holds all that lives, except a new granule, which dies with its maker, this
     * process; readers go by the first, and the next writer drops it. */
    SH_DEATH("store.set.sent");
    close_fds(s);
    SH_DEATH("store.set.closed"); /* death: the same */
    if (had) {
        (void)drop_first(sh_cardstore_fds[SH_STORE_FROM]);
    }
    SH_DEATH("store.set.dropped"); /* death: done, but for the lock, which recovery releases */
    return SHOAL_OK;
}

/* Sends the set without dead granules, and with one more unless fd is -1. The set is empty after that. */
static shoal_err send_living(set *s, const sh_store_entry *more, int fd, bool had)
{
    drop_dead(s);
    if (fd >= 0) {
        SH_TRY(extend_set(s, more, fd));
    }
    return put_set(s, had);
}

/* Replaces the set by one without dead granules and with one fd more, unless it is -1. Called inside, under the store's
 * lock. */
static shoal_err replace(const sh_store_entry *more, int fd)
{
    static set s; /* the store's lock protects it, too. Not on the stack: an exit in a signal handler comes here */
    uint64_t died =
        sh_load_acquire(&store()->died); /* before the look at the blocks: those counted so far are seen dead */
    s.m.number = 0;
    SH_TRY(settle(&s));
    uint32_t living = count_living(&s.m);
    if (fd >= 0 && living >= SH_STORE_MAX) {
        return sh_fail(SHOAL_ELIMIT, "the world has %u granules of GPU memory, and cannot have more", living);
    }
    if (fd >= 0 || living < s.m.count) {
        bool had = s.m.number != 0;
        SH_TRY(peek(true, &s));
        shoal_err err = send_living(&s, more, fd, had);
        close_fds(&s);
        drop_ballast();
        SH_TRY(err);
    }
    sh_store_release(&store()->swept, died);
    return SHOAL_OK;
}

/* ---- the lock ---- */

/* Tries the lock. A dead holder is no obstacle, and there is nothing to repair but what settle does anyway. */
static bool try_lock(void)
{
    return sh_lock_lock(&store()->lock, SHOAL_NOW) == SHOAL_OK;
}

static void unlock(void)
{
    (void)!sh_lock_unlock(&store()->lock);
    SH_DEATH(
        "store.unlocked"); /* death: a granule that was counted meanwhile is swept with the next one, or in a wait */
    sh_fence_seq_cst();    /* pairs with the fence in sh_cardstore_tidy */
}

/* Either our try comes after the holder's unlock, and finds the lock free; or the holder looks at the count after its
 * unlock, and by the two fences sees ours. */
void sh_cardstore_tidy(void)
{
    sh_store_shm *s = store();
    bool going = sh_load_acquire(&s->died) != sh_load_relaxed(&s->swept) && !sh_recovery_is_helper();
    if (!going) {
        return;
    }
    sh_cleanup_begin();
    going = sh_cardstore_have_ends();
    while (going) {
        sh_fence_seq_cst(); /* pairs with the fence in unlock: our count, then the look at the lock */
        going = try_lock();
        if (going) {
            SH_DEATH("store.tidy.locked"); /* death: recovery releases the lock, and the count still says what to do */
            going = replace(NULL, -1) == SHOAL_OK;
            unlock();
            going = going && sh_load_acquire(&s->died) != sh_load_relaxed(&s->swept);
        }
    }
    sh_cleanup_end();
}

void sh_cardstore_sweep(void)
{
    if (sh_attachment_now() == SH_ATTACHED && sh_enter_held() != NULL) {
        sh_cardstore_tidy();
        sh_leave();
    }
}

void sh_cardstore_repair(sh_owner dead)
{
    (void)sh_lock_repair(&store()->lock, dead);
}

/* ---- add and find ---- */

/* Finds the serial of a granule that this process holds, and makes sure that it has the sockets. Called inside. */
static shoal_err prepare(uint64_t granule, sh_store_entry *out_entry)
{
    sh_granule_info info;
    SH_TRY(sh_cardstore_need_ends());
    if (!sh_granule_look(granule, &info)) {
        return sh_fail(SHOAL_EINVAL, "block %llu is not a granule of GPU memory", (unsigned long long)granule);
    }
    *out_entry = (sh_store_entry){.granule = granule, .serial = info.serial};
    return SHOAL_OK;
}

/* Names the process that has the lock now: a stopped process has had it all the time. */
static shoal_err locked_for_too_long(void)
{
    uint32_t slot = sh_owner_slot(sh_lock_owner(&store()->lock)); /* of nobody: not a slot */
    uint32_t pid = slot < SH_SLOTS ? sh_load_acquire(&sh_slot_at(slot)->pid) : 0;
    long long ms = (long long)(sh_cardstore_limit / SHOAL_MS(1));
    return pid != 0 ? sh_fail(SHOAL_ETIMEDOUT,
                              "the world's GPU memory has been locked for %lld ms, now by process %u: is it stopped?",
                              ms, pid)
                    : sh_fail(SHOAL_ETIMEDOUT, "the world's GPU memory has been locked for %lld ms", ms);
}

/* The wait comes before the thread is inside, where nobody waits. */
shoal_err sh_cardstore_add(uint64_t granule, int fd)
{
    sh_store_entry entry;
    if (!sh_attached()) {
        return sh_fail(SHOAL_ESTATE, "this process is in no world");
    }
    shoal_err err = sh_lock_lock(&store()->lock, sh_cardstore_limit);
    if (err == SHOAL_ETIMEDOUT) {
        return locked_for_too_long();
    }
    SH_TRY(err);
    SH_DEATH("store.add.locked"); /* death: nothing has changed; recovery releases the lock */
    if (sh_enter_held() == NULL) {
        return shoal_last_error(); /* this process is ending: its end releases the lock */
    }
    err = prepare(granule, &entry);
    if (err == SHOAL_OK) {
        err = replace(&entry, fd);
    }
    if (err == SHOAL_ELIMIT && sh_slots_sweep_found()) {
        err = replace(&entry, fd); /* dead processes held some */
    }
    unlock();
    sh_cardstore_tidy();
    sh_leave();
    return err;
}

/* Inside, so that no other thread forks while this process has the fds of all granules: the child would keep them. */
shoal_err sh_cardstore_fd(uint64_t granule, int *out_fd)
{
    sh_store_entry entry = {.serial = 0};
    set s = {.open = 0};
    int found = -1;
    if (sh_enter_held() == NULL) {
        return shoal_last_error();
    }
    shoal_err err = prepare(granule, &entry);
    if (err == SHOAL_OK) {
        err = peek(true, &s);
    }
    for (uint32_t i = 0; i < s.open; i++) {
        if (found < 0 && s.m.entries[i].granule == granule && s.m.entries[i].serial == entry.serial) {
            found = s.fds[i];
        } else {
            close(s.fds[i]);
        }
    }
    sh_leave();
    SH_TRY(err);
    if (found < 0) {
        return sh_fail(SHOAL_ENOENT, "the fd of granule %llu is not in the store of GPU memory",
                       (unsigned long long)granule);
    }
    *out_fd = found;
    return SHOAL_OK;
}

int sh_cardstore_table(sh_store_entry out_entries[SH_STORE_MAX])
{
    set s;
    sh_cleanup_begin();
    bool seen = sh_cardstore_have_ends() && peek(false, &s) == SHOAL_OK;
    sh_cleanup_end();
    if (!seen) {
        return -1;
    }
    memcpy(out_entries, s.m.entries, (size_t)s.m.count * sizeof *out_entries);
    return (int)s.m.count;
}
