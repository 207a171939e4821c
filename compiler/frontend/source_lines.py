"""Source lines of captured operations, found without torch's other stack information.

For every captured operation torch describes each frame of the stack, some hundred of them with a line of text each, and
keeps those of modules' `forward`: this takes a seventh of the time of a capture.
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
    """Return file and line of each frame that torch recorded for a captured operation, outermost first."""
    return _FRAME.findall(node.meta.get("stack_trace") or "")


def source_line(node: torch.fx.Node) -> str:
    """Return ``FILE:LINE`` of a captured operation; "" if torch recorded none."""
    frames = frames_of(node)
    return ":".join(frames[-1]) if frames else ""


class _ForwardFrames:
    """Replacement of torch's `CapturedTraceback`: the frames of `forward` functions, without the text of their lines;
    or all frames of one file, renamed to `forward`, because torch drops others."""

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
    """Make torch keep only the places of `forward` frames in `meta["stack_trace"]` of operations captured inside the
    block, or those in one file."""
    proxy: Any = torch.fx.proxy
    usual = proxy.CapturedTraceback
    proxy.CapturedTraceback = type("Frames", (_ForwardFrames,), {"file": file})
    try:
        yield
    finally:
        proxy.CapturedTraceback = usual
