/* GPU memory of this process: granules, and the pieces that they are cut into.
 *
 * A granule is a large allocation of the driver, mapped once: made here, or imported from another process. The bytes of
 * a granule that was made here belong to pieces, which lie one behind the other. Free pieces wait in bins by their
 * size. A piece of more than 256 KiB is taken by best fit, and when it is freed, it is joined with free neighbours of
 * that kind. Smaller pieces have rounded sizes, four to a doubling, and are cut many at a time. A small piece stays as
 * it is when it is freed, so a loop finds the same ones again; free neighbours are joined only when no piece is large
 * enough, or when memory goes back to the driver. So a loop in steady state makes no call of the driver. Descriptions
 * of pieces are in host memory, found by address in a table. Pinned host memory is described by a piece without a
 * granule.
 *
 * All work of this process is in one stream, so a piece can be used again as soon as it was freed: what used it before
 * is done before. Two kinds of pieces must wait longer:
 *
 *     lent     other processes hold it (cuda_share.c); it is free again when this process is the only holder
 *     kept     a captured graph uses it (cuda_capture.c); it is free again when the graph is destroyed
 *
 * What was lent in a world that this process has left stays lent for ever (it has no ledger then), because this process
 * no longer learns that it has come back. But a granule in which everything is free, or lent like this, goes back to
 * the driver like an empty one: other processes that hold a part of it have their own mapping, or find its fd in the
 * store of their world.
 *
 * Invariants, checked by sh_cuda_memory_valid:
 *
 *     the pieces of a granule cover it, without gaps                                           (1)
 *     held = sum of granules;  used = sum of pieces that are not free                          (2)
 *     asked = sum of what was asked for, of pieces in use                                      (3) */
#ifndef SH_DEVICE_CUDA_MEMORY_H
#define SH_DEVICE_CUDA_MEMORY_H

#include "device/cuda.h"

typedef struct sh_cuda_capture sh_cuda_capture;
typedef struct shoal_block shoal_block;

typedef struct sh_cuda_granule {
    struct sh_cuda_granule *next;
    sh_cu_address address;
    size_t size;
    sh_cu_memory memory;
    struct sh_cuda_piece *first; /* NULL: another process made it */
    uint64_t id, serial;         /* of the world's granule (shm/granule.h); 0: no piece of it was shared yet */
    shoal_block *ledger;         /* the same, if it was made here */
} sh_cuda_granule;

typedef enum sh_cuda_piece_state {
    SH_CUDA_FREE,
    SH_CUDA_USED,
    SH_CUDA_LENT, /* freed here, but others may hold it; without a ledger: in a world that this process has left */
    SH_CUDA_KEPT, /* freed, but a graph uses it */
} sh_cuda_piece_state;

typedef struct sh_cuda_piece {
    struct sh_cuda_piece *hash_next;
    struct sh_cuda_piece *next, *prev;    /* in the list of its bin, or of lent pieces */
    struct sh_cuda_piece *before, *after; /* its neighbours in the granule */
    sh_cu_address address;
    size_t size;
    size_t asked;
    sh_cuda_granule *granule; /* NULL: pinned host memory */
    sh_cuda_piece_state state;
    shoal_block *ledger; /* the world's piece, once it was shared */
    bool given;          /* others may hold it, in a world that this process has left: once freed, it stays lent */
    sh_cuda_capture *capture;
    struct sh_cuda_piece *capture_next;
    sh_cuda_capture *other; /* in which it was freed, if that is another one: both graphs may use it */
    struct sh_cuda_piece *other_next;
} sh_cuda_piece;

typedef struct sh_cuda_memory_numbers {
    size_t asked; /* by tensors and others of this process */
    size_t used;  /* by these, rounded up, and by what is lent or kept */
    size_t held;  /* of the driver */
    size_t free;  /* of the GPU, for all processes */
    size_t total; /* of the GPU */
} sh_cuda_memory_numbers;

/* Allocates and frees GPU memory, aligned to 256 bytes, from 256 KiB on to 16 KiB. alloc returns NULL and sets
 * SHOAL_ENOMEM with the numbers; or the errors of sh_cuda_check. free takes any size: the piece knows its own. */
void *sh_cuda_alloc(size_t size);
void sh_cuda_free(void *data, size_t size);

/* The same for pinned host memory. Errors: those of the driver. */
void *sh_cuda_alloc_pinned(size_t size);
void sh_cuda_free_pinned(void *data, size_t size);

/* Gives the granules that this process does not use back to the driver. Waits for the GPU's work, if there are any, and
 * for other threads that do the same. Returns the number of bytes. */
size_t sh_cuda_memory_trim(void);

shoal_err sh_cuda_memory_numbers_now(sh_cuda_memory_numbers *out_numbers);

/* Checks the invariants. */
bool sh_cuda_memory_valid(void);

/* ---- for sharing and captures; all under SH_CARD_LOCK_STATE ---- */

/* Returns the piece in use that starts at this address, or NULL. */
sh_cuda_piece *sh_cuda_piece_at(const void *data);

/* Takes a piece back that was freed: it becomes free, or stays lent. */
void sh_cuda_piece_take_back(sh_cuda_piece *piece);

/* Frees the description of pinned memory. */
void sh_cuda_piece_forget(sh_cuda_piece *piece);

/* Writes the numbers into the world, for `shoal ps` and for processes that find the GPU's memory full. */
void sh_cuda_memory_tell(void);

/* ---- granules (cuda_granule.c): calls of the driver only, under no lock but SH_CARD_LOCK_DRIVER ---- */

/* Makes a granule of at least size bytes. Errors: those of sh_cuda_result; SHOAL_ENOMEM if the GPU has no memory. */
shoal_err sh_cuda_granule_make(size_t size, sh_cuda_granule **out_granule);

/* Maps the granule of another process, from its fd. */
shoal_err sh_cuda_granule_import(int fd, size_t size, sh_cuda_granule **out_granule);

/* Unmaps a list of granules and gives them back. Other processes that have mapped them keep them. Returns their
 * bytes. */
size_t sh_cuda_granules_drop(sh_cuda_granule *list);

/* Frees pinned memory that no piece describes any more. Waits for copies that use it. */
void sh_cuda_pinned_drop(void *data);

#endif
