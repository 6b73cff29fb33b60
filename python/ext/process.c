/* Processes: fork, start another Python, and the handle of a child. shoal/multiprocessing/popen_*.py builds on it. */
#include "codec.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- the death of the parent ----
 *
 * A child gets DEATH_SIGNAL when its parent dies, and SIGKILL LAST_MOMENT later. In between it can see that its parent
 * is gone. Its own children go through the same once it is dead, so a grandchild is gone after twice that time.
 *
 * To the world, a process that executes another program is dead, too, and the same happens. Whoever looks for the child
 * then finds a parent that runs, so the child says why it ends. */
#define DEATH_SIGNAL (SIGRTMAX - 1)
#define LAST_MOMENT_NS 300000000
#define DYING 4 /* PF_EXITING of the kernel */

static timer_t death_timer;
static volatile pid_t death_timer_owner; /* a fork does not inherit the timer */
static volatile sig_atomic_t parent_died;
static pid_t parent;

/* Returns whether the parent still runs. Called in a signal handler. A dying process closes its files, which sends the
 * signal, before it leaves its children: its flags in /proc say that it is dying. */
static int parent_runs(void)
{
    char path[32], text[512];
    unsigned long flags = 0;
    if (parent <= 1 || getppid() != parent) {
        return 0;
    }
    snprintf(path, sizeof path, "/proc/%d/stat", (int)parent);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    if (fd >= 0) {
        close(fd);
    }
    text[n > 0 ? n : 0] = 0;
    const char *rest = strrchr(text, ')'); /* a name may have any characters */
    return rest != NULL && sscanf(rest, ") %*c %*d %*d %*d %*d %*d %lu", &flags) == 1 && (flags & DYING) == 0;
}

static void say_why(void)
{
    char text[160];
    int n = snprintf(text, sizeof text,
                     "shoal: process %d ends because its parent, process %d, has executed another program; "
                     "a process with outlive=True goes on\n",
                     (int)getpid(), (int)parent);
    ssize_t ignored = write(STDERR_FILENO, text, (size_t)n);
    (void)ignored;
}

/* The signal may come more than once; the first one counts. */
static void on_death_of_parent(int number)
{
    static const struct itimerspec moment = {.it_value.tv_nsec = LAST_MOMENT_NS};
    (void)number;
    if (parent_died) {
        return;
    }
    parent_died = 1;
    if (parent_runs()) {
        say_why();
    }
    if (death_timer_owner != getpid() || timer_settime(death_timer, 0, &moment, NULL) != 0) {
        kill(getpid(), SIGKILL);
    }
}

/* Prepares for DEATH_SIGNAL in a child. Until then, and if there is no timer, the signal ends the process at once. */
static void prepare_for_death_of_parent(void)
{
    if (death_timer_owner == getpid()) {
        return;
    }
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGKILL};
    struct sigaction action = {.sa_handler = on_death_of_parent, .sa_flags = SA_RESTART};
    sigset_t set;
    parent_died = 0;
    parent = getppid();
    sigemptyset(&set);
    sigaddset(&set, DEATH_SIGNAL);
    if (timer_create(CLOCK_MONOTONIC, &event, &death_timer) == 0) {
        death_timer_owner = getpid();
        sigaction(DEATH_SIGNAL, &action, NULL);
    } else {
        signal(DEATH_SIGNAL, SIG_DFL);
    }
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
}

/* ---- handles ---- */

typedef struct process_object {
    PyObject_HEAD shoal_process *process;
} process_object;

static PyTypeObject *process_type;

/* Handles of processes that still run though nobody uses the handle any more. To destroy such a handle would end its
 * process, so it is done when the process has ended. */
typedef struct left_handle {
    struct left_handle *next;
    shoal_process *process;
} left_handle;

static left_handle *left;

static int has_ended(shoal_process *process)
{
    return shoal_process_sentinel(process) < 0 /* a fork of the parent */ ||
           shoal_process_join(process, SHOAL_NOW, NULL) == SHOAL_OK;
}

static void destroy_left_handles(void)
{
    for (left_handle **link = &left; *link != NULL;) {
        left_handle *handle = *link;
        if (has_ended(handle->process)) {
            *link = handle->next;
            shoal_process_destroy(handle->process);
            free(handle);
        } else {
            link = &handle->next;
        }
    }
}

static void drop_handle(shoal_process *process)
{
    if (has_ended(process)) {
        shoal_process_destroy(process);
        return;
    }
    left_handle *handle = malloc(sizeof *handle);
    if (handle != NULL) { /* else the handle stays until this process ends */
        *handle = (left_handle){.next = left, .process = process};
        left = handle;
    }
}

