"""Tests of Process for every start method: arguments, exit codes, waiting, arguments that are shared (B30, B33 to B36)."""
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest

import shoal.multiprocessing as mp
import shoal.torch
from support import LONG, OneMethod, do_nothing, for_each_method, quiet_time, state_of, wait_until_waiting
from shoal.multiprocessing import forkserver

REPEAT = 30


def report(queue, *args, **kwargs):
    me = mp.current_process()
    queue.put((os.getpid(), me.name, me.daemon, me.authkey == b"key", args, kwargs, mp.get_start_method()))


def end_by(how, number):
    if how == "return":
        return
    if how == "signal":
        os.kill(os.getpid(), number)
        signal.pause()
    if how == "exit":
        sys.exit(number)
    os._exit(number)


def finalize(queue):
    queue.put(os.getpid())


def register_finalizer(queue):
    mp.util.Finalize(None, finalize, (queue,), exitpriority=1)


class FakeTorch:
    """What shoal.torch.start_cuda needs of a torch with CUDA."""

    def __init__(self, queue):
        self._C = self.cuda = self
        self._cuda_getCurrentRawStream = self.init = do_nothing
        self.synchronize = queue.put


def use_a_card(queue):
    os.environ["SHOAL_CUDA_DEVICE"] = "3"
    sys.modules["torch"] = FakeTorch(queue)
    shoal.torch.start_cuda()
    queue.put("used")


def fail():
    raise ValueError("what went wrong")


def wait_for(event, begun=None):
    if begun is not None:
        begun.put(os.getpid())
    event.get()


def refuse_to_end(queue):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    queue.put(os.getpid())
    signal.pause()


def count(queue):
    for number in range(100000):
        queue.put(number)
        if number == 5:
            signal.pause()


def send_numbers(*ends):
    for number, end in enumerate(ends):
        end.send(str(number).encode())


class Subclass(mp.Process):
    """A process of the default context, with state and a run() of its own."""

    def __init__(self, queue, number):
        super().__init__(name="counter")
        self.queue, self.number = queue, number

    def run(self):
        self.queue.put((self.name, self.number + 1))


class SlowToUnpickle:
    """Its unpickling waits for the parent."""

    def __init__(self, queue):
        self.queue = queue

    def __reduce__(self):
        return SlowToUnpickle._made, (self.queue,)

    @staticmethod
    def _made(queue):
        queue.get(timeout=LONG)
        return SlowToUnpickle(queue)


