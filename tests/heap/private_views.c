/* Private views of blocks (shoal_block_make_private): who sees what, and that the memory is shared again for its next
 * user. */
#include "tests/harness/children.h"

#include "os/memory.h"
#include "shm/block.h"
#include "shm/commit.h"
#include "shm/world.h"

#include <shoal/binding.h>

#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define KIB 1024u

/* What all other processes see of the block: its bytes in the file. */
static char *map_shared(const shoal_block *b)
{
    char *shared = sh_memory_map_part(sh_world_file(), sh_offset_of(b->data), b->size);
    ck_assert_ptr_nonnull(shared);
    return shared;
}

static bool shows(const void *bytes, int value, size_t size)
{
    const unsigned char *b = bytes;
    for (size_t i = 0; i < size; i++) {
        if (b[i] != (unsigned char)value) {
            return false;
        }
    }
    return true;
}

static shoal_block *make(size_t size, int value)
{
    shoal_block *b;
    ck_assert_ok(shoal_block_create(size, &b));
    memset(shoal_block_data(b), value, size);
    return b;
}

/* Checks that this process and the others see the same bytes in the block. */
static void check_is_shared(shoal_block *b, int value)
{
    char *shared = map_shared(b);
    memset(shoal_block_data(b), value, b->size);
    ck_assert(shows(shared, value, b->size));
    memset(shared, value + 1, b->size);
    ck_assert(shows(shoal_block_data(b), value + 1, b->size));
    sh_memory_unmap_part(shared, b->size);
}

static const size_t sizes[] = {16 * KIB,      16 * KIB + 1, 20 * KIB - 1,   32 * KIB,      33 * KIB,
                               100 * KIB + 7, 1024 * KIB,   3 * 1024 * KIB, 8192 * KIB + 5};
enum { SIZES = sizeof sizes / sizeof sizes[0] };

START_TEST(writes_stay_here)
{
    for (size_t i = 0; i < SIZES; i++) {
        shoal_block *before = make(sizes[i], 50), *b = make(sizes[i], 1), *after = make(sizes[i], 60);
        char *address = shoal_block_data(b), *shared = map_shared(b);
        ck_assert_ok(shoal_block_make_private(b));
        ck_assert_ok(shoal_block_make_private(b)); /* nothing more */
        ck_assert_ptr_eq(shoal_block_data(b), address);
        ck_assert(shows(address, 1, sizes[i]));
        memset(address, 2, sizes[i]);
        ck_assert(shows(shared, 1, sizes[i]));
        memset(shared, 3, sizes[i]);
        ck_assert(shows(address, 2, sizes[i]));
        ck_assert(shows(shoal_block_data(before), 50, sizes[i]) && shows(shoal_block_data(after), 60, sizes[i]));
        check_is_shared(before, 51); /* its neighbours are not affected */
        check_is_shared(after, 61);
        shoal_release(b);
        ck_assert(shows(address, 3, sizes[i])); /* not held any more: only a look at the mapping */
        sh_memory_unmap_part(shared, sizes[i]);
        b = make(sizes[i], 4);
        ck_assert_ptr_eq(shoal_block_data(b), address); /* the memory is used again */
        check_is_shared(b, 5);
        shoal_release(before);
        shoal_release(b);
        shoal_release(after);
    }
}
END_TEST

START_TEST(small_blocks_are_refused)
{
    shoal_block *b = make(16 * KIB - 1, 1);
    ck_assert_err(shoal_block_make_private(b), SHOAL_EINVAL);
    ck_assert_err(shoal_block_make_private(NULL), SHOAL_EINVAL);
    check_is_shared(b, 2);
    shoal_release(b);
}
END_TEST

