#include <shoal/version.h>

const char *shoal_version(void)
{
    return SHOAL_VERSION;
}
