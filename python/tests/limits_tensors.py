"""B13 from Python: 10,000 torch tensors are put and got where a process may have 64 fds and /dev/shm has 64 KiB.

The same program with torch.multiprocessing fails. Only root can mount a small /dev/shm, in a mount namespace of its own.
"""
import os
import subprocess
import sys
import unittest

try:
    import torch
except ImportError:
    sys.exit(77)

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "limits_program.py")
LIMITS = """
mkdir -p /dev/shm && mount -t tmpfs -o size=64k tmpfs /dev/shm && ulimit -n 64 || exit 99
if head -c 131072 /dev/zero >/dev/shm/large 2>/dev/null; then echo '/dev/shm takes more than 64 KiB'; exit 98; fi
rm -f /dev/shm/large
exec "$@"
"""


def run(module, seconds):
    command = ["unshare", "--mount", "--propagation", "private", "bash", "-c", LIMITS, "bash", sys.executable, PROGRAM, module, str(seconds)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


class Limits(unittest.TestCase):
    def setUp(self):
        if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode != 0:
            self.skipTest("a small /dev/shm can only be mounted by root, in a mount namespace")

    def test_b13_ours(self):
        done = run("shoal.multiprocessing", 300)
        if done.returncode == 99:
            self.skipTest("a tmpfs cannot be mounted here")
        self.assertEqual((done.returncode, done.stdout), (0, "10000 tensors, the sum of their first elements is 49995000\n"),
                         done.stderr)

    def test_torch_fails(self):
        """If this passes one day, the document that shows its output is out of date."""
        done = run("torch.multiprocessing", 10)  # its gets time out
        if done.returncode == 99:
            self.skipTest("a tmpfs cannot be mounted here")
        self.assertNotEqual(done.returncode, 0, done.stdout)


if __name__ == "__main__":
    unittest.main()
