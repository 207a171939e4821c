"""Imports of the server from which workers are forked: every target, so that no worker spends seconds on them."""

from __future__ import annotations

import importlib
import os

from tests.fuzz.targets import TARGETS

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is imported

for _spec in TARGETS.values():
    importlib.import_module(_spec.partition(":")[0])
