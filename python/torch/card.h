/* The GPU half of the torch glue: torch's CUDA storages over Shoal's GPU memory.
 *
 * A storage is moved in place once: Shoal makes a tensor of bytes of the same size, copies them, and the storage's data
 * pointer is replaced. So views and Parameters follow, and from then on the memory travels by handle. Only memory of
 * torch's own allocator is moved, because others may have kept its address.
 *
 * Torch and Shoal each have a stream. Before a tensor is sent, Shoal's stream waits for torch's current one; when one
 * has arrived, torch's current one waits for Shoal's; and when a storage is freed, Shoal's waits again, so that the
 * memory is not used again too early. None of this calls the driver more than once if nothing is under way.
 *
 * No header of CUDA is needed: the current stream comes from Python, and torch's side of it from c10.
 */
#ifndef SHOAL_TORCH_CARD_H
#define SHOAL_TORCH_CARD_H

#include "memory.h"

#include <shoal/dlpack.h>
#include <shoal/ops.h>
#include <shoal/share.h>

#include <c10/core/Event.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <optional>
#include <utility>

namespace
{

void check(shoal_err err)
{
    if (err != SHOAL_OK)
        raise_last();
}

/* Owns one reference. */
struct TensorReference {
    shoal_tensor *tensor;
    ~TensorReference()
    {
        shoal_tensor_release(tensor);
    }
    shoal_tensor *give()
    {
        return std::exchange(tensor, nullptr);
    }
};

/* Owns a tensor that was made for another library. */
struct PackDeleter {
    void operator()(shoal_dlpack *pack) const
    {
        pack->deleter(pack);
    }
};
using Pack = std::unique_ptr<shoal_dlpack, PackDeleter>;

Pack pack_of(shoal_tensor *tensor)
{
    shoal_dlpack *pack = nullptr;
    check(shoal_tensor_to_dlpack(tensor, 0, &pack));
    return Pack(pack);
}

/* ---- torch's streams ---- */

/* torch's current stream, in torch's words. Nothing in a torch without CUDA. */
std::optional<c10::Stream> current_stream(c10::Device device)
{
    if (!c10::impl::hasDeviceGuardImpl(c10::DeviceType::CUDA))
        return std::nullopt;
    return c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).getStream(device);
}

/* Starts torch's CUDA, and returns its function for the current stream; NULL in a torch without CUDA. */
PyObject *stream_function()
{
    PyObject *module = PyImport_ImportModule("shoal.torch");
    PyObject *function = module ? PyObject_CallMethod(module, "start_cuda", nullptr) : nullptr;
    Py_XDECREF(module);
    if (!function)
        throw Raised();
    if (function != Py_None)
        return function;
    Py_DECREF(function);
    return nullptr;
}

/* The address of torch's current stream; NULL is the default stream. Needs the interpreter's lock. */
void *current_address(c10::Device device)
{
    static PyObject *get;
    static bool known; /* not by the initialiser of a static: others would wait for that with the interpreter's lock */
    if (!known)
        get = stream_function();
    known = true;
    if (!get)
        return nullptr;
    PyObject *address = PyObject_CallFunction(get, "i", static_cast<int>(device.index()));
    void *stream = address ? PyLong_AsVoidPtr(address) : nullptr;
    Py_XDECREF(address);
    if (PyErr_Occurred())
        throw Raised();
    return stream;
}

/* ---- memory ---- */

/* The memory of a storage on the GPU. */
class CardMemory
{
  public:
    /* Takes over the reference if it does not throw. The tensor is shared, and one of bytes. */
    explicit CardMemory(TensorReference &reference)
        : pack_(pack_of(reference.tensor)), id_(shoal_tensor_storage_id(reference.tensor)),
          stream_address_(current_address(device())), stream_(current_stream(device()))
    {
        reference_.tensor = reference.give();
    }

    ~CardMemory()
    {
        card_cache.forget(id_, this);
    }

    CardMemory(const CardMemory &) = delete;
    CardMemory &operator=(const CardMemory &) = delete;

    /* Makes the data pointer that owns this memory. */
    c10::DataPtr data_pointer()
    {
        return {pack_->tensor.data, this, free, device()};
    }

    /* Returns the memory of a storage if it is Shoal's, else NULL. */
    static CardMemory *of(const c10::StorageImpl *storage)
    {
        const c10::DataPtr &data = storage->data_ptr();
        return data.get_deleter() == free ? static_cast<CardMemory *>(data.get_context()) : nullptr;
    }

