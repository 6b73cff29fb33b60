#include "shm/world.h"

#include "base/clock.h"
#include "base/fork.h"
#include "os/life_lock.h"
#include "os/memory.h"
#include "os/pid.h"
#include "shm/block.h"
#include "shm/card_store.h"
#include "shm/commit.h"
#include "shm/heap.h"
#include "shm/intent.h"
#include "shm/slot.h"
#include "shm/waits.h"
#include "sync/end_word.h"

#include <ctype.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/single_threaded.h>
#include <unistd.h>

sh_world sh_the_world = {.fd = -1};

/* Lets one thread inside at a time. A process with one thread does not pay for it. */
static pthread_mutex_t inside = PTHREAD_MUTEX_INITIALIZER;
static bool prepared; /* handlers are installed, once per process */

static void lock_inside(void)
{
    if (!__libc_single_threaded) {
        sh_fork_lock(&inside);
        sh_the_world.locked = true;
    }
}

static void unlock_inside(void)
{
    if (sh_the_world.locked) {
        sh_the_world.locked = false;
        sh_fork_unlock(&inside);
    }
}

/* ---- peers (sync/peers.h) ---- */

static sh_owner peers_self(void)
{
    return (sh_owner)sh_life_now; /* its low bits */
}

#define CROWD 1024u /* this many idle waiters may wake up each second, in worlds of any size */

static uint32_t peers_sweep(int64_t age)
{
    uint32_t times = 1;
    if (sh_attachment_now() != SH_ATTACHED) {
        return times;
    }
    lock_inside();
    if (sh_attachment_now() == SH_ATTACHED) {
        sh_slots_sweep(age);
        sh_forks_tidy();
        sh_cardstore_tidy();
        times += sh_load_relaxed(&sh_the_world.header->slots_taken) / CROWD;
    }
    unlock_inside();
    return times <= 1 + SH_SLOTS / CROWD ? times : 1;
}

static void peers_repaired(void)
{
    sh_add_relaxed(&sh_the_world.header->repaired, 1);
}

static const sh_peers world_peers = {.self = peers_self,
                                     .is_dead = sh_owner_is_dead,
                                     .sweep = peers_sweep,
                                     .repaired = peers_repaired,
                                     .sleeps = sh_waits_begin,
                                     .wakes = sh_waits_end};

/* ---- once per process ---- */

__attribute__((constructor)) static void register_lock(void)
{
    static const sh_fork_part part = {.lock = &inside,
                                      .prepare = sh_world_fork_prepare,
                                      .parent = sh_world_fork_parent,
                                      .child = sh_world_fork_child};
    sh_fork_register(SH_FORK_WORLD, &part);
}

static void prepare_process(void)
{
    if (!prepared) {
        prepared = true;
        sh_world_watch_end();
    }
}

/* ---- attach and detach ---- */

int sh_world_file(void)
{
    return sh_memory_is(sh_the_world.fd, &sh_the_world.file) ? sh_the_world.fd : -1;
}

shoal_err sh_world_file_lost(void)
{
    return sh_fail(
        SHOAL_EOS,
        "the program has closed the fd of the world's memory file (it was %d): a program must close only its "
        "own fds, or close all others before it first uses the library",
        sh_the_world.fd);
}

/* The attachment must not be SH_ATTACHED: a signal handler may end the process at any step here (end.c). */
static void forget_world(void)
{
    sh_cardstore_close(); /* the mapping says which fds are the store's */
    if (sh_the_world.base != NULL) {
        sh_memory_unmap(sh_the_world.base, sh_the_world.size);
    }
    sh_life_lock_drop();
    if (sh_world_file() >= 0) {
        close(sh_the_world.fd);
    }
    sh_the_world = (sh_world){.fd = -1, .locked = sh_the_world.locked};
    sh_store_release(&sh_world_has_ended, 0u);
    sh_intent_forget();
}

void sh_world_be(uint32_t index)
{
    sh_ctx *c = &sh_the_world.self;
    memset(c, 0, sizeof *c);
    c->slot = sh_slot_at(index);
    c->index = index;
    for (uint32_t k = 0; k < SH_CLASSES; k++) {
        c->cursor[k] = index; /* processes search for free blocks in different places */
    }
    sh_cardstore_tell(c->slot);
    sh_peers_set(&world_peers, sh_slot_life(index, sh_load_relaxed(&c->slot->state)));
    sh_signal_fence(); /* a signal handler that ends the process finds the slot if it finds SH_ATTACHED */
    sh_attachment_set(SH_ATTACHED);
}

