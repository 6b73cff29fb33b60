"""Runs tests in processes of their own, one for each class or group of tests, with a time limit for each test, and collects how each ended.

The process of a job reports each test by a line in a file, as worker.Report writes it. Used by ./run and by ../pytorch/run.
"""
import collections
import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time


@dataclasses.dataclass
class Options:
    """What all jobs share."""
    python: pathlib.Path
    worker: pathlib.Path  # the program that runs tests: see worker.py
    folder: pathlib.Path
    limit: float
    verbose: bool
    environment: dict[str, str] = dataclasses.field(default_factory=dict)  # variables besides those of the runner

    def variables(self) -> dict[str, str]:
        """Returns the environment of a worker: that of the runner without Python's variables, and its own."""
        return {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")} | self.environment


@dataclasses.dataclass
class Outcome:
    """How one test ended: passed, failed, skipped or listed."""
    test: str
    outcome: str
    text: str = ""
    seconds: float = 0.0


def processes_of(session: int) -> list[int]:
    """The live processes of a session."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = pathlib.Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == session and fields[0] != "Z":
                found.append(int(entry))
    return found


def command_line(pid: int) -> str:
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return "?"


def kill_session(session: int) -> None:
    for pid in processes_of(session):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


class Job:
    """The tests of one class, run by one worker process after another until each has an outcome."""

    def __init__(self, options: Options, module: str, name: str, tests: list[str]):
        self.options, self.module, self.name = options, module, name
        self.left = list(tests)
        self.outcomes: list[Outcome] = []
        self.running: str | None = None
        self.finished = False
        self.start()

    def start(self) -> None:
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="c", dir=self.options.folder))
        self.report = self.folder / "report"
        self.report.touch()
        self.read = 0
        self.began = time.monotonic()
        self.running, self.finished = None, False
        (self.folder / "cwd").mkdir()
        environment = self.options.variables() | {"TMPDIR": str(self.folder)}
        with open(self.folder / "output", "wb") as output:
            self.process = subprocess.Popen(
                [self.options.python, self.options.worker, "run", self.module, self.report, *self.left],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=self.folder / "cwd", env=environment,
                start_new_session=True)

    def output(self) -> str:
        return (self.folder / "output").read_text(errors="replace")[-4000:]

    def take_report(self) -> None:
        """Reads what the worker has reported since the last call."""
        with open(self.report, encoding="utf-8") as file:
            file.seek(self.read)
            lines = file.readlines()
            self.read = file.tell()
        for line in lines:
            event = json.loads(line)
            if event["event"] == "start":
                self.running, self.began = event["test"], time.monotonic()
            elif event["event"] == "end":
                self.running, self.began = None, time.monotonic()
                self.end(Outcome(event["test"], event["outcome"], event["text"], event["seconds"]))
            else:
                self.finished = True
                if event["altered"]:
                    self.end(Outcome(f"{self.name} (what it leaves behind)", "failed", self.output()))

    def end(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        if outcome.test in self.left:
            self.left.remove(outcome.test)
        if self.options.verbose:
            print(f"    {outcome.outcome:8}{outcome.seconds:7.2f} s  {outcome.test}", flush=True)

    def step(self) -> bool:
        """Looks after the worker. Returns False when the class is done."""
        status = self.process.poll()
        self.take_report()
        if status is None:
            if time.monotonic() - self.began > self.options.limit:
                self.give_up()
            return True
        return self.worker_ended(status)

    def give_up(self) -> None:
        os.kill(self.process.pid, signal.SIGXCPU)
        time.sleep(0.5)
        kill_session(self.process.pid)
        self.process.wait()

    def worker_ended(self, status: int) -> bool:
        """Settles what the worker left undone. Returns True if another worker goes on."""
        if status != 0 or not self.finished:
            how = f"exited with {status}" if status >= 0 else f"ended by {signal.Signals(-status).name}"
            if time.monotonic() - self.began > self.options.limit:
                how = f"did not end in {self.options.limit:g} s"
            where = "at exit" if self.finished else "between two tests"
            self.end(Outcome(self.running or f"{self.name} ({where})", "failed", f"{how}\n{self.output()}",
                             time.monotonic() - self.began))
        self.settle_leftovers()
        if not self.finished and self.running and self.left:
            self.start()
            return True
        for test in self.left:
            self.outcomes.append(Outcome(test, "failed", "not run"))
        return False

    def settle_leftovers(self) -> None:
        """What the worker started ends soon after it; a process that does not is a leak."""
        deadline = time.monotonic() + 5
        while (left := processes_of(self.process.pid)) and time.monotonic() < deadline:
            time.sleep(0.02)
        if left:
            lines = "\n".join(f"process {pid}: {command_line(pid)}" for pid in left)
            kill_session(self.process.pid)
            if self.finished:
                self.end(Outcome(f"{self.name} (processes left behind)", "failed", lines))


def run_jobs(options: Options, module: str, classes: dict[str, list[str]], workers: int) -> list[Outcome]:
    """Runs the classes, so many at a time."""
    waiting = collections.deque(classes.items())
    active: list[Job] = []
    outcomes: list[Outcome] = []
    try:
        while waiting or active:
            while waiting and len(active) < workers:
                active.append(Job(options, module, *waiting.popleft()))
            for job in list(active):
                if not job.step():
                    active.remove(job)
                    outcomes += job.outcomes
            time.sleep(0.02)
    finally:
        for job in active:
            kill_session(job.process.pid)
            job.process.wait()
    return outcomes


def list_tests(options: Options, module: str) -> list[str]:
    """Returns the tests of a module, in their order."""
    answer = subprocess.run([options.python, options.worker, "list", module], capture_output=True, text=True, cwd=options.folder,
                            env=options.variables())
    if answer.returncode:
        sys.exit(f"{module}: the tests cannot be imported\n{answer.stderr}")
    return answer.stdout.split()
