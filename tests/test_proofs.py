"""What tests keep of proofs: one is given again for an equal schedule under an equal signature, and for no other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sscc.ir.errors import InputError
from sscc.runtime import contract
from tests.proofs import Proofs
from tests.runtime.fake import SIGNATURE
from tests.runtime.session_program import session_program
from tests.runtime.signatures import altered


def test_an_equal_schedule_is_proved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    proofs = Proofs()
    report = proofs(session_program(SIGNATURE), SIGNATURE)
    monkeypatch.setattr(contract, "prove", lambda *_: pytest.fail("it is proved again"))
    assert proofs(session_program(SIGNATURE), SIGNATURE) is report


def test_another_one_is_proved_too() -> None:
    proofs = Proofs()
    program = session_program(SIGNATURE)
    proofs(program, SIGNATURE)
    with pytest.raises(InputError):
        proofs(replace(program, arena_bytes=0), SIGNATURE)
    with pytest.raises(InputError):
        proofs(program, altered(SIGNATURE, value_dim=6))
