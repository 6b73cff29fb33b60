/* Card memory in the kill harness: granules and pieces are made, sent, received and released, and timelines are
 * claimed, while a process dies. Memory files take the place of the card's. */
#include "base/clock.h"
#include "base/random.h"
#include "ipc/queue_core.h"
#include "shm/granule.h"
#include "sync/peers.h"
#include "tests/harness/kill_steps.h"

#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define GRANULE_BYTES (UINT64_C(1) << 21)
#define PIECE_BYTES UINT64_C(512)

static const sh_granule_info card = {.uuid = {7, 1, 8}, .size = GRANULE_BYTES};

/* Makes a granule whose memory has the id at the offset. */
static shoal_err make_granule(uint64_t id, uint64_t offset, shoal_block **out_granule)
{
    int fd = memfd_create("kill", MFD_CLOEXEC);
    if (fd < 0 || pwrite(fd, &id, sizeof id, (off_t)offset) != sizeof id) {
        close(fd);
        return shoal_fail(SHOAL_EOS, "no memory file for a granule");
    }
    shoal_err err = sh_granule_create(&card, fd, out_granule);
    close(fd);
    return err;
}

shoal_err kill_put_piece(shoal_queue *q, kill_count *count, uint64_t id, uint64_t *random)
{
    shoal_block *granule = NULL, *piece = NULL;
    uint64_t offset = sh_splitmix_below(random, GRANULE_BYTES / PIECE_BYTES) * PIECE_BYTES;
    shoal_err err = make_granule(id, offset, &granule);
    if (err == SHOAL_OK) {
        err = sh_piece_create(granule, offset, PIECE_BYTES, &piece);
    }
    if (sh_splitmix_below(random, 2) == 0) { /* before or after the put */
        sh_block_release(granule);
        granule = NULL;
    }
    if (err == SHOAL_OK) {
        err = shoal_queue_put_block(q, piece, SHOAL_NOW);
        sh_add_relaxed(&count->put, err == SHOAL_OK);
    }
    sh_block_release(piece);
    sh_block_release(granule);
    return err;
}

/* Returns the id that the memory behind the piece has there, or 0. */
static uint64_t id_of_piece(const shoal_block *b)
{
    sh_piece piece;
    uint64_t id = 0;
    int fd = -1;
    if (sh_piece_read(b, &piece) != SHOAL_OK || piece.size != PIECE_BYTES ||
        sh_granule_fd(piece.granule, &fd) != SHOAL_OK) {
        return 0;
    }
    bool whole = pread(fd, &id, sizeof id, (off_t)piece.offset) == sizeof id;
    close(fd);
    return whole ? id : 0;
}

shoal_err kill_get_piece(shoal_queue *q, kill_count *count, uint64_t *out_id)
{
    sh_taken taken;
    size_t unused;
    shoal_err err = sh_queue_get_word((shoal_block *)q, SHOAL_KIND_NONE, 0, SHOAL_NOW, &taken, &unused);
    if (err == SHOAL_OK) {
        sh_add_relaxed(&count->got, 1);
        *out_id = id_of_piece(taken.block);
        sh_block_release(taken.block);
    }
    return err;
}

/* Waits until this process alone holds the block: a child that was forked while it was made, and ended in the middle of
 * a call, holds it until it is recovered, by this process or by another one. */
static bool becomes_sole_holder(const shoal_block *b)
{
    int64_t deadline = sh_deadline(SH_PATIENCE);
    while (!sh_block_is_sole_holder(b) && !sh_passed(deadline)) {
        (void)sh_peers_now->sweep(SH_SWEEP_AGE);
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    }
    return sh_block_is_sole_holder(b);
}

/* Pieces of one granule, which is released before, among or after them. */
void kill_granule_step(kill_stage *stage, uint64_t *random)
{
    enum { PIECES = 5 };
    shoal_block *granule = NULL, *pieces[PIECES] = {NULL};
    uint64_t id = sh_splitmix_next(random), last = sh_splitmix_below(random, PIECES + 1);
    shoal_err err = make_granule(id, 0, &granule);
    if (err == SHOAL_ETIMEDOUT) {
        return; /* a stopped process has the lock */
    }
    kill_must(stage, err, "granule_create");
    for (int i = 0; granule != NULL && i < PIECES; i++) {
        kill_must(stage, sh_piece_create(granule, 0, PIECE_BYTES, &pieces[i]), "piece_create");
    }
    for (uint64_t i = 0; i < PIECES; i++) {
        if (i == last) {
            sh_block_release(granule);
            granule = NULL;
        }
        if (pieces[i] != NULL && (!becomes_sole_holder(pieces[i]) || id_of_piece(pieces[i]) != id)) {
            kill_fail(stage, "a piece has another holder, or the bytes of another granule");
        }
        sh_block_release(pieces[i]);
    }
    sh_block_release(granule);
}

/* Returns false if there is none: after a long soak they are used up. */
static bool claim_timeline(kill_stage *stage, uint32_t *out_index)
{
    shoal_err err = sh_timeline_claim(out_index);
    if (err != SHOAL_ELIMIT) {
        kill_must(stage, err, "timeline_claim");
    }
    return err == SHOAL_OK;
}

/* Issues a number, and another one in a second timeline that comes after it. One in 32 is not done when its timeline is
 * given back: it is lost, and so is the other one, and neither timeline is used again. */
static void issue_two(kill_stage *stage, uint32_t first, uint32_t second, bool done)
{
    sh_work work = sh_work_make(first, sh_timeline_issue(first));
    bool recorded = sh_timeline_depend(second, work);
    sh_work after = sh_work_make(second, sh_timeline_issue(second));
    sh_work_state before = sh_work_look(after);
    if (done) {
        sh_store_release(sh_timeline_done_word(first), sh_work_number(work));
    }
    sh_timeline_release(first);
    sh_store_release(sh_timeline_done_word(second), sh_work_number(after));
    sh_timeline_release(second);
    sh_work_state expected = done ? SH_WORK_DONE : SH_WORK_LOST;
    if (!recorded || before != SH_WORK_PENDING || sh_work_look(work) != expected || sh_work_look(after) != expected) {
        kill_fail(stage, "timelines %u and %u: recorded %d, was %d, is %d and %d, expected %d", first, second,
                  (int)recorded, (int)before, (int)sh_work_look(work), (int)sh_work_look(after), (int)expected);
    }
}

void kill_timeline_step(kill_stage *stage, uint64_t *random)
{
    uint32_t first = 0, second = 0;
    if (claim_timeline(stage, &first) && claim_timeline(stage, &second)) {
        issue_two(stage, first, second, sh_splitmix_below(random, 32) != 0);
    }
}
