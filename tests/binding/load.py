#!/usr/bin/env python3
"""The library can be loaded with dlopen, after others have taken of the static TLS, and works from any thread."""
import threading

import shoal

call, made, lib = shoal.call, shoal.made, shoal.lib

call("shoal_world_create", None)
queue = made("shoal_queue_create", shoal.ctypes.c_uint64(4))
shoal.put_bytes(queue, b"by ctypes")
assert shoal.get_bytes(queue) == b"by ctypes"

# An error is its thread's: made at the first failure, gone with the thread.
seen = []


def fail_alone():
    before = lib.shoal_last_error()
    try:
        shoal.get_bytes(queue, shoal.NOW)
    except shoal.Error as error:
        seen.append((before, error.name, lib.shoal_last_error_text() != b""))


for _ in range(50):
    t = threading.Thread(target=fail_alone)
    t.start()
    t.join()
assert seen == [(0, "SHOAL_ETIMEDOUT", True)] * 50, seen[:3]
assert lib.shoal_last_error() == 0
print("ok: loaded with dlopen")
