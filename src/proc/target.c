#include "proc/target.h"

#include "proc/symbol.h"
#include "sync/atomic.h"

#include <dlfcn.h>
#include <elf.h>
#include <limits.h>
#include <link.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

/* A search through the loaded objects: for the one that holds an address, or for the one with an identity. */
typedef struct search {
    uintptr_t address;      /* 0: by identity */
    const sh_target *named; /* by identity */
    sh_target found;
    uintptr_t base;
    bool is_found;
    bool same_path; /* an object with that path is loaded, perhaps another build */
} search;

static bool holds_code(const struct dl_phdr_info *object, uintptr_t offset)
{
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &object->dlpi_phdr[i];
        if (p->p_type == PT_LOAD && (p->p_flags & PF_X) != 0 && offset >= p->p_vaddr &&
            offset - p->p_vaddr < p->p_memsz) {
            return true;
        }
    }
    return false;
}

static size_t aligned(size_t size, size_t alignment)
{
    return (size + alignment - 1) / alignment * alignment;
}

/* Looks for the build id among the notes of one segment. */
static bool build_id_in(const char *notes, size_t size, size_t alignment, sh_target *target)
{
    while (size >= sizeof(ElfW(Nhdr))) {
        ElfW(Nhdr) note;
        memcpy(&note, notes, sizeof note);
        size_t name_size = aligned(note.n_namesz, alignment), id_size = aligned(note.n_descsz, alignment);
        if (name_size > size - sizeof note || id_size > size - sizeof note - name_size) {
            return false;
        }
        const char *name = notes + sizeof note;
        if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && memcmp(name, "GNU", 4) == 0 && note.n_descsz > 0 &&
            note.n_descsz <= SH_TARGET_ID_MAX) {
            target->proof = SH_TARGET_BUILD_ID;
            target->id_size = note.n_descsz;
            memcpy(target->id, name + name_size, note.n_descsz);
            return true;
        }
        notes += sizeof note + name_size + id_size;
        size -= sizeof note + name_size + id_size;
    }
    return false;
}

static bool identify_file(const char *path, sh_target *target)
{
    struct stat s;
    if (stat(path[0] == 0 ? "/proc/self/exe" : path, &s) != 0) {
        return false;
    }
    const uint64_t words[] = {s.st_dev, s.st_ino, (uint64_t)s.st_size};
    target->proof = SH_TARGET_FILE;
    target->id_size = sizeof words;
    memcpy(target->id, words, sizeof words);
    return true;
}

static bool identify(const struct dl_phdr_info *object, sh_target *target)
{
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &object->dlpi_phdr[i];
        if (p->p_type == PT_NOTE &&
            build_id_in((const char *)(object->dlpi_addr + p->p_vaddr), p->p_memsz, p->p_align == 8 ? 8 : 4, target)) {
            return true;
        }
    }
    return identify_file(object->dlpi_name, target);
}

static bool same_identity(const sh_target *a, const sh_target *b)
{
    return a->proof == b->proof && a->id_size == b->id_size && memcmp(a->id, b->id, a->id_size) == 0 &&
           (a->path[0] == 0) == (b->path[0] == 0);
}

static int match_object(struct dl_phdr_info *object, size_t size, void *context)
{
    (void)size;
    search *s = context;
    const char *path = object->dlpi_name != NULL ? object->dlpi_name : "";
    sh_target here = {.proof = 0};
    if (strlen(path) >= sizeof here.path || (s->address != 0 && !holds_code(object, s->address - object->dlpi_addr))) {
        return 0;
    }
    strcpy(here.path, path);
    if (s->named != NULL && strcmp(path, s->named->path) == 0) {
        s->same_path = true;
    }
    if (!identify(object, &here) || (s->named != NULL && !same_identity(&here, s->named)) ||
        (s->named != NULL && !holds_code(object, s->named->offset))) {
        return 0;
    }
    s->found = here;
    s->base = object->dlpi_addr;
    s->is_found = true;
    return 1;
}

