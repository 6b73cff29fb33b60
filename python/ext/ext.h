/* What the files of the extension module shoal._shoal share.
 *
 * The module is built against the limited API of Python 3.11 and the public headers of the library. There is one
 * interpreter (module.c refuses others), so the module's state is in C globals.
 *
 * Functions that return a PyObject * or an int follow Python: NULL or -1 means that an exception is set.
 */
#ifndef SHOAL_PYTHON_EXT_H
#define SHOAL_PYTHON_EXT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <shoal/binding.h>
#include <shoal/shoal.h>

/* ---- errors.c ---- */

/* shoal.Error, a RuntimeError; shoal.Closed, an Error; and Full and Empty of the module queue. */
extern PyObject *ext_error, *ext_closed, *ext_full, *ext_empty;

/* Sets the exception for an error of the library, with the library's text, and returns NULL. After SHOAL_EINTR the
 * exception of the signal handler stays. */
PyObject *ext_raise(shoal_err err);

/* The same for a call that was given the name of a file, a program or a world: if there is none, FileNotFoundError. */
PyObject *ext_raise_missing(shoal_err err);

/* ---- wait.c: calls that wait ---- */

/* Converts a timeout in seconds to nanoseconds. None, or NULL for an argument that was not given, means no limit. A
 * negative timeout is 0. Returns -1 and sets TypeError or ValueError (NaN) otherwise. */
int ext_timeout(PyObject *seconds, int64_t *out_timeout);

/* Lets signals end the waits of this thread, if Python runs signal handlers in it. */
void ext_let_signals_end_waits(void);

/* Takes the exception that is set and raises it in the main thread before its next instructions of Python, as one of a
 * signal handler is. */
void ext_raise_later(void);

/* Makes a call of the library that may wait, without the interpreter's lock. A call should be tried before without
 * waiting, where that is cheap. SHOAL_EINTR means that a signal handler has raised; ext_raise passes that on. If the
 * call succeeds although a handler has raised, the exception follows as soon as the method has returned. */
#define EXT_WAIT(err, call)                                                                                            \
    do {                                                                                                               \
        ext_let_signals_end_waits();                                                                                   \
        Py_BEGIN_ALLOW_THREADS;                                                                                        \
        (err) = (call);                                                                                                \
        Py_END_ALLOW_THREADS;                                                                                          \
        if ((err) != SHOAL_EINTR && PyErr_Occurred() != NULL) {                                                        \
            ext_raise_later();                                                                                         \
        }                                                                                                              \
    } while (0)

/* Makes a call that may wait as long as that timeout: first without waiting, which is cheaper with the interpreter's
 * lock. `call` has `limit` for its own timeout. The handle is retained, because another thread may close it
 * meanwhile. */
#define EXT_TRY(err, noun, handle, timeout, call)                                                                      \
    do {                                                                                                               \
        int64_t limit = SHOAL_NOW;                                                                                     \
        (err) = (call);                                                                                                \
        if ((err) == SHOAL_ETIMEDOUT && (timeout) != SHOAL_NOW) {                                                      \
            limit = (timeout);                                                                                         \
            shoal_##noun##_retain(handle);                                                                             \
            EXT_WAIT(err, call);                                                                                       \
            shoal_##noun##_release(handle);                                                                            \
        }                                                                                                              \
    } while (0)

/* ---- arguments.c: arguments of METH_FASTCALL | METH_KEYWORDS methods ---- */

/* The name of an argument. Names in calls are mostly interned strings: these are found by their address. */
typedef struct ext_name {
    const char *text;
    PyObject *interned; /* made at the first use; lives as long as the process */
} ext_name;

#define EXT_NAME(name)                                                                                                 \
    {                                                                                                                  \
        .text = (name)                                                                                                 \
    }

/* Reads arguments by position and by name. names has count names, and out_values gets count borrowed references, NULL
 * for one that is missing. required is the number of those that must be there. */
