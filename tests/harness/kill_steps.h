/* What the files of steps share. */
#ifndef SH_TESTING_KILL_STEPS_H
#define SH_TESTING_KILL_STEPS_H

#include "tests/harness/kill.h"

/* Fails the stage if a call failed that must not, except for want of memory in a tight heap. */
void kill_must(kill_stage *stage, shoal_err err, const char *what);

/* Makes a block of that size and writes the id to both ends. NULL in a tight heap. */
shoal_block *kill_make_block(kill_stage *stage, size_t size, uint64_t id);

/* Makes blocks of that size, reads them, and releases them. */
void kill_hold_blocks(kill_stage *stage, uint64_t *random, size_t size, int count);

/* kill_tensors.c: shares a tensor and releases it. */
void kill_tensor_step(kill_stage *stage, uint64_t *random);

/* kill_cards.c: makes a granule and pieces of it, and releases them; uses a timeline. */
void kill_granule_step(kill_stage *stage, uint64_t *random);
void kill_timeline_step(kill_stage *stage, uint64_t *random);

/* kill_processes.c */
void kill_fork_step(kill_stage *stage, uint64_t *random);
void kill_fork_plain_step(kill_stage *stage, uint64_t *random);
void kill_join_step(kill_stage *stage, uint64_t *random);
void kill_cancel_step(kill_stage *stage, uint64_t *random);
void kill_start_fork_step(kill_stage *stage, uint64_t *random);
void kill_start_spawn_step(kill_stage *stage, uint64_t *random);
void kill_start_server_step(kill_stage *stage, uint64_t *random);
void kill_start_program_step(kill_stage *stage, uint64_t *random);
void kill_start_served_step(kill_stage *stage, uint64_t *random);
void kill_start_pool_step(kill_stage *stage, uint64_t *random);

#endif
