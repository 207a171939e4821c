"""Weights of 8 and 4 bits in panels of 16 outputs, scales and zero points (or minimums) beside their codes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sscc.ir.errors import ErrorKind, InputError, InternalError
from sscc.runtime.backends.cpu.features import LANES
from sscc.runtime.backends.cpu.figures import LINE, PACKED_AT_ONCE

SCALES: dict[str, np.dtype[Any]] = {
    "bf16": np.dtype(np.uint16),
    "f16": np.dtype(np.float16),
    "f32": np.dtype(np.float32),
}
"""What scales of a dtype are in numpy; bf16 as its bits."""

QUAD = 4
"""The number of neighbouring k whose products one instruction sums."""


class QuantisedPanelErrors(ErrorKind):
    FORMAT = InternalError, "weights cannot be packed so: {panels}"
    GROUPS = InternalError, "sums of {k} numbers cannot be packed in groups of {group}"
    PARTS_DIFFER = (
        InputError,
        "values {values}, scales {scales} and zero points or minimums {base} are not the parts of {panels}",
    )


@dataclass(frozen=True)
class QuantisedPanels:
    """How a weight of small integers is stored for out[m, n] = sum over k of a[m, k] * b[n, k].

    b[n, k] = (value[n, k] - zero[n, k // group]) * scale[n, k // group]; without zero points, zero is 0 with 8 bits and
    8 with 4 bits. With minimums it is value[n, k] * scale[n, k // group] + minimum[n, k // group]. Values are
    -128 .. 127 with 8 bits, 0 .. 15 with 4 bits.

    Bytes [ceil(N / 16)][K / group][group_bytes], and in these: scales [16]; i8 zero points or minimums [16], if there
    are any; lines [ceil(group / line_k)][16][4] of bytes. With 8 bits a line holds 4 k, byte [j][c] being value + 128
    of output j and k = c. With 4 bits it holds 8 k, byte [j][c] having k = c in its low half and k = 4 + c in its high
    half. Of floats a line [4][16] holds 4 k one after another, byte [c][j] being that of output j and k = c. Bytes
    where n >= N, or k is beyond the group, are zeros.

    Attributes:
        n, k: outputs and length of the sums.
        bits: 8 or 4.
        group: k that share a scale, a divisor of k; a multiple of 8, or k itself.
        zero_point, minimum: which of them there are, if any.
        scale_dtype: of scales and minimums, "bf16", "f16" or "f32".
        floating: whether values are floats of 8 bits (e4m3) instead of integers.
    """

    n: int
    k: int
    bits: int
    group: int
    zero_point: bool = False
    minimum: bool = False
    scale_dtype: str = "bf16"
    floating: bool = False

    def __post_init__(self) -> None:
        if self.bits not in (8, 4) or min(self.n, self.k, self.group) < 1:
            raise QuantisedPanelErrors.FORMAT(panels=self)
        if self.k % self.group or (self.group % 8 and self.group != self.k):
            raise QuantisedPanelErrors.GROUPS(k=self.k, group=self.group)

    @property
    def count(self) -> int:
        """Panels."""
        return -(-self.n // LANES)

    @property
    def groups(self) -> int:
        return self.k // self.group

    @property
    def line_k(self) -> int:
        """k in a line of 64 bytes."""
        return QUAD * 8 // self.bits

    @property
    def lines(self) -> int:
        """Lines of a group."""
        return -(-self.group // self.line_k)

    @property
    def quads(self) -> int:
        """Units of 4 k of a group."""
        return self.lines * self.line_k // QUAD

    @property
    def head_bytes(self) -> int:
        """Bytes of a group before its lines."""
        return LANES * (self.scale_bytes * (2 if self.minimum else 1) + self.zero_point)

    @property
    def scale_bytes(self) -> int:
        """Bytes of a scale or minimum."""
        return SCALES[self.scale_dtype].itemsize

    @property
    def group_bytes(self) -> int:
        return self.head_bytes + self.lines * LINE

    @property
    def panel_bytes(self) -> int:
        return self.groups * self.group_bytes

    @property
    def packed_bytes(self) -> int:
        return self.count * self.panel_bytes

    @property
    def offset(self) -> int:
        """The stored byte, or half of one, that stands for zero where there are no zero points or minimums."""
        return 128 if self.bits == 8 else 8

    @property
    def largest_difference(self) -> int:
        """The largest magnitude of a code less its zero, whatever bytes an artifact has."""
        if self.bits == 8:
            return 255 if self.zero_point else 128
        return 15 + (128 if self.zero_point else 0)

    def pack(
        self,
        values: npt.NDArray[np.generic],
        scales: npt.NDArray[np.generic],
        base: npt.NDArray[np.generic] | None = None,
    ) -> npt.NDArray[np.uint8]:
        """The weight in panels.

        Args:
            values: [.., N, K] i8, floats as their bits; with 4 bits [.., N, K / 2], the even k in the low half.
            scales: [.., N, K / group], of SCALES.
            base: [.., N, K / group], i8 zero points or minimums of the scales' dtype, or None without any.

        Returns:
            [.., count, groups, group_bytes].

        Raises:
            InputError: where shapes or dtypes do not fit.
        """
        stacked = values.shape[:-2]
        self._check(values, scales, base, stacked)
        packed = np.zeros((int(np.prod(stacked)), self.count, self.groups, self.group_bytes), np.uint8)
        parts = [part.reshape(-1, *part.shape[-2:]) for part in (values, scales, base) if part is not None]
        step = max(1, PACKED_AT_ONCE // (LANES * self.k)) * LANES
        for layer, target in enumerate(packed):
            for first in range(0, self.n, step):
                rows = [part[layer, first : first + step] for part in parts]
                self._place(rows, target[first // LANES : (first + step) // LANES])
        return packed.reshape(*stacked, *packed.shape[1:])

    def unpack(self, packed: npt.NDArray[np.uint8]) -> npt.NDArray[np.int8]:
        """The values that `pack` was given, [.., N, K] or [.., N, K / 2] i8."""
        stacked = packed.shape[:-3]
        halves = self.line_k // QUAD
        shape = (-1, self.count, self.groups, self.lines)
        lines = packed[..., self.head_bytes :].reshape(*shape, *((QUAD, LANES) if self.floating else (LANES, QUAD)))
        if self.floating:
            lines = lines.swapaxes(-1, -2)
        parts = [lines] if halves == 1 else [lines & 15, lines >> 4]
        # [.., panels, groups, lines, halves, 16, 4] to [.., panels, 16, groups, lines, halves, 4]
        quads = np.stack(parts, axis=4).transpose(0, 1, 5, 2, 3, 4, 6)
        codes = quads.reshape(-1, self.count * LANES, self.groups, self.lines * self.line_k)
        rows = np.ascontiguousarray(codes[:, : self.n, :, : self.group]).reshape(*stacked, self.n, self.k)
        if self.floating:
            return rows.view(np.int8)
        if self.bits == 8:
            return (rows ^ np.uint8(128)).view(np.int8)
        pairs = rows.reshape(*stacked, self.n, self.k // 2, 2)
        joined: npt.NDArray[np.uint8] = pairs[..., 0] | (pairs[..., 1] << 4)
        return joined.view(np.int8)

    def _check(
        self,
        values: npt.NDArray[np.generic],
        scales: npt.NDArray[np.generic],
        base: npt.NDArray[np.generic] | None,
        stacked: tuple[int, ...],
    ) -> None:
        per_group = (*stacked, self.n, self.groups)
        fits = values.shape == (*stacked, self.n, self.k * self.bits // 8) and self.k * self.bits % 8 == 0
        scale = SCALES[self.scale_dtype]
        fits = fits and scales.shape == per_group and values.dtype == np.int8 and scales.dtype == scale
        if self.zero_point or self.minimum:
            dtype = np.dtype(np.int8) if self.zero_point else scale
            fits = fits and base is not None and base.shape == per_group and base.dtype == dtype
        if not fits or (base is None) == (self.zero_point or self.minimum):
            parts = {"values": values, "scales": scales, "base": base}
            shown = {name: "none" if a is None else f"{a.dtype} {list(a.shape)}" for name, a in parts.items()}
            raise QuantisedPanelErrors.PARTS_DIFFER(**shown, panels=self)

    def _place(self, rows: list[npt.NDArray[np.generic]], target: npt.NDArray[np.uint8]) -> None:
        """Some rows of each part, the first at a panel's start, to [panels, groups, group_bytes]."""
        values, scales, *base = rows
        panels = len(target)
        codes = np.zeros((panels * LANES, self.groups, self.lines * self.line_k), np.uint8)
        codes[: len(values), :, : self.group] = self._codes(values).reshape(len(values), self.groups, self.group)
        # [panels, 16, groups, lines, halves, 4] to [panels, groups, lines, halves, 16, 4]
        quads = codes.reshape(panels, LANES, self.groups, self.lines, -1, QUAD).transpose(0, 2, 3, 4, 1, 5)
        joined = quads[..., 0, :, :] if self.bits == 8 else quads[..., 0, :, :] | (quads[..., 1, :, :] << 4)
        if self.floating:
            joined = joined.swapaxes(-1, -2)
        lines = self.lines * LINE
        target[..., self.head_bytes :] = joined.reshape(panels, self.groups, lines)
        scale_bytes = LANES * self.scale_bytes
        target[..., :scale_bytes] = _by_panel(scales, panels).view(np.uint8)
        if base:
            target[..., scale_bytes : self.head_bytes] = _by_panel(base[0], panels).view(np.uint8)

    def _codes(self, values: npt.NDArray[np.generic]) -> npt.NDArray[np.uint8]:
        """[rows, K] as they are stored, one per byte."""
        unsigned = values.view(np.uint8)
        if self.floating:
            return unsigned
        if self.bits == 8:
            return unsigned ^ np.uint8(128)
        return np.stack([unsigned & 15, unsigned >> 4], axis=-1).reshape(len(values), self.k)


def _by_panel(part: npt.NDArray[np.generic], panels: int) -> npt.NDArray[np.generic]:
    """[rows, groups] to [panels, groups, 16], zeros after the last row."""
    whole = np.zeros((panels * LANES, part.shape[1]), part.dtype)
    whole[: len(part)] = part
    return np.ascontiguousarray(whole.reshape(panels, LANES, -1).transpose(0, 2, 1))
