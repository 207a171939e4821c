"""Defaults of an evaluation. Imports no library, for the help of `sscc eval`."""

from __future__ import annotations

from sscc.compiler.tools.quality.cells import METHODS as ALL_METHODS
from sscc.compiler.tools.quality.cells import QUERY
from sscc.compiler.tools.quality.tasks import TASKS as ALL_TASKS
from sscc.ir.geometry import DEFAULT_LANDMARK_BITS

SLOW = ("niah_multiquery", "list_copy", "answer_recall", "extraction")
TASKS = tuple(name for name in ALL_TASKS if name not in SLOW)
LENGTHS = (1024,)
BUDGETS = (256, 512)
METHODS = tuple(name for name in ALL_METHODS if name != QUERY)  # budgets of QUERY count rows that are read, not held
LANDMARK_BITS = (DEFAULT_LANDMARK_BITS,)
EXAMPLES = 20  # per task and length
SCORED = 128  # tokens per window of perplexity
