"""CPU features that native code is compiled for."""

from __future__ import annotations

import pytest

from sscc.ir.weight_formats.groups import GroupFormat
from sscc.runtime.backends.cpu.codegen import features as module
from sscc.runtime.backends.cpu.codegen.features import AVX2, MODELS, VARIABLE, Features, NativeCpuErrors
from sscc.runtime.backends.cpu.codegen.mlir import PTR, Module
from sscc.runtime.backends.cpu.codegen.phases import Operand
from sscc.runtime.backends.cpu.plan.library import code_key
from sscc.runtime.backends.cpu.products.quantized_packing import QuantizedPanels
from sscc.runtime.backends.cpu.products.quantized_products import quantized_product
from tests.errors import raises


def test_the_host_unless_the_variable_names_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert Features.chosen() == Features.of_host()
    key = code_key("1")
    monkeypatch.setenv(VARIABLE, AVX2.cpu)
    assert Features.chosen() == AVX2
    assert code_key("1") != key


def test_a_cpu_that_is_not_known_or_cannot_be_this_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "i386")
    with raises(NativeCpuErrors.UNKNOWN, variable="SSCC_NATIVE_CPU", cpu="i386", models=["x86-64-v3", "x86-64-v4"]):
        Features.chosen()
    monkeypatch.setenv(VARIABLE, "x86-64-v3")
    monkeypatch.setattr(module._native, "cpu_features", lambda: ["fma", "asimd"])
    with raises(NativeCpuErrors.MISSING_INSTRUCTIONS, cpu="x86-64-v3"):
        Features.chosen()


@pytest.mark.parametrize(
    ("extensions", "bits"),
    [((), 0), (("avx2",), 256), (MODELS["x86-64-v3"], 256), (MODELS["x86-64-v4"], 512), (("asimd", "asimddp"), 0)],
)
def test_pairs_of_words_are_summed_in_the_widest_registers(extensions: tuple[str, ...], bits: int) -> None:
    assert Features("", frozenset(extensions)).int16_dot == bits


def test_llvm_is_told_what_the_kernel_says_of_an_arm_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module._native, "cpu_features", lambda: ["asimd", "asimddp", "svebf16", "i8mm"])
    assert module.host_attributes() == "+neon,+dotprod,+i8mm"
    monkeypatch.setattr(module._native, "cpu_features", lambda: ["avx2", "fma"])
    assert module.host_attributes() == ""


@pytest.mark.parametrize(("bits", "zero_point"), [(8, False), (8, True), (4, False), (4, True)])
def test_arm_takes_codes_of_8_bits_as_signed_ones(bits: int, zero_point: bool) -> None:
    """Executed by tests/aarch64/run.sh; here, that the kernel names the instruction and where codes lose their 128."""
    f = (code := Module()).function("f", [(name, PTR) for name in ("a", "weights", "out", "scratch")], exported=True)
    a, out = Operand(f["a"], (1, 64), (64, 1), "f32"), Operand(f["out"], (1, 16), (16, 1), "f32")
    features = Features("", frozenset({"asimd", "asimddp"}))
    quantized_product(a, out, QuantizedPanels(16, 64, GroupFormat(bits, 32, zero_point).descriptor), features).emit(
        f, f["weights"], 0, 16, f["scratch"]
    )
    f.returns()
    text = code.text()
    assert "llvm.aarch64.neon.sdot" in text
    assert "llvm.x86" not in text
    assert ("arith.xori" in text) == (bits == 8)
