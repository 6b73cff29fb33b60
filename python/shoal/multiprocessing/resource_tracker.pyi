"""Types of resource_tracker.py: those of the standard module."""

from multiprocessing.resource_tracker import *
