/* To be written. */
#include "ext.h"

int ext_add_sync(PyObject *module)
{
    (void)module;
    return 0;
}
