#include "cli/machine.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

/* Reads the text after "key :" in a file of /proc, "" if there is none. */
static void read_key(const char *path, const char *key, char *buffer, size_t capacity)
{
    FILE *file = fopen(path, "re");
    char line[512];
    buffer[0] = 0;
    while (file != NULL && buffer[0] == 0 && fgets(line, sizeof line, file) != NULL) {
        size_t length = strlen(key);
        char *colon = strchr(line, ':');
        if (strncmp(line, key, length) == 0 && colon != NULL && line[length + strspn(line + length, " \t")] == ':') {
            char *text = colon + 1 + strspn(colon + 1, " \t");
            text[strcspn(text, "\n")] = 0;
            snprintf(buffer, capacity, "%s", text);
        }
    }
    if (file != NULL) {
        fclose(file);
    }
}

static void look_at_processor(cli_machine *m)
{
    read_key("/proc/cpuinfo", "model name", m->processor, sizeof m->processor);
    m->features[0] = 0;
#if defined(__x86_64__)
#define FEATURE(name)                                                                                                  \
    if (__builtin_cpu_supports(name)) {                                                                                \
        strcat(m->features, m->features[0] != 0 ? " " name : name);                                                    \
    }
    FEATURE("avx")
    FEATURE("fma")
    FEATURE("avx2")
    FEATURE("avx512f")
    FEATURE("avx512bw")
    FEATURE("avx512dq")
    FEATURE("avx512vl")
    FEATURE("avx512vnni")
    FEATURE("avx512bf16")
#endif
    cpu_set_t set;
    m->cpus_online = (unsigned)sysconf(_SC_NPROCESSORS_ONLN);
    m->cpus = sched_getaffinity(0, sizeof set, &set) == 0 ? (unsigned)CPU_COUNT(&set) : m->cpus_online;
}

static uint64_t limit_of(rlim_t limit)
{
    return limit == RLIM_INFINITY ? CLI_UNKNOWN : (uint64_t)limit;
}

static void look_at_limits(cli_machine *m)
{
    struct rlimit files = {RLIM_INFINITY, RLIM_INFINITY}, space = {RLIM_INFINITY, RLIM_INFINITY};
    (void)!getrlimit(RLIMIT_NOFILE, &files);
    (void)!getrlimit(RLIMIT_AS, &space);
    m->open_files = limit_of(files.rlim_cur);
    m->open_files_hard = limit_of(files.rlim_max);
    m->address_space = limit_of(space.rlim_cur);
}

static void look_at_memory(cli_machine *m)
{
    char text[64];
    struct statvfs shm;
    m->page = (uint64_t)sysconf(_SC_PAGESIZE);
    m->memory = (uint64_t)sysconf(_SC_PHYS_PAGES) * m->page;
    read_key("/proc/meminfo", "MemAvailable", text, sizeof text);
    m->memory_available = text[0] != 0 ? strtoull(text, NULL, 10) * 1024 : CLI_UNKNOWN;
    bool mounted = statvfs("/dev/shm", &shm) == 0;
    m->shm = mounted ? (uint64_t)shm.f_blocks * shm.f_frsize : CLI_UNKNOWN;
    m->shm_available = mounted ? (uint64_t)shm.f_bavail * shm.f_frsize : CLI_UNKNOWN;
}

static bool has_futex_waitv(void)
{
#ifdef SYS_futex_waitv
    return syscall(SYS_futex_waitv, NULL, 0, 0, NULL, 0) < 0 && errno != ENOSYS;
#else
    return false;
#endif
}

static bool has_mps(void)
{
    const char *path = getenv("PATH");
    char file[4096];
    for (size_t n; path != NULL && path[0] != 0; path += n + (path[n] == ':')) {
        n = strcspn(path, ":");
        snprintf(file, sizeof file, "%.*s/nvidia-cuda-mps-control", (int)n, path);
        if (n > 0 && access(file, X_OK) == 0) {
            return true;
        }
    }
    return false;
}

void cli_machine_read(cli_machine *out_machine)
{
    struct utsname name;
    *out_machine = (cli_machine){.cpus = 0};
    look_at_processor(out_machine);
    look_at_limits(out_machine);
    look_at_memory(out_machine);
    if (uname(&name) == 0) {
        snprintf(out_machine->kernel, sizeof out_machine->kernel, "%.40s %.60s %.40s", name.sysname, name.release,
                 name.machine);
    }
    out_machine->futex_waitv = has_futex_waitv();
    out_machine->mps = has_mps();
}