/* A message brings it again: the view stays. A message that takes it away ends the view. */
START_TEST(a_private_block_travels)
{
    shoal_queue *q;
    shoal_block *b = make(64 * KIB, 1), *again = NULL;
    char *address = shoal_block_data(b), *shared = map_shared(b);
    ck_assert_ok(shoal_queue_create(0, &q));
    ck_assert_ok(shoal_block_make_private(b));
    memset(address, 2, b->size);
    ck_assert_ok(shoal_queue_put_block(q, b, SHOAL_NOW));
    ck_assert_ok(shoal_queue_get_block(q, SHOAL_NOW, &again));
    ck_assert(again == b && shows(address, 2, b->size) && shows(shared, 1, b->size));
    shoal_release(again);
    ck_assert(shows(address, 2, b->size)); /* there is a reference left */
    if (_i == 0) {
        ck_assert_ok(shoal_queue_give_block(q, b, SHOAL_NOW));
    } else {
        ck_assert_ok(shoal_queue_put(q, shoal_value_of(b), SHOAL_NOW));
        shoal_release(b);
    }
    ck_assert_ok(shoal_queue_get_block(q, SHOAL_NOW, &b));
    ck_assert_ptr_eq(shoal_block_data(b), address);
    ck_assert(shows(address, 1, b->size));
    check_is_shared(b, 5);
    shoal_release(b);
    sh_memory_unmap_part(shared, 64 * KIB);
    shoal_release(q);
}
END_TEST

/* ---- fork: the children find what they inherit here ---- */

enum { MANY = 300 };

static shoal_block *blocks[MANY];
static shoal_queue *queue;
static shoal_event *go, *released;

static void begin(void)
{
    ck_assert_ok(shoal_queue_create(0, &queue));
    ck_assert_ok(shoal_event_create(&go));
    ck_assert_ok(shoal_event_create(&released));
}

static void end(void)
{
    shoal_release(queue);
    shoal_release(go);
    shoal_release(released);
}

static shoal_err use_memory_again(void)
{
    for (int i = 0; i < MANY; i++) {
        size_t size = blocks[i]->size;
        shoal_release(blocks[i]);
        must_ok(shoal_block_create(size, &blocks[i]));
        memset(blocks[i]->data, i + 7, size);
        must_ok(shoal_queue_give_block(queue, blocks[i], LIMIT)); /* the parent sees what is written now */
    }
    return SHOAL_OK;
}

static shoal_err write_to_own(int rank, const shoal_value *args)
{
    int status;
    (void)rank;
    (void)args;
    for (int i = 0; i < MANY; i++) {
        must_ok(shoal_block_make_private(blocks[i]));
        must(shows(blocks[i]->data, i, blocks[i]->size));
        memset(blocks[i]->data, i + 1, blocks[i]->size);
    }
    must_ok(shoal_queue_put(queue, shoal_value_int(1), LIMIT));
    must_ok(shoal_event_wait(go, LIMIT)); /* the parent has written to its blocks and released them */
    pid_t pid = fork();                   /* inherits the views */
    for (int i = 0; i < MANY; i++) {
        must(shows(blocks[i]->data, i + 1, blocks[i]->size));
        if (pid == 0) {
            memset(blocks[i]->data, 99, blocks[i]->size);
        }
    }
    must_ok(use_memory_again()); /* one of the two is the last holder */
    if (pid == 0) {
        _exit(0);
    }
    must(waitpid(pid, &status, 0) == pid && status == 0);
    return SHOAL_OK;
}

START_TEST(a_fork_writes_to_its_own)
{
    shoal_value *v;
    int sums[256] = {0};
    begin();
    for (int i = 0; i < MANY; i++) {
        blocks[i] = make(16 * KIB + (size_t)(i % 5) * 4096, i);
    }
    shoal_process *p = start(SHOAL_START_FORK, 0, write_to_own, NULL);
    ck_assert_ok(shoal_queue_get(queue, LIMIT, &v));
    shoal_value_destroy(v);
    for (int i = 0; i < MANY; i++) {
        ck_assert(shows(blocks[i]->data, i, blocks[i]->size));
        memset(blocks[i]->data, 200, blocks[i]->size);
        shoal_release(blocks[i]);
    }
    shoal_event_set(go);
    for (int i = 0; i < 2 * MANY; i++) {
        shoal_block *b;
        ck_assert_ok(shoal_queue_get_block(queue, LIMIT, &b));
        unsigned char first = *(unsigned char *)b->data;
        ck_assert(shows(b->data, first, b->size));
        sums[first]++;
        shoal_release(b);
    }
    for (int i = 0; i < MANY; i++) {
        ck_assert_int_ge(sums[(i + 7) % 256], 2);
    }
    finish(p);
    end();
}
END_TEST

