"""A module for process_test.py that a fork server cannot preload."""
import shoal.multiprocessing as mp

lock = mp.Lock()