PyObject *ext_process_wrap(shoal_process *process)
{
    process_object *self = PyObject_New(process_object, process_type);
    if (self == NULL) {
        drop_handle(process);
        return NULL;
    }
    self->process = process;
    return (PyObject *)self;
}

static void process_dealloc(PyObject *obj)
{
    PyTypeObject *type = Py_TYPE(obj);
    drop_handle(((process_object *)obj)->process);
    PyObject_Free(obj);
    Py_DECREF(type);
}

shoal_process *ext_process_handle(PyObject *obj)
{
    if (!PyObject_TypeCheck(obj, process_type)) {
        PyErr_SetString(PyExc_TypeError, "it is not a Process");
        return NULL;
    }
    return ((process_object *)obj)->process;
}

static shoal_process *handle_of(PyObject *self)
{
    return ((process_object *)self)->process;
}

/* The exit code as Python counts it. 255 if something else took the exit status, as multiprocessing has it. */
static PyObject *exit_code(const shoal_status *status)
{
    switch (status->end) {
    case SHOAL_PROCESS_RETURNED: return PyLong_FromLong(0);
    case SHOAL_PROCESS_FAILED: return PyLong_FromLong(1);
    case SHOAL_PROCESS_KILLED: return PyLong_FromLong(-status->code);
    default: return PyLong_FromLong(status->code >= 0 ? status->code : 255);
    }
}

static PyObject *process_join(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    static ext_name names[] = {EXT_NAME("timeout")};
    PyObject *seconds;
    int64_t timeout;
    shoal_status status;
    if (ext_arguments("join", args, nargs, kwnames, names, 1, 0, &seconds) != 0 ||
        ext_timeout(seconds, &timeout) != 0) {
        return NULL;
    }
    shoal_err err = shoal_process_join(handle_of(self), SHOAL_NOW, &status);
    if (err == SHOAL_ETIMEDOUT && timeout != SHOAL_NOW) {
        EXT_WAIT(err, shoal_process_join(handle_of(self), timeout, &status));
    }
    if (err == SHOAL_ETIMEDOUT) {
        Py_RETURN_NONE;
    }
    return err == SHOAL_OK ? exit_code(&status) : ext_raise(err);
}

static PyObject *process_poll(PyObject *self, PyObject *unused)
{
    (void)unused;
    shoal_status status;
    shoal_err err = shoal_process_join(handle_of(self), SHOAL_NOW, &status);
    if (err == SHOAL_OK) {
        return exit_code(&status);
    }
    if (err == SHOAL_ETIMEDOUT || err == SHOAL_ESTATE) {
        Py_RETURN_NONE;
    }
    return ext_raise(err);
}

static PyObject *process_signal(PyObject *self, PyObject *number)
{
    long signal_number = PyLong_AsLong(number);
    if (signal_number == -1 && PyErr_Occurred() != NULL) {
        return NULL;
    }
    shoal_err err = shoal_process_signal(handle_of(self), (int)signal_number);
    if (err != SHOAL_OK && err != SHOAL_ESTATE) { /* ESTATE: it has ended */
        return ext_raise(err);
    }
    Py_RETURN_NONE;
}

static PyObject *process_pid(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromLong(shoal_process_pid(handle_of(self)));
}

static PyObject *process_sentinel(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromLong(shoal_process_sentinel(handle_of(self)));
}

/* ---- fork ---- */

static void before_fork(void *context)
{
    (void)context;
    PyOS_BeforeFork();
}

static void after_fork_in_parent(void *context)
{
    (void)context;
    PyOS_AfterFork_Parent();
}

static void after_fork_in_child(void *context)
{
    const shoal_process_options *options = context;
    if (options->death_signal != 0) {
        prepare_for_death_of_parent();
    }
    PyOS_AfterFork_Child();
}

static PyObject *fork_process(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"name", "outlive", NULL};
    const char *name = NULL;
    int outlive = 0;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|zp", names, &name, &outlive)) {
        return NULL;
    }
    destroy_left_handles();
    shoal_process_options process_options = {
        .name = name, .outlive = outlive, .death_signal = outlive ? 0 : DEATH_SIGNAL};
    const shoal_fork_options options = {
        .before = before_fork,
        .after_parent = after_fork_in_parent,
        .after_child = after_fork_in_child,
        .context = &process_options,
        .process = &process_options,
    };
    shoal_process *process;
    shoal_err err = shoal_fork(&options, &process);
    if (err != SHOAL_OK) {
        return ext_raise(err);
    }
    if (process == NULL) { /* this is the child */
        Py_RETURN_NONE;
    }
    return ext_process_wrap(process);
}

