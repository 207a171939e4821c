"""The command line: `sscc compile`, `sscc run`, `sscc pack`, `sscc doctor`.

Each command is a module of `sscc.compiler.commands` with `add_arguments(parser)` and `main(args) -> exit code`;
whatever is heavy they import inside `main`, so that `--help` answers at once. This module is the one place that
turns exceptions into a line on stderr and an exit code (sscc.ir.errors lists the codes).
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
import time
import traceback
from collections.abc import Sequence

from sscc.compiler.commands.parser import COMMANDS, build_parser
from sscc.compiler.progress import silenced
from sscc.ir.errors import ErrorKind, InputError, InternalError, SsccError

# Torch's threads would spin while they wait and so starve each other wherever another program runs.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

EXIT_BUG = InternalError.exit_code
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells count
EXIT_BROKEN_PIPE = 141  # 128 + SIGPIPE
UNUSABLE = frozenset(
    (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EROFS, errno.EIO)
)
"""Errors of the system about a file or folder that are the user's to mend, wherever they come up."""
REPORT_HINT = "this is a bug in sscc: please report it with what --traceback prints"


class CommandErrors(ErrorKind):
    UNUSABLE = InputError, "{path} cannot be used: {reason}"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code; never raises on a person's input."""
    words = list(sys.argv[1:] if argv is None else argv)
    show_traceback = "--traceback" in words or os.environ.get("SSCC_TRACEBACK", "0") not in ("", "0")
    began = time.perf_counter()
    try:
        return _run(words, began)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _silence_stdout()
        return EXIT_BROKEN_PIPE
    except SsccError as error:
        hint = f"; {REPORT_HINT}" if isinstance(error, InternalError) else ""
        return _report(f"{error}{hint}", error.exit_code, show_traceback, error.excerpt)
    except Exception as error:
        if isinstance(error, OSError) and error.errno in UNUSABLE and error.filename is not None:
            unusable = CommandErrors.UNUSABLE(path=str(error.filename), reason=error.strerror)
            return _report(str(unusable), unusable.exit_code, show_traceback)
        return _report(f"{_described(error)}; {REPORT_HINT}", EXIT_BUG, show_traceback)


def _run(words: list[str], began: float) -> int:
    args = build_parser(words[0] if words and words[0] in COMMANDS else None).parse_args(words)
    args.began = began  # `time.perf_counter()`
    with silenced(getattr(args, "quiet", False)):
        code: int = importlib.import_module(f"sscc.compiler.commands.{args.command}").main(args)
    sys.stdout.flush()  # here, where a closed pipe is still caught
    return code


def _report(message: str, code: int, show_traceback: bool, excerpt: str = "") -> int:
    if show_traceback:
        traceback.print_exc()
    print(f"sscc: error: {message}", *([excerpt] if excerpt else []), sep="\n", file=sys.stderr)
    return code


def _described(error: Exception) -> str:
    """The kind, the first line of the message and the place in sscc where it came from."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "importlib" not in f.filename]
    where = f" at {os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""
    first_line = (str(error).splitlines() or [""])[0][:200]
    return f"{type(error).__name__}{where}: {first_line}"


def _silence_stdout() -> None:
    """Points stdout at /dev/null. Its reader is gone, so the flush at exit would otherwise fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
