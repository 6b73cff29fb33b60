"""The smallest binding: libshoal.so by ctypes, for the tests beside this file. Not for use: nothing is complete here."""
import ctypes
import os

lib = ctypes.CDLL(os.path.join(os.environ["SHOAL_BUILD_DIR"], "lib", "libshoal.so"))
lib.shoal_err_name.restype = ctypes.c_char_p
lib.shoal_last_error_text.restype = ctypes.c_char_p

FOREVER = ctypes.c_int64(2**63 - 1)
NOW = ctypes.c_int64(0)


def ms(n):
    return ctypes.c_int64(n * 1000000)


class Error(Exception):
    def __init__(self, code):
        super().__init__(lib.shoal_err_name(code).decode() + ": " + lib.shoal_last_error_text().decode())
        self.name = lib.shoal_err_name(code).decode()


def call(name, *arguments):
    """Calls what returns shoal_err; any other answer than SHOAL_OK raises."""
    code = getattr(lib, name)(*arguments)
    if code != 0:
        raise Error(code)


def made(name, *arguments):
    """The same for a call that gives a handle by its last argument."""
    handle = ctypes.c_void_p()
    call(name, *arguments, ctypes.byref(handle))
    return handle


def put_bytes(queue, data):
    call("shoal_queue_put_bytes", queue, data, ctypes.c_size_t(len(data)), FOREVER)


def get_bytes(queue, timeout=FOREVER):
    room = ctypes.create_string_buffer(4096)
    size = ctypes.c_size_t()
    call("shoal_queue_get_bytes", queue, room, ctypes.c_size_t(len(room)), timeout, ctypes.byref(size))
    return room.raw[: size.value]
