"""Makes pictures and small data sets for tests/cli/options. Needs only the standard library.

  images.py set DIR COUNT             a data set of the first COUNT images of MNIST's parts
  images.py few DIR COUNT             a data set to test with: the first COUNT test images, and none to train on
  images.py pictures DIR COUNT        the first COUNT test images as PNG and PGM, in several shapes
  images.py placed DIR COUNT          the first COUNT test images as they are, and with the digit moved: cut out, in a corner, off the centre
  images.py blank DIR                 pictures that show nothing
  images.py hostile DIR               files that look like pictures and are not
  images.py same ANSWERS              checks that `shoal predict --json` gives the same answer for a digit of `placed` at every place
  images.py check MODEL ANSWERS DIR   compares the answers of `shoal predict --json` with those computed here from the weights of `logistic`
"""
import gzip
import json
import math
import os
import struct
import sys
import zlib

SIDE = 28


def idx(name):
    with gzip.open(f"data/mnist/{name}.gz") as file:
        return file.read()


def write(folder, name, data):
    with open(os.path.join(folder, name), "wb") as file:
        file.write(data)


def make_set(folder, test, train):
    for part, count in (("train", train), ("t10k", test)):
        images, labels = idx(f"{part}-images-idx3-ubyte"), idx(f"{part}-labels-idx1-ubyte")
        write(folder, f"{part}-images-idx3-ubyte",
              images[:4] + struct.pack(">I", count) + images[8:16 + count * SIDE * SIDE])
        write(folder, f"{part}-labels-idx1-ubyte", labels[:4] + struct.pack(">I", count) + labels[8:8 + count])


def test_image(i):
    return idx("t10k-images-idx3-ubyte")[16 + i * SIDE * SIDE:16 + (i + 1) * SIDE * SIDE]


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width, height, rows, depth=8, colour=0):
    raw = b"".join(b"\0" + row for row in rows)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)) +
            chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b""))


def rows_of(pixels, width=SIDE):
    return [pixels[i:i + width] for i in range(0, len(pixels), width)]


def pictures(folder, count):
    for i in range(count):
        p = test_image(i)
        rows = rows_of(p)
        double = [bytes(x for v in row for x in (v, v)) for row in rows for _ in range(2)]
        write(folder, f"{i}-grey.png", png(SIDE, SIDE, rows))
        write(folder, f"{i}-deep.png", png(SIDE, SIDE, [bytes(x for v in r for x in (v, v)) for r in rows], depth=16))
        write(folder, f"{i}-rgb.png", png(SIDE, SIDE, [bytes(x for v in r for x in (v, v, v)) for r in rows], colour=2))
        write(folder, f"{i}-double.png", png(2 * SIDE, 2 * SIDE, double))
        write(folder, f"{i}-dark.png", png(SIDE, SIDE, [bytes(255 - v for v in r) for r in rows]))
        # Black ink, as opaque as it is dark, on nothing.
        write(folder, f"{i}-ink.png", png(SIDE, SIDE, [bytes(x for v in r for x in (0, v)) for r in rows], colour=4))
        write(folder, f"{i}-five.pgm", b"P5\n# a comment\n28 28 255\n" + p)
        write(folder, f"{i}-two.pgm", b"P2 28\t28 #\n255\n" + " ".join(map(str, p)).encode())
        write(folder, f"{i}-wide.pgm", b"P5 28 28 65535\n" + bytes(x for v in p for x in (v, v)))
        # Without its dark columns at the sides: filled up to a square again.
        write(folder, f"{i}-narrow.pgm", b"P5 20 28 255\n" + b"".join(r[4:24] for r in rows))


def tight(rows):
    """Cuts off the dark rows and columns around the digit."""
    rows = [r for r in rows if max(r) > 25]
    columns = [x for x in range(SIDE) if max(r[x] for r in rows) > 25]
    return [r[columns[0]:columns[-1] + 1] for r in rows]


def on_ground(rows, width, height, left, top, ground=0):
    out = [bytearray([ground] * width) for _ in range(height)]
    for y, row in enumerate(rows):
        out[top + y][left:left + len(row)] = row
    return [bytes(r) for r in out]


def larger(rows, times):
    return [bytes(v for v in row for _ in range(times)) for row in rows for _ in range(times)]


def grey(rows):
    return png(len(rows[0]), len(rows), rows)


def huge(rows):
    """8000 x 8000 pixels of one bit, black on white, the digit in a corner."""
    big = larger([bytes(0 if v > 127 else 1 for v in row) for row in rows], 40)
    packed = [int("".join(map(str, row)).ljust(8000, "1"), 2).to_bytes(1000, "big") for row in big[::40]]
    bits = [row for row in packed for _ in range(40)]
    return png(8000, 8000, bits + [b"\xff" * 1000] * (8000 - len(bits)), depth=1)


