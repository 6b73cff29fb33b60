"""The standard module's own: importing it gives multiprocessing.process. Our Process classes are in context.py."""
import multiprocessing.process
import sys

sys.modules[__name__] = multiprocessing.process
