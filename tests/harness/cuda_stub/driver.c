/* The stub driver: errors, cards and memory. */
#include "tests/harness/cuda_stub/driver.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define GRANULARITY ((size_t)2 << 20)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void stub_lock(void)
{
    pthread_mutex_lock(&lock);
}

void stub_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

static long from_environment(const char *name, long otherwise)
{
    const char *text = getenv(name);
    return text && text[0] ? strtol(text, NULL, 0) : otherwise;
}

/* ---- counting and failing ---- */

static struct {
    char function[64];
    uint64_t calls;
} counts[64];
static uint64_t all_calls;
static struct {
    char function[64];
    unsigned after; /* calls until it fails */
    unsigned times; /* 0: for ever */
    int result;
} failing;
static pthread_once_t read_once = PTHREAD_ONCE_INIT;

static void read_environment(void)
{
    const char *text = getenv("SHOAL_STUB_FAIL");
    if (text) {
        (void)sscanf(text, "%63[^:]:%u:%d", failing.function, &failing.after, &failing.result);
    }
}

/* With SHOAL_STUB_TRACE: writes a line for each call. Under the lock. One write each, at the end of the file, so that
 * the lines of several processes do not mix. */
static void trace(const char *function, const char *stream)
{
    static int fd = -2;
    if (fd == -2) {
        const char *path = getenv("SHOAL_STUB_TRACE");
        fd = path && path[0] ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
    }
    if (fd >= 0) {
        char name[16] = "", line[128];
        (void)pthread_getname_np(pthread_self(), name, sizeof name);
        bool is_ours = strncmp(name, "shoal-", 6) == 0; /* the library names its threads */
        int n =
            snprintf(line, sizeof line, "%d %s %s %s\n", (int)getpid(), is_ours ? name : "program", function, stream);
        ssize_t ignored = write(fd, line, (size_t)n);
        (void)ignored;
    }
}

static bool forbidden;                /* another library captures */
static _Thread_local int thread_mode; /* 0: global, as a thread begins */

int stub_exchange_mode(int mode)
{
    int before = thread_mode;
    thread_mode = mode;
    return before;
}

static void stub_forbid(bool now)
{
    stub_lock();
    forbidden = now;
    stub_unlock();
}

/* Under the lock. */
static bool is_forbidden(const char *function)
{
    static const char *const unsafe[] = {"cuMemCreate",
                                         "cuMemRelease",
                                         "cuMemAddressReserve",
                                         "cuMemAddressFree",
                                         "cuMemMap",
                                         "cuMemUnmap",
                                         "cuMemSetAccess",
                                         "cuMemExportToShareableHandle",
                                         "cuMemImportFromShareableHandle",
                                         "cuMemAllocHost",
                                         "cuMemFreeHost",
                                         "cuMemHostRegister",
                                         "cuMemHostUnregister",
                                         "cuStreamQuery",
                                         "cuStreamSynchronize"};
    for (size_t i = 0; forbidden && thread_mode != SH_CU_CAPTURE_RELAXED && i < sizeof unsafe / sizeof unsafe[0]; i++) {
        if (strcmp(unsafe[i], function) == 0) {
            return true;
        }
    }
    return false;
}

/* A driver does not survive a fork: what it does then is undefined. Here it ends the process. */
static void check_process(const char *function)
{
    static pid_t started_in;
    if (strcmp(function, "cuInit") == 0) {
        started_in = started_in == 0 ? getpid() : started_in;
    }
    if (started_in != 0 && started_in != getpid()) {
        fprintf(stderr, "the stub driver: %s was called in a child of fork\n", function);
        abort();
    }
}

int stub_enter(const char *function, const char *stream)
{
    (void)pthread_once(&read_once, read_environment);
    check_process(function);
    size_t length = strlen(function);
    length -= length > 3 && strcmp(function + length - 3, "_v2") == 0 ? 3 : 0;
    stub_lock();
    size_t i = 0;
    while (counts[i].function[0] &&
           (strncmp(counts[i].function, function, length) != 0 || counts[i].function[length] != 0)) {
        i++;
    }
    memcpy(counts[i].function, function, length);
    counts[i].calls++;
    all_calls++;
    trace(counts[i].function, stream);
    int result = is_forbidden(counts[i].function) ? SH_CU_CAPTURE_FIRST : SH_CU_OK;
    if (strcmp(failing.function, counts[i].function) == 0) {
        if (failing.after <= 1) {
            result = failing.result;
            if (failing.times > 0 && --failing.times == 0) {
                failing.function[0] = 0;
            }
        } else {
            failing.after--;
        }
    }
    stub_unlock();
    return result;
}

