/* A library that target_test.c loads while it runs; nothing is linked with it. */
#include <shoal/process.h>

/* Static on purpose: a target needs no symbol. */
static shoal_err seven(int rank, const shoal_value *args)
{
    (void)args;
    return rank == 7 ? SHOAL_OK : SHOAL_EINVAL;
}

__attribute__((visibility("default"))) shoal_target sh_test_target(void);

shoal_target sh_test_target(void)
{
    return seven;
}