enum { LARGE = 4 };

static shoal_err end_with_views(int rank, const shoal_value *args)
{
    (void)args;
    for (int i = 0; i < LARGE; i++) {
        must_ok(shoal_block_make_private(blocks[i]));
    }
    must_ok(shoal_event_wait(go, LIMIT)); /* this process is the last holder */
    if (rank == 1) {
        shoal_world_leave();
    }
    return SHOAL_OK;
}

/* The last holder ends, or leaves the world, with private views: the memory goes back. */
START_TEST(ending_gives_the_memory_back)
{
    shoal_world_info info;
    ck_assert_ok(shoal_world_create(&(shoal_world_options){.heap_limit = 64u << 20}));
    begin();
    for (int i = 0; i < LARGE; i++) {
        blocks[i] = make(8u << 20, i);
    }
    shoal_process *p = start(SHOAL_START_FORK, _i, end_with_views, NULL);
    for (int i = 0; i < LARGE; i++) {
        shoal_release(blocks[i]);
    }
    shoal_event_set(go);
    finish_as(p, _i == 0 ? SHOAL_PROCESS_RETURNED : SHOAL_PROCESS_EXITED, 0);
    end();
    ck_assert_ok(shoal_world_trim());
    ck_assert_ok(shoal_world_info_get(&info));
    ck_assert_uint_lt(info.heap_used, 4u << 20);
}
END_TEST

/* What an ending process does if it frees a very large block: the file's pages go, its own copy stays. */
START_TEST(a_private_block_can_lose_its_memory)
{
    shoal_block *b = make(2u << 20, 1);
    ck_assert_ok(shoal_block_make_private(b));
    uint64_t before = sh_memory_used(sh_world_file());
    sh_decommit(b->data, b->size);
    ck_assert_uint_eq(sh_memory_used(sh_world_file()), before - b->size);
    ck_assert(shows(b->data, 1, b->size));
    shoal_release(b);
}
END_TEST

START_TEST(all_mappings_come_back)
{
    for (int i = 0; i < MANY; i++) {
        blocks[i] = make(16 * KIB, i);
    }
    int before = sh_count_mappings();
    for (int i = 0; i < MANY; i++) {
        ck_assert_ok(shoal_block_make_private(blocks[i]));
    }
    ck_assert_int_gt(sh_count_mappings(), before);
    for (int i = 0; i < MANY; i++) {
        shoal_release(blocks[i]);
    }
    ck_assert_int_eq(sh_count_mappings(), before);
}
END_TEST

/* ---- no mappings left ---- */

static long map_limit(void)
{
    long limit = 0;
    FILE *f = fopen("/proc/sys/vm/max_map_count", "re");
    if (f != NULL && fscanf(f, "%ld", &limit) != 1) {
        limit = 0;
    }
    if (f != NULL) {
        fclose(f);
    }
    return limit;
}

/* Uses up this process's mappings: every other page of a range has another access. */
typedef struct filler {
    char *range;
    size_t pages;
} filler;

