/* Environments inside the library. */
#ifndef SH_ENV_ENV_H
#define SH_ENV_ENV_H

#include <shoal/env.h>

struct shoal_env {
    const shoal_env_type *type;
    uint64_t random;
    int64_t steps; /* of the episode */
    bool under_way;
    max_align_t state[];
};

extern const shoal_env_type sh_env_cartpole;

#endif
