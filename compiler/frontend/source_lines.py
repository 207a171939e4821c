"""Source lines of captured operations, found without what torch finds besides.

For every operation that it captures torch describes each frame of the stack, some hundred of them with a line of text
each, and keeps those of modules' `forward`: a seventh of the time that a capture takes.
"""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

import torch.fx
import torch.fx.proxy

_FRAME = re.compile(r'File "([^"]+)", line ([0-9]+)')


def frames_of(node: torch.fx.Node) -> list[tuple[str, str]]:
    """File and line of each frame that torch noted of a captured operation, the outermost first."""
    return _FRAME.findall(node.meta.get("stack_trace") or "")


def source_line(node: torch.fx.Node) -> str:
    """``FILE:LINE`` of a captured operation; "" where torch noted none."""
    frames = frames_of(node)
    return ":".join(frames[-1]) if frames else ""


class _ForwardFrames:
    """In place of torch's `CapturedTraceback`: the frames of `forward` functions, without the text of their lines; or
    all those of one file, which torch is told to be such: others it would leave out."""

    file: str | None = None

    def __init__(self, frame: FrameType | None) -> None:
        self._frame = frame

    @classmethod
    def extract(cls, **_: Any) -> _ForwardFrames:
        return cls(sys._getframe(1))

    def _keeps(self, code: CodeType) -> bool:
        return code.co_name == "forward" if self.file is None else code.co_filename == self.file

    def summary(self) -> traceback.StackSummary:
        frames, frame = [], self._frame
        while frame is not None:
            code = frame.f_code
            if self._keeps(code):
                frames.append(traceback.FrameSummary(code.co_filename, frame.f_lineno, "forward", line=""))
            frame = frame.f_back
        return traceback.StackSummary.from_list(reversed(frames))


@contextmanager
def forward_frames_only(file: str | None = None) -> Iterator[None]:
    """What torch captures inside keeps the places of its `forward` frames alone in `meta["stack_trace"]`, or those in
    one file."""
    proxy: Any = torch.fx.proxy
    usual = proxy.CapturedTraceback
    proxy.CapturedTraceback = type("Frames", (_ForwardFrames,), {"file": file})
    try:
        yield
    finally:
        proxy.CapturedTraceback = usual
