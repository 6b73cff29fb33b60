#include "sync/peers.h"

#include <stddef.h>

#define ALONE 1u

static sh_owner alone_self(void)
{
    return ALONE;
}

static bool alone_is_dead(sh_owner owner)
{
    (void)owner;
    return false;
}

static uint32_t alone_sweep(int64_t age)
{
    (void)age;
    return 1;
}

static const sh_peers alone = {.self = alone_self, .is_dead = alone_is_dead, .sweep = alone_sweep};
const sh_peers *sh_peers_now = &alone;
uint64_t sh_life_now = ALONE;

void sh_peers_set(const sh_peers *peers, uint64_t life)
{
    sh_peers_now = peers != NULL ? peers : &alone;
    sh_life_now = peers != NULL ? life : ALONE;
}