/* Uses the mapping of a checked world and takes a slot in it. */
static shoal_err enter_world(int fd, void *base, uint64_t size, uint32_t slot, const char *name)
{
    sh_the_world = (sh_world){.base = base,
                              .size = size,
                              .fd = fd,
                              .file = sh_memory_identify(fd),
                              .header = base,
                              .locked = sh_the_world.locked};
    sh_pid_find_space();
    shoal_err err = slot == SH_SLOT_NEW ? sh_slot_claim(name, &slot) : sh_slot_adopt(slot);
    if (err == SHOAL_OK) {
        sh_world_be(slot);
        err = sh_blocks_begin(&sh_the_world.self);
        if (err != SHOAL_OK) {
            if (!sh_world_refuse(SH_LEAVING)) {
                return err; /* another thread ends the process, and handles this */
            }
            sh_slot_vacate(slot);
        }
    }
    if (err != SHOAL_OK) {
        forget_world();
        return err;
    }
    prepare_process();
    return SHOAL_OK;
}

static void tell_attached(void)
{
    if (sh_world_after_attach != NULL) {
        sh_world_after_attach();
    }
}

shoal_err sh_world_check(const sh_world_shm *header, uint64_t size)
{
    if (sh_load_acquire(&header->magic) != SH_MAGIC) {
        return sh_fail(SHOAL_ECORRUPT, "this is not a world: there is no magic number at byte 0");
    }
    if (sh_load_relaxed(&header->layout) != sh_layout_word()) {
        return sh_fail(SHOAL_ELAYOUT, "the world has memory layout %llx, this library %llx: they are different builds",
                       (unsigned long long)sh_load_relaxed(&header->layout), (unsigned long long)sh_layout_word());
    }
    if (sh_load_relaxed(&header->reserved) != size || size < SH_RESERVE_MIN || size > SH_RESERVE_MAX ||
        size % SH_UNIT != 0) {
        return sh_fail(SHOAL_ECORRUPT, "the header of the world says %llu bytes, its file has %llu",
                       (unsigned long long)sh_load_relaxed(&header->reserved), (unsigned long long)size);
    }
    return SHOAL_OK;
}

/* Maps the world behind fd for a process that is in none. Closes fd on failure. */
static shoal_err map_world(int fd, void **out_base, uint64_t *out_size)
{
    uint64_t size;
    void *base = NULL;
    shoal_err err = SHOAL_OK;
    if (sh_attachment_now() != SH_DETACHED) {
        err = sh_fail(SHOAL_ESTATE, "this process is already in a world");
    } else if (!sh_memory_is_sealed(fd, &size) || size < SH_RESERVE_MIN) {
        err = sh_fail(SHOAL_ECORRUPT, "this is not a world: the file is not a sealed memory file, or it is too small");
    } else {
        err = sh_memory_map(fd, size, &base);
    }
    if (err == SHOAL_OK) {
        err = sh_world_check(base, size);
    }
    if (err != SHOAL_OK) {
        if (base != NULL) {
            sh_memory_unmap(base, size);
        }
        close(fd);
        return err;
    }
    *out_base = base;
    *out_size = size;
    return SHOAL_OK;
}

shoal_err sh_world_attach(int fd, uint32_t slot, const char *name)
{
    uint64_t size;
    void *base;
    SH_TRY(map_world(fd, &base, &size));
    SH_TRY(enter_world(fd, base, size, slot, name));
    tell_attached();
    return SHOAL_OK;
}

shoal_err sh_world_inspect(int fd, void (*see)(void *context), void *context)
{
    uint64_t size;
    void *base;
    lock_inside();
    shoal_err err = map_world(fd, &base, &size);
    if (err == SHOAL_OK) {
        /* The attachment stays SH_DETACHED: nothing in there is this process's. */
        sh_the_world = (sh_world){.base = base, .size = size, .fd = -1, .header = base, .locked = sh_the_world.locked};
        see(context);
        sh_the_world = (sh_world){.fd = -1, .locked = sh_the_world.locked};
        sh_memory_unmap(base, size);
        close(fd);
    }
    unlock_inside();
    return err;
}