static void stub_fail(const char *function, unsigned nth, unsigned times, int result)
{
    stub_lock();
    snprintf(failing.function, sizeof failing.function, "%s", function ? function : "");
    failing.after = nth;
    failing.times = times;
    failing.result = result;
    stub_unlock();
}

static uint64_t stub_calls(const char *function)
{
    stub_lock();
    uint64_t calls = function ? 0 : all_calls;
    for (size_t i = 0; function && counts[i].function[0]; i++) {
        calls = strcmp(counts[i].function, function) == 0 ? counts[i].calls : calls;
    }
    stub_unlock();
    return calls;
}

STUB_EXPORT int cuGetErrorName(int error, const char **out)
{
    static char name[32];
    snprintf(name, sizeof name, "STUB_ERROR_%d", error);
    *out = name;
    return SH_CU_OK;
}

STUB_EXPORT int cuGetErrorString(int error, const char **out)
{
    (void)error;
    *out = "an error of the stub";
    return SH_CU_OK;
}

/* ---- cards ---- */

STUB_EXPORT int cuInit(unsigned flags)
{
    (void)flags;
    ENTER;
    return from_environment("SHOAL_STUB_CARDS", 1) > 0 ? SH_CU_OK : SH_CU_NO_DEVICE;
}

STUB_EXPORT int cuDriverGetVersion(int *out)
{
    ENTER;
    *out = (int)from_environment("SHOAL_STUB_VERSION", 13000);
    return SH_CU_OK;
}

STUB_EXPORT int cuDeviceGetCount(int *out)
{
    ENTER;
    *out = (int)from_environment("SHOAL_STUB_CARDS", 1);
    return SH_CU_OK;
}

STUB_EXPORT int cuDeviceGet(sh_cu_device *out, int ordinal)
{
    ENTER;
    *out = ordinal;
    return SH_CU_OK;
}

STUB_EXPORT int cuDeviceGetName(char *out, int size, sh_cu_device device)
{
    ENTER;
    snprintf(out, (size_t)size, "Stub %d", device);
    return SH_CU_OK;
}

STUB_EXPORT int cuDeviceGetUuid_v2(uint8_t *out, sh_cu_device device)
{
    ENTER;
    memset(out, 0x50 + device, 16);
    return SH_CU_OK;
}

static size_t memory_of_card(void)
{
    return (size_t)from_environment("SHOAL_STUB_MEMORY", (long)16 << 30);
}

STUB_EXPORT int cuDeviceTotalMem_v2(size_t *out, sh_cu_device device)
{
    (void)device;
    ENTER;
    *out = memory_of_card();
    return SH_CU_OK;
}

STUB_EXPORT int cuDevicePrimaryCtxRetain(sh_cu_context *out, sh_cu_device device)
{
    (void)device;
    ENTER;
    static char context;
    *out = (sh_cu_context)(void *)&context;
    return SH_CU_OK;
}

STUB_EXPORT int cuDevicePrimaryCtxRelease_v2(sh_cu_device device)
{
    (void)device;
    ENTER;
    return SH_CU_OK;
}

STUB_EXPORT int cuCtxSetCurrent(sh_cu_context context)
{
    (void)context;
    ENTER;
    return SH_CU_OK;
}

/* ---- memory: a handle is an fd and a size; its references are the handle itself and its mappings ---- */

typedef struct allocation {
    struct allocation *next;
    int fd;
    unsigned references;
    size_t size;
    sh_cu_address mapped; /* one mapping at most */
    bool made;            /* not imported */
} allocation;

static allocation *allocations;
static size_t held;

/* With SHOAL_STUB_USED: what all processes use of the card, and this one's part of it. Atomic: a process may exit while
 * its other threads are inside the driver, and then nobody may wait for the lock. */
static size_t *shared;
static size_t shared_by_us;

/* Under the lock: returns how much of the card is used, by this process or, with SHOAL_STUB_USED, by all. */
static size_t in_use(void)
{
    const char *path = getenv("SHOAL_STUB_USED");
    if (path && !shared) {
        int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        void *at = fd >= 0 && ftruncate(fd, sizeof *shared) == 0
                       ? mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
                       : MAP_FAILED;
        __atomic_store_n(&shared, at != MAP_FAILED ? at : NULL, __ATOMIC_RELEASE);
        close(fd);
    }
    return shared ? __atomic_load_n(shared, __ATOMIC_RELAXED) : held;
}

