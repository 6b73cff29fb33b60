"""The standard module's own: importing it gives multiprocessing.heap."""
import multiprocessing.heap
import sys

sys.modules[__name__] = multiprocessing.heap
