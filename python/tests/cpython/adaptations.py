"""What is changed in CPython's tests besides the module's name, each with the reason.

An entry replaces one passage that looks at something private of the standard module in passing, so that the rest of that test still runs.
A test that is about something private as a whole stands in skip.txt instead.
"""

SERVER = ("util._cleanup_tests stops the standard module's fork server and waits for its resource tracker; our fork server, which uses "
          "that tracker too, has to be stopped before")
SHARER = ("ours sends fds, and with forkserver those of the standard module's objects, through the standard resource sharer; its thread, "
          "which TestPicklingConnections stops in any case, has to be stopped before the test looks for threads that are left")

# file: ((passage, which must occur exactly once; what stands there instead; reason), ...)
TABLE = {
    "_test_multiprocessing.py": (
        ("        if self.TYPE == 'processes':\n"
         "            try:\n"
         "                sleepers = (cond._sleeping_count.get_value() -\n",
         "        if self.TYPE == 'processes' and hasattr(cond, '_sleeping_count'):\n"
         "            try:\n"
         "                sleepers = (cond._sleeping_count.get_value() -\n",
         "the standard Condition is made of three semaphores, ours of none; the wake-ups are still counted by the test"),
        ("                if rtype == \"noop\":\n",
         "                if rtype in (\"noop\", \"semaphore\"):\n",
         "our locks have no name in the file system that could leak; shared_memory is still tested"),
        ("            modules.remove('multiprocessing.popen_spawn_win32')\n",
         "            modules = [m for m in modules if m != 'multiprocessing.popen_spawn_win32']\n",
         "ours has no file for Windows; the names of every file that it has are tested"),
        ("    def tearDownModule():\n"
         "        need_sleep = False\n",
         "    def tearDownModule():\n"
         "        need_sleep = False\n"
         "        from multiprocessing import forkserver, resource_sharer\n"
         "        resource_sharer.stop(timeout=support.LONG_TIMEOUT)\n"
         "        forkserver._forkserver._stop()\n",
         f"{SHARER}; {SERVER}"),
        ("        test.support.gc_collect()\n\n"
         "        processes = set(multiprocessing.process._dangling) - set(cls.dangling[0])\n",
         "        test.support.gc_collect()\n"
         "        from multiprocessing import resource_sharer\n"
         "        resource_sharer.stop(timeout=support.LONG_TIMEOUT)\n\n"
         "        processes = set(multiprocessing.process._dangling) - set(cls.dangling[0])\n",
         SHARER),
    ),
    "test_concurrent_futures.py": (
        ("    def tearDown(self):\n"
         "        support.reap_children()\n",
         "    def tearDown(self):\n"
         "        from multiprocessing import resource_sharer\n"
         "        resource_sharer.stop(timeout=support.LONG_TIMEOUT)\n"
         "        support.reap_children()\n",
         SHARER),
        ("    unittest.addModuleCleanup(multiprocessing.util._cleanup_tests)\n",
         "    from multiprocessing.forkserver import _forkserver\n"
         "    unittest.addModuleCleanup(multiprocessing.util._cleanup_tests)\n"
         "    unittest.addModuleCleanup(_forkserver._stop)\n",
         SERVER),
    ),
}
