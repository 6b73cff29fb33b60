"""numpy arrays: B72."""
import os
import pickle
import tempfile
import unittest

import numpy

import shoal
import support
from support import LONG, Case, each_method, received, run_all

ROUNDS = 30
LARGE = 65536  # bytes: from here on an array has a block of its own

NUMBERS = ("?", "b", "B", "h", "H", "i", "I", "l", "L", "q", "Q", "e", "f", "d", "g", "F", "D", "G")
TEXTS = ("S5", "U7", "V9", "M8[s]", "m8[ms]", ">i4", ">f8", ">u2", ">c16", ">U3", ">M8[D]")
STRUCTURED = (
    numpy.dtype([("name", "U10"), ("age", "i4"), ("place", "f8", (2, 3))]),
    numpy.dtype({"names": ["a", "b"], "formats": ["u1", ">i8"], "offsets": [3, 16], "itemsize": 32}),
    numpy.dtype([("inner", [("x", "f4"), ("y", "f4")]), ("flag", "?")]),
)


class Labelled(numpy.ndarray):
    """A subclass with an attribute, which it pickles."""

    label = None

    def __array_finalize__(self, other):
        self.label = getattr(other, "label", None)

    def __reduce_ex__(self, protocol):
        return _make_labelled, (numpy.array(self), self.label)


def _make_labelled(array, label):
    labelled = array.view(Labelled)
    labelled.label = label
    return labelled


def array_of(dtype, shape, order="C"):
    """An array of any dtype with varied bytes that are valid in it."""
    dtype = numpy.dtype(dtype)
    count = int(numpy.prod(shape))
    flat = numpy.zeros(count, dtype)
    if dtype.kind in "SU":
        flat[:] = [str(i % 1000) for i in range(count)]
    elif dtype.kind == "V":
        flat.view("u1")[:] = numpy.arange(flat.nbytes) % 2 if dtype.names else numpy.arange(flat.nbytes) % 251
    else:
        flat[:] = numpy.arange(count) % 2 if dtype.kind == "b" else numpy.arange(count) % 100
    return flat.reshape(shape, order=order)


def many_arrays():
    """Yields arrays of every kind, small ones and large ones: they travel in different ways."""
    for dtype in (*NUMBERS, *TEXTS, *STRUCTURED):
        for shape in ((), (1,), (7,), (3, 4), (0,), (2, 0, 3), (2,) * 8):
            yield array_of(dtype, shape)
        yield array_of(dtype, (4, 5), "F")
    for dtype in ("f8", ">f8", "?", "U7", ">i2", "M8[s]", *STRUCTURED):
        count = 1 + LARGE // numpy.dtype(dtype).itemsize
        yield array_of(dtype, count)
        yield array_of(dtype, (2, count), "F")
    base = array_of("i4", (300, 400))
    yield from (base[::2, 3::7], base[::-1], base.T, base[5], base[:, 5], numpy.broadcast_to(base[0], (3, 400)))
    frozen = base.copy()
    frozen.flags.writeable = False
    yield frozen
    yield frozen[:2, :2]
    yield numpy.array([{"an": "object"}, None, [1, 2]], dtype=object)
    yield numpy.ma.masked_array([1, 2, 3], mask=[False, True, False])
    yield array_of("f8", (2, 3)).view(Labelled)
    yield numpy.rec.array([(1, "a"), (2, "b")], dtype=[("number", "i4"), ("text", "U1")])


def read_only_arrays():
    yield numpy.frombuffer(b"abcd", "u1")
    yield numpy.frombuffer(bytes(LARGE), "u1")
    yield numpy.broadcast_to(numpy.arange(3.), (4, 3))
    yield numpy.broadcast_to(numpy.arange(3.), (LARGE, 3))
    with tempfile.NamedTemporaryFile() as file:
        file.write(bytes(LARGE))
        file.flush()
        yield numpy.memmap(file.name, "f8", "r")
    for dtype in ("U7", "M8[s]", *STRUCTURED):
        for shape, order in (((3, 4), "C"), ((3, 4), "F"), ((3, LARGE), "F")):
            array = array_of(dtype, shape, order)
            array.flags.writeable = False
            yield array
    array = array_of("f8", (2, 3)).view(Labelled)
    array.flags.writeable = False
    yield array


def same(a, b):
    if type(a) is not type(b) or a.dtype != b.dtype or a.shape != b.shape:
        return False
    if isinstance(a, numpy.ma.MaskedArray):
        return same(a.data, b.data) and same(numpy.asarray(a.mask), numpy.asarray(b.mask))
    if a.dtype.hasobject:
        return a.tolist() == b.tolist()
    if a.dtype.names:  # not byte by byte: numpy does not copy what is between the fields
        return all(same(numpy.asarray(a[name]), numpy.asarray(b[name])) for name in a.dtype.names)
    return numpy.array(a).tobytes() == numpy.array(b).tobytes()


