"""Runs the programs in examples/python and checks what they print."""
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
EXAMPLES = os.path.join(ROOT, "examples", "python")
LIMIT = 300
needs_torch = unittest.skipUnless(importlib.util.find_spec("torch"), "torch is not installed")


def run(name, *args):
    return run_file(os.path.join(EXAMPLES, name), *args)


def run_file(path, *args):
    done = subprocess.run([sys.executable, path, *args], capture_output=True, text=True, timeout=LIMIT)
    if done.returncode != 0:
        raise AssertionError(f"{path} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


class Examples(unittest.TestCase):
    @needs_torch
    def test_hogwild(self):
        self.assertGreater(float(re.fullmatch(r"4 processes: (\d+\.\d) % of the test images are right\n", run("hogwild.py"))[1]), 85)

    @needs_torch
    def test_hogwild_is_a_program_of_torch(self):
        """Only the import was changed: with torch's import it is a program for torch.multiprocessing."""
        with open(os.path.join(EXAMPLES, "hogwild.py"), encoding="utf-8") as file:
            text = file.read()
        changed = text.replace("import shoal.multiprocessing as mp", "import torch.multiprocessing as mp")
        self.assertNotEqual(changed, text)
        self.assertNotIn("shoal", changed)
        compile(changed, "hogwild.py", "exec")

    @needs_torch
    def test_hogwild_cuda(self):
        if has_card():
            self.assertGreater(float(re.fullmatch(r"4 processes: (\d+\.\d) % of the test images are right\n",
                                                  run("hogwild_cuda.py"))[1]), 85)
        else:
            with self.assertRaisesRegex(AssertionError, "ended with 1: this example needs a CUDA GPU"):
                run("hogwild_cuda.py")

    @needs_torch
    def test_synchronous(self):
        said = run("synchronous.py")
        self.assertGreater(float(re.fullmatch(r"60 steps of 2 workers: (\d+\.\d) % are right\n", said)[1]), 80)

    def test_pipeline(self):
        self.assertEqual(run("pipeline.py"), "a worker ended with -9: another one is started\n"
                                             "200 of 200 items, 200 frequencies are right\n")

    def test_pool_arrays(self):
        self.assertRegex(run("pool_arrays.py"), r"^600 rows, 2\d\.\d% of the points are in the set\n$")

    @needs_torch
    def test_data_loader(self):
        self.assertRegex(run("data_loader.py"), r"^10000 images in 157 batches, [\d,]+ batches/s\n$")

    def test_c_and_python(self):
        without = subprocess.run([sys.executable, os.path.join(EXAMPLES, "c_and_python.py")], capture_output=True, text=True)
        self.assertEqual(without.returncode, 1)
        self.assertRegex(without.stderr, r"\nusage: c_and_python.py PATH")
        self.assertNotIn("Traceback", without.stderr)
        worker = os.environ.get("C_WORKER")
        if not worker:
            self.skipTest("C_WORKER does not name the program of examples/python/c_worker.c")
        self.assertEqual(run("c_and_python.py", worker),
                         "the sum is 6.5\nC doubled 4 elements in place: [[2.0, 4.0], [6.0, 8.0]]\n"
                         "both together counted to 20000\n")


def has_card():
    """Returns whether torch finds a GPU. In a process of its own: this one stays without torch."""
    program = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", program], timeout=LIMIT).returncode == 0


class Documents(unittest.TestCase):
    """The Python blocks of the documents run, and print what their comments say. Without a GPU, one that needs a GPU fails; it
    does not hang."""

    def check(self, document, least):
        with open(os.path.join(ROOT, "docs", document), encoding="utf-8") as file:
            samples = re.findall(r"^```python\n(.*?)^```$", file.read(), re.MULTILINE | re.DOTALL)
        self.assertGreaterEqual(len(samples), least)
        for number, sample in enumerate(samples):
            if "import torch" in sample and importlib.util.find_spec("torch") is None:
                continue
            with self.subTest(document=document, number=number), tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "sample.py")
                with open(path, "w", encoding="utf-8") as file:
                    file.write(sample)
                if 'device="cuda"' in sample and not has_card():
                    with self.assertRaisesRegex(AssertionError, "ended with 1: "):
                        run_file(path)
                    continue
                expected = re.findall(r"print\(.*\)  # (?!close to)(.*)$", sample, re.MULTILINE)
                said = run_file(path).splitlines()
                self.assertTrue(said)
                self.assertEqual(said, expected or said)

    def test_samples_of_python_md(self):
        self.check("python.md", 3)

    def test_y14_samples_of_cuda_md(self):
        self.check("cuda.md", 1)

    def test_y14_samples_of_best_practices_md(self):
        self.check("best-practices.md", 2)


if __name__ == "__main__":
    unittest.main()
