/* What the machine and this process offer to a world. */
#ifndef CLI_MACHINE_H
#define CLI_MACHINE_H

#include <stdbool.h>
#include <stdint.h>

#define CLI_UNKNOWN UINT64_MAX

/* Sizes in bytes; CLI_UNKNOWN where there is no limit, or where the system does not tell. */
typedef struct cli_machine {
    char processor[128];
    char features[256]; /* names with a blank between */
    char kernel[160];
    unsigned cpus, cpus_online; /* that this process may use, and that there are */
    uint64_t page, memory, memory_available;
    uint64_t open_files, open_files_hard, address_space;
    uint64_t shm, shm_available; /* the /dev/shm mount */
    bool futex_waitv;
} cli_machine;

void cli_machine_look(cli_machine *out_machine);

#endif
