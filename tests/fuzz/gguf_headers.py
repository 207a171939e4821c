"""Target `gguf`: damaged headers of `.gguf` files, alone and in parts, judged by `gguf.GGUFReader`.

A case is a small file that is right, or two or three parts of a model, with fields changed (counts, lengths, types,
sizes and offsets to the borders of their range, texts to hostile ones), entries and tensors doubled, dropped, moved or
put in each other's place, and bytes flipped, cut, spliced or added. It is refused with a kind of the reader's own, in
one line that prints; or both readers give the same metadata, tensors and bytes. Reading takes at most a second of
processor time and 256 MiB.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import time
from pathlib import Path
from typing import ClassVar

from sscc.compiler.frontend.gguf.header import read_header
from sscc.compiler.frontend.gguf.header_errors import GgufHeaderErrors
from sscc.compiler.frontend.gguf.parts import COUNT, GgufPartErrors
from sscc.ir.errors import SsccError
from tests.compiler.frontend.gguf_files import differences
from tests.fuzz.gguf_mutation import mutated, random_file, random_parts
from tests.fuzz.harness import Finding, Target

SECONDS = 1.0
"""Of processor time that reading a header may take."""
LONGEST_MESSAGE = 8000
CLEAN = (3, 5)
"""Exit codes of unsupported and of damaged files."""
MOVED = 0.1
"""Share of the models in parts of which one part is missing or has another's name."""


class GgufHeaders(Target):
    name: ClassVar[str] = "gguf"
    memory: ClassVar[int] = 256 << 20
    seconds: ClassVar[float] = 5.0

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "case"
        path = self._write([random_file(random.Random(0)).packed()])[0]
        differences(read_header(path), [path])  # what both import is not charged to a case

    def run(self, seed: int) -> str:
        rng = random.Random(seed)
        files = random_parts(rng) if rng.random() < 0.2 else [random_file(rng)]
        contents = [file.packed() for file in files]
        victim = rng.randrange(len(files))
        contents[victim], how = mutated(files[victim], rng)
        paths = self._write(contents)
        if len(paths) > 1 and rng.random() < MOVED:
            rng.choice(paths).replace(rng.choice(paths))
            how = f"{how or 'as it was'}; a part moved"
        opened = rng.choice([path for path in paths if path.exists()])
        try:
            return self._judge(opened, paths, how)
        except Finding as finding:
            raise Finding(f"{how or 'as it was'}, {opened.name} opened: {finding}") from finding

    def _write(self, contents: list[bytes]) -> list[Path]:
        """Write one file, or all parts of a model, to an empty folder."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir()
        count = len(contents)
        names = [f"m-{part:05}-of-{count:05}.gguf" for part in range(1, count + 1)] if count > 1 else ["m.gguf"]
        for name, data in zip(names, contents, strict=True):
            (self._folder / name).write_bytes(data)
        return [self._folder / name for name in names]

    def _judge(self, opened: Path, paths: list[Path], how: str) -> str:
        began = time.process_time()
        try:
            header = read_header(opened)
        except SsccError as error:
            header = error
        if time.process_time() - began > SECONDS and _again(opened) > SECONDS:  # on a busy machine once is chance
            raise Finding(f"{header} after more than {SECONDS} s of processor time")
        if isinstance(header, SsccError):
            return _refusal(header, how)
        split = header.metadata.get(COUNT, 0) > 1
        try:
            found = differences(header, paths if split else [opened])
        except Exception as error:
            if any(key.startswith("GGUF.") for key in header.metadata):  # it has fields of its own under such keys
                return "read, with a key that the judge has for itself"
            raise Finding(f"it is read, and GGUFReader raises {type(error).__name__}: {error}") from error
        if found:
            raise Finding(f"the readers differ: {found[:3]}")
        return "read in parts" if split else "read"


def _refusal(error: SsccError, how: str) -> str:
    """Check an error, and return the outcome that its kind is."""
    if not isinstance(error.kind, GgufHeaderErrors | GgufPartErrors) or error.exit_code not in CLEAN:
        raise Finding(f"exit {error.exit_code}: {error}") from error
    if not str(error).isprintable() or len(str(error)) > LONGEST_MESSAGE:
        raise Finding(f"its message is not a short line that prints: {error!r:.500}") from error
    if not how:
        raise Finding(f"it is right, and refused: {error}") from error
    return f"refused {error.kind.code}"


def _again(path: Path) -> float:
    """Return the least processor time of two more attempts."""
    times = []
    for _ in range(2):
        began = time.process_time()
        with contextlib.suppress(SsccError):
            read_header(path)
        times.append(time.process_time() - began)
    return min(times)
