/* To be written. */
#include "ext.h"

int ext_add_pipe(PyObject *module)
{
    (void)module;
    return 0;
}
