"""The seed of cloud-init (NoCloud): a small disk with the label `cidata`, in the format of CDs (ISO 9660, Joliet).

Every system that runs cloud-init reads it. Two trees of directories have the same files: one with plain names, and one
with Unicode names (Joliet), which Windows and Linux prefer.
"""

import struct

SECTOR = 2_048
LABEL = "cidata"
NO_TIME = bytes(7)
PLAIN, JOLIET, END = 1, 2, 255  # types of volume descriptors
FIRST_FREE = 19  # 16 sectors are the system's, then three descriptors


def seed(files: dict[str, bytes]) -> bytes:
    """The bytes of the disk, with files in its only directory."""
    # The sectors after the descriptors: two path tables (little and big endian) and one directory for each tree.
    roots, at = {PLAIN: FIRST_FREE + 2, JOLIET: FIRST_FREE + 5}, FIRST_FREE + 6
    places = {}
    for name, data in files.items():
        places[name] = (at, len(data))
        at += max(1, -(-len(data) // SECTOR))
    disk = [bytes(16 * SECTOR)]
    disk += [_descriptor(kind, roots[kind], at) for kind in (PLAIN, JOLIET)]
    disk.append(_padded(bytes([END]) + b"CD001\x01"))
    for kind, root in roots.items():
        disk += [_padded(struct.pack(f"{order}BBIHBB", 1, 0, root, 1, 0, 0)) for order in "<>"]
        disk.append(_directory(kind, root, places))
    disk += [_padded(data) for data in files.values()]
    return b"".join(disk)


def _descriptor(kind: int, root: int, sectors: int) -> bytes:
    """The head of one tree: its name, its size, and where its only directory is."""
    space = " ".encode("utf-16-be") if kind == JOLIET else b" "

    def text(value: str, size: int) -> bytes:
        data = value.encode("utf-16-be") if kind == JOLIET else value.encode()
        return (data + space * size)[:size]

    tables = root - 2, root - 1
    fields = [
        bytes([kind]) + b"CD001\x01\0", text("", 32), text(LABEL, 32), bytes(8), _both(sectors, "I"),
        (b"%/E" if kind == JOLIET else b"").ljust(32, b"\0"),  # Joliet, level 3
        _both(1, "H"), _both(1, "H"), _both(SECTOR, "H"), _both(10, "I"),
        struct.pack("<II", tables[0], 0), struct.pack(">II", tables[1], 0),
        _entry(b"\0", root, SECTOR, is_directory=True), text("", 128 * 4), text("", 37 * 3),
        (b"0" * 16 + b"\0") * 4, b"\x01",
    ]  # fmt: skip
    return _padded(b"".join(fields))


def _directory(kind: int, root: int, places: dict[str, tuple[int, int]]) -> bytes:
    entries = [_entry(name, root, SECTOR, is_directory=True) for name in (b"\0", b"\1")]
    for name, (at, size) in sorted(places.items()):
        entries.append(_entry(name.encode("utf-16-be") if kind == JOLIET else name.encode(), at, size))
    return _padded(b"".join(entries))


def _entry(name: bytes, at: int, size: int, *, is_directory: bool = False) -> bytes:
    body = b"\0" + _both(at, "I") + _both(size, "I") + NO_TIME + bytes([2 if is_directory else 0, 0, 0])
    body += _both(1, "H") + bytes([len(name)]) + name
    body += bytes((len(body) + 1) % 2)
    return bytes([len(body) + 1]) + body


def _both(number: int, size: str) -> bytes:
    """In both orders of bytes, as the format has all its numbers."""
    return struct.pack(f"<{size}", number) + struct.pack(f">{size}", number)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % SECTOR) if data else bytes(SECTOR)
