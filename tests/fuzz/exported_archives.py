"""Target `pt2`: hostile edits of a genuine `.pt2`: fields of its JSON, symbolic sizes, members, the zip around them.

Each case is opened as `sscc compile` opens a model. It must be refused with an exit code from 2 to 6, or give a program
that can run. Everything else is a finding, and so is code that runs meanwhile: an audit hook sees executed code
objects, opened libraries, pickles that look up a class, new processes, and written files.
"""

from __future__ import annotations

import contextlib
import json
import pickle
import random
import struct
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import torch

from examples.own_decoder import Decoder, export
from sscc.compiler.frontend.checkpoint import open_checkpoint
from sscc.ir.errors import SsccError
from tests.compiler.frontend.pt2_files import CONSTANTS, PROGRAM, WEIGHTS, members, save_own
from tests.fuzz.harness import Finding, Target

SECONDS = 1.0
"""Of processor time that opening may take beyond what opening the archive as it is takes."""
RUN = 0.1
"""Share of the accepted cases whose program is run."""
FORBIDDEN = (
    *("os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "ctypes.dlopen", "pickle.find_class"),
    *("socket.connect", "os.remove", "os.rename", "shutil.rmtree"),
)

_state: dict[str, Any] = {"watching": False, "seen": []}


def _audit(event: str, arguments: Any) -> None:
    if not _state["watching"]:
        return
    if event in FORBIDDEN:
        _state["seen"].append(f"{event} {arguments!r:.200}")
    elif event == "compile" and isinstance(arguments[0], (str, bytes)) and _state["marker"] in str(arguments[0]):
        _state["seen"].append(f"compile {arguments[0]!r:.200}")
    elif event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+"):
        _state["seen"].append(f"open {arguments[0]!r:.200} for writing")


class ExportedArchives(Target):
    name: ClassVar[str] = "pt2"
    memory: ClassVar[int] = 256 << 20
    seconds: ClassVar[float] = 5.0

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.marker = folder / "code-has-run"
        torch.manual_seed(0)
        wrapped = folder / "wrapped.pt2"
        torch.export.save(export(_Wrapped(vocab=16, hidden=16, heads=2, kv_heads=1, layers=1)), wrapped)
        self.bases = [save_own(folder / "own.pt2"), wrapped]
        for base in self.bases:
            open_checkpoint(base)
        self.usual = max(_seconds(base) for base in self.bases)
        sys.addaudithook(_audit)
        _state["marker"] = self.marker.name

    def run(self, seed: int) -> str:
        rng = random.Random(seed)
        base = rng.choice(self.bases)
        case = self.folder / "case.pt2"
        how = _edit(base, case, rng, self.marker)
        _state["seen"], began = [], time.process_time()
        try:
            _state["watching"] = True
            opened = open_checkpoint(case, program=rng.random() < 0.9)
            outcome = "opened"
        except SsccError as error:
            outcome = f"refused {error.exit_code}"
            if not 2 <= error.exit_code <= 6 or error.kind is None:
                raise Finding(f"{how}: exit {error.exit_code}: {error}") from error
        finally:
            _state["watching"] = False
        took = time.process_time() - began
        if outcome == "opened" and opened.program is not None and rng.random() < RUN:
            outcome = _run(opened.program)
        if _state["seen"] or self.marker.exists():
            self.marker.unlink(missing_ok=True)
            raise Finding(f"{how}: {outcome}, and ran {_state['seen'][:3]}")
        if took > self.usual + SECONDS and _again(case) > self.usual + SECONDS:  # on a busy machine once is chance
            raise Finding(f"{how}: {outcome} after {took:.1f} s")
        return outcome


class _Wrapped(Decoder):
    """As the example, with a graph inside its graph."""

    def forward(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            angles = positions[:, :, None].float() * self.frequencies
            angles = torch.cat((angles, angles), dim=-1)[:, None]
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, angles.cos(), angles.sin())
        logits: torch.Tensor = self.head(self.norm(x))
        return logits


def _seconds(path: Path) -> float:
    began = time.process_time()
    open_checkpoint(path)
    return time.process_time() - began


def _again(path: Path) -> float:
    """Return the least processor time of two more attempts."""
    times = []
    for _ in range(2):
        began = time.process_time()
        with contextlib.suppress(SsccError):
            open_checkpoint(path)
        times.append(time.process_time() - began)
    return min(times)


def _run(program: Any) -> str:
    """Run what was accepted; a program may say that it does not run, as `sscc compile` then does."""
    module = program.module()
    try:
        with torch.no_grad():
            torch.fx.Interpreter(module).run(torch.zeros(1, 4, dtype=torch.int64), torch.arange(4)[None])
    except Exception as error:
        return f"does not run ({type(error).__name__})"
    return "runs"


# --------------------------------------------------------------------------------------------------------- edits


def _edit(base: Path, case: Path, rng: random.Random, marker: Path) -> str:
    data = base.read_bytes()
    kind = rng.random()
    if kind < 0.15:
        case.write_bytes(_edit_bytes(data, rng))
        return "bytes"
    contents = members(base)
    ways: list[Callable[[dict[str, bytes], random.Random, Path], str]] = [
        _edit_field, _edit_field, _edit_field, _swap_values, _hostile_text, _hostile_text, _edit_size, _edit_size,
        _edit_member, _edit_pickle,
    ]  # fmt: skip
    how = "; ".join(rng.choice(ways)(contents, rng, marker) for _ in range(rng.choice((1, 1, 1, 2, 4))))
    return f"{how}; {_write(case, contents, rng)}"


def _write(case: Path, contents: dict[str, bytes], rng: random.Random) -> str:
    """Write an archive, in some cases one that two readers may read differently."""
    how = rng.choice(["plain"] * 8 + ["deflated", "twice", "case", "root", "comment", "prefix", "bytes"])
    method = zipfile.ZIP_DEFLATED if how == "deflated" else zipfile.ZIP_STORED
    names = list(contents)
    victim = rng.choice(names)
    with zipfile.ZipFile(case, "w", method) as archive:
        for name, data in contents.items():
            root = "other" if how == "root" and name == victim else "own"
            archive.writestr(f"{root}/{name}", data)
        if how == "case":
            archive.writestr(f"own/{victim.upper()}", contents[victim])
        if how == "twice":
            twice = zipfile.ZipInfo(f"own/{victim}")
            archive.filelist = [item for item in archive.filelist if item.filename != twice.filename]
            del archive.NameToInfo[twice.filename]
            archive.writestr(twice, b"{}")
        if how == "comment":
            archive.comment = b"PK\x05\x06" + bytes(18)
    data = case.read_bytes()
    if how == "prefix":
        case.write_bytes(bytes(64) + data)
    if how == "bytes":
        case.write_bytes(_edit_bytes(data, rng))
    return how


def _edit_bytes(data: bytes, rng: random.Random) -> bytes:
    """Change the file itself: bytes anywhere, numbers in its headers and its directory, its length."""
    edited = bytearray(data)
    directory = data.rfind(b"PK\x01\x02", 0, max(len(data) - 200, 0)) if rng.random() < 0.5 else 0
    way = rng.choice(("flip", "number", "number", "cut", "splice"))
    if way == "cut":
        return data[: rng.randrange(len(data))]
    for _ in range(rng.choice((1, 1, 3))):
        place = rng.randrange(max(directory, 0), len(data))
        if way == "flip":
            edited[place] = rng.randrange(256)
        elif way == "number":
            number = rng.choice((0, 1, 0xFFFF, 0xFFFFFFFF, 0x7FFFFFFF, len(data), rng.randrange(1 << 32)))
            edited[place : place + 4] = struct.pack("<L", number)
        else:
            start = rng.randrange(len(data))
            edited[place:place] = data[start : start + rng.choice((1, 16, 64))]
    return bytes(edited)


TEXTS = ("", "x", "self", "torch", "None", "lambda", "__class__", "a.b", "a b", "é", "\x00", "../x", "a" * 5000, "s0")
NUMBERS = (0, -1, 1, 2, 7, 255, 2**31, 2**62, 2**63, 2**64, 10**30, 0.5, 1e308)


def _value(rng: random.Random, marker: Path) -> Any:
    kind = rng.random()
    if kind < 0.4:
        return rng.choice(NUMBERS)
    if kind < 0.7:
        return rng.choice(TEXTS)
    if kind < 0.85:
        return rng.choice((None, True, False, [], {}, [[]], {"as_int": 3}, {"as_none": True}, {"as_name": "ids"}))
    if kind < 0.95:
        return _code(rng, marker)
    nested: Any = 1
    for _ in range(rng.choice((10, 200, 900))):
        nested = [nested]
    return nested


def _code(rng: random.Random, marker: Path) -> str:
    touch = f"__import__('pathlib').Path({str(marker)!r}).touch()"
    return rng.choice(
        (
            touch,
            f"Symbol('s0', integer={touch})",
            f"Add(Integer(1), {touch})",
            f"x); {touch}; (",
            f"a\n    {touch}\n    b",
            f"torch.ops.aten.add.Tensor, {touch}",
            f"L['ids'].size()[0] == {touch}",
            "torch.hub.load",
            "torch.ops.aten.from_file.default",
            "torch.utils.cpp_extension.load_inline",
            "_operator.call",
            "os.system",
        )
    )


def _json(contents: dict[str, bytes], rng: random.Random) -> tuple[str, Any] | None:
    name = rng.choice((PROGRAM, PROGRAM, PROGRAM, WEIGHTS, CONSTANTS))
    try:
        return name, json.loads(contents[name])
    except (KeyError, ValueError):  # an edit before this one has damaged it
        return None


def _place(values: Any, rng: random.Random) -> tuple[Any, Any]:
    """A container somewhere in a tree of JSON values, and one of its keys."""
    place = values
    while True:
        keys = sorted(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            return {"x": 1}, "x"
        key = rng.choice(keys)
        if not isinstance(place[key], (dict, list)) or not place[key] or rng.random() < 0.1:
            return place, key
        place = place[key]


def _edit_field(contents: dict[str, bytes], rng: random.Random, marker: Path) -> str:
    found = _json(contents, rng)
    if found is None or not isinstance(found[1], dict):
        return "nothing"
    name, values = found
    place, key = _place(values, rng)
    way = rng.random()
    if way < 0.2:
        del place[key]
    elif way < 0.35 and isinstance(place, dict):
        place[str(_value(rng, marker))] = place.pop(key)
    elif way < 0.5 and isinstance(place, list):
        place.insert(rng.randrange(len(place) + 1), rng.choice(place))
    else:
        place[key] = _value(rng, marker)
    contents[name] = json.dumps(values).encode()
    return f"{name}: {key}"


def _swap_values(contents: dict[str, bytes], rng: random.Random, marker: Path) -> str:
    """Put a value where another one was, which is well-formed by itself."""
    found = _json(contents, rng)
    if found is None or not isinstance(found[1], dict):
        return "nothing"
    name, values = found
    (first, key), (second, other) = _place(values, rng), _place(values, rng)
    first[key], second[other] = second[other], first[key]
    try:
        contents[name] = json.dumps(values).encode()
    except ValueError:  # a circle
        return "nothing"
    return f"{name}: {key} and {other} swapped"


def _hostile_text(contents: dict[str, bytes], rng: random.Random, marker: Path) -> str:
    """Put code in place of a text."""
    found = _json(contents, rng)
    if found is None or not isinstance(found[1], dict):
        return "nothing"
    name, values = found
    for _ in range(50):
        place, key = _place(values, rng)
        if isinstance(place[key], str):
            place[key] = _code(rng, marker) if rng.random() < 0.8 else place[key] + rng.choice(TEXTS)
            break
    contents[name] = json.dumps(values).encode()
    return f"{name}: {key} is code"


def _edit_size(contents: dict[str, bytes], rng: random.Random, marker: Path) -> str:
    """Change a symbolic size into another one, small or large."""
    found = _json(contents, rng)
    if found is None or found[0] != PROGRAM or not isinstance(found[1], dict):
        return "nothing"
    sizes: list[Any] = []
    _collect(found[1], sizes)
    if not sizes:
        return "nothing"
    rng.choice(sizes)["expr_str"] = _expression(rng, rng.choice((1, 2, 4, 12)))
    contents[PROGRAM] = json.dumps(found[1]).encode()
    return "a size"


def _collect(value: Any, sizes: list[Any]) -> None:
    if isinstance(value, dict):
        if isinstance(value.get("expr_str"), str):
            sizes.append(value)
        for item in value.values():
            _collect(item, sizes)
    elif isinstance(value, list):
        for item in value:
            _collect(item, sizes)


def _expression(rng: random.Random, depth: int) -> str:
    if not depth or rng.random() < 0.2:
        name = rng.choice(("s0", "s18", "s77", "u0", "zf3"))
        fact = rng.choice(("integer=True", "positive=True, integer=True", "integer=True, nonnegative=True"))
        return rng.choice((f"Symbol('{name}', {fact})", f"Integer({rng.choice(NUMBERS)})"))
    name = rng.choice(
        ("Add", "Mul", "Pow", "Max", "Min", "FloorDiv", "Mod", "PythonMod", "CeilDiv", "ModularIndexing", "exec")
    )
    return f"{name}({', '.join(_expression(rng, depth - 1) for _ in range(rng.choice((1, 2, 2, 2, 3))))})"


def _edit_member(contents: dict[str, bytes], rng: random.Random, marker: Path) -> str:
    name = rng.choice(list(contents))
    way = rng.choice(("drop", "empty", "cut", "rename", "add", "bytes"))
    if way == "drop" and len(contents) > 1:
        del contents[name]
    elif way == "empty":
        contents[name] = b""
    elif way == "cut":
        contents[name] = contents[name][: rng.randrange(len(contents[name]) + 1)]
    elif way == "rename":
        contents[rng.choice(("models/x.json", "data/weights/x", name + "x", name.swapcase()))] = contents.pop(name)
    elif way == "bytes" and contents[name]:
        place = rng.randrange(len(contents[name]))
        contents[name] = contents[name][:place] + rng.randbytes(rng.choice((1, 8))) + contents[name][place + 1 :]
    else:
        other = rng.choice(("data/aotinductor/model/x.so", "extra/x", "x", "data/executorch/x", "models/y.json"))
        contents[other] = b"x"
    return f"{name} {way}"


class _Touch:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return Path.touch, (self.marker,)


def _edit_pickle(contents: dict[str, bytes], rng: random.Random, marker: Path) -> str:
    """Put a pickle where torch would unpickle one."""
    data = pickle.dumps(_Touch(marker), protocol=2)
    table, member = rng.choice(
        (
            ("constants", "opaque_obj_0"), ("constants", "custom_obj_0"), ("constants", "tensor_0"),
            ("weights", "weight_0"), ("weights", "model.pt"), ("constants", "model.pt"), ("sample_inputs", "model.pt"),
            ("sample_inputs", "model.PT"),
        )
    )  # fmt: skip
    contents[f"data/{table}/{member}"] = data
    name = f"data/{table}/model_{table}_config.json"
    try:
        values = json.loads(contents[name])
        entry = rng.choice(list(values["config"].values()))
        entry |= {"path_name": member, "use_pickle": rng.random() < 0.7}
        if rng.random() < 0.5:
            entry["tensor_meta"] = None
        contents[name] = json.dumps(values).encode()
    except (KeyError, ValueError, TypeError, AttributeError, IndexError):
        pass
    return f"a pickle as {table}/{member}"
