/* To be written. */
#include "ext.h"

int ext_add_world(PyObject *module)
{
    (void)module;
    return 0;
}
