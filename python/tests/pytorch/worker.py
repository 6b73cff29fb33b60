"""Runs tests of one of PyTorch's test files in this process and reports each as it begins and ends.

usage: worker.py list FILE                    prints the tests of FILE, one a line
       worker.py run FILE REPORT TEST ...     runs the tests (Class.method) and appends one JSON line to REPORT for each event

FILE is run as the main program, as PyTorch runs it: children that are fresh Pythons import it, and not this program. Only its last call,
run_tests(), is ours. With OWN_GRADS in the environment, gradients are not shared.
"""
import faulthandler
import os
import pathlib
import runpy
import signal
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "cpython"))
from worker import Report  # noqa: E402

del sys.path[:2]
COMMAND, FILE, *ARGUMENTS = sys.argv[1:]


def classes_of(module):
    """The test classes of the module by name, in the module's order."""
    return {name: value for name, value in vars(module).items()
            if isinstance(value, type) and issubclass(value, unittest.TestCase) and value.__module__ == "__main__"}


def run_tests(*_):
    classes = classes_of(sys.modules["__main__"])
    if COMMAND == "list":
        for name, case in classes.items():
            for method in unittest.defaultTestLoader.getTestCaseNames(case):
                print(f"{name}.{method}")
        return
    suite = unittest.TestSuite(classes[test.split(".")[0]](test.split(".")[1]) for test in ARGUMENTS[1:])
    report = Report(ARGUMENTS[0])
    suite.run(report)
    report.write(event="finished", altered=False)


def main():
    # The runner sends this signal to a test that takes too long, to see where it stands.
    faulthandler.register(signal.SIGXCPU, all_threads=True)
    sys.argv = [FILE]
    sys.path.insert(0, os.path.dirname(FILE))
    from torch.testing._internal import common_utils
    common_utils.run_tests = run_tests
    if "OWN_GRADS" in os.environ:
        import shoal.multiprocessing
        shoal.multiprocessing.share_grads(False)
    runpy.run_path(FILE, run_name="__main__")


if __name__ == "__main__":
    main()