class Life(OneMethod):
    def test_b30_arguments_arrive_and_the_standard_module_sees_the_process(self):
        queue = self.ctx.SimpleQueue()
        for i in range(REPEAT):
            process = self.ctx.Process(target=report, name=f"reader {i}", args=(queue, i, "a"), kwargs={"k": [i]},
                                       daemon=i % 2 == 1)
            process.authkey = b"key"
            self.assertIsInstance(process, multiprocessing.process.BaseProcess)
            self.assertIsNone(process.pid)
            process.start()
            got = queue.get()
            process.join()
            self.assertEqual(got, (process.pid, f"reader {i}", i % 2 == 1, True, (i, "a"), {"k": [i]}, self.method))
            self.assertEqual(process.exitcode, 0)

    def test_b30_exit_code_and_signal_are_told_apart(self):
        cases = {("return", 0): 0, ("exit", 0): 0, ("exit", 123): 123, ("_exit", 7): 7, ("signal", signal.SIGABRT): -6,
                 ("signal", signal.SIGKILL): -9, ("signal", signal.SIGTERM): -15, ("signal", signal.SIGRTMIN): -34}
        processes = [(self.ctx.Process(target=end_by, args=case), code) for case, code in cases.items()]
        for process, _ in processes:
            process.start()
        for process, code in processes:
            process.join()
            self.assertEqual(process.exitcode, code, repr(process))
            self.assertFalse(process.is_alive())

    def test_an_exception_is_printed_and_gives_1(self):
        program = (f"import sys; sys.path.insert(0, {os.path.dirname(__file__)!r}); import process_test as t; "
                   f"p = t.mp.get_context({self.method!r}).Process(target=t.fail, name='that'); p.start(); p.join(); "
                   "sys.exit(p.exitcode + 40)")
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=LONG)
        self.assertEqual(done.returncode, 41)
        self.assertIn("Process that:\nTraceback", done.stderr)
        self.assertIn("ValueError: what went wrong", done.stderr)

    def test_b35_join_with_a_timeout_returns_on_time(self):
        event = self.ctx.SimpleQueue()
        process = self.ctx.Process(target=wait_for, args=(event,))
        process.start()
        began, quiet = time.monotonic(), quiet_time()
        self.assertIsNone(process.join(0.2))
        self.assertGreaterEqual(time.monotonic() - began, 0.2)
        self.assertLess(quiet_time() - quiet, 5)
        process.join(0)
        process.join(-1)
        self.assertEqual(multiprocessing.active_children(), [process])
        self.assertTrue(process.is_alive())
        self.assertIsNone(process.exitcode)
        event.put(None)
        process.join(LONG)
        self.assertEqual(process.exitcode, 0)

    def test_terminate_kill_and_the_sentinel(self):
        for end, code in ((mp.Process.terminate, -15), (mp.Process.kill, -9)):
            begun, event = self.ctx.SimpleQueue(), self.ctx.SimpleQueue()
            process = self.ctx.Process(target=wait_for, args=(event, begun))
            with self.assertRaisesRegex(ValueError, "process not started"):
                process.sentinel
            process.start()
            begun.get()
            self.assertEqual(mp.connection.wait([process.sentinel], 0), [])
            end(process)
            self.assertEqual(mp.connection.wait([process.sentinel], LONG), [process.sentinel])
            process.join()
            self.assertEqual(process.exitcode, code)
            end(process)  # it has ended: nothing happens
            process.close()
            with self.assertRaisesRegex(ValueError, "process object is closed"):
                process.exitcode

    def test_a_running_process_cannot_be_closed_nor_started_twice(self):
        event = self.ctx.SimpleQueue()
        process = self.ctx.Process(target=wait_for, args=(event,))
        process.start()
        with self.assertRaisesRegex(ValueError, "Cannot close a process while it is still running"):
            process.close()
        with self.assertRaisesRegex(AssertionError, "cannot start a process twice"):
            process.start()
        event.put(None)
        process.join()

    def test_b36_a_stopped_process_is_not_taken_for_dead(self):
        queue = self.ctx.Queue()
        process = self.ctx.Process(target=count, args=(queue,))
        process.start()
        self.assertEqual([queue.get() for _ in range(6)], list(range(6)))
        os.kill(process.pid, signal.SIGSTOP)
        while state_of(process.pid) != "T":
            pass
        self.assertTrue(process.is_alive())
        process.join(0.1)
        self.assertIsNone(process.exitcode)
        process.terminate()
        process.join(0.1)
        self.assertTrue(process.is_alive())
        os.kill(process.pid, signal.SIGCONT)
        process.join()
        self.assertEqual(process.exitcode, -15)

    def test_b34_starts_do_not_wait_for_the_children(self):
        gate = self.ctx.SimpleQueue()
        processes = [self.ctx.Process(target=do_nothing, args=(SlowToUnpickle(gate),)) for _ in range(4)]
        for process in processes:
            process.start()  # hangs if it waits for the child
        for process in processes:
            gate.put(None)
        for process in processes:
            process.join()
            self.assertEqual(process.exitcode, 0)

    def test_a_subclass_of_the_default_context(self):
        queue = self.ctx.SimpleQueue()
        mp.set_start_method(self.method, force=True)
        try:
            process = Subclass(queue, 41)
            process.start()
            self.assertEqual(queue.get(), ("counter", 42))
            process.join()
            self.assertEqual(process.exitcode, 0)
        finally:
            mp.set_start_method(None, force=True)

    def test_what_cannot_be_pickled_raises_from_start(self):
        process = self.ctx.Process(target=do_nothing, args=(lambda: None,))
        if self.method == "fork":
            process.start()
            process.join()
            self.assertEqual(process.exitcode, 0)
        else:
            with self.assertRaisesRegex(Exception, "pickle"):
                process.start()

    def test_finalizers_run_at_the_end_of_a_child(self):
        queue = self.ctx.SimpleQueue()
        process = self.ctx.Process(target=register_finalizer, args=(queue,))
        process.start()
        process.join()
        self.assertEqual(queue.get(), process.pid)

    def test_work_on_the_card_is_waited_for_once_at_the_end_of_a_child(self):
        queue = self.ctx.SimpleQueue()
        process = self.ctx.Process(target=use_a_card, args=(queue,))
        process.start()
        process.join()
        queue.put("end")
        self.assertEqual(list(iter(queue.get, "end")), ["used", 3])

    def test_a_handle_that_is_dropped_leaves_its_process_running(self):
        begun, event = self.ctx.SimpleQueue(), self.ctx.SimpleQueue()
        process = self.ctx.Process(target=wait_for, args=(event, begun))
        process.start()
        pid = begun.get()
        mp.process._children.discard(process)
        del process
        self.assertIn(state_of(pid), "RS")
        event.put(None)
        while state_of(pid) not in "Z":
            pass
        other = self.ctx.Process(target=do_nothing)  # a start destroys the handles of processes that have ended
        other.start()
        other.join()
        self.assertEqual(state_of(pid), "")


for_each_method(Life, globals())


class FdsByForkServer(OneMethod):
    """The objects of the standard module that have fds go to a child with its start."""

    method = "forkserver"

    def test_a_child_that_was_killed_before_it_unpickled_leaves_no_fd(self):
        gate, ends = self.ctx.SimpleQueue(), multiprocessing.Pipe()
        process = self.ctx.Process(target=do_nothing, args=(SlowToUnpickle(gate), *ends))
        process.start()
        process.kill()
        process.join()
        for end in ends:
            end.close()

    def test_fds_that_a_child_did_not_take_are_closed(self):
        reader, writer = os.pipe()
        process = forkserver.start(b"", [], "takes nothing", False, [writer])
        process.join()
        os.close(writer)
        self.assertEqual(os.read(reader, 1), b"")  # waits while anybody has the other end
        os.close(reader)
        self.test_many_fds()  # and the next child gets its own

    def test_many_fds(self):
        ours, theirs = zip(*(socket.socketpair() for _ in range(260)))  # more than one message
        process = self.ctx.Process(target=send_numbers, args=theirs)
        process.start()
        process.join()
        self.assertEqual([end.recv(10) for end in ours], [str(number).encode() for number in range(260)])
        for end in (*ours, *theirs):
            end.close()


