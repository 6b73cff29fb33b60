#include "sync/peers.h"

#include <stddef.h>

static sh_owner alone_self(void)
{
    return 1;
}

static uint64_t alone_life(void)
{
    return 1;
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

static const sh_peers alone = {.self = alone_self, .life = alone_life, .is_dead = alone_is_dead, .sweep = alone_sweep};
const sh_peers *sh_peers_now = &alone;

void sh_peers_set(const sh_peers *peers)
{
    sh_peers_now = peers != NULL ? peers : &alone;
}
