"""The standard module's own: importing it gives multiprocessing.resource_sharer."""
import multiprocessing.resource_sharer
import sys

sys.modules[__name__] = multiprocessing.resource_sharer
