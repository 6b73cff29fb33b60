/* The torch glue: moves the memory of torch's CPU storages into Shoal's heap, and builds tensors over heap blocks.
 * card.h does the same on a GPU.
 *
 * A storage is moved in place. It keeps its identity, only its data pointer is replaced; so views and Parameters
 * follow. The new data pointer belongs to a BlockMemory, which holds the reference to the block and is an
 * at::MapAllocator, because torch takes a storage for shared if its data pointer belongs to one.
 *
 * Only memory that is private to this process is moved. Memory that is in the heap already, such as that of an array of
 * shoal.zeros(), stays there. Memory that torch has shared is never touched: other processes and numpy arrays use it.
 *
 * Tested with torch 1.13 and 2.11; the differences of torch 2 are in `writable_data` (memory.h) and `has_names`.
 */
#include "glue.h"

#include "card.h"
#include "memory.h"

#include <shoal/binding.h>
#include <shoal/block.h>

#include <ATen/MapAllocator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/InferenceMode.h>

#include <malloc.h>

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
    /* Takes over the reference. The storage begins at offset in the block. The base class maps nothing if the size is
     * 0. */
    explicit BlockMemory(shoal_block *block, size_t offset = 0)
        : at::MapAllocator(at::WITH_FD, "", -1, 0, 0), block_(block), id_(shoal_block_id(block)), offset_(offset)
    {
    }

    ~BlockMemory() override
    {
        cache.forget(id_, this);
        shoal_block_release(block_);
    }

    void *data() const override
    {
        return static_cast<char *>(shoal_block_data(block_)) + offset_;
    }

    shoal_block *block() const
    {
        return block_;
    }

    uint64_t id() const
    {
        return id_;
    }

    size_t offset() const
    {
        return offset_;
    }

    /* The memory before the move, if a numpy array may still point into it. */
    c10::DataPtr before;

  private:
    shoal_block *block_;
    uint64_t id_;
    size_t offset_;
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

/* Returns a tensor of all bytes of a storage. */
at::Tensor bytes_of(const c10::Storage &storage);

/* ---- adopt ---- */

/* Owns one reference. */
struct BlockReference {
    shoal_block *block;
    explicit BlockReference(shoal_block *owned) : block(owned)
    {
    }
    BlockReference(BlockReference &&other) noexcept : block(other.give())
    {
    }
    ~BlockReference()
    {
        shoal_block_release(block);
    }
    shoal_block *give()
    {
        return std::exchange(block, nullptr);
    }
};

/* A data pointer whose memory another library uses, too (method_pin). It owns the data pointer before. */
struct PinnedMemory {
    c10::DataPtr before;
    static void free(void *context)
    {
        delete static_cast<PinnedMemory *>(context);
    }
};

bool is_pinned(const c10::StorageImpl *impl)
{
    return impl->data_ptr().get_deleter() == PinnedMemory::free;
}

/* Returns whether torch's own allocator made the memory, and not numpy or another library. */
bool is_torchs_own(c10::StorageImpl *impl)
{
    c10::Allocator *allocator = impl->allocator();
    return allocator && impl->data_ptr().get_deleter() == allocator->raw_deleter();
}

PyObject *call_extension(const char *function, unsigned long long argument)
{
    PyObject *module = PyImport_ImportModule("shoal._shoal");
    PyObject *result = module ? PyObject_CallMethod(module, function, "K", argument) : nullptr;
    Py_XDECREF(module);
    if (!result)
        throw Raised();
    return result;
}

/* Returns whether torch has shared the memory, by an fd or by a file: then the data pointer belongs to a map of
 * torch's. */
bool is_shared_by_torch(const c10::Storage &storage)
{
    const c10::StorageImpl *impl = storage.unsafeGetStorageImpl();
    if (heap_memory(impl) || !impl->data_ptr().get_deleter())
        return false;
    if (at::MapAllocator::fromDataPtr(impl->data_ptr()))
        return true; /* newer versions of torch leave such a storage resizable, so that says nothing */
    if (is_torchs_own(storage.unsafeGetStorageImpl()))
        return false;
    /* A map with a file name belongs to a library of torch without headers, so Python is asked. */
    PyObject *bytes = THPVariable_Wrap(bytes_of(storage));
    PyObject *shared = bytes ? PyObject_CallMethod(bytes, "is_shared", nullptr) : nullptr;
    Py_XDECREF(bytes);
    if (!shared)
        throw Raised();
    bool is = shared == Py_True;
    Py_DECREF(shared);
    return is;
}

/* Returns the block in which the bytes of a storage lie already, or none. What an array got by value is its process's
 * own, also if it lies in a block. */
BlockReference block_around(c10::StorageImpl *impl)
{
    BlockReference reference(nullptr);
    char *data = static_cast<char *>(impl->data_ptr().get());
    if (is_torchs_own(impl) || impl->nbytes() == 0 || !data || shoal_block_find(data, &reference.block) != SHOAL_OK)
        return reference;
    char *end = static_cast<char *>(shoal_block_data(reference.block)) + shoal_block_size(reference.block);
    bool fits = impl->nbytes() <= static_cast<size_t>(end - data);
    PyObject *by_value = call_extension("block_is_by_value", shoal_block_id(reference.block));
    if (!fits || by_value == Py_True) {
        shoal_block_release(reference.block);
        reference.block = nullptr;
    }
    Py_DECREF(by_value);
    return reference;
}

