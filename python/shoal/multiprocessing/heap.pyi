"""Types of heap.py: those of the standard module."""

from multiprocessing.heap import Arena as Arena, BufferWrapper as BufferWrapper
