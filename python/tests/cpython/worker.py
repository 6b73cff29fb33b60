"""Runs tests of one class in this process and reports each as it begins and ends.

usage: worker.py list MODULE          prints the tests of MODULE, one a line
       worker.py run MODULE REPORT TEST ...   runs the tests (Class.method) and appends one JSON line to REPORT for each event

The report is a file that is opened for each line: no descriptor and no thread is added to the process that the tests look at.
"""
import faulthandler
import importlib
import json
import signal
import sys
import time
import unittest

# They test the standard module's managers and threads, which ours only names.
LEFT_OUT = ("WithManager", "WithThreads")


def classes_of(module):
    """The test classes of the module by name, in the module's order."""
    return {name: value for name, value in vars(module).items()
            if isinstance(value, type) and issubclass(value, unittest.TestCase) and not name.startswith(LEFT_OUT)
            and value.__module__ == module.__name__}


class Report(unittest.TestResult):
    """Writes what happens to a file."""

    def __init__(self, path):
        super().__init__()
        self.path = path
        self.outcomes = {}
        self.began = {}

    def write(self, **event):
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(event) + "\n")

    @staticmethod
    def name(test):
        """Class.method, or what unittest says for the set-up of a class."""
        parts = test.id().split(".")
        return ".".join(parts[-2:]) if isinstance(test, unittest.TestCase) else test.id()

    def startTest(self, test):
        super().startTest(test)
        name = self.name(test)
        self.began[name] = time.monotonic()
        self.outcomes[name] = ("passed", "")
        self.write(event="start", test=name)

    def stopTest(self, test):
        name = self.name(test)
        outcome, text = self.outcomes[name]
        self.write(event="end", test=name, outcome=outcome, text=text, seconds=time.monotonic() - self.began[name])
        super().stopTest(test)

    def fail(self, test, error):
        text = self._exc_info_to_string(error, test)
        name = self.name(test)
        if name in self.began:
            self.outcomes[name] = ("failed", self.outcomes[name][1] + text)
        else:
            self.write(event="end", test=name, outcome="failed", text=text, seconds=0.0)

    def addError(self, test, err):
        self.fail(test, err)

    def addFailure(self, test, err):
        self.fail(test, err)

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self.fail(test, err)

    def addSkip(self, test, reason):
        name = self.name(test)
        if name in self.began:
            self.outcomes[name] = ("skipped", reason)
        else:
            self.write(event="end", test=name, outcome="skipped", text=reason, seconds=0.0)


def main():
    # The runner sends this signal to a test that takes too long, to see where it stands.
    faulthandler.register(signal.SIGXCPU, all_threads=True)
    module = importlib.import_module(sys.argv[2])
    classes = classes_of(module)
    if sys.argv[1] == "list":
        for name, case in classes.items():
            for method in unittest.defaultTestLoader.getTestCaseNames(case):
                print(f"{name}.{method}")
        return
    suite = unittest.TestSuite(classes[test.split(".")[0]](test.split(".")[1]) for test in sys.argv[4:])
    report = Report(sys.argv[3])
    suite.run(report)
    from test import support
    report.write(event="finished", altered=support.environment_altered)


if __name__ == "__main__":
    main()
