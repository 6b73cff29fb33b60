/* Writing files: whatever fails, the file is either the old one or the new one, and nothing else is left. */
#include "data/file_test.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>

static shoal_tensor *big;
static shoal_tensors *set;

static void write_begin(void)
{
    folder_begin();
    big = shoal_ones(SHOAL_F32, SHOAL_SHAPE(64, 1024)); /* 256 KiB */
    set = shoal_tensors_create();
    ck_assert_ok(shoal_tensors_add(set, "big", big));
}

static void write_end(void)
{
    shoal_tensors_destroy(set);
    shoal_tensor_release(big);
    folder_end();
}

/* Checks that the 16 bytes of the old file are still there. */
static void assert_old(const char *path)
{
    uint8_t bytes[32];
    ck_assert_uint_eq(bytes_of(path, bytes, sizeof bytes), 16);
    ck_assert_mem_eq(bytes, "the old contents", 16);
}

static const char *old_file(const char *name)
{
    return file_of(name, "the old contents", 16);
}

/* Checks that both writers fail with err and leave the old file. */
static void refuse(const char *path, shoal_err err)
{
    ck_assert_err(shoal_npy_write(path, big), err);
    ck_assert_msg(strstr(shoal_last_error_text(), path) != NULL, "%s", shoal_last_error_text());
    ck_assert_err(shoal_safetensors_write(path, set), err);
    ck_assert_msg(strstr(shoal_last_error_text(), path) != NULL, "%s", shoal_last_error_text());
}

START_TEST(replaces)
{
    struct stat st;
    const char *path = old_file("weights");
    ck_assert_int_eq(chmod(path, 0640), 0);
    ck_assert_int_eq(symlink("weights", in_folder("link")), 0);
    ck_assert_ok(shoal_npy_write(in_folder("link"), big));
    ck_assert_int_eq(lstat(in_folder("link"), &st), 0);
    ck_assert(S_ISLNK(st.st_mode));
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert_int_eq(st.st_mode & 07777, 0640);
    ck_assert_int_eq(st.st_size, 128 + 64 * 1024 * 4);
    ck_assert_ok(shoal_safetensors_write(path, set));
    shoal_tensors *back = shoal_safetensors_read(path);
    ck_assert(shoal_tensor_equal(big, shoal_tensors_find(back, "big")));
    shoal_tensors_destroy(back);
    ck_assert_int_eq(count_files(folder), 2);

    mode_t mask = umask(027);
    ck_assert_ok(shoal_npy_write(in_folder("fresh"), big));
    umask(mask);
    ck_assert_int_eq(stat(in_folder("fresh"), &st), 0);
    ck_assert_int_eq(st.st_mode & 07777, 0640);
}
END_TEST

/* Links to a file that does not exist yet are followed: relative to the folder that each is in, through other links,
 * and only into folders that exist. */
START_TEST(dangling_links)
{
    struct stat st;
    ck_assert_int_eq(mkdir(in_folder("below"), 0777), 0);
    ck_assert_int_eq(symlink("below/second", in_folder("first")), 0);
    ck_assert_int_eq(symlink("../weights", in_folder("below/second")), 0);
    ck_assert_ok(shoal_npy_write(in_folder("first"), big));
    ck_assert_int_eq(lstat(in_folder("weights"), &st), 0);
    ck_assert(S_ISREG(st.st_mode));
    ck_assert_int_eq(symlink(in_folder("absolute"), in_folder("third")), 0);
    ck_assert_ok(shoal_safetensors_write(in_folder("third"), set));
    ck_assert_int_eq(lstat(in_folder("absolute"), &st), 0);
    ck_assert_int_eq(symlink("absent/weights", in_folder("fourth")), 0);
    ck_assert_err(shoal_npy_write(in_folder("fourth"), big), SHOAL_ENOENT);
    ck_assert_int_eq(symlink("loop", in_folder("loop")), 0);
    ck_assert_err(shoal_npy_write(in_folder("loop"), big), SHOAL_EOS);
    static const char *const links[] = {"first", "below/second", "third", "fourth", "loop"};
    for (size_t i = 0; i < sizeof links / sizeof links[0]; i++) {
        ck_assert_int_eq(lstat(in_folder(links[i]), &st), 0);
        ck_assert(S_ISLNK(st.st_mode));
        ck_assert_int_eq(unlink(in_folder(links[i])), 0);
    }
    ck_assert_int_eq(rmdir(in_folder("below")), 0);
}
END_TEST

