"""Speed of generated matrix products on this machine, compared with a streaming read.

    python benchmarks/stages.py [--megabytes 256] [--seconds 0.3] [--only gemv|gemm] [--dtypes bf16,f32,int8,int4,Q4_K]

Products run on one thread over many copies of their weights, `megabytes` in total, so that a product of few rows reads
them from memory. A call reads at least 4 MiB of weights; the fastest call counts. GB/s count the packed weights
(including scales) once, GFLOP/s two operations per multiply-add. Quantized weights of any format, given by name, are
multiplied with bf16 rows. Prints a table.
"""

from __future__ import annotations

import argparse
import ctypes
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sscc.ir.weight_formats.registry import format_named
from sscc.runtime.backends.cpu.codegen.features import Features
from sscc.runtime.backends.cpu.codegen.figures import LINE
from sscc.runtime.backends.cpu.codegen.machine_code import Jit
from sscc.runtime.backends.cpu.codegen.mlir import PTR, Module
from sscc.runtime.backends.cpu.codegen.phases import Operand
from sscc.runtime.backends.cpu.products.packing import Panels
from sscc.runtime.backends.cpu.products.products import packed_product
from sscc.runtime.backends.cpu.products.quantized_packing import QuantizedPanels
from sscc.runtime.backends.cpu.products.quantized_products import quantized_product
from sscc.runtime.backends.cpu.products.small_float_products import small_float_product
from sscc.runtime.support import _native

GEMV = [(768, 768), (2048, 768), (2048, 2048), (8192, 2048), (2048, 8192), (65536, 4096)]
GEMM = [(32, 2048, 2048), (128, 2048, 2048), (512, 2048, 768), (512, 768, 2048), (2048, 32000, 768)]
ROWS = (1, 2, 4, 8, 16)
PLAIN = ("bf16", "f32")
_CALL_BYTES = 4 << 20


@dataclass(frozen=True)
class Case:
    """A product out[m, n] = a[m, k] b[n, k] with f32 results. `dtype` is the dtype of b, and of a unless b is
    quantized."""

    dtype: str
    m: int
    n: int
    k: int


@dataclass(frozen=True)
class Measured:
    """Seconds of a product, and the bytes of its packed weights."""

    seconds: float
    nbytes: int


class AlignedBytes:
    """Memory that begins at a cache line."""

    def __init__(self, nbytes: int) -> None:
        # Bytes of 0x3F are about 0.75 in bf16 and f32. They are written so that the pages of the array are allocated.
        self._held = np.full(nbytes + LINE, 0x3F, np.uint8)
        start = -self._held.ctypes.data % LINE
        self.bytes: npt.NDArray[np.uint8] = self._held[start : start + nbytes]
        self.address = int(self.bytes.ctypes.data)


def measure(case: Case, weights: AlignedBytes, seconds: float, features: Features) -> Measured:
    """Return the fastest time of a product; calls iterate over the copies for about `seconds`."""
    panels: Panels | QuantizedPanels
    if case.dtype in PLAIN:
        panels = Panels(case.n, case.k, case.dtype, case.k, 1)
    else:
        panels = QuantizedPanels(case.n, case.k, format_named(case.dtype))
    copies = max(1, _CALL_BYTES // panels.packed_bytes)
    step = copies * panels.packed_bytes
    module = Module()
    f = module.function("sweep", [(name, PTR) for name in ("a", "weights", "out", "scratch")], exported=True)
    a = Operand(f["a"], (case.m, case.k), (case.k, 1), "f32" if case.dtype == "f32" else "bf16")
    out = Operand(f["out"], (case.m, case.n), (case.n, 1), "f32")
    if isinstance(panels, Panels):
        product = packed_product(a, out, panels, features)
    else:
        make = small_float_product if panels.floating else quantized_product
        product = make(a, out, panels, features)
    with f.loop(0, copies) as copy:
        product.emit(f, f["weights"] + copy.index * panels.packed_bytes, 0, case.n, f["scratch"])
    scratch = AlignedBytes(product.scratch_bytes)
    f.returns()
    jit = Jit(module, features.cpu)
    sweep = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4)(jit.addresses["sweep"])
    rows, results = AlignedBytes(case.m * case.k * 4), AlignedBytes(case.m * case.n * 4)
    best, stop, offset = float("inf"), time.perf_counter() + seconds, 0
    while best == float("inf") or time.perf_counter() < stop:
        start = time.perf_counter()
        sweep(rows.address, weights.address + offset, results.address, scratch.address)
        best = min(best, time.perf_counter() - start)
        offset = offset + step if offset + 2 * step <= len(weights.bytes) else 0
    return Measured(best / copies, panels.packed_bytes)


def cases(only: str, dtypes: Iterable[str]) -> Iterator[Case]:
    for dtype in dtypes:
        if only != "gemm":
            yield from (Case(dtype, m, n, k) for n, k in GEMV for m in ROWS)
        if only != "gemv":
            yield from (Case(dtype, m, n, k) for m, n, k in GEMM)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=256, help="total size of the copies of weights")
    parser.add_argument("--seconds", type=float, default=0.3, help="seconds of measurement per shape")
    parser.add_argument("--only", choices=["gemv", "gemm"], default="", help="measure one half of the table")
    parser.add_argument("--dtypes", default="bf16,f32,int8,int4", help="dtypes of the weights")
    options = parser.parse_args()
    chosen = list(cases(options.only, options.dtypes.split(",")))
    largest = max(case.n * case.k * (4 if case.dtype == "f32" else 2) for case in chosen)
    features = Features.chosen()
    weights = AlignedBytes(max(options.megabytes << 20, largest))
    read = max(_native.read_bandwidth(1, 512 << 20, 3) for _ in range(3))
    print(f"streaming read, one thread: {read:.1f} GB/s\n")
    print(f"{'dtype':5} {'m':>5} {'n':>6} {'k':>5} {'us':>10} {'GB/s':>7} {'of read':>8} {'GFLOP/s':>8}")
    for case in chosen:
        measured = measure(case, weights, options.seconds, features)
        rate = measured.nbytes / measured.seconds / 1e9
        flops = 2 * case.m * case.n * case.k / measured.seconds / 1e9
        shape = f"{case.dtype:5} {case.m:5} {case.n:6} {case.k:5} {measured.seconds * 1e6:10.1f}"
        print(f"{shape} {rate:7.1f} {rate / read:8.0%} {flops:8.0f}", flush=True)


if __name__ == "__main__":
    main()
