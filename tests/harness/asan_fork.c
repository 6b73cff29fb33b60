/* Holds AddressSanitizer still while a test forks.
 *
 * Its allocator, its list of threads and its table of stacks have locks. A child of fork inherits one that another
 * thread holds at that moment, and hangs in its next malloc or pthread_create. Newer runtimes take these locks around
 * each fork; that of gcc 12 does not. So this file does it, by the same functions. The runtime does not export them,
 * but its file has their names. Without the names, forks are as they were. */
#if defined(__SANITIZE_ADDRESS__) && __GNUC__ <= 12 && !defined(__clang__)

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { THREADS, HEAP, STACKS, LOCKS };

typedef struct lock {
    const char *take_name, *free_name;
    void (*take)(void);
    void (*free)(void);
} lock;

static lock locks[LOCKS] = {
    [THREADS] = {"_ZN6__lsan18LockThreadRegistryEv", "_ZN6__lsan20UnlockThreadRegistryEv", NULL, NULL},
    [HEAP] = {"_ZN6__lsan13LockAllocatorEv", "_ZN6__lsan15UnlockAllocatorEv", NULL, NULL},
    [STACKS] = {"_ZN11__sanitizer17StackDepotLockAllEv", "_ZN11__sanitizer19StackDepotUnlockAllEv", NULL, NULL},
};
static bool have_all;

static void look_at(const char *name, uintptr_t address)
{
    for (int i = 0; i < LOCKS; i++) {
        if (strcmp(name, locks[i].take_name) == 0) {
            memcpy(&locks[i].take, &address, sizeof address);
        }
        if (strcmp(name, locks[i].free_name) == 0) {
            memcpy(&locks[i].free, &address, sizeof address);
        }
    }
}

static void look_through(const char *file, uintptr_t base)
{
    const Elf64_Ehdr *head = (const Elf64_Ehdr *)(const void *)file;
    const Elf64_Shdr *sections = (const Elf64_Shdr *)(const void *)(file + head->e_shoff);
    for (int i = 0; i < head->e_shnum; i++) {
        if (sections[i].sh_type == SHT_SYMTAB) {
            const Elf64_Sym *symbols = (const Elf64_Sym *)(const void *)(file + sections[i].sh_offset);
            const char *names = file + sections[sections[i].sh_link].sh_offset;
            for (size_t k = 0; k < sections[i].sh_size / sizeof *symbols; k++) {
                look_at(names + symbols[k].st_name, base + symbols[k].st_value);
            }
        }
    }
}

static int find_runtime(struct dl_phdr_info *object, size_t size, void *unused)
{
    (void)size;
    (void)unused;
    if (strstr(object->dlpi_name, "/libasan.so") == NULL) {
        return 0;
    }
    struct stat about;
    int fd = open(object->dlpi_name, O_RDONLY | O_CLOEXEC);
    if (fd >= 0 && fstat(fd, &about) == 0) {
        char *file = mmap(NULL, (size_t)about.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (file != MAP_FAILED) {
            look_through(file, object->dlpi_addr);
            munmap(file, (size_t)about.st_size);
        }
    }
    if (fd >= 0) {
        close(fd);
    }
    return 1;
}

static void find_locks(void)
{
    dl_iterate_phdr(find_runtime, NULL);
    have_all = true;
    for (int i = 0; i < LOCKS; i++) {
        have_all = have_all && locks[i].take != NULL && locks[i].free != NULL;
    }
}

static void before(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find_locks);
    for (int i = 0; i < LOCKS && have_all; i++) {
        locks[i].take();
    }
}

static void after(void)
{
    for (int i = LOCKS; i > 0 && have_all; i--) {
        locks[i - 1].free();
    }
}

static void install(void)
{
    (void)!pthread_atfork(before, after, after);
}

/* Before any constructor of the library: handlers that are registered first run last before a fork, and the library's
 * own may wait for threads that allocate. */
extern void (*const sh_asan_fork)(void);
__attribute__((section(".preinit_array"), used)) void (*const sh_asan_fork)(void) = install;

#else
extern const char sh_asan_fork;
const char sh_asan_fork = 0;
#endif
