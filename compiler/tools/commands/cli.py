"""The command line, `sscc COMMAND`.

Each command is a module of `sscc.compiler.tools.commands` with `add_arguments(parser)` and `main(args) -> exit code`.
Modules that are slow to import are imported inside `main`, so that `--help` is fast. Only this module turns exceptions
into a line on stderr and an exit code (`sscc.ir.errors` lists the codes).
"""

from __future__ import annotations

import errno
import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Sequence

from sscc.compiler.options.progress import silenced
from sscc.compiler.tools.commands.parser import COMMANDS, build_parser
from sscc.ir.errors import ErrorKind, InputError, InternalError, SsccError, printable

# By default, Torch's threads spin while they wait. If another program runs, they then starve each other.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells count
EXIT_BROKEN_PIPE = 141  # 128 + SIGPIPE
UNUSABLE = frozenset(
    (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EROFS, errno.EIO)
)
"""System errors about a file or folder that the user can fix, wherever they occur."""
REPORT_HINT = "this is a bug in sscc: please report it with the output of --traceback"


class UnexpectedErrors(ErrorKind):
    EXCEPTION = InternalError, "{exception}{place_hint}: {text}"
    PATH_UNUSABLE = InputError, "{path} cannot be used: {reason}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code. Errors are reported on stderr, not raised."""
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
        return report(error, show_traceback, "--json" in words)
    except Exception as error:
        return report(_described(error), show_traceback, "--json" in words)


def _run(words: list[str], began: float) -> int:
    args = build_parser(words[0] if words and words[0] in COMMANDS else None).parse_args(words)
    args.began = began  # `time.perf_counter()`
    with silenced(getattr(args, "quiet", False)):
        code: int = importlib.import_module(f"sscc.compiler.tools.commands.{args.command}").main(args)
    sys.stdout.flush()  # here, where a closed pipe is still caught
    return code


def report(error: SsccError, show_traceback: bool, as_json: bool) -> int:
    """Print an error as one line on stderr, followed by the faulty line of the input, and return the exit code.

    Args:
        as_json: also print the error on stdout as an object with kind, message and fields.
    """
    if show_traceback:
        traceback.print_exc()
    hint = f"; {REPORT_HINT}" if isinstance(error, InternalError) else ""
    excerpt = [printable(line) for line in error.excerpt.splitlines()]
    print(f"sscc: error: {printable(str(error))}{hint}", *excerpt, sep="\n", file=sys.stderr)
    if as_json:
        try:
            print(json.dumps({"error": {**error.as_json(), "exit_code": error.exit_code}}))
            sys.stdout.flush()
        except BrokenPipeError:
            _silence_stdout()
    return error.exit_code


def _described(error: Exception) -> SsccError:
    """Convert an unexpected exception to an error of sscc. A system error about a file names the path; every other one
    names the exception's class and the source line."""
    if isinstance(error, OSError) and error.errno in UNUSABLE and error.filename is not None:
        return UnexpectedErrors.PATH_UNUSABLE(path=os.fsdecode(error.filename), reason=error.strerror)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "importlib" not in f.filename]
    place = f" at {os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""
    return UnexpectedErrors.EXCEPTION(exception=type(error).__name__, place_hint=place, text=str(error))


def _silence_stdout() -> None:
    """Redirect stdout to /dev/null. Its reader is gone, so the flush at exit would otherwise fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
