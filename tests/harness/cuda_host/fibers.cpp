#include "tests/harness/cuda_host/fibers.h"

#include <algorithm>
#include <mutex>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>
#include <vector>

namespace
{

constexpr unsigned MOST_THREADS = 1024;
constexpr size_t STACK = 256 << 10;

enum state { ENDED, READY, AT_BLOCK, AT_WARP };

struct copy {
    void *to;
    const void *from;
    size_t size, group;
};

struct fiber {
    dim3 thread;
    unsigned number; /* in its block */
    enum state state;
    uint32_t lanes; /* that it waits for, AT_WARP */
    jmp_buf at;
    bool begun; /* it has a stack, with a call of `live` on it */
    std::vector<copy> copies;
    size_t group; /* of the next copy */
};

/* Lanes write into one half while slow ones still read from the other. */
struct warp {
    alignas(16) unsigned char room[2][SH_FIBER_ROOM];
    unsigned half;
};

fiber fibers[MOST_THREADS], *now; /* that runs */
warp warps[MOST_THREADS / SH_FIBER_LANES];
unsigned count; /* threads of a block */
jmp_buf scheduler;
void (*the_call)(const void *);
const void *the_arg;
bool block_value, block_or;
char *shared_end;
char *shared_memory;
std::mutex one_grid;

/* Gives the processor back to the scheduler until it is this fiber's turn. */
void give_up(enum state state)
{
    now->state = state;
    if (_setjmp(now->at) == 0) {
        _longjmp(scheduler, 1);
    }
}

/* What each fiber does: the call, again for each block. */
void live(void)
{
    for (;;) {
        the_call(the_arg);
        give_up(ENDED);
    }
}

/* Runs a fiber until it gives up. */
void resume(fiber *f)
{
    now = f;
    threadIdx = f->thread;
    if (_setjmp(scheduler) != 0) {
        return;
    }
    if (f->begun) {
        _longjmp(f->at, 1);
    }
    f->begun = true;
    ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_size = STACK;
    context.uc_stack.ss_sp =
        mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (context.uc_stack.ss_sp == MAP_FAILED) {
        sh_fiber_fail("there is no memory for its stack");
    }
    makecontext(&context, live, 0);
    setcontext(&context);
}

/* Lets the lanes of a warp that wait for each other go on, if all are there. Returns whether some do. */
bool release_lanes(unsigned w)
{
    const unsigned first = w * SH_FIBER_LANES, end = std::min(first + SH_FIBER_LANES, count);
    bool some = false;
    for (unsigned i = first; i < end; i++) {
        if (fibers[i].state != AT_WARP) {
            continue;
        }
        const uint32_t lanes = fibers[i].lanes;
        bool all = true;
        for (unsigned j = first; j < end; j++) {
            all &= !(lanes >> (j - first) & 1) || (fibers[j].state == AT_WARP && fibers[j].lanes == lanes);
        }
        for (unsigned j = first; all && j < end; j++) {
            if (lanes >> (j - first) & 1) {
                fibers[j].state = READY;
            }
        }
        some |= all;
    }
    warps[w].half ^= some;
    return some;
}

/* After each fiber has run as far as it can. Returns whether the block has ended. */
bool let_go_on(void)
{
    unsigned at_block = 0, ended = 0;
    bool some = false;
    for (unsigned w = 0; w * SH_FIBER_LANES < count; w++) {
        some |= release_lanes(w);
    }
    for (unsigned i = 0; i < count; i++) {
        at_block += fibers[i].state == AT_BLOCK;
        ended += fibers[i].state == ENDED;
    }
    if (some || ended == count) {
        return ended == count;
    }
    if (at_block != count) {
        sh_fiber_fail("%u threads of %u wait for the block, %u have ended, the others wait for lanes that do not come",
                      at_block, count, ended);
    }
    for (unsigned i = 0; i < count; i++) {
        fibers[i].state = READY;
    }
    block_or = block_value;
    block_value = false;
    return false;
}

void run_block(void)
{
    memset(shared_memory, 0xff, (size_t)(shared_end - shared_memory));
    for (unsigned i = 0; i < count; i++) {
        fibers[i].state = READY;
        fibers[i].copies.clear();
    }
    for (unsigned turn = 0; turn == 0 || !let_go_on(); turn++) {
        for (unsigned i = 0; i < count; i++) {
            /* Forwards, backwards; and from the middle. */
            const unsigned at = turn % 3 == 0 ? i : turn % 3 == 1 ? count - 1 - i : (i + count / 2) % count;
            if (fibers[at].state == READY) {
                resume(&fibers[at]);
            }
        }
    }
}

/* Puts `size` bytes right before a page that nobody may touch. */
void place_shared(size_t size)
{
    static char *guarded;
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), most = (SH_FIBER_MOST_SHARED + page - 1) / page * page;
    if (!guarded) {
        guarded = (char *)mmap(NULL, most + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (guarded == MAP_FAILED || mprotect(guarded + most, page, PROT_NONE) != 0) {
            sh_fiber_fail("there is no shared memory");
        }
    }
    shared_end = guarded + most;
    shared_memory = shared_end - (size + 15) / 16 * 16; /* aligned as on a card */
}

warp *my_warp(void)
{
    return &warps[now->number / SH_FIBER_LANES];
}

/* Whether this lane of the warp is a thread of the block. */
bool has_lane(unsigned lane)
{
    return now->number - sh_fiber_lane() + lane < count;
}

void meet(uint32_t lanes)
{
    if (!(lanes >> sh_fiber_lane() & 1)) {
        sh_fiber_fail("it is not one of the lanes 0x%x that it calls", lanes);
    }
    now->lanes = lanes;
    give_up(AT_WARP);
}

} // namespace