/* ---- another Python ---- */

/* The numbers of a sequence, for the program that is started next. Returns NULL with an exception on failure. */
static int *numbers_of(PyObject *fds, size_t *out_count)
{
    Py_ssize_t count = PySequence_Size(fds);
    int *numbers = count >= 0 ? calloc((size_t)count + 1, sizeof *numbers) : NULL;
    if (count >= 0 && numbers == NULL) {
        PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; numbers != NULL && i < count; i++) {
        PyObject *number = PySequence_GetItem(fds, i);
        numbers[i] = number != NULL ? (int)PyLong_AsLong(number) : -1;
        Py_XDECREF(number);
        if (PyErr_Occurred() != NULL) {
            free(numbers);
            return NULL;
        }
    }
    *out_count = numbers != NULL ? (size_t)count : 0;
    return numbers;
}

char **ext_argv(PyObject *words, PyObject **out_texts)
{
    Py_ssize_t count = PySequence_Size(words);
    char **argv = count >= 0 ? calloc((size_t)count + 1, sizeof *argv) : NULL;
    PyObject *texts = argv != NULL ? PyList_New(0) : NULL;
    int ok = texts != NULL;
    for (Py_ssize_t i = 0; ok && i < count; i++) {
        PyObject *text = NULL;
        PyObject *word = PySequence_GetItem(words, i);
        ok = word != NULL && PyUnicode_FSConverter(word, &text) && PyList_Append(texts, text) == 0;
        argv[i] = ok ? PyBytes_AsString(text) : NULL;
        Py_XDECREF(word);
        Py_XDECREF(text);
    }
    if (!ok) {
        if (PyErr_Occurred() == NULL) {
            PyErr_NoMemory();
        }
        Py_XDECREF(texts);
        free(argv);
        return NULL;
    }
    *out_texts = texts;
    return argv;
}

typedef struct program_arguments {
    PyObject *path, *words, *data, *objects, *fds;
    shoal_process_options options;
} program_arguments;

static shoal_process *start_with(program_arguments *a)
{
    shoal_process *process = NULL;
    PyObject *texts;
    char **argv = ext_argv(a->words, &texts);
    if (argv == NULL) {
        return NULL;
    }
    int *fds = numbers_of(a->fds, &a->options.fd_count);
    a->options.fds = a->options.fd_count > 0 ? fds : NULL;
    shoal_value *value = fds != NULL ? ext_pickle_value(a->data, a->objects) : NULL;
    if (value != NULL) {
        const char *path = PyBytes_AsString(a->path);
        shoal_err err;
        if (a->options.start == SHOAL_START_FORKSERVER) { /* waits for the server */
            Py_BEGIN_ALLOW_THREADS;
            err = shoal_process_start_program(path, argv, value, &a->options, &process);
            Py_END_ALLOW_THREADS;
        } else {
            err = shoal_process_start_program(path, argv, value, &a->options, &process);
        }
        if (err != SHOAL_OK) {
            ext_raise_missing(err);
        }
    }
    Py_DECREF(texts);
    free(fds);
    free(argv);
    return process;
}

static PyObject *start_program(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"path", "argv", "data", "objects", "fds", "name", "outlive", "by_server", NULL};
    program_arguments a = {.path = NULL};
    int outlive = 0, by_server = 0;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O&OOO!O|zpp", names, PyUnicode_FSConverter, &a.path, &a.words,
                                     &a.data, &PyList_Type, &a.objects, &a.fds, &a.options.name, &outlive,
                                     &by_server)) {
        return NULL;
    }
    a.options.start = by_server ? SHOAL_START_FORKSERVER : SHOAL_START_SPAWN;
    a.options.outlive = outlive;
    a.options.death_signal = outlive ? 0 : DEATH_SIGNAL;
    destroy_left_handles();
    shoal_process *process = start_with(&a);
    Py_DECREF(a.path);
    return process != NULL ? ext_process_wrap(process) : NULL;
}

/* Makes (data, objects) of the arguments of this process. */
static PyObject *message_of(const shoal_value *args)
{
    uint32_t tag = 0;
    size_t size = 0;
    const shoal_value *pickle = shoal_value_type(args) == SHOAL_TYPE_LIST ? shoal_value_at(args, 0) : args;
    const void *bytes = shoal_value_as_foreign(pickle, &tag, &size);
    if (bytes == NULL || tag != CODEC_PICKLE) {
        PyErr_SetString(ext_error, "the parent did not start this process as a Python process");
        return NULL;
    }
    PyObject *objects = ext_objects_of(args);
    return objects != NULL ? Py_BuildValue("(y#N)", (const char *)bytes, (Py_ssize_t)size, objects) : NULL;
}

