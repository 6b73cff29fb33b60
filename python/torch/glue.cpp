/* The torch glue: moves the memory of torch's CPU storages into Shoal's heap, and builds tensors over heap blocks. card.h
 * does the same on a card.
 *
 * A storage is moved in place. It keeps its identity, only its data pointer is replaced; so views and Parameters
 * follow. The new data pointer belongs to a BlockMemory, which holds the reference to the block and is an
 * at::MapAllocator, because torch takes a storage for shared if its data pointer belongs to one.
 *
 * Tested with torch 1.13 and 2.11; the differences of torch 2 are in `writable_data`.
 */
#include "glue.h"

#include "card.h"
#include "memory.h"

#include <shoal/block.h>

#include <ATen/MapAllocator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/InferenceMode.h>

#include <cstring>
#include <typeinfo>

#if __has_include(<pybind11/pybind11.h>)
#include <torch/csrc/autograd/python_variable.h>
#elif TORCH_VERSION_MAJOR == 1 && TORCH_VERSION_MINOR == 13
/* Debian's torch comes without pybind11, which its header for this includes. What is used of that header: */
struct THPVariable {
    PyObject_HEAD;
    c10::MaybeOwned<at::Tensor> cdata;
    PyObject *backward_hooks;
};
extern PyObject *THPVariableClass, *ParameterClass;
PyObject *THPVariable_Wrap(at::TensorBase tensor);
inline const at::Tensor &THPVariable_Unpack(PyObject *obj)
{
    return *reinterpret_cast<THPVariable *>(obj)->cdata;
}
#else
#error "the headers of this torch need pybind11 (Debian: pybind11-dev)"
#endif

namespace
{

/* ---- memory: a block as the memory of a storage ---- */

/* What torch frees the memory of a MapAllocator with. It has no public name. */
c10::DeleterFnPtr map_deleter;

class BlockMemory final : public at::MapAllocator
{
  public:
    /* Takes over the reference. The base class maps nothing if the size is 0. */
    explicit BlockMemory(shoal_block *block)
        : at::MapAllocator(at::WITH_FD, "", -1, 0, 0), block_(block), id_(shoal_block_id(block))
    {
    }

    ~BlockMemory() override
    {
        cache.forget(id_, this);
        shoal_block_release(block_);
    }

    void *data() const override
    {
        return shoal_block_data(block_);
    }

    shoal_block *block() const
    {
        return block_;
    }

    uint64_t id() const
    {
        return id_;
    }

    /* A copy of the storage in torch's own shared memory, for torch's own queues (shoal/torch.py). */
    c10::Storage mirror;

    /* The memory before the move, if a numpy array may still point into it. */
    c10::DataPtr before;