dim3 threadIdx, blockIdx, blockDim, gridDim;

void sh_fiber_fail(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "cuda_host: block %u,%u,%u thread %u: ", blockIdx.x, blockIdx.y, blockIdx.z, now ? now->number : 0);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    abort();
}

unsigned sh_fiber_lane(void)
{
    return now->number % SH_FIBER_LANES;
}

static uint64_t size_of(dim3 d)
{
    return (uint64_t)d.x * d.y * d.z;
}

bool sh_fiber_grid_fits(dim3 blocks, dim3 threads, size_t shared)
{
    return size_of(threads) > 0 && size_of(threads) <= MOST_THREADS && size_of(blocks) > 0 && blocks.x <= INT32_MAX &&
           blocks.y <= UINT16_MAX && blocks.z <= UINT16_MAX && shared <= SH_FIBER_MOST_SHARED;
}

void sh_fiber_run(dim3 blocks, dim3 threads, size_t shared, void (*call)(const void *arg), const void *arg)
{
    const std::lock_guard<std::mutex> only(one_grid);
    count = (unsigned)size_of(threads);
    the_call = call;
    the_arg = arg;
    gridDim = blocks;
    blockDim = threads;
    place_shared(shared);
    for (unsigned i = 0; i < count; i++) {
        fibers[i].number = i;
        fibers[i].thread = dim3(i % threads.x, i / threads.x % threads.y, i / threads.x / threads.y);
    }
    dim3 &b = blockIdx;
    for (b.z = 0; b.z < blocks.z; b.z++) {
        for (b.y = 0; b.y < blocks.y; b.y++) {
            for (b.x = 0; b.x < blocks.x; b.x++) {
                run_block();
            }
        }
    }
    now = NULL;
}

void *sh_fiber_shared(void)
{
    return shared_memory;
}

bool sh_fiber_sync_block(bool value)
{
    block_value |= value;
    give_up(AT_BLOCK);
    return block_or;
}

void *sh_fiber_room(void)
{
    return my_warp()->room[my_warp()->half];
}

void sh_fiber_sync_room(void)
{
    meet(~0u);
}

uint32_t sh_fiber_vote(uint32_t lanes, bool value)
{
    bool *all = (bool *)sh_fiber_room();
    uint32_t votes = 0;
    all[sh_fiber_lane()] = value;
    meet(lanes);
    for (unsigned i = 0; i < SH_FIBER_LANES; i++) {
        votes |= (uint32_t)((lanes >> i & 1) && has_lane(i) && all[i]) << i;
    }
    return votes;
}

uint64_t sh_fiber_exchange(uint32_t lanes, uint64_t value, unsigned from)
{
    uint64_t *all = (uint64_t *)sh_fiber_room();
    if (!(lanes >> from & 1) || !has_lane(from)) {
        sh_fiber_fail("it asks lane %u, which is not one of 0x%x, or not there", from, lanes);
    }
    all[sh_fiber_lane()] = value;
    meet(lanes);
    return all[from];
}

void sh_fiber_copy_later(void *to, const void *from, size_t size)
{
    if ((size != 4 && size != 8 && size != 16) || (uintptr_t)to % size != 0 || (uintptr_t)from % size != 0) {
        sh_fiber_fail("it copies %zu bytes from %p to %p", size, from, to);
    }
    now->copies.push_back(copy{to, from, size, now->group});
}

void sh_fiber_copies_end(void)
{
    now->group++;
}

void sh_fiber_copy_now(size_t groups_left)
{
    std::vector<copy> &all = now->copies;
    const auto is_left = [&](const copy &c) { return c.group + groups_left >= now->group; };
    for (const copy &c : all) {
        if (!is_left(c)) {
            memcpy(c.to, c.from, c.size);
        }
    }
    all.erase(std::remove_if(all.begin(), all.end(), [&](const copy &c) { return !is_left(c); }), all.end());
}
