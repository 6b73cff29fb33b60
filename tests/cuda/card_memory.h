/* For the tests of card memory between processes. The end of a pipe takes the place of the card's memory: the other end
 * tells when nobody has it any more. */
#ifndef TESTS_CARD_MEMORY_H
#define TESTS_CARD_MEMORY_H

#include "ipc/queue_core.h"
#include "shm/card_store.h"
#include "shm/granule.h"
#include "tests/harness/children.h"

#include <fcntl.h>
#include <poll.h>

#define PAGE UINT64_C(4096)

static const sh_granule_info card = {.uuid = {5}, .size = 100 * PAGE};

/* ---- memory that tells when it is freed ---- */

typedef struct memory {
    int told; /* our end */
    int fd;   /* what is shared */
} memory;

static inline memory make_memory(void)
{
    int ends[2];
    ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
    return (memory){.told = ends[0], .fd = ends[1]};
}

static inline bool is_freed(const memory *m)
{
    struct pollfd p = {.fd = m->told};
    return poll(&p, 1, 0) == 1 && (p.revents & POLLHUP) != 0;
}

/* The system frees what a process had a moment after its end is seen. */
static inline void until_freed(const memory *m)
{
    struct pollfd p = {.fd = m->told};
    ck_assert_msg(poll(&p, 1, (int)(LIMIT / SHOAL_MS(1))) == 1, "the memory is not freed");
}

/* Makes a granule and forgets the fd: only the store has it. */
static inline shoal_err make_granule(memory *m, shoal_block **out_granule)
{
    shoal_err err = sh_granule_create(&card, m->fd, out_granule);
    close(m->fd);
    m->fd = -1;
    return err;
}

static inline shoal_err receive(shoal_queue *q, shoal_block **out_piece)
{
    sh_taken taken;
    size_t unused;
    shoal_err err = sh_queue_get_word((shoal_block *)q, SHOAL_KIND_NONE, 0, LIMIT, &taken, &unused);
    if (err == SHOAL_OK) {
        *out_piece = taken.block;
    }
    return err;
}

/* Checks that the piece's memory is there, by a byte that goes through it. */
static inline shoal_err write_through(const shoal_block *piece, char byte)
{
    sh_piece seen;
    int fd = -1;
    must_ok(sh_piece_read(piece, &seen));
    must_ok(sh_granule_fd(seen.granule, &fd));
    must((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
    bool written = write(fd, &byte, 1) == 1;
    close(fd);
    must(written);
    return SHOAL_OK;
}

static inline void expect_byte(const memory *m, char wanted)
{
    char byte = 0;
    ck_assert_int_eq(read(m->told, &byte, 1), 1);
    ck_assert_int_eq(byte, wanted);
}

#endif