  private:
    shoal_block *block_;
    uint64_t id_;
};

/* Returns the memory of a storage if it lies in the heap, else NULL. */
BlockMemory *heap_memory(const c10::StorageImpl *storage)
{
    at::MapAllocator *memory = at::MapAllocator::fromDataPtr(storage->data_ptr());
    return memory && typeid(*memory) == typeid(BlockMemory) ? static_cast<BlockMemory *>(memory) : nullptr;
}

/* Makes the data pointer that owns the memory. */
c10::DataPtr data_pointer(BlockMemory *memory)
{
    return {memory->data(), static_cast<at::MapAllocator *>(memory), map_deleter, c10::Device(c10::DeviceType::CPU)};
}

/* Returns the living storage of a block, or one without an implementation. */
c10::Storage recall(const shoal_block *block)
{
    uint64_t id = shoal_block_id(block);
    c10::intrusive_ptr<c10::StorageImpl> storage = cache.recall(id);
    const BlockMemory *memory = storage ? heap_memory(storage.get()) : nullptr;
    return memory && memory->id() == id ? c10::Storage(std::move(storage)) : c10::Storage();
}

/* ---- adopt ---- */

/* Owns one reference. */
struct BlockReference {
    shoal_block *block;
    ~BlockReference()
    {
        shoal_block_release(block);
    }
    shoal_block *give()
    {
        return std::exchange(block, nullptr);
    }
};

/* Moves a CPU storage into the heap, unless it is there. Returns its memory.
 *
 * A storage that was moved cannot be resized, and memory that a numpy array and the tensor had in common is no longer
 * common: the array keeps the old memory. Such an array may hold nothing but the tensor, so the old memory must exist
 * as long as the tensor does, also if torch had shared it or another library owns it. A storage that can be resized
 * has no array: making one ends that, and so does shoal.from_dlpack (method_pin). */
BlockMemory *adopt(const c10::Storage &storage)
{
    c10::StorageImpl *impl = storage.unsafeGetStorageImpl();
    if (BlockMemory *memory = heap_memory(impl))
        return memory;

    size_t size = impl->nbytes();
    const void *data = writable_data(impl);
    BlockReference reference = {nullptr};
    shoal_err err = shoal_block_create(size, &reference.block);
    if (err != SHOAL_OK)
        raise_last();
    BlockMemory *memory = new BlockMemory(reference.block);
    reference.give();
    c10::DataPtr pointer = data_pointer(memory);
    if (size > 0)
        std::memcpy(pointer.get(), data, size);
    cache.remember(memory->id(), storage, memory);
    c10::DataPtr before = impl->set_data_ptr(std::move(pointer));
    if (!impl->resizable())
        memory->before = std::move(before);
    impl->set_resizable(false);
    impl->set_allocator(nullptr);
    return memory;
}

/* ---- describe and rebuild ---- */

enum Flag : uint8_t {
    FLAG_REQUIRES_GRAD = 1,
    FLAG_PARAMETER = 2,
    FLAGS_ALL = 3,
};

constexpr uint8_t META_VERSION = 1;

/* The beginning of the description of a tensor; dims sizes and dims strides follow, 8 bytes each. */
struct Header {
    uint8_t version;
    uint8_t dtype; /* c10::ScalarType */
    uint8_t flags;
    uint8_t dims;
    uint32_t zero;
    int64_t offset; /* in elements */
};

static_assert(sizeof(Header) + 2 * sizeof(int64_t) * SHOAL_TORCH_DIMS_MAX == SHOAL_TORCH_META_MAX, "glue.h says so");

/* The dispatch keys of a plain dense tensor on the CPU, and on a card. A tensor with any other key (sparse, quantised,
 * conjugate, a subclass with __torch_dispatch__, inside vmap) is not plain. */
uint64_t plain_keys, plain_card_keys;

bool has_plain_keys(const at::Tensor &tensor)
{
    uint64_t keys = tensor.key_set().raw_repr();
    return tensor.has_storage() && ((tensor.device().is_cpu() && (keys & ~plain_keys) == 0) ||
                                    (tensor.device().is_cuda() && (keys & ~plain_card_keys) == 0));
}

bool is_parameter(PyObject *obj)
{
    return Py_TYPE(obj) == reinterpret_cast<PyTypeObject *>(ParameterClass);
}

bool has_attributes(PyObject *obj)
{
    PyObject *dict = PyObject_GenericGetDict(obj, nullptr);
    if (!dict)
        throw Raised();
    bool some = PyDict_GET_SIZE(dict) > 0;
    Py_DECREF(dict);
    return some;
}

/* Whether the dimensions have names. Newer versions of torch do not have names any more: then the second function is chosen. */
template <class Impl> auto has_names(const Impl *impl, int) -> decltype(impl->has_named_tensor_meta())
{
    return impl->has_named_tensor_meta();
}

template <class Impl> bool has_names(const Impl *, long)
{
    return false;
}

/* Whether the tensor is nothing but strided memory and requires_grad. Raises for a non-leaf that requires grad. */
bool is_plain(PyObject *obj)
{
    if (!is_parameter(obj) && Py_TYPE(obj) != reinterpret_cast<PyTypeObject *>(THPVariableClass))
        return false;
    const at::Tensor &tensor = THPVariable_Unpack(obj);
    if (!has_plain_keys(tensor))
        return false;
    c10::TensorImpl *impl = tensor.unsafeGetTensorImpl();
    if (impl->autograd_meta()) {
        if (tensor.requires_grad() && !tensor.is_leaf())
            raise(PyExc_RuntimeError,
                  "a tensor with requires_grad that is not a leaf cannot be sent to another process, "
                  "because its graph stays here; send tensor.detach()");
        if (impl->grad().defined())
            return false;
    }
    return !has_names(impl, 0) && tensor.dim() <= SHOAL_TORCH_DIMS_MAX &&
           !reinterpret_cast<THPVariable *>(obj)->backward_hooks && !has_attributes(obj);
}

size_t write_meta(const at::Tensor &tensor, bool parameter, unsigned char *meta)
{
    Header header = {};
    header.version = META_VERSION;
    header.dtype = static_cast<uint8_t>(tensor.scalar_type());
    header.flags =
        static_cast<uint8_t>((tensor.requires_grad() ? FLAG_REQUIRES_GRAD : 0) | (parameter ? FLAG_PARAMETER : 0));
    header.dims = static_cast<uint8_t>(tensor.dim());
    header.offset = tensor.storage_offset();
    size_t each = header.dims * sizeof(int64_t);
    std::memcpy(meta, &header, sizeof header);
    std::memcpy(meta + sizeof header, tensor.sizes().data(), each);
    std::memcpy(meta + sizeof header + each, tensor.strides().data(), each);
    return sizeof header + 2 * each;
}

/* Whether elements of item bytes at these places lie within size bytes. */
bool lies_within(const Header &header, const int64_t *sizes, const int64_t *strides, int64_t item, size_t size)
{
    int64_t last = header.offset; /* the index of the last element */
    int64_t count = 1, bytes = 0;
    bool wrong = last < 0;
    for (int i = 0; i < header.dims; i++) {
        int64_t reach = 0;
        wrong = wrong || sizes[i] < 0 || strides[i] < 0;
        wrong = __builtin_mul_overflow(count, sizes[i], &count) || wrong;
        wrong = __builtin_mul_overflow(sizes[i] > 0 ? sizes[i] - 1 : 0, strides[i], &reach) || wrong;
        wrong = __builtin_add_overflow(last, reach, &last) || wrong;
    }
    wrong = wrong || __builtin_mul_overflow(last, item, &bytes) || __builtin_add_overflow(bytes, item, &bytes);
    return !wrong && (count == 0 || static_cast<uint64_t>(bytes) <= size);
}

struct Meta {
    Header header;
    int64_t sizes[SHOAL_TORCH_DIMS_MAX];
    int64_t strides[SHOAL_TORCH_DIMS_MAX];
};

/* The bytes may come from anyone: nothing in them may lead outside of the memory. */
Meta read_meta(const unsigned char *bytes, size_t size, size_t memory_size)
{
    Meta meta = {};
    Header &header = meta.header;
    size_t each = 0;
    bool right = size >= sizeof header;
    if (right) {
        std::memcpy(&header, bytes, sizeof header);
        each = header.dims * sizeof(int64_t);
        right = header.version == META_VERSION && header.zero == 0 && (header.flags & ~FLAGS_ALL) == 0 &&
                header.dims <= SHOAL_TORCH_DIMS_MAX && size == sizeof header + 2 * each;
    }
    auto dtype = static_cast<c10::ScalarType>(header.dtype);
    right = right && header.dtype < static_cast<uint8_t>(c10::ScalarType::Undefined) && !c10::isQIntType(dtype);
    if (right && (header.flags & FLAG_REQUIRES_GRAD))
        right = c10::isFloatingType(dtype) || c10::isComplexType(dtype);
    if (right) {
        std::memcpy(meta.sizes, bytes + sizeof header, each);
        std::memcpy(meta.strides, bytes + sizeof header + each, each);
        right =
            lies_within(header, meta.sizes, meta.strides, static_cast<int64_t>(c10::elementSize(dtype)), memory_size);
    }
    if (!right)
        raise(PyExc_ValueError, "the description of a tensor is invalid or does not fit its memory");
    return meta;
}

/* Returns the storage of a block: the living one, or a new one. */
c10::Storage storage_of(BlockReference &reference)
{
    c10::Storage storage = recall(reference.block);
    if (storage)
        return storage;
    size_t size = shoal_block_size(reference.block);
    BlockMemory *memory = new BlockMemory(reference.block);
    reference.give();
    storage = c10::Storage(c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), size, data_pointer(memory), /*allocator=*/nullptr, /*resizable=*/false));
    cache.remember(memory->id(), storage, memory);
    return storage;
}

