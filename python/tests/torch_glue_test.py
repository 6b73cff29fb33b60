"""The torch glue without queues: storages that move into the heap in place, and how torch sees them afterwards."""
import _ctypes
import copy
import ctypes
import gc
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import unittest
import weakref

try:
    import numpy
    import torch
    import torch.multiprocessing
except ImportError:
    sys.exit(77)

from shoal import _shoal, _torch_build
import shoal.torch as shoal_torch
import shoal
import shoal.multiprocessing  # share_memory_() gives heap memory then
import shoal.world

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.uint8, torch.int8, torch.int16,
          torch.int32, torch.int64, torch.bool, torch.complex64, torch.complex128]


def storage_of(tensor):
    """What identifies the storage of a tensor."""
    return shoal_torch._untyped(tensor)._cdata


class Case(unittest.TestCase):
    """Each test leaves no storage, no block and no file of torch behind."""

    def setUp(self):
        shoal_torch.load()
        self.glue = sys.modules["shoal._torch_glue"]
        gc.collect()
        self.before = self.counts()

    def tearDown(self):
        gc.collect()
        self.assertEqual(self.counts(), self.before)
        shoal.world.audit()

    def counts(self):
        shoal.world.sweep()  # the child that torch forks for its file_system strategy, and which runs another program
        files = [name for name in os.listdir("/dev/shm") if name.startswith(f"torch_{os.getpid()}_")]
        return self.glue.cached(), shoal.world.info().blocks_live, len(files)


