"""Types of util.py: those of the standard module."""

from multiprocessing.util import *
