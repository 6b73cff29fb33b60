#!/usr/bin/env python3
"""What a binding is made of: another program as a child, a fork with Python's hooks, polled fds, signals, messages."""
import ctypes
import os
import select
import signal
import sys
import time

import shoal

call, made, lib = shoal.call, shoal.made, shoal.lib
RETURNED, FAILED, EXITED, KILLED = 1, 2, 3, 4


class Status(ctypes.Structure):
    _fields_ = [("end", ctypes.c_int), ("code", ctypes.c_int), ("err", ctypes.c_int), ("text", ctypes.c_char * 680)]


class ProcessOptions(ctypes.Structure):
    _fields_ = [("start", ctypes.c_int), ("name", ctypes.c_char_p), ("rank", ctypes.c_int), ("outlive", ctypes.c_bool),
                ("grace", ctypes.c_int64), ("timeout", ctypes.c_int64), ("death_signal", ctypes.c_int),
                ("fds", ctypes.POINTER(ctypes.c_int)), ("fd_count", ctypes.c_size_t)]


HOOK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
CHECK = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p)


class ForkOptions(ctypes.Structure):
    _fields_ = [("before", ctypes.c_void_p), ("after_parent", ctypes.c_void_p), ("after_child", ctypes.c_void_p),
                ("context", ctypes.c_void_p), ("process", ctypes.POINTER(ProcessOptions))]


lib.shoal_value_bytes.restype = ctypes.c_void_p
lib.shoal_value_as_bytes.restype = ctypes.c_void_p
lib.shoal_value_as_bytes.argtypes = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t)]
lib.shoal_process_result.restype = ctypes.c_void_p
lib.shoal_message_data.restype = ctypes.c_void_p
lib.shoal_set_interrupt.argtypes = [CHECK, ctypes.c_void_p]


def bytes_of(value):
    size = ctypes.c_size_t()
    data = lib.shoal_value_as_bytes(value, ctypes.byref(size))
    return ctypes.string_at(data, size.value)


def value_of(data):
    return ctypes.c_void_p(lib.shoal_value_bytes(data, ctypes.c_size_t(len(data))))


def join(process):
    """Waits with poll, as an event loop does, then joins."""
    poll = select.poll()
    poll.register(lib.shoal_process_sentinel(process), select.POLLIN)
    assert poll.poll(20000), "the process has not ended"
    status = Status()
    call("shoal_process_join", process, shoal.ms(20000), ctypes.byref(status))
    return status


def in_child_program():
    rank, args = ctypes.c_int(), ctypes.c_void_p()
    call("shoal_child_begin", ctypes.byref(rank), ctypes.byref(args))
    call("shoal_return", value_of(b"%d:" % rank.value + bytes_of(args)))
    call("shoal_child_end", 0)
    sys.exit(0)


def test_program():
    argv = (ctypes.c_char_p * 5)(b"python3", os.fsencode(__file__), b"--child", None)
    options = ProcessOptions(rank=4, name=b"snake")
    process = made("shoal_process_start_program", b"/usr/bin/python3", argv, value_of(b"hello"), ctypes.byref(options))
    status = join(process)
    assert status.end == RETURNED, status.text
    assert bytes_of(lib.shoal_process_result(process)) == b"4:hello"
    lib.shoal_process_destroy(process)
    print("ok: python3 as a child of the world")


def python_hooks(options):
    """The hooks of CPython itself. Call with PyDLL: the thread that forks holds the interpreter's lock."""
    addresses = [ctypes.cast(function, ctypes.c_void_p) for function in (
        ctypes.pythonapi.PyOS_BeforeFork, ctypes.pythonapi.PyOS_AfterFork_Parent, ctypes.pythonapi.PyOS_AfterFork_Child)]
    return ForkOptions(*addresses, None, ctypes.pointer(options))


def in_server_program():
    forked = []
    os.register_at_fork(before=lambda: forked.append("b"), after_in_child=lambda: forked.append("c"))
    rank, args = ctypes.c_int(), ctypes.c_void_p()
    begin = ctypes.PyDLL(lib._name).shoal_fork_server_begin
    code = begin(ctypes.byref(python_hooks(ProcessOptions())), ctypes.byref(rank), ctypes.byref(args))
    if lib.shoal_err_name(code) == b"SHOAL_END":
        sys.exit(0)
    assert code == 0, shoal.Error(code)
    call("shoal_return", value_of(b"%d:%s:" % (rank.value, "".join(forked[-2:]).encode()) + bytes_of(args)))
    call("shoal_child_end", 0)
    sys.exit(0)


def test_fork_server():
    argv = (ctypes.c_char_p * 5)(b"python3", os.fsencode(__file__), b"--server", None)
    began = time.monotonic()
    for rank in range(20):
        options = ProcessOptions(start=3, rank=rank)
        process = made("shoal_process_start_program", b"/usr/bin/python3", argv, value_of(b"hi"), ctypes.byref(options))
        status = join(process)
        assert status.end == RETURNED, status.text
        assert bytes_of(lib.shoal_process_result(process)) == b"%d:bc:hi" % rank
        lib.shoal_process_destroy(process)
        if rank == 0:
            server, began = lib.shoal_fork_server_pid(), time.monotonic()
            assert server > 0
    assert lib.shoal_fork_server_pid() == server
    took = (time.monotonic() - began) / 19
    lib.shoal_fork_server_stop()
    assert lib.shoal_fork_server_pid() == 0
    print("ok: python3 as a fork server, %.1f ms a child" % (took * 1e3))


