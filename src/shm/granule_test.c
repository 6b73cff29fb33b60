/* Granules and pieces in one process: what they hold, when they die, and what a forged one can do. Processes that die
 * are in tests/cuda/card_memory.c. */
#include "shm/card_store.h"
#include "shm/granule.h"
#include "shm/kind.h"
#include "tests/harness/runner.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define BYTES (UINT64_C(32) << 20)

static const sh_granule_info plain = {.uuid = {1, 2, 3, 16}, .size = BYTES};

static int make_file(void)
{
    int fd = memfd_create("GPU memory", MFD_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    return fd;
}

static ino_t file_of(int fd)
{
    struct stat st;
    ck_assert_int_eq(fstat(fd, &st), 0);
    return st.st_ino;
}

static shoal_block *make_granule(void)
{
    shoal_block *g = NULL;
    int fd = make_file();
    ck_assert_ok(sh_granule_create(&plain, fd, &g));
    close(fd);
    return g;
}

static bool look(uint64_t id, sh_granule_info *out)
{
    ck_assert_ptr_nonnull(sh_enter());
    bool found = sh_granule_look(id, out);
    sh_leave();
    return found;
}

static int stored(void)
{
    sh_store_entry entries[SH_STORE_MAX];
    ck_assert_ptr_nonnull(sh_enter());
    int n = sh_cardstore_table(entries);
    sh_leave();
    return n;
}

START_TEST(a_granule_is_found_by_its_id)
{
    shoal_block *g = NULL;
    sh_granule_info info = {.size = 0};
    int fd = make_file(), copy = -1;
    ino_t file = file_of(fd);
    ck_assert_ok(sh_granule_create(&plain, fd, &g));
    close(fd);
    ck_assert(look(g->id, &info));
    ck_assert_mem_eq(info.uuid, plain.uuid, SH_UUID_BYTES);
    ck_assert_uint_eq(info.size, BYTES);
    ck_assert_uint_ne(info.serial, 0);
    ck_assert_ok(sh_granule_fd(g->id, &copy));
    ck_assert_uint_eq(file_of(copy), file);
    close(copy);
    sh_assert_audit("with a granule");
    uint64_t id = g->id, died = sh_granules_died();
    sh_block_release(g);
    ck_assert_uint_ne(sh_granules_died(), died);
    ck_assert(!look(id, &info));
    ck_assert_int_eq(stored(), 0);
    ck_assert_err(sh_granule_fd(id, &copy), SHOAL_EINVAL);
}
END_TEST

/* The fds of the set are those of the granules, in whichever order they come and go. */
START_TEST(granules_come_and_go)
{
    enum { COUNT = 20 };
    shoal_block *g[COUNT] = {0};
    ino_t files[COUNT] = {0};
    for (int round = 0; round < 200; round++) {
        int i = (round * 7 + round / 11) % COUNT, copy;
        if (g[i] != NULL) {
            ck_assert_ok(sh_granule_fd(g[i]->id, &copy));
            ck_assert_uint_eq(file_of(copy), files[i]);
            close(copy);
            sh_block_release(g[i]);
            g[i] = NULL;
        } else {
            int fd = make_file();
            files[i] = file_of(fd);
            ck_assert_ok(sh_granule_create(&plain, fd, &g[i]));
            close(fd);
        }
    }
    for (int i = 0; i < COUNT; i++) {
        sh_block_release(g[i]);
    }
    ck_assert_int_eq(stored(), 0);
}
END_TEST

/* ---- pieces ---- */

START_TEST(a_piece_keeps_its_granule)
{
    shoal_block *g = make_granule(), *p = NULL;
    sh_piece piece;
    sh_granule_info info;
    uint64_t id = g->id;
    ck_assert_ok(sh_piece_create(g, 4096, 100, &p));
    sh_block_release(g);
    ck_assert(look(id, &info));
    ck_assert_ok(sh_piece_read(p, &piece));
    ck_assert_uint_eq(piece.granule, id);
    ck_assert_uint_eq(piece.serial, info.serial);
    ck_assert_uint_eq(piece.offset, 4096);
    ck_assert_uint_eq(piece.size, 100);
    ck_assert_uint_eq(sh_load_relaxed(piece.work), 0);
    sh_assert_audit("with a piece");
    sh_block_release(p);
    ck_assert(!look(id, &info));
    ck_assert_int_eq(stored(), 0);
}
END_TEST

START_TEST(a_piece_is_inside_its_granule)
{
    shoal_block *g = make_granule(), *p = NULL, *b = NULL;
    ck_assert_err(sh_piece_create(g, 0, 0, &p), SHOAL_EINVAL);
    ck_assert_err(sh_piece_create(g, 0, BYTES + 1, &p), SHOAL_EINVAL);
    ck_assert_err(sh_piece_create(g, BYTES, 1, &p), SHOAL_EINVAL);
    ck_assert_err(sh_piece_create(g, UINT64_MAX, 2, &p), SHOAL_EINVAL);
    ck_assert_ok(sh_piece_create(g, BYTES - 1, 1, &p));
    ck_assert_ok(shoal_block_create(100, &b));
    ck_assert_err(sh_piece_create(b, 0, 1, &p), SHOAL_ETYPE);
    shoal_release(b);
    sh_block_release(p);
    sh_block_release(g);
}
END_TEST

static void expect_corrupt(const shoal_block *p, const char *what)
{
    sh_piece piece;
    ck_assert_msg(sh_piece_read(p, &piece) == SHOAL_ECORRUPT, "%s is accepted", what);
}

/* Another process of the world can write anything into a piece. */
START_TEST(a_forged_piece_is_refused)
{
    shoal_block *g = make_granule(), *p = NULL, *data = NULL;
    ck_assert_ok(sh_piece_create(g, 0, BYTES, &p));
    ck_assert_ok(shoal_block_create_zeroed(100, &data));
    sh_piece_shm *shm = (sh_piece_shm *)p->data;
    sh_granule_shm *granule = (sh_granule_shm *)g->data;
    uint64_t ref = sh_load_relaxed(&shm->granule), serial = sh_load_relaxed(&granule->serial);
    sh_store_relaxed(&shm->offset, 1);
    expect_corrupt(p, "a piece beyond the end");
    sh_store_relaxed(&shm->offset, UINT64_MAX - 10);
    expect_corrupt(p, "an offset that overflows");
    sh_store_relaxed(&shm->offset, 0);
    sh_store_relaxed(&shm->size, 0);
    expect_corrupt(p, "an empty piece");
    sh_store_relaxed(&shm->size, BYTES);
    sh_store_relaxed(&shm->granule, 0);
    expect_corrupt(p, "a piece of nothing");
    sh_store_relaxed(&shm->granule, sh_ref_make(data->id, 1));
    expect_corrupt(p, "a piece of a data block");
    sh_store_relaxed(&shm->granule, sh_ref_make(SH_ID_MASK, 1));
    expect_corrupt(p, "a piece of a block that does not exist");
    sh_store_relaxed(&shm->granule, ref);
    sh_store_relaxed(&granule->serial, 0);
    expect_corrupt(p, "a piece of a granule that is not complete");
    sh_store_relaxed(&granule->serial, serial);
    sh_piece piece;
    ck_assert_ok(sh_piece_read(p, &piece));
    shoal_release(data);
    sh_block_release(p);
    sh_block_release(g);
}
END_TEST

/* ---- holders ---- */

START_TEST(the_only_holder_knows)
{
    shoal_block *g = make_granule(), *p = NULL;
    shoal_queue *q = NULL;
    ck_assert(sh_block_is_sole_holder(g));
    ck_assert_ok(sh_piece_create(g, 0, 10, &p));
    ck_assert(sh_block_is_sole_holder(p));
    ck_assert(!sh_block_is_sole_holder(g));
    sh_block_retain(p);
    ck_assert(!sh_block_is_sole_holder(p));
    sh_block_release(p);
    ck_assert_ok(shoal_queue_create(0, &q));
    for (int i = 0; i < 5000; i++) { /* until the handle has to draw more weight */
        ck_assert_msg(shoal_queue_put_block(q, p, SHOAL_NOW) == SHOAL_OK, "%s", shoal_last_error_text());
    }
    ck_assert(!sh_block_is_sole_holder(p));
    shoal_release(q);
    ck_assert(sh_block_is_sole_holder(p));
    sh_block_release(p);
    ck_assert(sh_block_is_sole_holder(g));
    sh_block_release(g);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("granule");
    TCase *tc = tcase_create("granule");
    tcase_add_checked_fixture(tc, sh_leaks_begin, sh_leaks_end);
    tcase_add_test(tc, a_granule_is_found_by_its_id);
    tcase_add_test(tc, granules_come_and_go);
    tcase_add_test(tc, a_piece_keeps_its_granule);
    tcase_add_test(tc, a_piece_is_inside_its_granule);
    tcase_add_test(tc, a_forged_piece_is_refused);
    tcase_add_test(tc, the_only_holder_knows);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
