"""Tests of shoal.Tensor, by itself and with numpy and torch where they are installed."""

import copy
import gc
import subprocess
import sys
import unittest
import zlib

import shoal
from shoal import _shoal, multiprocessing, world

try:
    import numpy
except ImportError:
    numpy = None
try:
    import torch
except ImportError:
    torch = None

DTYPES = {"f32": "float32", "f64": "float64", "f16": "float16", "i64": "int64", "i32": "int32", "u8": "uint8",
          "bool": "bool"}


class Plain(unittest.TestCase):
    def test_properties(self):
        t = shoal.tensor([[1, 2, 3], [4, 5, 6]])
        self.assertEqual((t.shape, t.strides, t.ndim, t.size, t.dtype), ((2, 3), (3, 1), 2, 6, "i64"))
        self.assertFalse(t.is_shared)
        self.assertEqual(t.tolist(), [[1, 2, 3], [4, 5, 6]])
        self.assertEqual(repr(t), "shoal.Tensor([[1, 2, 3],\n              [4, 5, 6]], i64 [2, 3])")
        self.assertEqual(t.__dlpack_device__(), (1, 0))

    def test_one_element_is_a_number(self):
        self.assertEqual((float(shoal.tensor(3.5)), int(shoal.tensor([[3.5]]))), (3.5, 3))
        self.assertIs(type(float(shoal.tensor(3))), float)
        self.assertEqual((bool(shoal.tensor(0.0)), bool(shoal.tensor([2]))), (False, True))
        for convert in (float, int, bool):
            self.assertRaisesRegex(ValueError, "one element", convert, shoal.tensor([1, 2]))

    def test_length(self):
        self.assertEqual([len(shoal.tensor(data)) for data in ([], [[1], [2]])], [0, 2])
        self.assertRaisesRegex(TypeError, "no length", len, shoal.tensor(1))

    def test_what_it_does_not_have(self):
        t = shoal.tensor([1, 2])
        with self.assertRaisesRegex(TypeError, r"t\.numpy\(\)"):
            t[0]
        with self.assertRaisesRegex(TypeError, r"t\.numpy\(\)"):
            t[0] = 1
        with self.assertRaisesRegex(TypeError, r"t\.numpy\(\)"):
            del t[0]
        self.assertRaisesRegex(TypeError, r"use shoal\.tensor\(\)", shoal.Tensor, [1, 2])
        self.assertIn("no arithmetic", shoal.Tensor.__doc__)

    def test_copy_is_over_the_same_memory(self):
        t = shoal.tensor([1, 2])
        made = copy.copy(t)
        self.assertIsNot(made, t)
        self.assertEqual((type(made), made.tolist(), made.storage_id), (shoal.Tensor, [1, 2], t.storage_id))
        t.numpy()[0] = 5
        del t
        self.assertEqual(made.tolist(), [5, 2])

    def test_deepcopy_is_a_clone(self):
        t = shoal.tensor([1, 2], shared=True)
        made = copy.deepcopy({"a": t, "b": t})
        self.assertIs(made["a"], made["b"])
        self.assertEqual((made["a"].tolist(), made["a"].is_shared), ([1, 2], False))
        self.assertNotEqual(made["a"].storage_id, t.storage_id)

    def test_dtypes_of_numbers(self):
        self.assertEqual(shoal.tensor([True, False]).dtype, "bool")
        self.assertEqual(shoal.tensor([True, 2]).dtype, "i64")
        self.assertEqual(shoal.tensor([1, 2.5]).dtype, "f32")
        self.assertEqual(shoal.tensor([]).dtype, "f32")
        self.assertEqual(shoal.tensor([1, 2], dtype="float64").dtype, "f64")
        self.assertEqual(shoal.tensor([[], []]).shape, (2, 0))
        self.assertEqual(shoal.tensor(b"ab").tolist(), [97, 98])

    def test_halves(self):
        for dtype in ("f16", "bf16"):
            t = shoal.tensor([[1.5, -2.0], [0.0, 256.0]], dtype=dtype)
            self.assertEqual(t.dtype, dtype)
            self.assertEqual(t.tolist(), [[1.5, -2.0], [0.0, 256.0]])
            self.assertEqual(t.to("f64").tolist(), [[1.5, -2.0], [0.0, 256.0]])
        self.assertEqual(memoryview(shoal.tensor([1.5], dtype="bf16")).tolist(), [0x3FC0])

    def test_item(self):
        self.assertEqual(shoal.tensor(2**62 + 1).item(), 2**62 + 1)
        self.assertEqual(shoal.tensor([[[0.5]]]).item(), 0.5)
        self.assertIs(shoal.tensor(True).item(), True)
        with self.assertRaisesRegex(ValueError, "2"):
            shoal.tensor([1, 2]).item()

    def test_refusals(self):
        for wrong in ([[1, 2], [3]], [1, [2]]):
            with self.assertRaises(ValueError):
                shoal.tensor(wrong)
        for wrong in (["a"], "text", {1: 2}, None):
            with self.assertRaises(TypeError):
                shoal.tensor(wrong)
        with self.assertRaisesRegex(TypeError, "complex64"):
            shoal.tensor([1], dtype="complex64")
        with self.assertRaises(ValueError):
            shoal.Tensor("f32", (3,), b"1234")
        with self.assertRaises(ValueError):
            shoal.Tensor("f32", (-1,))
        with self.assertRaises(ValueError):
            shoal.Tensor("f32", (1,) * 9)
        with self.assertRaises(TypeError):
            shoal.Tensor("f33", (1,))
        with self.assertRaises(OverflowError):
            shoal.tensor([2**64])
        with self.assertRaises(TypeError):
            _shoal.Tensor._from_capsule(7)
        with self.assertRaises(RuntimeError):
            __import__("pickle").dumps(shoal.tensor([1]))

    def test_buffer(self):
        t = shoal.tensor([[1, 2], [3, 4]], dtype="i32")
        view = memoryview(t)
        self.assertEqual((view.format, view.shape, view.strides, view.readonly), ("i", (2, 2), (8, 4), False))
        view[1, 0] = 9
        self.assertEqual(t.tolist(), [[1, 2], [9, 4]])
        self.assertEqual(bytes(t), memoryview(t).tobytes())
        del t
        gc.collect()
        self.assertEqual(view.tolist(), [[1, 2], [9, 4]])

    def test_private_memory_cannot_move_while_a_view_exists(self):
        t = shoal.tensor([1, 2])
        view = memoryview(t)
        with self.assertRaises(shoal.Error):
            t.share()
        view.release()
        self.assertIs(t.share(), t)
        self.assertTrue(t.is_shared)
        self.assertEqual(t.tolist(), [1, 2])

    def test_array_interface_pins_the_memory(self):
        t = shoal.tensor([[1, 2]], dtype="i32")
        address, readonly = t.__array_interface__["data"]
        self.assertFalse(readonly)
        with self.assertRaises(shoal.Error):
            t.share()
        self.assertEqual(t.__array_interface__["data"][0], address)
        self.assertEqual(t.__array_interface__["strides"], (8, 4))

    def test_dlpack_arguments(self):
        t = shoal.tensor([1, 2])

        def name(capsule):
            return repr(capsule).split('"')[1]

        self.assertEqual(name(t.__dlpack__()), "dltensor")
        self.assertEqual(name(t.__dlpack__(max_version=(0, 8))), "dltensor")
        self.assertEqual(name(t.__dlpack__(max_version=(1, 0))), "dltensor_versioned")
        self.assertEqual(name(t.__dlpack__(max_version=(2, 3), dl_device=(1, 0), copy=False)), "dltensor_versioned")
        for wrong in ({"stream": 1}, {"dl_device": (2, 0)}):
            with self.assertRaises(BufferError):
                t.__dlpack__(**wrong)
        for wrong in ({"max_version": 1}, {"dl_device": "cpu"}, {"other": 1}):
            with self.assertRaises(TypeError):
                t.__dlpack__(**wrong)
        t.share()  # all capsules are gone

    def test_dlpack_in_both_versions(self):
        class Old:
            """An exporter from before DLPack 1."""

            def __init__(self, t):
                self.t = t

            def __dlpack_device__(self):
                return (1, 0)

            def __dlpack__(self, stream=None):
                return self.t.__dlpack__()

        for wrap in (lambda t: t, Old):
            t = shoal.tensor([[1.0, 2.0]])
            other = shoal.from_dlpack(wrap(t))
            memoryview(other)[0, 1] = 5.0
            self.assertEqual(t.tolist(), [[1.0, 5.0]])
            if torch is not None:  # it has moved into the heap, where torch can send it
                t.share()
                memoryview(other)[0, 0] = 7.0
                self.assertEqual(t.tolist(), [[7.0, 5.0]])
            else:
                with self.assertRaises(shoal.Error):
                    t.share()
            del other
            t.share()

    def test_capsule_is_used_once(self):
        capsule = shoal.tensor([1]).__dlpack__()
        self.assertEqual(_shoal.Tensor._from_capsule(capsule).tolist(), [1])
        with self.assertRaises(TypeError):
            _shoal.Tensor._from_capsule(capsule)

    def test_copy_is_a_copy(self):
        t = shoal.tensor([1, 2])
        copy = _shoal.Tensor._from_capsule(t.__dlpack__(copy=True, max_version=(1, 0)))
        memoryview(t)[0] = 7
        self.assertEqual(copy.tolist(), [1, 2])
        self.assertEqual(t.clone().tolist(), [7, 2])

    def test_imported_memory_cannot_be_shared(self):
        t = shoal.from_dlpack(shoal.tensor([1, 2]))
        with self.assertRaises(ValueError):
            t.share()
        self.assertTrue(t.clone().share().is_shared)

    def test_travels_by_handle(self):
        queue = multiprocessing.Queue()
        t = shoal.tensor([[1, 2], [3, 4]])
        queue.put(t)
        queue.put({"in a pickle": ({1}, t)})
        self.assertTrue(t.is_shared)
        received = queue.get()
        self.assertIs(type(received), shoal.Tensor)
        memoryview(received)[0, 0] = 9
        (_, pickled), = queue.get().values()
        self.assertEqual((t.tolist(), pickled.tolist()), ([[9, 2], [3, 4]], [[9, 2], [3, 4]]))
        self.assertEqual({received.storage_id, pickled.storage_id}, {t.storage_id})
        exported = shoal.tensor([1])
        view = memoryview(exported)
        with self.assertRaises(shoal.Error):
            queue.put(exported)
        view.release()
        with self.assertRaises(ValueError):
            queue.put(shoal.from_dlpack(exported))
        self.assertTrue(queue.empty())

    def test_nothing_is_left_in_the_heap(self):
        before = world.info().blocks_live
        t = shoal.tensor([1.0] * 1000, shared=True)
        view = memoryview(t)
        self.assertEqual(world.info().blocks_live, before + 1)
        del t
        view[0] = 2.0
        self.assertEqual(world.info().blocks_live, before + 1)
        view.release()
        self.assertEqual(world.info().blocks_live, before)
        world.audit()

    def test_without_numpy_and_torch(self):
        """None in sys.modules makes an import fail."""
        done = subprocess.run([sys.executable, "-c", """if True:
            import sys
            sys.modules['numpy'] = sys.modules['torch'] = None
            import shoal
            t = shoal.tensor([1, 2], shared=True)
            print(t.tolist(), shoal.from_dlpack(t).tolist(), t)
            for convert in (t.numpy, t.torch):
                try:
                    convert()
                except ImportError as error:
                    print(error.name)
            """], capture_output=True, text=True, timeout=300, check=True)
        self.assertEqual(done.stdout.splitlines(),
                         ["[1, 2] [1, 2] shoal.Tensor([1, 2], i64 [2])", "numpy", "torch"])

    def test_import_needs_neither(self):
        done = subprocess.run([sys.executable, "-c", "import shoal, sys; shoal.tensor([1]); shoal.load; "
                               "print({'numpy', 'torch', 'subprocess'} & set(sys.modules))"],
                              capture_output=True, text=True, timeout=300, check=True)
        self.assertEqual(done.stdout, "set()\n")