at::Tensor make_tensor(c10::Storage storage, const Meta &meta)
{
    auto dtype = c10::scalarTypeToTypeMeta(static_cast<c10::ScalarType>(meta.header.dtype));
    c10::DispatchKeySet key(storage.device().is_cpu() ? c10::DispatchKey::CPU : c10::DispatchKey::CUDA);
    auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), key, dtype);
    c10::TensorImpl *impl = tensor.unsafeGetTensorImpl();
    impl->set_storage_offset(meta.header.offset);
    impl->set_sizes_and_strides(c10::IntArrayRef(meta.sizes, meta.header.dims),
                                c10::IntArrayRef(meta.strides, meta.header.dims));
    return tensor;
}

PyObject *make_parameter(at::Tensor tensor, bool requires_grad)
{
    static PyObject *make_subclass = PyObject_GetAttrString(THPVariableClass, "_make_subclass");
    if (!make_subclass)
        throw Raised();
    PyObject *data = THPVariable_Wrap(std::move(tensor));
    if (!data)
        throw Raised();
    PyObject *args[] = {ParameterClass, data, requires_grad ? Py_True : Py_False};
    PyObject *parameter = PyObject_Vectorcall(make_subclass, args, 3, nullptr);
    Py_DECREF(data);
    return parameter;
}

