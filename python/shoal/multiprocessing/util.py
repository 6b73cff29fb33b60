"""The standard module's own: importing it gives multiprocessing.util."""
import multiprocessing.util
import sys

sys.modules[__name__] = multiprocessing.util
