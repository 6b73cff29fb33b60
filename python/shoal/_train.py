"""shoal.train: training jobs of the program `shoal train`, run as a child of this process."""

from __future__ import annotations

import contextlib
import difflib
import inspect
import json as json_module
import os
import signal
import subprocess
import tempfile
import typing
from collections.abc import Callable, Iterator

from shoal import _cli, _files
from shoal._shoal import Error

__all__ = ["Event", "Path", "Training", "train"]

Event = dict[str, typing.Any]
Path = typing.Union[str, "os.PathLike[str]"]

_USAGE = 2  # the program's exit status for bad options
_SECONDS_TO_STOP = 60.0


class Training:
    """The result of a training job.

    The fields of its summary are attributes: `test_accuracy`, `test_loss`, `train_loss`, `seconds`, `train_seconds`,
    `images`, `images_per_second`, `deaths` (of workers), `stopped` (by Ctrl-C or by the callback), `reached_epoch` (with
    `until`), and for a3c `episodes` and `reward`.
    """

    summary: Event
    """All fields of the summary."""
    settings: Event
    """The settings of the job: method, model, lr and so on."""
    epochs: list[Event]
    """The curves: one dict for each epoch, with `epoch`, `seconds`, `train_loss`, `test_loss`, `test_accuracy` ..."""
    events: list[Event]
    """Everything that the program reported, in order."""
    path: Path | None
    """The file with the weights, if `save` or `resume` was given."""

    def __init__(self, events: list[Event], path: Path | None) -> None:
        self.events = events
        self.path = path
        self.summary = _without_name(events, "summary")
        self.settings = _without_name(events, "begin")
        self.epochs = [event for event in events if event["event"] == "epoch"]

    def __getattr__(self, name: str) -> typing.Any:
        try:
            return self.__dict__["summary"][name]
        except KeyError:
            raise AttributeError(f"the result of a training job has no {name!r}") from None

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.summary})

    def __repr__(self) -> str:
        shown = {**self.settings, **self.summary}
        names = ("method", "model", "workers", "seconds", "test_accuracy", "reward", "stopped")
        return f"Training({', '.join(f'{name}={shown[name]!r}' for name in names if shown.get(name) is not None)})"

    @property
    def weights(self) -> dict[str, typing.Any]:
        """The trained weights by name, as numpy arrays, from the file of `save`. See also `load_weights`."""
        return self.load_weights()

    def load_weights(self, framework: str = "numpy") -> dict[str, typing.Any]:
        """Reads the weights from the file of `save`: for "numpy", "torch" (a state dict) or "shoal"."""
        if self.path is None:
            raise ValueError("train() saved no weights: call it with save=FILE")
        tensors = _files.load(self.path, framework)
        return {name: tensor for name, tensor in tensors.items() if not name.startswith("shoal/")}


def train(
    method: str | None = None,
    model: str | None = None,
    *,
    data: Path | None = None,
    workers: int | None = None,
    epochs: int | None = None,
    until: float | None = None,
    lr: float | None = None,
    lr_decay: float | None = None,
    momentum: float | None = None,
    batch: int | None = None,
    seed: int | None = None,
    shard: bool | None = None,
    shared_state: bool | None = None,
    average: str | None = None,
    rounds_per_epoch: int | None = None,
    steps: int | None = None,
    rounds: int | None = None,
    clients: int | None = None,
    split: str | None = None,
    fraction: float | None = None,
    local_epochs: int | None = None,
    server_momentum: float | None = None,
    env: str | None = None,
    env_steps: int | None = None,
    rollout: int | None = None,
    gamma: float | None = None,
    entropy: float | None = None,
    save: Path | None = None,
    resume: Path | None = None,
    overwrite: bool | None = None,
    json: Path | None = None,
    report: Path | None = None,
    tensorboard: Path | None = None,
    restarts: int | None = None,
    allow_nan: bool | None = None,
    start: str | None = None,
    device: str | None = None,
    mps: str | None = None,
    cuda_share: int | None = None,
    tf32: bool | None = None,
    config: Path | None = None,
    progress: Callable[[Event], object] | None = None,
    card_share: int | None = None,  # the name of cuda_share in 0.2
    **unknown: typing.Never,
) -> Training:
    """Trains a model with several processes, and returns the summary and the curves.

    The keywords are the options of the program `shoal train`, with underscores for dashes; `python -m shoal train
    --help` describes them and their defaults. Without any: hogwild, the model mnist-cnn on MNIST, 4 workers, 3 epochs.

    >>> done = shoal.train("hogwild", workers=4, epochs=3, save="mnist.safetensors")
    >>> done.test_accuracy, [epoch["test_loss"] for epoch in done.epochs], done.weights["conv1.weight"].shape

    `progress` is called with each event of the job, a dict: "begin", "epoch", "save", "death" and so on in its field
    "event". If it returns False, the job stops, saves, and `train` returns with `stopped` true. If it raises, or on
    Ctrl-C, the job is stopped in the same way and the exception goes on after it has ended.

    `data` is a folder with the four files of MNIST, or a name. A package from a wheel has no data sets: give a folder, or
    set SHOAL_DATA to the folder that has them; `python -m shoal data list` says where to get them.

    Raises ValueError for bad options, and `shoal.Error` if the job fails, with the program's message.
    """
    options = {name: value for name, value in locals().items() if name not in ("json", "progress", "unknown")}
    if unknown:
        raise TypeError(_unknown_text(next(iter(unknown))))
    command = [_cli.program(), "train", "--quiet", "--json", "-", *_arguments(options)]
    with _open_or_nothing(json) as copy:
        events = _run(command, progress, copy)
    return Training(events, save if save is not None else resume)