void sh_world_detach(void)
{
    if (sh_attachment_now() == SH_ENDED || sh_attachment_now() == SH_LEAVING) {
        return; /* the mapping stays, for other threads; or another call is leaving, perhaps the interrupted one */
    }
    if (sh_attachment_now() == SH_ATTACHED && sh_world_before_end != NULL) {
        sh_world_before_end(false);
    }
    lock_inside();
    if (sh_world_refuse(SH_LEAVING)) {
        sh_forks_await();
        sh_slot_end(sh_the_world.self.index);
        sh_forks_forget();
        sh_peers_set(NULL, 0);
        sh_blocks_forget();
        forget_world();
    }
    unlock_inside();
}

void shoal_world_leave(void)
{
    sh_cleanup_begin();
    sh_end_word_drop(sh_world_file());      /* while our slot still holds its memory */
    if (sh_attachment_now() == SH_FORKED) { /* only the mapping belongs to this process */
        sh_blocks_forget();
        forget_world();
    } else {
        sh_world_detach();
    }
    if (sh_attachment_now() != SH_ENDED && sh_world_after_leave != NULL) {
        sh_world_after_leave();
    }
    sh_cleanup_end();
}

/* ---- creating one ---- */

static bool valid_name(const char *name)
{
    size_t n = strlen(name);
    for (size_t i = 0; i < n; i++) {
        if (!isalnum((unsigned char)name[i]) && strchr("-_.", name[i]) == NULL) {
            return false;
        }
    }
    return n > 0 && n <= SHOAL_NAME_MAX;
}

static shoal_err parse_limit(const char *text, uint64_t *out_bytes)
{
    char *end;
    errno = 0;
    unsigned long long n = strtoull(text, &end, 10);
    uint64_t scale = *end == 'K' ? 1u << 10 : *end == 'M' ? 1u << 20 : *end == 'G' ? 1u << 30 : 1;
    if (end == text || text[0] == '-' || errno != 0 || (scale > 1 ? end[1] : end[0]) != 0 || n == 0 ||
        __builtin_mul_overflow((uint64_t)n, scale, out_bytes)) {
        return sh_fail(SHOAL_EINVAL, "SHOAL_HEAP_LIMIT=%s: expected a number of bytes such as 512M", text);
    }
    return SHOAL_OK;
}

static uint64_t file_size_limit(void)
{
    struct rlimit limit;
    return getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY ? limit.rlim_cur : UINT64_MAX;
}

/* Returns how much address space to reserve: as much as possible, at most half of what a limited process may use. */
static uint64_t reservation(uint64_t asked)
{
    uint64_t size = asked != 0 ? asked : SH_RESERVE_MAX;
#if defined(__SANITIZE_THREAD__)
    size = size < (UINT64_C(1) << 36) ? size : UINT64_C(1) << 36; /* the shadow memory leaves no room for more */
#endif
    struct rlimit limit;
    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && size > limit.rlim_cur / 2) {
        size = limit.rlim_cur / 2;
    }
    uint64_t file_limit = file_size_limit();
    size = size < file_limit ? size : file_limit;
    size = size / SH_UNIT * SH_UNIT;
    return size < SH_RESERVE_MIN ? SH_RESERVE_MIN : size > SH_RESERVE_MAX ? SH_RESERVE_MAX : size;
}

static shoal_err make_file(const char *name, uint64_t asked, int *out_fd, void **out_base, uint64_t *out_size)
{
    char file_name[SHOAL_NAME_MAX + 16];
    snprintf(file_name, sizeof file_name, "shoal:%s", name);
    shoal_err err = SHOAL_OK;
    if (file_size_limit() < SH_RESERVE_MIN) { /* creating a larger one would raise SIGXFSZ */
        return sh_fail(SHOAL_EOS,
                       "RLIMIT_FSIZE (ulimit -f) allows files of %llu bytes, but the memory file of a world needs %llu",
                       (unsigned long long)file_size_limit(), (unsigned long long)SH_RESERVE_MIN);
    }
    for (uint64_t size = reservation(asked); size >= SH_RESERVE_MIN; size = size / 2 / SH_UNIT * SH_UNIT) {
        SH_TRY(sh_memory_create(file_name, size, out_fd));
        err = sh_memory_map(*out_fd, size, out_base);
        if (err == SHOAL_OK) {
            *out_size = size;
            return SHOAL_OK;
        }
        close(*out_fd);
    }
    return err;
}

