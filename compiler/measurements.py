"""What `sscc bench` measures, as it writes it with --json, and reading it back."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sscc.ir.errors import InputError, quoted
from sscc.ir.file_form import decode

Test = Literal["prefill", "decode"]


@dataclass(frozen=True)
class Measurement:
    """One test, measured several times.

    Attributes:
        test: "prefill" of `tokens` tokens, or "decode" of `tokens` steps.
        slots: that decode together.
        depth: tokens that each slot holds before.
        seconds: of every repetition.
        tokens_per_second: of all slots, of the median repetition.
        bandwidth: bytes/s that as many threads read from memory, measured beside it.
        bytes_per_step: of decode, what a step cannot avoid to read: weights, of experts those that random tokens choose
            in the mean, and the rows that the prompts leave in its slots; by all ranks of this machine.
        share: of that bandwidth, what a step reaches by `bytes_per_step`; None for prefill, which is bound by
            arithmetic.
    """

    test: Test
    tokens: int
    slots: int
    depth: int
    seconds: tuple[float, ...]
    tokens_per_second: float
    bandwidth: float
    bytes_per_step: int | None = None
    share: float | None = None

    @property
    def name(self) -> str:
        if self.test == "prefill":
            return f"prefill {self.tokens}"
        return f"decode {self.tokens} at {self.depth}, {self.slots} slot{'s' * (self.slots > 1)}"


@dataclass(frozen=True)
class Measurements:
    """All tests of a run.

    Attributes:
        artifact: its path. schedule: the sha256 of its schedule.
        threads: of the interpreter, on this machine.
        ranks: of the program. ranks_of_this_machine: those of them that ran on the machine that wrote this.
    """

    artifact: str
    schedule: str
    interpreter: str
    threads: int
    ranks: int
    ranks_of_this_machine: int
    results: tuple[Measurement, ...]


def read_measurements(path: Path, schedule: str) -> Measurements:
    """What `sscc bench --json` wrote. Raises InputError where the file is something else, or of another schedule."""
    where = f"the measurements {path}"
    try:
        data: Any = json.loads(path.read_text(encoding="utf-8"), object_hook=_without_null)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{where} cannot be read: {quoted(error)}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} are not JSON, as `sscc bench OUT.rdu --json` writes: {quoted(error)}") from None
    measurements: Measurements = decode(data, Measurements, "it", where)
    for number, result in enumerate(measurements.results):
        numbers = (*result.seconds, result.tokens_per_second, result.bandwidth, float(result.tokens))
        if not result.seconds or not all(0 < number < math.inf for number in numbers):
            raise InputError(f"{where} are malformed: results[{number}] has no time, or none that is positive")
    if measurements.schedule != schedule:
        raise InputError(f"{where} are of another program, {quoted(measurements.artifact)}: measure this one")
    return measurements


def _without_null(record: dict[str, Any]) -> dict[str, Any]:
    """In the file form what is None is left out."""
    return {name: value for name, value in record.items() if value is not None}
