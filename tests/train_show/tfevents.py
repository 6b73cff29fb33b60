"""Event files of TensorBoard, read as TensorFlow's record_writer.h and event.proto describe them. Shares nothing with the writer."""
import collections
import struct

Scalar = collections.namedtuple("Scalar", "tag step value wall_time")


def table():
    rows = []
    for i in range(256):
        for _ in range(8):
            i = i >> 1 ^ (0x82F63B78 if i & 1 else 0)
        rows.append(i)
    return rows


TABLE = table()


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


assert crc32c(b"123456789") == 0xE3069283  # the check value of the CRC catalogue


def unmask(masked):
    rotated = (masked - 0xA282EAD8) & 0xFFFFFFFF
    return (rotated >> 17 | rotated << 15) & 0xFFFFFFFF


def records(data):
    at = 0
    while at < len(data):
        head = data[at:at + 8]
        length, crc = struct.unpack_from("<QI", data, at)
        assert unmask(crc) == crc32c(head), f"the checksum of the length at byte {at} is wrong"
        body = data[at + 12:at + 12 + length]
        assert len(body) == length, f"the record at byte {at} is cut"
        crc, = struct.unpack_from("<I", data, at + 12 + length)
        assert unmask(crc) == crc32c(body), f"the checksum of the record at byte {at} is wrong"
        yield body
        at += 16 + length


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def fields(data):
    """{number: value} of a message in which no field comes twice."""
    found, at = {}, 0
    while at < len(data):
        key, at = varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = varint(data, at)
        elif kind == 1:
            value, at = struct.unpack_from("<d", data, at)[0], at + 8
        elif kind == 5:
            value, at = struct.unpack_from("<f", data, at)[0], at + 4
        else:
            assert kind == 2, f"wire type {kind}"
            length, at = varint(data, at)
            value, at = data[at:at + length], at + length
            assert len(value) == length
        assert key >> 3 not in found
        found[key >> 3] = value
    return found


def read(path):
    """(file_version, [Scalar])"""
    with open(path, "rb") as file:
        bodies = list(records(file.read()))
    first = fields(bodies[0])
    scalars = []
    for body in bodies[1:]:
        event = fields(body)
        value = fields(fields(event[5])[1])
        scalars.append(Scalar(value[1].decode(), event.get(2, 0), value[2], event[1]))
    return first[3].decode(), scalars
