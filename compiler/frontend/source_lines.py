"""Source lines of captured operations, found without what torch finds besides.

For every operation that it captures torch describes each frame of the stack, some hundred of them with a line of text
each, and keeps those of modules' `forward`: a seventh of the time that a capture takes.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch.fx.proxy


class _ForwardFrames:
    """In place of torch's `CapturedTraceback`: the frames of `forward` functions, without the text of their lines."""

    def __init__(self, frame: FrameType | None) -> None:
        self._frame = frame

    @classmethod
    def extract(cls, **_: Any) -> _ForwardFrames:
        return cls(sys._getframe(1))

    def summary(self) -> traceback.StackSummary:
        frames, frame = [], self._frame
        while frame is not None:
            code = frame.f_code
            if code.co_name == "forward":
                frames.append(traceback.FrameSummary(code.co_filename, frame.f_lineno, code.co_name, line=""))
            frame = frame.f_back
        return traceback.StackSummary.from_list(reversed(frames))


@contextmanager
def forward_frames_only() -> Iterator[None]:
    """What torch captures inside keeps the places of its `forward` frames alone in `meta["stack_trace"]`."""
    proxy: Any = torch.fx.proxy
    usual = proxy.CapturedTraceback
    proxy.CapturedTraceback = _ForwardFrames
    try:
        yield
    finally:
        proxy.CapturedTraceback = usual
