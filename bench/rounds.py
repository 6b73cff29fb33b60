"""Measures Python code, for the benchmarks here and in peers/."""
import statistics
import time


def median_seconds(work, rounds, count):
    """Runs work many times. Returns the median of the seconds for one of its count steps."""
    seconds = []
    for _ in range(rounds):
        begun = time.perf_counter()
        work()
        seconds.append((time.perf_counter() - begun) / count)
    return statistics.median(seconds)
