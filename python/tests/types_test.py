"""mypy --strict accepts the package and a program that uses it; the stubs say what the compiled module has."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

FOLDER = pathlib.Path(__file__).parent / "types"
PACKAGE = os.environ["PYTHONPATH"].split(os.pathsep)[0]
STUBS = ["shoal._shoal", "shoal.multiprocessing.queues", "shoal.multiprocessing.context"]


class Types(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.cache = folder.name  # one for all tests: mypy reads the standard library once

    def run_tool(self, *command):
        environment = {**os.environ, "MYPYPATH": PACKAGE, "MYPY_CACHE_DIR": self.cache}
        return subprocess.run(command, env=environment, capture_output=True, text=True, cwd=self.cache)

    def test_package_and_program(self):
        done = self.run_tool("mypy", "--config-file", FOLDER / "mypy.ini", "-p", "shoal")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        done = self.run_tool("mypy", "--config-file", FOLDER / "mypy.ini", FOLDER / "sample.py")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_wrong_programs_are_found(self):
        wrong = {"mp.Queue(maxsize='3')": "arg-type",
                 "mp.Process(targets=print)": "call-arg",
                 "shoal.train(worker=3)": "arg-type",
                 "x: int = shoal.tensor([1]).dtype": "assignment",
                 "mp.get_context('fork').Lock().acquire(timeout='a')": "arg-type"}
        self.find(wrong)

    def test_y14_arrays_have_the_types_of_numpy(self):
        self.find({"shoal.zeros(3).no_such_name": "attr-defined",
                   "shoal.empty_like([1]).no_such_name": "attr-defined",
                   "shoal.from_numpy([1, 2])": "type-var"})

    def find(self, wrong):
        """Expects the error that belongs to each line."""
        path = pathlib.Path(self.cache) / "wrong.py"
        path.write_text("import shoal\nimport shoal.multiprocessing as mp\n" + "\n".join(wrong))
        done = self.run_tool("mypy", "--config-file", FOLDER / "mypy.ini", path)
        found = [line.split("[")[-1].rstrip("]") for line in done.stdout.splitlines() if ": error:" in line]
        self.assertEqual(found, list(wrong.values()), done.stdout + done.stderr)

    def test_stubs(self):
        done = self.run_tool("stubtest", "--mypy-config-file", FOLDER / "mypy.ini", "--allowlist", FOLDER / "allowed.txt",
                             "--ignore-unused-allowlist", "--concise", *STUBS)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    if shutil.which("mypy") is None or shutil.which("stubtest") is None:
        print("skipped: mypy is not installed")
        sys.exit(77)
    unittest.main()
