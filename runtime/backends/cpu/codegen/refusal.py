"""Errors about schedules that may be valid but cannot be executed by native code."""

from __future__ import annotations

from sscc.ir.errors import ErrorKind, InputError


class NoNativeCode(ErrorKind):
    """Base of the error kinds for a part of a schedule that only the reference interpreter can execute.

    The message of a kind begins with the stage or body: "body {body!r}: ..".
    """

    def __init__(self, message: str) -> None:
        hint = "; run the program with --interpreter reference"
        super().__init__(InputError, f"the native interpreter cannot run {message}{hint}")


class NoNativeStage(NoNativeCode):
    """Base of the error kinds for a stage that only the reference interpreter can execute."""

    def __init__(self, message: str) -> None:
        super().__init__("stage {stage!r} of {pipeline}: " + message)
