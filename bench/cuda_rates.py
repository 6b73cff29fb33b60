#!/usr/bin/env python3
"""Training on a GPU with the program shoal: images per second, rounds of fedavg, and whole jobs from the shell.

usage: bench/cuda_rates.py SHOAL [CASE ...]

Prints one JSON object a line. A rate is taken from one job: the images between the end of its first epoch and of its last,
over the seconds of training between them. So it has all that a user waits for while training, and not the start. A job
whose accuracy is too low gives no rate.
"""
import json
import subprocess
import sys
import time

LIMIT = 200  # seconds for one job

# name: least accuracy in percent, arguments
RATES = {
    "mnist_cnn": (96, ["--method", "serial", "--epochs", "60"]),
    "mnist_cnn_4": (96, ["--method", "hogwild", "--workers", "4", "--epochs", "60"]),
    "mnist_cnn_8": (96, ["--method", "hogwild", "--workers", "8", "--epochs", "60"]),
}

# The same four with and without TF32; without momentum, like the peer.
FEDAVG_CNN = {
    "fedavg_cnn_b10%s": ["--method", "serial", "--batch", "10", "--epochs", "4", "--lr", "0.05"],
    "fedavg_cnn_b50%s": ["--method", "serial", "--batch", "50", "--epochs", "8", "--lr", "0.05"],
    "fedavg_cnn_b10%s_4": ["--method", "hogwild", "--workers", "4", "--batch", "10", "--epochs", "3", "--lr", "0.02"],
    "fedavg_cnn_b50%s_4": ["--method", "hogwild", "--workers", "4", "--batch", "50", "--epochs", "6", "--lr", "0.02"],
}
for name, arguments in FEDAVG_CNN.items():
    for tf32 in (False, True):
        RATES[name % ("_tf32" if tf32 else "")] = (97, ["--model", "fedavg-cnn", "--momentum", "0", *arguments, *["--tf32"] * tf32])

# name: least accuracy, arguments. The time is that of a round after the first, tests included.
ROUNDS = {f"fedavg_round_{workers}": (90, ["--method", "fedavg", "--workers", str(workers), "--rounds", "6"])
          for workers in (1, 2, 4)}

# name: least accuracy, arguments. The time is that of the whole program.
JOBS = {
    "hogwild_4_job": (97.3, ["--method", "hogwild", "--workers", "4", "--epochs", "1"]),
    "sync_4_job": (98.3, ["--method", "sync", "--workers", "4", "--epochs", "12", "--lr", "0.04"]),
}


def tell(name, value, unit, **more):
    print(json.dumps({"name": "cuda_" + name, "value": value, "unit": unit, **more}), flush=True)


def train(shoal, arguments):
    """Runs a job. Returns its events and its seconds."""
    begun = time.perf_counter()
    run = subprocess.run([shoal, "train", "--device", "cuda", "--quiet", "--json", "-", *arguments], capture_output=True,
                         text=True, timeout=LIMIT)
    seconds = time.perf_counter() - begun
    if run.returncode:
        sys.exit(f"shoal train {' '.join(arguments)}: exit status {run.returncode}: {run.stderr.strip()}")
    return [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")], seconds


def accuracy_of(events, least, name):
    accuracy = 100 * events[-1]["test_accuracy"]
    if accuracy < least:
        sys.exit(f"{name}: accuracy {accuracy:.2f} % is below {least}, so its number does not count")
    return accuracy


def main():
    cases = {**RATES, **ROUNDS, **JOBS}
    if len(sys.argv) < 2 or "--help" in sys.argv or not cases.keys() >= set(sys.argv[2:]):
        sys.exit(f"{__doc__}\ncases: {' '.join(cases)}")
    shoal, wanted = sys.argv[1], sys.argv[2:] or [*cases]
    for name in wanted:
        least, arguments = cases[name]
        events, seconds = train(shoal, arguments)
        accuracy = accuracy_of(events, least, name)
        if name in JOBS:
            tell(name, seconds, "s", accuracy=accuracy)
            continue
        epochs = [event for event in events if event["event"] == "epoch"]
        if name in ROUNDS:
            tell(name, (epochs[-1]["seconds"] - epochs[0]["seconds"]) / (len(epochs) - 1), "s", accuracy=accuracy)
            continue
        images = epochs[-1]["images"] - epochs[0]["images"]
        tell(name, images / (epochs[-1]["train_seconds"] - epochs[0]["train_seconds"]), "1/s", accuracy=accuracy)


if __name__ == "__main__":
    main()
