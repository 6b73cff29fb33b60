/* The store of card memory: making and freeing a granule, getting its fd, and a piece of it, with few and with many other
 * granules in the world. Memory files take the place of the card's, so it needs no card. The limit is what the system takes
 * to send as many fds into a socket and to receive them. Checks each fd, then prints one JSON line for each measurement.
 *
 *     build/bench/card_store
 */
#include "shm/granule.h"

#include <shoal/shoal.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 101, MOST = 250 };

static const sh_granule_info card = {.uuid = {1}, .size = 1 << 21};
static int file;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static bool is_same_file(int fd)
{
    struct stat a, b;
    return fstat(fd, &a) == 0 && fstat(file, &b) == 0 && a.st_ino == b.st_ino;
}

/* ---- what is measured ---- */

static shoal_err create_and_release(shoal_block *granule)
{
    shoal_block *fresh = NULL;
    (void)granule;
    shoal_err err = sh_granule_create(&card, file, &fresh);
    sh_block_release(fresh);
    return err;
}

static shoal_err get_fd(shoal_block *granule)
{
    int fd = -1;
    shoal_err err = sh_granule_fd(granule->id, &fd);
    if (err == SHOAL_OK && !is_same_file(fd)) {
        err = shoal_fail(SHOAL_ECORRUPT, "the store has the fd of another file");
    }
    close(fd);
    return err;
}

static shoal_err make_piece(shoal_block *granule)
{
    shoal_block *piece = NULL;
    shoal_err err = sh_piece_create(granule, 0, 512, &piece);
    sh_block_release(piece);
    return err;
}

/* The limit: sends and receives `count` fds. */
static int pair[2];
static int count_now;

static shoal_err send_and_receive(shoal_block *granule)
{
    static char room[CMSG_SPACE(MOST * sizeof(int))] __attribute__((aligned(8)));
    char bytes[16] = {0};
    struct iovec v = {.iov_base = bytes, .iov_len = sizeof bytes};
    struct msghdr h = {.msg_iov = &v,
                       .msg_iovlen = 1,
                       .msg_control = room,
                       .msg_controllen = CMSG_SPACE((size_t)count_now * sizeof(int))};
    (void)granule;
    memset(room, 0, sizeof room);
    struct cmsghdr *c = CMSG_FIRSTHDR(&h);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN((size_t)count_now * sizeof(int));
    for (int i = 0; i < count_now; i++) {
        memcpy(CMSG_DATA(c) + (size_t)i * sizeof(int), &file, sizeof file);
    }
    bool sent = sendmsg(pair[0], &h, 0) > 0;
    h.msg_controllen = sizeof room;
    if (!sent || recvmsg(pair[1], &h, MSG_CMSG_CLOEXEC) <= 0) {
        return shoal_fail(SHOAL_EOS, "the fds do not arrive");
    }
    for (int i = 0; i < count_now; i++) {
        int fd;
        memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&h)) + (size_t)i * sizeof(int), sizeof fd);
        close(fd);
    }
    return SHOAL_OK;
}

static shoal_err measure(const char *name, shoal_err (*step)(shoal_block *), shoal_block *granule)
{
    double us[ROUNDS];
    for (int i = 0; i < ROUNDS; i++) {
        double begin = now();
        shoal_err err = step(granule);
        us[i] = (now() - begin) * 1e6;
        if (err != SHOAL_OK) {
            return err;
        }
    }
    qsort(us, ROUNDS, sizeof us[0], by_size);
    printf("{\"name\": \"card_store_%s\", \"unit\": \"us\", \"median\": %.2f, \"granules\": %d}\n", name,
           us[ROUNDS / 2], count_now);
    return SHOAL_OK;
}

static shoal_err run(void)
{
    static const int counts[] = {1, 16, 100, MOST};
    shoal_block *granules[MOST];
    shoal_err err = SHOAL_OK;
    int made = 0;
    for (size_t i = 0; i < sizeof counts / sizeof counts[0] && err == SHOAL_OK; i++) {
        for (count_now = counts[i]; made < count_now && err == SHOAL_OK; made += err == SHOAL_OK) {
            err = sh_granule_create(&card, file, &granules[made]);
        }
        err = err == SHOAL_OK ? measure("limit", send_and_receive, NULL) : err;
        err = err == SHOAL_OK ? measure("create_release", create_and_release, NULL) : err;
        err = err == SHOAL_OK ? measure("fd", get_fd, granules[made - 1]) : err;
        err = err == SHOAL_OK ? measure("piece", make_piece, granules[made - 1]) : err;
    }
    while (made > 0) {
        sh_block_release(granules[--made]);
    }
    return err;
}

int main(void)
{
    file = memfd_create("bench", MFD_CLOEXEC);
    if (file < 0 || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
        perror("card_store");
        return EXIT_FAILURE;
    }
    if (run() != SHOAL_OK) {
        (void)fprintf(stderr, "card_store: %s\n", shoal_last_error_text());
        return EXIT_FAILURE;
    }
    return EXIT_SUCCESS;
}
