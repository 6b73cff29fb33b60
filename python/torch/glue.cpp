/* The torch glue: moves the memory of torch's CPU storages into Shoal's heap, and builds tensors over heap blocks.
 *
 * A storage is moved in place. It keeps its identity, only its data pointer is replaced; so views and Parameters
 * follow. The new data pointer belongs to a BlockMemory, which holds the reference to the block and is an
 * at::MapAllocator, because torch takes a storage for shared if its data pointer belongs to one.
 *
 * Tested with torch 1.13; the differences of torch 2 are in `writable_data`.
 */
#include "glue.h"

#include <shoal/block.h>
#include <shoal/error.h>

#include <ATen/MapAllocator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/InferenceMode.h>
#include <torch/version.h>

#include <pthread.h>

#include <cstring>
#include <mutex>
#include <typeinfo>
#include <unordered_map>

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

class BlockMemory;

/* The living storages by the number of their block: a block that arrives again becomes the same storage.
 *
 * An entry is removed when the memory of its storage is freed, before the block is released. So an entry never
 * outlives its block, whose number could then be used again. Memory is freed by any thread, also without the
 * interpreter's lock. Destructors of the process do not free the map: storages may be freed after them. */
struct Cache {
    struct Entry {
        const BlockMemory *memory;
        c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    };
    std::mutex mutex;
    std::unordered_map<uint64_t, Entry> entries;
};

Cache &cache = *new Cache;

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
        forget();
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
    void forget() const
    {
        decltype(cache.entries)::node_type gone; /* is destroyed after the lock is released */
        std::lock_guard<std::mutex> lock(cache.mutex);
        auto entry = cache.entries.find(id_);
        if (entry != cache.entries.end() && entry->second.memory == this)
            gone = cache.entries.extract(entry);
    }

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

void remember(const c10::Storage &storage, const BlockMemory *memory)
{
    Cache::Entry fresh = {memory, storage.getWeakStorageImpl()};
    std::lock_guard<std::mutex> lock(cache.mutex);
    auto added = cache.entries.emplace(memory->id(), fresh);
    if (!added.second)
        std::swap(added.first->second, fresh); /* the old one dies in another thread, or has other memory by now */
}

/* Returns the living storage of a block, or one without an implementation. */
c10::Storage recall(const shoal_block *block)
{
    c10::intrusive_ptr<c10::StorageImpl> storage;
    uint64_t id = shoal_block_id(block);
    {
        std::lock_guard<std::mutex> lock(cache.mutex);
        auto entry = cache.entries.find(id);
        if (entry != cache.entries.end())
            storage = entry->second.storage.lock();
    }
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

/* A Python exception is set. */
struct Raised {
};

[[noreturn]] void raise(PyObject *exception, const char *text)
{
    PyErr_SetString(exception, text);
    throw Raised();
}

[[noreturn]] void raise(shoal_err err)
{
    raise(err == SHOAL_ENOMEM ? PyExc_MemoryError : PyExc_RuntimeError, shoal_last_error_text());
}

/* The bytes of a storage. In torch 2 a storage may be a lazy copy, which shares the memory of another one until
 * someone wants to write. */
const void *writable_data(c10::StorageImpl *storage)
{
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 1)
    return storage->mutable_data_ptr().get();
#else
    return storage->data_ptr().get();
#endif
}

/* Moves a CPU storage into the heap, unless it is there. Returns its memory.
 *
 * A storage that was moved cannot be resized, and memory that a numpy array and the tensor had in common is no longer
 * common: the array keeps the old memory. Such an array may hold nothing but the tensor, so the old memory must exist
 * as long as the tensor does, also if torch had shared it or another library owns it. A storage that can be resized
 * has no array: making one ends that. */
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
        raise(err);
    BlockMemory *memory = new BlockMemory(reference.block);
    reference.give();
    c10::DataPtr pointer = data_pointer(memory);
    if (size > 0)
        std::memcpy(pointer.get(), data, size);
    remember(storage, memory);
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

/* The dispatch keys of a plain dense CPU tensor. A tensor with any other key (sparse, quantised, conjugate, a
 * subclass with __torch_dispatch__, inside vmap) is not plain. */
uint64_t plain_keys;

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

