"""Values and arrays in shared memory: sharedctypes."""

import ctypes
import gc
import multiprocessing.sharedctypes as standard
import pickle
import unittest

import shoal.multiprocessing as mp
from shoal import world
from shoal.multiprocessing import sharedctypes
from shoal.multiprocessing.sharedctypes import Array, RawArray, RawValue, Value, copy, synchronized

from sync_helpers import TestCase, fork, join


class Point(ctypes.Structure):
    _fields_ = [("x", ctypes.c_int), ("y", ctypes.c_double), ("name", ctypes.c_char * 8)]


class Both(ctypes.Union):
    _fields_ = [("whole", ctypes.c_uint16), ("bytes", ctypes.c_uint8 * 2)]


class Four(ctypes.Array):
    _type_ = ctypes.c_short
    _length_ = 4


class Objects(TestCase):
    def test_typecodes_are_those_of_the_standard_module(self):
        self.assertEqual(sharedctypes.typecode_to_type, standard.typecode_to_type)
        for code, type_ in standard.typecode_to_type.items():
            self.assertIs(type(RawValue(code)), type_)
            self.assertIs(type(RawArray(code, 3)), type_ * 3)
            self.assertEqual(ctypes.addressof(RawValue(code)) % ctypes.alignment(type_), 0)

    def test_values(self):
        self.assertEqual(RawValue("d").value, 0.0)
        self.assertEqual(RawValue(ctypes.c_int, 7).value, 7)
        point = RawValue(Point, 1, 2.5, b"abc")
        self.assertEqual((point.x, point.y, point.name), (1, 2.5, b"abc"))
        self.assertEqual((RawValue(Point).x, RawValue(Point).name), (0, b""))
        with self.assertRaises(TypeError):
            RawValue("i", "seven")

    def test_arrays(self):
        for _ in range(3):  # memory that was used before is zeroed
            array = RawArray("i", 1000)
            self.assertEqual(list(array), [0] * 1000)
            array[:] = range(1000)
            del array
        self.assertEqual(list(RawArray("h", range(3))), [0, 1, 2])
        self.assertEqual(len(RawArray("i", 0)), 0)
        self.assertEqual(RawArray(Point, [(1, 2.0), (3, 4.0)])[1].x, 3)
        self.assertEqual(RawArray("c", b"hello").value, b"hello")
        with self.assertRaises(ValueError):
            RawArray("i", -1)

    def test_locks(self):
        for lock in True, None:
            self.assertIsInstance(Value("i", 1, lock=lock).get_lock(), mp.synchronize.RLock)
        lock = mp.Lock()
        self.assertIs(Value("i", lock=lock).get_lock(), lock)
        self.assertIs(Array("i", 3, lock=lock).get_lock(), lock)
        for raw in Value("i", 5, lock=False), Array("i", 5, lock=False):
            self.assertFalse(hasattr(raw, "get_lock"))
        for make in lambda: Value("i", 5, lock="no"), lambda: Array("i", 5, lock="no"):
            with self.assertRaisesRegex(AttributeError, "'no' has no method 'acquire'"):
                make()
        with self.assertRaises(AssertionError):
            synchronized(Value("i"))

    def test_access_holds_the_lock(self):
        lock = mp.RLock()
        held = []

        class Watched:
            value = property(lambda self: held.append(lock._count()), lambda self, v: held.append(lock._count()))

        value = sharedctypes.Synchronized(Watched(), lock)
        value.value
        value.value = 3
        with value:
            value.value
        self.assertEqual(held, [1, 1, 2])
        self.assertIs(value.acquire(False), True)
        value.release()
        self.assertEqual(lock._count(), 0)

    def test_wrappers(self):
        value, array, string, point = Value("d", 1.5), Array("i", [1, 2, 3]), Array("c", 6), Value(Point, 1, 2.0, b"n")
        value.value += 1
        self.assertEqual(value.get_obj().value, 2.5)
        self.assertEqual((len(array), array[0], array[1:], list(array)), (3, 1, [2, 3], [1, 2, 3]))
        array[1:] = [5, 6]
        self.assertEqual(array[:], [1, 5, 6])
        string.value = b"abc"
        self.assertEqual((string.value, string.raw), (b"abc", b"abc\0\0\0"))
        point.x += 5
        self.assertEqual((point.x, point.name, type(point).__name__), (6, b"n", "SynchronizedPoint"))
        self.assertIs(type(point), type(Value(Point)))
        self.assertEqual(repr(value), "<Synchronized wrapper for c_double(2.5)>")

    def test_copy(self):
        point = Point(2, 5.0, b"p")
        shared = copy(point)
        point.x = 0
        join(fork(lambda: setattr(shared, "y", 6.0)))
        self.assertEqual((shared.x, shared.y, shared.name), (2, 6.0, b"p"))

    def test_the_memory_lives_as_long_as_an_object_over_it(self):
        gc.collect()
        before = world.info().blocks_live
        points = RawArray(Point, 10)
        part = points[3]
        part.x = 7
        del points
        gc.collect()
        self.assertEqual((part.x, world.info().blocks_live), (7, before + 1))


class Travel(TestCase):
    def test_they_are_the_same_memory_after_a_put(self):
        points = RawArray(Point, 4)
        matrix = RawValue((ctypes.c_int * 3) * 2)
        originals = [RawValue("i", 1), RawArray("d", [1, 2]), points, points[2], matrix, matrix[1], RawValue(Both), RawValue(Four),
                     Value("i", 3), Array("c", b"abc"), Value(Point, 1)]
        queue = mp.Queue()
        queue.put(originals)
        copies = queue.get()
        for mine, other in zip(originals, copies):
            self.assertIs(type(mine), type(other))
            if isinstance(mine, sharedctypes.SynchronizedBase):
                with mine.get_lock():
                    self.assertTrue(other.get_lock()._is_mine())
                mine, other = mine.get_obj(), other.get_obj()
            self.assertEqual(ctypes.addressof(mine), ctypes.addressof(other))
        copies[3].x = 9
        self.assertEqual(points[2].x, 9)
        queue.put(copies[3])  # a part that was received
        self.assertEqual(queue.get().x, 9)
        del mine, other
        queue.close()

    def test_by_value_is_by_value(self):
        queue = mp.Queue()
        mine = ctypes.c_int(3)
        queue.put([mine, Point(1, 2.0)])
        other, point = queue.get()
        mine.value = 4
        self.assertEqual((other.value, point.y), (3, 2.0))
        with self.assertRaises(ValueError):
            queue.put([ctypes.pointer(mine)])
        queue.close()

    def test_pickle_alone_refuses(self):
        for obj in Value("i"), Array("d", 3):
            with self.assertRaisesRegex(RuntimeError, "should only be shared between processes through inheritance"):
                pickle.dumps(obj)


if __name__ == "__main__":
    unittest.main()