def placed(folder, count):
    for i in range(count):
        rows = rows_of(test_image(i))
        digit = tight(rows)
        big = larger(digit, 7)
        faint = [bytes(200 - v // 4 for v in row) for row in big]
        write(folder, f"{i}-centred.png", grey(rows))
        write(folder, f"{i}-tight.png", grey(digit))
        write(folder, f"{i}-tightdark.png", grey([bytes(255 - v for v in row) for row in big]))
        write(folder, f"{i}-corner.png", grey(on_ground(digit, 160, 120, 137, 3)))
        write(folder, f"{i}-off.png", grey(on_ground(big, 300, 500, 100, 340)))
        write(folder, f"{i}-faint.png", grey(on_ground(faint, 300, 200, 10, 30, 200)))
        # White on nothing: on white paper there would be nothing to see.
        white = [bytes(x for v in row for x in (255, v)) for row in on_ground(digit, 60, 50, 3, 28)]
        write(folder, f"{i}-white.png", png(60, 50, white, colour=4))
    write(folder, "0-huge.png", huge(tight(rows_of(test_image(0)))))


def blank(folder):
    write(folder, "white.png", grey([b"\xff" * 40] * 30))
    write(folder, "black.png", grey([bytes(28)] * 28))
    write(folder, "noise.png", grey([bytes(120 + (x * y * y + 7 * x) % 9 for x in range(50)) for y in range(50)]))
    write(folder, "nothing.png", png(9, 9, [bytes(18)] * 9, colour=4))
    write(folder, "one.pgm", b"P5 1 1 255\n\x80")


def same(answers):
    """A digit has the same class at every place, except for a few whose pixels are rounded differently."""
    found = {}
    with open(answers) as file:
        for line in map(json.loads, file):
            number, kind = os.path.basename(line["file"]).split(".")[0].split("-")
            found.setdefault(kind, {})[number] = line
            assert (line["cropped"] is None) is (kind == "centred"), line
            assert line["inverted"] is (kind in ("tightdark", "faint", "huge")), line
    x, y, width, height = found["huge"]["0"]["cropped"]
    assert x < 10 and y < 10 and 600 < width < 650 and 790 <= height <= 800, found["huge"]
    for kind, lines in found.items():
        differ = [n for n, line in lines.items() if line["class"] != found["centred"][n]["class"]]
        assert len(differ) <= len(lines) // 20, (kind, differ)


def hostile(folder):
    good = png(SIDE, SIDE, rows_of(test_image(0)))
    write(folder, "empty.png", b"")
    write(folder, "text.png", b"hello\n")
    write(folder, "cut.png", good[:-40])
    write(folder, "head.png", good[:20])
    write(folder, "bent.png", good[:45] + bytes([good[45] ^ 255]) + good[46:])
    write(folder, "huge.png", png(1 << 30, 1 << 30, [b"\0"]))
    write(folder, "wide.png", png(100000, 1, [bytes(100000)]))
    write(folder, "zero.pgm", b"P5 0 28 255\n")
    write(folder, "huge.pgm", b"P5 2000000000 2000000000 255\n")
    write(folder, "overflow.pgm", b"P5 99999999999999999999999 1 255\n")
    write(folder, "cut.pgm", b"P5 28 28 255\n" + bytes(100))
    write(folder, "head.pgm", b"P5 28")
    write(folder, "above.pgm", b"P2 1 1 100\n101\n")
    write(folder, "word.pgm", b"P2 1 1 255\nx\n")
    write(folder, "lightest.pgm", b"P5 1 1 0\n\0")


def weights(path):
    with open(path, "rb") as file:
        data = file.read()
    size = struct.unpack("<Q", data[:8])[0]
    head = json.loads(data[8:8 + size])

    def tensor(ending):
        entry = next(v for k, v in head.items() if k.endswith(ending))
        begin, end = entry["data_offsets"]
        assert entry["dtype"] == "F32", entry
        return struct.unpack(f"<{(end - begin) // 4}f", data[8 + size + begin:8 + size + end])

    return tensor("weight"), tensor("bias")


def expected(pixels, weight, bias):
    x = [(p / 255 - 0.1307) / 0.3081 for p in pixels]
    scores = [b + sum(map(float.__mul__, x, weight[i * 784:(i + 1) * 784])) for i, b in enumerate(bias)]
    most = max(scores)
    total = sum(math.exp(s - most) for s in scores)
    return [math.exp(s - most) / total for s in scores]


def narrow(pixels):
    return b"".join(bytes(4) + r[4:24] + bytes(4) for r in rows_of(pixels))


def ink(pixels):
    """The pixels as black ink on white, mixed in linear light, and inverted."""
    def srgb(x):
        return 12.92 * x if x <= 0.0031308 else 1.055 * x ** (1 / 2.4) - 0.055
    return [255 * (1 - srgb(1 - p / 255)) for p in pixels]


def check(model, answers, folder):
    weight, bias = weights(model)
    seen = set()
    with open(answers) as file:
        for line in map(json.loads, file):
            name = os.path.basename(line["file"])
            seen.add(name)
            number, kind = name.split(".")[0].split("-")
            pixels = test_image(int(number))
            pixels = {"narrow": narrow, "ink": ink}.get(kind, bytes)(pixels)
            right = expected(pixels, weight, bias)
            worst = max(abs(a - b) for a, b in zip(right, line["probabilities"]))
            # Colours and alpha are rounded to bytes on the way.
            assert worst < (2e-2 if kind in ("rgb", "ink") else 1e-4), (name, worst, right, line)
            assert line["class"] == right.index(max(right)), (name, right, line)
            assert line["probability"] == max(line["probabilities"]), line
            assert line["inverted"] is (kind in ("dark", "ink")), line
    assert seen == set(os.listdir(folder)), seen ^ set(os.listdir(folder))


if __name__ == "__main__":
    command, arguments = sys.argv[1], sys.argv[2:]
    {"set": lambda: make_set(arguments[0], int(arguments[1]), int(arguments[1])),
     "few": lambda: make_set(arguments[0], int(arguments[1]), 0),
     "pictures": lambda: pictures(arguments[0], int(arguments[1])),
     "placed": lambda: placed(arguments[0], int(arguments[1])),
     "blank": lambda: blank(*arguments),
     "same": lambda: same(*arguments),
     "hostile": lambda: hostile(arguments[0]),
     "check": lambda: check(*arguments)}[command]()
