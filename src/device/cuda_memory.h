/* Card memory of this process: granules, and the pieces that they are cut into.
 *
 * A granule is a large allocation of the driver, mapped once. All its bytes belong to pieces, which lie one behind the
 * other. A piece of up to 256 KiB comes from a slab, a larger piece that is cut into pieces of one size class; free
 * ones wait in the list of their class. Larger pieces are found by best fit, and two free neighbours become one. So a
 * loop in steady state makes no call of the driver. Descriptions of pieces are in host memory, found by address in a
 * table.
 *
 * All work of this process is in one stream, so a piece can be used again as soon as it was freed: what used it before
 * is done before. Two kinds of pieces must wait longer:
 *
 *     lent     other processes hold it (cuda_share.c); it is free again when this process is the only holder
 *     kept     a captured graph uses it (cuda_capture.c); it is free again when the graph is destroyed
 *
 * A third kind is never used again here: what was lent in a world that this process has left (given), because this
 * process no longer learns that it has come back. But a granule in which everything is free or given goes back to the
 * driver like an empty one: other processes that hold a part of it have their own mapping, or find its fd in the store
 * of their world.
 *
 * Invariants, checked by sh_cuda_memory_valid:
 *
 *     the pieces of a granule cover it, without gaps; no two free ones are neighbours          (1)
 *     held = sum of granules;  used = sum of large pieces that are not free                    (2)
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
    shoal_block *ledger; /* the world's granule (shm/granule.h), once a piece of it was shared; otherwise NULL */
} sh_cuda_granule;

typedef enum sh_cuda_piece_state {
    SH_CUDA_FREE,
    SH_CUDA_USED,
    SH_CUDA_LENT,  /* freed here, but others may hold it */
    SH_CUDA_KEPT,  /* freed, but a graph uses it */
    SH_CUDA_GIVEN, /* freed, but others may hold it, in a world that this process has left: never used again here */
    SH_CUDA_SLAB,  /* cut into small pieces */
} sh_cuda_piece_state;

typedef struct sh_cuda_piece {
    struct sh_cuda_piece *hash_next;
    struct sh_cuda_piece *next, *prev; /* in the list of its class, of its bin, or of lent pieces */
    sh_cu_address address;
    size_t size;
    size_t asked;
    sh_cuda_granule *granule;
    struct sh_cuda_slab *slab;            /* of a small piece, or the slab that this piece is */
    struct sh_cuda_piece *before, *after; /* the neighbours of a large piece */
    sh_cuda_piece_state state;
    shoal_block *ledger; /* the world's piece, once it was shared */
    bool given;          /* others may hold it, in a world that this process has left; when it is freed: GIVEN */
    sh_cuda_capture *capture;
    struct sh_cuda_piece *capture_next;
    sh_cuda_capture *other; /* in which it was freed, if that is another one: both graphs may use it */
    struct sh_cuda_piece *other_next;
} sh_cuda_piece;

typedef struct sh_cuda_memory_numbers {
    size_t asked; /* by tensors and others of this process */
    size_t used;  /* by these, rounded up, and by what is lent or kept */
    size_t held;  /* of the driver */
    size_t free;  /* of the card, for all processes */
    size_t total; /* of the card */
} sh_cuda_memory_numbers;

/* Allocates and frees card memory, aligned to 256 bytes, from 256 KiB on to 16 KiB. alloc returns NULL and sets
 * SHOAL_ENOMEM with the numbers; or the errors of sh_cuda_check. free takes any size: the piece knows its own. */
void *sh_cuda_alloc(size_t size);
void sh_cuda_free(void *data, size_t size);

/* Gives what is not used back to the driver: slabs and granules in which everything is free or given. Waits for the
 * card's work, if there are any. Returns the number of bytes. */
size_t sh_cuda_memory_trim(void);

shoal_err sh_cuda_memory_numbers_now(sh_cuda_memory_numbers *out_numbers);

/* Checks the invariants. */
bool sh_cuda_memory_valid(void);

/* ---- for sharing and captures; all under the lock ---- */

void sh_cuda_memory_lock(void);
void sh_cuda_memory_unlock(void);

/* Returns the piece in use that starts at this address, or NULL. */
sh_cuda_piece *sh_cuda_piece_at(const void *data);

/* Takes a piece back that was freed: it becomes free, lent or given. */
void sh_cuda_piece_take_back(sh_cuda_piece *piece);

/* Makes a piece that was freed, or is lent, a given one. */
void sh_cuda_piece_give(sh_cuda_piece *piece);

/* Writes the numbers into the world, for `shoal ps` and for processes that find the card full. */
void sh_cuda_memory_tell(void);

/* Returns the first granule of the list. */
sh_cuda_granule *sh_cuda_granules(void);

/* Calls visit for every piece that is not a slab. visit must not make one free. */
void sh_cuda_pieces_visit(void (*visit)(sh_cuda_piece *piece));

/* ---- granules (cuda_granule.c): calls of the driver only ---- */

/* Makes a granule of at least size bytes. Errors: those of sh_cuda_result; SHOAL_ENOMEM if the card has no memory. */
shoal_err sh_cuda_granule_make(size_t size, sh_cuda_granule **out_granule);

/* Unmaps it and gives it back. Other processes that have mapped it keep it. */
void sh_cuda_granule_drop(sh_cuda_granule *granule);

/* Maps memory that was made or imported. */
shoal_err sh_cuda_map(sh_cu_memory memory, size_t size, sh_cu_address *out_address);
void sh_cuda_unmap(sh_cu_address address, size_t size);

#endif
