"""The standard module's own: importing it gives multiprocessing.dummy, which runs threads."""
import multiprocessing.dummy.connection
import sys

sys.modules[__name__] = multiprocessing.dummy
sys.modules[__name__ + ".connection"] = multiprocessing.dummy.connection