/* Lets a storage whose bytes are in a block hold that block. Nothing moves. */
BlockMemory *hold(const c10::Storage &storage, BlockReference &reference)
{
    c10::StorageImpl *impl = storage.unsafeGetStorageImpl();
    char *data = static_cast<char *>(impl->data_ptr().get());
    size_t offset = static_cast<size_t>(data - static_cast<char *>(shoal_block_data(reference.block)));
    bool whole = offset == 0 && impl->nbytes() == shoal_block_size(reference.block) && !recall(reference.block);
    BlockMemory *memory = new BlockMemory(reference.block, offset);
    reference.give();
    c10::DataPtr pointer = data_pointer(memory);
    if (whole)
        cache.remember(memory->id(), storage, memory);
    impl->set_data_ptr(std::move(pointer));
    return memory;
}

constexpr size_t TRIM_BYTES = size_t{32} << 20; /* a trim takes a fraction of the time that moving so many bytes does */

/* Gives freed memory back to the system from time to time. malloc keeps blocks of some MiB in its arenas, so a program
 * that shares a data set would hold it twice. */
void note_freed(size_t size)
{
    static size_t freed; /* under the interpreter's lock */
    freed += size;
    if (freed >= TRIM_BYTES) {
        freed = 0;
        malloc_trim(0);
    }
}

/* Copies private memory into a new block, which becomes the memory of the storage.
 *
 * A storage that was moved cannot be resized, and memory that a numpy array and the tensor had in common is no longer
 * common: the array keeps the old memory. An array that tensor.numpy() made holds nothing but the tensor, so memory of
 * torch's own allocator is kept as long as the tensor. A storage that can be resized has no array: making one ends
 * that. Memory of numpy or another library belongs to an object of that library, which the storage drops, as torch
 * does. */
BlockMemory *move_to_heap(const c10::Storage &storage)
{
    c10::StorageImpl *impl = storage.unsafeGetStorageImpl();
    size_t size = impl->nbytes();
    const void *data = writable_data(impl);
    BlockReference reference(nullptr);
    shoal_err err = shoal_block_create(size, &reference.block);
    if (err != SHOAL_OK)
        raise_last();
    BlockMemory *memory = new BlockMemory(reference.block);
    reference.give();
    c10::DataPtr pointer = data_pointer(memory);
    if (size > 0)
        std::memcpy(pointer.get(), data, size);
    bool keep = is_pinned(impl) || (!impl->resizable() && is_torchs_own(impl));
    cache.remember(memory->id(), storage, memory);
    c10::DataPtr before = impl->set_data_ptr(std::move(pointer));
    impl->set_resizable(false);
    impl->set_allocator(nullptr);
    if (keep) {
        memory->before = std::move(before);
    } else {
        before.clear();
        note_freed(size);
    }
    return memory;
}

/* Returns the heap memory of a CPU storage, after moving private memory there. Returns NULL for memory that torch has
 * shared: it must stay where it is. */
BlockMemory *adopt(const c10::Storage &storage)
{
    c10::StorageImpl *impl = storage.unsafeGetStorageImpl();
    if (BlockMemory *memory = heap_memory(impl))
        return memory;
    if (is_shared_by_torch(storage))
        return nullptr;
    BlockReference reference = block_around(impl);
    return reference.block ? hold(storage, reference) : move_to_heap(storage);
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

/* The dispatch keys of a plain dense tensor on the CPU, and on a GPU. A tensor with any other key (sparse, quantised,
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

/* Returns whether the dimensions have names. Newer versions of torch have no names any more: then the second function
 * is chosen. */
template <class Impl> auto has_names(const Impl *impl, int) -> decltype(impl->has_named_tensor_meta())
{
    return impl->has_named_tensor_meta();
}

template <class Impl> bool has_names(const Impl *, long)
{
    return false;
}

/* Returns whether the tensor is only strided memory and requires_grad. Raises for a non-leaf that requires grad. A
 * tensor without memory is sent without it: a move would end its right to be resized. */
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
    return !has_names(impl, 0) && tensor.storage().nbytes() > 0 && tensor.dim() <= SHOAL_TORCH_DIMS_MAX &&
           !reinterpret_cast<THPVariable *>(obj)->backward_hooks && !has_attributes(obj);
}

