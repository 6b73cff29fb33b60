/* Shared by the tests with tensors of a card: those of tests/harness/talk.h are on the stub's card, or on a real
 * one. */
#ifndef TESTS_CUDA_CARD_H
#define TESTS_CUDA_CARD_H

#include "device/cuda_share.h"
#include "tests/harness/cuda_stub/stub.h"
#include "tests/harness/talk.h"

static inline void card_open(void)
{
    sh_stub_use();
    setenv("SHOAL_TALK_DEVICE", "cuda", 1);
    ck_assert_msg(sh_device_get(SHOAL_CUDA) != NULL, "%s", shoal_last_error_text());
}

static inline void card_begin(void)
{
    sh_leaks_begin();
    card_open();
}

/* Returns how many bytes of card memory this process uses, when all that can come back has come back. */
static inline size_t card_used(void)
{
    sh_cuda_memory_numbers n;
    shoal_err err = shoal_world_sweep(NULL);
    (void)shoal_cuda_trim();
    return err == SHOAL_OK && sh_cuda_memory_numbers_now(&n) == SHOAL_OK ? n.used : SIZE_MAX;
}

static inline TCase *card_case(const char *name)
{
    TCase *tc = tcase_create(name);
    tcase_add_checked_fixture(tc, card_begin, children_end);
    tcase_set_timeout(tc, SH_TEST_SECONDS);
    return tc;
}

#endif