shoal_err sh_target_name(sh_function function, sh_target *out_target)
{
    search s = {.address = (uintptr_t)function};
    if (function != NULL) {
        dl_iterate_phdr(match_object, &s);
    }
    if (!s.is_found) {
        return sh_fail(SHOAL_EINVAL,
                       "the target at %p is not a function of this program or of a library that it has loaded",
                       (void *)(uintptr_t)function);
    }
    *out_target = s.found;
    out_target->offset = (uintptr_t)function - s.base;
    char full[PATH_MAX];
    if (out_target->path[0] != 0 && realpath(s.found.path, full) != NULL && strlen(full) < sizeof out_target->path) {
        strcpy(out_target->path, full); /* the other process may have another working directory */
    }
    return SHOAL_OK;
}

static bool is_valid(const sh_target *target, size_t size)
{
    return size > offsetof(sh_target, path) && target->id_size <= SH_TARGET_ID_MAX && size <= sizeof *target &&
           memchr(target->path, 0, size - offsetof(sh_target, path)) != NULL;
}

shoal_err sh_target_find(const sh_target *target, size_t size, sh_function *out_function)
{
    if (!is_valid(target, size)) {
        return sh_fail(SHOAL_ECORRUPT, "a target of %zu bytes is not well formed", size);
    }
    search s = {.named = target};
    dl_iterate_phdr(match_object, &s);
    if (!s.is_found && target->path[0] != 0) {
        if (dlopen(target->path, RTLD_NOW | RTLD_NODELETE) == NULL) {
            const char *why = dlerror();
            return sh_fail(SHOAL_ENOENT, "the target's library cannot be loaded: %s", why != NULL ? why : target->path);
        }
        dl_iterate_phdr(match_object, &s);
    }
    if (!s.is_found) {
        return sh_fail(SHOAL_ENOENT, "the target is not in %s: %s",
                       target->path[0] == 0 ? "this program" : target->path,
                       s.same_path ? "it is another build, not the parent's" : "no such object is loaded");
    }
    *out_function = (sh_function)(s.base + target->offset);
    return SHOAL_OK;
}

/* ---- readable names ---- */

/* A cache of looked-up names, because a program starts the same functions again and again: an entry for each function,
 * never freed.
 * Synchronisation: an entry is written before a compare-and-swap puts it at the front (release), and is read-only
 * afterwards. */
typedef struct label {
    struct label *next;
    sh_function function;
    char text[64];
} label;

static sh_a64 labels; /* the newest */

static void label_by_file(sh_function function, const Dl_info *info, char *buffer, size_t capacity)
{
    sh_target target;
    const char *slash = strrchr(info->dli_fname, '/');
    bool named = sh_target_name(function, &target) == SHOAL_OK;
    if (!named ||
        !sh_symbol_find(target.path[0] == 0 ? "/proc/self/exe" : target.path, target.offset, buffer, capacity)) {
        snprintf(buffer, capacity, "%s+%#zx", slash != NULL ? slash + 1 : info->dli_fname,
                 (size_t)((uintptr_t)function - (uintptr_t)info->dli_fbase));
    }
}

static void label_of(sh_function function, const Dl_info *info, char *buffer, size_t capacity)
{
    uint64_t newest = sh_load_acquire(&labels);
    for (const label *l = (const label *)(uintptr_t)newest; l != NULL; l = l->next) {
        if (l->function == function) {
            snprintf(buffer, capacity, "%s", l->text);
            return;
        }
    }
    label *fresh = malloc(sizeof *fresh);
    if (fresh == NULL) {
        label_by_file(function, info, buffer, capacity);
        return;
    }
    fresh->function = function;
    label_by_file(function, info, fresh->text, sizeof fresh->text);
    do { /* another thread may have added the same name: then it is there twice */
        fresh->next = (label *)(uintptr_t)newest;
    } while (!sh_cas_acq_rel(&labels, &newest, (uint64_t)(uintptr_t)fresh));
    snprintf(buffer, capacity, "%s", fresh->text);
}

void sh_target_label(sh_function function, char *buffer, size_t capacity)
{
    Dl_info info;
    if (dladdr((void *)(uintptr_t)function, &info) == 0 || info.dli_fname == NULL) {
        snprintf(buffer, capacity, "%p", (void *)(uintptr_t)function);
    } else if (info.dli_sname != NULL && info.dli_saddr == (void *)(uintptr_t)function) {
        snprintf(buffer, capacity, "%s", info.dli_sname);
    } else {
        label_of(function, &info, buffer, capacity);
    }
}