class Adopt(Case):
    def test_b73_views_and_parameters_follow(self):
        base = torch.arange(12.).reshape(3, 4)
        row, column, whole = base[1], base[:, 2], torch.nn.Parameter(base)
        identity = storage_of(base)
        shoal_torch.adopt(row)
        for view in (base, row, column, whole):
            self.assertTrue(shoal_torch.is_adopted(view))
            self.assertEqual(storage_of(view), identity)
        base[1, 2] = 99
        self.assertEqual([row[2].item(), column[1].item(), whole[1, 2].item()], [99, 99, 99])
        self.assertIs(type(whole), torch.nn.Parameter)
        self.assertTrue(torch.equal(base[0], torch.arange(4.)))

    def test_b4_is_shared(self):
        tensor = torch.ones(5)
        self.assertFalse(tensor.is_shared())
        shoal_torch.adopt(tensor)
        self.assertTrue(tensor.is_shared())
        self.assertTrue(tensor[2:].is_shared())
        self.assertFalse(tensor.clone().is_shared())

    def test_b4_empty_of_every_dtype(self):
        for dtype in DTYPES:
            for shape in [(0,), (3, 0, 2)]:
                tensor = shoal_torch.adopt(torch.empty(shape, dtype=dtype))
                self.assertTrue(tensor.is_shared())
                self.assertEqual(tensor.shape, shape)
                self.assertEqual(tensor.numpy().shape if dtype != torch.bfloat16 else shape, shape)

    def test_share_memory_does_not_move_it_out(self):
        strategy = torch.multiprocessing.get_sharing_strategy()
        for name in ("file_descriptor", "file_system"):
            tensor = shoal_torch.adopt(torch.ones(5))
            address = tensor.data_ptr()
            torch.multiprocessing.set_sharing_strategy(name)
            try:
                self.assertIs(tensor.share_memory_(), tensor)
                shoal_torch._untyped(tensor).share_memory_()
                torch.nn.Parameter(tensor).share_memory_()
            finally:
                torch.multiprocessing.set_sharing_strategy(strategy)
            self.assertEqual(tensor.data_ptr(), address)
            self.assertTrue(shoal_torch.is_adopted(tensor))

    def test_module_share_memory(self):
        module = torch.nn.Linear(3, 2)
        weight = module.weight.detach().clone()
        module.share_memory()  # as the Hogwild program does
        self.assertTrue(torch.equal(module.weight, weight))
        where = [parameter.data_ptr() for parameter in module.parameters()]
        for parameter in module.parameters():
            self.assertTrue(shoal_torch.is_adopted(parameter) and parameter.is_shared())
            shoal_torch.adopt(parameter)
        module.share_memory()
        self.assertEqual([parameter.data_ptr() for parameter in module.parameters()], where)
        state = module.state_dict()
        with torch.no_grad():
            module.weight.fill_(7)
        self.assertEqual(state["weight"][0, 0].item(), 7)
        module(torch.ones(1, 3)).sum().backward()
        self.assertFalse(shoal_torch.is_adopted(module.weight.grad))

    def test_tied_weights_stay_tied(self):
        one, two = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
        two.weight = one.weight
        shoal_torch.adopt(one.weight)
        self.assertIs(one.weight, two.weight)
        self.assertEqual(one.weight.data_ptr(), two.weight.data_ptr())

    def test_twice_changes_nothing(self):
        tensor = shoal_torch.adopt(torch.ones(5))
        address = tensor.data_ptr()
        self.assertIs(shoal_torch.adopt(tensor), tensor)
        self.assertEqual(tensor.data_ptr(), address)

    def test_memory_that_from_dlpack_gave_away_stays(self):
        for size in (10, 10_000_000):
            x = torch.arange(float(size))
            t = shoal.from_dlpack(x)
            shoal.share(x)
            x += 1
            self.assertEqual((t.numpy()[-1], x[-1].item()), (size - 1, size))
            del x
            self.assertEqual(t.numpy()[-1], size - 1)
        copied = torch.zeros(2)
        shoal.tensor(copied)
        copied.resize_(1000)  # the memory was not given away

    def test_deepcopy_and_torch_save(self):
        module = torch.nn.Linear(3, 2)
        shoal_torch.adopt(module.weight)
        other = copy.deepcopy(module)
        self.assertTrue(torch.equal(other.weight, module.weight))
        self.assertFalse(shoal_torch.is_adopted(other.weight))
        with torch.no_grad():
            module.weight.fill_(3)
        self.assertNotEqual(other.weight[0, 0].item(), 3)
        with tempfile.TemporaryFile() as file:
            torch.save(module.state_dict(), file)
            file.seek(0)
            self.assertEqual(torch.load(file)["weight"][0, 0].item(), 3)

    def test_resize_is_refused(self):
        """torch 1.13 refuses to resize its own shared tensors with this text; torch 2.11 crashes."""
        ours = shoal_torch.adopt(torch.ones(5))
        with self.assertRaisesRegex(RuntimeError, "not resizable"):
            ours.resize_(50)
        self.assertEqual(ours.resize_(2).tolist(), [1, 1])

    def test_arrays_over_the_old_memory_stay_readable(self):
        tensor = torch.arange(1000.)
        array = tensor.numpy()
        shoal_torch.adopt(tensor)
        torch.full((1000,), 5.)  # would take the memory if it were free
        self.assertEqual(array.tolist(), list(range(1000)))
        foreign = numpy.arange(10.)
        tensor = shoal_torch.adopt(torch.from_numpy(foreign))
        foreign[0] = 77
        self.assertEqual(tensor[0].item(), 0)
        del array

    def test_memory_that_torch_shared_stays(self):
        for way in ("_share_fd_cpu_", "_share_filename_cpu_"):
            tensor = torch.arange(3.)
            getattr(shoal_torch._untyped(tensor), way)()
            array, address = tensor.numpy(), tensor.data_ptr()
            shoal_torch.adopt(tensor)
            self.assertEqual(tensor.data_ptr(), address)
            self.assertFalse(shoal_torch.is_adopted(tensor))
            tensor += 1
            self.assertEqual(array.tolist(), [1, 2, 3])

    def test_memory_of_numpy_goes(self):
        """As with share_memory_(), unless something else has it."""
        owner = numpy.arange(1000.)
        alive = weakref.ref(owner)
        tensor = torch.from_numpy(owner)
        shoal_torch.adopt(tensor)
        self.assertEqual((tensor[7].item(), owner[7]), (7, 7))
        del owner
        self.assertIsNone(alive())

    def test_memory_of_numpy_that_from_dlpack_gave_away_stays(self):
        owner = numpy.arange(1000.)
        alive = weakref.ref(owner)
        tensor = torch.from_numpy(owner)
        del owner
        other = shoal.from_dlpack(tensor)
        shoal_torch.adopt(tensor)
        self.assertIsNotNone(alive())
        self.assertEqual(other.numpy()[7], 7)
        del tensor, other
        gc.collect()
        self.assertIsNone(alive())

    def test_shoal_share_is_in_place(self):
        base = torch.nn.Parameter(torch.arange(4.))
        view = base[1:]
        self.assertFalse(shoal.is_shared(base))
        self.assertIs(shoal.share(base), base)
        self.assertTrue(shoal_torch.is_adopted(view) and shoal.is_shared(view))
        self.assertTrue(shoal.is_shared(torch.ones(3).share_memory_()))
        with self.assertRaisesRegex(TypeError, "shoal.share"):
            shoal.from_numpy(base)

    def test_what_cannot_move(self):
        for tensor in (torch.ones(3, device="meta"), torch.eye(3).to_sparse()):
            with self.assertRaises(TypeError):
                shoal_torch.adopt(tensor)
        with self.assertRaises(TypeError):
            shoal_torch.adopt([1, 2])

    def test_blocks_go_with_their_tensors_in_any_order(self):
        tensors = [shoal_torch.adopt(torch.full((n,), n)) for n in range(100)]
        self.assertEqual(self.glue.cached() - self.before[0], 100)
        for i in range(0, 100, 2):
            tensors[i] = None
        self.assertEqual(self.glue.cached() - self.before[0], 50)
        self.assertEqual(tensors[51].sum().item(), 51 * 51)