    c10::Device device() const
    {
        return {c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(pack_->tensor.device.id)};
    }

    shoal_tensor *tensor() const
    {
        return reference_.tensor;
    }

    uint64_t id() const
    {
        return id_;
    }

  private:
    /* torch frees the memory in any thread, also without the interpreter's lock. What torch has enqueued on the stream
     * that first used the memory, and on the current one, comes before Shoal's later work. If that cannot be said
     * (torch captures a graph, or the process is at its end), the memory is given back as it is. */
    static void free(void *context)
    {
        auto *memory = static_cast<CardMemory *>(context);
        try {
            auto now = current_stream(memory->device());
            if (now && memory->stream_ && *now != *memory->stream_) {
                c10::Event event(c10::DeviceType::CUDA);
                event.record(*now);
                event.block(*memory->stream_);
            }
        } catch (const std::exception &) {
        }
        (void)!shoal_cuda_follow_stream(memory->stream_address_);
        delete memory;
    }

    TensorReference reference_ = {nullptr};
    Pack pack_;
    uint64_t id_;
    void *stream_address_;              /* comes first: it starts torch's CUDA */
    std::optional<c10::Stream> stream_; /* the same stream */
};

/* ---- adopt ---- */

/* Returns whether torch's allocator owns the bytes, and nobody else can have kept their address (torch ends resizable()
 * then). */
bool can_move(const c10::StorageImpl *impl)
{
    c10::Allocator *allocator = const_cast<c10::StorageImpl *>(impl)->allocator();
    return impl->resizable() && allocator && impl->data_ptr().get_deleter() == allocator->raw_deleter();
}

void check_can_move(const c10::StorageImpl *impl)
{
    if (!can_move(impl))
        raise(PyExc_RuntimeError,
              "the memory of this CUDA tensor is not of torch's own allocator, and others may use its "
              "address, so it cannot be moved: send tensor.clone()");
}

/* Enqueues a copy of the bytes of a storage to Shoal's memory. */
void copy_bytes(shoal_tensor *to, void *from, int64_t size, c10::Device device)
{
    shoal_dlpack source = {}; /* without a deleter: torch keeps the memory */
    source.version.major = SHOAL_DLPACK_MAJOR;
    source.tensor.data = from;
    source.tensor.device = {SHOAL_DLPACK_CUDA, device.index()};
    source.tensor.ndim = 1;
    source.tensor.dtype = {SHOAL_DLPACK_UINT, 8, 1};
    source.tensor.shape = &size;
    TensorReference bytes = {shoal_tensor_from_dlpack(&source)};
    size_t mark = shoal_scope_mark();
    shoal_tensor *place = bytes.tensor ? shoal_narrow(to, 0, 0, size) : nullptr;
    shoal_tensor *done = place ? shoal_copy_(place, bytes.tensor) : nullptr;
    shoal_scope_release(mark);
    if (!done)
        raise_last();
}

/* Makes a call of the library that may wait, without the interpreter's lock, which the thread has. */
template <class Call> auto unlocked(Call call)
{
    PyThreadState *state = PyEval_SaveThread();
    auto result = call();
    PyEval_RestoreThread(state);
    return result;
}

/* Returns a new tensor of bytes on the GPU. If there is no room, torch gives back what it keeps for later. */
shoal_tensor *empty_bytes(int64_t size)
{
    auto make = [&] { return shoal_empty_on(SHOAL_CUDA, SHOAL_U8, 1, &size); };
    shoal_tensor *bytes = unlocked(make);
    if (!bytes && shoal_last_error() == SHOAL_ENOMEM) {
        PyObject *module = PyImport_ImportModule("torch.cuda");
        PyObject *none = module ? PyObject_CallMethod(module, "empty_cache", nullptr) : nullptr;
        Py_XDECREF(module);
        if (!none)
            throw Raised();
        Py_DECREF(none);
        bytes = unlocked(make);
    }
    if (!bytes)
        raise_last();
    return bytes;
}

/* Refuses a storage on a GPU that Shoal does not use in this process. */
void check_card(c10::Device device, int used)
{
    if (device.index() != used)
        raise(
            PyExc_RuntimeError,
            "the tensor is on another GPU than the one that Shoal uses in this process, which is the first, or number "
            "SHOAL_CUDA_DEVICE: set SHOAL_CUDA_DEVICE, or send tensor.cpu()");
}

