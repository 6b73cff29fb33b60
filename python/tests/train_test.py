"""Tests of shoal.train, with the smallest model: a job takes less than a second."""

import inspect
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import shoal
from shoal import _cli, _train
import support  # noqa: F401: Ctrl-C works

SMALL = {"method": "serial", "model": "logistic"}


def children() -> list[str]:
    """The commands of this process's children. A thread's file has only those that it started, and here is one thread."""
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return file.read().split()


class Train(unittest.TestCase):
    def setUp(self):
        self.assertEqual(children(), [])
        self.addCleanup(lambda: self.assertEqual(children(), []))
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name):
        return os.path.join(self.folder, name)

    def test_result(self):
        seen = []
        done = shoal.train(**SMALL, epochs=2, lr=0.02, save=self.path("w.safetensors"), json=self.path("log.jsonl"),
                           progress=seen.append)
        self.assertEqual([epoch["epoch"] for epoch in done.epochs], [1, 2])
        self.assertGreater(done.test_accuracy, 0.9)
        self.assertEqual(done.test_accuracy, done.epochs[-1]["test_accuracy"])
        self.assertFalse(done.stopped)
        self.assertEqual((done.settings["lr"], done.settings["model"]), (0.02, "logistic"))
        self.assertEqual(seen, done.events)
        with open(self.path("log.jsonl")) as file:
            self.assertEqual([json.loads(line) for line in file], seen)
        self.assertEqual({name: w.shape for name, w in done.load_weights("shoal").items()},
                         {"fc.bias": (10,), "fc.weight": (10, 784)})
        self.assertIn("test_accuracy", dir(done))
        self.assertIn("logistic", repr(done))
        with self.assertRaises(AttributeError):
            done.no_such_field

    def test_resume(self):
        shoal.train(**SMALL, epochs=1, save=self.path("w.safetensors"))
        done = shoal.train(resume=self.path("w.safetensors"), epochs=2)
        self.assertEqual(done.epochs[-1]["epoch"], 2)
        self.assertIn("fc.weight", done.load_weights("shoal"))

    def test_every_option_is_a_keyword(self):
        text = subprocess.run([_cli.program(), "train", "--help"], capture_output=True, text=True, check=True).stdout
        options = set(re.findall(r"^  (?:-h, )?--([a-z0-9-]+)", text, re.MULTILINE))
        self.assertGreater(len(options), 30)
        ours = {name.replace("_", "-") for name in inspect.signature(shoal.train).parameters}
        self.assertEqual(options - {"help", "version", "quiet", "print-config"}, ours - {"progress", "unknown", "card-share"})  # a name of 0.2

    def test_flags(self):
        self.assertEqual(list(_train._arguments({"allow_nan": True, "shard": False, "overwrite": False, "lr": 0.5,
                                                 "data": None})),
                         ["--allow-nan", "--no-shard", "--lr=0.5"])

    def test_unknown_keyword(self):
        with self.assertRaisesRegex(TypeError, "'worker'; did you mean workers"):
            shoal.train(worker=2)
        with self.assertRaisesRegex(TypeError, "'zzz'$"):
            shoal.train(zzz=2)

    def test_errors_of_the_program(self):
        with self.assertRaisesRegex(ValueError, "^--workers '0': expected"):
            shoal.train(workers=0)
        with self.assertRaisesRegex(ValueError, "logistik"):
            shoal.train(model="logistik")
        with self.assertRaisesRegex((shoal.Error, ValueError), self.folder):
            shoal.train(**SMALL, data=self.folder)
        with (mock.patch.dict(os.environ, PATH=self.folder, CUDA_MPS_PIPE_DIRECTORY=self.folder),
              self.assertRaisesRegex(ValueError, "a worker's share of the GPU needs MPS, but .* is not installed")):
            shoal.train(device="cuda", cuda_share=50)
        with self.assertRaisesRegex(ValueError, "^--cuda-share needs --device cuda"):
            shoal.train(card_share=50)  # the name in 0.2
        with self.assertRaisesRegex(ValueError, "save=FILE"):
            shoal.train(**SMALL, epochs=1).weights

    def test_a_callback_that_returns_false_stops_the_job(self):
        done = shoal.train(**SMALL, epochs=100000, save=self.path("w.safetensors"),
                           progress=lambda event: event["event"] != "epoch")
        self.assertTrue(done.stopped)
        self.assertLess(len(done.epochs), 100)
        self.assertIn("fc.weight", done.load_weights("shoal"))

    def test_a_callback_that_raises_leaves_nothing(self):
        def raise_it(event):
            if event["event"] == "epoch":
                raise ZeroDivisionError

        with self.assertRaises(ZeroDivisionError):
            shoal.train("hogwild", "logistic", epochs=100000, workers=2, progress=raise_it)

    def test_ctrl_c(self):
        """Ctrl-C in a terminal signals the process group of the program; here it is that of a new session."""
        program = f"""if True:
            import shoal
            def ready(event):
                if event['event'] == 'epoch':
                    print(event['epoch'], flush=True)
            try:
                shoal.train(**{SMALL!r}, epochs=100000, save={self.path("w.safetensors")!r}, progress=ready)
            except KeyboardInterrupt:
                print('interrupted', flush=True)
            """
        with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True,
                              start_new_session=True) as job:
            self.assertEqual(job.stdout.readline(), "1\n")
            os.killpg(job.pid, signal.SIGINT)
            self.assertEqual(job.communicate(timeout=300)[0].splitlines()[-1], "interrupted")
        self.assertEqual(job.returncode, 0)
        self.assertIn("fc.weight", shoal.load(self.path("w.safetensors"), "shoal"))

    def test_a_job_that_is_killed(self):
        def kill(event):
            if event["event"] == "begin":
                os.kill(int(children()[0]), signal.SIGKILL)

        with self.assertRaisesRegex(shoal.Error, "SIGKILL"):
            shoal.train(**SMALL, epochs=100000, progress=kill)

    def test_python_m_shoal(self):
        done = subprocess.run([sys.executable, "-m", "shoal", "train", "--workers", "0"], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("--workers '0'", done.stderr)


if __name__ == "__main__":
    unittest.main()