def _without_name(events: list[Event], name: str) -> Event:
    found = [event for event in events if event["event"] == name]
    return {key: value for key, value in found[-1].items() if key != "event"} if found else {}


def _unknown_text(name: str) -> str:
    known = [known for known in inspect.signature(train).parameters if known != "unknown"]
    close = difflib.get_close_matches(name, known, n=3)
    hint = f"; did you mean {' or '.join(close)}?" if close else ""
    return f"train() got an unexpected keyword argument {name!r}{hint}"


def _arguments(options: dict[str, typing.Any]) -> Iterator[str]:
    """The command line of some options. None stands for the program's default."""
    for name, value in options.items():
        option = "--" + name.replace("_", "-")
        if value is None:
            continue
        if isinstance(value, bool):
            if value:
                yield option
            elif name != "overwrite":  # the one flag that no config file sets
                yield option.replace("--", "--no-", 1)
        else:
            yield f"{option}={os.fspath(value) if hasattr(value, '__fspath__') else value}"


def _open_or_nothing(path: Path | None) -> typing.ContextManager[typing.TextIO | None]:
    if path is None:
        return contextlib.nullcontext()
    return open(path, "w", encoding="utf-8")


def _run(command: list[str], progress: Callable[[Event], object] | None, copy: typing.TextIO | None) -> list[Event]:
    events: list[Event] = []
    with tempfile.TemporaryFile() as errors, _job(command, errors) as job:
        assert job.stdout is not None
        stopping = False
        for line in job.stdout:
            event = json_module.loads(line)
            events.append(event)
            if copy is not None:
                copy.write(line)
                copy.flush()
            if progress is not None and not stopping and progress(event) is False:
                stopping = True
                job.send_signal(signal.SIGTERM)
        status = job.wait()
        if status != 0 and not (stopping and status == 128 + signal.SIGTERM):
            errors.seek(0)
            _raise(status, errors.read().decode(errors="replace"))
    return events


@contextlib.contextmanager
def _job(command: list[str], errors: typing.IO[bytes]) -> Iterator[subprocess.Popen[str]]:
    """Runs the program, and ends it if the body raises. It has a process group of its own: Ctrl-C in a terminal goes to
    all processes of a group, and the program would get a second signal from here, which does not let it save."""
    job = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True,
                           process_group=0)
    try:
        yield job
    except BaseException:
        job.terminate()
        try:
            job.communicate(timeout=_SECONDS_TO_STOP)
        except BaseException:  # a second Ctrl-C, or it does not end
            job.kill()
            job.wait()
            raise
        raise
    finally:
        assert job.stdout is not None
        job.stdout.close()


def _raise(status: int, text: str) -> typing.NoReturn:
    lines = [line for line in text.splitlines() if line.strip()]
    line = lines[-1].removeprefix("shoal train: ") if lines else ""
    if status == _USAGE:
        raise ValueError(line)
    ended = f"ended with status {status}" if status >= 0 else f"was killed by {signal.Signals(-status).name}"
    raise Error(line or f"the program {ended}")
