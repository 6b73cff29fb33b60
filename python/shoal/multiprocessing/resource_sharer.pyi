"""Types of resource_sharer.py: those of the standard module."""

from multiprocessing.resource_sharer import *
