"""The standard module's own: importing it gives multiprocessing.shared_memory."""
import multiprocessing.shared_memory
import sys

sys.modules[__name__] = multiprocessing.shared_memory
