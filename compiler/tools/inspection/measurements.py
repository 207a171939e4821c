"""Measurements as written by `sscc bench --json`, and their reader."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sscc.ir.errors import ErrorKind, InputError, quoted
from sscc.ir.file_form import decode

Test = Literal["prefill", "decode", "verify"]


class MeasurementErrors(ErrorKind):
    UNREADABLE = InputError, "the measurements {path} cannot be read: {reason}"
    NOT_JSON = (
        InputError,
        "the measurements {path} are not JSON, as `sscc bench OUT.rdu --json` writes it: {reason}",
    )
    NOT_POSITIVE = (
        InputError,
        "the measurements {path} are malformed: results[{number}] has no time, or a number that is not positive",
    )
    OTHER_PROGRAM = (
        InputError,
        "the measurements {path} belong to another program, {artifact}: measure this one with `sscc bench`",
    )


@dataclass(frozen=True)
class Measurement:
    """One test, measured several times.

    Attributes:
        test: "prefill" of `tokens` tokens, "decode" of `tokens` steps, or "verify" of `tokens` steps of V + 1 tokens in
            each slot, the first of which stays.
        slots: number of slots that decode together.
        depth: tokens in each slot before the test.
        seconds: time of each repetition.
        tokens_per_second: tokens/s of all slots in the median repetition.
        bandwidth: measured memory read bandwidth of the same number of threads, in bytes/s.
        bytes_per_step: minimum bytes that a decode step reads, on all ranks of this machine: weights, with the mean
            number of experts for random tokens, and the cache rows that the prompts leave in its slots.
        share: fraction of the bandwidth that a step reaches according to `bytes_per_step`; None for prefill, which is
            bound by arithmetic.
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
        return f"{self.test} {self.tokens} at {self.depth}, {self.slots} slot{'s' * (self.slots > 1)}"


@dataclass(frozen=True)
class Measurements:
    """All tests of a run.

    Attributes:
        artifact: path of the artifact.
        schedule: sha256 of its schedule.
        threads: threads of the interpreter on the measured machine.
        ranks: ranks of the program.
        ranks_of_this_machine: ranks that ran on the measured machine.
    """

    artifact: str
    schedule: str
    interpreter: str
    threads: int
    ranks: int
    ranks_of_this_machine: int
    results: tuple[Measurement, ...]


def read_measurements(path: Path, schedule: str) -> Measurements:
    """Return measurements written by `sscc bench --json`. Raises InputError for another file, or another schedule."""
    where = f"the measurements {path}"
    try:
        data: Any = json.loads(path.read_text(encoding="utf-8"), object_hook=_without_null)
    except (OSError, UnicodeDecodeError) as error:
        raise MeasurementErrors.UNREADABLE(path=path, reason=quoted(error)) from None
    except (ValueError, RecursionError) as error:
        raise MeasurementErrors.NOT_JSON(path=path, reason=quoted(error)) from None
    measurements: Measurements = decode(data, Measurements, "it", where)
    for number, result in enumerate(measurements.results):
        numbers = (*result.seconds, result.tokens_per_second, result.bandwidth, float(result.tokens))
        if not result.seconds or not all(0 < number < math.inf for number in numbers):
            raise MeasurementErrors.NOT_POSITIVE(path=path, number=number)
    if measurements.schedule != schedule:
        raise MeasurementErrors.OTHER_PROGRAM(path=path, artifact=measurements.artifact)
    return measurements


def _without_null(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record without its null fields, which the file form omits."""
    return {name: value for name, value in record.items() if value is not None}
