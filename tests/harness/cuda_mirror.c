#include "tests/harness/cuda_mirror.h"

#include "tests/harness/far_device.h"
#include "tests/harness/runner.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

const sh_device *sh_mirror_device(void)
{
    const char *wish = getenv("SHOAL_TEST_CARD");
    if (!wish) {
        return NULL;
    }
    const sh_device *device = strcmp(wish, "far") == 0 ? sh_far_device() : sh_device_get(SHOAL_CUDA);
    ck_assert_msg(device != NULL, "SHOAL_TEST_CARD is set: %s", shoal_last_error_text());
    return device;
}

bool sh_mirror_is_host(void)
{
    const char *wish = getenv("SHOAL_TEST_CARD");
    return wish && strcmp(wish, "host") == 0;
}

/* A call's arrays. Those that overlap in host memory become one range, so that they overlap on the device too. */
typedef struct range {
    char *host;
    size_t size;
    bool written;
    char *there;
    void *block; /* what there points into */
} range;

/* The copy keeps the alignment that the array has, up to this many bytes, so that a kernel meets odd ones too. */
#define ALIGNMENT 64

#define MOST_RANGES 512

typedef struct passage {
    range ranges[MOST_RANGES];
    int count;
} passage;

static bool overlap(const range *a, const range *b)
{
    return a->host == b->host || (a->host < b->host + b->size && b->host < a->host + a->size);
}

static void passage_add(passage *p, const void *data, size_t size, bool written)
{
    if (!data) {
        return;
    }
    range r = {.host = (char *)(uintptr_t)data, .size = size, .written = written};
    for (int i = 0; i < p->count;) {
        range *other = &p->ranges[i];
        if (!overlap(&r, other)) {
            i++;
            continue;
        }
        char *end = r.host + r.size > other->host + other->size ? r.host + r.size : other->host + other->size;
        r.host = r.host < other->host ? r.host : other->host;
        r.size = (size_t)(end - r.host);
        r.written |= other->written;
        *other = p->ranges[--p->count];
        i = 0; /* the larger range may overlap one that the smaller did not */
    }
    ck_assert_int_lt(p->count, MOST_RANGES);
    p->ranges[p->count++] = r;
}

/* Kernels that run on the host take any memory. So theirs lies between two pages that nobody may touch: it ends at the
 * second, as far as its alignment allows, and the few bytes in between are NaN. */
static size_t guarded_size(const range *r)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (r->size + ALIGNMENT + page - 1) / page * page + 2 * page;
}

static void guarded_make(range *r)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), all = guarded_size(r);
    char *block = mmap(NULL, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ck_assert(block != MAP_FAILED && mprotect(block + page, all - 2 * page, PROT_READ | PROT_WRITE) == 0);
    char *end = block + all - page, *there = end - r->size;
    there -= ((uintptr_t)there - (uintptr_t)r->host) % ALIGNMENT;
    memset(there + r->size, 0xff, (size_t)(end - there) - r->size);
    memcpy(there, r->host, r->size);
    r->block = block;
    r->there = there;
}

static void guarded_end(range *r, bool read)
{
    if (read) {
        memcpy(r->host, r->there, r->size);
    }
    ck_assert_int_eq(munmap(r->block, guarded_size(r)), 0);
}

static shoal_err passage_open(passage *p)
{
    const sh_device *device = sh_mirror_device();
    shoal_err err = SHOAL_OK;
    for (int i = 0; err == SHOAL_OK && i < p->count; i++) {
        range *r = &p->ranges[i];
        if (sh_mirror_is_host()) {
            guarded_make(r);
            continue;
        }
        r->block = device->alloc(r->size + ALIGNMENT);
        r->there = (char *)r->block + (uintptr_t)r->host % ALIGNMENT;
        err = r->block ? device->write(r->there, r->host, r->size) : shoal_last_error();
    }
    return err;
}

static void *passage_at(const passage *p, const void *data)
{
    const char *host = data;
    for (int i = 0; host && i < p->count; i++) {
        const range *r = &p->ranges[i];
        if (host == r->host || (host > r->host && host < r->host + r->size)) {
            return r->there + (host - r->host);
        }
    }
    return NULL;
}

static shoal_err passage_close(passage *p, shoal_err err)
{
    const sh_device *device = sh_mirror_device();
    if (err == SHOAL_OK) {
        err = device->wait();
    }
    for (int i = 0; i < p->count; i++) {
        range *r = &p->ranges[i];
        if (sh_mirror_is_host()) {
            guarded_end(r, err == SHOAL_OK && r->written);
            continue;
        }
        if (err == SHOAL_OK && r->written) {
            err = device->read(r->host, r->there, r->size);
        }
        device->free(r->block, r->size + ALIGNMENT);
    }
    return err;
}

static const sh_kernels *passage_kernels(void)
{
    return sh_mirror_device()->kernels();
}

static sh_exec *passage_exec(sh_exec *exec)
{
    (void)exec; /* the test's, for the host */
    return sh_mirror_device()->exec();
}

#include "tests/harness/passed_kernels.h"

const sh_kernels *sh_mirror_kernels(void)
{
    return sh_mirror_device() ? &passed_kernels : NULL;
}

const sh_kernels *sh_mirror_fast(int i)
{
    const sh_kernels *card = sh_mirror_kernels();
    const sh_kernels *kernels = card ? (i == 0 ? card : NULL) : sh_kernels_find(i == 0 ? "avx2" : "avx512");
    if (kernels == NULL) {
        printf("skipped: this CPU has no %s\n", i == 0 ? "AVX2" : "AVX-512");
    }
    return kernels;
}