int ext_arguments(const char *method, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, ext_name *names,
                  Py_ssize_t count, Py_ssize_t required, PyObject **out_values);

/* Reads (block=True, timeout=None) as multiprocessing means them. block may be NULL. *out_timeout is SHOAL_NOW if block
 * is false. */
int ext_block_and_timeout(PyObject *block, PyObject *timeout, int64_t *out_timeout);

/* ---- shared.c: wrappers of shared objects ---- */

/* A Python object that holds one reference to a shared object. Each type for one kind of object (Queue, Lock, Block)
 * is a subtype of _shoal.Shared and has this struct at its beginning. Python classes may inherit from them. */
typedef struct ext_shared {
    PyObject_HEAD PyObject *weak; /* for weak references */
    shoal_kind kind;
    void *handle;                             /* shoal_queue * and so on; NULL once it was closed */
    void (*closing)(struct ext_shared *self); /* called before the handle is released; may be NULL */
} ext_shared;

extern PyTypeObject *ext_shared_type;

/* Makes a type for one kind of object, adds it to the module and remembers it for ext_shared_new. slots may have
 * Py_tp_new, methods and so on, but no Py_tp_dealloc: the base type releases the handle. size is that of the struct,
 * which begins with ext_shared. */
PyTypeObject *ext_shared_type_add(PyObject *module, const char *name, shoal_kind kind, size_t size, PyType_Slot *slots);

/* Makes an object of a type (one of ext_shared_type_add or a Python class that inherits from it) around a handle, and
 * takes over the caller's reference of the handle, after a failure too. */
PyObject *ext_shared_new(PyTypeObject *type, void *handle);

/* Returns the handle of an object of a kind. Sets TypeError if obj is something else, and ValueError if it was
 * closed. */
void *ext_shared_handle(PyObject *obj, shoal_kind kind);

/* Makes a value with the shared object of a wrapper. NULL and an exception on failure. */
shoal_value *ext_shared_value(PyObject *obj);

/* Makes a wrapper of the base type of its kind from a value that contains a shared object. */
PyObject *ext_shared_from_value(const shoal_value *value);

/* Releases the handle now. Does nothing if that was done before. */
void ext_shared_close(ext_shared *self);

/* ---- block.c ---- */

/* Makes a Block around a handle and takes over the caller's reference. by_value: the bytes are private to the receiver,
 * and a forked child gets a copy of them. */
PyObject *ext_block_new(shoal_block *block, int by_value);
int ext_block_is_by_value(PyObject *block);

/* ---- codec.c: Python objects as values ---- */

/* Makes a value from any Python object. The caller owns it. NULL and an exception if it cannot be pickled. */
shoal_value *ext_encode(PyObject *obj);

/* Makes the Python object of a value, and destroys the value, after a failure too. */
PyObject *ext_decode(shoal_value *value);

/* Makes the Python object of a member of a value. The caller keeps the value. */
PyObject *ext_decode_part(const shoal_value *part);

/* ---- process.c ---- */

/* Makes a Process around a handle, which it takes over. */
PyObject *ext_process_wrap(shoal_process *process);

/* Returns the handle of a Process; NULL and TypeError for anything else. */
shoal_process *ext_process_handle(PyObject *obj);

/* Makes argv of a sequence of strings. The caller frees argv and drops *out_texts, which owns the bytes. */
char **ext_argv(PyObject *words, PyObject **out_texts);

/* ---- the parts of the module: each adds its types and functions ---- */

int ext_add_errors(PyObject *module);
int ext_add_waits(PyObject *module);
int ext_add_shared(PyObject *module);
int ext_add_block(PyObject *module);
int ext_add_codec(PyObject *module);
int ext_add_queue(PyObject *module);
int ext_add_pipe(PyObject *module);
int ext_add_sync(PyObject *module);
int ext_add_process(PyObject *module);
int ext_add_program(PyObject *module);
int ext_add_tensor(PyObject *module);
int ext_add_world(PyObject *module);
int ext_add_pool(PyObject *module);

#endif
