"""Types of dummy.py: those of the standard module."""

from multiprocessing.dummy import *
