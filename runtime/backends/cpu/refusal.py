"""What native code refuses, in one form."""

from __future__ import annotations

from sscc.ir.errors import InputError


class NoNativeCodeError(InputError):
    """Something of a schedule that may be right, and that the reference interpreter alone executes.

    Args:
        where: the stage or body that has it.
        why: what it is.
    """

    def __init__(self, where: str, why: str) -> None:
        super().__init__(f"the native interpreter cannot run {where}: {why}: run with --interpreter reference")
