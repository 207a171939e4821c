"""Emulated instructions that this CPU may lack: tile registers (AMX), which functions keep in memory, and the products
of bytes of AVX512_VNNI. They do what each instruction is defined to do."""

from __future__ import annotations

from collections.abc import Sequence

from sscc.runtime.backends.cpu.codegen.features import LANES
from sscc.runtime.backends.cpu.codegen.mlir import F32, I8, I32, TILE_ROW, Function, Module, Value, vector

_TILE = 16 * TILE_ROW
_LANES32, _LANESF, _ROW = vector(I32, LANES), vector(F32, LANES), vector(I8, TILE_ROW)


class EmulatedModule(Module):
    def _make(self, name: str, params: Sequence[tuple[str, str]], results: Sequence[str], exported: bool) -> Function:
        return _Emulated(self, name, params, results, exported)


class _Emulated(Function):
    """A function whose registers are 8 KiB of its stack. What loads a register comes before what reads it."""

    def __init__(
        self, module: Module, name: str, params: Sequence[tuple[str, str]], results: Sequence[str], exported: bool
    ) -> None:
        super().__init__(module, name, params, results, exported)
        inlined = self.inlined
        self._tiles, self._shapes = self.stack(8 * _TILE), dict[int, tuple[int, int]]()
        self.inlined = inlined

    def intrinsic(self, name: str, operands: Sequence[Value], result: str) -> Value:
        if name != "llvm.x86.avx512.vpdpbusd.512":
            return super().intrinsic(name, operands, result)
        total, unsigned, signed = (self.bitcast(operand, _LANES32) for operand in operands)
        for byte in range(4):
            number = self.binary("arith.shrsi", signed << (24 - 8 * byte) if byte < 3 else signed, 24)
            total = total + (unsigned >> (8 * byte) & 255 if byte else unsigned & 255) * number
        return total

    def configure_tiles(self, shapes: Sequence[tuple[int, int]], where: Value) -> None:
        assert len(shapes) <= 8
        assert all(0 < rows <= 16 and 0 < width <= TILE_ROW and width % 4 == 0 for rows, width in shapes)

    def release_tiles(self) -> None:
        pass

    def zero_tile(self, tile: int) -> None:
        with self.loop(0, _TILE, TILE_ROW) as at:
            self.store(self.splat(0, LANES, I32), self._tile(tile) + at.index)

    def load_tile(
        self, tile: int, pointer: Value, rows: int, width: int = TILE_ROW, stride: Value | int | None = None
    ) -> None:
        self.zero_tile(tile)
        self._shapes[tile] = rows, width
        step = width if stride is None else stride
        with self.loop(0, rows) as row, self.loop(0, width) as byte:
            value = self.load(pointer + (row.index * step + byte.index), I8)
            self.store(value, self._tile(tile) + (row.index * TILE_ROW + byte.index))

    def store_tile(self, tile: int, pointer: Value, rows: int, stride: Value | int | None = None) -> None:
        step = TILE_ROW if stride is None else stride
        with self.loop(0, rows) as row:
            self.store(self.load(self._tile(tile) + row.index * TILE_ROW, _ROW), pointer + row.index * step)

    def dot_bytes(self, sums: int, left: int, right: int) -> None:
        """i32 sums of signed bytes times unsigned ones."""
        rows, width = self._shapes[left]
        assert self._shapes[right] == (width // 4, TILE_ROW)
        with self.loop(0, rows) as row, self.loop(0, width // 4) as quad:
            at = self._tile(sums) + row.index * TILE_ROW
            total, line = self.load(at, _LANES32), self.load(self._tile(right) + quad.index * TILE_ROW, _LANES32)
            for byte in range(4):
                number = self.load(self._tile(left) + (row.index * TILE_ROW + quad.index * 4 + byte), I8)
                wide = self.broadcast(self.cast("arith.extsi", number, I32), LANES)
                total = total + wide * (line >> (8 * byte) & 255 if byte else line & 255)
            self.store(total, at)

    def dot_tiles(self, sums: int, left: int, right: int) -> None:
        """f32 sums of products of bf16 pairs: the even elements of a row and the odd ones are summed separately."""
        rows, width = self._shapes[left]
        with self.loop(0, rows) as row:
            at = self._tile(sums) + row.index * TILE_ROW
            halves = [self.splat(0.0), self.splat(0.0)]
            with self.loop(0, width // 4, 1, halves) as pair:
                state = list(pair.state)
                both = self.load(self._tile(left) + (row.index * TILE_ROW + pair.index * 4), I32)
                line = self.load(self._tile(right) + pair.index * TILE_ROW, _LANES32)
                for odd in range(2):
                    number, weights = (x & -65536 if odd else x << 16 for x in (both, line))
                    wide = self.broadcast(self.bitcast(number, F32), LANES)
                    state[odd] = self.fma(self.bitcast(weights, _LANESF), wide, state[odd])
                pair.carry(*state)
            even, odd_sum = pair.results
            self.store(self.load(at, _LANESF) + (even + odd_sum), at)

    def _tile(self, tile: int) -> Value:
        return self._tiles + tile * _TILE