def test_fork():
    fork = ctypes.PyDLL(lib._name).shoal_fork
    options = python_hooks(ProcessOptions(rank=2))
    forked = []
    os.register_at_fork(before=lambda: forked.append("b"), after_in_parent=lambda: forked.append("p"),
                        after_in_child=lambda: forked.append("c"))
    queue = made("shoal_queue_create", ctypes.c_uint64(0))
    process = ctypes.c_void_p()
    assert fork(ctypes.byref(options), ctypes.byref(process)) == 0
    if not process.value:
        try:
            assert forked == ["b", "c"] and lib.shoal_rank() == 2
            shoal.put_bytes(queue, b"from the fork")
            call("shoal_child_end", 0)
            os._exit(0)
        finally:
            os._exit(9)
    assert forked == ["b", "p"], forked
    status = join(process)
    assert status.end == RETURNED, status.text
    assert shoal.get_bytes(queue) == b"from the fork"
    lib.shoal_process_destroy(process)
    print("ok: fork with the interpreter's hooks")


def test_signal():
    """Ctrl-C: a Python handler runs while the library waits, and ends the wait."""
    hits = []
    signal.signal(signal.SIGALRM, lambda number, frame: hits.append(time.monotonic()))
    check = CHECK(lambda context: bool(hits))
    lib.shoal_set_interrupt(check, None)
    queue = made("shoal_queue_create", ctypes.c_uint64(0))
    signal.setitimer(signal.ITIMER_REAL, 0.03)
    sent = time.monotonic() + 0.03
    try:
        shoal.get_bytes(queue, shoal.ms(20000))
        raise AssertionError("not interrupted")
    except shoal.Error as error:
        assert error.name == "SHOAL_EINTR", error
    took = time.monotonic() - sent
    lib.shoal_set_interrupt(CHECK(), None)
    print("ok: interrupted %.0f ms after the signal" % (took * 1e3))
    assert took < (0.1 if os.getloadavg()[0] < 2 * os.cpu_count() else 2), took


def test_message():
    queue = made("shoal_queue_create", ctypes.c_uint64(0))
    message = made("shoal_message_create", ctypes.c_size_t(1 << 20))
    room = (ctypes.c_char * (1 << 20)).from_address(lib.shoal_message_data(message))
    view = memoryview(room).cast("B")
    view[:] = bytes([7]) * (1 << 20)  # written in the heap itself
    call("shoal_queue_give_message", queue, message, shoal.FOREVER)
    got = made("shoal_queue_get_message", queue, shoal.FOREVER)
    assert lib.shoal_message_data(got) == ctypes.addressof(room)
    assert ctypes.string_at(lib.shoal_message_data(got), 3) == b"\x07\x07\x07"
    lib.shoal_message_destroy(got)
    print("ok: a message of 1 MiB, written in place")


def test_fds():
    """An event loop of its own: a queue and a pipe, which a child by fork writes to."""
    queue = made("shoal_queue_create", ctypes.c_uint64(0))
    here, there = ctypes.c_void_p(), ctypes.c_void_p()
    call("shoal_pipe_create", ctypes.c_bool(True), ctypes.byref(here), ctypes.byref(there))
    fds = [ctypes.c_int(-1), ctypes.c_int(-1)]
    call("shoal_queue_fd", queue, ctypes.byref(fds[0]))
    call("shoal_pipe_fd", here, ctypes.byref(fds[1]))
    loop = select.epoll()
    for fd in fds:
        loop.register(fd.value, select.EPOLLIN)
    assert loop.poll(0) == []
    pid = os.fork()
    if pid == 0:
        for i in range(100):
            shoal.put_bytes(queue, b"%d" % i)
        os._exit(0)
    got = []
    while len(got) < 100:
        assert loop.poll(20) == [(fds[0].value, select.EPOLLIN)], "nothing came"
        try:
            while True:
                got.append(int(shoal.get_bytes(queue, shoal.ms(0))))
        except shoal.Error as error:
            assert error.name == "SHOAL_ETIMEDOUT", error
    assert got == list(range(100)), got
    assert os.waitpid(pid, 0) == (pid, 0)
    assert loop.poll(0) == []
    call("shoal_pipe_send_bytes", there, b"pipe", ctypes.c_size_t(4), shoal.FOREVER)
    assert loop.poll(20) == [(fds[1].value, select.EPOLLIN)]
    loop.close()
    print("ok: a queue and a pipe polled in an event loop")


if __name__ == "__main__":
    if sys.argv[1:] == ["--child"]:
        in_child_program()
    if sys.argv[1:] == ["--server"]:
        in_server_program()
    call("shoal_world_create", None)
    test_program()
    test_fork_server()
    test_fork()
    test_signal()
    test_message()
    test_fds()