static bool use(size_t size)
{
    stub_lock();
    size_t before = in_use();
    bool fits;
    while ((fits = size <= memory_of_card() - before) && shared &&
           !__atomic_compare_exchange_n(shared, &before, before + size, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
    if (fits && shared) {
        (void)__atomic_fetch_add(&shared_by_us, size, __ATOMIC_RELAXED);
    }
    stub_unlock();
    return fits;
}

static void give_back(size_t size)
{
    size_t *all = __atomic_load_n(&shared, __ATOMIC_ACQUIRE);
    if (all) {
        (void)__atomic_fetch_sub(&shared_by_us, size, __ATOMIC_RELAXED);
        (void)__atomic_fetch_sub(all, size, __ATOMIC_RELAXED);
    }
}

static size_t stub_held(void)
{
    stub_lock();
    size_t now = held;
    stub_unlock();
    return now;
}

static void drop(allocation *a)
{
    if (--a->references > 0) {
        return;
    }
    allocation **p = &allocations;
    while (*p != a) {
        p = &(*p)->next;
    }
    *p = a->next;
    held -= a->size;
    if (a->made) {
        give_back(a->size);
    }
    close(a->fd);
    free(a);
}

__attribute__((destructor)) static void end_use(void)
{
    give_back(__atomic_load_n(&shared_by_us, __ATOMIC_RELAXED));
}

static int add(int fd, size_t size, bool made, sh_cu_memory *out)
{
    allocation *a = malloc(sizeof *a);
    stub_lock();
    *a = (allocation){.next = allocations, .fd = fd, .references = 1, .size = size, .made = made};
    allocations = a;
    held += size;
    stub_unlock();
    *out = (sh_cu_memory)(uintptr_t)a;
    return SH_CU_OK;
}

STUB_EXPORT int cuMemGetInfo_v2(size_t *out_free, size_t *out_total)
{
    ENTER;
    *out_total = memory_of_card();
    stub_lock();
    *out_free = memory_of_card() - in_use();
    stub_unlock();
    return SH_CU_OK;
}

STUB_EXPORT int cuMemGetAllocationGranularity(size_t *out, const sh_cu_memory_kind *kind, int option)
{
    (void)option;
    ENTER;
    *out = GRANULARITY;
    return kind->handles == SH_CU_HANDLE_FD ? SH_CU_OK : SH_CU_NOT_SUPPORTED;
}

STUB_EXPORT int cuMemCreate(sh_cu_memory *out, size_t size, const sh_cu_memory_kind *kind, unsigned long long flags)
{
    (void)flags;
    ENTER;
    if (kind->type != SH_CU_MEMORY_PINNED || kind->location.type != SH_CU_LOCATION_DEVICE || size % GRANULARITY != 0) {
        return SH_CU_INVALID_VALUE;
    }
    if (!use(size)) {
        return SH_CU_OUT_OF_MEMORY;
    }
    int fd = memfd_create("stub GPU", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)size) != 0) {
        return SH_CU_OPERATING_SYSTEM;
    }
    return add(fd, size, true, out);
}

STUB_EXPORT int cuMemRelease(sh_cu_memory memory)
{
    ENTER;
    stub_lock();
    drop((allocation *)(uintptr_t)memory);
    stub_unlock();
    return SH_CU_OK;
}

