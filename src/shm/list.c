/* Finds worlds by the memory files that running processes of this user have open. There is no registry, so nothing can
 * be stale. The kernel shows /proc/PID/fd only for processes of the same user, and root those of all users. So files of
 * other users are skipped, whatever their names and contents say: root must not trust them, nor fail because of them.
 * The kernel sets the owner of a file, and only root can give a file away. */
#include "os/fd.h"

#include "base/error.h"
#include "os/memory.h"
#include "os/pid.h"
#include "shm/card_store.h"
#include "shm/slot.h"
#include "shm/waits.h"

#include <shoal/world.h>

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define PREFIX "/memfd:shoal:"

/* Calls each with the path of every fd, of every process, that refers to a world's file. Stops when it returns
 * false. */
static void each_world_fd(bool (*each)(const char *path, const char *name, void *context), void *context)
{
    DIR *processes = opendir("/proc");
    bool going = processes != NULL;
    for (struct dirent *p; going && (p = readdir(processes)) != NULL;) {
        char path[300];
        DIR *fds;
        if (p->d_name[0] < '0' || p->d_name[0] > '9') {
            continue;
        }
        snprintf(path, sizeof path, "/proc/%s/fd", p->d_name);
        fds = opendir(path);
        for (struct dirent *d; going && fds != NULL && (d = readdir(fds)) != NULL;) {
            char link[128];
            snprintf(path, sizeof path, "/proc/%.20s/fd/%.20s", p->d_name, d->d_name);
            ssize_t n = readlink(path, link, sizeof link - 1);
            if (n <= (ssize_t)strlen(PREFIX) || strncmp(link, PREFIX, strlen(PREFIX)) != 0) {
                continue;
            }
            link[n] = 0;
            char *end = strstr(link, " (deleted)");
            if (end != NULL) {
                *end = 0;
            }
            going = each(path, link + strlen(PREFIX), context);
        }
        if (fds != NULL) {
            closedir(fds);
        }
    }
    if (processes != NULL) {
        closedir(processes);
    }
}

/* Opens the file of a world if it belongs to this user. Returns -1 if it cannot, with *out_foreign set if it belongs to
 * another. Looks before it opens: the names are under the control of others, and opening what is not a file may do
 * anything. */
static int open_own(const char *path, bool *out_foreign)
{
    struct stat st;
    if (stat(path, &st) != 0 || !S_ISREG(st.st_mode)) {
        return -1;
    }
    bool own = st.st_uid == geteuid();
    int fd = own ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd >= 0 && (fstat(fd, &st) != 0 || st.st_uid != geteuid())) { /* another file has its place by now */
        close(fd);
        fd = -1;
    }
    *out_foreign |= !own;
    return fd;
}

/* ---- by name ---- */

typedef struct search {
    const char *name;
    int fd;
    bool foreign; /* another user has a world of this name */
} search;

static bool find_by_name(const char *path, const char *name, void *context)
{
    search *s = context;
    if (strcmp(name, s->name) != 0) {
        return true;
    }
    s->fd = sh_fd_keep(open_own(path, &s->foreign));
    return s->fd < 0;
}

shoal_err sh_world_find(const char *name, int *out_fd)
{
    search s = {.name = name, .fd = -1};
    if (name[0] == 0) {
        return sh_fail(SHOAL_EINVAL, "a world without a name");
    }
    if (sh_attachment_now() != SH_DETACHED) {
        return sh_fail(SHOAL_ESTATE, "this process is already in a world");
    }
    each_world_fd(find_by_name, &s);
    if (s.fd < 0) {
        return s.foreign ? sh_fail(SHOAL_EPERM, "the world named '%.80s' belongs to another user", name)
                         : sh_fail(SHOAL_ENOENT, "no running process of this user is in a world named '%.80s'", name);
    }
    *out_fd = s.fd;
    return SHOAL_OK;
}

shoal_err shoal_world_join(const char *name)
{
    SH_NEED(name);
    int fd = -1;
    SH_TRY(sh_world_find(name, &fd));
    SH_TRY(sh_world_attach(fd, SH_SLOT_NEW, "joined"));
    sh_cardstore_join();
    return SHOAL_OK;
}

/* ---- list ---- */

typedef struct listing {
    bool (*each)(const shoal_ps_entry *entry, void *context);
    void *context;
    ino_t *seen; /* the files already shown */
    size_t seen_count;
    bool no_memory;
} listing;

static const char *const operations[] = {
    [SH_INTENT_NONE] = "",
    [SH_INTENT_ALLOC] = "allocating",
    [SH_INTENT_RELEASE] = "releasing",
    [SH_INTENT_FREE] = "freeing",
    [SH_INTENT_WEIGHT] = "sharing",
    [SH_INTENT_MOVE] = "moving",
    [SH_INTENT_LINK] = "growing a queue",
    [SH_INTENT_ENTRY] = "queueing",
    [SH_INTENT_BITS] = "allocating",
    [SH_INTENT_TRIM] = "trimming",
    [SH_INTENT_SPAN] = "growing the heap",
};

#define DOING_ROOM 96

/* Describes what a process does: its open operation, which lasts microseconds unless it is stopped in it; otherwise the
 * first wait of its threads (waits.h), and how many more there are. Returns whether any thread waits. */
static bool describe(const sh_slot_shm *slot, const sh_slot_shm *slots, char doing[DOING_ROOM])
{
    uint64_t code = sh_load_acquire(&slot->intent.code), first = 0;
    unsigned waits = 0;
    for (uint32_t i = 0; i < SH_SLOT_WAITS; i++) {
        uint64_t name = sh_load_acquire(&slot->waits[i]);
        first = first != 0 ? first : name;
        waits += name != 0;
    }
    sh_waits_describe(first, slots, doing, DOING_ROOM);
    size_t n = strlen(doing);
    if (waits > 1) {
        snprintf(doing + n, DOING_ROOM - n, " and %u more", waits - 1);
    }
    if (code != SH_INTENT_NONE && code <= SH_INTENT_SPAN) {
        snprintf(doing, DOING_ROOM, "%s", operations[code]);
    }
    return waits > 0;
}