static shoal_err create_world(const shoal_world_options *options)
{
    static const shoal_world_options none;
    char name[SHOAL_NAME_MAX + 1];
    const shoal_world_options *o = options != NULL ? options : &none;
    uint64_t limit = o->heap_limit, size = 0;
    const char *text = getenv("SHOAL_HEAP_LIMIT");
    void *base;
    int fd;
    snprintf(name, sizeof name, "%s", o->name != NULL ? o->name : "");
    if (o->name == NULL) {
        snprintf(name, sizeof name, "%d", (int)getpid());
    } else if (!valid_name(o->name)) {
        return sh_fail(SHOAL_EINVAL, "world name '%.80s': expected 1 to %d letters, digits, '-', '_', '.'", o->name,
                       SHOAL_NAME_MAX);
    }
    if (limit == 0 && text != NULL) {
        SH_TRY(parse_limit(text, &limit));
    }
    shoal_err err = sh_spin_check();
    if (err == SHOAL_OK) {
        err = make_file(name, o->reserve, &fd, &base, &size);
    }
    if (err != SHOAL_OK) {
        return err;
    }
    if (!sh_memory_commit(fd, base, 0, SH_SLOTS_AT)) {
        err = sh_fail_os("memory for a world");
        sh_memory_unmap(base, size);
        close(fd);
        return err;
    }
    sh_world_shm *header = base;
    sh_store_relaxed(&header->layout, sh_layout_word());
    sh_store_relaxed(&header->reserved, size);
    sh_store_relaxed(&header->heap_limit, limit != 0 ? limit : sh_memory_of_machine());
    sh_pid_find_space();
    sh_store_relaxed(&header->home, sh_pid_space());
    memcpy(header->name, name, sizeof name);
    sh_cardstore_make(header);
    sh_store_release(&header->magic, SH_MAGIC);
    return enter_world(fd, base, size, SH_SLOT_NEW, "main");
}

shoal_err shoal_world_create(const shoal_world_options *options)
{
    if (sh_load_acquire(&sh_world_has_ended) != 0) {
        return sh_world_ending("shoal_world_create");
    }
    lock_inside();
    shoal_err err = sh_attachment_now() == SH_DETACHED ? create_world(options)
                                                       : sh_fail(SHOAL_ESTATE, "this process is already in a world");
    unlock_inside();
    SH_TRY(err);
    tell_attached();
    return SHOAL_OK;
}

/* ---- entering ---- */

static sh_ctx *enter(bool held)
{
    /* Without the lock: this very thread may hold it, interrupted by a signal handler that ends the process. */
    if (sh_load_acquire(&sh_world_has_ended) != 0) {
        (void)sh_world_ending("this call");
        return NULL;
    }
    lock_inside();
    if (__builtin_expect(sh_attachment_now() == SH_ATTACHED, 1)) {
        return &sh_the_world.self;
    }
    shoal_err err = sh_attachment_now() == SH_FORKED  ? sh_world_not_ours("this call")
                    : sh_attachment_now() == SH_ENDED ? sh_world_ending("this call")
                    : held ? sh_fail(SHOAL_ESTATE, "this process has left the world of the object")
                           : create_world(NULL);
    if (err != SHOAL_OK) {
        unlock_inside();
        return NULL;
    }
    bool locked = sh_the_world.locked;
    tell_attached();
    if (!locked) {
        lock_inside(); /* that may have started the second thread of this process */
    }
    return &sh_the_world.self;
}

sh_ctx *sh_enter_slow(void)
{
    return enter(false);
}

sh_ctx *sh_enter_held_slow(void)
{
    return enter(true);
}

void sh_leave_slow(void)
{
    unlock_inside();
}

bool sh_attached(void)
{
    return sh_attachment_now() == SH_ATTACHED;
}

shoal_err shoal_world_sweep(uint32_t *out_recovered)
{
    sh_ctx *c = sh_enter();
    if (c == NULL) {
        return shoal_last_error();
    }
    sh_forks_tidy();
    uint32_t n = sh_slots_sweep(0);
    sh_cardstore_tidy();
    sh_leave();
    if (out_recovered != NULL) {
        *out_recovered = n;
    }
    return SHOAL_OK;
}

shoal_err shoal_world_trim(void)
{
    sh_ctx *c = sh_enter();
    if (c == NULL) {
        return shoal_last_error();
    }
    sh_trim(c, UINT64_MAX);
    sh_leave();
    return SHOAL_OK;
}
