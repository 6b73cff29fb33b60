"""The standard module's own: importing it gives multiprocessing.resource_tracker."""
import multiprocessing.resource_tracker
import sys

sys.modules[__name__] = multiprocessing.resource_tracker