/* The number of the GPU that Shoal will use, if it is not open yet. The library says so if this is no number. */
int card_to_use()
{
    const char *number = std::getenv("SHOAL_CUDA_DEVICE");
    if (!number)
        number = std::getenv("SHOAL_CARD"); /* its name in 0.2 */
    return number ? std::atoi(number) : 0;
}

/* Moves a storage to Shoal's GPU memory, unless it is there. Returns its memory.
 *
 * Other threads may run until the memory is there, and may move or resize the same storage. So it is looked at again
 * then, and from there on no other thread of Python runs. */
CardMemory *adopt_card(const c10::Storage &storage)
{
    c10::StorageImpl *impl = storage.unsafeGetStorageImpl();
    if (CardMemory *memory = CardMemory::of(impl))
        return memory;
    check_card(impl->device(), card_to_use());
    void *stream = current_address(impl->device());
    check(shoal_cuda_follow_stream(stream)); /* refuses a capture, before anything is done */
    writable_data(impl);                     /* a lazy copy gets memory of its own, which can be moved */
    check_can_move(impl);
    int64_t room = std::max<int64_t>(static_cast<int64_t>(impl->nbytes()), 1);
    TensorReference reference = {empty_bytes(room)};
    check(unlocked([&] { return shoal_tensor_share(reference.tensor); }));
    if (PyErr_Occurred()) /* the handler of a signal has raised meanwhile */
        throw Raised();
    auto memory = std::make_unique<CardMemory>(reference);
    check_card(impl->device(), memory->device().index());

    if (CardMemory *other = CardMemory::of(impl))
        return other;
    void *data = writable_data(impl);
    int64_t size = static_cast<int64_t>(impl->nbytes());
    check_can_move(impl);
    if (size > room)
        raise(PyExc_RuntimeError, "another thread has resized the tensor while it was moved");
    check(shoal_cuda_follow_stream(stream));
    if (size > 0)
        copy_bytes(memory->tensor(), data, size, impl->device());
    check(shoal_cuda_precede_stream(stream)); /* before torch uses its old memory for something else */
    card_cache.remember(memory->id(), storage, memory.get());
    CardMemory *moved = memory.get();
    c10::DataPtr before = impl->set_data_ptr(memory.release()->data_pointer());
    if (auto now = current_stream(impl->device()))
        c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).recordDataPtrOnStream(before, *now);
    impl->set_resizable(false);
    impl->set_allocator(nullptr);
    return moved;
}

/* Before memory is sent: what torch has enqueued so far comes before what its receiver does. */
shoal_tensor *send_card(const c10::Storage &storage)
{
    CardMemory *memory = adopt_card(storage);
    check(shoal_cuda_follow_stream(current_address(memory->device())));
    return shoal_tensor_retain(memory->tensor());
}

/* ---- receive ---- */

/* Returns the number of bytes of a tensor that send_card sent. It may come from anyone. */
size_t card_size(const shoal_tensor *tensor)
{
    if (shoal_tensor_device(tensor) != SHOAL_CUDA || shoal_tensor_dtype(tensor) != SHOAL_U8 ||
        shoal_tensor_ndim(tensor) != 1 || !shoal_tensor_is_contiguous(tensor) || shoal_tensor_offset(tensor) != 0)
        raise(PyExc_ValueError, "the message has no bytes of a GPU for this tensor");
    return static_cast<size_t>(shoal_tensor_count(tensor));
}

/* Returns the storage of a tensor of bytes that has arrived: the living one, or a new one. */
c10::Storage storage_on_card(TensorReference &reference)
{
    check(shoal_tensor_share(reference.tensor)); /* what was received is shared; only then does it have its number */
    uint64_t id = shoal_tensor_storage_id(reference.tensor);
    c10::intrusive_ptr<c10::StorageImpl> living = card_cache.recall(id);
    CardMemory *memory = living ? CardMemory::of(living.get()) : nullptr;
    if (memory && memory->id() == id) {
        check(shoal_cuda_precede_stream(current_address(memory->device())));
        return c10::Storage(std::move(living));
    }
    size_t size = card_size(reference.tensor);
    auto fresh = std::make_unique<CardMemory>(reference);
    check(shoal_cuda_precede_stream(current_address(fresh->device())));
    memory = fresh.get();
    c10::Storage storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), size,
                                                               fresh.release()->data_pointer(), /*allocator=*/nullptr,
                                                               /*resizable=*/false));
    card_cache.remember(id, storage, memory);
    return storage;
}

} // namespace

#endif
