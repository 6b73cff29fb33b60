"""B70: importing and using shoal.multiprocessing leaves multiprocessing and torch.multiprocessing as they were."""
import importlib.util
import multiprocessing
import os
import subprocess
import sys
import unittest

import shoal.multiprocessing as mp

BEFORE_AND_AFTER = """
import importlib, multiprocessing, multiprocessing.managers, multiprocessing.pool, multiprocessing.queues, sys
import multiprocessing.connection, multiprocessing.heap, multiprocessing.sharedctypes, multiprocessing.synchronize
import multiprocessing.dummy.connection, multiprocessing.popen_forkserver, multiprocessing.resource_sharer
import multiprocessing.shared_memory
sys.path.insert(0, {folder!r})
if {torch}:
    import torch, torch.multiprocessing


def state():
    from multiprocessing import context, process, reduction
    default = context._default_context
    return {{
        "start method": multiprocessing.get_start_method(allow_none=True),
        "default context": (default, default._default_context, default._actual_context, context._concrete_contexts.copy()),
        "reducers": reduction.ForkingPickler._extra_reducers.copy(),
        "reducer": default.reducer,
        "names": {{name: {{key: value for key, value in vars(module).items() if key != "__builtins__"}}
                  for name, module in sys.modules.items() if name.startswith(("multiprocessing", "torch.multiprocessing"))}},
        "current": process.current_process(),
        "children": process.active_children(),
    }}


def check(when):
    after = state()
    for key in before:
        if key == "names":
            for module in before[key]:
                old, new = before[key][module], after[key][module]
                changed = [name for name in old | new if old.get(name) is not new.get(name)]
                assert set(changed) <= allowed.get(module, set()), f"{{when}}: {{module}} has changed: {{changed}}"
        else:
            assert before[key] == after[key], f"{{when}}: {{key}}: {{before[key]}} became {{after[key]}}"


allowed = {{}}
before = state()
import shoal.multiprocessing as mp
for name in sorted(mp._LATER - (set() if {torch} else {{"reductions"}})):  # that one is torch's, and imports it
    importlib.import_module("shoal.multiprocessing." + name)
import shoal.multiprocessing.dummy.connection
check("after the import")

from process_standard_test import use
if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        use(mp.get_context(method))
    mp.set_start_method("spawn")
    # what the standard module itself does when a process is made or something is shared
    allowed = {{"multiprocessing.process": {{"_children"}}, "multiprocessing.util": {{"_temp_dir", "_logger"}}}}
    check("after use")
    queue = multiprocessing.SimpleQueue()
    assert type(queue).__module__ == "multiprocessing.queues", type(queue)
    process = multiprocessing.Process(target=queue.put, args=("by the standard module",))
    assert type(process).__module__ == "multiprocessing.context", type(process)
    process.start()
    print(queue.get())
    process.join()
    print("good")
"""


def tell_methods(queue):
    queue.put((mp.get_start_method(), multiprocessing.get_start_method(allow_none=True)))


def tell_standard_method(queue):
    queue.put(multiprocessing.get_start_method(allow_none=True))


def use(ctx):
    """Uses a context of ours in the usual ways."""
    queue = ctx.Queue()
    processes = [ctx.Process(target=tell_methods, args=(queue,)) for _ in range(2)]
    for process in processes:
        process.start()
    assert [queue.get() for _ in processes] == [(ctx.get_start_method(), None)] * 2
    for process in processes:
        process.join()
        assert process.exitcode == 0
    with ctx.Lock():
        pass


class Standard(unittest.TestCase):
    def run_check(self, torch):
        program = BEFORE_AND_AFTER.format(folder=os.path.dirname(os.path.abspath(__file__)), torch=torch)
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
        self.assertEqual((done.stdout, done.stderr), ("by the standard module\ngood\n", ""))

    def test_b70_multiprocessing_is_as_it_was(self):
        self.run_check(False)

    @unittest.skipUnless(importlib.util.find_spec("torch"), "there is no torch")
    def test_b70_torch_multiprocessing_is_as_it_was(self):
        self.run_check(True)

    def test_b70_a_start_method_of_the_standard_module_reaches_the_child(self):
        program = f"""if True:
            import multiprocessing, sys
            sys.path.insert(0, {os.path.dirname(os.path.abspath(__file__))!r})
            import process_standard_test as t
            multiprocessing.set_start_method("spawn")
            for method in ("fork", "spawn", "forkserver"):
                ctx = t.mp.get_context(method)
                queue = ctx.SimpleQueue()
                process = ctx.Process(target=t.tell_standard_method, args=(queue,))
                process.start()
                print(queue.get())
                process.join()
            print(t.mp.get_start_method(allow_none=True))
        """
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
        self.assertEqual((done.stdout, done.stderr), ("spawn\nspawn\nspawn\nNone\n", ""))

    def test_children_are_joined_at_exit_in_the_order_of_the_standard_module(self):
        """Before the atexit functions that were registered before the first start; unless multiprocessing.util was imported
        before them."""
        program = """if True:
            import atexit, {modules} as mp
            atexit.register(lambda: print("before" if process._popen.returncode is not None else "after"))
            process = mp.get_context("fork").Process(target=str)
            process.start()
        """
        for first, order in (("", "before\n"), ("multiprocessing.util, ", "after\n")):
            for module in ("multiprocessing", "shoal.multiprocessing"):
                done = subprocess.run([sys.executable, "-c", program.format(modules=first + module)], capture_output=True,
                                      text=True, timeout=300)
                self.assertEqual((done.stdout, done.stderr), (order, ""), (first, module))

    def test_every_name_of_the_standard_module_is_here(self):
        self.assertLessEqual(set(multiprocessing.__all__), set(mp.__all__))
        for name in mp.__all__:
            self.assertTrue(hasattr(mp, name), name)

    def test_objects_of_the_standard_module_go_to_our_processes(self):
        for method in ("fork", "spawn", "forkserver"):
            ctx, standard = mp.get_context(method), multiprocessing.get_context(method)
            queue, lock, (reader, writer) = standard.Queue(), standard.Lock(), standard.Pipe(duplex=False)
            process = ctx.Process(target=use_standard, args=(queue, lock, writer))
            process.start()
            self.assertEqual(reader.recv(), "pipe")
            self.assertEqual(queue.get(), "queue")
            process.join()
            self.assertEqual(process.exitcode, 0)
            for each in (reader, writer, queue):
                each.close()

    def test_managers_have_the_signature_of_the_standard_ones(self):
        import inspect
        import multiprocessing.managers
        for name in "BaseManager", "SyncManager":
            ours, standard = (inspect.signature(getattr(module.managers, name)) for module in (mp, multiprocessing))
            self.assertEqual([(p.name, p.kind, p.default) for p in ours.parameters.values()],
                             [(p.name, p.kind, p.default) for p in standard.parameters.values()])

    def test_a_manager_of_ours_works(self):
        for method in ("fork", "spawn", "forkserver"):
            with mp.get_context(method).Manager() as manager:
                self.assertIsInstance(manager._process, mp.context.BaseProcess)
                things = manager.dict(a=1)
                process = mp.get_context(method).Process(target=things.update, args=({"b": 2},))
                process.start()
                process.join()
                self.assertEqual(things.copy(), {"a": 1, "b": 2})


def use_standard(queue, lock, writer):
    with lock:
        queue.put("queue")
    writer.send("pipe")


if __name__ == "__main__":
    unittest.main()
