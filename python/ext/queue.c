/* To be written. */
#include "ext.h"

int ext_add_queue(PyObject *module)
{
    (void)module;
    return 0;
}
