"""Numbers in messages, and the largest ones."""

from __future__ import annotations

import pytest

from sscc.runtime.validator.failure import NumberProofErrors, check_numbers, megabytes
from tests.errors import raises


def test_bytes_are_shown_in_megabytes_from_one_on() -> None:
    shown = [megabytes(n) for n in (0, (1 << 20) - 1, 1 << 20, 3 << 19, 612 << 20)]
    assert shown == ["0 bytes", "1048575 bytes", "1 MB", "1.5 MB", "612 MB"]


@pytest.mark.parametrize("sign", [1, -1])
def test_numbers_have_48_bits(sign: int) -> None:
    check_numbers("here", "it", (0, sign * ((1 << 48) - 1)))
    number = sign * (1 << 48)
    with raises(NumberProofErrors.TOO_LARGE, where="here", subject="it", number=number, largest=(1 << 48) - 1):
        check_numbers("here", "it", (0, sign * (1 << 48)))
