"""Types of process.py: those of the standard module."""

from multiprocessing.process import *
