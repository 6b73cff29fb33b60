/* To be written. */
#include "ext.h"

int ext_add_codec(PyObject *module)
{
    (void)module;
    return 0;
}
