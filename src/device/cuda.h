/* The card of this process: one card, its primary context and one stream. The kernels are in libshoal_cuda. */
#ifndef SH_DEVICE_CUDA_H
#define SH_DEVICE_CUDA_H

#include "device/cuda_driver.h"
#include "device/device.h"
#include "kernels/cuda/library.h"

#define SH_CUDA_UUID_SIZE 16

typedef struct sh_cuda_card {
    int index; /* among the cards that this process sees */
    sh_cu_device device;
    sh_cu_context context;
    sh_cu_stream stream; /* all work of this process, so freed memory can be reused at once */
    uint8_t uuid[SH_CUDA_UUID_SIZE];
    char name[96];
    size_t total; /* bytes of card memory */
    const sh_cuda_library *library;
    uint64_t generation; /* sh_fork_generation of the process that opened it */
} sh_cuda_card;

/* Opens the card at the first call: the first visible one, or number SHOAL_CUDA_DEVICE. Returns NULL with the error set
 * if there is none. Later calls make the context current in the calling thread, and fail in a child of fork and after
 * an error that ended the context. Thread-safe. */
sh_cuda_card *sh_cuda_get(void);

/* Returns the card that was opened, without any check. */
const sh_cuda_card *sh_cuda_the_card(void);

/* The same for code that cannot run before the card was opened: fails if it was not. */
shoal_err sh_cuda_check(void);

/* Checks whether this process has opened the card itself. */
bool sh_cuda_is_ours(void);

/* Checks whether this process, or the one it was forked from, has opened the card. Opens nothing. */
bool sh_cuda_is_open(void);

/* Writes a UUID as nvidia-smi shows it, and returns out. */
const char *sh_cuda_uuid_text(const uint8_t uuid[SH_CUDA_UUID_SIZE], char out[48]);

/* Counts the cards that this process sees; checks that sh_cuda_get would find one; describes card->index. Open no
 * card. */
shoal_err sh_cuda_count(int *out_count);
shoal_err sh_cuda_look(void);
shoal_err sh_cuda_describe(sh_cuda_card *card);

/* Loads libshoal_cuda, once, and checks that this build made it (cuda_library.c). Not thread-safe. Errors:
 * SHOAL_ENOENT, SHOAL_ELAYOUT. */
shoal_err sh_cuda_library_load(const sh_cuda_library **out_library);

/* Scratch of the calling thread's exec. It stays for later kernels. give_back: frees it, unless the thread captures. */
void *sh_cuda_scratch(sh_exec *exec, size_t size);
void sh_cuda_scratch_give_back(void);

extern const sh_device sh_device_cuda;

#endif
