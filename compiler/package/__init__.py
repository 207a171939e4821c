"""sscc compiles decoder-only language models for decoding over a compressed KV cache.

`sscc.compile(model, ...)` writes an artifact, `sscc.load(path)` opens one; options and errors are here too. Names
are imported on first use (PEP 562), so that `import sscc` stays fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sscc.compiler.driver.api import compile, load
    from sscc.compiler.driver.compile_result import CompileResult
    from sscc.compiler.driver.llm import LLM, CompletionOutput, RequestOutput, SamplingParams
    from sscc.compiler.options.compile_options import CompileOptions
    from sscc.compiler.options.policy import WHOLE_PROMPT, Policy, SnapStream
    from sscc.compiler.options.rule_prompt import Prompt
    from sscc.compiler.tools.quality.harness_model import harness_model
    from sscc.ir.errors import (
        CheckError,
        InputError,
        InternalError,
        OutputError,
        RankError,
        SsccError,
        UnsupportedError,
        UsageError,
    )
    from sscc.ir.geometry import Geometry
    from sscc.runtime.session.kept_positions import Kept, LayerKept, Reason
    from sscc.runtime.session.observing import Observation, Watching
    from sscc.runtime.session.prompt import Snapshot
    from sscc.runtime.session.sampling import Sampling
    from sscc.runtime.session.session import Session
    from sscc.runtime.session.tracing import Tracer
    from sscc.runtime.text.grammar import Grammar

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "WHOLE_PROMPT",
    "CheckError",
    "CompileOptions",
    "CompileResult",
    "CompletionOutput",
    "Geometry",
    "Grammar",
    "InputError",
    "InternalError",
    "Kept",
    "LayerKept",
    "Observation",
    "OutputError",
    "Policy",
    "Prompt",
    "RankError",
    "Reason",
    "RequestOutput",
    "Sampling",
    "SamplingParams",
    "Session",
    "SnapStream",
    "Snapshot",
    "SsccError",
    "Tracer",
    "UnsupportedError",
    "UsageError",
    "Watching",
    "__version__",
    "compile",
    "harness_model",
    "load",
]

_HOME = {
    "sscc.compiler.driver.api": ("compile", "load"),
    "sscc.compiler.driver.llm": ("LLM", "CompletionOutput", "RequestOutput", "SamplingParams"),
    "sscc.compiler.options.compile_options": ("CompileOptions",),
    "sscc.compiler.options.policy": ("WHOLE_PROMPT", "Policy", "SnapStream"),
    "sscc.compiler.options.rule_prompt": ("Prompt",),
    "sscc.compiler.tools.quality.harness_model": ("harness_model",),
    "sscc.compiler.driver.compile_result": ("CompileResult",),
    "sscc.ir.errors": tuple(name for name in __all__ if name.endswith("Error")),
    "sscc.ir.geometry": ("Geometry",),
    "sscc.runtime.text.grammar": ("Grammar",),
    "sscc.runtime.session.kept_positions": ("Kept", "LayerKept", "Reason"),
    "sscc.runtime.session.sampling": ("Sampling",),
    "sscc.runtime.session.prompt": ("Snapshot",),
    "sscc.runtime.session.session": ("Session",),
    "sscc.runtime.session.tracing": ("Tracer",),
    "sscc.runtime.session.observing": ("Observation", "Watching"),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOME.items():
        if name in names:
            value = getattr(importlib.import_module(module), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module 'sscc' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