class Holder:
    """An object that only pickle can send."""

    def __init__(self, content):
        self.content = content


def echo(there, back):
    for message in received(there):
        back.put(message)


def write_into(arrays):
    """Changes each array that it gets, in place, and says when that is done."""
    there, back = arrays
    for array in received(there):
        array[...] = 7
        back.put(True)


class Echo:
    """A child with two queues."""

    def __init__(self, ctx, target=echo):
        self.there, self.back = ctx.Queue(), ctx.Queue()
        args = (self.there, self.back) if target is echo else ((self.there, self.back),)
        self.child = ctx.Process(target=target, args=args)

    def __enter__(self):
        self.child.start()
        return self

    def ask(self, message):
        self.there.put(message)
        return self.back.get(timeout=LONG)

    def __exit__(self, *_):
        self.there.put(None)
        self.child.join(LONG)
        assert self.child.exitcode == 0


class ByValue(Case):
    @each_method
    def test_b72_every_kind_of_array_arrives_equal(self, ctx):
        with Echo(ctx) as other:
            for array in many_arrays():
                if array.dtype.kind in "mM":
                    array = pickle.loads(pickle.dumps(array))  # numpy's pickles of times have one byte order only
                alone, (inside, in_a_pickle) = other.ask(array), other.ask([array, Holder(array)])
                for arrived in (alone, inside, in_a_pickle.content):
                    self.assertTrue(same(arrived, array), f"{array.dtype} {array.shape} {type(array)}: {arrived!r}")

    @each_method
    def test_b72_order_flags_and_subclasses_are_kept(self, ctx):
        with Echo(ctx) as other:
            for shape in ((4, 5), (100, 200)):
                self.assertTrue(other.ask(array_of("f8", shape, "F")).flags.f_contiguous)
                self.assertTrue(other.ask(array_of("f8", shape)).flags.c_contiguous)
                self.assertTrue(other.ask(array_of("f8", shape)).flags.writeable)
                labelled = array_of("f8", shape).view(Labelled)
                labelled.label = "a label"
                arrived = other.ask(labelled)
                self.assertEqual((type(arrived), arrived.label), (Labelled, "a label"))

    @each_method
    def test_b72_a_write_after_put_does_not_arrive(self, ctx):
        for size in (10, 20000):
            messages = ctx.Queue()
            array = numpy.zeros(size)
            for i in range(ROUNDS):
                array.fill(i)
                messages.put(array)
                messages.put({"inside": [array]})
            array.fill(-1)
            with Echo(ctx) as other:
                for i in range(ROUNDS):
                    self.assertTrue((other.ask(messages.get()) == i).all())
                    self.assertTrue((messages.get()["inside"][0] == i).all())

    @each_method
    def test_b72_the_receivers_copy_is_its_own(self, ctx):
        with Echo(ctx, write_into) as other:
            for array in (numpy.zeros(10), numpy.zeros(20000)):
                for _ in range(ROUNDS):
                    other.ask(array)
                    self.assertTrue((array == 0).all())

    def test_b72_a_received_array_stays_private_to_a_forked_child(self):
        """As with the standard module: neither side of a fork sees the writes of the other."""
        for start in (self.plain_fork, self.process_fork):
            for size in (10, 20000):
                messages = support.mp.Queue()
                for i in range(ROUNDS):
                    messages.put({"array": numpy.full(size, 1.0)} if i % 2 else numpy.full(size, 1.0))
                    array = messages.get()
                    array = array["array"] if i % 2 else array
                    self.assertEqual(start(array), 0)
                    self.assertTrue((array == 1).all())

    def plain_fork(self, array):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                code = write_and_check(array)
            finally:
                os._exit(code)
        return os.waitpid(pid, 0)[1]

    def process_fork(self, array):
        process = support.mp.get_context("fork").Process(target=exit_with_check, args=(array,))
        process.start()
        process.join()
        return process.exitcode


def write_and_check(array):
    if not (array == 1).all():
        return 2
    array.fill(2)
    return 0 if (array == 2).all() else 3


def exit_with_check(array):
    raise SystemExit(write_and_check(array))


def add_three(array):
    array += 3


