"""What a report says of a kernel: the most that any of its pipelines needs, and nothing where it has none."""

from __future__ import annotations

import pytest

from sscc.ir.errors import InputError
from sscc.runtime.validator.failure import check_numbers, megabytes
from sscc.runtime.validator.report import EntryReport, KernelReport, PipelineReport, Report


def test_a_kernel_needs_the_most_that_one_of_its_pipelines_needs() -> None:
    one, other = (
        PipelineReport(name, 1, stages, buffers, sram, pmus, pcus, {}, {}, {}, {})
        for name, stages, buffers, sram, pmus, pcus in (("p", 2, 3, 100, 7, 4), ("q", 5, 1, 60, 9, 8))
    )
    full, idle = KernelReport("full", (one, other)), KernelReport("idle", ())
    assert (full.on_chip_bytes, full.pmus, full.pcus, full.stages, full.buffers) == (100, 9, 8, 7, 4)
    assert (idle.on_chip_bytes, idle.pmus, idle.pcus, idle.stages, idle.buffers) == (0, 0, 0, 0, 0)
    entries = tuple(EntryReport(name, launches, ()) for name, launches in (("main", 1), ("other", 2)))
    report = Report((idle, full), entries, 0, (), (), {})
    assert report.kernel("full") is full
    assert report.entry("other").launches == 2


def test_bytes_are_shown_in_megabytes_from_one_on() -> None:
    shown = [megabytes(n) for n in (0, (1 << 20) - 1, 1 << 20, 3 << 19, 612 << 20)]
    assert shown == ["0 bytes", "1048575 bytes", "1 MB", "1.5 MB", "612 MB"]


@pytest.mark.parametrize("sign", [1, -1])
def test_numbers_have_48_bits(sign: int) -> None:
    check_numbers("here", "it", (0, sign * ((1 << 48) - 1)))
    says = f"here: it has the number {sign * (1 << 48)}, the largest is {(1 << 48) - 1}$"
    with pytest.raises(InputError, match=says):
        check_numbers("here", "it", (0, sign * (1 << 48)))
