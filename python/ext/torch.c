/* torch tensors as values. The work is done by the glue (torch/glue.h), which is loaded when a tensor is first seen. */
#include "codec.h"

#if __has_include("glue.h")
#include "glue.h"

static const shoal_torch_glue *glue;
static PyObject *tensor_type; /* torch.Tensor, once torch is imported */
static int without_glue;      /* it cannot be loaded: pickle carries tensors */

/* Returns 1 if the glue is there, 0 if torch or the glue is not, -1 with an exception. */
static int load_glue(void)
{
    PyObject *module = PyImport_ImportModule("shoal.torch");
    PyObject *capsule = module != NULL ? PyObject_CallMethod(module, "load", NULL) : NULL;
    Py_XDECREF(module);
    if (capsule == NULL) {
        return -1;
    }
    if (Py_IsNone(capsule)) {
        without_glue = 1;
    } else {
        glue = PyCapsule_GetPointer(capsule, SHOAL_TORCH_GLUE_CAPSULE);
        if (glue != NULL && glue->version != SHOAL_TORCH_GLUE_VERSION) {
            PyErr_SetString(PyExc_ImportError, "shoal's torch glue was built for another version of shoal");
            glue = NULL;
        }
    }
    Py_DECREF(capsule);
    return glue != NULL ? 1 : PyErr_Occurred() != NULL ? -1 : 0;
}

static int find_torch(void)
{
    if (tensor_type != NULL) {
        return 1;
    }
    static PyObject *name;
    if (name == NULL && (name = PyUnicode_InternFromString("torch")) == NULL) {
        return -1;
    }
    PyObject *torch = PyImport_GetModule(name);
    tensor_type = torch != NULL ? PyObject_GetAttrString(torch, "Tensor") : NULL;
    Py_XDECREF(torch);
    PyErr_Clear(); /* torch is only half imported */
    return tensor_type != NULL;
}

int ext_torch_encode(PyObject *obj, shoal_value **out_value)
{
    if (glue == NULL) {
        int found = without_glue ? 0 : find_torch();
        if (found != 1 || PyObject_IsInstance(obj, tensor_type) != 1) {
            return found < 0 ? -1 : 0;
        }
        found = load_glue();
        if (found != 1) {
            return found;
        }
    }
    unsigned char meta[SHOAL_TORCH_META_MAX];
    size_t size;
    shoal_block *block;
    if (!glue->is_tensor(obj)) {
        return 0;
    }
    int done = glue->describe(obj, meta, sizeof meta, &size, &block);
    if (done != 1) {
        return done;
    }
    shoal_value *list = shoal_list_add(shoal_value_list(), shoal_value_foreign(CODEC_TORCH, meta, size));
    *out_value = shoal_list_add(list, shoal_value_block(block));
    shoal_block_release(block);
    if (*out_value == NULL) {
        ext_raise(shoal_last_error());
        return -1;
    }
    return 1;
}

PyObject *ext_torch_decode(const void *bytes, size_t size, shoal_block *block)
{
    if (glue == NULL && load_glue() != 1) {
        if (PyErr_Occurred() == NULL) {
            PyErr_SetString(PyExc_ImportError, "a torch tensor arrived, but shoal's torch glue cannot be loaded here");
        }
        return NULL;
    }
    return glue->rebuild(bytes, size, shoal_block_retain(block));
}
#else
int ext_torch_encode(PyObject *obj, shoal_value **out_value)
{
    (void)obj;
    (void)out_value;
    return 0;
}

PyObject *ext_torch_decode(const void *bytes, size_t size, shoal_block *block)
{
    (void)bytes;
    (void)size;
    (void)block;
    PyErr_SetString(PyExc_ImportError, "this build has no torch glue");
    return NULL;
}
#endif