/* Checks whether a process without a life mark is gone: by its pid if that is valid here, otherwise by the second
 * mark. */
static bool is_gone(const sh_slot_shm *slot, uint32_t index, int fd)
{
    uint64_t space = sh_load_relaxed(&slot->space);
    uint32_t ours = sh_pid_space();
    return (uint32_t)space == 0 || ours == 0 || (uint32_t)space == ours
               ? sh_pid_gone((int32_t)sh_load_acquire(&slot->pid), sh_load_relaxed(&slot->start))
               : (space & SH_SPACE_HELD) == 0 || !sh_life_marked(fd, sh_slot_life_lock_byte(index));
}

/* Lists the slots of one world, mapped read-only at base; nothing in it is trusted. */
static bool show_world(listing *l, const char *base, int fd, uint64_t used_bytes)
{
    const sh_world_shm *header = (const sh_world_shm *)base;
    uint32_t used = sh_load_acquire(&header->slots_used);
    char world[SHOAL_NAME_MAX + 1], name[SHOAL_NAME_MAX + 1], doing[DOING_ROOM];
    const sh_slot_shm *slots = (const sh_slot_shm *)(base + SH_SLOTS_AT);
    snprintf(world, sizeof world, "%.*s", SHOAL_NAME_MAX, header->name);
    for (uint32_t i = 0; i < used && i < SH_SLOTS; i++) {
        const sh_slot_shm *slot = &slots[i];
        sh_phase phase = sh_slot_state_phase(sh_load_acquire(&slot->state));
        if (phase == SH_PHASE_FREE || phase > SH_PHASE_DEAD) {
            continue;
        }
        snprintf(name, sizeof name, "%.*s", SHOAL_NAME_MAX, slot->name);
        bool waits = describe(slot, slots, doing);
        int32_t pid = (int32_t)sh_load_acquire(&slot->pid);
        bool dead = phase == SH_PHASE_DEAD || (phase == SH_PHASE_ALIVE && pid != (int32_t)getpid() &&
                                               !sh_life_marked(fd, i) && is_gone(slot, i, fd));
        shoal_ps_entry entry = {.world = world,
                                .world_used = used_bytes,
                                .world_limit = sh_load_relaxed(&header->heap_limit),
                                .world_recovered = sh_load_relaxed(&header->recovered),
                                .pid = pid,
                                .slot = i,
                                .name = name,
                                .state = dead                         ? "dead"
                                         : phase == SH_PHASE_RESERVED ? "reserved"
                                         : waits                      ? "waiting"
                                                                      : "running",
                                .doing = phase == SH_PHASE_ALIVE && !dead ? doing : "",
                                .references = sh_racy_load(&slot->held),
                                .cuda_held = sh_racy_load(&slot->card_held),
                                .cuda_used = sh_racy_load(&slot->card_used)};
        for (uint32_t n = 0; n < SH_CACHE_ENTRIES; n++) {
            entry.cached += sh_load_relaxed(&slot->cache[n]) != 0;
        }
        if (!l->each(&entry, l->context)) {
            return false;
        }
    }
    return true;
}

/* The header and the slots of a world: nothing else is read. */
#define LOOK_BYTES SH_SPANS_AT

static bool was_seen(listing *l, ino_t file)
{
    for (size_t i = 0; i < l->seen_count; i++) {
        if (l->seen[i] == file) {
            return true;
        }
    }
    ino_t *grown = realloc(l->seen, (l->seen_count + 1) * sizeof *grown);
    if (grown == NULL) {
        l->no_memory = true;
        return true;
    }
    l->seen = grown;
    l->seen[l->seen_count++] = file;
    return false;
}

static bool show_file(const char *path, const char *name, void *context)
{
    listing *l = context;
    struct stat st;
    (void)name;
    if (stat(path, &st) != 0 || was_seen(l, st.st_ino)) {
        return !l->no_memory;
    }
    if (sh_the_world.fd >= 0 && st.st_ino == sh_the_world.file.inode && st.st_dev == sh_the_world.file.device) {
        /* Our own world: use our mapping. Opening and closing its file would drop our life mark. */
        return show_world(l, sh_the_world.base, sh_world_file(), sh_memory_used(sh_world_file()));
    }
    bool going = true, foreign = false;
    uint64_t size;
    int fd = open_own(path, &foreign);
    if (fd < 0) {
        return true; /* gone meanwhile, or of another user */
    }
    if (sh_memory_is_sealed(fd, &size) && size >= SH_RESERVE_MIN) {
        void *base = mmap(NULL, LOOK_BYTES, PROT_READ, MAP_SHARED | MAP_NORESERVE, fd, 0);
        if (base != MAP_FAILED) {
            if (sh_world_check(base, size) == SHOAL_OK) {
                going = show_world(l, base, fd, sh_memory_used(fd));
            }
            munmap(base, LOOK_BYTES);
        }
    }
    close(fd);
    return going;
}

shoal_err shoal_world_list(bool (*each)(const shoal_ps_entry *entry, void *context), void *context)
{
    SH_NEED(each);
    listing l = {.each = each, .context = context};
    sh_pid_find_space();
    each_world_fd(show_file, &l);
    free(l.seen);
    return l.no_memory ? sh_fail(SHOAL_ENOMEM, "no memory to list worlds") : SHOAL_OK;
}
