"""Program of a rank in a process of its own: it opens its part of an artifact, and follows rank 0."""

from __future__ import annotations

import sys
from pathlib import Path

from sscc.compiler.driver.loading import open_interpreter
from sscc.runtime.backends.collectives.processes import ProcessGroup
from sscc.runtime.backends.interpreter import Interpreter
from sscc.runtime.serving.ranks.starting import Opening, run_rank
from sscc.runtime.session.artifact import Artifact


def open_part(opening: Opening, group: ProcessGroup) -> Interpreter:
    """Return the interpreter of one rank. Raises the errors of `open_interpreter`."""
    artifact = Artifact.load(Path(opening.artifact), verify=opening.verify)
    checkpoint = None if opening.checkpoint is None else Path(opening.checkpoint)
    return open_interpreter(
        artifact, checkpoint, interpreter=opening.interpreter, threads=opening.threads, group=group
    )


if __name__ == "__main__":
    sys.exit(run_rank(sys.argv[1], open_part))