@unittest.skipIf(numpy is None, "numpy is not installed")
class Numpy(unittest.TestCase):
    def test_every_dtype_there_and_back_without_a_copy(self):
        for dtype, name in DTYPES.items():
            t = shoal.tensor([[1, 0], [0, 1]], dtype=dtype)
            array = t.numpy()
            self.assertEqual(array.dtype, numpy.dtype(name))
            array[0, 1] = 1
            self.assertEqual(t.tolist(), [[1, 1], [0, 1]])
            self.assertEqual(shoal.tensor(array).dtype, dtype)
            self.assertEqual(shoal.tensor(array.T).tolist(), [[1, 0], [1, 1]])

    def test_bf16_is_bits(self):
        t = shoal.tensor([1.5, 2.0], dtype="bf16")
        array = t.numpy()
        self.assertEqual((array.dtype, array.tolist()), (numpy.uint16, [0x3FC0, 0x4000]))
        with self.assertRaises(TypeError):
            shoal.tensor(array)
        self.assertEqual(shoal.tensor(array, dtype="bf16").tolist(), [1.5, 2.0])

    def test_array_outlives_the_tensor(self):
        array = shoal.tensor(numpy.arange(10000), shared=True).numpy()
        gc.collect()
        self.assertEqual(int(array.sum()), 49995000)
        world.audit()

    def test_array_interface(self):
        class Wrapper:
            def __init__(self, interface):
                self.__array_interface__ = interface

        for shape in ((2, 3), (0,), ()):
            t = shoal.tensor(numpy.ones(shape))
            array = numpy.asarray(Wrapper(t.__array_interface__))
            self.assertEqual((array.shape, array.tolist()), (shape, t.tolist()))

    def test_numpy_imports_dlpack(self):
        t = shoal.tensor([[1, 2], [3, 4]])
        array = numpy.from_dlpack(t)
        self.assertTrue(numpy.shares_memory(array, t.numpy()))

    def test_read_only_arrays_and_dtypes(self):
        array = numpy.arange(3)
        array.flags.writeable = False
        self.assertEqual(shoal.tensor(array, dtype=numpy.float32).tolist(), [0.0, 1.0, 2.0])
        for wrong in ("int8", "uint32", "complex64", ">f4"):
            with self.assertRaises(TypeError):
                shoal.tensor(numpy.ones(2, wrong))


