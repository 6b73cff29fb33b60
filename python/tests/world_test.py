"""Tests of shoal.world."""

import os
import subprocess
import sys
import unittest

import shoal
from shoal import _shoal, world


def run(program: str, **environment: str) -> str:
    """Runs a Python program in a process of its own, and returns what it printed."""
    done = subprocess.run([sys.executable, "-c", program], env={**os.environ, **environment}, capture_output=True,
                          text=True, timeout=3000)
    if done.returncode != 0:
        raise AssertionError(f"the program ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


class Statistics(unittest.TestCase):
    def test_help_explains_every_field(self):
        for cls in (world.Process, world.Info, world.Audit):
            for field in cls._fields:
                self.assertRegex(getattr(cls, field).__doc__, r"\.$", field)

    def test_info_counts_blocks_and_the_audit_finds_nothing(self):
        before = world.info()
        counted = world.audit()
        block = _shoal.Block(1000)
        after = world.info()
        self.assertEqual(after.blocks_live, before.blocks_live + 1)
        self.assertEqual(after.bytes_live, before.bytes_live + 1000)
        self.assertEqual(world.audit().blocks, counted.blocks + 1)
        self.assertEqual(after.processes, 1)
        del block
        self.assertEqual(world.info().blocks_live, before.blocks_live)

    def test_ps_lists_this_process(self):
        name = world.info().name
        mine = [entry for entry in world.ps() if entry.pid == os.getpid()]
        self.assertEqual([entry.world for entry in mine], [name])
        self.assertEqual(mine[0].state, "running")
        self.assertEqual(mine[0].slot, 0)

    def test_sweep_and_trim(self):
        self.assertEqual(world.sweep(), 0)
        block = _shoal.Block(8 << 20, zeroed=True)
        used = world.info().heap_used
        del block
        world.trim()
        self.assertLess(world.info().heap_used, used - (7 << 20))


class Membership(unittest.TestCase):
    def test_create_takes_name_and_limit(self):
        out = run("from shoal import world; world.create('name-1', heap_limit=64 << 20); i = world.info();"
                  "print(i.name, i.heap_limit)")
        self.assertEqual(out, f"name-1 {64 << 20}\n")

    def test_create_refuses_bad_arguments_and_a_second_world(self):
        out = run("""if True:
            import shoal
            from shoal import world
            for arguments in [('a b',), (None, -1), (None, 'many'), (7,)]:
                try:
                    world.create(*arguments)
                except (ValueError, TypeError, OverflowError) as error:
                    print(type(error).__name__)
            world.create()
            try:
                world.create()
            except shoal.Error as error:
                print(error)
            """).splitlines()
        self.assertEqual(out[:4], ["ValueError", "OverflowError", "TypeError", "TypeError"])
        self.assertIn("already", out[4])

    def test_join_and_leave(self):
        world.info()
        name = f"join-{os.getpid()}"
        host = subprocess.Popen([sys.executable, "-c", f"""if True:
            from shoal import world
            world.create({name!r})
            print('ready', flush=True)
            input()
            print(world.info().processes, flush=True)
            input()
            print(world.info().processes, flush=True)
            """], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        guest = subprocess.Popen([sys.executable, "-c", f"""if True:
            from shoal import world
            input()
            world.join({name!r})
            print(world.info().name, flush=True)
            input()
            world.leave()
            print(world.info().name != {name!r}, flush=True)
            """], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

        def say(process):
            process.stdin.write("\n")
            process.stdin.flush()
            return process.stdout.readline().strip()

        with host, guest:
            self.assertEqual(host.stdout.readline(), "ready\n")
            self.assertEqual(say(guest), name)
            self.assertEqual(say(host), "2")
            self.assertEqual(say(guest), "True")
            self.assertEqual(say(host), "1")

    def test_a_process_that_joined_does_not_unpickle(self):
        out = run("""if True:
            import os
            import subprocess
            import sys

            import shoal
            from shoal import world
            world.create(f'unpickle-{os.getpid()}')
            guest = '''if True:
                import sys
                import shoal
                from shoal import multiprocessing, world
                world.join(sys.argv[1], unpickle=sys.argv[2] == 'yes')
                queue = multiprocessing.get_context('fork').Queue()
                for thing in ([1, 'two'], {3}):
                    queue.put(thing)
                    try:
                        print(queue.get(timeout=300))
                    except shoal.Error as error:
                        print(error)
            '''
            for unpickle in ('yes', 'no'):
                subprocess.run([sys.executable, '-c', guest, world.info().name, unpickle], check=True)
            """).splitlines()
        self.assertEqual(out[:3], ["[1, 'two']", "{3}", "[1, 'two']"])
        self.assertIn("unpickle=True", out[3])

    def test_join_of_no_world(self):
        out = run("""if True:
            from shoal import world
            try:
                world.join('no-such-world-here')
            except FileNotFoundError as error:
                print(error)
            """)
        self.assertIn("no-such-world-here", out)


if __name__ == "__main__":
    unittest.main()