/* begin: where the storage begins in its block. */
size_t write_meta(const at::Tensor &tensor, bool parameter, size_t begin, unsigned char *meta)
{
    size_t item = tensor.dtype().itemsize();
    if (begin % item != 0)
        raise(PyExc_ValueError, "the elements of this tensor are not aligned in shared memory: send tensor.clone()");
    Header header = {};
    header.version = META_VERSION;
    header.dtype = static_cast<uint8_t>(tensor.scalar_type());
    header.flags =
        static_cast<uint8_t>((tensor.requires_grad() ? FLAG_REQUIRES_GRAD : 0) | (parameter ? FLAG_PARAMETER : 0));
    header.dims = static_cast<uint8_t>(tensor.dim());
    header.offset = tensor.storage_offset() + static_cast<int64_t>(begin / item);
    size_t each = header.dims * sizeof(int64_t);
    std::memcpy(meta, &header, sizeof header);
    std::memcpy(meta + sizeof header, tensor.sizes().data(), each);
    std::memcpy(meta + sizeof header + each, tensor.strides().data(), each);
    return sizeof header + 2 * each;
}

/* Returns whether elements of item bytes at these places lie within size bytes. */
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

at::Tensor bytes_of(const c10::Storage &storage)
{
    Meta meta = {};
    meta.header.dtype = static_cast<uint8_t>(c10::ScalarType::Byte);
    meta.header.dims = 1;
    meta.sizes[0] = static_cast<int64_t>(storage.nbytes());
    meta.strides[0] = 1;
    return make_tensor(storage, meta);
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
        if (!tensor.device().is_cpu()) {
            *out_size = write_meta(tensor, is_parameter(obj), 0, meta);
            out_memory->tensor = send_card(tensor.storage());
            return 1;
        }
        BlockMemory *memory = adopt(tensor.storage());
        if (!memory)
            return 0;
        *out_size = write_meta(tensor, is_parameter(obj), memory->offset(), meta);
        out_memory->block = shoal_block_retain(memory->block());
        return 1;
    });
}

PyObject *glue_rebuild(const unsigned char *bytes, size_t size, shoal_torch_memory memory)
{
    BlockReference block(memory.block);
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
        raise(PyExc_TypeError, "the tensor has no storage in the memory of the CPU or of a CUDA GPU");
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
        if (!storage.device().is_cpu())
            adopt_card(storage);
        else
            adopt(storage); /* what torch has shared stays as it is */
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

/* move_to_heap() keeps the old memory of a pinned storage, and of torch's own that cannot be resized; adopt_card()
 * refuses it. */
PyObject *method_pin(PyObject *, PyObject *obj)
{
    return guarded<PyObject *>(nullptr, [&]() -> PyObject * {
        c10::Storage storage = movable_storage(obj);
        c10::StorageImpl *impl = storage.unsafeGetStorageImpl();
        impl->set_resizable(false);
        bool moves = storage.device().is_cpu() && !heap_memory(impl) && !is_shared_by_torch(storage);
        if (moves && !is_torchs_own(impl) && !is_pinned(impl) && impl->data_ptr().get()) {
            auto pinned = std::make_unique<PinnedMemory>();
            void *data = impl->data_ptr().get();
            c10::DataPtr pointer(data, pinned.get(), PinnedMemory::free, impl->device());
            pinned->before = impl->set_data_ptr(std::move(pointer));
            pinned.release();
        }
        Py_RETURN_NONE;
    });
}

/* Returns a tensor of bytes over a new block. */
PyObject *method_empty(PyObject *, PyObject *size)
{
    return guarded<PyObject *>(nullptr, [&]() -> PyObject * {
        size_t bytes = PyLong_AsSize_t(size);
        if (PyErr_Occurred())
            throw Raised();
        BlockReference reference(nullptr);
        if (shoal_block_create(bytes, &reference.block) != SHOAL_OK)
            raise_last();
        return THPVariable_Wrap(bytes_of(storage_of(reference)));
    });
}

PyObject *method_is_shared_by_torch(PyObject *, PyObject *obj)
{
    return guarded<PyObject *>(nullptr, [&] { return PyBool_FromLong(is_shared_by_torch(cpu_storage(obj))); });
}

PyObject *method_has_fd(PyObject *, PyObject *obj)
{
    return guarded<PyObject *>(nullptr, [&] {
        const c10::StorageImpl *impl = cpu_storage(obj).unsafeGetStorageImpl();
        return PyBool_FromLong(!heap_memory(impl) && at::MapAllocator::fromDataPtr(impl->data_ptr()) != nullptr);
    });
}

PyObject *method_cached(PyObject *, PyObject *)
{
    return PyLong_FromSize_t(cache.size() + card_cache.size());
}

PyMethodDef methods[] = {
    {"adopt", method_adopt, METH_O,
     "adopt(tensor): moves its storage into Shoal's memory, of the heap or of the GPU, and returns the tensor."},
    {"is_adopted", method_is_adopted, METH_O, "is_adopted(tensor): whether its storage lies in Shoal's memory."},
    {"pin", method_pin, METH_O, "pin(tensor): others know the address of its memory, which must stay."},
    {"empty", method_empty, METH_O, "empty(size): a tensor of so many bytes in a new block of the heap."},
    {"is_shared_by_torch", method_is_shared_by_torch, METH_O,
     "is_shared_by_torch(tensor): whether torch itself has shared the storage, which then stays where it is."},
    {"has_fd", method_has_fd, METH_O, "has_fd(tensor): whether torch has shared the storage by an fd, not by a file."},
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
