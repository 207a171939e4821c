"""Which CPU native code is made for."""

from __future__ import annotations

import pytest

from sscc.ir.errors import UsageError
from sscc.runtime.backends.cpu import features as module
from sscc.runtime.backends.cpu.features import AVX2, MODELS, VARIABLE, Features
from sscc.runtime.backends.cpu.library import code_key


def test_the_host_unless_the_variable_names_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert Features.chosen() == Features.of_host()
    key = code_key("1")
    monkeypatch.setenv(VARIABLE, AVX2.cpu)
    assert Features.chosen() == AVX2
    assert code_key("1") != key


def test_a_cpu_that_is_not_known_or_cannot_be_this_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "i386")
    with pytest.raises(UsageError, match=rf"SSCC_NATIVE_CPU=i386 is no CPU .* {', '.join(MODELS)}"):
        Features.chosen()
    monkeypatch.setenv(VARIABLE, "x86-64-v3")
    monkeypatch.setattr(module._native, "cpu_features", lambda: ["fma", "asimd"])
    with pytest.raises(UsageError, match=r"x86-64-v3 needs instructions that this CPU lacks: sse4_1, .*avx2"):
        Features.chosen()


@pytest.mark.parametrize(
    ("extensions", "bits"),
    [((), 0), (("avx2",), 256), (MODELS["x86-64-v3"], 256), (MODELS["x86-64-v4"], 512), (("asimd", "asimddp"), 0)],
)
def test_pairs_of_words_are_summed_in_the_widest_registers(extensions: tuple[str, ...], bits: int) -> None:
    assert Features("", frozenset(extensions)).int16_dot == bits
