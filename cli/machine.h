/* The properties of the machine and of this process that matter to a world. */
#ifndef CLI_MACHINE_H
#define CLI_MACHINE_H

#include <stdbool.h>
#include <stdint.h>

#define CLI_UNKNOWN UINT64_MAX

/* Sizes are in bytes. CLI_UNKNOWN: there is no limit, or the system does not report it. */
typedef struct cli_machine {
    char processor[128];
    char features[256]; /* names, separated by blanks */
    char kernel[160];
    unsigned cpus, cpus_online; /* the number that this process may use, and the number online */
    uint64_t page, memory, memory_available;
    uint64_t open_files, open_files_hard, address_space;
    uint64_t shm, shm_available; /* the /dev/shm mount */
    bool futex_waitv;
    bool mps; /* NVIDIA's multi-process service is installed: its control program is in PATH */
} cli_machine;

void cli_machine_read(cli_machine *out_machine);

#endif