@unittest.skipIf(torch is None, "torch is not installed")
class Torch(unittest.TestCase):
    def test_every_dtype_there_and_back_without_a_copy(self):
        for dtype, name in {**DTYPES, "bf16": "bfloat16"}.items():
            t = shoal.tensor([[1, 0], [0, 1]], dtype=dtype)
            other = t.torch()
            self.assertEqual(other.dtype, getattr(torch, name))
            other[0, 1] = 1
            self.assertEqual(t.tolist(), [[1, 1], [0, 1]])
            self.assertEqual(shoal.tensor(other).dtype, dtype)

    def test_strides_and_offsets(self):
        base = torch.arange(24).reshape(4, 6)
        part = base[1:, ::2].T
        t = shoal.from_dlpack(part)
        self.assertEqual((t.shape, t.strides, t.tolist()), ((3, 3), (2, 6), part.tolist()))
        self.assertEqual(memoryview(t).tolist(), part.tolist())
        with self.assertRaises(BufferError):
            zlib.crc32(t)  # asks for bytes in a row
        self.assertEqual(t.clone().strides, (3, 1))
        self.assertEqual(t.torch().tolist(), part.tolist())

    def test_parameters_are_copied_without_their_gradient(self):
        parameter = torch.nn.Parameter(torch.ones(3))
        self.assertEqual(shoal.tensor(parameter).tolist(), [1.0, 1.0, 1.0])

    def test_torch_memory_outlives_the_tensor(self):
        blocks = world.info().blocks_live
        other = shoal.tensor(torch.arange(10000), shared=True).torch()
        gc.collect()
        self.assertEqual(int(other.sum()), 49995000)
        del other
        self.assertEqual(world.info().blocks_live, blocks)


if __name__ == "__main__":
    unittest.main()