/* Whether the tensor is nothing but strided memory and requires_grad. Raises for a non-leaf that requires grad. */
bool is_plain(PyObject *obj)
{
    if (!is_parameter(obj) && Py_TYPE(obj) != reinterpret_cast<PyTypeObject *>(THPVariableClass))
        return false;
    const at::Tensor &tensor = THPVariable_Unpack(obj);
    c10::DispatchKeySet keys = tensor.key_set();
    if ((keys.raw_repr() & ~plain_keys) != 0 || !tensor.has_storage() || !tensor.device().is_cpu())
        return false;
    c10::TensorImpl *impl = tensor.unsafeGetTensorImpl();
    if (impl->autograd_meta()) {
        if (tensor.requires_grad() && !tensor.is_leaf())
            raise(PyExc_RuntimeError,
                  "a tensor that requires grad and is not a leaf cannot be sent to another process, "
                  "because its graph stays here; send tensor.detach()");
        if (impl->grad().defined())
            return false;
    }
    return !impl->has_named_tensor_meta() && tensor.dim() <= SHOAL_TORCH_DIMS_MAX &&
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

/* The bytes may come from anyone: nothing in them may lead outside of the block. */
Meta read_meta(const unsigned char *bytes, size_t size, const shoal_block *block)
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
        right = lies_within(header, meta.sizes, meta.strides, static_cast<int64_t>(c10::elementSize(dtype)),
                            shoal_block_size(block));
    }
    if (!right)
        raise(PyExc_ValueError, "the description of a tensor is invalid or does not fit its block");
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
    remember(storage, memory);
    return storage;
}

at::Tensor make_tensor(c10::Storage storage, const Meta &meta)
{
    auto dtype = c10::scalarTypeToTypeMeta(static_cast<c10::ScalarType>(meta.header.dtype));
    auto tensor =
        at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), dtype);
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

int glue_describe(PyObject *obj, unsigned char *meta, size_t capacity, size_t *out_size, shoal_block **out_block)
{
    return guarded(-1, [&] {
        if (capacity < SHOAL_TORCH_META_MAX || !is_plain(obj))
            return 0;
        const at::Tensor &tensor = THPVariable_Unpack(obj);
        *out_block = shoal_block_retain(adopt(tensor.storage())->block());
        *out_size = write_meta(tensor, is_parameter(obj), meta);
        return 1;
    });
}

PyObject *glue_rebuild(const unsigned char *bytes, size_t size, shoal_block *block)
{
    BlockReference reference = {block};
    return guarded<PyObject *>(nullptr, [&] {
        Meta meta = read_meta(bytes, size, block);
        at::Tensor tensor = make_tensor(storage_of(reference), meta);
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

/* Returns the storage of a tensor. Raises TypeError if it is not one whose memory could be in the heap. */
c10::Storage cpu_storage(PyObject *obj)
{
    if (!glue_is_tensor(obj))
        raise(PyExc_TypeError, "a torch.Tensor is needed");
    const at::Tensor &tensor = THPVariable_Unpack(obj);
    if (!tensor.has_storage() || !tensor.device().is_cpu())
        raise(PyExc_TypeError, "the tensor has no storage in the memory of the CPU");
    return tensor.storage();
}

PyObject *method_adopt(PyObject *, PyObject *obj)
{
    return guarded<PyObject *>(nullptr, [&] {
        adopt(cpu_storage(obj));
        Py_INCREF(obj);
        return obj;
    });
}

PyObject *method_is_adopted(PyObject *, PyObject *obj)
{
    return guarded<PyObject *>(
        nullptr, [&] { return PyBool_FromLong(heap_memory(cpu_storage(obj).unsafeGetStorageImpl()) != nullptr); });
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
    std::lock_guard<std::mutex> lock(cache.mutex);
    return PyLong_FromSize_t(cache.entries.size());
}

PyMethodDef methods[] = {
    {"adopt", method_adopt, METH_O,
     "adopt(tensor): moves the storage of a CPU tensor into the heap and returns the tensor."},
    {"is_adopted", method_is_adopted, METH_O, "is_adopted(tensor): whether its storage lies in the heap."},
    {"mirror", method_mirror, METH_O, "mirror(tensor): the bytes of its copy in torch's shared memory, or None."},
    {"set_mirror", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(method_set_mirror)), METH_FASTCALL,
     "set_mirror(tensor, mirror): keeps the storage of mirror as long as that of tensor."},
    {"cached", method_cached, METH_NOARGS, "cached(): the number of living storages in the heap."},
    {},
};

PyModuleDef module_def = {PyModuleDef_HEAD_INIT,
                          "_torch_glue",
                          "Moves the memory of torch's CPU tensors into Shoal's heap (used by shoal.torch).",
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
    auto empty =
        c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), 0, c10::DataPtr(), nullptr, false);
    plain_keys = make_tensor(c10::Storage(std::move(empty)), Meta()).key_set().raw_repr();
    /* A child must not find the lock held by a thread that it does not have. Nothing is called under this lock that
     * takes another, so its place in the order of locks does not matter. */
    int error = pthread_atfork([] { cache.mutex.lock(); }, [] { cache.mutex.unlock(); }, [] { cache.mutex.unlock(); });
    if (error != 0)
        throw std::bad_alloc();
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
