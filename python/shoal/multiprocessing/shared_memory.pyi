"""Types of shared_memory.py: those of the standard module."""

from multiprocessing.shared_memory import *