static PyObject *child_begin(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    const shoal_value *args;
    shoal_err err = shoal_child_begin(NULL, &args);
    if (err != SHOAL_OK) {
        return ext_raise(err);
    }
    prepare_for_death_of_parent();
    return message_of(args);
}

/* ---- the fork server ---- */

static PyObject *fork_server_begin(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    shoal_process_options process_options = {.death_signal = DEATH_SIGNAL};
    const shoal_fork_options hooks = {
        .before = before_fork,
        .after_parent = after_fork_in_parent,
        .after_child = after_fork_in_child,
        .context = &process_options,
    };
    const shoal_value *args;
    shoal_err err = shoal_fork_server_begin(&hooks, NULL, &args);
    if (err == SHOAL_END) {
        Py_RETURN_NONE;
    }
    return err == SHOAL_OK ? message_of(args) : ext_raise(err);
}

static PyObject *fork_server_pid(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    return PyLong_FromLong(shoal_fork_server_pid());
}

static PyObject *fork_server_stop(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    Py_BEGIN_ALLOW_THREADS;
    shoal_fork_server_stop();
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

/* ---- the module ---- */

static int add_process_type(PyObject *module)
{
    static PyMethodDef methods[] = {
        {"join", (PyCFunction)(void (*)(void))process_join, METH_FASTCALL | METH_KEYWORDS,
         "join(timeout=None): waits until the process has ended. Returns its exit code, or None after the timeout."},
        {"poll", process_poll, METH_NOARGS, "Returns the exit code, or None while the process runs."},
        {"send_signal", process_signal, METH_O, "Sends a signal. Does nothing if the process has ended."},
        {NULL, NULL, 0, NULL},
    };
    static PyGetSetDef properties[] = {
        {"pid", process_pid, NULL, "The process ID.", NULL},
        {"sentinel", process_sentinel, NULL,
         "A file descriptor that is readable once the process has ended. The handle owns it.", NULL},
        {NULL, NULL, NULL, NULL, NULL},
    };
    static PyType_Slot slots[] = {
        {Py_tp_doc, "The handle of a child process. A process whose handle is dropped continues."},
        {Py_tp_dealloc, process_dealloc},
        {Py_tp_methods, methods},
        {Py_tp_getset, properties},
        {0, NULL},
    };
    static PyType_Spec spec = {
        .name = "shoal._shoal.Process",
        .basicsize = sizeof(process_object),
        .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
        .slots = slots,
    };
    process_type = (PyTypeObject *)PyType_FromSpec(&spec);
    return process_type != NULL ? PyModule_AddType(module, process_type) : -1;
}

int ext_add_process(PyObject *module)
{
    static PyMethodDef functions[] = {
        {"fork", (PyCFunction)(void (*)(void))fork_process, METH_VARARGS | METH_KEYWORDS,
         "fork(name=None, outlive=False): forks this process within its world. Returns a Process in the parent and "
         "None "
         "in the child."},
        {"start_program", (PyCFunction)(void (*)(void))start_program, METH_VARARGS | METH_KEYWORDS,
         "start_program(path, argv, data, objects, fds, name=None, outlive=False, by_server=False): starts a Python "
         "that "
         "calls child_begin() and inherits fds. Returns a Process and does not wait for it. by_server: the program is "
         "a "
         "fork server, which calls fork_server_begin() and forks the child; fds are for the server."},
        {"child_begin", child_begin, METH_NOARGS,
         "Joins the world of the parent that called start_program(). Returns its data (bytes) and objects (a list)."},
        {"fork_server_begin", fork_server_begin, METH_NOARGS,
         "Serves as a fork server. Returns the data and objects in each child, and None in the server at its end."},
        {"fork_server_pid", fork_server_pid, METH_NOARGS,
         "Returns the process ID of the fork server; 0 if there is none."},
        {"fork_server_stop", fork_server_stop, METH_NOARGS, "Ends the fork server. Its children continue."},
        {NULL, NULL, 0, NULL},
    };
    if (PyModule_AddIntConstant(module, "DEATH_SIGNAL", DEATH_SIGNAL) != 0) {
        return -1;
    }
    return add_process_type(module) == 0 ? PyModule_AddFunctions(module, functions) : -1;
}