class Build(unittest.TestCase):
    """The glue is compiled once for all processes, and one that fits is found."""

    script = textwrap.dedent("""
        from shoal import _torch_build
        _torch_build.torch_version = lambda folder: "0.0.0"  # none fits
        print(_torch_build.find_or_compile())
    """)

    def test_it_is_linked_with_libshoal(self):
        with tempfile.TemporaryDirectory() as folder:
            other = os.path.join(folder, "libshoal_cuda.so")  # loaded when the GPU was opened before
            shutil.copy(_ctypes.__file__, other)
            ctypes.CDLL(other)
            with open("/proc/self/maps") as maps:
                self.assertIn(other, maps.read())
            self.assertRegex(_torch_build.loaded_library(), r"/libshoal\.so[^/]*$")

    def test_four_processes_compile_once(self):
        with tempfile.TemporaryDirectory() as folder:
            compiler = os.path.join(folder, "compiler")
            with open(compiler, "w") as file:
                file.write(f'#!/bin/sh\necho run >> {folder}/runs\nsleep 0.3\n'
                           'while [ "$1" != -o ]; do shift; done\necho glue > "$2"\n')
            os.chmod(compiler, 0o700)
            environment = {**os.environ, "CXX": compiler, "XDG_CACHE_HOME": folder}
            children = [subprocess.Popen([sys.executable, "-c", self.script], env=environment, stdout=subprocess.PIPE,
                                         stderr=subprocess.PIPE, text=True) for _ in range(4)]
            outputs, errors = zip(*(child.communicate() for child in children))
            paths = {output.strip() for output in outputs}
            self.assertEqual([child.returncode for child in children], [0] * 4)
            self.assertEqual(len(paths), 1)
            self.assertRegex("".join(errors), r"\Ashoal: compiling its module for torch 0\.0\.0, once; .*\n\Z")
            self.assertTrue(paths.pop().startswith(os.path.join(folder, "shoal")))
            with open(os.path.join(folder, "runs")) as file:
                self.assertEqual(file.read(), "run\n")

    def test_b14_full_heap(self):
        script = textwrap.dedent("""
            import torch, shoal.torch, shoal.world
            small, large = torch.ones(1000), torch.ones(40_000_000)
            shoal.torch.adopt(small)
            try:
                shoal.torch.adopt(large)
            except MemoryError as error:
                assert "160000000" in str(error).replace(",", ""), error
            else:
                raise AssertionError("it fits?")
            assert not large.is_shared() and large.sum().item() == 40_000_000 and small.sum().item() == 1000
            assert large.resize_(50_000_000).numel() == 50_000_000
            shoal.torch.adopt(torch.ones(1000))
            assert shoal.world.info().blocks_live == 1
        """)
        subprocess.run([sys.executable, "-c", script], check=True, env={**os.environ, "SHOAL_HEAP_LIMIT": "64M"})

    def test_loaded_in_inference_mode(self):
        script = textwrap.dedent("""
            import torch, shoal.torch
            from shoal import _shoal
            with torch.inference_mode():
                assert _shoal.torch_describe(torch.ones(3)) is not None
            assert _shoal.torch_describe(torch.ones(3)) is not None
        """)
        subprocess.run([sys.executable, "-c", script], check=True)

    def test_without_a_compiler_it_says_so_once(self):
        script = textwrap.dedent("""
            import warnings, torch
            import shoal.torch as shoal_torch
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                base = torch.arange(6.)
                part = base[2:4]
                for _ in range(3):
                    shoal_torch.adopt(part)
                assert part.is_shared() and base.is_shared() and not shoal_torch.is_adopted(part)
                base[2] = 9
                assert part.tolist() == [9, 3]
                parameter = torch.nn.Parameter(torch.ones(3))
                shoal_torch.adopt(parameter)
                assert type(parameter) is torch.nn.Parameter and parameter.requires_grad and parameter.is_shared()
                shoal_torch.adopt(torch.empty(0))
            assert len(told) == 1 and "not available" in str(told[0].message), told
        """)
        subprocess.run([sys.executable, "-c", script], check=True, env={**os.environ, "SHOAL_TORCH_GLUE": "off"})


if __name__ == "__main__":
    unittest.main()
