"""What the tests of pools share: the functions that their tasks run, and a search for leaks."""

import os
import signal
import sys
import threading
import weakref

import shoal.multiprocessing as mp
import support

LIMIT = 300  # seconds after which a test has hung


class PoolCase(support.Case):
    """After each test: no process, thread, fd or block of the heap more than before, and a clean audit."""

    method = "fork"

    def setUp(self):
        self.context = mp.get_context(self.method)
        self.Pool = self.context.Pool
        super().setUp()

    def count(self):
        return {**super().count(), "threads": threading.active_count()}

    def look_for_leaks(self):
        try:  # the thread that puts the tasks of an imap ends a little later than the pool
            support.wait_until(lambda: self.count()["threads"] <= self.before["threads"], LIMIT)
        except AssertionError:
            pass
        super().look_for_leaks()


# ---- what tasks run ----

def square(x, add=0):
    return x * x + add


def add(a, b):
    return a + b


def pid_of(_):
    return os.getpid()


def fail(x):
    raise KeyError(f"the value {x}")


def fail_at(bad, x):
    if x == bad:
        raise ValueError(f"{x} is bad")
    return -x


def identity(x):
    return x


def make_lambda(_):
    return lambda: 1


def exit_with(code):
    os._exit(code)


def leave(code):
    sys.exit(code)


def kill_self(number):
    os.kill(os.getpid(), number)
    while True:
        signal.pause()


class Unloadable:
    """Pickles, but raises when it is unpickled."""

    def __reduce__(self):
        return fail, ("of an object",)


class Unpicklable:
    def __reduce__(self):
        raise RuntimeError("cannot pickle this")


class Counter:
    """Its method changes the object."""

    def __init__(self):
        self.count = 0

    def step(self, x):
        self.count += 1
        return self.count


class Tracked:
    alive = weakref.WeakSet()

    def __new__(cls):
        self = super().__new__(cls)
        cls.alive.add(self)
        return self


given = None


def remember(value):
    global given
    given = value


def recall(_=None):
    return given


def bad_initializer():
    raise OSError("no such model")


def tell_and_wait(tell):
    """Says who runs it and waits until it is killed."""
    tell.put(os.getpid())
    while True:
        signal.pause()


def ignore_and_wait(tell):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    tell_and_wait(tell)


def fill(place):
    array, row = place
    array[row] = row + 1


def fill_row(array, unused, row):
    fill((array, row))


def survive_second(path):
    """Kills its worker the first time and returns the second time."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return "done"
    os.kill(os.getpid(), signal.SIGKILL)


def tell_next(queue):
    return queue.get()


def raise_unloadable():
    raise UnloadableError(1, 2)


class UnloadableError(Exception):
    def __init__(self, a, b):
        super().__init__(f"{a} and {b}")


def raise_unpicklable():
    raise UnpicklableError()


class UnpicklableError(Exception):
    def __reduce__(self):
        raise TypeError("not this one")


def count_tracked():
    return len(Tracked.alive)


class quiet:
    """Calls a function with stderr closed: its traceback would only confuse the reader of a test's output."""

    def __init__(self, function):
        self.function = function

    def __call__(self, *args):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        return self.function(*args)