/* ---- what Python and the extension call ---- */

/* Runs body. If it throws, sets a Python exception and returns failure. */
template <class Result, class Body> Result guarded(Result failure, Body body)
{
    try {
        return body();
    } catch (const Raised &) {
    } catch (const std::bad_alloc &) {
        PyErr_NoMemory();
    } catch (const c10::Error &error) {
        PyErr_SetString(PyExc_RuntimeError, error.what_without_backtrace());
    } catch (const std::exception &error) {
        if (!PyErr_Occurred()) /* torch's python_error leaves the exception set */
            PyErr_SetString(PyExc_RuntimeError, error.what());
    }
    return failure;
}

int glue_describe(PyObject *obj, unsigned char *meta, size_t capacity, size_t *out_size, shoal_torch_memory *out_memory)
{
    return guarded(-1, [&] {
        if (capacity < SHOAL_TORCH_META_MAX || !is_plain(obj))
            return 0;
        const at::Tensor &tensor = THPVariable_Unpack(obj);
        *out_memory = {};
        if (tensor.device().is_cpu())
            out_memory->block = shoal_block_retain(adopt(tensor.storage())->block());
        else
            out_memory->tensor = send_card(tensor.storage());
        *out_size = write_meta(tensor, is_parameter(obj), meta);
        return 1;
    });
}

PyObject *glue_rebuild(const unsigned char *bytes, size_t size, shoal_torch_memory memory)
{
    BlockReference block = {memory.block};
    TensorReference card = {memory.tensor};
    return guarded<PyObject *>(nullptr, [&] {
        Meta meta = read_meta(bytes, size, memory.block ? shoal_block_size(memory.block) : card_size(memory.tensor));
        at::Tensor tensor = make_tensor(memory.block ? storage_of(block) : storage_on_card(card), meta);
        bool requires_grad = meta.header.flags & FLAG_REQUIRES_GRAD;
        if (meta.header.flags & FLAG_PARAMETER)
            return make_parameter(std::move(tensor), requires_grad);
        if (requires_grad)
            tensor.set_requires_grad(true);
        return THPVariable_Wrap(std::move(tensor));
    });
}

int glue_is_tensor(PyObject *obj)
{
    return PyObject_TypeCheck(obj, reinterpret_cast<PyTypeObject *>(THPVariableClass));
}

const shoal_torch_glue glue_api = {SHOAL_TORCH_GLUE_VERSION, glue_describe, glue_rebuild, glue_is_tensor};

/* Returns the storage of a tensor. Raises TypeError if it is not one whose memory could be Shoal's. */
c10::Storage movable_storage(PyObject *obj)
{
    if (!glue_is_tensor(obj))
        raise(PyExc_TypeError, "a torch.Tensor is needed");
    const at::Tensor &tensor = THPVariable_Unpack(obj);
    if (!tensor.has_storage() || !(tensor.device().is_cpu() || tensor.device().is_cuda()))
        raise(PyExc_TypeError, "the tensor has no storage in the memory of the CPU or of a CUDA card");
    return tensor.storage();
}

/* The same, for memory that could be in the heap. */
c10::Storage cpu_storage(PyObject *obj)
{
    c10::Storage storage = movable_storage(obj);
    if (!storage.device().is_cpu())
        raise(PyExc_TypeError, "the tensor has no storage in the memory of the CPU");
    return storage;
}

PyObject *method_adopt(PyObject *, PyObject *obj)
{
    return guarded<PyObject *>(nullptr, [&] {
        c10::Storage storage = movable_storage(obj);
        if (storage.device().is_cpu())
            adopt(storage);
        else
            adopt_card(storage);
        Py_INCREF(obj);
        return obj;
    });
}

PyObject *method_is_adopted(PyObject *, PyObject *obj)
{
    return guarded<PyObject *>(nullptr, [&] {
        c10::Storage storage = movable_storage(obj);
        const c10::StorageImpl *impl = storage.unsafeGetStorageImpl();
        return PyBool_FromLong(storage.device().is_cpu() ? heap_memory(impl) != nullptr
                                                         : CardMemory::of(impl) != nullptr);
    });
}

