"""How refusals show numbers, and how large these may be."""

from __future__ import annotations

import pytest

from sscc.ir.errors import InputError
from sscc.runtime.validator.failure import check_numbers, megabytes


def test_bytes_are_shown_in_megabytes_from_one_on() -> None:
    shown = [megabytes(n) for n in (0, (1 << 20) - 1, 1 << 20, 3 << 19, 612 << 20)]
    assert shown == ["0 bytes", "1048575 bytes", "1 MB", "1.5 MB", "612 MB"]


@pytest.mark.parametrize("sign", [1, -1])
def test_numbers_have_48_bits(sign: int) -> None:
    check_numbers("here", "it", (0, sign * ((1 << 48) - 1)))
    says = f"here: it has the number {sign * (1 << 48)}, the largest is {(1 << 48) - 1}$"
    with pytest.raises(InputError, match=says):
        check_numbers("here", "it", (0, sign * (1 << 48)))