class ForkServer(unittest.TestCase):
    def run_program(self, program):
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=LONG,
                              cwd=os.path.dirname(os.path.abspath(__file__)))
        self.assertEqual(done.stderr, "")
        return done.stdout

    def test_modules_are_preloaded_unless_they_make_shared_objects(self):
        for module, preloaded in (("fractions", True), ("makes_shared_objects", False)):
            out = self.run_program(f"""if True:
                import shoal.multiprocessing as mp, sys, types
                mp.set_start_method("forkserver")
                mp.set_forkserver_preload([{module!r}])
                process = mp.Process(target=print, args=(1,))
                process.start(); process.join()
                process = mp.Process(target=exec, args=("import sys; print({module!r} in sys.modules)",))
                process.start(); process.join()
            """)
            self.assertEqual(out, f"1\n{preloaded}\n")

    def test_a_server_that_was_killed_is_started_again(self):
        out = self.run_program("""if True:
            import os, shoal.multiprocessing as mp, signal
            from shoal.multiprocessing.forkserver import _forkserver
            ctx = mp.get_context("forkserver")
            queue = ctx.SimpleQueue()
            first = ctx.Process(target=queue.get)
            first.start()
            server = _forkserver._forkserver_pid
            os.kill(server, signal.SIGINT)  # ignored: Ctrl-C is for the parent
            os.kill(server, signal.SIGKILL)
            second = ctx.Process(target=print, args=("second",))
            second.start()
            second.join()
            queue.put(None)
            first.join()
            print(second.exitcode, first.exitcode in (0, 255), _forkserver._forkserver_pid != server)
        """)
        self.assertEqual(out, "second\n0 True True\n")

    def test_nothing_else_inherits_the_fds_of_a_server(self):
        """A program that another thread starts while the server starts."""
        out = self.run_program("""if True:
            import os, shoal.multiprocessing as mp, subprocess, sys, tempfile, threading
            def inherited():
                return subprocess.check_output(["ls", "/proc/self/fd"], close_fds=False)
            with tempfile.TemporaryDirectory() as folder:
                began, go = os.path.join(folder, "began"), os.path.join(folder, "go")
                os.mkfifo(began)
                os.mkfifo(go)
                with open(os.path.join(folder, "preloaded_slowly.py"), "w") as file:
                    file.write(f"open({began!r}, 'w').close()\\nopen({go!r}).close()")
                sys.path.append(folder)
                mp.set_forkserver_preload(["preloaded_slowly"])
                process = mp.get_context("forkserver").Process(target=print, args=("child",))
                before = inherited()
                thread = threading.Thread(target=process.start)
                thread.start()
                open(began).close()
                during = inherited()
                open(go, "w").close()
                thread.join()
                process.join()
                print(during == before)
        """)
        self.assertEqual(out, "child\nTrue\n")


class Threads(unittest.TestCase):
    def test_b33_a_fork_with_threads_warns_once(self):
        program = """if True:
            import shoal.multiprocessing as mp, threading
            gate = threading.Event()
            threading.Thread(target=gate.wait).start()
            for _ in range(3):
                process = mp.get_context("fork").Process(target=print, args=("child",))
                process.start()
                process.join()
            gate.set()
        """
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=LONG)
        self.assertEqual(done.stdout, "child\n" * 3)
        self.assertRegex(done.stderr, r"^<string>:7: DeprecationWarning: .* is multi-threaded, use of fork [^\n]*\n( [^\n]*\n)?\Z")

    def test_every_thread_may_start_and_join(self):
        ctx = mp.get_context("spawn")
        codes = []

        def start(code):
            process = ctx.Process(target=end_by, args=("exit", code))
            process.start()
            process.join()
            codes.append(process.exitcode)
        threads = [threading.Thread(target=start, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(sorted(codes), [0, 1, 2, 3])


class CtrlC(unittest.TestCase):
    def test_b71_ctrl_c_ends_a_join(self):
        ctx = mp.get_context("fork")
        event = ctx.SimpleQueue()
        process = ctx.Process(target=wait_for, args=(event,))
        process.start()
        sent = []

        def interrupt():
            wait_until_waiting(os.getpid())
            sent.append(quiet_time())
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with self.assertRaises(KeyboardInterrupt):
            process.join()
        self.assertLess(quiet_time() - sent[0], 0.1 + 0.2)  # 100 ms, and some for the other thread
        thread.join()
        event.put(None)
        process.join()
        self.assertEqual(process.exitcode, 0)


if __name__ == "__main__":
    unittest.main()