/* adopt() keeps the old memory of a storage that cannot be resized, and adopt_card() refuses it. */
PyObject *method_pin(PyObject *, PyObject *obj)
{
    return guarded<PyObject *>(nullptr, [&]() -> PyObject * {
        movable_storage(obj).unsafeGetStorageImpl()->set_resizable(false);
        Py_RETURN_NONE;
    });
}

PyObject *method_mirror(PyObject *, PyObject *obj)
{
    return guarded<PyObject *>(nullptr, [&]() -> PyObject * {
        BlockMemory *memory = heap_memory(cpu_storage(obj).unsafeGetStorageImpl());
        if (!memory || !memory->mirror)
            Py_RETURN_NONE;
        Meta meta = {};
        meta.header.dtype = static_cast<uint8_t>(c10::ScalarType::Byte);
        meta.header.dims = 1;
        meta.sizes[0] = static_cast<int64_t>(memory->mirror.nbytes());
        meta.strides[0] = 1;
        return THPVariable_Wrap(make_tensor(memory->mirror, meta));
    });
}

PyObject *method_set_mirror(PyObject *, PyObject *const *args, Py_ssize_t count)
{
    return guarded<PyObject *>(nullptr, [&]() -> PyObject * {
        if (count != 2)
            raise(PyExc_TypeError, "set_mirror(tensor, mirror)");
        BlockMemory *memory = heap_memory(cpu_storage(args[0]).unsafeGetStorageImpl());
        c10::Storage mirror = cpu_storage(args[1]);
        if (!memory || heap_memory(mirror.unsafeGetStorageImpl()))
            raise(PyExc_ValueError, "the tensor must be in the heap, and the mirror must not");
        memory->mirror = std::move(mirror);
        Py_RETURN_NONE;
    });
}

PyObject *method_cached(PyObject *, PyObject *)
{
    return PyLong_FromSize_t(cache.size() + card_cache.size());
}

PyMethodDef methods[] = {
    {"adopt", method_adopt, METH_O,
     "adopt(tensor): moves its storage into Shoal's memory, of the heap or of the card, and returns the tensor."},
    {"is_adopted", method_is_adopted, METH_O, "is_adopted(tensor): whether its storage lies in Shoal's memory."},
    {"pin", method_pin, METH_O, "pin(tensor): others know the address of its memory, which must stay."},
    {"mirror", method_mirror, METH_O, "mirror(tensor): the bytes of its copy in torch's shared memory, or None."},
    {"set_mirror", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(method_set_mirror)), METH_FASTCALL,
     "set_mirror(tensor, mirror): keeps the storage of mirror as long as that of tensor."},
    {"cached", method_cached, METH_NOARGS, "cached(): the number of living storages in Shoal's memory."},
    {},
};

PyModuleDef module_def = {PyModuleDef_HEAD_INIT,
                          "_torch_glue",
                          "Moves the memory of torch's tensors into Shoal's (used by shoal.torch).",
                          -1,
                          methods,
                          nullptr,
                          nullptr,
                          nullptr,
                          nullptr};

void prepare()
{
    c10::InferenceMode off(false); /* tensors of inference mode lack some keys */
    map_deleter = at::MapAllocator::makeDataPtr(at::WITH_FD, "", -1, 0, 0, nullptr).get_deleter();
    auto keys_on = [](c10::DeviceType type) {
        auto empty = c10::make_intrusive<c10::StorageImpl>(
            c10::StorageImpl::use_byte_size_t(), 0,
            c10::DataPtr(nullptr, c10::Device(type, type == c10::DeviceType::CPU ? -1 : 0)), nullptr, false);
        return make_tensor(c10::Storage(std::move(empty)), Meta()).key_set().raw_repr();
    };
    plain_keys = keys_on(c10::DeviceType::CPU);
    plain_card_keys = keys_on(c10::DeviceType::CUDA);
    keep_caches_over_forks();
}

} // namespace

PyMODINIT_FUNC PyInit__torch_glue()
{
    return guarded<PyObject *>(nullptr, [&]() -> PyObject * {
        prepare();
        PyObject *module = PyModule_Create(&module_def);
        PyObject *capsule = PyCapsule_New(const_cast<shoal_torch_glue *>(&glue_api), SHOAL_TORCH_GLUE_CAPSULE, nullptr);
        int added = module && capsule ? PyModule_AddObjectRef(module, "api", capsule) : -1;
        Py_XDECREF(capsule);
        if (added == 0)
            return module;
        Py_XDECREF(module);
        return nullptr;
    });
}