static filler fill_mappings(long limit)
{
    filler f = {.pages = (size_t)limit + 64};
    f.range = mmap(NULL, f.pages * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ck_assert_ptr_ne(f.range, MAP_FAILED);
    for (size_t i = 1; i < f.pages && mprotect(f.range + i * 4096, 4096, PROT_READ) == 0; i += 2) {
    }
    while (mmap(NULL, 4096, PROT_READ, MAP_SHARED | MAP_ANONYMOUS, -1, 0) != MAP_FAILED) { /* they never merge */
    }
    return f;
}

static int lines;

static void count_line(const char *line, void *context)
{
    (void)context;
    lines += strstr(line, "private view") != NULL;
}

/* Allocates some blocks. Returns true if one is the block of that id, and is shared. */
static bool gets_shared(uint64_t id, size_t size, const char *shared)
{
    shoal_block *some[8];
    bool found = false;
    for (size_t i = 0; i < sizeof some / sizeof some[0]; i++) {
        some[i] = make(size, 9);
        found = found || (shoal_block_id(some[i]) == id && shows(shared, 9, size));
    }
    for (size_t i = 0; i < sizeof some / sizeof some[0]; i++) {
        shoal_release(some[i]);
    }
    return found;
}

/* blocks[0] and [1] are private when the mappings run out: [0] cannot be released then. */
static shoal_err release_without_mappings(int rank, const shoal_value *args)
{
    long limit = map_limit();
    (void)args;
    must_ok(shoal_event_wait(go, LIMIT)); /* this process is the last holder */
    char *shared = sh_memory_map_part(sh_world_file(), sh_offset_of(blocks[0]->data), blocks[0]->size);
    char *other = sh_memory_map_part(sh_world_file(), sh_offset_of(blocks[2]->data), blocks[2]->size);
    must(shared != NULL && other != NULL);
    shoal_set_log(count_line, NULL);
    must_ok(shoal_block_make_private(blocks[0]));
    must_ok(shoal_block_make_private(blocks[1]));
    char *address = blocks[0]->data;
    size_t size = blocks[0]->size;
    memset(address, 100, size);
    filler f = fill_mappings(limit);
    must_err(shoal_block_make_private(blocks[2]), SHOAL_ENOMEM); /* and nothing has changed */
    memset(blocks[2]->data, 102, blocks[2]->size);
    must(shows(other, 102, blocks[2]->size));
    uint64_t id = shoal_block_id(blocks[0]);
    if (rank == 0) {
        shoal_release(blocks[0]);
    } else { /* by a put that could take the reference along; the receiver releases it */
        must_ok(shoal_queue_give_block(queue, blocks[0], LIMIT));
        must_ok(shoal_event_wait(released, LIMIT));
    }
    must(lines == 1 && shows(address, 100, size) && shows(shared, 0, size)); /* kept, and still private */
    must(!gets_shared(id, size, shared));
    munmap(f.range, f.pages * 4096);
    shoal_release(blocks[1]); /* both go now */
    must(lines == 1 && gets_shared(id, size, shared));
    return SHOAL_OK;
}

START_TEST(without_mappings_nothing_is_lost)
{
    enum { N = 3 };
    if (SH_SLOW || map_limit() == 0 || map_limit() > 1100000) {
        return; /* a sanitizer needs mappings itself */
    }
    begin();
    for (int i = 0; i < N; i++) {
        blocks[i] = make(64 * KIB, i);
    }
    shoal_process *p = start(SHOAL_START_FORK, _i, release_without_mappings, NULL);
    for (int i = 0; i < N; i++) {
        shoal_release(blocks[i]);
    }
    shoal_event_set(go);
    if (_i == 1) {
        shoal_block *b;
        ck_assert_ok(shoal_queue_get_block(queue, LIMIT, &b));
        shoal_release(b);
        shoal_event_set(released);
    }
    finish(p);
    end();
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("private views");
    TCase *tc = children_case("private views");
    tcase_add_test(tc, writes_stay_here);
    tcase_add_test(tc, small_blocks_are_refused);
    tcase_add_loop_test(tc, a_private_block_travels, 0, 2);
    tcase_add_test(tc, a_fork_writes_to_its_own);
    tcase_add_loop_test(tc, ending_gives_the_memory_back, 0, 2);
    tcase_add_test(tc, a_private_block_can_lose_its_memory);
    tcase_add_test(tc, all_mappings_come_back);
    tcase_add_loop_test(tc, without_mappings_nothing_is_lost, 0, 2);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