class ByHandle(Case):
    @each_method
    def test_b72_the_same_memory_on_both_sides(self, ctx):
        with Echo(ctx, write_into) as other:
            for dtype in ("i4", ">f8", "c16", "?"):
                for make in (lambda d: shoal.zeros((3, 4), d), lambda d: shoal.zeros((3, 4), d, order="F"),
                             lambda d: shoal.share(numpy.zeros(20000, d)), lambda d: shoal.zeros((), d)):
                    array = make(dtype)
                    self.assertIs(type(array), numpy.ndarray)
                    self.assertTrue(shoal.is_shared(array))
                    other.ask(array)
                    self.assertTrue((array == numpy.full((), 7, dtype)).all(), f"{dtype} {array.shape}")
            view = shoal.zeros((10, 10))
            other.ask(view[::2, 1:3])
            self.assertEqual(view.sum(), 7 * 5 * 2)
            self.assertTrue((view[::2, 1:3] == 7).all())

    @each_method
    def test_b72_every_kind_can_be_shared(self, ctx):
        with Echo(ctx) as other:
            for array in many_arrays():
                if array.dtype.hasobject or isinstance(array, numpy.ma.MaskedArray):
                    continue
                shared = shoal.from_numpy(array)
                self.assertTrue(same(shared, array), f"{array.dtype} {array.shape}")
                back = other.ask([shared])[0]
                self.assertTrue(same(back, array), f"{array.dtype} {array.shape}")
                if array.nbytes:
                    self.assertTrue(numpy.may_share_memory(back, shared), f"{array.dtype} {array.shape}")

    @each_method
    def test_b72_read_only_stays_read_only(self, ctx):
        """Only for arrays in shared memory: see the next test for those that travel by value."""
        with Echo(ctx) as other:
            array = shoal.zeros(10)
            array.flags.writeable = False
            self.assertFalse(other.ask(array).flags.writeable)
            self.assertFalse(other.ask(Holder(array)).content.flags.writeable)

    @each_method
    def test_b72_what_travels_by_value_can_be_written(self, ctx):
        """As with the standard module: the receiver's copy is its own."""
        with Echo(ctx) as other:
            for array in read_only_arrays():
                self.assertFalse(array.flags.writeable)
                for back in (other.ask(array), other.ask(Holder(array)).content, other.ask([array, array])[1]):
                    self.assertTrue(same(back, array), f"{array.dtype} {array.shape}")
                    self.assertTrue(back.flags.writeable, f"{type(array)} {array.dtype} {array.shape}")
                    back[...] = back[(0,) * back.ndim]

    @each_method
    def test_b5_b72_an_argument_is_the_same_memory(self, ctx):
        arrays = [shoal.zeros(5) for _ in range(ROUNDS)]
        if ctx.get_start_method() == "fork":
            codes = run_all(ctx, [(add_three, array) for array in arrays])
        else:
            codes = run_all(ctx, [(add_three_to_all, arrays)])
        self.assertEqual(set(codes), {0})
        for array in arrays:
            self.assertTrue((array == 3).all())

    def test_b72_objects_cannot_be_shared(self):
        self.assertRaises(TypeError, shoal.empty, 3, object)
        self.assertRaises(TypeError, shoal.share, numpy.array([None]))
        self.assertRaises(ValueError, shoal.zeros, -1)

    def test_made_arrays(self):
        shape, fortran = (2, 3), numpy.zeros((2, 3), "i4", order="F")
        for array, like in ((shoal.ones(shape), numpy.ones(shape)), (shoal.full(shape, 7), numpy.full(shape, 7)),
                            (shoal.full(2, 7, "f4"), numpy.full(2, 7, "f4")),
                            (shoal.zeros_like(fortran), fortran), (shoal.zeros(numpy.int64(3)), numpy.zeros(3)),
                            (shoal.zeros(numpy.array(shape)), numpy.zeros(shape))):
            self.assertTrue(same(array, like))
            self.assertTrue(shoal.is_shared(array))
        self.assertTrue(shoal.zeros_like(fortran).flags.f_contiguous)
        like = shoal.empty_like(fortran, "u1")
        self.assertEqual((like.shape, like.dtype, shoal.is_shared(like)), (shape, numpy.uint8, True))

    def test_wrong_shapes(self):
        for shape in ((2, "x"), "x", 1.5, (1.5,), None):
            self.assertRaisesRegex(TypeError, "the shape must be a whole number", shoal.zeros, shape)
        for shape in (1 << 60, (1 << 40, 1 << 40), 1 << 57):
            self.assertRaisesRegex(MemoryError, "bytes", shoal.zeros, shape)

    def test_share_takes_tensors(self):
        tensor = shoal.tensor([1, 2])
        self.assertFalse(shoal.is_shared(tensor))
        self.assertIs(shoal.share(tensor), tensor)
        self.assertTrue(tensor.is_shared and shoal.is_shared(tensor))

    def test_share_shares_once_what_occurs_twice(self):
        array, pair = numpy.ones(3), (numpy.ones(2), "x")
        first, second, third, fourth = shoal.share([array, pair, array, pair])
        self.assertTrue(shoal.is_shared(first) and shoal.is_shared(second[0]))
        self.assertTrue(first is third and second is fourth)
        ring = [numpy.ones(2)]
        ring.append((ring, ring))
        self.assertTrue(shoal.share(ring) is ring and shoal.is_shared(ring[0]) and ring[1][0] is ring)


def add_three_to_all(arrays):
    for array in arrays:
        array += 3


if __name__ == "__main__":
    unittest.main()
