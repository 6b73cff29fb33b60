/* torch tensors as values. The work is done by the glue (torch/glue.h), which is loaded when a tensor is first seen. */
#include "codec.h"
#include "glue.h"
#include "tensor.h"

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
        int is_tensor = found == 1 ? PyObject_IsInstance(obj, tensor_type) : found;
        if (is_tensor != 1) {
            return is_tensor;
        }
        found = load_glue();
        if (found != 1) {
            return found;
        }
    }
    unsigned char meta[SHOAL_TORCH_META_MAX];
    size_t size;
    shoal_torch_memory memory;
    if (!glue->is_tensor(obj)) {
        return 0;
    }
    int done = glue->describe(obj, meta, sizeof meta, &size, &memory);
    if (done != 1) {
        return done;
    }
    shoal_value *list = shoal_list_add(shoal_value_list(), shoal_value_foreign(CODEC_TORCH, meta, size));
    *out_value = shoal_list_add(list, memory.block != NULL ? shoal_value_block(memory.block)
                                                           : shoal_value_tensor(memory.tensor));
    shoal_block_release(memory.block);
    shoal_tensor_release(memory.tensor);
    if (*out_value == NULL) {
        ext_raise(shoal_last_error());
        return -1;
    }
    return 1;
}

static int need_glue(void)
{
    if (glue != NULL || load_glue() == 1) {
        return 0;
    }
    if (PyErr_Occurred() == NULL) {
        PyErr_SetString(PyExc_ImportError, "this torch tensor needs shoal's torch glue, which cannot be loaded here");
    }
    return -1;
}

PyObject *ext_torch_decode(const void *bytes, size_t size, const shoal_value *value)
{
    shoal_torch_memory memory = {NULL, NULL};
    shoal_kind kind = value != NULL ? shoal_value_object_kind(value) : SHOAL_KIND_QUEUE;
    if (need_glue() != 0) {
        return NULL;
    }
    if (kind == SHOAL_KIND_BLOCK) {
        memory.block = shoal_block_retain(shoal_value_as_block(value));
    } else if (kind == SHOAL_KIND_TENSOR) {
        memory.tensor = shoal_tensor_retain(shoal_value_as_tensor(value));
    } else {
        PyErr_SetString(ext_error, "the message has a torch tensor without its memory");
        return NULL;
    }
    if (memory.block == NULL && memory.tensor == NULL) {
        return ext_raise(shoal_last_error());
    }
    return glue->rebuild(bytes, size, memory);
}

/* ---- for shoal.torch, which pickles the tensors that have more than their memory ---- */

static PyObject *torch_describe(PyObject *module, PyObject *obj)
{
    unsigned char meta[SHOAL_TORCH_META_MAX];
    size_t size;
    shoal_torch_memory memory;
    (void)module;
    int done = need_glue() == 0 ? glue->describe(obj, meta, sizeof meta, &size, &memory) : -1;
    if (done == 0) {
        Py_RETURN_NONE;
    }
    PyObject *wrapper = NULL;
    if (done == 1) {
        wrapper = memory.block != NULL ? ext_block_new(memory.block, 0) : ext_tensor_new(memory.tensor);
    }
    return wrapper != NULL ? Py_BuildValue("y#N", meta, (Py_ssize_t)size, wrapper) : NULL;
}

static PyObject *torch_rebuild(PyObject *module, PyObject *args)
{
    const char *meta;
    Py_ssize_t size;
    PyObject *wrapper;
    (void)module;
    if (!PyArg_ParseTuple(args, "y#O!", &meta, &size, ext_shared_type, &wrapper) || need_glue() != 0) {
        return NULL;
    }
    shoal_torch_memory memory = {NULL, NULL};
    if (((ext_shared *)wrapper)->kind == SHOAL_KIND_TENSOR) {
        memory.tensor = shoal_tensor_retain(ext_shared_handle(wrapper, SHOAL_KIND_TENSOR));
    } else {
        memory.block = shoal_block_retain(ext_shared_handle(wrapper, SHOAL_KIND_BLOCK));
    }
    return memory.block != NULL || memory.tensor != NULL
               ? glue->rebuild((const unsigned char *)meta, (size_t)size, memory)
               : NULL;
}

int ext_torch_add(PyObject *module)
{
    static PyMethodDef functions[] = {
        {"torch_describe", torch_describe, METH_O,
         "torch_describe(tensor): moves its storage into Shoal's memory and returns (description, Block), or "
         "(description, "
         "Tensor) on a GPU; None if the short way cannot carry it."},
        {"torch_rebuild", torch_rebuild, METH_VARARGS,
         "torch_rebuild(description, memory): makes the tensor that torch_describe described."},
        {NULL, NULL, 0, NULL},
    };
    return PyModule_AddFunctions(module, functions);
}