/* Aligned like a driver's addresses, also on a kernel that aligns to pages only. */
STUB_EXPORT int cuMemAddressReserve(sh_cu_address *out, size_t size, size_t alignment, sh_cu_address wanted,
                                    unsigned long long flags)
{
    (void)alignment;
    (void)wanted;
    (void)flags;
    ENTER;
    size_t more = size + GRANULARITY;
    char *from = mmap(NULL, more, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (from == MAP_FAILED) {
        return SH_CU_OUT_OF_MEMORY;
    }
    size_t before = GRANULARITY - (uintptr_t)from % GRANULARITY;
    (void)munmap(from, before);
    if (more > before + size) {
        (void)munmap(from + before + size, more - before - size);
    }
    *out = (sh_cu_address)(uintptr_t)(from + before);
    return SH_CU_OK;
}

STUB_EXPORT int cuMemAddressFree(sh_cu_address address, size_t size)
{
    ENTER;
    return munmap((void *)(uintptr_t)address, size) == 0 ? SH_CU_OK : SH_CU_INVALID_VALUE;
}

STUB_EXPORT int cuMemMap(sh_cu_address address, size_t size, size_t offset, sh_cu_memory memory,
                         unsigned long long flags)
{
    (void)flags;
    ENTER;
    allocation *a = (allocation *)(uintptr_t)memory;
    void *at = (void *)(uintptr_t)address;
    if (offset != 0 || size != a->size || mmap(at, size, PROT_NONE, MAP_SHARED | MAP_FIXED, a->fd, 0) != at) {
        return SH_CU_INVALID_VALUE;
    }
    stub_lock();
    a->references++;
    a->mapped = address;
    stub_unlock();
    return SH_CU_OK;
}

STUB_EXPORT int cuMemUnmap(sh_cu_address address, size_t size)
{
    ENTER;
    stub_lock();
    allocation *a = allocations;
    while (a && a->mapped != address) {
        a = a->next;
    }
    if (!a || a->size != size) {
        stub_unlock();
        return SH_CU_INVALID_VALUE;
    }
    a->mapped = 0;
    drop(a);
    stub_unlock();
    (void)mmap((void *)(uintptr_t)address, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
               0);
    return SH_CU_OK;
}

STUB_EXPORT int cuMemSetAccess(sh_cu_address address, size_t size, const sh_cu_access *access, size_t count)
{
    ENTER;
    return count == 1 && access->flags == SH_CU_ACCESS_READ_WRITE &&
                   mprotect((void *)(uintptr_t)address, size, PROT_READ | PROT_WRITE) == 0
               ? SH_CU_OK
               : SH_CU_INVALID_VALUE;
}

STUB_EXPORT int cuMemExportToShareableHandle(void *out, sh_cu_memory memory, int type, unsigned long long flags)
{
    (void)type;
    (void)flags;
    ENTER;
    *(int *)out = fcntl(((allocation *)(uintptr_t)memory)->fd, F_DUPFD_CLOEXEC, 0);
    return *(int *)out >= 0 ? SH_CU_OK : SH_CU_OPERATING_SYSTEM;
}

STUB_EXPORT int cuMemImportFromShareableHandle(sh_cu_memory *out, void *handle, int type)
{
    (void)type;
    ENTER;
    int fd = fcntl((int)(intptr_t)handle, F_DUPFD_CLOEXEC, 0);
    off_t size = fd >= 0 ? lseek(fd, 0, SEEK_END) : -1;
    if (size <= 0) {
        return SH_CU_INVALID_VALUE;
    }
    return add(fd, (size_t)size, false, out);
}

/* ---- pinned host memory ---- */

typedef struct pinned {
    struct pinned *next;
    char *data;
    size_t size;
} pinned;

static pinned *all_pinned;

bool stub_is_pinned(const void *data)
{
    uintptr_t at = (uintptr_t)data;
    stub_lock();
    const pinned *p = all_pinned;
    while (p && (at < (uintptr_t)p->data || at >= (uintptr_t)p->data + p->size)) {
        p = p->next;
    }
    stub_unlock();
    return p != NULL;
}

STUB_EXPORT int cuMemAllocHost_v2(void **out, size_t size)
{
    ENTER;
    pinned *p = size <= (size_t)1 << 46 ? malloc(sizeof *p) : NULL;
    char *data = p ? malloc(size) : NULL;
    if (!data) {
        free(p);
        return SH_CU_OUT_OF_MEMORY;
    }
    *p = (pinned){.data = data, .size = size};
    *out = data;
    stub_lock();
    p->next = all_pinned;
    all_pinned = p;
    stub_unlock();
    return SH_CU_OK;
}

STUB_EXPORT int cuMemFreeHost(void *data)
{
    ENTER;
    stub_lock();
    pinned **place = &all_pinned;
    while ((*place)->data != data) {
        place = &(*place)->next;
    }
    pinned *p = *place;
    *place = p->next;
    stub_unlock();
    free(p->data);
    free(p);
    return SH_CU_OK;
}

STUB_EXPORT int cuMemHostRegister_v2(void *data, size_t size, unsigned flags)
{
    (void)data;
    (void)size;
    (void)flags;
    ENTER;
    return SH_CU_OK;
}

STUB_EXPORT int cuMemHostUnregister(void *data)
{
    (void)data;
    ENTER;
    return SH_CU_OK;
}

STUB_EXPORT int cuMemHostGetDevicePointer_v2(sh_cu_address *out, void *data, unsigned flags)
{
    (void)flags;
    ENTER;
    *out = (sh_cu_address)(uintptr_t)data;
    return SH_CU_OK;
}

STUB_EXPORT const sh_stub shoal_stub;
const sh_stub shoal_stub = {stub_fail, stub_calls, stub_block, stub_unblock, stub_room, stub_held, stub_forbid};