/* A pipe is written if somebody reads it, even through /proc, and rejected at once if nobody does. */
START_TEST(pipes)
{
    char path[64], byte[64];
    int ends[2];
    shoal_tensor *small = shoal_ones(SHOAL_U8, SHOAL_SHAPE(3));
    ck_assert_int_eq(mkfifo(in_folder("fifo"), 0600), 0);
    refuse(in_folder("fifo"), SHOAL_EOS);
    ck_assert_msg(strstr(shoal_last_error_text(), "is a pipe without a reader") != NULL, "%s", shoal_last_error_text());
    int end = open(in_folder("fifo"), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    ck_assert_ok(shoal_npy_write(in_folder("fifo"), small));
    ck_assert_int_gt(read(end, byte, sizeof byte), 0);
    close(end);
    ck_assert_int_eq(pipe(ends), 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", ends[1]);
    ck_assert_ok(shoal_npy_write(path, small));
    ck_assert_int_gt(read(ends[0], byte, sizeof byte), 0);
    close(ends[0]);
    close(ends[1]);
    shoal_tensor_release(small);
}
END_TEST

START_TEST(no_place)
{
    refuse(in_folder("absent/weights"), SHOAL_ENOENT);
    refuse(folder, SHOAL_EINVAL);
    ck_assert_err(shoal_npy_write("", big), SHOAL_EINVAL);
    ck_assert_err(shoal_npy_write(NULL, big), SHOAL_EINVAL);
}
END_TEST

START_TEST(full_device)
{
    if (access("/dev/full", W_OK) != 0) {
        printf("skipped: /dev/full is not there\n");
        return;
    }
    refuse("/dev/full", SHOAL_EOS);
    ck_assert_msg(strstr(shoal_last_error_text(), "No space left") != NULL, "%s", shoal_last_error_text());
}
END_TEST

/* A limit on file sizes makes a write fail in the middle, as a full disk does, and needs no privileges. */
START_TEST(file_too_large)
{
    struct rlimit limit;
    const char *path = old_file("weights");
    signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &limit), 0);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &(struct rlimit){100000, limit.rlim_max}), 0);
    refuse(path, SHOAL_EOS);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    assert_old(path);
    ck_assert_int_eq(count_files(folder), 1);
}
END_TEST

START_TEST(full_disk)
{
    char disk[128];
    snprintf(disk, sizeof disk, "%s", in_folder("disk"));
    ck_assert_int_eq(mkdir(disk, 0700), 0);
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("tmpfs", disk, "tmpfs", 0, "size=128k") != 0) {
        printf("skipped: a small disk cannot be mounted here: %s\n", strerror(errno));
    } else {
        const char *path = old_file("disk/weights");
        refuse(path, SHOAL_EOS);
        ck_assert_msg(strstr(shoal_last_error_text(), "No space left") != NULL, "%s", shoal_last_error_text());
        assert_old(path);
        ck_assert_int_eq(count_files(disk), 1);
        ck_assert_int_eq(umount(disk), 0);
    }
    ck_assert_int_eq(rmdir(disk), 0);
}
END_TEST

START_TEST(no_permission)
{
    const char *path = old_file("weights");
    if (geteuid() == 0) { /* root may write everywhere: become nobody */
        ck_assert_int_eq(chmod(folder, 0755), 0);
        ck_assert_int_eq(seteuid(65534), 0);
        refuse(in_folder("fresh"), SHOAL_EPERM);
        refuse(path, SHOAL_EPERM);
        ck_assert_int_eq(seteuid(0), 0);
    } else {
        ck_assert_int_eq(chmod(path, 0400), 0);
        refuse(path, SHOAL_EPERM);
        ck_assert_int_eq(chmod(folder, 0500), 0);
        refuse(in_folder("fresh"), SHOAL_EPERM);
        ck_assert_int_eq(chmod(folder, 0700), 0);
    }
    assert_old(path);
    ck_assert_int_eq(count_files(folder), 1);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("write");
    TCase *tc = tcase_create("write");
    tcase_add_checked_fixture(tc, write_begin, write_end);
    tcase_set_timeout(tc, SH_TEST_SECONDS);
    tcase_add_test(tc, replaces);
    tcase_add_test(tc, dangling_links);
    tcase_add_test(tc, pipes);
    tcase_add_test(tc, no_place);
    tcase_add_test(tc, full_device);
    tcase_add_test(tc, file_too_large);
    tcase_add_test(tc, full_disk);
    tcase_add_test(tc, no_permission);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
