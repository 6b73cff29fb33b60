"""Tests of shoal.program. examples_test.py runs a C program that exchanges values with Python."""
import pathlib
import signal
import sys
import unittest

from shoal import program


class Programs(unittest.TestCase):
    def test_a_program_is_ended(self):
        for end, number in (("terminate", signal.SIGTERM), ("kill", signal.SIGKILL)):
            child = program.Program(["sleep", "1000"])
            self.assertTrue(child.is_alive())
            getattr(child, end)()
            self.assertEqual(child.join(), -number)
            self.assertFalse(child.is_alive())
            getattr(child, end)()  # does nothing

    def test_argv_must_be_a_list(self):
        for argv in ("/bin/true", b"/bin/true", pathlib.Path("/bin/true")):
            with self.assertRaisesRegex(TypeError, "argv must be a list of words, the program first"):
                program.Program(argv)

    def test_arguments_and_result(self):
        text = "from shoal import program; program.set_result(program.arguments()['number'] + 1)"
        child = program.Program([sys.executable, "-c", text], {"number": 41})
        self.assertEqual(child.join(), 0)
        self.assertEqual(child.result, 42)

    def test_arguments_of_a_process_that_has_none(self):
        with self.assertRaisesRegex(RuntimeError, "^this process has no arguments: ((?!shoal_).)*$"):
            program.arguments()


if __name__ == "__main__":
    unittest.main()
