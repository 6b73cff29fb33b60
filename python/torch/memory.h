/* What the two kinds of memory of the torch glue share: blocks of the heap (glue.cpp) and GPU memory (card.h). */
#ifndef SHOAL_TORCH_MEMORY_H
#define SHOAL_TORCH_MEMORY_H

#include <Python.h>

#include <shoal/error.h>

#include <c10/core/Storage.h>
#include <torch/version.h>

#include <pthread.h>

#include <mutex>
#include <new>
#include <unordered_map>

namespace
{

/* ---- errors ---- */

/* A Python exception is set. */
struct Raised {
};

[[noreturn]] void raise(PyObject *exception, const char *text)
{
    PyErr_SetString(exception, text);
    throw Raised();
}

/* Raises what the extension raises for the library's last error. If a signal's handler has ended a wait, its exception
 * is set already. */
[[noreturn]] void raise_last()
{
    PyObject *module = PyErr_Occurred() ? nullptr : PyImport_ImportModule("shoal._shoal");
    if (module)
        Py_XDECREF(PyObject_CallMethod(module, "raise_last", nullptr));
    Py_XDECREF(module);
    throw Raised();
}

/* ---- storages ---- */

/* The living storages by the number of what they lie in: what arrives again becomes the same storage.
 *
 * An entry is removed when the memory of its storage is freed, before the block is released. So an entry never
 * outlives its block, whose number could then be used again. Memory is freed by any thread, also without the
 * interpreter's lock. Destructors of the process do not free the map: storages may be freed after them. */
class Cache
{
  public:
    void remember(uint64_t id, const c10::Storage &storage, const void *memory)
    {
        Entry fresh = {memory, storage.getWeakStorageImpl()};
        std::lock_guard<std::mutex> lock(mutex);
        auto added = entries.emplace(id, fresh);
        if (!added.second)
            std::swap(added.first->second, fresh); /* the old one dies in another thread, or has other memory by now */
    }

    /* Returns the living storage, or NULL. It may have other memory by now. */
    c10::intrusive_ptr<c10::StorageImpl> recall(uint64_t id)
    {
        c10::intrusive_ptr<c10::StorageImpl> storage;
        std::lock_guard<std::mutex> lock(mutex);
        auto entry = entries.find(id);
        if (entry != entries.end())
            storage = entry->second.storage.lock();
        return storage;
    }

    void forget(uint64_t id, const void *memory)
    {
        decltype(entries)::node_type gone; /* is destroyed after the lock is released */
        std::lock_guard<std::mutex> lock(mutex);
        auto entry = entries.find(id);
        if (entry != entries.end() && entry->second.memory == memory)
            gone = entries.extract(entry);
    }

    size_t size()
    {
        std::lock_guard<std::mutex> lock(mutex);
        return entries.size();
    }

    std::mutex mutex;

  private:
    struct Entry {
        const void *memory;
        c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    };
    std::unordered_map<uint64_t, Entry> entries;
};

Cache &cache = *new Cache;      /* by the number of a block */
Cache &card_cache = *new Cache; /* by the number of a GPU tensor's storage */

/* A child must not find a lock held by a thread that it does not have. Nothing is called under these locks that takes
 * another, so their place in the order of locks does not matter. */
void keep_caches_over_forks()
{
    auto lock = [] {
        cache.mutex.lock();
        card_cache.mutex.lock();
    };
    auto unlock = [] {
        card_cache.mutex.unlock();
        cache.mutex.unlock();
    };
    if (pthread_atfork(lock, unlock, unlock) != 0)
        throw std::bad_alloc();
}

/* The bytes of a storage. In torch 2 a storage may be a lazy copy, which shares the memory of another one until
 * someone wants to write. */
void *writable_data(c10::StorageImpl *storage)
{
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 1)
    return storage->mutable_data_ptr().get();
#else
    return storage->data_ptr().get();
#endif
}

} // namespace

#endif
