"""Small random `.gguf` files that are right, and their mutations: entries and tensors, single fields, and bytes."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence

from gguf.constants import GGML_QUANT_SIZES

from tests.compiler.frontend.gguf_files import (
    ARCHITECTURE,
    ARRAY,
    BOOL,
    F32,
    F64,
    FORMATS,
    I32,
    STRING,
    U16,
    U32,
    GgufBytes,
    Piece,
    Pieces,
    entry,
    joined,
    tensor,
    text,
)

BORDERS = (
    *(0, 1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 24, 31, 32, 48, 64, 127, 128, 255, 256, 2**15, 2**16 - 1, 2**16, 2**20),
    *(2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**59, 2**60, 2**61, 2**62, 2**63 - 1, 2**63, 2**64 - 32, 2**64 - 1),
)
TEXTS = (
    *(b"", b"a", b"\0", b"\x1b[31m", "é".encode() * 40, "\u202e\n".encode(), b"x" * 127, b"x" * 128, b"x" * 70_000),
    *(b"\xff", b"\xed\xa0\x80", b"\xf0\x9f\x98", b"llama", b"GGUF.version", b"GGUF"),
    *(b"general.alignment", b"general.architecture", b"split.no", b"split.count", b"split.tensors.count"),
)
TOKENS = ("", "a", "▁the", "Ġ", "é", "😀", "<|end|>", "\0")


# -------------------------------------------------------------------------------------------- files that are right


def random_file(rng: random.Random) -> GgufBytes:
    """Return a file with up to 6 entries besides its architecture, and up to 5 tensors."""
    entries = [ARCHITECTURE, *(_random_entry(rng, f"key.{index}") for index in range(rng.randrange(7)))]
    alignment = rng.choice((32, 32, 32, 1, 8, 64, 256))
    if alignment != 32 or rng.random() < 0.1:
        entries.insert(rng.randrange(len(entries) + 1), entry("general.alignment", U32, alignment))
    file = GgufBytes(entries, version=rng.choice((2, 3, 3)), alignment=alignment)
    return _with_tensors(file, rng.randrange(6), rng)


def random_parts(rng: random.Random) -> list[GgufBytes]:
    """Return the two or three files of a model. Without its metadata, as gguf-split writes all but the first part."""
    count = rng.choice((2, 3))
    first = random_file(rng)
    files = [first, *(_with_tensors(GgufBytes(), rng.randrange(3), rng, f"part {part}") for part in range(1, count))]
    total = sum(len(file.tensors) for file in files)
    for number, file in enumerate(files):
        said = [entry("split.no", U16, number), entry("split.count", U16, count)]
        file.entries = [*file.entries, *said, entry("split.tensors.count", I32, total)]
    return files


def _random_entry(rng: random.Random, key: str) -> Pieces:
    kind = rng.choice((*FORMATS, STRING, ARRAY, ARRAY))
    if kind != ARRAY:
        return entry(key, kind, _random_value(rng, kind))
    item = rng.choice((*FORMATS, STRING, STRING))
    count = rng.choice((0, 1, 3, 3, 20, 2000 if rng.random() < 0.1 else 5))
    return entry(key, ARRAY, [_random_value(rng, item) for _ in range(count)], item)


def _random_value(rng: random.Random, kind: int) -> int | float | str:
    if kind == STRING:
        return rng.choice(TOKENS)
    if kind in (F32, F64):
        return rng.choice((0.5, -0.0, 1e30, float("inf"), float("nan")))
    if kind == BOOL:
        return rng.randrange(2)
    code = FORMATS[kind]
    bits = 8 * struct.calcsize(code)
    return rng.getrandbits(bits) - (1 << bits - 1 if code[-1].islower() else 0)


def _with_tensors(file: GgufBytes, count: int, rng: random.Random, prefix: str = "blk") -> GgufBytes:
    """Return a file with `count` tensors of random types, in some files with gaps or in another order."""
    tensors, data = [], bytearray()
    gap = rng.random() < 0.2
    for index in range(count):
        kind, (block, size) = rng.choice(sorted(GGML_QUANT_SIZES.items()))
        shape = [block * rng.randrange(1, 3), *(rng.randrange(1, 4) for _ in range(rng.choice((0, 1, 1, 2, 3))))]
        numbers = 1
        for extent in shape:
            numbers *= extent
        data += bytes(-len(data) % file.alignment + (file.alignment if gap else 0))
        tensors.append(tensor(f"{prefix}.{index}.weight", shape, int(kind), len(data)))
        data += rng.randbytes(numbers // block * size)
    if rng.random() < 0.2:
        rng.shuffle(tensors)
    return file.changed(tensors=tensors, data=bytes(data) + bytes(rng.choice((0, 0, 7))))


# -------------------------------------------------------------------------------------------------------- mutations


def mutated(file: GgufBytes, rng: random.Random) -> tuple[bytes, str]:
    """Return the bytes of a file after up to three changes, and a description of these ("" for none)."""
    levels = sorted(rng.choice((0, 1, 1, 1, 2)) for _ in range(rng.choice((0, 1, 1, 1, 2, 3))))
    done = []
    for _ in range(levels.count(0)):
        done.append(_change_group(file, rng))
    pieces = file.pieces()
    for _ in range(levels.count(1)):
        done.append(_change_piece(pieces, rng))
    data = joined(pieces)
    for _ in range(levels.count(2)):
        data, how = _change_bytes(data, rng)
        done.append(how)
    return data, "; ".join(done)


def _change_group(file: GgufBytes, rng: random.Random) -> str:
    """Change the list of entries or of tensors, half of the time without changing its stored length."""
    of_tensors = rng.random() < 0.5
    groups = file.tensors if of_tensors else file.entries
    before = len(groups)
    way = rng.choice(("double", "drop", "move", "insert", "count"))
    if way == "insert" or not groups:
        groups.insert(rng.randrange(before + 1), rng.choice([*file.entries, *file.tensors, ARCHITECTURE]))
    elif way == "double":
        groups.insert(rng.randrange(before + 1), rng.choice(groups))
    elif way == "drop":
        del groups[rng.randrange(before)]
    elif way == "move":
        groups.insert(rng.randrange(before), groups.pop(rng.randrange(before)))
    if way == "count" or rng.random() < 0.5:
        said = rng.choice((before, before - 1, before + 1, rng.choice(BORDERS))) % 2**64
        if of_tensors:
            file.tensor_count = said
        else:
            file.entry_count = said
    return f"{way} {'a tensor' if of_tensors else 'an entry'}"


def _change_piece(pieces: Pieces, rng: random.Random) -> str:
    """Change one field. Roles are as likely as each other, however many fields have them; the first two are rare."""
    role = rng.choice(sorted({piece.role for piece in pieces[2 if rng.random() < 0.9 else 0 :]}))
    index = rng.choice([index for index, piece in enumerate(pieces) if piece.role == role])
    way = rng.choice(("value", "value", "value", "value", "double", "drop", "swap", "take"))
    old = pieces[index].data
    if way == "double":
        pieces.insert(index, pieces[index])
    elif way == "drop":
        del pieces[index]
    elif way == "swap":
        other = rng.randrange(len(pieces))
        pieces[index], pieces[other] = pieces[other], pieces[index]
    elif way == "take":
        pieces[index] = rng.choice([piece for piece in pieces if piece.role == role])
    elif role == "text":
        new = text(rng.choice(TEXTS))
        pieces[index] = new[1]
        if rng.random() < 0.7:  # with its length
            pieces[index - 1] = new[0]
    elif role in ("padding", "data"):
        pieces[index] = Piece(role, _change_bytes(old, rng)[0])
    else:
        pieces[index] = Piece(role, _another_number(old, rng))
    return f"{way} of {role} {index}"


def _another_number(old: bytes, rng: random.Random) -> bytes:
    value = int.from_bytes(old, "little")
    step = rng.choice((1, -1, 8, -8, 32, -32))
    new = rng.choice((value + step, value + step, value * 2, value ^ (1 << rng.randrange(8 * len(old)))))
    if rng.random() < 0.6:
        new = rng.choice(BORDERS)
    return (new % (1 << 8 * len(old))).to_bytes(len(old), "little")


def _change_bytes(data: bytes, rng: random.Random) -> tuple[bytes, str]:
    place, other = (rng.randrange(len(data) + 1) for _ in range(2))
    piece, bit = data[other : other + rng.choice((1, 4, 8, 64))], 1 << rng.randrange(8)
    ways: Sequence[tuple[str, Callable[[], bytes]]] = (
        ("flip", lambda: data[:place] + bytes(byte ^ bit for byte in data[place : place + 1]) + data[place + 1 :]),
        ("replace", lambda: data[:place] + rng.randbytes(rng.choice((1, 4, 8))) + data[place + 8 :]),
        ("cut", lambda: data[:place]),
        ("splice over", lambda: data[:place] + piece + data[place + len(piece) :]),
        ("splice in", lambda: data[:place] + piece + data[place:]),
        ("take out", lambda: data[:place] + data[place + rng.choice((1, 4, 8, 32)) :]),
        ("write", lambda: data[:place] + struct.pack("<Q", rng.choice(BORDERS)) + data[place + 8 :]),
        ("append", lambda: data + rng.randbytes(rng.choice((1, 32)))),
    )
    name, change = rng.choice(ways)
    return change(), f"{name} at {place}"
