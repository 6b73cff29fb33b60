"""Tests of shoal.load and shoal.save."""

import os
import tempfile
import unittest

import shoal

try:
    import numpy
except ImportError:
    numpy = None
try:
    import torch
except ImportError:
    torch = None


class Files(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "a.safetensors")

    def test_there_and_back(self):
        tensors = {dtype: shoal.tensor([[1, 0, 1]], dtype=dtype)
                   for dtype in ("f32", "f64", "bf16", "f16", "i64", "i32", "u8", "bool")}
        shoal.save(self.path, tensors, {"who": "ünter"})
        found = shoal.load(self.path, "shoal")
        self.assertEqual({name: (t.dtype, t.tolist()) for name, t in found.items()},
                         {name: (name, t.tolist()) for name, t in tensors.items()})
        self.assertEqual(shoal.load_metadata(self.path), {"who": "ünter"})

    def test_wrong_arguments(self):
        tensors = {"a": shoal.tensor([1])}
        for path, named in ((tensors, self.path), (self.path, [tensors["a"]]), (self.path, tensors["a"]), (3, tensors)):
            self.assertRaisesRegex(TypeError, "takes a path and then a dict", shoal.save, path, named)
        self.assertFalse(os.path.exists(self.path))

    def test_empty(self):
        shoal.save(self.path, {})
        self.assertEqual(shoal.load(self.path), {})
        self.assertEqual(shoal.load_metadata(self.path), {})

    @unittest.skipIf(numpy is None, "numpy is not installed")
    def test_numpy(self):
        shoal.save(self.path, {"a": numpy.arange(6.0).reshape(2, 3).T, "h": shoal.tensor([1.5], dtype="bf16")})
        found = shoal.load(self.path)
        self.assertEqual(found["a"].tolist(), [[0, 3], [1, 4], [2, 5]])
        self.assertEqual((found["h"].dtype, found["h"].tolist()), (numpy.uint16, [0x3FC0]))
        with self.assertRaisesRegex(TypeError, "'h'.*'H'"):
            shoal.save(self.path, found)
        self.assertEqual(shoal.load(self.path)["a"].shape, (3, 2))  # the file is the old one

    @unittest.skipIf(torch is None, "torch is not installed")
    def test_torch(self):
        model = torch.nn.Linear(2, 3)
        shoal.save(self.path, {**model.state_dict(), "mask": torch.tensor([True, False]),
                               "half": torch.tensor([1.5], dtype=torch.bfloat16)})
        found = shoal.load(self.path, framework="torch")
        self.assertTrue(torch.equal(found["weight"], model.weight))
        self.assertTrue(torch.equal(found["mask"], torch.tensor([True, False])))
        self.assertEqual(found["half"].dtype, torch.bfloat16)

    def test_errors(self):
        with self.assertRaises(FileNotFoundError):
            shoal.load(self.path)
        with self.assertRaises(FileNotFoundError):
            shoal.save(os.path.join(self.path, "x"), {"a": [1]})
        with open(self.path, "wb") as file:
            file.write(b"\xff" * 100)
        for read in (shoal.load, shoal.load_metadata):
            with self.assertRaisesRegex(shoal.Error, "a.safetensors"):
                read(self.path)
        with self.assertRaisesRegex(ValueError, "jax"):
            shoal.load(self.path, framework="jax")
        with self.assertRaisesRegex(TypeError, "1"):
            shoal.save(self.path, {1: [1]})
        with self.assertRaisesRegex(TypeError, "1"):
            shoal.save(self.path, {"a": [1]}, {"k": 1})


if __name__ == "__main__":
    unittest.main()
